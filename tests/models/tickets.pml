// SPDX-License-Identifier: Apache-2.0
//
// Tickets: the workers of a feed fill its batches in slots, and a consumer receives them in their order. A
// worker takes a slot (lend) and then a ticket: it writes the ticket into the slot's word, and the slot into
// the entry of the ticket; then it, or any other worker, moves `given` on. It settles the ticket by one
// exchange of the word (publish). A round is an epoch, or what is left of one: the consumer begins the next
// one at any time, wherever the workers are. Its first ticket is its base. Tickets below the base are past:
// nobody wants their results, and their slots are given back by whoever comes second, the consumer that has
// changed the base and looks at the words, or the worker that has changed the word and looks at the base.
// A failure ends its round: `failed` then says that there are no more tickets. The consumer may give a ticket
// to another slot while its worker hangs (abandon). Worker 0, a process, may die at any step; a supervisor
// then asks for its ticket again, or settles it as failed. Events are as in the code: announce, look, sleep.
// One step are: the reads of the fields of a round, which its version guards; a look for a free slot; the
// release of a slot and its event.
//
// Law: the consumer gets each ticket of its round once and in order until the round fails or ends, and gets
// no result of another round. A worker that took its ticket by what it knew of an earlier round has one that
// is past. No two workers write a slot. What an abandoned worker publishes has no effect. No process sleeps
// that could continue, and in the end all slots are free.
// variant: ROUNDS holds
// variant: ABANDONS holds
// variant: DEATHS holds
// variant: TIGHT holds
// variant: BOTH holds soak
//
// TIGHT has one slot. BOTH has an abandoned ticket and a death; there the consumer leaves no round early.
//
// BASE_NEXT makes the base the number after the last one.
// variant: BASE_NEXT refuted assertion
// BASE_EARLY helps and reads the last number before takers can see that the round changes.
// variant: BASE_EARLY refuted assertion
// CHECK_ONCE does not look at the version again after the last number was read.
// variant: CHECK_ONCE refuted assertion
// PUBLISH_BLIND publishes without a compare.
// variant: PUBLISH_BLIND refuted assertion
// ENTRY_FIRST changes the entry of an abandoned ticket before its word.
// variant: ENTRY_FIRST refuted assertion
// ASKED_EARLY fills an asked ticket for the round that was read before the ticket was taken.
// variant: ASKED_EARLY refuted assertion
// LOOK_FIRST has the consumer look before it announces that it will sleep.
// variant: LOOK_FIRST refuted deadlock
// NOTE_FIRST notes the failure before it is there: the ticket may be abandoned between.
// variant: NOTE_FIRST refuted deadlock
// LIMIT_SUNK notes a failure in the limit: a late worker takes the limit of the next round for its own.
// variant: LIMIT_SUNK refuted deadlock
// PAST_KEPT has a worker not look at the base after it has published.
// variant: PAST_KEPT refuted assertion
// SCAN_FIRST looks for slots of past tickets before the base is changed.
// variant: SCAN_FIRST refuted assertion
// ASK_BLIND asks again for the ticket in the word of a dead worker without a look at the entry.
// variant: ASK_BLIND refuted assertion
// ASK_KEPT has the supervisor not look at the base after it has asked.
// variant: ASK_KEPT refuted assertion
// LAST_KEPT has the supervisor give back only what the dead worker held, not past tickets.
// variant: LAST_KEPT refuted assertion
// CLEAN_ONCE has the supervisor not look again at a word that has changed meanwhile.
// variant: CLEAN_ONCE refuted assertion
// QUIET does not wake workers when a slot is free.
// variant: QUIET refuted deadlock

#ifdef NOTE_FIRST
#define ABANDONS
#define FAILS
#endif
#if defined(ROUNDS) || defined(LIMIT_SUNK)
#define FAILS
#endif
#if defined(PUBLISH_BLIND) || defined(ENTRY_FIRST) || defined(ASKED_EARLY)
#define ABANDONS
#endif
#if defined(LAST_KEPT) || defined(ASK_BLIND) || defined(ASK_KEPT)
#define DEATHS
#endif
#if defined(BOTH) || defined(CLEAN_ONCE)
#define ABANDONS
#define DEATHS
#endif
#if defined(ABANDONS) || defined(DEATHS)
#define ASKS
#endif

