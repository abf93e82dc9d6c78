"""The rules of notwice, all of them, as one table and a handful of pure functions.

Why they are safe
=================

**One fence.** A record carries an etag: 128 random bits, new for every send of a write. Every write but the first
names the etag that it replaces, and the store carries it out only on exactly that record. So each record has one line
of history, and whoever acted on an old reading of it changes nothing. A counter would not do: it starts again after a
purge, and an owner from before the purge would fit the new record. The time of a lease is no fence either; it only
says when somebody may *try* to take over, and a paused owner that comes back finds its etag gone.

**Owning is having written.** A begin owns an operation if, and only if, the record is ``in_progress`` under an etag
that this begin sent. That holds for the acknowledged write and for the one whose acknowledgement was lost: reading
the own etag is as good as the acknowledgement (rule 0). Hence a caller is never told that it is a duplicate of itself,
and a second writer can't be taken for it, because no etag is ever sent twice by two begins.

**Silence is not proof.** A lapsed lease, an exception, a time-out and a killed process all say the same: nothing. Only
four things free a key: the claim that *created* the record is undone by its own owner before it did anything; a status
or an exception that was declared to prove it; a reconcile function that was told "not applied"; or a person. What a
second attempt knows says nothing about the first, so its abandon goes back to ``accepted``, never to "free".

**Comparison first.** A request that differs from the recorded one is refused before anything looks at states, leases
or policies (rule 4). A replay, a take-over or a wait can therefore never serve one request with another's answer.

**What was promised stays.** The recovery policy is stored with the first claim. A later caller may only be stricter,
so a deployment with a laxer policy can not re-run what was begun under ``hold``. Records that are neither terminal nor
released as new have no expiry at all: the worst that neglect can do is to let them lie, visible.

**Writes that nobody confirmed.** A begin or an owner remembers them. The next refusal that shows one of them is not a
loss; the move goes on from there. A begin that ended without an answer leaves its etags on its process's list; whoever
takes an etag off that list (once, atomically) knows that nothing ran under it, and may own or free the record.

Two house rules: nothing here waits, reads a clock or draws a random number; and whatever is decided is returned as a
value, so that every decision can be tested by calling one function.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, Final, NamedTuple

from notwice.codec import closed_reason, is_step_at_home
from notwice.model import (
    AGE_UNKNOWN_MS,
    IN_PROGRESS,
    TERMINAL,
    Fingerprint,
    InProgress,
    Mismatch,
    Note,
    Record,
    RecordView,
    RecoveryKind,
    Released,
    Replay,
    Reply,
    Result,
    State,
    Terms,
    Unreadable,
    Unresolved,
    make_record,
    make_view,
    maker,
)
from notwice.results import decode_result

# -- limits, with their arithmetic ------------------------------------------------------------------------------------

READS_MAX: Final = 8  # a loser has seen eight rivals win: more is a storm, and waiting is better than spinning
SENDS_MAX: Final = 3  # one send and two more when the answer is lost, all within one store_timeout
RETRY_AFTER_MAX: Final = 30  # seconds; a duplicate is told to wait as long as the first has run, within 1 to 30
PAUSE_MAX_MS: Final = 300_000  # re-runs come after 0, 2, 4, 8 ... 256, 300 seconds
RECONCILE_PAUSE_MS: Final = 30_000  # an unknown outcome is not asked for again before
ERROR_CHARACTERS_MAX: Final = 500
SINCE: Final = "; since then: "  # between what went wrong and what came of it
TOO_LARGE: Final = "the result was not kept: it is too large for the store"
AUDIT_NOTES_MAX: Final = 50
REQUEST_BYTES_MAX: Final = 2**18  # each write carries it, and the smallest engine keeps 400 KB in a record
PROGRESS_POINTS_MAX: Final = 1_000  # each write carries them all: n steps write n * n / 2 results
PROGRESS_BYTES_MAX: Final = 2**20  # so a thousand steps of a kilobyte write 500 MB in all, and one more is refused

NEXT: Final[Mapping[State, frozenset[State]]] = {
    State.IN_PROGRESS: frozenset(State),
    State.ACCEPTED: frozenset(State),
    State.COMPLETED: frozenset(State) - {State.IN_PROGRESS},
    State.FAILED: frozenset(State) - {State.IN_PROGRESS},
}
"""Which state may follow which, by a swap on the same record. A replacement begins a new record.

