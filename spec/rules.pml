/* The rules of notwice, for one operation: one record, its etag as the fence, and everything that can go wrong around it.

   What runs here: NC callers, each of which begins, works, moves and begins again; one World, which is the clock, the
   purger, the network, the operator and the crashes. A caller's request and the store's answer to it are one step, unless
   a fault parts them: then the write was applied, was not, or is still on its way. Between two steps anybody may act, so
   a decision is always made on what was read, and carried out on what has become of it.

   Callers 0 and 1 live in one process and share its list of unconfirmed etags (rule 5); caller 2 lives in another.
   With APART each has a process of its own.

   Every budget below is finite, so the graph of states has no cycles, and an assertion at `timeout` speaks about every
   end that there is. Etags and incarnations are "fresh": the smallest number that nothing refers to. Nothing wraps, nothing
   collides, and histories that differ in names only are one.

   A name that begins with M_ turns one rule off; the check expects a violation then. A name that begins with V_ fails at
   a situation that the clean configurations must come through: proof that they are not green for want of reaching it. */

#ifndef POL
#define POL HOLD    /* the recovery policy that the record was claimed with */
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
#ifndef C0
#define C0 0        /* processes that die */
#endif
#ifndef H0
#define H0 0        /* heartbeats */
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
#define J0 0        /* clock jumps back: a lapsed lease looks live again */
#endif
#ifndef FP
#define FP 2        /* 2: the last caller may bring another request */
#endif
#ifdef APART
#define HOME(p) (p)
#else
#define HOME(p) (p / 2)
#endif

#define HOLD 0
#define RERUN 1
#define RECONCILE 2

#define ABSENT 0        /* states of the record */
#define IN_PROGRESS 1
#define ACCEPTED 2
#define TERMINAL 3

#define BY_OPERATOR 1   /* marks: released by an operator, */
#define AS_NEW 2        /* or by the claim that created the record */

#define IDLE 0          /* where a caller stands */
#define BEGIN 1         /* asks for the operation */
#define ASK 2           /* owns it; reconcile's function is to be asked */
#define CONFIRM 3       /* owns it; "not applied", and the confirming heartbeat is to win */
#define WORK 4          /* owns it; the handler runs */
#define MOVE 5          /* owns it; a terminal move is to be answered */
#define SETTLE 6        /* no owner: frees what a begin without an answer left behind */

#define INSERT 1        /* writes */
#define REPLACE 2       /* rule 3 */
#define CLAIM 3         /* rules 6 and 8 */
#define ADOPT 4         /* rule 5 */
#define COMPLETE 5      /* complete and fail */
#define SUSPEND 6
#define ABANDON 7
#define BEAT 8

/* the record; `first`: it is held by the claim that created it; `was`: that claim took an operator's mark off */
byte st, et, fp, mark; bool live, exp, first, was;
/* a write still on its way, and the etag that the operator was shown */
byte dk, dw, de, dn, df, dm, oet;
/* budgets */
byte B = B0, F = F0, C = C0, H = H0, A = A0, S = S0, O = O0, X = X0, J = J0;
/* callers: where, pending write, request, etag held or to be sent, etag expected, unconfirmed heartbeat, terminal move's etag */
byte pc[NC], k[NC], f[NC], cur[NC], see[NC], alt[NC], fin[NC];
short sent[NC];         /* etags that this begin sent and nobody confirmed (a set) */
short list[NC];         /* rule 5, per process: etags of begins that are over (a set) */
bool fst[NC], wsm[NC];  /* its claim created the record; its claim took a mark off */
bool did[NC], dirty[NC], unanswered[NC];

/* Ghosts: what really happened. No rule reads them but reconcile's function (the provider's view) and its `settle`. */
byte own = 9, inc;      /* who wrote the claim; which incarnation of the key this record is */
bool lapsed, ran, crashed;      /* lapsed since the last write; an owner came of this claim; a process died */
byte cinc[NC]; bool acts[NC], sup[NC], mine[NC], gone[NC];   /* per owner: incarnation, handler runs, operator took it, move applied, record replaced */
byte eff[NC + 3], clears[NC + 3]; bool freed[NC + 3];       /* per incarnation: effects, operator's releases, freed by abandon */
bool dd1, dd2;          /* an effect of request 1, of request 2 */