#if defined(TIGHT) || defined(QUIET)
#define SLOTS 1
#else
#define SLOTS 2
#endif
#define RING SLOTS
#define NONE 9
#define DIRTY 127
#define FAILED 64            // of a result, with the ticket
#define C 2                  // the consumer, as a holder

#define FREE 0
#define HELD 1
#define READY 2
#define ASKED 3
#define LEFT 4
// A word and an entry as one number, so that a compare is one step
#define W(k, p, n) ((k) + 8 * (p) + 32 * (n))
#define KIND(w) ((w) & 7)
#define HOLDER(w) (((w) >> 3) & 3)
#define NUMBER(w) ((w) >> 5)
#define E(n, s) ((n) * 4 + (s))
#define OF(e) ((e) >> 2)
#define SLOT(e) ((e) & 3)
// The right result of a place of a round
#define VALUE(v, place) ((v) * 2 + (place))
#define VERSION(value) ((value) / 4 * 2)

// The memory
short word[SLOTS];
byte entry[RING] = 3;        // of no ticket
byte given = 1;
byte version = 2;            // odd while the round changes
byte base = 2;
byte limit;                  // no ticket from here on
byte failed;                 // the last ticket that has failed
byte data[SLOTS];            // what was filled in, or the record of a failure
bool stopped;
bool woken[3];               // events

#ifdef LIMIT_SUNK
#define LENGTH 3
#else
#define LENGTH 2
#endif
byte length = LENGTH;        // of the first round; then 1
#ifdef FAILS
byte failures = 1;
#else
byte failures = 0;
#endif
byte deaths = 1;
bool dead;                   // worker 0

// For the law
byte writer[SLOTS] = NONE;

#ifdef DEATHS
#define MAY_DIE :: atomic { p == 0 && deaths > 0 -> goto die }
#else
#define MAY_DIE
#endif
#define STEP(...) if MAY_DIE :: atomic { true; __VA_ARGS__ } fi

#define WAKE_WORKERS woken[0] = true; woken[1] = true
#ifdef QUIET
#define SIGNAL_ROOM skip
#else
#define SIGNAL_ROOM WAKE_WORKERS
#endif
#define RELEASE(s) word[s] = FREE; data[s] = 0; SIGNAL_ROOM

// Ticket t has failed. It is given, so all before it are: no more tickets in its round.
#ifdef LIMIT_SUNK
inline note_failed() {
  do
  :: STEP(k = limit);
     STEP(b = base);
     STEP(
       if
       :: t < b || k <= t + 1 -> k = 0; b = 0; break
       :: t >= b && k > t + 1 && limit == k -> limit = t + 1; k = 0; b = 0; break
       :: else -> k = 0; b = 0
       fi
     )
  od
}
#else
#define RAISE_FAILED failed = (failed < t -> t : failed)
inline note_failed() { STEP(RAISE_FAILED) }
#endif
// A result that is there has its ticket from this round, or is past
#define IS_TIMELY (t < base || (version & 1) || VERSION(value) == version)

inline begin_fill(new) {
  s = new;
  assert(writer[s] == NONE);
  writer[s] = p;
  data[s] = DIRTY;
  to = 0;
  value = VALUE(v, t - from);
  from = 0;
  v = 0
#ifdef FAILS
  ;
  if
  :: true
  :: failures > 0 -> failures--; fails = true
  fi
#endif
}

