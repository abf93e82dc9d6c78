"""A process that begins many operations on one store, for races between processes.

It says ``ready``, waits for a line on standard input, so that all set off together, and prints one JSON object: how
often it got what, and every error that reached it. Each effect is a line in a file of all processes.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from notwice import Guard, NotwiceError, Operation, Policy, rerun

POLICY = Policy(recovery=rerun, store_timeout=20)


def begin(guard: Guard, key: str, effects: Path) -> str:
    """Begin once; an owner makes its effect and completes. Says what it got."""
    outcome = guard.begin("race", key)
    if not isinstance(outcome, Operation):
        return type(outcome).__name__
    with effects.open("ab", buffering=0) as file:
        file.write(f"{key} {outcome.attempt}\n".encode())
    outcome.complete(key)
    return "Operation"


def keys_of(texts: list[str]) -> Iterator[str]:
    """``name:3`` stands for name-0, name-1 and name-2."""
    for text in texts:
        name, _, count = text.partition(":")
        yield from (f"{name}-{number}" for number in range(int(count)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("keys", nargs="+")
    parser.add_argument("--store", help="a URL; by default the file at the path")
    arguments = parser.parse_args()
    guard = Guard.open(arguments.store or f"sqlite:///{arguments.path}?timeout=20", policy=POLICY)
    print("ready", flush=True)
    sys.stdin.readline()
    told: Counter[str] = Counter()
    errors: list[str] = []
    for key in keys_of(arguments.keys):
        try:
            told[begin(guard, key, arguments.path.with_suffix(".effects"))] += 1
        except NotwiceError as error:
            errors.append(f"{type(error).__name__}: {error}")
    print(json.dumps({"told": told, "errors": errors}), flush=True)
    guard.close()


if __name__ == "__main__":
    main()
