/* The rules of notwice, for one operation: one record, its etag as the fence, and everything that can go wrong around it.

   What runs here: NC callers, each of which begins, works, moves and begins again; one World, which is the clock, the
   purger, the network, the operator and the crashes. A caller's request and the store's answer to it are one step, unless
   a fault parts them: then the write was applied, was not, or is still on its way. Between two steps anybody may act, so
   a decision is always made on what was read, and carried out on what has become of it.

   What a begin decides, and what a write leaves, stands in table.pml; words, budgets, record and store in record.pml.

   Callers 0 and 1 live in one process and share its list of unconfirmed etags (rule 5); caller 2 lives in another.
   With APART each has a process of its own.

   Every budget is finite, so the graph of states has no cycles, and an assertion at `timeout` speaks about every
   end that there is. Etags and incarnations are "fresh": the smallest number that nothing refers to. Nothing wraps, nothing
   collides, and histories that differ in names only are one.

   With PROGRESS the callers never stop to begin, leases lapse of owners that are gone, and of N0 others; faults are as finite
   as before. Then the graph has cycles, and a search for those in which nothing is finished says whether anything can hang.

   A name that begins with M_ turns one rule off; the check expects a violation then. A name that begins with V_ fails at
   a situation that the clean configurations must come through: proof that they are not green for want of reaching it. */

#define IDLE 0          /* where a caller stands */
#define BEGIN 1         /* asks for the operation */
#define ASK 2           /* owns it; reconcile's function is to be asked */
#define CONFIRM 3       /* owns it; "not applied", and the confirming heartbeat is to win */
#define WORK 4          /* owns it; the handler runs */
#define MOVE 5          /* owns it; a terminal move is to be answered */
#define SETTLE 6        /* no owner: frees what a begin without an answer left behind */
#define WAIT 7          /* was told that it runs, and waits */
#define HANG 8          /* owns it; the handler will never end */

#ifdef V_LATE_AFTER_FREED
bool replaced;          /* a released-as-new record has been replaced */
#define VISIT_REPLACE if :: mark == AS_NEW -> replaced = 1 :: else fi
#define VISIT_LATE(kk) assert(!(replaced && kk >= COMPLETE && st == IN_PROGRESS))
#else
#define VISIT_REPLACE skip
#define VISIT_LATE(kk) skip
#endif
#ifdef V_ADOPTED_TWICE
byte giver = 9;         /* whose adopting swap had no answer */
#define VISIT_GIVE_BACK(p) giver = p
#define VISIT_ADOPT(p) assert(giver == 9 || giver == p)
#else
#define VISIT_GIVE_BACK(p) skip
#define VISIT_ADOPT(p) skip
#endif
#ifdef V_ABANDON_FINDS_ANOTHER
#define VISIT_DONE(p) assert(k[p] != ABANDON || st != IN_PROGRESS)
#else
#ifdef V_SUSPEND_FINDS_ANOTHER
#define VISIT_DONE(p) assert(k[p] != SUSPEND || st != IN_PROGRESS)
#else
#define VISIT_DONE(p) skip
#endif
#endif
#ifdef V_LATE_COMPLETE_AFTER_RELEASE
#define VISIT_LOST(p) assert(!(k[p] == COMPLETE && did[p] && sup[p]))
#else
#define VISIT_LOST(p) skip
#endif
#include "record.pml"

inline UNDER_WAY(i, p) {
  dk[i] = k[p]; dw[i] = p; de[i] = expected; dn[i] = leaving; df[i] = f[p]; dm[i] = carried; res = 0;
  printf("@ late %d %d %d %d\n", p, k[p], expected, leaving) }
inline DROP(i) { dk[i] = 0; dw[i] = 0; de[i] = 0; dn[i] = 0; df[i] = 0; dm[i] = 0 }
inline ARRIVE(i) {
  printf("@ arrives %d %d\n", dw[i], dk[i]);
  VISIT_LATE(dk[i]); APPLY(dk[i], dw[i], de[i], dn[i], df[i], dm[i]); DROP(i) }

