"""Forked children of a test."""

import os
import signal
import traceback
import warnings
from collections.abc import Callable

CHILD_LIMIT_S = 30


def in_child(job: Callable[[], object]) -> int:
    """Run `job` in a forked child; its exit code, 0 if nothing was raised and minus the signal if one ended it."""
    return exit_code(start_child(job))


def start_child(job: Callable[[], object]) -> int:
    """Start `job` in a forked child; its process id, for `exit_code`."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # newer Pythons warn of threads
        pid = os.fork()
    if pid:
        return pid
    signal.alarm(CHILD_LIMIT_S)
    code = 1
    try:
        job()
        code = 0
    except BaseException:  # noqa: BLE001 - it is shown, and the code tells of it
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    """Wait for a child to end: 0 if nothing was raised, minus the signal if one ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
