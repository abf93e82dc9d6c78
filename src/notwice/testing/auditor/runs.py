"""Who may run: claims and effects against what the stored policy allows."""

from __future__ import annotations

from collections.abc import Iterator

from notwice.model import RecoveryKind, Terms
from notwice.testing.auditor.account import LAXNESS, Call, Claim, Life, Line, ms_between
from notwice.testing.auditor.violations import Kind, Violation
from notwice.testing.history import Effect, Event, Started, Verdict


def claimed(line: Line, call: Call, event: Event, *, attempt: int) -> list[Violation]:
    """A call says that it owns the operation, or runs its handler; once a call."""
    if call.claim is not None:
        return list(_twice(line, call.claim, event, attempt=attempt))
    claim = Claim(call, attempt, event)
    life, found = _begun(line, claim) if attempt == 1 else _continued(line, claim)
    found.extend(_other_request(line, life, claim))
    claim.sound = not found
    _enter(life, claim)
    return found


def _enter(life: Life, claim: Claim) -> None:
    call = claim.call
    if life.mark is not None and life.is_free_for(claim.attempt):
        certain = life.marked_attempt or call.asked.at_ns > life.mark.at_ns
        claim.release, life.base_attempt = life.mark, claim.attempt
        life.mark = None if certain else life.mark
    life.claims.append(claim)
    call.claim, call.life = claim, life
    call.sign_ns = max(call.sign_ns, call.asked.at_ns)


def _begun(line: Line, claim: Claim) -> tuple[Life, list[Violation]]:
    """A first attempt's life: that of its write, or one whose later attempts were heard of first, or a new one."""
    home = claim.call.home
    if home is not None:
        return home, list(_shared(line, home, claim))
    for life in line.lives_since(claim.call):
        if life.claims and all(each.attempt > 1 for each in life.claims):
            return life, []
    found = list(begun(line, claim.event))
    return line.life, found


def _continued(line: Line, claim: Claim) -> tuple[Life, list[Violation]]:
    """A later attempt's life: the last one that it fits, for it may be heard of late."""
    lives = line.lives_since(claim.call) if claim.call.home is None else [claim.call.home]
    verdicts = [(life, list(_again(line, life, claim))) for life in lives]
    return next((verdict for verdict in reversed(verdicts) if not verdict[1]), verdicts[-1])


def _twice(line: Line, claim: Claim, event: Event, *, attempt: int) -> Iterator[Violation]:
    again = isinstance(event, Started) and claim.call.started is not None
    if again or attempt != claim.attempt:
        yield Violation(Kind.UNLAWFUL_RUN, line.name, "one call ran its handler twice", (claim.event, event))


def _shared(line: Line, home: Life, claim: Claim) -> Iterator[Violation]:
    """A first attempt that was written into a life of which all is known: it is the only one there."""
    same = next((each for each in home.claims if each.attempt == 1), None)
    if same is not None:
        what = "two callers own its first attempt"
        yield Violation(Kind.BROKEN_FENCE, line.name, what, (same.event, claim.event))


def begun(line: Line, event: Event) -> Iterator[Violation]:
    """A first attempt begins a new life; whatever lived before must have ended."""
    life = line.life
    if not life.claims and life.ended_ns is None:
        return
    if may_be_absent(line, event.at_ns):
        line.lives.append(Life())
        return
    owners = [each for each in life.claims if _is_live(each.call, event.at_ns)]
    if owners:
        what = "two callers own its first attempt at once"
        yield Violation(Kind.BROKEN_FENCE, line.name, what, (owners[-1].event, event))
    else:
        what = "it began anew with a first attempt, though an earlier one may have taken effect"
        yield Violation(Kind.FREED_KEY, line.name, what, (life.claims[-1].event, event))


def _is_live(call: Call, at_ns: int) -> bool:
    return not call.gave_up and ms_between(call.sign_ns, at_ns) < call.terms.lease_ms


def may_be_absent(line: Line, at_ns: int) -> bool:
    """Whether nothing need be stored now: never run, time over, or given back by its creator, who had done nothing."""
    life = line.life
    if not life.claims:
        return True
    if life.ended_ns is not None and line.expired(life.ended_ns, at_ns, line.kept_ms()):
        return True
    undone = all(claim.attempt == 1 and claim.call.undone and not claim.call.touched for claim in life.claims)
    return undone and not life.applied


def _again(line: Line, life: Life, claim: Claim) -> Iterator[Violation]:
    """A later attempt: the one before it must be over, and the policy must allow another."""
    name = line.name
    same = next((each for each in life.claims if each.attempt == claim.attempt), None)
    if same is not None:
        what = f"two callers own its attempt {claim.attempt}"
        yield Violation(Kind.BROKEN_FENCE, name, what, (same.event, claim.event))
        return
    finished = claim.call.finished_at_ask
    if finished is not None and finished is life.finished:
        what = "it was claimed again after it was known to be finished"
        yield Violation(Kind.BROKEN_FENCE, name, what, (finished, claim.event))
    if not life.is_free_for(claim.attempt):
        yield from _early(line, life, claim)
        yield from _forbidden(line, life, claim)


def _early(line: Line, life: Life, claim: Claim) -> Iterator[Violation]:
    earlier = [each for each in life.claims if each.attempt < claim.attempt]
    if not earlier:
        return
    last = max(earlier, key=lambda each: each.attempt)
    silent_ms = ms_between(last.call.sign_ns, claim.event.at_ns)
    lease_ms = last.call.terms.lease_ms
    if last.call.gave_up or line.rebooted_ns >= last.call.sign_ns or silent_ms > lease_ms - 1:
        return
    what = f"its owner had been silent for {silent_ms:g} ms only, of a lease of {lease_ms} ms"
    yield Violation(Kind.EARLY_TAKEOVER, line.name, what, (last.event, claim.event))