bool won, res;          /* the store's verdict; whether there was an answer; both 0 between steps */
hidden byte q, z; hidden int msk;   /* only inside one d_step: a search that backs up does not restore them */

#ifdef V_LATE_AFTER_FREED
bool replaced;          /* a released-as-new record has been replaced */
#define VISIT_REPLACE if :: mark == AS_NEW -> replaced = 1 :: else fi
#define VISIT_LATE assert(!(replaced && dk >= COMPLETE && st == IN_PROGRESS))
#else
#define VISIT_REPLACE skip
#define VISIT_LATE skip
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
#define VISIT_DONE(p) assert(k[p] != ABANDON || pc[p] == SETTLE || st != IN_PROGRESS)
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

#define HAS(set, e) ((e) != 0 && ((set) & (1 << (e))))

inline FRESH(x) {
  msk = 1 | (1 << et) | (1 << oet) | (1 << de) | (1 << dn); q = 0;
  do :: q < NC -> msk = msk | (1 << cur[q]) | (1 << see[q]) | (1 << alt[q]) | (1 << fin[q]) | sent[q] | list[q]; q++
     :: else -> break od;
  q = 1; do :: (msk & (1 << q)) -> q++ :: else -> break od;
  assert(q < 15); x = q; q = 0; msk = 0 }

/* The same etag for a second, different send: what the rule "new for every send" forbids. */
#ifdef M_SAME_ETAG
#define REFRESH(x) skip
#else
#define REFRESH(x) FRESH(x)
#endif

/* Forgets etags that can no longer come to be stored: they change nothing, and histories become equal. */
inline TIDY() { d_step {
  msk = 0;
  if :: et != 0 -> msk = msk | (1 << et) :: else fi;
  if :: dn != 0 -> msk = msk | (1 << dn) :: else fi;
  q = 0; do :: q < NC -> list[q] = list[q] & msk; sent[q] = sent[q] & msk;
                 if :: alt[q] != 0 && !(msk & (1 << alt[q])) -> alt[q] = 0 :: else fi; q++
            :: else -> break od;
  q = 0; msk = 0; won = 0; res = 0 } }

inline NEW_INCARNATION() {
  msk = 1 | (1 << inc); q = 0; do :: q < NC -> msk = msk | (1 << cinc[q]); q++ :: else -> break od;
  q = 1; do :: (msk & (1 << q)) -> q++ :: else -> break od;
  inc = q; eff[q] = 0; clears[q] = 0; freed[q] = 0; q = 0; msk = 0; dd1 = 0; dd2 = 0 }

inline LEAVE() {        /* this incarnation of the record is no more */
  z = 0; do :: z < NC -> if :: cinc[z] == inc -> gone[z] = 1 :: else fi; z++ :: else -> break od; z = 0 }

inline NEW_RECORD(w, n, r) {
  NEW_INCARNATION(); st = IN_PROGRESS; et = n; fp = r; mark = 0; live = 1; exp = 0; first = 1; was = 0;
  own = w; lapsed = 0; ran = 0; won = 1 }

inline NO_RECORD() {
  LEAVE(); st = ABSENT; et = 0; fp = 0; mark = 0; live = 0; exp = 0; first = 0; was = 0; own = 9; lapsed = 0; ran = 0 }

#ifdef M_UNFENCED
#define COMPLETES(e) (st == IN_PROGRESS)
#else
#define COMPLETES(e) (st != ABSENT && et == e)
#endif
#ifdef M_ZOMBIE_ABANDON
#define ABANDONS(e) (st == IN_PROGRESS)
#else
#define ABANDONS(e) (st != ABSENT && et == e)
#endif
#ifdef M_BEAT_KEEPS_ETAG
#define BEAT_ETAG(n) et
#else
#define BEAT_ETAG(n) n
#endif

inline OVER(w, n) {     /* the owner's claim has ended */
  live = 0; lapsed = 0; exp = 0; own = 9; et = n; won = 1; first = 0; was = 0; ran = 0;
  if :: fin[w] == n -> mine[w] = 1; acts[w] = 0 :: else fi }