/* A suspend that is not the first writes for how long the record is to be left alone. */
#ifdef PAUSES
#define PAUSE(p) ((pc[p] == MOVE && !CREATED(knows[p])) -> PAUSING : 0)
#else
#define PAUSE(p) 0
#endif
/* One write of a caller's and what becomes of it, in one step. */
#define EXPECTED(p) (pc[p] == BEGIN -> see[p] : cur[p])
#define LEFT(p) (pc[p] == BEGIN -> cur[p] : (pc[p] == MOVE || pc[p] == SETTLE -> fin[p] : alt[p]))
inline SEND(p) {
  if
  :: res = 1
  :: F > 0 -> F--; res = 2                                      /* it is applied, the answer is lost */
  :: F > 0 && dk[0] == 0 -> F--; res = 3                        /* it is on its way: it arrives late, or never */
#if LATE > 1
  :: F > 0 && dk[0] != 0 && dk[1] == 0 -> F--; res = 4;
#ifdef V_TWO_LATE
       assert(0)
#endif
#endif
  :: F > 0 && dk[0] != 0 && dk[LATE - 1] != 0 -> F--; res = 5   /* it is lost */
  fi;
  d_step {
    expected = EXPECTED(p); leaving = LEFT(p); carried = knows[p] | PAUSE(p);
    if
    :: res <= 2 -> APPLY(k[p], p, expected, leaving, f[p], carried);
         if :: res == 2 -> printf("@ unanswered %d\n", p); won = 0; res = 0 :: else fi
    :: res == 3 -> UNDER_WAY(0, p)
#if LATE > 1
    :: res == 4 -> UNDER_WAY(1, p)
#endif
    :: res == 5 -> printf("@ dropped %d %d\n", p, k[p]); res = 0
    fi;
    expected = 0; leaving = 0; carried = 0 } }

inline RESET(p) {
  pc[p] = IDLE; k[p] = 0; f[p] = 0; cur[p] = 0; see[p] = 0; alt[p] = 0; fin[p] = 0; sent[p] = 0;
  knows[p] = 0; did[p] = 0; unanswered[p] = 0; step[p] = 0; steps[p] = 0;
  cinc[p] = 0; cpol[p] = 0; acts[p] = 0; sup[p] = 0; mine[p] = 0; gone[p] = 0; past[p] = 0 }

/* A begin is over. Whatever its answer was, what it sent and nobody confirmed goes on the process's list. */
inline HAND_OVER(p) {
#ifndef M_ANSWERED_FORGETS
  list[HOME(p)] = list[HOME(p)] | sent[p];
#endif
  sent[p] = 0 }
/* What it took from the list goes back when the swap that was to replace it has no answer. It does not become an etag that
   this begin sent: to own the operation under it (rule 0) while that swap is on its way would be to lose it to oneself. */
inline GIVE_BACK(p) {
#ifdef M_POPPED_OWNED
  if :: k[p] == ADOPT -> sent[p] = sent[p] | (1 << see[p]) :: else fi;
#else
#ifndef M_POPPED_FORGOTTEN
  if :: k[p] == ADOPT -> VISIT_GIVE_BACK(p); list[HOME(p)] = list[HOME(p)] | (1 << see[p]) :: else fi;
#endif
#endif
  skip }

#ifdef PROGRESS
bool waiting[NC], woken[NC], stopped[NC];       /* from the first wait to the answer; the owner ended here; run_max is over */
#define WAITED(p) waiting[p] = 0; woken[p] = 0; stopped[p] = 0
#else
#define WAITED(p) skip
#endif
inline ANSWERED(p) { d_step { printf("@ told %d %d\n", p, d); HAND_OVER(p); RESET(p); WAITED(p) } }
inline TOLD_TO_WAIT(p) {
#ifdef PROGRESS
  d_step { printf("@ waits %d\n", p); q = f[p]; HAND_OVER(p); RESET(p); f[p] = q; q = 0; pc[p] = WAIT; waiting[p] = 1; woken[p] = 0 }
#else
  ANSWERED(p)
#endif
}
inline UNANSWERED(p) { d_step {
  printf("@ gives_up %d\n", p);
  sent[p] = sent[p] | (1 << cur[p]); GIVE_BACK(p);
  list[HOME(p)] = list[HOME(p)] | sent[p]; RESET(p); WAITED(p) } }

