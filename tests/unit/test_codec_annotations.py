"""What a handler's annotation tells about its result, before it runs."""

import collections.abc
import typing
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar

import pytest
from pydantic import BaseModel

from notwice.codec import check_encodable
from notwice.errors import EncodingError

T = TypeVar("T")


class Colour(Enum):
    RED = 1


@dataclass
class Tree:
    leaf: Decimal
    branches: "list[Tree]"


@dataclass
class Handle:
    name: str
    file: typing.IO[str]


@dataclass
class Unknown:
    other: "NotHere"  # type: ignore[name-defined]  # noqa: F821 - an annotation that can't be read


class Model(BaseModel):
    at: datetime


class Pair(NamedTuple):
    left: int
    right: Colour


class Row(TypedDict):
    id: int


class BadRow(TypedDict):
    file: typing.IO[str]


class Shape(Protocol):
    def area(self) -> int: ...


class Box(Generic[T]):
    pass


class Plain:
    def __repr__(self) -> str:
        return "Plain()"  # it stands in the name of a test


def local_class() -> type:
    @dataclass
    class Local:
        value: int

    return Local


@pytest.mark.parametrize(
    "hint",
    [
        None,
        type(None),
        int,
        bytes,
        datetime,
        list,
        dict[str, list[Tree]],
        tuple[int, ...],
        int | None,
        typing.Optional[Tree],  # noqa: UP045 - the older spelling, too
        typing.Literal["a", 1],
        typing.Annotated[int, Plain()],
        Tree,
        Colour,
        Model,
        Pair,
        Row,
        Unknown,
        Any,
        object,
        T,
        "Plain",
        Shape,
        collections.abc.Mapping[str, int],
        typing.Never,
    ],
    ids=str,
)
def test_what_can_be_kept_or_can_t_be_told_is_let_pass(hint: object) -> None:
    """C36: kept kinds, and annotations that say nothing, are no obstacle."""
    check_encodable(hint)


@pytest.mark.parametrize(
    "hint",
    [
        Plain,
        complex,
        bytearray,
        Box,
        Box[int],
        Handle,
        BadRow,
        list[Plain],
        dict[str, tuple[int, Plain]],
        int | Plain,
        typing.Annotated[Plain, 1],
        collections.abc.Sequence[complex],
        collections.abc.Iterator[int],
        collections.abc.AsyncIterator[int],
        collections.abc.Generator[int, None, None],
        type[int],
        local_class(),
    ],
    ids=str,
)
def test_what_can_t_be_kept_is_refused_before_anything_runs(hint: object) -> None:
    """C36, T12: an unsupported type is found before the handler runs, and named."""
    with pytest.raises(EncodingError, match=r"; (return|define)"):
        check_encodable(hint)