What is finished changes only by an operator's force: to run again, or to another answer.
"""

_DEFAULTS: Final = tuple(Record._field_defaults.values())
_STATE, _ETAG, _RESULT, _ERROR, _SILENT, _REQUEST = map(
    Record._fields.index, ("state", "etag", "result", "error", "silent_ms", "request")
)
_STRICTNESS: Final = {RecoveryKind.HOLD: 0, RecoveryKind.RECONCILE: 1, RecoveryKind.RERUN: 2}


class Ask(NamedTuple):
    """What one begin wants; the same through all its tries.

    ``by_recipe`` makes the request's fingerprint by an older recipe, or gives ``None`` where it doesn't know it.
    ``can_ask`` says whether this caller has a function for `reconcile`, ``request`` is what a new record keeps of the
    request, and ``creates`` is whether there may be a new record: a worker takes over, and begins nothing.
    """

    namespace: str
    id: str
    scope: str
    key: str
    fingerprint: Fingerprint | None
    by_recipe: Callable[[str], Fingerprint | None] | None
    terms: Terms
    can_ask: bool
    request: bytes | None = None
    creates: bool = True


make_ask = maker(Ask)


class Claim(NamedTuple):
    """What a begin's write would do: create the record, or take over `prior`. `asks`: reconcile before running."""

    created: bool
    prior: Record | None = None
    asks: bool = False


class Own(NamedTuple):
    """The begin owns the operation."""

    record: Record


class Replace(NamedTuple):
    """Nothing that counts is there: write a new record, over `prior` if there is one."""

    prior: Record | None


class Reclaim(NamedTuple):
    """Take over the record that was seen. `anew`: an operator released it. `asks`: reconcile before running."""

    view: RecordView
    anew: bool = False
    asks: bool = False


class Adopt(NamedTuple):
    """The record is under an etag of this process's list: whoever takes it off may go on with it."""

    record: Record


class Refuse(NamedTuple):
    """The stored record can't be judged."""

    reason: str


Decision = Own | Replace | Reclaim | Adopt | Refuse | Replay | InProgress | Unresolved | Mismatch


class Situation(NamedTuple):
    """All that a rule may look at."""

    ask: Ask
    orphaned: Container[bytes]
    view: RecordView


# -- begin: the rules, in order ---------------------------------------------------------------------------------------


def _over(now: Situation) -> Decision | None:
    """3: expired, or released as new."""
    record = now.view.record
    gone = record.released is Released.AS_NEW or (record.terminal and now.view.expired)
    return Replace(record) if gone else None


def _other_request(now: Situation) -> Decision | None:
    """4: another request under this key; by the recipe that made the stored fingerprint."""
    stored, asked = now.view.record.fingerprint, now.ask.fingerprint
    if stored is None or asked is None or stored == asked:
        return None
    if stored.recipe != asked.recipe:
        asked = now.ask.by_recipe(stored.recipe) if now.ask.by_recipe else None
        if asked is None:
            return Refuse(f"its fingerprint was made by the recipe {stored.recipe!r}, which this release does not know")
    return Mismatch(now.view) if stored != asked else None


def _finished(now: Situation) -> Decision | None:
    """5: terminal."""
    return Replay(now.view, decode_result) if now.view.record.terminal else None


def _orphaned(now: Situation) -> Decision | None:
    """5: ``in_progress`` under the etag of a begin of this process that ended without an answer."""
    record = now.view.record
    return Adopt(record) if record.state is State.IN_PROGRESS and record.etag in now.orphaned else None


def _released(now: Situation) -> Decision | None:
    """6: released by an operator."""
    return Reclaim(now.view, anew=True) if now.view.record.released is Released.OPERATOR else None


def _running(now: Situation) -> Decision | None:
    """7: its owner is within its lease."""
    running = now.view.record.state is State.IN_PROGRESS and not now.view.lapsed
    return InProgress(now.view, retry_after(now.view)) if running else None


def _unresolved(now: Situation) -> Decision | None:
    """8: by the stored policy, or by the caller's where that is stricter."""
    view = now.view
    kind = min(view.record.terms.recovery, now.ask.terms.recovery, key=_STRICTNESS.__getitem__)
    paused_ms = view.record.pause_ms - view.age_ms
    reruns = kind is RecoveryKind.RERUN and not rerun_exhausted(view, now.ask.terms)
    if reruns or proves_nothing_happened(view.record):
        return InProgress(view, _whole_seconds(paused_ms)) if paused_ms > 0 else Reclaim(view)
    asks = kind is RecoveryKind.RECONCILE and now.ask.can_ask
    if asks and paused_ms <= 0:
        return Reclaim(view, asks=True)
    if view.answered:
        return Replay(view, decode_result)
    return Unresolved(view, _whole_seconds(paused_ms) if asks else None)


