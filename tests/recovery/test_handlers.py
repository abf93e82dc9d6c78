"""Which handler a scope has, and which are refused."""

from __future__ import annotations

import pytest

from notwice import NOT_APPLIED, UNKNOWN, Applied, AsyncGuard, Guard, Operation, Policy, reconcile, rerun
from notwice.lookups import AsyncRestLookup, RestLookup
from notwice.recovery import Handlers, Round, literally
from notwice.stores.memory import MemoryStore
from tests.unit.worlds import SCOPE, World


def finished(operation: Operation) -> str:
    return f"finished at attempt {operation.attempt}"


PATTERNS = {"exact": "refund:ord_1", "dots": r"pay\.out", "braces": r"pay\{out\}"}


@pytest.mark.parametrize(
    ("scope", "found"),
    [
        ("refund:ord_1", "exact"),
        ("refund:ord_2", {"order_id": "ord_2"}),
        ("refund:a\\:b", {"order_id": "a:b"}),
        ("refund:a\\\\b", {"order_id": "a\\b"}),
        ("refund:a\\b", "rest"),
        ("refund:a\\", "rest"),
        ("any\\:thing\\", "rest"),
        ("refund:a:b", "rest"),
        ("refund:", "rest"),
        ("pay.out", "dots"),
        ("payxout", "rest"),
        ("pay{out}", "braces"),
    ],
)
def test_which_handler_a_scope_has(scope: str, found: object) -> None:
    """An exact scope first, then templates in their order; a field takes one part; no text in them is a pattern.

    A text that was not escaped as a tuple's part is fits no field: what it stands for would be guessed. A field alone
    takes the scope as it is.
    """
    handlers = Handlers()
    for name, template in [
        ("t", "refund:{order_id}"),
        ("dots", "pay.out"),
        ("braces", "pay{{out}}"),
        ("rest", "{any}"),
        ("exact", "refund:ord_1"),
    ]:
        handlers.add(template, lambda operation, **_: None, Policy(run_max=len(name)))
    handler, values = handlers.find(scope) or pytest.fail("none")
    if isinstance(found, dict):
        assert values == found
    elif found == "rest":
        assert values == {"any": scope}
    else:
        assert (values, handler.pattern.pattern) == ({}, PATTERNS[str(found)])


@pytest.mark.parametrize("scope", ["http", "a}b", "{a}:b", "{{a", "a:b\\:c"])
def test_a_scope_that_is_no_template(scope: str) -> None:
    """A scope that is a setting fits itself alone, with whatever braces it has."""
    handlers = Handlers()
    handlers.add(literally(scope), finished)
    assert handlers.find(scope) is not None
    assert handlers.find(scope + "x") is None


@pytest.mark.parametrize(
    "scope", ["refund:{", "refund:{order.id}", "refund:{a}{b}", "refund:{a}:{a}", "refund:{a!r}", "{}"]
)
def test_malformed_templates_are_refused(scope: str) -> None:
    """A template whose fields could not be told apart or named is refused with a sentence."""
    with pytest.raises(ValueError, match=r"template|plain name"):
        World().guard.recovers(scope)(finished)


async def _coroutine(operation: object) -> None:
    pass


def test_a_scope_has_one_handler_that_can_be_called() -> None:
    """A second handler of a scope, a coroutine function and what is no function are refused when registered."""
    guard = World().guard
    guard.recovers(SCOPE)(finished)
    with pytest.raises(ValueError, match="already"):
        guard.recovers(SCOPE)(finished)
    with pytest.raises(TypeError, match="AsyncGuard"):
        guard.recovers("other")(_coroutine)
    with pytest.raises(TypeError, match="AsyncGuard"):
        guard.recover({"other": _coroutine})
    with pytest.raises(TypeError, match="must be a function"):
        guard.recover({"third": 3})


def test_a_handler_that_can_not_be_called_is_refused_before_it_uses_up_attempts() -> None:
    """What takes no operation, or not the fields of its template, is refused when it is registered, with a sentence."""
    guard = World().guard
    for scope in ("refund:{order_id}", "refund:{operation}"):
        with pytest.raises(TypeError, match=r"called with the operation, (order_id|operation), and can't be"):
            guard.recovers(scope)(finished)
    with pytest.raises(TypeError, match="called with the operation, and can't be"):
        guard.recovers("refund")(lambda: None)


def test_a_lookup_for_event_loops_is_refused_by_a_guard_that_blocks() -> None:
    """It would never be awaited, so that each answer is "unknown": refused where it is given, not after a crash."""
    settings = {"url": "http://127.0.0.1:9/{key}", "matches": {"key": "{key}"}}
    policy = Policy(recovery=reconcile(AsyncRestLookup(**settings)))  # type: ignore[arg-type]  # settings of two types
    world = World()
    with pytest.raises(TypeError, match="AsyncRestLookup is a coroutine function"):
        Guard(MemoryStore(), policy=policy)
    with pytest.raises(TypeError, match="AsyncRestLookup"):
        world.guard.begin(SCOPE, "k", policy=policy)
    with pytest.raises(TypeError, match="AsyncRestLookup"):
        world.guard.recovers(SCOPE, policy=policy)(finished)
    assert world.guard.lookup(SCOPE, "k") is None
    AsyncGuard(MemoryStore(), policy=policy)
    Guard(MemoryStore(), policy=Policy(recovery=reconcile(RestLookup(**settings))))  # type: ignore[arg-type]  # as above


def test_a_state_is_applied_or_not() -> None:
    """P10: a state that stands in both lists would be taken for whichever is asked first."""
    states = {"state": "s", "applied": ["done", "sent"], "not_applied": ["sent"]}
    with pytest.raises(ValueError, match="sent can't be both"):
        RestLookup(url="http://127.0.0.1:9/{key}", matches={"key": "{key}"}, **states)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("said", [NOT_APPLIED, UNKNOWN, Applied(3)])
def test_what_a_reconcile_function_says_finishes_nothing(said: object) -> None:
    """P10: a function that looks the effect up, given in the place of a handler, does not make its answer the result.

    Duplicates would be told that the operation is done, where it was said not to have happened.
    """
    world = World(recovery=rerun)
    world.own().suspend()
    assert world.guard.recover({SCOPE: lambda operation: said}) == Round(failed=1)
    assert world.view().unresolved
    with pytest.raises(TypeError, match="what a reconcile function says"):
        world.guard.run(lambda: said, scope="another", key="k-1")
