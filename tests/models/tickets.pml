// SPDX-License-Identifier: Apache-2.0
//
// Tickets: the workers of a feed fill its batches in slots, and a consumer receives them in their order. A
// worker takes a slot (lend) and then a ticket: it writes the ticket into the slot's word, and the slot
// into the entry of the ticket; then it, or any other worker, moves `given` on. It settles the ticket by
// one exchange of the word (publish). A round is an epoch, or what is left of one: the consumer begins the
// next one at any time, wherever the workers are. Its first ticket is its base. Tickets below the base are
// past: nobody wants their results, and their slots are given back by whoever comes second, the consumer
// that has changed the base and looks at the words, or the worker that has changed the word and looks at
// the base. A failure ends its round: `failed` then says that there are no more tickets. Its text lies
// with the worker, which takes no later ticket of the round. A skipped ticket gives its slot back: its
// entry says it. The consumer may give a ticket to another slot while its worker hangs (abandon). Worker
// 0, a process, may die at any step, once, also by its own hand when a fill is to be tried again. A
// supervisor then gives back what it had: it asks for its ticket, which its successor fills, or settles it
// as failed or skipped. If there was none, it settles the next ticket in its name. Events are as in the
// code: announce, look, sleep. One step are: the reads of the fields of a round, which its version guards;
// a look for a free slot; the release of a slot and its event.
//
// The code has more slots than the model: an abandoned ticket goes on in a spare slot, which its new worker
// holds before the old word is left, and the slot of the thread that returns becomes spare. Here the new slot
// is a free one, taken after the old word was left; the ticket is asked; and the old slot becomes free.
//
// Law: the consumer gets each ticket of its round once and in order until the round fails or ends, and
// gets no result and no text of another ticket. A worker that took its ticket by what it knew of an
// earlier round has one that is past. No two workers write a slot. What an abandoned worker publishes has
// no effect. No process sleeps that could continue, and in the end all slots are free.
// variant: ROUNDS holds
// variant: ABANDONS holds
// variant: DEATHS holds
// variant: FAILURES holds
// variant: SKIPS holds
// variant: SKIPS_AHEAD holds soak
// variant: ASKED_BEHIND holds
// variant: TIGHT holds
// variant: BOTH holds soak
//
// FAILURES is DEATHS in one round, in which a worker fails, too. In SKIPS workers also skip, with one slot
// and two entries; in SKIPS_AHEAD with two slots and one entry. In ASKED_BEHIND one process takes tickets
// and asks, and the other one fills. TIGHT has one slot. BOTH has an abandoned ticket and a death.
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
// CLOSED_ONCE has the supervisor not raise `failed` for a failure whose worker died before it did: the next
// failure of that worker has its text.
// variant: CLOSED_ONCE refuted assertion
// OVERWRITE fills an asked ticket behind a failure.
// variant: OVERWRITE refuted assertion
// SKIP_WORD_FIRST gives the slot of a skipped ticket away before its entry says so.
// variant: SKIP_WORD_FIRST refuted deadlock
// OUTCOME_ONCE does not look at the word again after a failure was read: the slot may have another ticket.
// variant: OUTCOME_ONCE refuted assertion
// SKIP_LEFT has the supervisor look for the entry of a skipped ticket: a later one may be there.
// variant: SKIP_LEFT refuted assertion
// QUIET does not wake workers when a slot is free.
// variant: QUIET refuted deadlock

#if defined(ROUNDS) || defined(NOTE_FIRST)
#define FAILS
#endif
#if defined(NOTE_FIRST) || defined(PUBLISH_BLIND) || defined(ENTRY_FIRST) || defined(ASKED_EARLY)
#define ABANDONS
#endif
#if defined(SKIPS_AHEAD) || defined(SKIP_LEFT)
#define AHEAD
#endif
#if defined(OUTCOME_ONCE) || defined(SKIP_WORD_FIRST) || defined(AHEAD)
#define SKIPS
#endif
#if defined(ASKED_BEHIND) || defined(OVERWRITE)
#define PREPARES
#define FAILS
#define IS_PREPARER (p == 0)
#else
#define IS_PREPARER false
#endif
#if defined(LAST_KEPT) || defined(ASK_BLIND) || defined(ASK_KEPT)
#define DEATHS
#endif
#ifdef CLOSED_ONCE
#define FAILURES
#endif
#if defined(FAILURES) || defined(SKIPS)
#define DEATHS
#define FAILS
#endif
#if defined(BOTH) || defined(CLEAN_ONCE)
#define ABANDONS
#define DEATHS
#endif
#if defined(ABANDONS) || defined(DEATHS) || defined(PREPARES)
#define ASKS
#endif