def proves_nothing_happened(record: Record) -> bool:
    """Whether the record's end was to be committed with the handler's rows, and was not."""
    return record.terms.atomic and record.result is None


BEGIN: Final[tuple[Callable[[Situation], Decision | None], ...]] = (
    _over,
    _other_request,
    _finished,
    _orphaned,
    _released,
    _running,
    _unresolved,
)
"""The rules of begin for a record of another that can be read. The first with an answer decides; the last has one."""


def owns(record: Record, reply: Reply, sent: Container[bytes]) -> bool:
    """0: ``in_progress`` under an etag that this begin sent."""
    return record.state is IN_PROGRESS and (reply.won or record.etag in sent)


def settle(ask: Ask, reply: Reply, sent: Container[bytes], *, orphaned: Container[bytes] = ()) -> Decision:
    """Decide what a begin does after `reply`. `sent`: the etags it sent; `orphaned`: those on the process's list."""
    record = reply.record
    if record is None:  # rule 1
        return Replace(None)
    if isinstance(record, Unreadable):  # rule 2
        return Refuse(record.reason)
    if record.sealed:  # rule 2 as well: with a key that this process was not given
        return Refuse(closed_reason(record))
    if owns(record, reply, sent):  # rule 0
        return Own(record)
    now = Situation(ask, orphaned, make_view(reply[1:]))
    for rule in BEGIN:
        decision = rule(now)
        if decision is not None:
            return decision
    raise AssertionError(BEGIN)  # the last rule always decides


def rerun_exhausted(view: RecordView, asked: Terms | None = None) -> bool:
    """Whether `rerun` has used up its attempts or its time, by the stricter of the stored and the `asked` limits."""
    record = view.record
    terms = (record.terms,) if asked is None else (record.terms, asked)
    attempts = record.attempt - record.rerun_from_attempt + 1
    since_ms = view.now_ms - (record.rerun_from_ms or record.created_ms)
    return any(limit.attempts_max is not None and attempts >= limit.attempts_max for limit in terms) or any(
        limit.rerun_within_ms is not None and since_ms >= limit.rerun_within_ms for limit in terms
    )


def held(view: RecordView) -> bool:
    """Whether an unresolved operation waits for a person: no begin and no worker will run it or ask about it."""
    record = view.record
    if not view.unresolved or proves_nothing_happened(record):
        return False
    kind = record.terms.recovery
    return kind is RecoveryKind.HOLD or (kind is RecoveryKind.RERUN and rerun_exhausted(view))


def retry_after(view: RecordView) -> int:
    """How long a duplicate should wait, in seconds: as long as the operation has run so far, from 1 to 30."""
    return min(RETRY_AFTER_MAX, _whole_seconds(view.now_ms - view.record.created_ms))


