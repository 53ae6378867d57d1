// SPDX-License-Identifier: Apache-2.0
//
// Slots of a served feed: a worker fills slots and settles them in the order of their numbers, and two
// consumers in other processes receive them in one round. QUEUE: who changes the word from ready to held
// has the item; any consumer moves the passed number over it. BROADCAST: each consumer sets its bit, looks
// at the word, and moves its cursor; the worker may take the slot of an item that all have received and
// nobody reads. Consumers join at any time. The worker skips one item. If the generator has a state
// (STATES), the server notes the state of each received item from its slot, in order, and until
// then the slot is not free. It finds the slots by their words: an entry may be of a later item already. One
// consumer dies at any step, and a reaper gives back what it had; or it stops (STOPPED). Rounds are in
// served_rounds.pml, and tickets in tickets.pml.
//
// Law: no slot is written while a living consumer has it. An item is received once (QUEUE), or by each
// consumer that had joined before it, in order (BROADCAST), or it was lost with a dead one that had it.
// The state of each item is noted, in order. No process sleeps that could continue, and in the end all
// slots can be used.
// variant: QUEUE holds
// variant: STATES holds
// variant: STOPPED holds
// variant: BROADCAST holds
// variant: BROADCAST_STATES holds
//
// PASS_FIRST moves the passed number on before it has the item.
// variant: PASS_FIRST refuted assertion
// NO_HELP has only the holder move the passed number on.
// variant: NO_HELP refuted deadlock
// PASS_LEFT has the reaper not move the passed number over the item of a dead consumer.
// variant: PASS_LEFT refuted deadlock
// FREE_UNNOTED frees a slot whose state is not noted.
// variant: FREE_UNNOTED refuted assertion
// NOTED_ONCE does not look at what is noted again after the slot was left for the server.
// variant: NOTED_ONCE refuted assertion
// ANY_RECORD has the server not look whether the slot still has the item: the worker may take that of a
// skipped one back, and fill it again.
// variant: ANY_RECORD refuted assertion
// PASSED_AGAIN has the server count as noted what was passed after its look at the words.
// variant: PASSED_AGAIN refuted assertion
// LEFT_KEPT has the reaper not look at slots that were left for the server.
// variant: LEFT_KEPT refuted assertion
// NOTE_UNTOLD does not wake the server when an item was received.
// variant: NOTE_UNTOLD refuted deadlock
// FORGET_NONE wakes nobody after a death.
// variant: FORGET_NONE refuted deadlock
// SKIP_TAKEN takes the slot of a skipped item of a broadcast back, as a queue does.
// variant: SKIP_TAKEN refuted assertion
// BITS_FIRST looks for readers before it looks at the cursors.
// variant: BITS_FIRST refuted assertion
// PASSED_LAST reads the passed number after the cursors: one may have joined meanwhile.
// variant: PASSED_LAST refuted deadlock
// CURSOR_FIRST reads the cursor with which it joins before it announces itself.
// variant: CURSOR_FIRST refuted deadlock

#if defined(BROADCAST_STATES)
#define BROADCAST
#define STATES
#endif
#if defined(SKIP_TAKEN) || defined(BITS_FIRST) || defined(PASSED_LAST) || defined(CURSOR_FIRST)
#define BROADCAST
#endif
#if defined(ANY_RECORD) || defined(PASSED_AGAIN) || defined(LEFT_KEPT) || defined(FREE_UNNOTED) || \
    defined(NOTED_ONCE) || defined(NOTE_UNTOLD)
#define STATES
#endif
#ifdef NO_HELP
#define STOPPED
#endif

#ifdef STATES
#define SLOTS 1
#else
#define SLOTS 2
#endif
#define RING 2
#define SKIP 2               // the item that may be skipped
#ifdef BROADCAST_STATES
#define ITEMS 2
#else
#define ITEMS 3
#endif
#define WORKER 2             // as a holder; the consumers are 0 and 1
#define SERVER 3
#define NONE 9
#define DIRTY 99
#define SKIPPED 64           // data: with the number
#define BIT(i) (1 << (i))
#define ALL (BIT(ITEMS + 1) - 2)

#define FREE 0
#define HELD 1
#define READY 2
#define LEFT 3
#define W(k, p, n) ((k) + 8 * (p) + 32 * (n))
#define KIND(w) ((w) & 7)
#define HOLDER(w) (((w) >> 3) & 3)
#define NUMBER(w) ((w) >> 5)
#define E(n, s) ((n) * 4 + (s))
#define OF(e) ((e) >> 2)
#define SLOT(e) ((e) & 3)

