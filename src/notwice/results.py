"""Between what handlers return or raise and what a record keeps of it."""

from __future__ import annotations

from notwice.codec import decode_value, encode_value
from notwice.errors import EncodingError
from notwice.model import Failure, Result, ResultKind

OMITTED = Result(ResultKind.VALUE, None)
"""A result that is known to exist and that could not be kept."""


def result_of(value: object) -> Result:
    """What is stored of `value`: itself if it is a `Result`, type and message of an exception, else its encoding.

    Raises `EncodingError` for a value that can't be stored without loss.
    """
    if isinstance(value, Result):
        return value
    if isinstance(value, BaseException):
        failure = [f"{type(value).__module__}.{type(value).__qualname__}", str(value)]
        return Result(ResultKind.ERROR, encode_value(failure))
    return Result(ResultKind.VALUE, encode_value(value))


def decode_result(result: Result) -> object:
    """The value of a stored result; a `Failure` for an exception, the `Result` itself for a response.

    Raises `EncodingError` if it was omitted, or if its type can't be found in this process.
    """
    if result.kind is ResultKind.HTTP:
        return result
    if result.body is None:
        message = "the operation is finished, but its result could not be kept; look the effect up where it happened"
        raise EncodingError(message)
    value = decode_value(result.body)
    if result.kind is ResultKind.ERROR and isinstance(value, list):
        return Failure(*map(str, value))
    return value