/* The same etag for a second, different send: what the rule "new for every send" forbids. */
#ifdef M_SAME_ETAG
#define REFRESH(x, base) skip
#else
#define REFRESH(x, base) ETAG(x, base)
#endif
inline SWAP(p, kk, base) { d_step { k[p] = kk; see[p] = et; REFRESH(cur[p], base) } }

inline BECOME(p) { d_step {
  printf("@ owns %d %d\n", p, et);
  cur[p] = et; sent[p] = sent[p] & ~(1 << et); HAND_OVER(p); WAITED(p); cinc[p] = inc; cpol[p] = pol; ran = 1;
  knows[p] = first + (was << 2); acts[p] = !asks && !ATOM(p); step[p] = point; past[p] = done[inc]; see[p] = 0; k[p] = 0;
#ifdef V_RESUMED
  assert(!step[p]);
#endif
  z = 0; do :: z < NC ->
                 assert(z == p || !acts[z] || sup[z] || cpol[p] != HOLD || cpol[z] != HOLD || ATOM(p));    /* P1 */
                 z++
            :: else -> break od; z = 0;
  if :: asks -> pc[p] = ASK :: else -> pc[p] = WORK fi } }

/* Whether the stored etag is one that this begin sent (rule 0), or this move did. Counters can't tell that. */
#if defined(COUNTERS) || defined(M_FENCE_RESTARTS)
#define SENT(p) 0
#define LANDED(p) won
#else
#define SENT(p) (et == cur[p] || HAS(sent[p], et))
#define LANDED(p) (won || et == fin[p])
#endif
#ifdef M_RIVAL
#define OURS(p) won
#else
#define OURS(p) (won || SENT(p))
#endif

#ifdef M_LAPSED_IGNORED
#define LIVE (live || lapsed)
#else
#define LIVE live
#endif
#ifdef M_LAXER_POLICY
#define STORED(p) WANT(p)
#else
#define STORED(p) pol
#endif
#ifdef M_STRICTER_IGNORED
#define ASKED(p) pol
#else
#define ASKED(p) WANT(p)
#endif

/* The decision of a begin on the record as the answer shows it: the table's first row that fits. */
#undef DECIDES
#define DECIDES(state_, ours_, over_, mark_, request_, listed_, live_, stored_, asked_, spent_, atomic_, kept_, paused_, asks_, decision_) \
  FIRST(FITS(state_, st) && FITS(ours_, OURS(p)) && FITS(over_, exp) && FITS(mark_, mark) && \
        FITS(request_, (fp == f[p] -> SAME : OTHER)) && FITS(listed_, HAS(list[HOME(p)], et)) && FITS(live_, LIVE) && \
        FITS(stored_, STORED(p)) && FITS(asked_, ASKED(p)) && FITS(spent_, (spent || (TRIES > 0 && tries >= TRIES))) && \
        FITS(atomic_, atm) && FITS(kept_, ans) && FITS(paused_, paused) && FITS(asks_, (WANT(p) == RECONCILE)), decision_)
inline WEIGH(p) { d_step {
  row = 0;
#ifdef M_ACCEPTED_EXPIRES
  DECIDES(ACCEPTED, ANY, YES, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, REPLACES)
#endif
#ifdef M_MISMATCH_LATE
  DECIDES(IN_PROGRESS, NO, ANY, ANY, ANY, NO, YES, ANY, ANY, ANY, ANY, ANY, ANY, ANY, WAITS)
#endif
#include "table.pml"
  assert(row); d = row % 100; row = 0 } }
#undef DECIDES
#define DECIDES(...)