/* The store: one write, by w, on the etag e, leaving the etag n. Everything is judged here, whoever sent it, and whenever. */
inline APPLY(kk, w, e, n, r, m) {
  won = 0;
  if
  :: kk == INSERT && st == ABSENT -> NEW_RECORD(w, n, r)
  :: kk == REPLACE && st != ABSENT && et == e ->
       assert((st == TERMINAL && exp) || (st == ACCEPTED && mark == AS_NEW));   /* P6 */
       VISIT_REPLACE; LEAVE(); NEW_RECORD(w, n, r)
  :: kk == CLAIM && st != ABSENT && et == e ->
       assert(st == ACCEPTED || (st == IN_PROGRESS && lapsed));                 /* P1, P5 */
       assert(POL != HOLD || mark == BY_OPERATOR);                              /* P5, P7 */
       assert(fp == r);                                                         /* P3 */
       st = IN_PROGRESS; et = n; live = 1; lapsed = 0; own = w; first = 0; ran = 0; won = 1;
#ifdef M_MARK_INHERITED
       was = (was || mark == BY_OPERATOR);
#else
       was = (mark == BY_OPERATOR);
#endif
#ifndef M_MARK_KEPT
       mark = 0
#endif
  :: kk == ADOPT && st != ABSENT && et == e ->
       assert(st == IN_PROGRESS && !ran);                                       /* P1: nobody owns what is adopted */
       assert(fp == r);                                                         /* P3 */
       et = n; live = 1; lapsed = 0; own = w; won = 1
  :: kk == COMPLETE && COMPLETES(e) ->
       assert(st == IN_PROGRESS && own == w);                                   /* P5 */
       st = TERMINAL; mark = 0; OVER(w, n)
  :: kk == SUSPEND && st != ABSENT && et == e ->
       assert(st == IN_PROGRESS && own == w);                                   /* P5 */
       st = ACCEPTED; mark = 0; OVER(w, n)
  :: kk == ABANDON && ABANDONS(e) ->
       assert(st == IN_PROGRESS && (own == w || !ran));                         /* P5; or it settles what nobody owns */
       assert(m != AS_NEW || eff[inc] == 0);                                    /* P10 */
       st = ACCEPTED; mark = m; freed[inc] = (m == AS_NEW); OVER(w, n)
  :: kk == BEAT && st != ABSENT && et == e ->
       assert(st == IN_PROGRESS && own == w);                                   /* P1 */
       et = BEAT_ETAG(n); live = 1; lapsed = 0; won = 1
  :: else -> skip
  fi;
  printf("  store: write %d by %d, expects %d, leaves %d, request %d, mark %d: won %d; state %d etag %d mark %d live %d\n",
         kk, w, e, n, r, m, won, st, et, mark, live) }

inline SEND(p, kk, e, n, m) {
  if
  :: d_step { APPLY(kk, p, e, n, f[p], m); res = 1 }
  :: F > 0 -> d_step { printf("  no answer to:\n"); F--; APPLY(kk, p, e, n, f[p], m); won = 0; res = 0 }             /* applied, answer lost */
  :: F > 0 && dk == 0 -> d_step { printf("  late: write %d by %d, expects %d, leaves %d\n", kk, p, e, n); F--; dk = kk; dw = p; de = e; dn = n; df = f[p]; dm = m; res = 0 }   /* on its way: arrives late, or never */
  :: F > 0 && dk != 0 -> d_step { F--; res = 0 }                                        /* lost */
  fi }

inline RESET(p) {
  pc[p] = IDLE; k[p] = 0; f[p] = 0; cur[p] = 0; see[p] = 0; alt[p] = 0; fin[p] = 0; sent[p] = 0;
  fst[p] = 0; wsm[p] = 0; did[p] = 0; dirty[p] = 0; unanswered[p] = 0;
  cinc[p] = 0; acts[p] = 0; sup[p] = 0; mine[p] = 0; gone[p] = 0 }

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
inline ANSWERED(p) { d_step { printf("  %d is refused or served\n", p); HAND_OVER(p); RESET(p) } }
inline UNANSWERED(p) { d_step {
  printf("  %d ends without an answer\n", p);
  sent[p] = sent[p] | (1 << cur[p]); GIVE_BACK(p);
  list[HOME(p)] = list[HOME(p)] | sent[p]; RESET(p) } }

