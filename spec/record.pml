/* Words, budgets, the record, and what the store makes of each write. */

/* The budgets of a run; each is finite, and its default is what most runs use. */
#ifndef POL
#define POL HOLD    /* the callers' recovery policy; */
#endif
#ifndef POLZ
#define POLZ POL    /* that of the last caller */
#endif
#ifndef ATOMIC
#define ATOMIC 0    /* whether the callers end their operations together with their rows; */
#endif
#ifndef ATOMZ
#define ATOMZ ATOMIC    /* whether the last caller does */
#endif
#ifndef NC
#define NC 2        /* callers */
#endif
#ifndef B0
#define B0 3        /* begins and settlings, all callers together */
#endif
#ifndef F0
#define F0 1        /* writes without an answer */
#endif
#ifndef LATE
#define LATE 1      /* how many of them may be on their way at once */
#endif
#ifndef C0
#define C0 0        /* processes that die */
#endif
#ifndef Y0
#define Y0 0        /* forks: the last caller's process begins as a copy of the first's */
#endif
#ifndef H0
#define H0 0        /* heartbeats */
#endif
#ifndef K0
#define K0 0        /* checkpoints, each of the one step that has the effect */
#endif
#ifndef A0
#define A0 1        /* handlers that prove "not applied" */
#endif
#ifndef S0
#define S0 1        /* handlers that raise, and answers "unknown" to reconcile */
#endif
#ifndef O0
#define O0 0        /* an operator's moves */
#endif
#ifndef X0
#define X0 1        /* ends of a retention */
#endif
#ifndef J0
#define J0 0        /* clock jumps back: a lapsed lease looks live again, what has expired looks kept */
#endif
#ifndef E0
#define E0 0        /* ends of the time in which `rerun` may run it again */
#endif
#ifndef TRIES
#define TRIES 0     /* attempts that `rerun` may make; 0: any number */
#endif
#ifndef FP
#define FP 2        /* 2: the last caller may bring another request */
#endif
#ifndef G0
#define G0 0        /* handlers that hang */
#endif
#ifndef N0
#define N0 0        /* pauses longer than a lease, in a search for progress; else there are any number */
#endif
#ifdef APART
#define HOME(p) (p)
#else
#define HOME(p) (p / 2)
#endif
#define WANT(p) (p == NC - 1 -> POLZ : POL)
#define ATOM(p) (p == NC - 1 -> ATOMZ : ATOMIC)

#define NO 0
#define YES 1
#define ANY 99          /* in a row of the table: whatever it is */
#define STAYS 9         /* as it was */
#define DROPPED 0
#define KEPT 1
#define OTHER 0         /* requests */
#define SAME 1
#define UNKNOWN 2

#define HOLD 0          /* from the strictest on */
#define RECONCILE 1
#define RERUN 2

#define ABSENT 0        /* states of the record */
#define IN_PROGRESS 1
#define ACCEPTED 2
#define TERMINAL 3      /* completed and failed */
#define UNREADABLE 4    /* in the table only: nothing but a refusal follows */

#define NONE 0          /* marks */
#define BY_OPERATOR 1   /* released by an operator, */
#define AS_NEW 2        /* or by the claim that created the record */

#define INSERTS 1       /* what a begin decides */
#define REFUSED 2
#define OWNS 3
#define REPLACES 4
#define MISMATCHED 5
#define REPLAYED 6
#define ADOPTS 7
#define CLAIMS 8
#define WAITS 9
#define ASKS 10         /* claims, and asks reconcile's function first */
#define HELD 11

#define INSERT 1        /* writes */
#define REPLACE 2       /* rule 3 */
#define CLAIM 3         /* rules 6 and 8 */
#define ADOPT 4         /* rule 5 */
#define BEAT 5
#define CHECKPOINT 6
#define COMPLETE 7      /* complete and fail */
#define SUSPEND 8
#define ANSWER 9        /* a suspend that keeps the answer that was sent */
#define PUT_BACK 10
#define ABANDON 11
#define DISOWN 12
#define RESOLVE 13      /* an operator's */
#define RELEASE 14
#define RESTART 15      /* a release that drops the steps */
#define FORGET 16       /* a suspend by a handler that was left without a move */

