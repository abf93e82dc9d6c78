"""Results as records keep them: which form each value takes, and what is refused because it could never be read."""

from http import HTTPStatus
from typing import Any

import pytest

from notwice import EncodingError, Failure, Result, ResultKind, ResultOmitted
from notwice.codec import decode_record, encode_record
from notwice.model import Record, RecoveryKind, State, Terms
from notwice.results import decode_result, result_of, text_of, told_of

UNSOUND = "a Result has a ResultKind, a body of bytes or None, a whole number as status, and headers of text"


class CardDeclined(Exception):
    """A handler's own error."""


class Silent(Exception):
    """An error that can't say what it is."""

    def __str__(self) -> str:
        raise OSError("closed")


def closed(_: object) -> type:
    """Fail, as a proxy does whose target is gone."""
    raise OSError("closed")


Broken = type("Broken", (), {"__class__": property(closed), "__doc__": "A value whose class can't be looked at."})


def test_a_value_s_result_byte_for_byte() -> None:
    """P14: a value is kept in the form of the codec, without a status."""
    assert result_of({"id": 1}) == Result(ResultKind.VALUE, b'j{"id":1}', 0, ())
    assert decode_result(result_of({"id": 1})) == {"id": 1}


def test_an_error_s_result_byte_for_byte() -> None:
    """P14, C39: an error is kept as its full name and its text, and comes back as a `Failure`."""
    stored = result_of(CardDeclined("no funds"))
    assert stored == Result(ResultKind.ERROR, b'j["tests.unit.test_results.CardDeclined","no funds"]', 0, ())
    assert decode_result(stored) == Failure("tests.unit.test_results.CardDeclined", "no funds")
    assert result_of(Silent()).body == b'j["tests.unit.test_results.Silent","(its text can\'t be had: OSError)"]'


def test_a_refusal_that_is_no_error_is_a_value() -> None:
    """What an older release kept of an error in another form, and a list of a value, come back as they are."""
    assert decode_result(Result(ResultKind.ERROR, b'j"no funds"')) == "no funds"
    assert decode_result(Result(ResultKind.VALUE, b'j["a","b"]')) == ["a", "b"]


def test_a_response_comes_back_as_it_is() -> None:
    """Its body is a body, and is not decoded; one without a body is a response, too."""
    for response in (Result(ResultKind.HTTP, b"j{", 201, (("location", "/1"),)), Result(ResultKind.HTTP, None, 204)):
        assert result_of(response) is response
        assert decode_result(response) is response


def test_a_result_that_was_omitted() -> None:
    """T12: the sentence says that it is finished, and where to look."""
    with pytest.raises(ResultOmitted) as caught:
        decode_result(Result(ResultKind.VALUE, None))
    assert str(caught.value) == (
        "the operation is finished, but its result could not be kept; look the effect up where it happened"
    )


def test_an_error_s_text() -> None:
    """A text is what it is; where an error fails at giving one, its record is written all the same."""
    assert text_of("why") == "why"
    assert text_of(CardDeclined("no funds")) == "no funds"
    assert text_of(Silent()) == "(its text can't be had: OSError)"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("why", "why"),
        ("", ""),
        (5, "5"),
        (OSError("no route"), "OSError: no route"),
        (OSError(), "OSError"),
        (CardDeclined("no funds"), "CardDeclined: no funds"),
        (Silent(), "Silent: (its text can't be had: OSError)"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_a_record_says_of_an_error(error: object, told: str) -> None:
    """Of an exception its type and its text, of anything else its text alone."""
    assert told_of(error) == told


def test_a_value_that_can_not_be_looked_at_is_refused() -> None:
    """T12: whatever a value raises while it is read ends in one error, which names its class and the reason."""
    with pytest.raises(EncodingError) as caught:
        result_of(Broken())
    assert str(caught.value) == "a value of type Broken can't be read: OSError: closed"
    assert isinstance(caught.value.__cause__, OSError)


RECORD = Record(
    *("", "idem_1", "s", "k", State.COMPLETED, b"\0", None),
    Terms(1, None, RecoveryKind.HOLD, None, None, 1, deduplicated=False),
)


@pytest.mark.parametrize(
    "fields",
    [
        (ResultKind.HTTP, b"", 200, ()),
        (ResultKind.HTTP, None, 0, (("a", "b"), ("a", ""))),
        (ResultKind.VALUE, b"jnull", 0, ()),
        (ResultKind.HTTP, b"", HTTPStatus.CREATED, ()),
    ],
    ids=repr,
)
def test_a_ready_result_is_kept_as_it_is(fields: Any) -> None:
    """What is accepted can be read from its record again."""
    result = result_of(Result(*fields))
    assert result == Result(*fields)
    record = RECORD._replace(result=result)
    assert decode_record(encode_record(record), "", "idem_1") == record


@pytest.mark.parametrize(
    "fields",
    [
        ("http", b"", 200, ()),
        (None, b"", 200, ()),
        (ResultKind.HTTP, "text", 200, ()),
        (ResultKind.HTTP, bytearray(b""), 200, ()),
        (ResultKind.HTTP, b"", "200", ()),
        (ResultKind.HTTP, b"", None, ()),
        (ResultKind.HTTP, b"", 200.0, ()),
        (ResultKind.HTTP, b"", True, ()),
        (ResultKind.HTTP, b"", 200, []),
        (ResultKind.HTTP, b"", 200, None),
        (ResultKind.HTTP, b"", 200, "text"),
        (ResultKind.HTTP, b"", 200, ((b"a", "b"),)),
        (ResultKind.HTTP, b"", 200, (("a", 1),)),
        (ResultKind.HTTP, b"", 200, (("a", "b"), ("a", None))),
        (ResultKind.HTTP, b"", 200, (("a",),)),
        (ResultKind.HTTP, b"", 200, (("a", "b", "c"),)),
        (ResultKind.HTTP, b"", 200, ((),)),
        (ResultKind.HTTP, b"", 200, ("ab",)),
        (ResultKind.HTTP, b"", 200, (["a", "b"],)),
    ],
    ids=repr,
)
def test_a_ready_result_that_could_not_be_read_again_is_refused(fields: Any) -> None:
    """T12: what would be stored and never be read is an error before it is stored, whichever field is wrong."""
    with pytest.raises(EncodingError) as caught:
        result_of(Result(*fields))
    assert str(caught.value) == UNSOUND