#if defined(TIGHT) || defined(QUIET) || (defined(SKIPS) && !defined(AHEAD))
#define SLOTS 1
#else
#define SLOTS 2
#endif
#ifdef SKIPS
#define RING (3 - SLOTS)
#else
#define RING SLOTS
#endif
#define NONE 9
#define DIRTY 127
#define FAILED 64            // of a result, with the ticket
#define SKIPPED 63           // a result; as the slot of an entry: 3
#define C 2                  // the consumer, as a holder
#define ANY 3                // who fills an asked ticket

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

#if defined(DEATHS) && !defined(SKIPS) && !defined(FAILURES)
#define LENGTH 1
#else
#define LENGTH 2
#endif
#if defined(SKIPS) || defined(FAILURES) || defined(OVERWRITE)
#define ROUND 2
#else
#define ROUND 1
#endif
byte round = ROUND;          // of two
byte length = LENGTH;        // of the first round; then 1
#ifdef PREPARES
byte failures = 2;
#else
byte failures = 1;
#endif
byte deaths = 1;
byte passed = 1;             // what the consumer has received
byte text[2];                // of the last failure of each worker: its ticket
byte filler[SLOTS];          // who has settled what is in the slot
// For the law
byte writer[SLOTS] = NONE;

#ifdef DEATHS
#define OWES owes
#ifdef SKIP_LEFT
#define WHEN (s != NONE && data[s] == SKIPPED)
#elif defined(CLOSED_ONCE)
#define WHEN fails
#else
#define WHEN true
#endif
#define MAY_DIE :: atomic { p == 0 && deaths > 0 && !reclaims && !owes && WHEN -> goto die }
#else
#define OWES false
#define MAY_DIE
#endif
#define STEP(...) if MAY_DIE :: atomic { true; __VA_ARGS__ } fi

#define WAKE_WORKERS woken[0] = true; woken[1] = true
#ifdef QUIET
#define SIGNAL_ROOM skip
#else
#define SIGNAL_ROOM WAKE_WORKERS
#endif
#define RELEASE(s) word[s] = FREE; data[s] = 0; filler[s] = 0; SIGNAL_ROOM
// It has a ticket of this round that was delivered from another slot, or skipped by a worker that has died
#define IS_BEHIND_IT(s) (KIND(word[s]) == READY && NUMBER(word[s]) >= base && NUMBER(word[s]) <= passed)
#define IS_SECOND(s) (IS_BEHIND_IT(s) && data[s] != SKIPPED)
#define IS_LEAKED(s) (IS_BEHIND_IT(s) && filler[s] == p)
// Of slot i and ticket t, for the supervisor
#define NAMED (entry[t % RING] == E(t, i))
#ifdef CLEAN_ONCE
#define CHANGED i++
#else
#define CHANGED true         // it looks again
#endif

// Ticket t has failed. It is given, so all before it are: no more tickets in its round.
#define RAISE_FAILED failed = (failed < t -> t : failed)
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
  :: failures > 0 && !OWES -> failures--; fails = true
#ifdef SKIPS
  :: !owes -> skips = true
#endif
  fi
#endif
}

proctype worker(byte p) {
  byte s = NONE, v, from, to, t, e, value;
  bool past, fails;
#ifdef DEATHS
  // After the death of worker 0, of the supervisor, which then acts in its name: it gives back what worker 0
  // had. If that was no ticket, it settles the next one (owes).
  byte i;
  short w;
  bool reclaims, owes, found, skips;
#endif
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
#ifdef OVERWRITE
#define IS_BEHIND(n) false
#else
#define IS_BEHIND(n) (from <= failed && failed < (n))
#endif
#define MAY_TAKE(i) (KIND(word[i]) == ASKED && (HOLDER(word[i]) == p || HOLDER(word[i]) == ANY) && \
                     !IS_BEHIND(NUMBER(word[i])))
#define TAKE(i) t = NUMBER(word[i]); word[i] = W(HELD, p, t); s = i
  if
  :: s == NONE && !IS_PREPARER ->
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
        STEP(v = version; from = base; past = (v & 1) || t < from || IS_BEHIND(t));
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
#ifdef PREPARES
  :: !IS_PREPARER || t >= to -> goto none
  :: IS_PREPARER && t < to && s == NONE ->
#else
  :: t >= to -> goto none
  :: t < to && s == NONE ->
#endif
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
#ifdef SKIPS
    :: OF(e) < t && (t <= passed || t > passed + RING) -> e = 0; goto none  // no room for a number
    :: OF(e) < t && t > passed && t <= passed + RING -> word[s] = W(HELD, p, t)
#else
    :: OF(e) < t -> word[s] = W(HELD, p, t)                                             // T1