def _forbidden(line: Line, life: Life, claim: Claim) -> Iterator[Violation]:
    """Rule 8, as far as it shows outside."""
    stored, own = line.stored(life), claim.call.terms
    if stored.atomic:
        return
    match min(stored.recovery, own.recovery, key=LAXNESS.__getitem__):
        case RecoveryKind.HOLD:
            what = "it was claimed again under hold, and no operator had released it"
        case RecoveryKind.RECONCILE:
            what = _not_settled(claim, stored, life=life)
        case RecoveryKind.RERUN:
            what = _exhausted(claim, stored, life=life, stepped=line.stepped)
    if what:
        events = [each.event for each in life.claims[-1:]]
        yield Violation(Kind.UNLAWFUL_RUN, line.name, what, (*events, claim.event))


def _not_settled(claim: Claim, stored: Terms, *, life: Life) -> str:
    own, verdict = claim.call.terms, claim.call.verdict
    if verdict is None or verdict.verdict is not Verdict.NOT_APPLIED:
        return "it was claimed again under reconcile, and its function had not said that nothing happened"
    if own.deduplicated and (stored.deduplicated or stored.recovery is RecoveryKind.RERUN):
        return ""
    signs = [each.call.sign_ns for each in life.claims if each.call.started is not None]
    settle_ms = max(stored.settle_ms, own.settle_ms)
    if not signs or ms_between(max(signs), claim.event.at_ns) > settle_ms - 1:
        return ""
    return f"it was claimed again before all earlier owners had been silent for {settle_ms} ms"


def _exhausted(claim: Claim, stored: Terms, *, life: Life, stepped: bool) -> str:
    limits = (stored, claim.call.terms)
    attempts = claim.attempt - life.base_attempt + 1
    if any(each.attempts_max is not None and attempts > each.attempts_max for each in limits):
        return f"it was claimed again though {attempts - 1} attempts had been made"
    since = life.releases[-1] if life.releases else life.claims[0].event if life.claims else None
    if since is None or stepped:
        return ""
    passed_ms = ms_between(since.at_ns, claim.call.asked.at_ns)
    late = any(each.rerun_within_ms is not None and passed_ms > each.rerun_within_ms for each in limits)
    return f"it was claimed again {passed_ms:g} ms after its first attempt" if late else ""


def _other_request(line: Line, life: Life, claim: Claim) -> Iterator[Violation]:
    own = claim.call.asked.request
    for each in life.claims:
        taken = each.call.asked.request
        if own is not None and taken is not None and own != taken:
            what = f"the request {own!r} ran under a key that {taken!r} has taken"
            yield Violation(Kind.FOREIGN_RUN, line.name, what, (each.call.asked, claim.call.asked, claim.event))
            return


def happened(line: Line, effect: Effect, call: Call) -> list[Violation]:
    """An effect was asked for at the provider."""
    life = call.life or line.life
    others = [(each, by) for each, by in life.applied if each.step == effect.step and by.guarded]
    life.effects.append((effect, call))
    life.late += effect.applied and _came_late(effect, call, line.stored(life))
    call.touched = call.touched or effect.applied or bool(effect.downstream_key)
    if not effect.applied or not call.guarded:
        return []
    what = _why_double(line, effect, call, others=others) if others else ""
    return [Violation(Kind.DOUBLE_EFFECT, line.name, what, (others[0][0], effect))] if what else []


def _why_double(line: Line, effect: Effect, call: Call, *, others: list[tuple[Effect, Call]]) -> str:
    """Why a further effect is one too many; empty if the policy allows it."""
    life = call.life or line.life
    if any(by is call for _, by in others):
        return "one call caused it twice"
    if any(by.claim is None or not by.claim.sound for by in (call, *(by for _, by in others))):
        return "a caller caused it that should not have run"
    done = life.steps_done.get(effect.step)
    released = call.claim is not None and call.claim.attempt <= life.marked_attempt  # while its owner was at work
    if done is not None and call.started is not None and call.started.at_ns > done.at_ns and not released:
        return "the step was done and confirmed before this attempt"
    stored = line.stored(life)
    if stored.atomic or stored.recovery is RecoveryKind.RERUN:
        return "another downstream key was used" if _other_downstream_key(effect, call, others) else ""
    allowed = 1 + len(life.releases) + life.late
    return f"the policy is {stored.recovery}, and this is number {len(others) + 1}" if len(others) >= allowed else ""


def _other_downstream_key(effect: Effect, call: Call, others: list[tuple[Effect, Call]]) -> bool:
    keys = {
        each.downstream_key
        for each, by in others
        if by.started and call.started and by.started.generation == call.started.generation
    }
    return bool(effect.downstream_key and keys - {effect.downstream_key, ""})


def _came_late(effect: Effect, call: Call, stored: Terms) -> bool:
    """Whether an owner acted after a silence longer than ``settle``, which `reconcile` takes to be the end of it."""
    settle_ms, by_ns = max(stored.settle_ms, call.terms.settle_ms), max(effect.at_ns, effect.until_ns)
    return stored.recovery is RecoveryKind.RECONCILE and ms_between(call.sign_ns, by_ns) >= settle_ms