inline SWAP(p, kk) { d_step { k[p] = kk; see[p] = et; REFRESH(cur[p]) } }

inline BECOME(p) { d_step {
  printf("  %d owns it, incarnation %d, first %d was %d\n", p, inc, first, was);
  cur[p] = et; sent[p] = sent[p] & ~(1 << et); HAND_OVER(p); cinc[p] = inc; acts[p] = 1; ran = 1; fst[p] = first; wsm[p] = was; see[p] = 0; k[p] = 0;
  z = 0; do :: z < NC -> assert(POL != HOLD || z == p || !acts[z] || sup[z]); z++ :: else -> break od; z = 0;    /* P1 */
  if :: POL == RECONCILE && !first && !was -> pc[p] = ASK :: else -> pc[p] = WORK fi } }

/* Rules 0 to 8, on the record as the answer shows it. */
inline DECIDE(p) {
  if
  :: won -> BECOME(p)
#ifndef M_RIVAL
  :: !won && st == IN_PROGRESS && (et == cur[p] || HAS(sent[p], et)) -> BECOME(p)       /* 0 */
#endif
  :: else ->
     if
     :: st == ABSENT -> d_step {
#ifdef M_ABSENCE_SETTLES
          list[HOME(p)] = 0;
#endif
          k[p] = INSERT; see[p] = 0; REFRESH(cur[p]) }           /* 1 */
     :: (st == TERMINAL && exp) || mark == AS_NEW -> SWAP(p, REPLACE)                   /* 3 */
#ifdef M_ACCEPTED_EXPIRES
     :: st == ACCEPTED && exp && mark != AS_NEW -> SWAP(p, REPLACE)
#endif
     :: else ->
        if
#ifdef M_MISMATCH_LATE
        :: fp != f[p] && !(st == IN_PROGRESS && live) -> ANSWERED(p)
        :: st == IN_PROGRESS && live -> assert(fp == f[p]); ANSWERED(p)                 /* P3 */
        :: fp == f[p] && !(st == IN_PROGRESS && live) ->
#else
        :: fp != f[p] -> ANSWERED(p)                                                    /* 4: Mismatch */
        :: else ->
#endif
           if
           :: st == TERMINAL -> ANSWERED(p)                                             /* 5: Replay */
           :: st == IN_PROGRESS && HAS(list[HOME(p)], et) ->                            /* 5: whoever takes it out */
                d_step { VISIT_ADOPT(p); list[HOME(p)] = list[HOME(p)] & ~(1 << et) }; SWAP(p, ADOPT)
           :: else ->
              assert(et != cur[p] && !HAS(sent[p], et));                                /* P13: not told of itself */
              if
              :: mark == BY_OPERATOR -> SWAP(p, CLAIM)                                  /* 6 */
              :: mark != BY_OPERATOR && st == IN_PROGRESS && live -> ANSWERED(p)        /* 7: InProgress */
              :: mark != BY_OPERATOR && !(st == IN_PROGRESS && live) ->                 /* 8 */
                 if :: POL == HOLD -> ANSWERED(p) :: else -> SWAP(p, CLAIM) fi
              fi
           fi
        fi
     fi
  fi }

/* What an abandon leaves: a record any request may replace, or the record as the claim found it. */
#ifdef M_SECOND_ABANDON_FREES
#define LEFT(p) (AS_NEW)
#else
#ifdef M_TOUCHED_FREES
#define LEFT(p) (fst[p] -> AS_NEW : (wsm[p] -> BY_OPERATOR : 0))
#else
#define LEFT(p) ((fst[p] && !dirty[p]) -> AS_NEW : ((wsm[p] && !dirty[p]) -> BY_OPERATOR : 0))
#endif
#endif

inline EFFECT(p) { d_step {
  printf("  EFFECT by %d, request %d, incarnation %d\n", p, f[p], cinc[p]);
  did[p] = 1; dirty[p] = 1; eff[cinc[p]]++;
  if :: gone[p] -> skip :: !gone[p] && f[p] == 1 -> dd1 = 1 :: !gone[p] && f[p] == 2 -> dd2 = 1 fi;
  assert(POL == RERUN || eff[cinc[p]] <= 1 + clears[cinc[p]]);                          /* P7 */
  assert(!freed[cinc[p]]);                                                              /* P10 */
  assert(!(dd1 && dd2)) } }                                                             /* P3 */

