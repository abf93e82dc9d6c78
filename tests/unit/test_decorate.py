"""The decorator: which functions it guards, how a call names its operation, and what it refuses."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from notwice import AsyncGuard, EncodingError, Guard, InvalidKey, RequestMismatch, current_operation
from notwice.stores.memory import MemoryStore
from tests.unit.worlds import World


def test_a_guarded_function_runs_once_per_key() -> None:
    """C51: positional, keyword and default arguments of one call are one request."""
    world = World()

    @world.guard.idempotent(scope="refund:{order_id}", key="{key}")  # type: ignore[untyped-decorator]  # a test's guard
    def refund(order_id: str, amount: int = 5, *, key: str) -> int:
        world.effect(current_operation().scope)
        return amount

    assert [refund("o1", key="k"), refund("o1", 5, key="k"), refund(order_id="o1", amount=5, key="k")] == [5, 5, 5]
    assert world.effects == ["refund:o1"]
    assert refund.__name__ == "refund"
    with pytest.raises(RequestMismatch):
        refund("o1", 6, key="k")
    assert refund("o2", 6, key="k") == 6


def test_methods_are_guarded_without_their_receiver() -> None:
    """C51: a method, a class method and a static method take part; which object they are called on is no request."""
    world = World()

    class Payments:
        @world.guard.idempotent(scope="a:{order}", key="{order}")  # type: ignore[untyped-decorator]  # a test's guard
        def bound(self, order: str) -> str:
            world.effect("bound")
            return order

        @classmethod
        @world.guard.idempotent(scope="b:{order}", key="{order}")  # type: ignore[untyped-decorator]  # a test's guard
        def of_class(cls, order: str) -> str:
            world.effect("class")
            return order

        @world.guard.idempotent(scope="c:{order}", key="{order}")  # type: ignore[untyped-decorator]  # a test's guard
        @staticmethod
        def static(order: str) -> str:
            world.effect("static")
            return order

        @world.guard.idempotent(scope="d:{order}", key="{order}")  # type: ignore[untyped-decorator]  # a test's guard
        @classmethod
        def outer(cls, order: str) -> str:
            world.effect(cls.__name__)
            return order

    for payments in (Payments(), Payments()):
        assert [payments.bound("1"), payments.of_class("1"), payments.static("1"), payments.outer("1")] == ["1"] * 4
    assert world.effects == ["bound", "class", "static", "Payments"]


def test_partial_functions_and_callable_objects_are_guarded() -> None:
    """C51: what can be called and has a signature can be guarded."""
    world = World()

    class Charger:
        def __call__(self, order: str) -> object:
            return world.effect(order)

    guarded = world.guard.idempotent(scope="a", key="{order}")(Charger())
    narrowed = world.guard.idempotent(scope="b", key="{order}")(
        functools.partial(lambda kind, order: kind + order, "x")
    )
    assert [guarded("1"), guarded("1"), narrowed(order="2"), narrowed(order="2")] == ["1", "1", "x2", "x2"]
    assert world.effects == ["1"]


async def test_coroutines_and_threads_share_an_operation() -> None:
    """C51: one coroutine function called from tasks and from loops in other threads runs once per key."""
    guard = AsyncGuard(MemoryStore())
    runs: list[str] = []

    @guard.idempotent(scope="a:{order}", key="{order}")
    async def charge(order: str) -> str:
        runs.append(order)
        return order

    assert await asyncio.gather(*(charge(str(number)) for number in range(3))) == ["0", "1", "2"]
    with ThreadPoolExecutor(1) as pool:
        assert await asyncio.wrap_future(pool.submit(lambda: asyncio.run(charge("1")))) == "1"
    assert sorted(runs) == ["0", "1", "2"]
    await guard.close()


def generator() -> Iterator[int]:
    yield 1


async def coroutine() -> int:
    return 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Thing:
    """A class."""


@pytest.mark.parametrize(
    "target",
    [generator, coroutine, async_generator, Thing, functools.partial(coroutine), 5],
    ids=["generator", "coroutine", "async generator", "class", "partial", "number"],
)
def test_what_can_not_be_guarded_is_refused_at_once(target: Any) -> None:
    """C51: a decorator that would guard nothing raises where it stands, not at the first call."""
    with pytest.raises(TypeError):
        World().guard.idempotent(scope="a", key="b")(target)


def test_a_plain_function_needs_a_plain_guard() -> None:
    """C51: each face says which class guards this kind of function."""
    with pytest.raises(TypeError, match="class Guard"):
        AsyncGuard(MemoryStore()).idempotent(scope="a", key="b")(lambda: None)  # type: ignore[arg-type,return-value]  # that is the point
    with pytest.raises(TypeError, match="class AsyncGuard"):
        World().guard.idempotent(scope="a", key="b")(coroutine)


def test_two_functions_may_not_share_a_scope_unawares() -> None:
    """C24, T14: equal arguments of two functions never meet: one scope template is for one function."""
    world = World()
    guarded = world.guard.idempotent(scope="a:{x}", key="{x}")

    def f(x: str) -> str:
        return "f" + x

    def g(x: str) -> str:
        return "g" + x

    guarded(f)
    with pytest.raises(ValueError, match="shared_scope=True"):
        guarded(g)
    with pytest.raises(ValueError, match="used by"):
        world.guard.within("tenant").idempotent(scope="a:{x}", key="{x}")(g)
    assert world.guard.idempotent(scope="a:{x}", key="{x}", shared_scope=True)(g)("1") == "g1"


def test_two_lambdas_may_not_share_a_scope_unawares() -> None:
    """C24, T14: lambdas have one name, so what they do tells them apart; one that is made anew is the same."""
    guarded = World().guard.idempotent(scope="a:{x}", key="{x}")
    for _ in range(2):
        guarded(lambda x: "f" + x)
    with pytest.raises(ValueError, match=r"<lambda> in line \d+ of"):
        guarded(lambda x: "g" + x)
    on_one_line = World().guard.idempotent(scope="a:{x}", key="{x}")
    with pytest.raises(ValueError, match=r"<lambda> in line \d+ of"):
        [on_one_line(lambda x: "f" + x), on_one_line(lambda x: "g" + x)]


def test_the_scope_outlives_the_functions_name() -> None:
    """C24: a function that is moved or renamed keeps its operations, for their names are in its scope."""
    world = World()
    old = world.guard.idempotent(scope="charge:{x}", key="{x}")(lambda x: world.effect(f"{x}"))
    assert old("1") == "1"
    renamed = world.another().idempotent(scope="charge:{x}", key="{x}")(lambda x: world.effect("again"))
    assert renamed("1") == "1"


@pytest.mark.parametrize("key", [None, "", "   ", (), (None, None), ("a", None)])
def test_no_key_is_never_a_key(key: object) -> None:
    """C26: a missing, empty, blank or partly missing key is refused, and nothing runs."""
    world = World()
    guarded = world.guard.idempotent(scope="a", key="{key}")(lambda key: world.effect([key]))
    with pytest.raises(InvalidKey):
        guarded(key)
    assert world.effects == []


def test_a_template_asks_only_for_what_is_there() -> None:
    """A template with an unknown name is refused where the decorator stands."""
    with pytest.raises(TypeError, match="ordr"):
        World().guard.idempotent(scope="a:{ordr}", key="{order}")(lambda order: order)


@dataclass
class Order:
    """An order, with a field that changes on every send."""

    id: str
    created_at: str


def test_the_request_may_be_chosen() -> None:
    """C45: fields that change on every send are left out of the request, and stable ones make the key."""
    world = World()
    guarded = world.guard.idempotent(
        scope="charge", key=lambda order: ("charge", order.id), request=lambda order: {"order": order.id}
    )(lambda order: world.effect(order.id))
    assert [guarded(Order("7", "monday")), guarded(Order("7", "tuesday")), guarded(Order("8", "monday"))] == [
        "7",
        "7",
        "8",
    ]
    assert world.effects == ["7", "8"]


def test_two_entry_points_of_one_purchase_charge_once() -> None:
    """C45: with the key made of the operation's name and the order, it does not matter who came first."""
    world = World()
    charge = world.guard.idempotent(scope="charge", key="{order}", request=lambda order, by: order)(
        lambda order, by: world.effect(order)
    )
    assert charge("7", by="web") == charge("7", by="webhook") == "7"
    assert charge("8", by="web") == "8"
    assert world.effects == ["7", "8"]