proctype worker(byte p) {
  byte s = NONE, v, from, to, t, e, k, b, value;
  bool past, fails;
again:
  STEP(woken[p] = false);
look:
  STEP(                           // the version guards the fields of a round, so they are one step
    v = version;
    from = base;
    to = limit;
    e = failed;
    if
    :: stopped -> goto over
    :: !stopped && (v & 1) -> goto none
    :: else
    fi
  );
  STEP(t = (e >= from -> 200 : given + 1); e = 0);
#ifndef CHECK_ONCE
  STEP(
    if
    :: version != v -> v = 0; from = 0; to = 0; t = 0; goto look
    :: else
    fi
  );
#endif
#ifdef ASKS
#define MAY_TAKE(i) (KIND(word[i]) == ASKED && NUMBER(word[i]) >= from && NUMBER(word[i]) < to)
#define TAKE(i) t = NUMBER(word[i]); word[i] = W(HELD, p, t); s = i
  if
  :: s == NONE ->
     STEP(
       if
       :: MAY_TAKE(0) -> TAKE(0)
#if SLOTS == 2
       :: !MAY_TAKE(0) && MAY_TAKE(1) -> TAKE(1)
#endif
       :: else
       fi
     );
     if
     :: s != NONE ->
#ifndef ASKED_EARLY
        // Only now is it sure that a round whose base is not after the ticket is that of the ticket.
        STEP(v = version; from = base; past = (v & 1) || t < from);
        if
        :: past -> v = 0; from = 0; to = 0; goto give_back
        :: else
        fi;
#endif
        begin_fill(s);
        goto fill
     :: else
     fi
  :: else
  fi;
#endif
  if
  :: t >= to -> goto none
  :: t < to && s == NONE ->
     STEP(
       t = 0; v = 0; from = 0; to = 0;
       if
       :: word[0] == FREE -> s = 0
#if SLOTS == 2
       :: word[0] != FREE && word[1] == FREE -> s = 1
#endif
       :: else -> goto none
       fi;
       word[s] = W(HELD, p, 0);
       goto look
     )
  :: else
  fi;
  STEP(
    e = entry[t % RING];
    if
    :: OF(e) < t -> word[s] = W(HELD, p, t)                                             // T1
    :: else
    fi
  );
  if
  :: OF(e) < t ->
     STEP(                                                                              // T2
       if
       :: entry[t % RING] == e -> entry[t % RING] = E(t, s); begin_fill(s)
#if SLOTS == 2
       :: else -> v = 0; from = 0; to = 0; t = 0; e = 0; goto look
#endif
       fi;
       e = 0
     );
#if SLOTS == 2
  :: else -> v = 0; from = 0; to = 0; e = 0
#endif
  fi;
  STEP(given = (given == t - 1 -> t : given));                                          // T3, or help
  if :: value == 0 -> t = 0; goto look :: else fi;
fill:
#ifdef NOTE_FIRST
  if :: fails -> note_failed() :: else fi;
#endif
  STEP(                                                                                 // P1, P2
    assert(writer[s] == p);
    writer[s] = NONE;
    data[s] = (fails -> FAILED + t : value);
#ifdef ABANDONS
    past = word[s] != W(HELD, p, t);  // then it was abandoned
    assert(!past || word[s] == W(LEFT, p, t));
#ifdef PUBLISH_BLIND
    past = false;
#endif
    if
    :: !past -> word[s] = W(READY, 0, t)
    :: else
    fi;
#else
    assert(word[s] == W(HELD, p, t));
    word[s] = W(READY, 0, t);
#endif
    assert(past || IS_TIMELY);
    value = 0
  );
#ifdef ASKS
  if
  :: past ->
give_back:
     STEP(RELEASE(s); past = false)
  :: else ->
#endif
#if defined(FAILS) && !defined(NOTE_FIRST)
     if :: fails -> note_failed() :: else fi;
#endif
     STEP(
#ifdef PAST_KEPT
       woken[C] = true
#else
       if :: t < base -> past = true :: else -> woken[C] = true fi
#endif
     );
     if
     :: past -> STEP(if :: word[s] == W(READY, 0, t) -> RELEASE(s) :: else fi; past = false)
     :: else
     fi
#ifdef ASKS
  fi
#endif
  ;
  t = 0;
  s = NONE;
  fails = false;
  goto again;
none:
  v = 0; from = 0; to = 0; t = 0;
  if
  :: s != NONE -> STEP(RELEASE(s); s = NONE)
  :: else
  fi;
  if
  MAY_DIE
  :: woken[p]
  fi;
  goto again;
over:
  v = 0; from = 0; to = 0; t = 0;
  if :: s != NONE -> STEP(RELEASE(s); s = NONE) :: else fi;
  goto gone;
#ifdef DEATHS
  atomic {
    false;
die:
    deaths = 0;
    dead = true;
    if
    :: s != NONE && writer[s] == p -> writer[s] = NONE
    :: else
    fi;
    s = NONE; v = 0; from = 0; to = 0; t = 0; e = 0; k = 0; b = 0; value = 0; past = false; fails = false
  }
#endif
gone:
  skip
}

