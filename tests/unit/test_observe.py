"""What the log makes of events."""

import logging

import pytest

from notwice.observe import Event, LogObserver


def test_an_event_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """P8: whatever lines and tabs an engine's error has; what it says ran, or did not, is the handler."""
    detail = "connection refused\n\tIs the server running?; whether a write is there is not known"
    LogObserver().on_event(Event("store_unavailable", "idem_1", detail=detail))
    ((_, level, line),) = caplog.record_tuples
    assert level == logging.ERROR
    assert line == (
        "store_unavailable: the store did not answer; the handler did not run (connection refused Is the server "
        "running?; whether a write is there is not known) operation=idem_1"
    )
