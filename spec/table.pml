/* The rules as rows. The model runs them as they stand; the tests read them and compare each with the code.

   DECIDES: what a begin does after an answer of the store. The first row that fits decides; ANY fits everything.
   The columns: the stored state · is its etag one that this begin sent · has it expired · its mark · is it the same request (or
   was its fingerprint made by an unknown recipe) · is its etag on the process's list · is it within its lease · the stored policy ·
   the caller's policy · are attempts or time of `rerun` used up · is it marked atomic · does it keep an answer · is it to be
   left alone for a while · has the caller a function to ask. */

/*      state        ours over mark         request  listed live stored     asked      spent atomic kept paused asks   decision */
DECIDES(ABSENT,      ANY, ANY, ANY,         ANY,     ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   INSERTS)    /* 1 */
DECIDES(UNREADABLE,  ANY, ANY, ANY,         ANY,     ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   REFUSED)    /* 2 */
DECIDES(IN_PROGRESS, YES, ANY, ANY,         ANY,     ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   OWNS)       /* 0 */
DECIDES(ANY,         ANY, ANY, AS_NEW,      ANY,     ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   REPLACES)   /* 3 */
DECIDES(TERMINAL,    ANY, YES, ANY,         ANY,     ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   REPLACES)   /* 3 */
DECIDES(ANY,         ANY, ANY, ANY,         UNKNOWN, ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   REFUSED)    /* 4 */
DECIDES(ANY,         ANY, ANY, ANY,         OTHER,   ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   MISMATCHED) /* 4 */
DECIDES(TERMINAL,    ANY, ANY, ANY,         ANY,     ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   REPLAYED)   /* 5 */
DECIDES(IN_PROGRESS, ANY, ANY, ANY,         ANY,     YES,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   ADOPTS)     /* 5 */
DECIDES(ANY,         ANY, ANY, BY_OPERATOR, ANY,     ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   CLAIMS)     /* 6 */
DECIDES(IN_PROGRESS, ANY, ANY, ANY,         ANY,     ANY,   YES, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   WAITS)      /* 7 */
DECIDES(ANY,         ANY, ANY, ANY,         ANY,     ANY,   ANY, ANY,       ANY,       ANY,  YES,   NO,  YES,   ANY,   WAITS)      /* 8 */
DECIDES(ANY,         ANY, ANY, ANY,         ANY,     ANY,   ANY, ANY,       ANY,       ANY,  YES,   NO,  NO,    ANY,   CLAIMS)     /* 8 */
DECIDES(ANY,         ANY, ANY, ANY,         ANY,     ANY,   ANY, RERUN,     RERUN,     NO,   ANY,   ANY, YES,   ANY,   WAITS)      /* 8 */
DECIDES(ANY,         ANY, ANY, ANY,         ANY,     ANY,   ANY, RERUN,     RERUN,     NO,   ANY,   ANY, NO,    ANY,   CLAIMS)     /* 8 */
DECIDES(ANY,         ANY, ANY, ANY,         ANY,     ANY,   ANY, RERUN,     RECONCILE, ANY,  ANY,   ANY, NO,    YES,   ASKS)       /* 8 */
DECIDES(ANY,         ANY, ANY, ANY,         ANY,     ANY,   ANY, RECONCILE, RERUN,     ANY,  ANY,   ANY, NO,    YES,   ASKS)       /* 8 */
DECIDES(ANY,         ANY, ANY, ANY,         ANY,     ANY,   ANY, RECONCILE, RECONCILE, ANY,  ANY,   ANY, NO,    YES,   ASKS)       /* 8 */
DECIDES(ACCEPTED,    ANY, ANY, ANY,         ANY,     ANY,   ANY, ANY,       ANY,       ANY,  ANY,   YES, ANY,   ANY,   REPLAYED)   /* 8 */
DECIDES(ANY,         ANY, ANY, ANY,         ANY,     ANY,   ANY, ANY,       ANY,       ANY,  ANY,   ANY, ANY,   ANY,   HELD)       /* 8 */

/* LEAVES: what a write leaves, by what its claim knows: did it create the record · was anything begun under it · did it take
   an operator's mark off. CLAIM is that of rules 6 and 8, REPLACE and INSERT are those of rules 1 and 3. */