#undef MAY_DIE
#define MAY_DIE

#ifdef DEATHS
// Gives back what worker 0 had
proctype supervisor() {
  byte i, t;
  short w;
  bool past, own;
end_idle:
  dead;
  do
  :: i < SLOTS ->
     atomic {
       w = word[i];
       t = NUMBER(w);
       if
#ifndef LAST_KEPT
       :: KIND(w) == READY && t < base -> RELEASE(i); w = 0  // it died before it has looked at the base
#endif
#ifdef LAST_KEPT
       :: HOLDER(w) != 0 || (KIND(w) != HELD && KIND(w) != LEFT) -> w = 0
#else
       :: HOLDER(w) != 0 || KIND(w) == FREE || KIND(w) == ASKED || (KIND(w) == READY && t >= base) -> w = 0
#endif
       :: else
       fi
     };
     if
     :: w != 0 ->
#ifdef ASK_BLIND
        own = KIND(w) == HELD && t != 0;
#else
        own = KIND(w) == HELD && t != 0 && entry[t % RING] == E(t, i);
#endif
        if
        :: !own ->
           atomic { if :: word[i] == w -> RELEASE(i); w = 0 :: else fi }
        :: own ->                           // attempts are left
           atomic { if :: word[i] == w -> word[i] = W(ASKED, 0, t); w = 0 :: else fi };
#ifndef ASK_KEPT
           past = w == 0 && t < base;
           if
           :: past -> atomic { if :: word[i] == W(ASKED, 0, t) -> RELEASE(i) :: else fi }
           :: else
           fi
#endif
        :: own ->                           // none is left
           atomic {
             if
             :: word[i] == w -> data[i] = FAILED + t; word[i] = W(READY, 0, t); w = 0
             :: else
             fi
           };
           if :: w == 0 -> RAISE_FAILED :: else fi;
           past = w == 0 && t < base;
           if
           :: past -> atomic { if :: word[i] == W(READY, 0, t) -> RELEASE(i) :: else fi }
           :: else
           fi
        fi;
        past = false;
        own = false
     :: else
     fi;
     t = 0;
#ifdef CLEAN_ONCE
     w = 0;
#endif
#ifdef ABANDONS
     if
     :: w == 0 -> i++
     :: else -> w = 0                       // the word has changed: look again
     fi
#else
     assert(w == 0);
     i++
#endif
  :: else -> break
  od;
  i = 0;
  atomic { WAKE_WORKERS; woken[C] = true }
}
#endif

#define IS_PAST(i) ((KIND(word[i]) == READY || KIND(word[i]) == ASKED) && NUMBER(word[i]) < base)
inline give_back_past() {
  atomic { if :: IS_PAST(0) -> RELEASE(0) :: else fi }
#if SLOTS == 2
  ;
  atomic { if :: IS_PAST(1) -> RELEASE(1) :: else fi }
#endif
}
// It has a ticket of this round that was delivered from another slot
#define IS_SECOND(s) (KIND(word[s]) == READY && NUMBER(word[s]) >= base && NUMBER(word[s]) <= passed)