#define CREATED(m) ((m) & 1)            /* what a claim knows and a write carries: it created the record; */
#define TOUCHED(m) (((m) >> 1) & 1)     /* something was begun under it; */
#define MARKED(m) (((m) >> 2) & 1)      /* it took an operator's mark off; */
#define ASKING 8                        /* it asks first; */
#define PAUSING 16                      /* what it leaves is to be left alone for a while */

/* the record; `first`: it is held by the claim that created it; `was`: that claim took an operator's mark off; `asks`: it asks */
byte st, et, fp, mark, pol, tries; bool live, exp, first, was, asks, ans, point, atm, spent, paused;
/* writes still on their way, and the etag that the operator was shown */
byte dk[LATE], dw[LATE], de[LATE], dn[LATE], df[LATE], dm[LATE], oet;
/* budgets */
byte B = B0, F = F0, C = C0, H = H0, A = A0, S = S0, O = O0, X = X0, J = J0, K = K0, Y = Y0, E = E0, G = G0, N = N0;
/* callers: where, pending write, request, etag held or to be sent, etag expected, unconfirmed heartbeat, terminal move's etag */
byte pc[NC], k[NC], f[NC], cur[NC], see[NC], alt[NC], fin[NC];
short sent[NC];         /* etags that this begin sent and nobody confirmed (a set) */
short list[NC];         /* rule 5, per process: etags of begins that are over (a set) */
byte knows[NC];         /* what its claim and its moves know, as above */
bool did[NC], unanswered[NC], step[NC], steps[NC];      /* the effect; a lost answer; the step is known done; a checkpoint is unconfirmed */

/* Ghosts: what really happened. No rule reads them but reconcile's function (the provider's view) and its `settle`. */
byte own = 9, inc;      /* who wrote the claim; which incarnation of the key this record is */
bool lapsed, ended, ran, crashed, stale, since;      /* lapsed, expired since the last write; an owner came of this claim; a process died; an answer of an earlier claim; an effect since the release */
byte cinc[NC], cpol[NC]; bool acts[NC], sup[NC], mine[NC], gone[NC], past[NC];  /* per owner: incarnation, its policy, handler runs, operator took it, move applied, record replaced, claimed after the checkpoint */
byte eff[NC + 3], clears[NC + 3]; bool freed[NC + 3], done[NC + 3];     /* per incarnation: effects, operator's releases, freed by abandon, checkpoint stored */
bool dd1, dd2;          /* an effect of request 1, of request 2 */

bool won; byte res, d;   /* the store's verdict; whether there was an answer; the decision; all 0 between steps */
hidden byte q, z, to, known, expected, leaving, carried; hidden int row, msk;      /* only inside one d_step: a search that backs up does not restore them */

#define HAS(set, e) ((e) != 0 && ((set) & (1 << (e))))
#define FITS(wanted, found) ((wanted) == ANY || (wanted) == (found))
#define KEEP(what, was_) (what == STAYS -> was_ : what)

/* Nothing of a table is read but the rows that are asked for. */
#define DECIDES(...)
#define LEAVES(...)
#define KEEPS(...)
#define PROVES(...)
#define FOLLOWS(...)

inline FRESH(x) {
  msk = 1 | (1 << et) | (1 << oet); q = 0;
  do :: q < NC -> msk = msk | (1 << cur[q]) | (1 << see[q]) | (1 << alt[q]) | (1 << fin[q]) | sent[q] | list[q]; q++
     :: else -> break od;
  q = 0; do :: q < LATE -> msk = msk | (1 << de[q]) | (1 << dn[q]); q++ :: else -> break od;
  q = 1; do :: (msk & (1 << q)) -> q++ :: else -> break od;
  assert(q < 15); x = q; q = 0; msk = 0 }