inline DECIDE(p) {
  WEIGH(p);
  assert(d == OWNS || d == ADOPTS || st != IN_PROGRESS || !SENT(p));                     /* P13: not told of itself */
  assert(!(d == WAITS || d == HELD || d == REPLAYED || d == CLAIMS || d == ASKS) || fp == f[p]);    /* P3 */
  if
  :: d == OWNS -> BECOME(p)
  :: d == INSERTS -> d_step {
#ifdef M_ABSENCE_SETTLES
       list[HOME(p)] = 0;
#endif
       k[p] = INSERT; see[p] = 0; knows[p] = 0; REFRESH(cur[p], 0) }
  :: d == REPLACES -> SWAP(p, REPLACE, 0); knows[p] = 0
  :: d == ADOPTS -> d_step { VISIT_ADOPT(p); list[HOME(p)] = list[HOME(p)] & ~(1 << et) }; SWAP(p, ADOPT, et); knows[p] = 0
  :: d == CLAIMS ->
#ifdef V_PROVED
       assert(pol != HOLD || mark == BY_OPERATOR);
#endif
       SWAP(p, CLAIM, et); knows[p] = 0
  :: d == ASKS -> SWAP(p, CLAIM, et); knows[p] = ASKING
  :: d == WAITS -> TOLD_TO_WAIT(p)
  :: d == REPLAYED ->
       assert(st == TERMINAL || !stale);                                                /* P2: the answer of the last attempt */
#ifdef V_REPLAYED_UNFINISHED
       assert(st == TERMINAL);
#endif
       ANSWERED(p)
  :: d == HELD ->
#ifdef V_STRICTER
       assert(pol == HOLD || WANT(p) != HOLD);
#endif
#ifdef V_USED_UP
       assert(pol != RERUN || WANT(p) != RERUN);
#endif
       ANSWERED(p)
  :: d == MISMATCHED -> ANSWERED(p)
  fi }

inline EFFECT(p) { d_step { did[p] = 1; knows[p] = knows[p] | 2; HARM(p, cinc[p], f[p], gone[p], cpol[p]) } }

inline TERMINAL_MOVE(p, kk) { d_step { k[p] = kk; ETAG(fin[p], cur[p]); unanswered[p] = 0; pc[p] = MOVE } }

inline WAKE(p) {        /* who waits in this process for what ended in it */
#ifdef PROGRESS
  z = 0; do :: z < NC -> if :: HOME(z) == HOME(p) && z != p -> woken[z] = waiting[z] :: else fi; z++ :: else -> break od; z = 0;
#endif
  skip }
inline KNOWN_LANDED(p) { cur[p] = et; alt[p] = 0; step[p] = step[p] || steps[p]; steps[p] = 0 }

inline MOVED(p) {       /* after a try of a terminal move */
  if
  :: res == 0 -> unanswered[p] = 1;
       if :: skip                                                               /* the same again, */
          :: d_step {                                                           /* or it is given up; the key is not freed (P9) */
#ifdef M_BEATS_LISTED
               list[HOME(p)] = list[HOME(p)] | (alt[p] == 0 -> 0 : 1 << alt[p]);
#endif
               if :: pc[p] == SETTLE -> list[HOME(p)] = list[HOME(p)] | (1 << cur[p]) :: else fi;
               RESET(p) } fi
  :: res && LANDED(p) -> d_step { WAKE(p); RESET(p) }
  :: res && !LANDED(p) ->
       if
       :: alt[p] != 0 && et == alt[p] -> d_step { KNOWN_LANDED(p); FRESH(fin[p]) }       /* no loss: again, on top of it */
       :: else ->
            if
            :: pc[p] == SETTLE || (k[p] != COMPLETE && unanswered[p]) -> VISIT_DONE(p)  /* finds another's record, or none: done */
            :: else -> VISIT_LOST(p);                                           /* OwnershipLost */
                 assert(!mine[p] || sup[p] || gone[p]);                         /* P13 */
                 assert(cpol[p] != HOLD || sup[p] || gone[p] || ATOM(p))        /* P5: under hold only an operator takes */
            fi;
            d_step { WAKE(p); RESET(p) }
       fi
  fi }

/* Reconcile may run what the provider does not know only when no earlier owner can still act: that is what `settle` waits for. */
inline SETTLED(p) { d_step {
  res = 1; z = 0;
#ifndef M_NO_SETTLE
  do :: z < NC -> if :: z != p && acts[z] && cinc[z] == cinc[p] -> res = 0 :: else fi; z++ :: else -> break od; z = 0
#endif
  } }

inline BEGUN(p) {       /* after a try of a begin */
  if
  :: res == 0 && k[p] != INSERT -> skip                         /* the identical swap again, */
#ifdef M_SAME_ETAG
  :: res == 0 && k[p] == INSERT -> skip
#endif
  :: res == 0 -> d_step {                                       /* or it asks anew, and remembers, */
       sent[p] = sent[p] | (1 << cur[p]); GIVE_BACK(p); k[p] = INSERT; see[p] = 0; knows[p] = 0; FRESH(cur[p]) }
  :: res == 0 -> UNANSWERED(p)                                  /* or it ends */
  :: res -> DECIDE(p)
  fi }

