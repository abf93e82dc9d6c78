"""notwice makes any side effect safe to retry: one caller of a key runs it, and its duplicates get the first answer."""

from notwice.async_guard import AsyncGuard
from notwice.errors import (
    ContentionError,
    EncodingError,
    ForceRequired,
    InvalidKey,
    NotApplied,
    NotCompleted,
    NotwiceError,
    OperationEnded,
    OperationInProgress,
    OperationUnresolved,
    OwnershipLost,
    RecordChanged,
    RecordedFailure,
    RecordTooLarge,
    RequestMismatch,
    ResultOmitted,
    StoreUnavailable,
    UnsupportedRecord,
)
from notwice.guard import Guard
from notwice.guard_base import Done
from notwice.identity import business_key, business_key_of
from notwice.model import (
    Failure,
    Fingerprint,
    InProgress,
    Mismatch,
    Record,
    RecordView,
    Replay,
    Result,
    ResultKind,
    State,
    Unreadable,
    Unresolved,
)
from notwice.observe import CountingObserver, Event, LogObserver, Observer, Observers
from notwice.operation import AsyncOperation, Operation, current_operation
from notwice.policy import NOT_APPLIED, UNKNOWN, Applied, Policy, Recovery, hold, reconcile, rerun
from notwice.privacy import Privacy, new_key
from notwice.redaction import redacting

__version__ = "0.1.0"

__all__ = [
    "NOT_APPLIED",
    "UNKNOWN",
    "Applied",
    "AsyncGuard",
    "AsyncOperation",
    "ContentionError",
    "CountingObserver",
    "Done",
    "EncodingError",
    "Event",
    "Failure",
    "Fingerprint",
    "ForceRequired",
    "Guard",
    "InProgress",
    "InvalidKey",
    "LogObserver",
    "Mismatch",
    "NotApplied",
    "NotCompleted",
    "NotwiceError",
    "Observer",
    "Observers",
    "Operation",
    "OperationEnded",
    "OperationInProgress",
    "OperationUnresolved",
    "OwnershipLost",
    "Policy",
    "Privacy",
    "Record",
    "RecordChanged",
    "RecordTooLarge",
    "RecordView",
    "RecordedFailure",
    "Recovery",
    "Replay",
    "RequestMismatch",
    "Result",
    "ResultKind",
    "ResultOmitted",
    "State",
    "StoreUnavailable",
    "Unreadable",
    "Unresolved",
    "UnsupportedRecord",
    "business_key",
    "business_key_of",
    "current_operation",
    "hold",
    "new_key",
    "reconcile",
    "redacting",
    "rerun",
]