/* An etag for a write on top of another. As counters, with M_FENCE_RESTARTS from 1 for each new record. */
#ifdef COUNTERS
byte top;
#define ETAG(x, base) d_step { top++; x = top; assert(x < 15) }
#else
#ifdef M_FENCE_RESTARTS
#define ETAG(x, base) d_step { x = (base) + 1; assert(x < 15) }
#else
#define ETAG(x, base) FRESH(x)
#endif
#endif

/* Forgets etags that can no longer come to be stored: they change nothing, and histories become equal. */
inline TIDY() { d_step {
  msk = 0;
  if :: et != 0 -> msk = msk | (1 << et) :: else fi;
  q = 0; do :: q < LATE -> if :: dn[q] != 0 -> msk = msk | (1 << dn[q]) :: else fi; q++ :: else -> break od;
  q = 0; do :: q < NC -> list[q] = list[q] & msk; sent[q] = sent[q] & msk;
                 if :: alt[q] != 0 && !(msk & (1 << alt[q])) -> alt[q] = 0; steps[q] = 0 :: else fi; q++
            :: else -> break od;
  q = 0; msk = 0; won = 0; res = 0; d = 0 } }

inline NEW_INCARNATION() {
  msk = 1 | (1 << inc); q = 0; do :: q < NC -> msk = msk | (1 << cinc[q]); q++ :: else -> break od;
  q = 1; do :: (msk & (1 << q)) -> q++ :: else -> break od;
  inc = q; eff[q] = 0; clears[q] = 0; freed[q] = 0; done[q] = 0; q = 0; msk = 0; dd1 = 0; dd2 = 0 }

inline LEAVE() {        /* this incarnation of the record is no more */
  z = 0; do :: z < NC -> if :: cinc[z] == inc -> gone[z] = 1 :: else fi; z++ :: else -> break od; z = 0 }

inline UNCLAIMED() { first = 0; was = 0; asks = 0; own = 9; lapsed = 0; ended = 0; ran = 0; live = 0; exp = 0 }

inline NEW_RECORD(w, r) {
  NEW_INCARNATION(); UNCLAIMED(); fp = r; first = 1; pol = WANT(w); atm = ATOM(w); spent = 0; tries = (TRIES > 0); paused = 0; since = 0 }

inline NO_RECORD() {
  LEAVE(); UNCLAIMED(); st = ABSENT; et = 0; fp = 0; mark = NONE; pol = 0; atm = 0; spent = 0; stale = 0; since = 0; tries = 0; paused = 0;
  ans = 0; point = 0 }

/* A row of the tables is one number here, 0 if none fits yet: the digits are its columns. */
#define FIRST(fits, digits) row = ((row == 0 && fits) -> 10000 + (digits) : row);
#define DIGIT(unit) ((row / (unit)) % 10)

#undef LEAVES
#define LEAVES(write_, created_, touched_, was_, state_, mark_, answer_, point_) \
  FIRST(kk == write_ && FITS(created_, CREATED(known)) && FITS(touched_, TOUCHED(known)) && FITS(was_, MARKED(known)), \
        1000 * state_ + 100 * mark_ + 10 * answer_ + point_)