#endif
    :: else
    fi
  );
  if
  :: OF(e) < t ->
     STEP(                                                                              // T2
       if
#ifdef PREPARES
       :: entry[t % RING] == e -> entry[t % RING] = E(t, s); value = 1; v = 0; from = 0; to = 0
#else
       :: entry[t % RING] == e -> entry[t % RING] = E(t, s); begin_fill(s)
#endif
#if SLOTS == 2 && !defined(PREPARES)
       :: else -> v = 0; from = 0; to = 0; t = 0; e = 0; goto look
#endif
       fi;
       e = 0
     );
#if (SLOTS == 2 && !defined(PREPARES)) || defined(SKIPS)
  :: else -> v = 0; from = 0; to = 0; e = 0
#endif
  fi;
  STEP(given = (given == t - 1 -> t : given));                                          // T3, or help
  if :: value == 0 -> t = 0; goto look :: else fi;
fill:
#ifdef PREPARES
  if
  :: IS_PREPARER ->
     STEP(value = 0; word[s] = W(ASKED, ANY, t));
     STEP(
       if
       :: t < base && word[s] == W(ASKED, ANY, t) -> RELEASE(s)
       :: else -> WAKE_WORKERS
       fi
     );
     goto settled
  :: else
  fi;
#endif
#ifdef DEATHS
  if :: owes -> goto settle_dead :: else fi;
settle:
#endif
#ifdef NOTE_FIRST
  if :: fails -> STEP(RAISE_FAILED) :: else fi;
#endif
#if defined(DEATHS) || defined(PREPARES)
  if :: fails -> STEP(text[p] = t) :: else fi;
#endif
#ifdef SKIPS
  if
  :: skips ->
     atomic { skips = false; value = 0 };
#ifdef SKIP_WORD_FIRST
     STEP(writer[s] = NONE; word[s] = W(HELD, ANY, t));
     STEP(entry[t % RING] = (entry[t % RING] == E(t, s) -> E(t, 3) : entry[t % RING]));
#else
     STEP(writer[s] = NONE; data[s] = SKIPPED; filler[s] = p; word[s] = W(READY, 0, t));            // S1
     STEP(entry[t % RING] = (entry[t % RING] == E(t, s) -> E(t, 3) : entry[t % RING]));  // S2
     STEP(if :: word[s] == W(READY, 0, t) -> word[s] = W(HELD, p, 0) :: else -> s = NONE fi);       // S3
#endif
     STEP(if :: s != NONE -> RELEASE(s) :: else fi; woken[C] = true);
     goto settled
  :: else
  fi;
#endif
  STEP(                                                                                 // P1, P2
    assert(writer[s] == p);
    writer[s] = NONE;
    data[s] = (fails -> FAILED + t : value);
    filler[s] = (fails -> p : 0);
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
    assert(past || value == 0 || IS_TIMELY);
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
     if :: fails -> STEP(RAISE_FAILED) :: else fi;
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
settled:
  t = 0;
  s = NONE;
  fails = false;
#ifdef DEATHS
  owes = false;
  if :: reclaims -> i++; goto reclaim :: else fi;
#endif
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
    if
    :: s != NONE && writer[s] == p -> writer[s] = NONE
    :: else
    fi;
    s = NONE; v = 0; from = 0; to = 0; t = 0; e = 0; value = 0; past = false; fails = false;
    skips = false;
    reclaims = true
  };
reclaim:
  if
  :: i == SLOTS ->
     i = 0;
     reclaims = false;
     owes = !found;
     found = false;
     atomic {
#ifdef SKIPS
       assert(!IS_LEAKED(0));
#if SLOTS == 2
       assert(!IS_LEAKED(1));
#endif
#endif
       WAKE_WORKERS;
       woken[C] = true
     };
     goto again
  :: else
  fi;
  atomic {
    w = word[i];
    t = NUMBER(w);
    if
#ifndef LAST_KEPT
    :: KIND(w) == READY && t < base -> RELEASE(i)  // it died before it has looked at the base
#ifdef SKIP_LEFT
    :: KIND(w) == READY && t >= base && entry[t % RING] == E(t, 3) -> RELEASE(i)
#elif defined(SKIPS)
    :: KIND(w) == READY && t >= base && !NAMED -> RELEASE(i)
#endif
#endif
#if defined(FAILS) && !defined(CLOSED_ONCE)
    :: KIND(w) == READY && t >= base && NAMED && filler[i] == p && data[i] == FAILED + t -> RAISE_FAILED
#endif
    :: else
    fi;
    w = (HOLDER(w) == p && (KIND(w) == HELD || KIND(w) == LEFT) -> w : 0);
    if
    :: w == 0 -> t = 0; i++; goto reclaim
    :: else
    fi
  };
  if
#ifdef ASK_BLIND
  :: KIND(w) == HELD && t >= base ->
