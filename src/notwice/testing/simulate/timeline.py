"""Draws a history: as lines of text, one an event, and as an SVG picture with a lane for each process."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from notwice.model import Released
from notwice.testing.history import (
    Answered,
    Asked,
    Calm,
    Disturbed,
    Effect,
    Event,
    Held,
    History,
    Kept,
    MoveAnswered,
    MoveAsked,
    Name,
    OperatorMoved,
    Produced,
    Reconciled,
    Started,
)

_NANOSECONDS: Final = 1_000_000_000
_STORE: Final = "store"


def text_of(history: History) -> str:
    """The history as lines of text: when, where, which call, and what."""
    return "\n".join(f"{at:10.4f} s  {lane:<10} {call:<12} {what}".rstrip() for at, lane, call, what in _rows(history))


def _rows(history: History) -> Iterator[tuple[float, str, str, str]]:
    lanes: dict[str, str] = {}
    for event in history.events:
        if isinstance(event, Asked):
            lanes[event.call] = event.process
        call = getattr(event, "call", "")
        yield event.at_ns / _NANOSECONDS, _lane_of(event, lanes), call, _said(event)


def _lane_of(event: Event, lanes: dict[str, str]) -> str:
    match event:
        case Held():
            return _STORE
        case Effect():
            return "provider"
        case OperatorMoved():
            return "operator"
        case Disturbed():
            return event.process or _STORE
        case Calm():
            return ""
        case _:
            return lanes.get(event.call, "?")


def _said(event: Event) -> str:
    match event:
        case Held():
            return f"{_named(event.name)}: {_kept(event.kept)}"
        case OperatorMoved():
            return f"{event.move} {_named(event.name)}{', forced' * event.forced}"
        case Disturbed():
            detail = f" ({event.detail})" if event.detail else f" by {event.by_ms} ms" if event.by_ms else ""
            return f"*** {event.kind}{detail}"
        case Calm():
            return "--- all faults are over"
        case _:
            return _said_of_a_call(event)


def _said_of_a_call(
    event: Asked | Started | Effect | Produced | Reconciled | MoveAsked | MoveAnswered | Answered,
) -> str:
    match event:
        case Asked():
            return f"asks for {_named(event.name)}, {event.terms.recovery}, request {(event.request or '-')[:6]}"
        case Started():
            return f"starts its handler, attempt {event.attempt}"
        case Effect():
            return event.effect if event.applied else f"{event.effect} again: nothing happens"
        case Produced():
            return f"its handler ends: {event.error or 'an answer'}"
        case Reconciled():
            return f"asks what became of it: {event.verdict}"
        case MoveAsked():
            return f"{event.move} ..."
        case MoveAnswered():
            return f"{event.move}: {event.code or 'done'}"
        case Answered():
            code = f" ({event.code})" if event.code else ""
            return f"is told: {event.outcome}{code}"


def _named(name: Name) -> str:
    return f"{name.namespace or '-'}/{name.scope}/{name.key}"


def _kept(kept: Kept | None) -> str:
    if kept is None:
        return "nothing"
    mark = f", released {kept.released}" if kept.released is not Released.NO else ""
    return f"{kept.state or 'unreadable'}, attempt {kept.attempt}{mark}, etag {kept.etag.hex()[:6]}"


# -- the picture ------------------------------------------------------------------------------------------------------

_LANE_WIDTH: Final = 210
_ROW_HEIGHT: Final = 18
_TOP: Final = 44
_LEFT: Final = 90
_COLOURS: Final = {"***": "#b00020", "---": "#00796b"}


def svg_of(history: History, title: str) -> str:
    """The history as a picture: time goes down, each process, the store and the provider have a lane."""
    rows = list(_rows(history))
    lanes = list(dict.fromkeys(lane for _, lane, _, _ in rows if lane))
    width, height = _LEFT + _LANE_WIDTH * max(len(lanes), 1) + 20, _TOP + _ROW_HEIGHT * (len(rows) + 1)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="monospace">',
            "<style>text { font-size: 11px }</style>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="8" y="16" font-weight="bold">{escape(title)}</text>',
            *(line for number, lane in enumerate(lanes) for line in _lane(number, lane, height)),
            *(line for number, row in enumerate(rows) for line in _row(number, row, lanes)),
            "</svg>\n",
        ]
    )


def _lane(number: int, lane: str, height: int) -> Iterator[str]:
    x = _LEFT + _LANE_WIDTH * number
    yield f'<text x="{x}" y="34" font-weight="bold">{escape(lane)}</text>'
    yield f'<line x1="{x - 6}" y1="38" x2="{x - 6}" y2="{height}" stroke="#cccccc"/>'


def _row(number: int, row: tuple[float, str, str, str], lanes: list[str]) -> Iterator[str]:
    at, lane, call, what = row
    y = _TOP + _ROW_HEIGHT * (number + 1)
    x = _LEFT + _LANE_WIDTH * (lanes.index(lane) if lane else 0)
    colour = _COLOURS.get(what[:3], "black")
    yield f'<text x="8" y="{y}" fill="#777777">{at:.4f}</text>'
    yield f'<circle cx="{x - 6}" cy="{y - 4}" r="3" fill="{colour}"/>'
    yield f'<text x="{x}" y="{y}" fill="{colour}">{escape(f"{call} {what}".strip())}</text>'