inline WRITE(kk) {  /* what the write leaves of the record's state, mark, answer and recovery point */
  row = 0;
#ifdef M_EXCEPTION_FREES
  LEAVES(SUSPEND, YES, ANY, ANY, ACCEPTED, AS_NEW, DROPPED, STAYS)
#endif
#ifdef M_SECOND_ABANDON_FREES
  LEAVES(ABANDON, NO, ANY, ANY, ACCEPTED, AS_NEW, DROPPED, STAYS)
#endif
#ifdef M_TOUCHED_FREES
  LEAVES(ABANDON, YES, ANY, ANY, ACCEPTED, AS_NEW, DROPPED, STAYS)
#endif
#ifdef M_MARK_KEPT
  LEAVES(CLAIM, ANY, ANY, ANY, IN_PROGRESS, STAYS, DROPPED, STAYS)
#endif
#ifdef M_POINT_DROPPED
  LEAVES(CLAIM, ANY, ANY, ANY, IN_PROGRESS, NONE, DROPPED, DROPPED)
#endif
#ifdef M_ANSWER_SURVIVES
  LEAVES(CLAIM, ANY, ANY, ANY, IN_PROGRESS, NONE, STAYS, STAYS)
  LEAVES(SUSPEND, ANY, ANY, ANY, ACCEPTED, NONE, STAYS, STAYS)
#endif
#include "table.pml"
  assert(row);
  to = DIGIT(1000); mark = KEEP(DIGIT(100), mark); ans = KEEP(DIGIT(10), ans); point = KEEP(DIGIT(1), point) }
#undef LEAVES
#define LEAVES(...)

#undef FOLLOWS
#define FOLLOWS(from_, to_) || (st == from_ && to == to_)
inline FOLLOW() {       /* a swap on the same record */
  assert(0
#include "table.pml"
  ); st = to }
#undef FOLLOWS
#define FOLLOWS(...)

#undef KEEPS
#define KEEPS(atomic_, takers_, stored_, asked_, policy_, left_) \
  FIRST(FITS(atomic_, atm) && FITS(takers_, ATOM(w)) && FITS(stored_, pol) && FITS(asked_, WANT(w)), 10 * policy_ + left_)
inline TAKEN_BY(w) {    /* the policy and the mark "atomic" that a record keeps */
  row = 0;
#ifdef M_ATOMIC_KEPT
  KEEPS(YES, ANY, ANY, ANY, STAYS, YES)
#endif
#include "table.pml"
  assert(row);
  pol = KEEP(DIGIT(10), pol); atm = DIGIT(1) }
#undef KEEPS
#define KEEPS(...)

/* The fence, and what a mutant's store does without it. */
#ifdef M_UNFENCED
#define FENCED(kk, e) (kk == COMPLETE -> st == IN_PROGRESS : st != ABSENT && et == e)
#else
#ifdef M_ZOMBIE_ABANDON
#define FENCED(kk, e) (kk == ABANDON || kk == DISOWN -> st == IN_PROGRESS : st != ABSENT && et == e)
#else
#ifdef M_OLD_SNAPSHOT
#define FENCED(kk, e) (kk == CLAIM -> st != ABSENT : st != ABSENT && et == e)
#else
#ifdef M_BEAT_RENEWS_ANOTHERS
#define FENCED(kk, e) (kk == BEAT -> st == IN_PROGRESS : st != ABSENT && et == e)
#else
#define FENCED(kk, e) (st != ABSENT && et == e)
#endif
#endif
#endif
#endif
#ifdef M_BEAT_KEEPS_ETAG
#define BEAT_ETAG(kk, n) (kk == BEAT -> et : n)
#else
#define BEAT_ETAG(kk, n) n
#endif
#ifdef M_ATTEMPT_GIVEN_BACK
#define GIVE_ATTEMPT_BACK tries = tries - 1
#else
#define GIVE_ATTEMPT_BACK skip
#endif

/* An effect, by w, under an incarnation of the key: it is here that harm is done. */
inline HARM(w, i, r, over, policy) {
  printf("@ effect %d %d\n", w, r);
  eff[i]++; since = since || (i == inc && !sup[w]);
  if :: over -> skip :: !over && r == 1 -> dd1 = 1 :: !over && r == 2 -> dd2 = 1 fi;
  assert(policy == RERUN || eff[i] <= 1 + clears[i]);                                  /* P7 */
  assert(TRIES == 0 || policy != RERUN || eff[i] <= TRIES * (1 + clears[i]));          /* P7: as often as was allowed */
  assert(!past[w]);                                                                     /* P7: a step known done is not done again */
  assert(!freed[i]);                                                                    /* P10 */
  assert(!(dd1 && dd2)) }                                                               /* P3 */

