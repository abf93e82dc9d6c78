"""Which files are changed, and which tests have to notice: the narrowest that cover them, and only quick ones."""

from __future__ import annotations

from typing import Final, NamedTuple


class Module(NamedTuple):
    """Files below ``src/notwice``, and files below ``tests``; both may have wildcards."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


_GUARD: Final = (
    *("unit/test_begin.py", "unit/test_begin_faults.py", "unit/test_operation*.py", "unit/test_operator.py"),
    *("unit/test_too_large.py", "unit/test_hostile.py", "unit/test_async_guard.py", "unit/test_decorate.py"),
    *("unit/test_heartbeat.py", "unit/test_waiting.py"),
)
_RECOVERY: Final = ("recovery/test_recover.py", "recovery/test_rounds.py", "recovery/test_patience.py")
MODULES: Final[dict[str, Module]] = {
    "core": Module(("core.py",), ("unit/test_core.py",)),
    "flows": Module(("flows.py",), ("unit/test_flows*.py", "unit/test_operation_transactions.py")),
    "exchange": Module(
        ("http/exchange/*.py",),
        (
            *("http/test_exchange*.py", "http/test_keys.py", "http/test_codings.py", "http/test_http_policy.py"),
            *("http/test_face_*.py", "http/test_asgi.py", "http/test_wsgi.py", "fuzz/test_corpus.py"),
            *("http/test_stored_requests.py", "recovery/test_resend.py", "unit/test_older_guards.py"),
        ),
    ),
    "canonical": Module(
        ("canonical.py", "canonical_json.py", "plain.py"), ("unit/test_canonical*.py", "fuzz/test_corpus.py")
    ),
    "fingerprint": Module(("fingerprint.py",), ("unit/test_fingerprint*.py", "fuzz/test_corpus.py")),
    "identity": Module(
        ("identity.py",), ("unit/test_identity*.py", "unit/test_business_key*.py", "fuzz/test_corpus.py")
    ),
    "codec": Module(
        ("codec/*.py", "results.py"),
        ("unit/test_codec*.py", "unit/test_sealing.py", "unit/test_results.py", "fuzz/test_corpus.py"),
    ),
    "operation": Module(
        ("operation*.py", "steps.py"),
        (
            "unit/test_steps*.py",
            "unit/test_guard*.py",
            *_RECOVERY,
            *_GUARD,
            "stores/transactions/test_sqlite_joined.py",
        ),
    ),
    "guard": Module(
        ("guard.py", "guard_base.py", "async_guard.py"),
        (
            *_GUARD,
            "unit/test_guard*.py",
            "unit/test_privacy.py",
            "unit/test_unresolved_max.py",
            "unit/test_purging.py",
            *_RECOVERY,
        ),
    ),
}