// The memory
short word[SLOTS];
byte bits[SLOTS], data[SLOTS];
byte entry[RING];
byte given, passed, noted;
byte cursor[2];
bool joined[2];              // has a role
bool woken[4];               // events

bool alive[2] = true;
byte deaths = 1;

// For the law
byte reads[2] = NONE;        // the slot of which it uses the bytes
byte got;                    // by number, as bits
byte has_skipped;            // a number
bool is_done[3];

#ifdef STOPPED
#define MAY_DIE :: atomic { p == 0 && deaths > 0 -> deaths = 0; goto stop }
#else
#define MAY_DIE :: atomic { p == 0 && deaths > 0 -> goto die }
#endif
#define STEP(...) if MAY_DIE :: atomic { true; __VA_ARGS__ } fi
#define WAKE_CONSUMERS woken[0] = true; woken[1] = true
#ifdef STATES
#define NOTED noted
#ifdef NOTE_UNTOLD
#define WAKE_SERVER skip
#else
#define WAKE_SERVER woken[SERVER] = true
#endif
#else
#define NOTED 200
#define WAKE_SERVER skip
#endif
#define WAKE_WORKER woken[WORKER] = true
#define LEAST(a, b) ((a) < (b) -> (a) : (b))
#ifdef BROADCAST
#define PLACE cursor[p]
#else
#define PLACE passed
#endif
#define CURSOR(c) ((joined[c] && alive[c]) -> cursor[c] : 200)
#define FLOOR LEAST(LEAST(passed, NOTED), LEAST(CURSOR(0), CURSOR(1)))
// A consumer of a broadcast finds each item behind its cursor by the entry
#ifdef BROADCAST
#define ROOM FLOOR
#else
#define ROOM passed
#endif
#define READERS(s) ((alive[0] -> bits[s] & 1 : 0) | (alive[1] -> bits[s] & 2 : 0))
#define RAISE_PASSED(n) passed = (passed < (n) -> (n) : passed)

// A received slot waits for the server
#if defined(STATES) && !defined(FREE_UNNOTED)
#define GIVEN_BACK(n) W(LEFT, 0, n)
#else
#define GIVEN_BACK(n) FREE
#endif

