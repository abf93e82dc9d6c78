"""Between what handlers return or raise and what a record keeps of it."""

from __future__ import annotations

from typing import cast

from notwice.codec import decode_value, encode_value
from notwice.errors import EncodingError, ResultOmitted
from notwice.model import Failure, Result, ResultKind, make_result

OMITTED = Result(ResultKind.VALUE, None)
"""A result that is known to exist and that could not be kept."""


def result_of(value: object) -> Result:
    """What is stored of `value`: itself if it is a `Result`, type and message of an exception, else its encoding.

    Raises `EncodingError` for a value that can't be stored without loss, or that can't even be looked at.
    """
    try:
        if isinstance(value, Result):
            return _checked(value)
        if isinstance(value, BaseException):
            failure = [f"{type(value).__module__}.{type(value).__qualname__}", text_of(value)]
            return Result(ResultKind.ERROR, encode_value(failure))
        return make_result((ResultKind.VALUE, encode_value(value), 0, ()))
    except EncodingError:
        raise
    except Exception as error:
        message = f"a value of type {type(value).__qualname__} can't be read: {type(error).__name__}: {text_of(error)}"
        raise EncodingError(message) from error


def text_of(error: object) -> str:
    """What `error` says of itself; where it fails at that, a note in its place, for its record must be written."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - a handler's own exception may do anything
        return f"(its text can't be had: {type(failure).__name__})"


def told_of(error: object) -> str:
    """What the record says of an error: of an exception its type, too."""
    text = text_of(error)
    if not isinstance(error, BaseException):
        return text
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def _checked(result: Result) -> Result:
    """A ready `Result`, if each of its fields has its type: another one could be stored and never be read again."""
    kind, body, status, headers = cast("tuple[object, ...]", result)
    sound = (
        isinstance(kind, ResultKind)
        and isinstance(body, bytes | None)
        and isinstance(status, int)
        and not isinstance(status, bool)
        and isinstance(headers, tuple)
        and all(_is_pair(header) for header in headers)
    )
    if not sound:
        message = "a Result has a ResultKind, a body of bytes or None, a whole number as status, and headers of text"
        raise EncodingError(message)
    return result


def _is_pair(header: object) -> bool:
    return isinstance(header, tuple) and [isinstance(text, str) for text in header] == [True, True]


def decode_result(result: Result) -> object:
    """The value of a stored result; a `Failure` for an exception, the `Result` itself for a response.

    Raises `ResultOmitted` if it was not kept, and `EncodingError` if its type can't be found in this process.
    """
    if result.kind is ResultKind.HTTP:
        return result
    if result.body is None:
        message = "the operation is finished, but its result could not be kept; look the effect up where it happened"
        raise ResultOmitted(message)
    value = decode_value(result.body)
    if result.kind is ResultKind.ERROR and isinstance(value, list):
        return Failure(*map(str, value))
    return value
