"""Plain values: those that JSON carries as they are. They are what most requests and results are made of.

A quick look says whether a value is one, and a writer made once turns it into text, both at the speed of the
interpreter's own JSON module: requests and results are looked at in every guarded call.
"""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any, Final

SCALARS: Final[frozenset[type]] = frozenset({str, int, bool, NoneType})
_TEXT: Final[frozenset[type]] = frozenset({str})


def is_plain(value: Any, scalars: frozenset[type], room: list[int], *, depth: int) -> bool:  # noqa: ANN401 - any value at all
    """Say whether a value is made of lists, of dicts with text names and of `scalars`; of no subclass of any of them.

    Not so if it is nested deeper than `depth`, or has more items than there is `room`, as one that holds itself has.
    `room` is a list of one number, which is used up.
    """
    kind = type(value)
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)):
            return False
        items: Iterable[Any] = value.values()
    elif kind is list:
        items = value
    else:
        return kind in scalars
    room[0] -= len(value) + 1
    if room[0] < 0 or not depth:
        return False
    if scalars.issuperset(map(type, items)):
        return True
    for item in items:  # noqa: SIM110 - a generator costs a third of this hot path
        if type(item) not in scalars and not is_plain(item, scalars, room, depth=depth - 1):
            return False
    return True


def writer(*, sort_keys: bool = False, allow_nan: bool = False, ascii_only: bool = False) -> Callable[[object], str]:
    """Give a function that writes a value as JSON without spaces.

    It raises `ValueError` for an infinite float or NaN unless `allow_nan`, and for an integer of more digits than the
    interpreter writes. It never looks for cycles: give it only what is known to end.
    """
    encoder = json.JSONEncoder(
        ensure_ascii=ascii_only, check_circular=False, allow_nan=allow_nan, sort_keys=sort_keys, separators=(",", ":")
    )
    make = getattr(json.encoder, "c_make_encoder", None)  # CPython's own; an encoder makes it anew for each value
    if make is None:
        return encoder.encode
    texts = json.encoder.encode_basestring_ascii if ascii_only else json.encoder.encode_basestring
    chunks = make(None, encoder.default, texts, None, ":", ",", sort_keys, False, allow_nan)
    return lambda value: "".join(chunks(value, 0))