/* What a claim promises. */
inline CHECK_CLAIM(w, m) {
  assert(st == ACCEPTED || (st == IN_PROGRESS && lapsed));                              /* P1, P5 */
  assert(mark == BY_OPERATOR || (pol != HOLD && WANT(w) != HOLD) || (atm && eff[inc] == 0));        /* P5, P7: the stricter policy; */
  assert(mark == BY_OPERATOR || (m & ASKING) || (pol == RERUN && WANT(w) == RERUN) || atm) }        /* reconcile is asked */
inline TAKE(w, m) {
#ifdef M_MARK_INHERITED
  was = (was || mark == BY_OPERATOR);
#else
  was = (mark == BY_OPERATOR);
#endif
  if :: TRIES > 0 -> tries = (mark == BY_OPERATOR -> 1 : tries + 1) :: else fi;
  spent = (mark == BY_OPERATOR -> 0 : spent); first = 0; ran = 0; paused = 0; asks = ((m & ASKING) != 0);
  TAKEN_BY(w) }

/* The store: one write, by w, on the etag e, leaving the etag n. Everything is judged here, whoever sent it, and whenever. */
inline APPLY(kk, w, e, n, r, m) {
  won = (kk == INSERT -> st == ABSENT : FENCED(kk, e));
  if
  :: !won -> skip
  :: else ->
     assert(kk <= CLAIM || st == IN_PROGRESS);                                          /* P5 */
     assert(kk <= ADOPT || kk == DISOWN || own == w);                                   /* P1, P5: none but the owner moves it, */
     assert(!(kk == ADOPT || kk == DISOWN) || !ran);                                    /* P1: and nobody owns what is settled */
     assert(!(kk == CLAIM || kk == ADOPT) || fp == r);                                  /* P3 */
     if :: kk == INSERT -> NEW_RECORD(w, r)
        :: kk == REPLACE ->
             assert((st == TERMINAL && ended) || (st == ACCEPTED && mark == AS_NEW));   /* P6 */
             VISIT_REPLACE; LEAVE(); NEW_RECORD(w, r)
        :: kk == CLAIM -> CHECK_CLAIM(w, m); TAKE(w, m)
        :: kk == COMPLETE && ATOM(w) -> HARM(w, inc, r, 0, pol)                         /* one commit */
        :: else
     fi;
     if :: kk == ADOPT -> known = first + (was << 2) :: else -> known = m fi;
     WRITE(kk);
     stale = (kk == CLAIM -> ans : (stale && kk != ANSWER && kk != COMPLETE));
     if :: kk <= REPLACE -> st = to :: else -> FOLLOW() fi;
     et = BEAT_ETAG(kk, n);
     if :: kk <= CHECKPOINT && st == IN_PROGRESS ->
             if :: kk == ADOPT -> pol = WANT(w); atm = ATOM(w) :: kk == CHECKPOINT -> done[inc] = 1 :: else fi;
             own = w; lapsed = 0; live = 1
        :: else ->      /* the owner's claim has ended, or that of nobody */
             UNCLAIMED(); paused = ((m & PAUSING) != 0); freed[inc] = (mark == AS_NEW);
             assert(mark != AS_NEW || eff[inc] == 0);                                   /* P10 */
             assert(mark != BY_OPERATOR || !since);                                     /* P10: nor by a release of long ago */
             if :: kk == ABANDON || kk == DISOWN -> GIVE_ATTEMPT_BACK :: else fi;
             if :: fin[w] == n -> mine[w] = 1; acts[w] = 0 :: else fi
     fi
  fi;
  row = 0; to = 0; known = 0;
  printf("@ store %d %d %d %d %d %d %d %d %d\n", kk, w, e, n, won, st, et, mark, live) }