inline TERMINAL_MOVE(p, kk) { d_step { k[p] = kk; FRESH(fin[p]); unanswered[p] = 0; pc[p] = MOVE } }

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
  :: res && (won || et == fin[p]) -> d_step { RESET(p) }
  :: res && !won && et != fin[p] ->
       if
       :: alt[p] != 0 && et == alt[p] -> d_step { cur[p] = alt[p]; alt[p] = 0; FRESH(fin[p]) }  /* no loss: again, on top of it */
       :: else ->
            if
            :: pc[p] == SETTLE || (k[p] != COMPLETE && unanswered[p]) -> VISIT_DONE(p)   /* finds another's record, or none: done */
            :: else -> VISIT_LOST(p);                                           /* OwnershipLost */
                 assert(!mine[p] || sup[p] || gone[p]);                         /* P13 */
                 assert(POL != HOLD || sup[p] || gone[p])                       /* P5: under hold only an operator takes */
            fi;
            d_step { RESET(p) }
       fi
  fi }

/* Reconcile may run what the provider does not know only when no earlier owner can still act: that is what `settle` waits for. */
inline SETTLED(p) { d_step {
  res = 1; z = 0;
#ifndef M_NO_SETTLE
  do :: z < NC -> if :: z != p && acts[z] && cinc[z] == cinc[p] -> res = 0 :: else fi; z++ :: else -> break od; z = 0
#endif
  } }

proctype Caller(byte p) {
end:
  do
  :: atomic { pc[p] == IDLE && B > 0 -> B--;
       if :: f[p] = 1 :: FP == 2 && p == NC - 1 -> f[p] = 2 fi;
       d_step { FRESH(cur[p]); k[p] = INSERT; pc[p] = BEGIN } }
  :: atomic { pc[p] == IDLE && B > 0 && st == IN_PROGRESS && HAS(list[HOME(p)], et) ->
       d_step { B--; list[HOME(p)] = list[HOME(p)] & ~(1 << et); cur[p] = et; f[p] = fp; fst[p] = first; wsm[p] = was;
                cinc[p] = inc; k[p] = ABANDON; FRESH(fin[p]); pc[p] = SETTLE } }
  :: atomic { pc[p] == BEGIN ->
       SEND(p, k[p], see[p], cur[p], 0);
       if
       :: res == 0 && k[p] != INSERT -> skip                                    /* the identical swap again, */
#ifdef M_SAME_ETAG
       :: res == 0 && k[p] == INSERT -> skip
#endif
       :: res == 0 -> d_step {                                                  /* or it asks anew, and remembers, */
            sent[p] = sent[p] | (1 << cur[p]); GIVE_BACK(p); k[p] = INSERT; see[p] = 0; FRESH(cur[p]) }
       :: res == 0 -> UNANSWERED(p)                                             /* or it ends */
       :: res -> DECIDE(p)
       fi; TIDY() }
  :: atomic { pc[p] == WORK && H > 0 -> H--; d_step { if :: alt[p] == 0 -> FRESH(alt[p]) :: else fi };
       SEND(p, BEAT, cur[p], alt[p], 0);
       d_step { if :: res && (won || et == alt[p]) -> cur[p] = et; alt[p] = 0 :: else fi }; TIDY() }
  :: atomic { pc[p] == WORK && !did[p] -> EFFECT(p) }
  :: atomic { pc[p] == WORK ->
       if
       :: TERMINAL_MOVE(p, COMPLETE)
       :: S > 0 -> S--; TERMINAL_MOVE(p, SUSPEND)
       :: A > 0 -> A--; if :: skip :: dirty[p] = 1 fi; TERMINAL_MOVE(p, ABANDON)        /* touched with or without an effect */
       fi }
  :: atomic { pc[p] == ASK -> SETTLED(p);
       if
       :: eff[cinc[p]] > 0 -> TERMINAL_MOVE(p, COMPLETE)
       :: eff[cinc[p]] == 0 && res -> pc[p] = CONFIRM
       :: eff[cinc[p]] == 0 && !res -> TERMINAL_MOVE(p, ABANDON)                          /* not yet */
       :: S > 0 -> S--; TERMINAL_MOVE(p, ABANDON)                                       /* unknown */
       fi; res = 0 }
  :: atomic { pc[p] == CONFIRM -> d_step { if :: alt[p] == 0 -> FRESH(alt[p]) :: else fi };
       SEND(p, BEAT, cur[p], alt[p], 0);
       d_step { if :: res && (won || et == alt[p]) -> cur[p] = et; alt[p] = 0; pc[p] = WORK
                   :: res && !(won || et == alt[p]) -> RESET(p)
                   :: !res -> skip fi }; TIDY() }
  :: atomic { pc[p] == CONFIRM && S > 0 -> S--; TERMINAL_MOVE(p, SUSPEND) }
  :: atomic { pc[p] == MOVE || pc[p] == SETTLE -> SEND(p, k[p], cur[p], fin[p], LEFT(p)); MOVED(p); TIDY() }
  od }

