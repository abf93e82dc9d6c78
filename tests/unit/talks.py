"""Flows are generators: what they ask is answered here as a test says."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count
from typing import Any

from notwice.errors import StoreUnavailable
from notwice.model import Op, Record, Reply, Unreadable

DOWN = StoreUnavailable("down")
Answer = Reply | Exception | Callable[[Any], Reply]


def talk(flow: Generator[Op, Reply, Any], *answers: Answer) -> tuple[list[Op], Any]:
    """What a flow asks while it is answered so, and what it gives or raises; it must use all answers up."""
    asked: list[Op] = []
    waiting = list(answers)
    try:
        op = next(flow)
        while True:
            asked.append(op)
            answer = waiting.pop(0)
            if isinstance(answer, Exception):
                op = flow.throw(answer)
            else:
                op = flow.send(answer if isinstance(answer, Reply) else answer(op))
    except StopIteration as done:
        assert not waiting
        return asked, done.value
    except IndexError:
        raise AssertionError(f"it asks on: {op}") from None
    except Exception as error:  # noqa: BLE001 - it is what a test looks at
        return asked, _fitting(error, waiting)


def _fitting(error: Exception, waiting: list[Answer]) -> Exception:
    assert not waiting, error
    return error


def won(op: Any) -> Reply:
    """The store has carried it out."""
    return Reply(True, op.record, 100_000, 100_000, 0)


def there(record: Record | Unreadable | None, age_ms: int = 0) -> Reply:
    """The store has not carried it out; this is what is stored."""
    return Reply(False, record, 90_000, 100_000, age_ms)


def numbered() -> Callable[[], bytes]:
    """Etags e1, e2, …"""
    numbers = count(1)
    return lambda: b"e%d" % next(numbers)
