"""What an exception of a handler says of its operation: an answer, proof that nothing happened, or nothing at all."""

import asyncio
from collections.abc import Callable
from functools import partial
from http.client import RemoteDisconnected
from typing import Any

import pytest

from notwice import (
    Failure,
    Guard,
    NotApplied,
    Operation,
    OwnershipLost,
    Policy,
    RecordedFailure,
    Replay,
    ResultOmitted,
    State,
    StoreUnavailable,
    rerun,
)
from notwice.core import TOO_LARGE
from notwice.errors import EncodingError, NotwiceError
from tests.unit.test_too_large import Small
from tests.unit.worlds import World


class PaymentError(Exception):
    """Any trouble with a payment."""


class Declined(PaymentError):
    """The card was refused: an answer."""


class InsufficientFunds(Declined):
    """A kind of it."""


class Unreachable(PaymentError):
    """Nothing was sent."""


class Undecided(NotApplied):
    """A handler's own way of saying that nothing happened."""


LISTS: dict[str, Any] = {"final_errors": (Declined,), "not_applied_errors": (PaymentError,)}
TURNED: dict[str, Any] = {"final_errors": (PaymentError,), "not_applied_errors": (Unreachable,)}
ALL_FINAL = {"final_errors": (Exception,)}
EVERYTHING = {"final_errors": (BaseException,)}


@pytest.mark.parametrize(
    ("options", "error", "meaning"),
    [
        ({}, ValueError(), "unknown"),
        ({}, NotApplied(), "not_applied"),
        ({}, Undecided(), "not_applied"),
        (LISTS, Declined(), "final"),
        (LISTS, InsufficientFunds(), "final"),
        (LISTS, PaymentError(), "not_applied"),
        (LISTS, Unreachable(), "not_applied"),
        (TURNED, Unreachable(), "not_applied"),
        (TURNED, Declined(), "final"),
        (ALL_FINAL, ValueError(), "final"),
        (ALL_FINAL, NotApplied(), "not_applied"),
        (ALL_FINAL, StoreUnavailable(), "unknown"),
        (ALL_FINAL, OwnershipLost("idem_1"), "unknown"),
        ({"final_errors": (TypeError,)}, EncodingError(), "unknown"),
        ({"final_errors": (RecordedFailure,)}, RecordedFailure("k", "m", operation="idem_1"), "final"),
        ({"final_errors": (NotwiceError,)}, StoreUnavailable(), "final"),
        ({"final_errors": (Undecided,)}, Undecided(), "final"),
        (EVERYTHING, ValueError(), "final"),
        (EVERYTHING, KeyboardInterrupt(), "unknown"),
        (EVERYTHING, SystemExit(), "unknown"),
        (EVERYTHING, asyncio.CancelledError(), "unknown"),
        ({"final_errors": (asyncio.CancelledError,)}, asyncio.CancelledError(), "final"),
        ({"not_applied_errors": (ConnectionRefusedError,)}, ConnectionRefusedError(), "not_applied"),
        ({"not_applied_errors": (ConnectionRefusedError,)}, ConnectionResetError(), "unknown"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_the_most_specific_type_decides(options: dict[str, Any], error: BaseException, meaning: str) -> None:
    """P10: of both lists the nearest type counts.

    An interrupt, a cancellation and an error of notwice's own prove nothing by a type that merely includes them.
    """
    assert Policy(**options).says_of(error) == meaning


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Exception, "it includes TimeoutError, which may come after the effect"),
        (OSError, "it includes TimeoutError, which may come after the effect"),
        (ConnectionError, "it includes ConnectionResetError, which may come after the effect"),
        (TimeoutError, "it may come after the effect"),
        (ConnectionResetError, "it may come after the effect"),
        (BrokenPipeError, "it may come after the effect"),
        (EOFError, "it may come after the effect"),
        (NotwiceError, "it includes OwnershipLost, which may come after the effect"),
        (StoreUnavailable, "it may come after the effect"),
        (RemoteDisconnected, "it is a kind of ConnectionResetError, which may come after the effect"),
        (asyncio.IncompleteReadError, "it is a kind of EOFError, which may come after the effect"),
        (BaseException, "whoever is cancelled or interrupted may have done its work"),
        (KeyboardInterrupt, "whoever is cancelled or interrupted may have done its work"),
        (asyncio.CancelledError, "whoever is cancelled or interrupted may have done its work"),
    ],
)
def test_what_may_come_after_the_effect_is_no_proof(kind: type[BaseException], why: str) -> None:
    """P10: a type that proves nothing can't be declared to free keys; the sentence says why, and what to name."""
    with pytest.raises(
        ValueError, match=f"can't hold {kind.__qualname__}: .* happened, for {why}. Name the errors that do"
    ):
        Policy(not_applied_errors=(Unreachable, kind))


def test_a_kind_of_them_that_says_more_may_be_proof() -> None:
    """P10: a time-out of the connection, say, comes before anything is sent, whatever its type is derived from."""

    class ConnectTimeout(TimeoutError):
        pass

    policy = Policy(not_applied_errors=(ConnectTimeout, ConnectionRefusedError, LookupError))
    assert policy.says_of(ConnectTimeout()) == "not_applied"
    assert policy.says_of(TimeoutError()) == "unknown"


def test_one_type_can_not_be_both() -> None:
    """A type in both lists is a contradiction, and refused."""
    with pytest.raises(ValueError, match="Declined can't be both"):
        Policy(final_errors=(Declined,), not_applied_errors=(Unreachable, Declined))


def failing(world: World, error: Callable[[], BaseException]) -> Callable[[], None]:
    def handler() -> None:
        world.effects.append("ran")
        raise error()

    return handler