inline NEXT_ETAG(p) { d_step { if :: alt[p] == 0 -> ETAG(alt[p], cur[p]) :: else fi } }

#ifdef PROGRESS
#define BEGINS 1        /* there is no end of them */
#define SPEND skip
#else
#define BEGINS B
#define SPEND B--
#endif
#ifdef M_WAITS_FOR_A_CALL
#define WOKEN(p) woken[p]
#else
#define WOKEN(p) 1
#endif

#ifdef M_FORK_SHARES_ETAGS
bool twin;              /* the random source of the child is where the parent's is */
#define START(p) d_step { if :: twin && p == NC - 1 && pc[0] == BEGIN -> cur[p] = cur[0]; twin = 0 :: else -> FRESH(cur[p]) fi; \
                          k[p] = INSERT; pc[p] = BEGIN }
#else
#define START(p) d_step { ETAG(cur[p], 0); k[p] = INSERT; pc[p] = BEGIN }
#endif

proctype Caller(byte p) {
end:
  do
  :: atomic { pc[p] == IDLE && BEGINS > 0 -> SPEND;
       if :: f[p] = 1 :: FP == 2 && p == NC - 1 -> f[p] = 2 fi;
       printf("@ begins %d %d\n", p, f[p]); START(p) }
#ifdef PROGRESS
  :: atomic { pc[p] == WAIT && WOKEN(p) -> START(p) }
#endif
  :: atomic { pc[p] == IDLE && BEGINS > 0 && st == IN_PROGRESS && HAS(list[HOME(p)], et) ->
       d_step { SPEND; list[HOME(p)] = list[HOME(p)] & ~(1 << et); cur[p] = et; f[p] = fp; knows[p] = first + (was << 2);
                cinc[p] = inc; k[p] = DISOWN; ETAG(fin[p], cur[p]); pc[p] = SETTLE } }
  :: atomic { pc[p] == WORK && !did[p] && !step[p] && !ATOM(p) -> EFFECT(p) }
  :: atomic { pc[p] == WORK && G > 0 -> G--; pc[p] = HANG; printf("@ hangs %d\n", p) }
  :: atomic { pc[p] == WORK ->
       if
       :: TERMINAL_MOVE(p, COMPLETE)
       :: S > 0 -> S--; TERMINAL_MOVE(p, SUSPEND)
#ifdef ANSWERS
       :: S > 0 -> S--; TERMINAL_MOVE(p, ANSWER)
#endif
       :: A > 0 -> A--; if :: skip :: knows[p] = knows[p] | 2 fi; TERMINAL_MOVE(p, ABANDON)     /* touched with or without an effect */
       fi }
  :: atomic { pc[p] == ASK -> SETTLED(p);
       if
       :: eff[cinc[p]] > 0 -> TERMINAL_MOVE(p, COMPLETE)
       :: eff[cinc[p]] == 0 && res -> pc[p] = CONFIRM
       :: eff[cinc[p]] == 0 && !res -> TERMINAL_MOVE(p, PUT_BACK)                         /* not yet */
       :: S > 0 -> S--; TERMINAL_MOVE(p, PUT_BACK)                                      /* unknown */
       fi; res = 0 }
  :: atomic { pc[p] == CONFIRM && S > 0 -> S--; TERMINAL_MOVE(p, SUSPEND) }
  /* one write, what becomes of it, and what its sender makes of the answer */
  :: atomic {
       if
       :: pc[p] == BEGIN || pc[p] == MOVE || pc[p] == SETTLE
       :: pc[p] == CONFIRM || (pc[p] == WORK && H > 0 && !steps[p]) -> k[p] = BEAT; H = H - (pc[p] == WORK); NEXT_ETAG(p)
       :: pc[p] == WORK && did[p] && !step[p] && !steps[p] && alt[p] == 0 && K > 0 ->
            K--; steps[p] = 1; k[p] = CHECKPOINT; NEXT_ETAG(p)
       :: pc[p] == WORK && steps[p] -> k[p] = CHECKPOINT                        /* it may have landed: the same again */
       fi;
       SEND(p);
       if
       :: pc[p] == BEGIN -> BEGUN(p)
       :: pc[p] == MOVE || pc[p] == SETTLE -> MOVED(p)
       :: pc[p] == WORK || pc[p] == CONFIRM -> d_step {
            k[p] = 0;
            if :: res && (won || et == alt[p]) -> KNOWN_LANDED(p);
                    if :: pc[p] == CONFIRM -> pc[p] = WORK; acts[p] = !ATOM(p) :: else fi
               :: res && !won && et != alt[p] && pc[p] == CONFIRM -> RESET(p)
               :: else fi }
       fi;
       TIDY() }
  od }