/*     write       created touched mark was   state        mark         answer   recovery point */
LEAVES(INSERT,     ANY,    ANY,    ANY,       IN_PROGRESS, NONE,        DROPPED, DROPPED)
LEAVES(REPLACE,    ANY,    ANY,    ANY,       IN_PROGRESS, NONE,        DROPPED, DROPPED)
LEAVES(CLAIM,      ANY,    ANY,    ANY,       IN_PROGRESS, NONE,        DROPPED, STAYS)
LEAVES(ADOPT,      YES,    ANY,    ANY,       IN_PROGRESS, NONE,        DROPPED, DROPPED)
LEAVES(ADOPT,      NO,     ANY,    YES,       ACCEPTED,    BY_OPERATOR, DROPPED, STAYS)
LEAVES(ADOPT,      NO,     ANY,    NO,        ACCEPTED,    NONE,        DROPPED, STAYS)
LEAVES(BEAT,       ANY,    ANY,    ANY,       IN_PROGRESS, NONE,        DROPPED, STAYS)
LEAVES(CHECKPOINT, ANY,    ANY,    ANY,       IN_PROGRESS, NONE,        DROPPED, KEPT)
LEAVES(COMPLETE,   ANY,    ANY,    ANY,       TERMINAL,    NONE,        KEPT,    STAYS)
LEAVES(SUSPEND,    ANY,    ANY,    ANY,       ACCEPTED,    NONE,        DROPPED, STAYS)
LEAVES(ANSWER,     ANY,    ANY,    ANY,       ACCEPTED,    NONE,        KEPT,    STAYS)
LEAVES(FORGET,     ANY,    ANY,    ANY,       ACCEPTED,    NONE,        DROPPED, STAYS)
LEAVES(PUT_BACK,   ANY,    ANY,    ANY,       ACCEPTED,    NONE,        DROPPED, STAYS)
LEAVES(ABANDON,    YES,    NO,     ANY,       ACCEPTED,    AS_NEW,      DROPPED, STAYS)
LEAVES(ABANDON,    NO,     NO,     YES,       ACCEPTED,    BY_OPERATOR, DROPPED, STAYS)
LEAVES(ABANDON,    ANY,    ANY,    ANY,       ACCEPTED,    NONE,        DROPPED, STAYS)
LEAVES(DISOWN,     YES,    ANY,    ANY,       ACCEPTED,    AS_NEW,      DROPPED, STAYS)
LEAVES(DISOWN,     NO,     ANY,    YES,       ACCEPTED,    BY_OPERATOR, DROPPED, STAYS)
LEAVES(DISOWN,     NO,     ANY,    NO,        ACCEPTED,    NONE,        DROPPED, STAYS)
LEAVES(RESOLVE,    ANY,    ANY,    ANY,       TERMINAL,    NONE,        KEPT,    STAYS)
LEAVES(RELEASE,    ANY,    ANY,    ANY,       ACCEPTED,    BY_OPERATOR, DROPPED, STAYS)
LEAVES(RESTART,    ANY,    ANY,    ANY,       ACCEPTED,    BY_OPERATOR, DROPPED, DROPPED)

/* KEEPS: which policy, and whether the mark "atomic", a record keeps when it is taken over: only a taker whose end is committed
   with its rows, too, leaves the proof that an unfinished record gives. */

/*    atomic taker's stored     asked      policy     atomic */
KEEPS(NO,    ANY,    ANY,       ANY,       STAYS,     NO)
KEEPS(YES,   YES,    ANY,       ANY,       STAYS,     YES)
KEEPS(YES,   NO,     HOLD,      ANY,       HOLD,      NO)
KEEPS(YES,   NO,     ANY,       HOLD,      HOLD,      NO)
KEEPS(YES,   NO,     RECONCILE, ANY,       RECONCILE, NO)
KEEPS(YES,   NO,     ANY,       RECONCILE, RECONCILE, NO)
KEEPS(YES,   NO,     RERUN,     RERUN,     RERUN,     NO)

/* PROVES: whether an unfinished record that was marked "atomic" still is, after its owner's last move: not if its handler was left
   without one, for then its rows may be committed. The model's handlers have no such fault. */

/*     write    atomic */
PROVES(SUSPEND, YES)
PROVES(ANSWER,  YES)
PROVES(FORGET,  NO)
PROVES(ABANDON, YES)

/* FOLLOWS: which state may follow which by a swap on the same record. */
FOLLOWS(IN_PROGRESS, IN_PROGRESS)
FOLLOWS(IN_PROGRESS, ACCEPTED)
FOLLOWS(IN_PROGRESS, TERMINAL)
FOLLOWS(ACCEPTED,    IN_PROGRESS)
FOLLOWS(ACCEPTED,    ACCEPTED)
FOLLOWS(ACCEPTED,    TERMINAL)
FOLLOWS(TERMINAL,    ACCEPTED)
FOLLOWS(TERMINAL,    TERMINAL)
