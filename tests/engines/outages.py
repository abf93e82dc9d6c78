"""Callers that go on while their server is killed and comes back."""

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from notwice import Guard, OperationInProgress, Policy, StoreUnavailable
from tests.engines.private import Server, wait_until

CALLERS = 8
KILLS = 3
KEYS_BETWEEN = 40


def run_through_kills(server: Server, url: str) -> None:
    """Each effect happens once, and every caller is given its answer, sooner or later."""
    effects: Counter[int] = Counter()
    over, pause = threading.Event(), threading.Event()

    def act(key: int) -> str:
        effects[key] += 1  # one thread a key, if all is well
        return f"{key}, {effects[key]}"

    def answer(key: int) -> object:
        while True:
            try:
                return guard.run(partial(act, key), scope="s", key=str(key), request=key)
            except (StoreUnavailable, OperationInProgress):
                pause.wait(0.01)

    def call(_: int) -> list[object]:
        asked = itertools.takewhile(lambda _: not over.is_set(), itertools.count())
        return [answer(key) for key in asked]

    with Guard.open(url, policy=Policy(store_timeout=5)) as guard, ThreadPoolExecutor(CALLERS) as pool:
        calls = pool.map(call, range(CALLERS))
        for _ in range(KILLS):
            enough = len(effects) + KEYS_BETWEEN
            wait_until(partial(_holds, effects, enough))
            server.restart()
        wait_until(partial(_holds, effects, len(effects) + KEYS_BETWEEN))
        over.set()
        answers = list(calls)
        assert set(effects.values()) == {1}
        assert all(each == [f"{key}, 1" for key in range(len(each))] for each in answers)


def _holds(effects: Counter[int], enough: int) -> bool:
    return len(effects) >= enough
