"""The public API as type checkers see it. mypy and pyright read this file; pytest runs it."""

from typing import assert_never, assert_type
from uuid import UUID

import pytest

from notwice import (
    Done,
    Guard,
    InProgress,
    Mismatch,
    NotwiceError,
    Operation,
    Policy,
    RecordView,
    Replay,
    Unreadable,
    Unresolved,
    hold,
    reconcile,
    rerun,
)
from notwice.recovery import Round


def charge() -> int:
    return 7


def test_the_value_of_run_has_the_type_of_the_function() -> None:
    """`run` gives what the function gives, and `call` says besides whether it was a replay."""
    with Guard.open("memory://") as guard:
        assert_type(guard, Guard)
        assert_type(guard.within("tenant-7"), Guard)
        assert_type(guard.run(charge, scope=("refund", "7"), key="k", request={"amount": 1}), int)
        done = guard.call(charge, scope="refund:8", key="k", policy=Policy(recovery=rerun, lease=30))
        assert_type(done.replayed, bool)
        assert isinstance(done, Done)


def test_a_decorated_function_keeps_its_signature() -> None:
    """The decorator changes neither the parameters nor the result; a wrong call is a type error."""
    with Guard.open("memory://") as guard:

        @guard.idempotent(scope="refund:{order}", key="{key}")
        def refund(order: str, amount: int, *, key: str) -> float:
            return amount / len(order)

        assert_type(refund("ab", 1, key="k"), float)
        with pytest.raises(TypeError):
            refund("ab", key="k")  # type: ignore[call-arg]  # the checker must see that the amount is missing


def told(outcome: Operation | Replay | InProgress | Unresolved | Mismatch) -> str:
    match outcome:
        case Operation() as operation:
            with operation:
                assert_type(operation.downstream_key("refund"), str)
                assert_type(operation.downstream_uuid(), UUID)
                assert_type(operation.attempt, int)
                assert_type(operation.progress, dict[str, object])
                assert_type(operation.complete("done"), None)
            return "ran"
        case Replay():
            return "replayed"
        case InProgress() | Unresolved() | Mismatch():
            status, headers, body = outcome.problem()
            assert_type(status, int)
            assert_type(headers, tuple[tuple[str, str], ...])
            assert_type(body, bytes)
            return f"refused with {status}"
        case _:
            assert_never(outcome)


def test_a_match_over_the_outcomes_is_exhaustive() -> None:
    """`begin` gives one of five outcomes, and a checker knows that there is no sixth."""
    with Guard.open("memory://") as guard:
        told_each = [told(guard.begin("refund", "k", request=request)) for request in (1, 1, 2)]
    assert told_each == ["ran", "replayed", "refused with 422"]


def test_what_is_looked_up_is_a_view_or_none() -> None:
    """Look-ups give views of records, and None for what is absent."""
    with Guard.open("memory://") as guard:
        found = guard.lookup("refund", "k")
        assert_type(found, RecordView | None)
        assert found is None
        for item in guard.operations(unresolved=True):
            assert_type(item, RecordView | Unreadable)
        assert_type(guard.purge(), int)


def test_errors_say_what_to_do_next_by_attributes() -> None:
    """Each error of the guard has a code, a status and an answer to whether a new key would be safe."""

    def described(error: NotwiceError) -> tuple[str, int, bool]:
        return error.code, error.http_status, error.safe_new_key

    with Guard.open("memory://") as guard, pytest.raises(NotwiceError) as caught:
        guard.run(charge, scope="refund", key="")
    assert described(caught.value) == ("key_invalid", 400, True)


def test_a_policy_refuses_what_it_does_not_know() -> None:
    """The options of a policy are named and typed; an unknown one is an error for the checker and at run time."""
    for recovery in (hold, rerun, reconcile(lambda operation: operation.attempt)):
        assert_type(Policy(recovery=recovery, wait=1.5), Policy)
    with pytest.raises(TypeError):
        Policy(leese=30)  # type: ignore[call-arg]  # the checker must see that there is no such option


def test_a_step_gives_what_its_function_gives() -> None:
    """`step` has the type of its function, and `recovers` leaves the function as it is."""
    with Guard.open("memory://") as guard:
        operation = guard.begin("s", "k")
        assert isinstance(operation, Operation)
        assert_type(operation.step("charge", charge), int)
        assert_type(guard.recover(), Round)

        @guard.recovers("refund:{order_id}")
        def refund(operation: Operation, order_id: str) -> int:
            return len(order_id)

        assert_type(refund(operation, "7"), int)


def test_what_begin_gives_can_t_be_entered_unseen() -> None:
    """A checker refuses it, for it may be a duplicate's outcome; that says so itself where nobody has checked."""
    with Guard.open("memory://") as guard:
        with guard.begin("refund", "k") as operation:  # type: ignore[union-attr]  # the checker must see that
            operation.complete(7)
        with (
            pytest.raises(TypeError, match=r"this is Replay\(...\) and no operation .* Look at what begin gave first"),
            guard.begin("refund", "k") as operation,  # type: ignore[union-attr]  # as above
        ):
            pytest.fail("it ran")