inline CRASH(h) { d_step {
  printf("@ dies %d\n", h); crashed = 1; list[h] = 0; z = 0;
  do :: z < NC -> if :: HOME(z) == h -> RESET(z); WAITED(z) :: else fi; z++ :: else -> break od; z = 0 } }

/* The last caller's process begins as a copy of the first's: with nothing on its list, and no operation that may move. */
inline FORK(a, b) { d_step {
  printf("@ forks %d\n", b);
#ifdef M_FORK_COPIES_THE_LIST
  list[HOME(b)] = list[HOME(a)];
#endif
#ifdef M_FORK_COPIES_OPERATIONS
  pc[b] = pc[a]; k[b] = k[a]; f[b] = f[a]; cur[b] = cur[a]; see[b] = see[a]; alt[b] = alt[a]; fin[b] = fin[a]; sent[b] = sent[a];
  knows[b] = knows[a]; did[b] = did[a]; unanswered[b] = unanswered[a]; cinc[b] = cinc[a]; cpol[b] = cpol[a]; acts[b] = acts[a];
  sup[b] = sup[a]; mine[b] = mine[a]; gone[b] = gone[a];
#endif
#ifdef M_FORK_SHARES_ETAGS
  twin = (pc[a] == BEGIN);
#endif
  skip } }

inline PURGE() {
  assert((st == TERMINAL && exp) || (st == ACCEPTED && mark == AS_NEW));                /* P6 */
  NO_RECORD(); printf("@ purged\n") }

#ifdef PROGRESS
/* Whether somebody is at work on the record, or will be told soon that it is. */
#define AT_WORK(p) ((pc[p] >= ASK && pc[p] <= SETTLE && (cur[p] == et || (pc[p] == MOVE && fin[p] == et) || alt[p] == et)) || \
                    (pc[p] == BEGIN && (cur[p] == et || HAS(sent[p], et))) || (pc[p] == HANG && cur[p] == et && !stopped[p]))
#define LAPSES (!(AT_WORK(0) || AT_WORK(1)) || N > 0)
#define SPEND_PAUSE if :: AT_WORK(0) || AT_WORK(1) -> N-- :: else fi;
#else
#define LAPSES 1
#define SPEND_PAUSE
#endif

#ifdef M_FENCE_RESTARTS
#define ETAG_OF_OPERATOR et = 1
#else
#define ETAG_OF_OPERATOR ETAG(et, et)
#endif
inline OPERATE(kk) { d_step {
  known = 0; WRITE(kk); FOLLOW(); UNCLAIMED(); stale = 0; since = 0; paused = 0; freed[inc] = 0; clears[inc] = clears[inc] + (kk != RESOLVE); oet = 0; ETAG_OF_OPERATOR;
  z = 0; do :: z < NC -> if :: cinc[z] == inc -> sup[z] = 1 :: else fi; z++ :: else -> break od; z = 0;
  printf("@ operator %d %d %d %d\n", kk, st, et, mark) } }