proctype consumer(byte p) {
  byte s = NONE, n, e, o;
  short w;
#ifdef BROADCAST
#ifdef CURSOR_FIRST
  STEP(n = passed);
  STEP(joined[p] = true);
#else
  STEP(joined[p] = true);
  STEP(n = passed);
#endif
  STEP(cursor[p] = n; n = 0; WAKE_WORKER);
#endif
again:
  STEP(woken[p] = false);
  STEP(n = PLACE + 1);
  if :: n == ITEMS + 1 -> goto over :: else fi;
  STEP(e = entry[n % RING]; if :: OF(e) != n -> e = 0 :: else fi);
#ifdef PASS_FIRST
  STEP(passed = (passed == n - 1 && OF(e) == n && word[SLOT(e) % SLOTS] == W(READY, 0, n) -> n : passed));
#endif
  if
  :: e == E(n, 3) ->
#ifdef BROADCAST
     STEP(cursor[p] = n);
#endif
     STEP(RAISE_PASSED(n); WAKE_WORKER; WAKE_SERVER);
     e = 0; n = 0;
     goto again
  :: OF(e) == n && SLOT(e) != 3 ->
#ifdef BROADCAST
     STEP(bits[SLOT(e)] = bits[SLOT(e)] | BIT(p));
#endif
     STEP(w = word[SLOT(e)]);
  :: else
  fi;
#ifdef BROADCAST
  if
  :: w == W(READY, 0, n) ->
     s = SLOT(e);
     STEP(reads[p] = s; o = data[s]);
     assert(o == n || o == SKIPPED + n);
     STEP(cursor[p] = n);
     STEP(RAISE_PASSED(n); WAKE_SERVER);
     w = 0; e = 0;
     STEP(assert(data[s] == o); reads[p] = NONE);
     STEP(bits[s] = bits[s] & ~BIT(p); WAKE_WORKER);
     o = 0; s = NONE; n = 0;
     goto again
  :: w != W(READY, 0, n) && OF(e) == n ->
     STEP(bits[SLOT(e)] = bits[SLOT(e)] & ~BIT(p); WAKE_WORKER)
  :: else
  fi;
#else
  if
  :: w == W(READY, 0, n) ->
     STEP(
       if
       :: word[SLOT(e)] == w ->
          s = SLOT(e);
          word[s] = W(HELD, p, n);
          o = data[s];
          assert(o != n || (got & BIT(n)) == 0);
          got = got | BIT(n);
          reads[p] = s
       :: else
       fi
     );
     w = 0; e = 0;
     if :: s == NONE -> n = 0; goto again :: else fi;
     assert(o == n || o == SKIPPED + n);
     STEP(RAISE_PASSED(n); WAKE_CONSUMERS; WAKE_SERVER; WAKE_WORKER);
     STEP(assert(data[s] == o && word[s] == W(HELD, p, n)); reads[p] = NONE);
     STEP(word[s] = GIVEN_BACK(n); o = 0; WAKE_SERVER; WAKE_WORKER);
#if defined(STATES) && !defined(NOTED_ONCE)
     STEP(e = noted);
     if
     :: e >= n -> STEP(if :: word[s] == W(LEFT, 0, n) -> word[s] = FREE; WAKE_WORKER :: else fi)
     :: else
     fi;
     e = 0;
#endif
     s = NONE; n = 0;
     goto again
#ifndef NO_HELP
  :: KIND(w) == HELD && HOLDER(w) < WORKER && NUMBER(w) == n ->
     w = 0; e = 0;
     STEP(RAISE_PASSED(n); WAKE_SERVER);
     n = 0;
     goto again
#endif
  :: else
  fi;
#endif
  w = 0; e = 0; n = 0;
  if
  MAY_DIE
  :: woken[p]
  fi;
  goto again;
over:
  n = 0;
  STEP(joined[p] = false; WAKE_WORKER; is_done[p] = true);
  goto gone;
#ifdef STOPPED
stop:
end_stopped:
  false;
#else
  atomic {
    false;
die:
    deaths = 0;
    alive[p] = false;
    reads[p] = NONE;
    s = 0; n = 0; e = 0; w = 0; o = 0
  };
  // The reaper, in another process
  do
  :: s < SLOTS ->
#ifndef BROADCAST
     w = word[s];
     n = NUMBER(w);
     if
     :: KIND(w) == HELD && HOLDER(w) == p ->
#ifndef PASS_LEFT
        RAISE_PASSED(n);
#endif
        atomic { assert(word[s] == w); word[s] = GIVEN_BACK(n) };
#ifdef STATES
        if
        :: atomic { noted >= n && word[s] == W(LEFT, 0, n) -> word[s] = FREE }
        :: else
        fi
#endif
#if defined(STATES) && !defined(LEFT_KEPT)
     :: KIND(w) == LEFT ->                  // of it or of another
        atomic { if :: noted >= n && word[s] == w -> word[s] = FREE :: else fi }
#endif
     :: else
     fi;
     w = 0; n = 0;
#endif
     atomic { bits[s] = bits[s] & ~BIT(p); s++ }
  :: else -> break
  od;
  s = NONE;
  atomic { joined[p] = false; cursor[p] = 0 };
#ifndef FORGET_NONE
  atomic { WAKE_CONSUMERS; WAKE_WORKER; WAKE_SERVER };
#endif
#endif
gone:
  skip
}

#undef MAY_DIE
#define MAY_DIE