#else
  :: KIND(w) == HELD && t >= base && NAMED ->
#endif
     assert(writer[i] == NONE);
     s = i;
     writer[s] = p;
     found = true;
     goto settle_dead
  :: else ->
     atomic {
       if
       :: word[i] == w -> RELEASE(i); i++
#ifdef ABANDONS
       :: word[i] != w -> CHANGED
#endif
       fi;
       w = 0;
       t = 0;
       goto reclaim
     }
  fi;
settle_dead:
  if
  :: true ->                                // attempts are left
     atomic {
       writer[s] = NONE;
       value = 0;
       w = 0;
       if
       :: word[s] == W(HELD, p, t) -> word[s] = W(ASKED, p, t)
#ifdef ABANDONS
       :: word[s] != W(HELD, p, t) && reclaims -> CHANGED; s = NONE; t = 0; goto reclaim
       :: word[s] != W(HELD, p, t) && owes -> RELEASE(s); goto settled
#endif
       fi
     };
#ifndef ASK_KEPT
     past = t < base;
     if
     :: past -> past = false; atomic { if :: word[s] == W(ASKED, p, t) -> RELEASE(s) :: else fi }
     :: else
     fi;
#endif
     atomic { WAKE_WORKERS; goto settled }
  :: true -> w = 0; fails = true; goto settle
#ifdef SKIPS
  :: true -> w = 0; skips = true; goto settle
#endif
  fi;
#endif
gone:
  skip
}

#define IS_PAST(i) ((KIND(word[i]) == READY || KIND(word[i]) == ASKED) && NUMBER(word[i]) < base)
inline give_back_past() {
  atomic { if :: IS_PAST(0) -> RELEASE(0) :: else fi }
#if SLOTS == 2
  ;
  atomic { if :: IS_PAST(1) -> RELEASE(1) :: else fi }
#endif
}
// Whether the consumer may leave a round that has not ended
#if defined(SCAN_FIRST) || defined(SKIPS) || defined(PREPARES)
#define MAY_LEAVE true
#else
#define MAY_LEAVE round == 1
#endif
proctype consumer() {
  byte t, e, g, s = NONE;
  short w;
#ifdef SKIPS
  byte o;
#else
#define o data[SLOT(e)]
#endif
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
#ifdef SKIPS
    :: t != base + length && entry[t % RING] == E(t, 3) -> passed = t; t = 0; WAKE_WORKERS; goto again
    :: t != base + length && OF(entry[t % RING]) == t && SLOT(entry[t % RING]) != 3 ->
       e = entry[t % RING]; w = word[SLOT(e)]
    :: else
    fi
  };
  if :: w == W(READY, 0, t) -> o = data[SLOT(e)] :: else fi;
  atomic {
    if
#ifdef OUTCOME_ONCE
    :: w == W(READY, 0, t) && word[SLOT(e)] != w && !(o & FAILED) ->
#else
    :: w == W(READY, 0, t) && word[SLOT(e)] != w ->
#endif
       w = 0; e = 0; t = 0; o = 0;          // its worker has it back
       goto again
    :: w == W(READY, 0, t) && word[SLOT(e)] == w && o == SKIPPED ->
       RELEASE(SLOT(e));
       passed = t; w = 0; e = 0; t = 0; o = 0;
       goto again
#else
    :: t != base + length && OF(entry[t % RING]) == t -> e = entry[t % RING]; w = word[SLOT(e)]
#endif
    :: else
    fi;
    if
    :: w != 0 && w == W(READY, 0, t) ->
       if
#if defined(FAILS) || defined(DEATHS)
       :: o & FAILED ->                     // it stays there until the round is over
          assert(o == FAILED + t);
#if defined(DEATHS) || defined(PREPARES)
          assert(text[filler[SLOT(e)]] == t);
#endif
#ifdef SKIPS
          o = 0;
#endif
          w = 0; e = 0;
          goto change
#endif
       :: else ->
#ifdef SKIPS
          o = 0;
#endif
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
     atomic { word[s] = W(ASKED, ANY, t); SIGNAL_ROOM; s = NONE; e = 0; t = 0; goto again }  // A3
#endif
  :: else
  fi;
  atomic { w = 0; e = 0; t = 0 };
#if !defined(NOTE_FIRST) && !defined(FAILURES) && !defined(OVERWRITE) && !defined(SKIP_LEFT)
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
    text[0] = 0;
    text[1] = 0;
    g = 0;
    if
#if !defined(NOTE_FIRST) && ROUND == 1
    :: round == 1 -> round = 2; length = 1; limit = base + length
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
    run consumer()
  }
  timeout;
  stopped;
  assert(word[0] == FREE);
#if SLOTS == 2
  assert(word[1] == FREE)
#endif
}