inline CRASH(h) { d_step {
  printf("  process %d dies\n", h); crashed = 1; list[h] = 0; z = 0;
  do :: z < NC -> if :: HOME(z) == h -> RESET(z) :: else fi; z++ :: else -> break od; z = 0 } }

inline PURGE() { assert((st == TERMINAL && exp) || (st == ACCEPTED && mark == AS_NEW)); NO_RECORD() }     /* P6 */

proctype World() {
  bool seen;
end:
  do
  /* the clock */
  :: atomic { st == IN_PROGRESS && live -> d_step { live = 0; lapsed = 1 } }
  :: atomic { st == IN_PROGRESS && !live && J > 0 -> J--; live = 1 }
  :: atomic { st == TERMINAL && !exp && X > 0 -> X--; exp = 1 }
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
  /* the network */
  :: atomic { dk != 0 -> d_step { VISIT_LATE; APPLY(dk, dw, de, dn, df, dm); dk = 0; dw = 0; de = 0; dn = 0; df = 0; dm = 0 }; TIDY() }
  :: atomic { dk != 0 -> d_step { dk = 0; dw = 0; de = 0; dn = 0; df = 0; dm = 0 }; TIDY() }
  /* the operator: is shown a record, later acts on that etag */
  :: atomic { oet == 0 && O > 0 && ((st == ACCEPTED && mark != AS_NEW) || (st == IN_PROGRESS && !live)
#ifdef FORCE
                                    || (st == IN_PROGRESS && live) || st == TERMINAL
#endif
                                    ) -> O--; oet = et }
  :: atomic { oet != 0 ->
       if
       :: et != oet -> skip
       :: et == oet -> d_step { st = ACCEPTED; mark = BY_OPERATOR; clears[inc]++ }
       :: et == oet -> d_step { st = TERMINAL; mark = 0 }
       fi;
       d_step {
         if :: et == oet -> live = 0; exp = 0; first = 0; was = 0; own = 9; lapsed = 0; ran = 0; oet = 0; FRESH(et);
                 z = 0; do :: z < NC -> if :: cinc[z] == inc -> sup[z] = 1 :: else fi; z++ :: else -> break od; z = 0
            :: else fi;
         oet = 0; printf("  operator: state %d etag %d mark %d\n", st, et, mark) }; TIDY() }
  /* deaths */
  :: atomic { C > 0 -> C--; if :: CRASH(0) :: NC > 2 || HOME(1) == 1 -> CRASH(1) fi; TIDY() }
  od }

proctype Final() {
  timeout ->
    assert(!(st == IN_PROGRESS && live));                                       /* P7: what is open is visible as unresolved */
    d_step { z = 0; q = 0; do :: z < NC -> q = q | HAS(list[z], et); z++ :: else -> break od;
             assert(st != IN_PROGRESS || ran || crashed || q) } }                          /* P13: no begin leaves an owner behind */

init { atomic {
  byte i = 0; do :: i < NC -> run Caller(i); i++ :: else -> break od;
  run World(); run Final() } }