def _whole_seconds(duration_ms: int) -> int:
    return max(1, -(-duration_ms // 1000))


# -- begin: the records it writes -------------------------------------------------------------------------------------


def fresh(ask: Ask, etag: bytes) -> Record:
    """A new record (rules 1 and 3). The store stamps the time of its creation."""
    record = make_record(
        (ask.namespace, ask.id, ask.scope, ask.key, IN_PROGRESS, etag, ask.fingerprint, ask.terms, *_DEFAULTS)
    )
    return record if ask.request is None else record._replace(request=ask.request)


def reclaimed(ask: Ask, decision: Reclaim, etag: bytes) -> Record:
    """The record as its taker writes it (rules 6 and 8): an attempt more, the kept answer and any mark gone."""
    record = decision.view.record
    attempt = record.attempt + 1
    silent_ms = min((record.silent_ms or 0) + _silence_ms(decision.view), AGE_UNKNOWN_MS) if decision.asks else None
    return record._replace(
        state=State.IN_PROGRESS,
        etag=etag,
        attempt=attempt,
        terms=_retermed(record.terms, ask.terms),
        rerun_from_ms=decision.view.now_ms if decision.anew else record.rerun_from_ms,
        rerun_from_attempt=attempt if decision.anew else record.rerun_from_attempt,
        pause_ms=0,
        silent_ms=silent_ms,
        released=Released.NO,
        result=None,
    )


def _silence_ms(view: RecordView) -> int:
    """How long nobody has acted, as far as that is certain: counted by ``settle``, for what is on its way meanwhile.

    A record that was written under another boot of the host has no owner any more. But that may be so since a moment
    ago, and what the owner has sent is still on its way: its silence is counted from now on.
    """
    return view.age_ms if view.age_ms < AGE_UNKNOWN_MS else 0


def _retermed(stored: Terms, asked: Terms) -> Terms:
    """The stored terms for a taker: its lease, and no proof by ``atomic`` if it does not end in a transaction."""
    if asked.atomic or not stored.atomic:
        return stored._replace(lease_ms=asked.lease_ms)
    recovery = min(stored.recovery, asked.recovery, key=_STRICTNESS.__getitem__)
    return stored._replace(lease_ms=asked.lease_ms, recovery=recovery, atomic=False)


def may_run(record: Record, asked: Terms) -> bool:
    """Whether "not applied" lets a re-claimed operation run now: the provider de-duplicates, or all owners settled.

    A record that was begun under `rerun` was declared safe to run again, so only the asking policy counts there.
    """
    stored = record.terms
    if asked.deduplicated and (stored.deduplicated or stored.recovery is RecoveryKind.RERUN):
        return True
    return record.silent_ms is None or record.silent_ms >= max(stored.settle_ms, asked.settle_ms)


# -- the owner's moves ------------------------------------------------------------------------------------------------


def beaten(record: Record, etag: bytes) -> Record:
    """A sign of life: the record as it is, under a new etag and so with a new time."""
    return record._replace(etag=etag)


def started(record: Record, etag: bytes) -> Record:
    """A sign of life of an owner whose handler runs from now on."""
    return record._replace(etag=etag, silent_ms=None)


def checkpointed(record: Record, etag: bytes, *, point: str, data: bytes) -> Record:
    """The record with one more step known done. A point that is there already gets the new data."""
    kept = tuple(entry for entry in record.progress if entry[0] != point)
    return record._replace(etag=etag, recovery_point=point, progress=(*kept, (point, data)))


def stepped(record: Record, etag: bytes, *, label: str, data: bytes) -> Record:
    """The record with one more step done. The steps that ran within it are part of it now; checkpoints stay."""
    below = f"{label}/"
    kept = tuple(
        (point, kept_data)
        for point, kept_data in record.progress
        if not point.startswith(below) or is_step_at_home(kept_data) is None
    )
    return checkpointed(record._replace(progress=kept), etag, point=label, data=data)


def too_full(progress: tuple[tuple[str, bytes], ...]) -> bool:
    """Whether a record would keep more progress than it may."""
    size = sum(len(point) + len(data) for point, data in progress)
    return len(progress) > PROGRESS_POINTS_MAX or size > PROGRESS_BYTES_MAX


def finished(record: Record, etag: bytes, *, state: State, result: Result, error: str = "") -> Record:
    """The record with its final answer, and why that could not be kept. A stored request has served its purpose."""
    fields: list[Any] = [*record]
    fields[_STATE], fields[_ETAG], fields[_RESULT], fields[_ERROR], fields[_SILENT] = state, etag, result, error, None
    fields[_REQUEST] = None
    return make_record(fields)


def suspended(
    record: Record, etag: bytes, *, error: str, answer: Result | None, patient: bool = False, proves: bool = True
) -> Record:
    """The record with nobody at work and an unknown outcome; `answer` is what was sent, if that was whole.

    `patient`: nothing ran, and what is in the way won't be gone in seconds; so no attempt is to be used up in seconds.
    Without `proves` the rows of an atomic operation may be committed, so that its record is no proof any more.
    """
    reruns = record.attempt - record.rerun_from_attempt
    pause_ms = PAUSE_MAX_MS if patient else min(PAUSE_MAX_MS, 1000 * 2 ** min(reruns, 10))
    return record._replace(
        etag=etag,
        state=State.ACCEPTED,
        error=error[:ERROR_CHARACTERS_MAX],
        result=answer,
        pause_ms=pause_ms if reruns else 0,
        terms=record.terms if proves else record.terms._replace(atomic=False),
    )


def has_body(record: Record) -> bool:
    """Whether the record keeps a result that could be left out."""
    return record.result is not None and bool(record.result.body)


def omitting(record: Record) -> Record:
    """The record without its result's body: the marker ``omitted``. It says why, if it says nothing else."""
    assert record.result is not None  # only of those that have a body
    return record._replace(result=record.result._replace(body=None), error=record.error or TOO_LARGE)


def ends_alike(one: Record, other: Record) -> bool:
    """Whether two last moves mean the same; in `one`, a result that was too large may be left out."""
    results = [other.result, omitting(other).result] if has_body(other) else [other.result]
    return one.state is other.state and one.result in results


def put_back(record: Record, etag: bytes, *, error: str) -> Record:
    """The record after reconcile could not say what became of it: not to be asked for again for a while."""
    return record._replace(
        etag=etag, state=State.ACCEPTED, error=_after(record.error, error), pause_ms=RECONCILE_PAUSE_MS
    )


def _after(cause: str, later: str) -> str:
    """What went wrong, followed by the newest word of what came of it: that must not hide what a person looks for."""
    cause = cause.partition(SINCE)[0]
    if not cause or cause == later:
        return later[:ERROR_CHARACTERS_MAX]
    later = f"{SINCE}{later}"[: ERROR_CHARACTERS_MAX // 2]
    return cause[: ERROR_CHARACTERS_MAX - len(later)] + later


def abandoned(
    record: Record, etag: bytes, *, claim: Claim, touched: bool, why: str = "", patient: bool = False
) -> Record:
    """The record with this claim undone, and no more than this claim.

    Free for any request only if this claim created the record and nothing was begun under it; else back to
    ``accepted``, and to an operator's mark if nothing was begun since. `why` is the proof that nothing happened; the
    error that an earlier attempt left stays before it.
    """
    error = _after(record.error, f"abandoned: {why}" if why else "abandoned")
    if claim.created and not touched:
        fields: dict[str, Any] = {"released": Released.AS_NEW, "error": error, "pause_ms": 0, "request": None}
        return record._replace(etag=etag, state=State.ACCEPTED, **fields)
    mark = Released.NO if claim.prior is None or touched else claim.prior.released
    return suspended(record, etag, error=error, answer=None, patient=patient)._replace(released=mark)


def disowned(record: Record, etag: bytes, *, claim: Claim) -> Record:
    """The record of a begin that ended without an answer, freed behind its caller: nothing ran under that claim."""
    return abandoned(record, etag, claim=claim, touched=False)._replace(pause_ms=0, error=record.error)


def adopted(ask: Ask, record: Record, etag: bytes, *, claim: Claim) -> Record:
    """The record of such a begin as a later one takes it: as new, if it was that; else freed first, and judged again.

    Nothing ran under the earlier claim, so its terms and its fingerprint bind nobody: a shorter lease than the one that
    the new owner renews would lapse while it is at work.
    """
    return fresh(ask, etag) if claim.created else disowned(record, etag, claim=claim)


# -- an operator's moves ----------------------------------------------------------------------------------------------


def resolved(view: RecordView, etag: bytes, *, state: State, result: Result, who: str, why: str) -> Record:
    """The record as a person found its outcome to be."""
    return _noted(view, Note(who, view.now_ms, f"resolved as {state}", why))._replace(
        etag=etag, state=state, result=result, released=Released.NO, pause_ms=0, silent_ms=None, request=None
    )


def released(
    view: RecordView, etag: bytes, *, who: str, why: str, from_start: bool, new_downstream_key: bool
) -> Record:
    """The record freed to run again by a person. The fingerprint stays: only the same request may follow."""
    chosen = ", from its start" * from_start + ", with a new downstream key" * new_downstream_key
    record = _noted(view, Note(who, view.now_ms, f"released{chosen}", why))
    return record._replace(
        etag=etag,
        state=State.ACCEPTED,
        released=Released.OPERATOR,
        generation=record.generation + new_downstream_key,
        recovery_point="" if from_start else record.recovery_point,
        progress=() if from_start else record.progress,
        pause_ms=0,
        silent_ms=None,
        result=None,
    )


def needs_force(view: RecordView) -> bool:
    """Whether an operator's move would cut off a live owner, change a finished record, or take back a freed key."""
    record = view.record
    live = record.state is State.IN_PROGRESS and not view.lapsed
    return live or record.state in TERMINAL or record.released is Released.AS_NEW


def _noted(view: RecordView, note: Note) -> Record:
    return view.record._replace(audit=(*view.record.audit, note)[-AUDIT_NOTES_MAX:])