proctype World() {
  bool seen;
end:
  do
  /* the clock */
  :: atomic { st == IN_PROGRESS && live && LAPSES -> d_step { SPEND_PAUSE live = 0; lapsed = 1; printf("@ lapses\n") } }
  :: atomic { st == IN_PROGRESS && !live && J > 0 -> J--; live = 1; printf("@ jumps_back\n") }
  :: atomic { st == TERMINAL && !exp && X > 0 -> X--; exp = 1; ended = 1; printf("@ expires\n") }
  :: atomic { st == TERMINAL && exp && J > 0 -> J--; exp = 0; printf("@ jumps_back\n") }
  :: atomic { st != ABSENT && !spent && E > 0 -> E--; spent = 1; printf("@ spent\n") }
#ifdef PAUSES
  :: atomic { st == ACCEPTED && paused -> paused = 0 }
#endif
#ifdef M_ACCEPTED_EXPIRES
  :: atomic { st == ACCEPTED && !exp && X > 0 -> X--; exp = 1 }
#endif
  /* the purger */
#ifdef M_PURGE_BLIND
  :: atomic { !seen && ((st == TERMINAL && exp) || mark == AS_NEW) -> seen = 1 }
  :: atomic { seen && st != ABSENT -> d_step { PURGE(); seen = 0 }; TIDY() }
#else
  :: atomic { st == TERMINAL && exp -> d_step { PURGE() }; TIDY() }
  :: atomic { mark == AS_NEW -> d_step { PURGE() }; TIDY() }
#endif
#ifdef M_LAPSED_EXPIRES
  :: atomic { st == IN_PROGRESS && !live && X > 0 -> X--; d_step { PURGE() }; TIDY() }
#endif
  /* the network */
  :: atomic { dk[0] != 0 -> d_step { ARRIVE(0) }; TIDY() }
  :: atomic { dk[0] != 0 -> d_step { DROP(0) }; TIDY() }
#if LATE > 1
  :: atomic { dk[1] != 0 -> d_step { ARRIVE(1) }; TIDY() }
  :: atomic { dk[1] != 0 -> d_step { DROP(1) }; TIDY() }
#endif
  /* the operator: is shown a record, later acts on that etag */
#ifdef FORCE
  :: atomic { oet == 0 && O > 0 && st != ABSENT -> O--; oet = et }
#else
  :: atomic { oet == 0 && O > 0 && ((st == ACCEPTED && mark != AS_NEW) || (st == IN_PROGRESS && !live)) -> O--; oet = et }
#endif
  :: atomic { oet != 0 ->
       if
       :: et != oet -> skip
       :: et == oet -> OPERATE(RELEASE)
       :: et == oet -> OPERATE(RESOLVE)
#if K0 > 0
       :: et == oet -> OPERATE(RESTART); done[inc] = 0
#endif
       fi;
       oet = 0; TIDY() }
  /* deaths, and a birth */
  :: atomic { C > 0 -> C--; if :: CRASH(0) :: NC > 2 || HOME(1) == 1 -> CRASH(1) fi; TIDY() }
  :: atomic { Y > 0 && pc[NC - 1] == IDLE && list[HOME(NC - 1)] == 0 -> Y--; FORK(0, NC - 1) }
  od }
#ifdef PROGRESS
/* The heart of a process beats until run_max, however long the handler takes. */
#define BEATS(p) (pc[p] == HANG && cur[p] == et && !stopped[p] && !live)
proctype Heart() {
end:
  do
  :: atomic { BEATS(0) || BEATS(1) -> d_step {
       z = (BEATS(0) -> 0 : 1); expected = cur[z]; FRESH(leaving); cur[z] = leaving;
       APPLY(BEAT, z, expected, leaving, f[z], 0); expected = 0; leaving = 0 }; TIDY() }
  od }
proctype Timer() {      /* run_max is over */
end:
  do
#ifndef M_BEATS_FOR_EVER
  :: d_step { pc[0] == HANG && !stopped[0] -> stopped[0] = 1 }
  :: d_step { pc[1] == HANG && !stopped[1] -> stopped[1] = 1 }
#else
  :: 0
#endif
  od }
ltl finished { <> (st == TERMINAL) }
ltl answered { [] (waiting[1] -> <> !waiting[1]) }
#else
proctype Final() {
  timeout ->
    assert(!(st == IN_PROGRESS && live));                                       /* P7: what is open is visible as unresolved */
    d_step { z = 0; q = 0; do :: z < NC -> q = q | HAS(list[z], et); z++ :: else -> break od;
             assert(st != IN_PROGRESS || ran || crashed || q) } }                          /* P13: no begin leaves an owner behind */
#endif

init { atomic {
  byte i = 0; do :: i < NC -> run Caller(i); i++ :: else -> break od;
#ifdef PROGRESS
#if G0 > 0
  run Heart(); run Timer();
#endif
#else
  run Final();
#endif
  run World() } }