def test_values_in_a_scope_can_not_run_into_each_other() -> None:
    """C21: separators inside values are escaped, so that two different calls never share a record."""
    world = World()
    guarded = world.guard.idempotent(scope="{a}:{b}", key="k")(lambda a, b: world.effect((a, b)))
    assert [guarded("x:y", "z"), guarded("x", "y:z")] == [("x:y", "z"), ("x", "y:z")]


def test_a_return_type_that_can_not_be_kept_is_refused_at_once() -> None:
    """C36: where the annotation says that a result could not be stored, the decorator says so before anything runs."""

    def connects() -> socket.socket:
        return socket.socket()

    def adds() -> Decimal:
        return Decimal("19.90")

    guarded = World().guard.idempotent(scope="a", key="b")
    with pytest.raises(EncodingError, match="socket"):
        guarded(connects)
    for _ in range(2):
        assert str(World().guard.idempotent(scope="a", key="b")(adds)()) == "19.90"


@pytest.mark.parametrize("given", [5, None, "text"])
async def test_what_is_no_function_claims_nothing(given: Any) -> None:
    """T14: who passes what a call gave, and not the function, is told so, and no key stays open for that."""
    blocking, loops = Guard.open("memory://"), AsyncGuard.open("memory://")
    with pytest.raises(TypeError, match="pass the function itself"):
        blocking.run(given, scope="s", key="k")
    with pytest.raises(TypeError, match="pass the function itself"):
        await loops.run(given, scope="s", key="k")
    assert blocking.lookup("s", "k") is None
    assert await loops.lookup("s", "k") is None