// Whether the consumer may leave a round that has not ended
#ifdef SCAN_FIRST
#define MAY_LEAVE true
#else
#define MAY_LEAVE length == LENGTH
#endif
proctype consumer() {
  byte t, e, g, s = NONE, passed = 1;
  short w;
#ifdef NOTE_FIRST
#define HANGS failed == t
#else
#define HANGS true
#endif
#ifdef ABANDONS
  bool may_abandon = true;
#endif
again:
#ifndef LOOK_FIRST
  woken[C] = false;
#endif
  atomic {
    t = passed + 1;
    if
    :: t == base + length -> goto change
    :: t != base + length && OF(entry[t % RING]) == t -> e = entry[t % RING]; w = word[SLOT(e)]
    :: else
    fi;
    if
    :: w != 0 && w == W(READY, 0, t) ->
       if
#if defined(FAILS) || defined(DEATHS)
       :: data[SLOT(e)] & FAILED ->         // it stays there until the round is over
          assert(data[SLOT(e)] == FAILED + t);
          w = 0; e = 0;
          goto change
#endif
       :: else ->
          s = SLOT(e);
          assert(data[s] == VALUE(version, t - base));
          word[s] = W(HELD, C, t);
          passed = t;
          assert(!IS_SECOND(0));
#if SLOTS == 2
          assert(!IS_SECOND(1));
#endif
          w = 0; e = 0
       fi
    :: else
    fi
  };
  if
  :: s != NONE ->
     atomic {
       assert(writer[s] == NONE && data[s] == VALUE(version, t - base) && word[s] == W(HELD, C, t));
       t = 0;
       RELEASE(s);
       s = NONE;
       goto again
     }
#ifdef ABANDONS
  :: s == NONE && may_abandon && HANGS && KIND(w) == HELD && NUMBER(w) == t ->
     may_abandon = false;
#ifndef ENTRY_FIRST
     atomic {                                                                           // A1
       if
       :: word[SLOT(e)] == w -> word[SLOT(e)] = W(LEFT, HOLDER(w), t); w = 0
       :: else -> w = 0; e = 0; t = 0; goto again
       fi
     };
#endif
     atomic {
       if
       :: word[0] == FREE -> s = 0
       :: word[0] != FREE && word[1] == FREE -> s = 1
       :: else ->
          w = 0; e = 0;
#ifdef ENTRY_FIRST
          t = 0;
          goto again
#else
          goto change                       // without a slot, the ticket has failed
#endif
       fi;
       word[s] = W(HELD, C, t)
     };
     atomic { assert(entry[t % RING] == e); entry[t % RING] = E(t, s) };                // A2
#ifdef ENTRY_FIRST
     atomic { if :: word[SLOT(e)] == w -> word[SLOT(e)] = W(LEFT, HOLDER(w), t) :: else fi; w = 0 };
#endif
     atomic { word[s] = W(ASKED, 0, t); SIGNAL_ROOM; s = NONE; e = 0; t = 0; goto again }  // A3
#endif
  :: else
  fi;
  atomic { w = 0; e = 0; t = 0 };
#if !defined(NOTE_FIRST) && !defined(BOTH)
  if
  :: true
  :: MAY_LEAVE -> goto change
  fi;
#endif
#ifdef LOOK_FIRST
  woken[C] = false;
#endif
  woken[C];
  goto again;
change:
  t = 0;
#ifdef BASE_EARLY
  atomic { g = given; g = (OF(entry[(g + 1) % RING]) == g + 1 -> g + 1 : g); given = g };
#endif
#ifdef SCAN_FIRST
  give_back_past();
#endif
  version++;
#ifndef BASE_EARLY
  g = given;
#endif
#ifdef BASE_NEXT
  base = g + 1;
#else
  base = g + 2;
#endif
  given = base - 1;
  atomic {
    passed = base - 1;
    g = 0;
    if
#ifndef NOTE_FIRST
    :: length == LENGTH -> length = 1; limit = base + length
#endif
    :: else -> stopped = true
    fi;
    version++
  };
#ifndef SCAN_FIRST
  give_back_past();
#endif
  atomic { WAKE_WORKERS; if :: !stopped -> goto again :: else fi }
}

init {
  atomic {
    limit = base + length;
    run worker(0);
    run worker(1);
#ifdef DEATHS
    run supervisor();
#endif
    run consumer()
  }
  timeout;
  stopped;
  assert(word[0] == FREE);
#if SLOTS == 2
  assert(word[1] == FREE)
#endif
}