proctype worker() {
  byte s = NONE, n;
#ifdef BROADCAST
  short w;
  byte f;
  bool is_read;
#endif
  bool is_skipped;
  do
  :: given == ITEMS -> break
  :: else ->
lends:
     woken[WORKER] = false;
     if
     :: given + 1 > ROOM + RING -> goto end_room
     :: else
     fi;
#ifndef BROADCAST
     atomic {
       s = (word[0] == FREE -> 0 : (SLOTS == 2 && word[SLOTS - 1] == FREE -> 1 : SLOTS));
       if :: s < SLOTS -> word[s] = W(HELD, WORKER, 0) :: else fi
     };
#else
     s = 0;
     do
     :: s == SLOTS -> break
     :: else ->
        atomic { w = word[s]; if :: w == FREE -> word[s] = W(HELD, WORKER, 0); break :: else fi };
        // No item is put back, and who joins begins behind the passed number that it reads. So what all have
        // received is wanted by nobody any more, if the passed number is read before the cursors.
        if
        :: KIND(w) == READY ->
#ifdef BITS_FIRST
           is_read = READERS(s) != 0;
#endif
#ifdef PASSED_LAST
           f = LEAST(CURSOR(0), CURSOR(1));
           f = LEAST(f, LEAST(passed, NOTED));
#else
           f = LEAST(passed, NOTED);
           f = LEAST(f, LEAST(CURSOR(0), CURSOR(1)));
#endif
#ifndef BITS_FIRST
           is_read = READERS(s) != 0;
#endif
           atomic {
             if
             :: NUMBER(w) <= f && !is_read -> assert(word[s] == w); word[s] = W(HELD, WORKER, 0); f = 0; break
             :: else -> f = 0; is_read = false
             fi
           }
        :: else
        fi;
        w = 0;
        s++
     od;
     w = 0;
     is_read = false;
#endif
     if
     :: s == SLOTS ->
        s = NONE;
end_room:
        woken[WORKER];
        goto lends
     :: else
     fi;
     atomic {
       n = given + 1;
       word[s] = W(HELD, WORKER, n);
       assert(reads[0] != s && reads[1] != s);
       data[s] = DIRTY;
       entry[n % RING] = E(n, s);
       given = n;
       if
       :: true
       :: n == SKIP -> is_skipped = true; has_skipped = n; got = got | BIT(n)
       fi
     };
     atomic {
       assert(reads[0] != s && reads[1] != s);
       data[s] = (is_skipped -> SKIPPED + n : n);
       word[s] = W(READY, 0, n)
     };
     if
     :: is_skipped ->
        is_skipped = false;
        entry[n % RING] = E(n, 3);
#if !defined(BROADCAST) || defined(SKIP_TAKEN)
        atomic {
          if
          :: word[s] == W(READY, 0, n) -> word[s] = W(HELD, WORKER, 0)
          :: else -> s = NONE
          fi
        };
        if
        :: s != NONE -> atomic { data[s] = DIRTY; word[s] = FREE }
        :: else
        fi
#endif
     :: else
     fi;
     n = 0;
     s = NONE;
     atomic { WAKE_CONSUMERS }
  od;
  is_done[WORKER] = true
}

#ifdef STATES
#define IS_RECEIVED(w) (KIND(w) == HELD && HOLDER(w) < WORKER)
#define MAY_BE_UNNOTED(w) (KIND(w) == READY || KIND(w) == LEFT || IS_RECEIVED(w))

proctype server() {
  byte s, least, f, d, last;
  short w;
  do
  :: noted == ITEMS -> break
  :: else ->
     woken[SERVER] = false;
     last = passed;
look:
     least = ITEMS + 1;
     do
     :: atomic {
          s < SLOTS ->
          w = word[s];
          if
          :: MAY_BE_UNNOTED(w) && NUMBER(w) > noted && NUMBER(w) <= last && NUMBER(w) < least ->
             least = NUMBER(w);
             f = s
          :: else
          fi;
          w = 0;
          s++
        }
     :: atomic { s == SLOTS -> s = 0; break }
     od;
     if
     :: least <= ITEMS ->
        atomic {
          d = data[f];
#if !defined(ANY_RECORD) && !defined(BROADCAST)
          if
          :: d != least && d != SKIPPED + least -> assert(has_skipped == least); d = SKIPPED + least
          :: else
          fi;
#endif
          assert(d == least || d == SKIPPED + least);
          assert(noted == least - 1 || (noted == least - 2 && has_skipped == least - 1));
          d = 0
        };
        noted = least;
        atomic {
          if :: word[f] == W(LEFT, 0, least) -> word[f] = FREE :: else fi;
          WAKE_WORKER
        };
        f = 0;
        goto look
     :: else
     fi;
     least = 0;
#ifndef BROADCAST
     // What was not found is skipped.
     if
     :: noted < last ->
        atomic {
#ifdef PASSED_AGAIN
          last = passed;
#endif
          assert(noted == last - 1 && has_skipped == last);
          noted = last;
          WAKE_WORKER
        }
     :: else
     fi;
#endif
     last = 0;
     if
     :: noted == ITEMS
     :: else -> woken[SERVER]
     fi
  od
}
#endif

#define CAN_BE_USED(s) (word[s] == FREE || (KIND(word[s]) == READY && NUMBER(word[s]) <= FLOOR))

init {
  atomic {
    run consumer(0);
    run consumer(1);
#ifdef STATES
    run server();
#endif
    run worker()
  }
  timeout;
#ifdef STOPPED
  is_done[1];
  assert((got & ALL) == ALL);
#else
  is_done[1] && is_done[WORKER];
  assert(CAN_BE_USED(0) && CAN_BE_USED(SLOTS - 1));
#ifdef STATES
  assert(noted == ITEMS);
#endif
#ifndef BROADCAST
  assert((got & ALL) == ALL);
#endif
#endif
}