def run(world: World, handler: Callable[[], Any], **options: Any) -> Any:
    return world.guard.run(handler, scope="charge", key="k", policy=Policy(**{**LISTS, **options}))


def test_an_answer_is_replayed_with_its_name_and_message() -> None:
    """T25, C39: the first caller gets the exception itself, each duplicate a `RecordedFailure` that names it.

    It has the type's name and the message, and nothing runs again.
    """
    world = World()
    with pytest.raises(InsufficientFunds, match="5 missing"):
        run(world, failing(world, lambda: InsufficientFunds("5 missing")))
    for _ in range(2):
        with pytest.raises(RecordedFailure, match="5 missing") as caught:
            run(world, lambda: pytest.fail("ran again"))
    assert caught.value.kind == f"{__name__}.InsufficientFunds"
    assert (caught.value.message, caught.value.code, caught.value.safe_new_key) == (
        "5 missing",
        "recorded_failure",
        False,
    )
    assert world.effects == ["ran"]
    outcome = world.guard.begin("charge", "k")
    assert isinstance(outcome, Replay)
    assert outcome.failed
    assert outcome.result == Failure(f"{__name__}.InsufficientFunds", "5 missing")


def test_the_proof_stands_in_the_record_beside_what_went_wrong() -> None:
    """P7: what left the outcome unknown stays, and what the next attempt said of itself is told after it."""
    world = World()
    policy = Policy(recovery=rerun, not_applied_errors=(Unreachable,))
    for error in (ValueError("the answer was cut off"), NotApplied("not sent"), Unreachable("refused")):
        world.clock.advance(3600)
        with pytest.raises(type(error)):
            world.guard.run(failing(world, partial(type(error), *error.args)), scope="charge", key="k", policy=policy)
        record = world.guard.lookup("charge", "k").record
        assert record.error.startswith("ValueError: the answer was cut off")
    assert record.error == "ValueError: the answer was cut off; since then: abandoned: Unreachable: refused"


@pytest.mark.parametrize("error", [Unreachable, NotApplied, Undecided], ids=lambda kind: kind.__name__)
def test_proof_that_nothing_happened_frees_the_key(error: type[Exception]) -> None:
    """P10, C11: the caller gets the exception, and the next call runs."""
    world = World()
    with pytest.raises(error):
        run(world, failing(world, error))
    assert run(world, lambda: 7) == 7


def test_an_answer_before_all_steps_were_asked_for_is_none() -> None:
    """P2, C10: a handler that has changed under its operation fails nothing; the operation is suspended at once."""
    world = World()
    policy = Policy(recovery=rerun, **LISTS)
    operation: Any = world.guard.begin("charge", "k", policy=policy)
    operation.step("charge", lambda: 1)
    operation.step("mail", lambda: 2)
    operation.suspend()
    again: Any = world.guard.begin("charge", "k", policy=policy)
    again.step("charge", lambda: 1)
    with pytest.raises(Declined), again:
        raise Declined
    record = world.guard.lookup("charge", "k").record
    assert (record.state, again.finishing) == (State.ACCEPTED, False)
    assert record.error.startswith("StepsChanged")


def test_a_proof_after_a_step_frees_nothing() -> None:
    """P10, C10: what was declared to prove that nothing happened does not undo a step that did."""
    world = World()
    operation: Any = world.guard.begin("charge", "k", policy=Policy(**LISTS))
    operation.downstream_key("charge")
    with pytest.raises(Unreachable), operation:
        raise Unreachable
    assert world.guard.lookup("charge", "k").unresolved


def test_a_store_that_fails_in_the_middle_is_no_answer() -> None:
    """P9, P10: with ``final_errors=(Exception,)`` a handler that could not confirm its ownership leaves it open."""
    world = World()

    def handler() -> None:
        raise StoreUnavailable("the store does not answer")

    with pytest.raises(StoreUnavailable):
        run(world, handler, final_errors=(Exception,), not_applied_errors=())
    assert world.guard.lookup("charge", "k").unresolved


class Odd:
    """Can't be stored."""


def test_why_a_result_was_not_kept_stands_in_the_record() -> None:
    """T12, P9: the caller gets its value, duplicates are told that it was not kept, and the record says why."""
    world = World()
    assert isinstance(run(world, Odd), Odd)
    with pytest.raises(ResultOmitted):
        run(world, lambda: pytest.fail("ran again"))
    error = world.guard.lookup("charge", "k").record.error
    assert error.startswith("the result was not kept: ")
    assert "Odd" in error
    operation = world.guard.begin("charge", "other")
    assert isinstance(operation, Operation)
    operation.omit("it is on paper")
    assert world.guard.lookup("charge", "other").record.error == "it is on paper"


def test_a_result_that_is_too_large_says_so() -> None:
    """T12: so does one that the store has no room for; what a suspended operation says of itself stays."""
    guard: Any = Guard(Small())
    guard.run(lambda: "x" * 5000, scope="s", key="k")
    assert guard.lookup("s", "k").record.error == TOO_LARGE


def test_an_error_without_words_is_kept_by_its_name() -> None:
    """An exception without a message, or whose text fails, has its type's name all the same."""

    class Silent(Declined):
        def __str__(self) -> str:
            raise RuntimeError

    for number, error in enumerate((Declined(), Silent())):
        world = World()
        with pytest.raises(Declined):
            run(world, failing(world, lambda error=error: error))  # type: ignore[misc]  # bound at its definition
        with pytest.raises(RecordedFailure) as caught:
            run(world, lambda: None)
        assert caught.value.kind.endswith(("Declined", "Silent")), number
        assert isinstance(str(caught.value), str)
