// SPDX-License-Identifier: Apache-2.0
//
// Slots: processes pass slots by compare-and-swap of one word for each slot, without a lock. A word has a
// kind, a holder and the number of an item. A producer takes a slot (lend), fills it, and asks for a number:
// it offers the slot under the next number and writes the slot into the entry of that number; who comes first
// moves the slot and the last number on (help). A consumer takes the slot of the next number (QUEUE), or sets
// its bit and then looks at the word (BROADCAST: each item; LATEST: the newest one). A producer may take the
// slot of an item that nobody wants any more: it claims it, then looks at the bits and at the cursors. Events
// and sleep are as in the code: announce, try, sleep on the event and on the lives of others. Two processes
// die, each at any step. Who notices a death takes the lock of the place, gives back what the dead process
// had, and wakes all. A died producer may come again in its place.
//
// Law: no two processes use the bytes of a slot unless all of them read; an item is received once (QUEUE) or
// in order without a gap (BROADCAST) or is the newest (LATEST), and is complete; no process sleeps that could
// continue; in the end all slots can be used, and an item that was sent was received, is there, or went with
// the process that held it.
// variant: QUEUE holds
// variant: CROWD holds soak
// variant: BROADCAST holds
// variant: VIEWER holds soak
// variant: LATEST holds
// variant: READERS holds soak
// variant: REBORN holds
// variant: STOPPED holds
//
// QUEUE has a producer and two consumers, CROWD two producers and a consumer. READERS is LATEST with two
// consumers. VIEWER is BROADCAST where one of the consumers receives the newest item, and no producer waits
// for it. In STOPPED no process dies, and one stops at any step.
//
// NUMBER_LATE has nobody help: the items behind that of a stopped producer are not received.
// variant: NUMBER_LATE refuted assertion
// ENTRY_BLIND writes the entry without a compare: two slots get one number.
// variant: ENTRY_BLIND refuted assertion
// OFFER_ONCE keeps the first number that it has offered, although another producer has got that number.
// variant: OFFER_ONCE refuted assertion
// FREE_OFFERED frees the offered slot of a dead producer without a look at the entry: an item that was sent
// is lost.
// variant: FREE_OFFERED refuted assertion
// LOOK_ONCE reports the end without a second look for an item.
// variant: LOOK_ONCE refuted assertion
// PASS_FIRST moves the passed number on before it takes the slot.
// variant: PASS_FIRST refuted assertion
// STRAY_LATE counts an item that is put back after it is there.
// variant: STRAY_LATE refuted deadlock
// CLEAN_UNLOCKED gives back what a dead process had without the lock of its place: it takes the slot of the
// next process in this place.
// variant: CLEAN_UNLOCKED refuted assertion
// LOOK_FIRST reads the word before it sets its bit.
// variant: LOOK_FIRST refuted assertion
// CLAIM_ONCE does not look at the bits after the claim.
// variant: CLAIM_ONCE refuted assertion
// FLOOR_ONCE does not look at the cursors after the claim: an item that was put back meanwhile is lost.
// variant: FLOOR_ONCE refuted assertion
// BIT_FIRST clears the bit before the cursor sinks, when an item is put back.
// variant: BIT_FIRST refuted assertion
// CLAIM_LOST frees the claimed slot of a dead producer.
// variant: CLAIM_LOST refuted assertion
// QUIET does not wake others when it has cleaned.
// variant: QUIET refuted deadlock

#ifdef NUMBER_LATE
#define STOPPED
#endif
#if defined(STOPPED) || defined(ENTRY_BLIND) || defined(OFFER_ONCE)
#define CROWD
#endif
#ifdef CLEAN_UNLOCKED
#define REBORN
#endif
#if defined(LOOK_FIRST) || defined(CLAIM_ONCE) || defined(READERS)
#define LATEST
#endif
#if defined(FLOOR_ONCE) || defined(BIT_FIRST) || defined(CLAIM_LOST) || defined(VIEWER)
#define BROADCAST
#endif
#if defined(LATEST) || defined(BROADCAST)
#define SHARED
#else
#define QUEUED
#endif

#ifdef CROWD
#define SLOTS 2
#define PRODUCERS 2
#define CONSUMERS 1
#define ITEMS 1
#elif defined(REBORN)
#define SLOTS 1
#define PRODUCERS 1
#define CONSUMERS 1
#define ITEMS 2
#elif defined(BROADCAST)
#define SLOTS 1
#define PRODUCERS 1
#define CONSUMERS 2
#define ITEMS 2
#elif defined(READERS)
#define SLOTS 2
#define PRODUCERS 1
#define CONSUMERS 2
#define ITEMS 3
#elif defined(LATEST)
#define SLOTS 2
#define PRODUCERS 1
#define CONSUMERS 1
#define ITEMS 3
#else
#define SLOTS 1
#define PRODUCERS 1
#define CONSUMERS 2
#define ITEMS 2
#endif
#ifdef STOPPED
#define DEATHS 0
#else
#define DEATHS 2
#endif
#if defined(QUEUED) && CONSUMERS == 2
#define STRAYS
#endif
#define N (PRODUCERS + CONSUMERS)
#define RING 2
#define NONE 9
#define DIRTY 99
#define BIT(i) (1 << (i))

#define FREE 0
#define HELD 1
#define OFFERED 2
#define READY 3
#define CLAIMED 4
// A word as one number, so that a compare is one step
#define W(k, p, n) ((k) + 8 * (p) + 64 * (n))
#define KIND(w) ((w) & 7)
#define HOLDER(w) (((w) >> 3) & 7)
#define NUMBER(w) ((w) >> 6)
// An entry
#define E(n, s) ((n) * 4 + (s))
#define OF(e) ((e) >> 2)
#define SLOT(e) ((e) & 3)

// The memory
short word[SLOTS];
byte bits[SLOTS];            // readers
byte data[SLOTS];
byte entry[RING];
byte given = 0;              // the last number
byte passed = 0;             // QUEUE: what was received
byte strays = 0;
byte cursor[N];              // BROADCAST
byte last_received = 0;
byte roles;
byte waits[2];
#define ITEM 0
#define ROOM 1

// The kernel
bool alive[N], asleep[N], moved[N], is_done[N];
byte watches[N], deaths = 0;
byte cleaner = 0;            // 1 + who has the lock of the place of a dead process

// For the law
byte unclean = 0;            // dead places with something left, as bits
byte values = 0;             // made so far
byte sent = 0;               // values in an entry, as bits
byte got = 0;                // received, as bits
byte lost = 0;               // went with a consumer
byte back = 0;               // was put back once
byte who_stops = NONE;       // STOPPED
byte value_of[N];            // STOPPED: of a producer that has sent it

#define ALIVE(p) (alive[p] -> BIT(p) : 0)
#if PRODUCERS + CONSUMERS == 3
#define LIVING (ALIVE(0) | ALIVE(1) | ALIVE(2))
#else
#define LIVING (ALIVE(0) | ALIVE(1))
#endif
#define ALL (BIT(N) - 1)
#define IS_PRODUCER(p) ((p) < PRODUCERS)
#define HAS_ENDED ((roles & (BIT(PRODUCERS) - 1)) == 0)
#define SEES_DEAD(p) ((watches[p] & ~LIVING) != 0)

#ifdef BROADCAST
#define LEAST(a, b) ((a) < (b) -> (a) : (b))
#define CURSOR(c) ((roles & LIVING & BIT(c)) -> cursor[c] : 200)
#ifdef VIEWER
#define IS_VIEWER(p) ((p) == 2)
#define FLOOR LEAST(last_received, CURSOR(1))
#else
#define IS_VIEWER(p) false
#define FLOOR LEAST(last_received, LEAST(CURSOR(1), CURSOR(2)))
#endif
#elif defined(LATEST)
#define FLOOR (given > 0 -> given - 1 : 0)
#else
#define FLOOR 0
#endif
#ifdef STOPPED
#define MAY_DIE :: atomic { who_stops == NONE -> who_stops = p; goto stop }
#else
#define MAY_DIE :: atomic { deaths < DEATHS -> goto die }
#endif

#define STEP(...) if MAY_DIE :: atomic { true; __VA_ARGS__ } fi

inline wake(q) {
  moved[q] = true;
  if
  :: waits[(IS_PRODUCER(q) -> ROOM : ITEM)] & BIT(q) -> asleep[q] = false
  :: else
  fi
}
inline signal_items() {
  if
  MAY_DIE
  :: atomic {
       true;
#if PRODUCERS == 1 && CONSUMERS == 2
       wake(1); wake(2)
#elif PRODUCERS == 2
       wake(2)
#else
       wake(1)
#endif
     }
  fi
}
inline signal_room() {
  if
  MAY_DIE
  :: atomic {
       true;
       wake(0);
#if PRODUCERS == 2
       wake(1)
#endif
     }
  fi
}
inline announce(event) {
  STEP(waits[event] = waits[event] | BIT(p); moved[p] = false; watches[p] = LIVING & ~BIT(p))
}
inline sleep() {
  STEP(if :: moved[p] || SEES_DEAD(p) || unclean :: else -> asleep[p] = true fi);
end_asleep:
  if
  MAY_DIE
  :: !asleep[p]
  fi
}

// Moves the slot of number h, and the last number, on.
inline help(h) {
  STEP(e = entry[h % RING]);
  if
  :: OF(e) == h ->
#ifndef NUMBER_LATE
     STEP(
       if
       :: KIND(word[SLOT(e)]) == OFFERED && NUMBER(word[SLOT(e)]) == h -> word[SLOT(e)] = W(READY, 0, h)
       :: else
       fi
     );
#endif
     STEP(if :: given == h - 1 -> given = h :: else fi)
  :: else
  fi;
  e = 0
}

// Of a dead process, when it had this word: the item has its number, or is not read and not written yet
#ifdef FREE_OFFERED
#define IS_OFFERED(w, s) false
#else
#define IS_OFFERED(w, s) (KIND(w) == OFFERED && entry[NUMBER(w) % RING] == E(NUMBER(w), s))
#endif
#if defined(SHARED) && !defined(CLAIM_LOST)
#define IS_NUMBERED(w, s) (IS_OFFERED(w, s) || KIND(w) == CLAIMED)
#else
#define IS_NUMBERED(w, s) IS_OFFERED(w, s)
#endif

#define IS_OF(q, w) (HOLDER(w) == (q) && KIND(w) != FREE && KIND(w) != READY)

// Gives back what dead processes had, by p
inline clean() {
  do
  :: atomic { unclean && cleaner == 0 ->
       dead = (unclean & 1 -> 0 : (unclean & 2 -> 1 : 2));
#ifndef CLEAN_UNLOCKED
       cleaner = 1 + p
#endif
     }
     i = 0;
     do
     :: i < SLOTS ->
        STEP(w = word[i]; k = (IS_OF(dead, w) -> (IS_NUMBERED(w, i) -> W(READY, 0, NUMBER(w)) : FREE) : w));
        STEP(word[i] = (word[i] == w -> k : word[i]));
        k = 0;
        w = 0;
#ifdef SHARED
        STEP(bits[i] = bits[i] & ~BIT(dead));
#endif
        i++
     :: else -> break
     od;
     i = 0;
     STEP(
       roles = roles & ~BIT(dead);
       unclean = (alive[dead] -> unclean : unclean & ~BIT(dead));
       cleaner = 0;
       dead = 0
     );
#ifndef QUIET
     signal_items();
     signal_room()
#endif
  :: !unclean || cleaner != 0 -> break
  od
}

// p dies
inline fall() {
  alive[p] = false;
  deaths++;
  asleep[p] = false;
  watches[p] = 0;
  moved[p] = false;
  unclean = unclean | BIT(p);
  cleaner = (cleaner == 1 + p -> 0 : cleaner);
  // The kernel wakes one of those that sleep on the life
  if
  :: asleep[0] && (watches[0] & BIT(p)) -> asleep[0] = false
  :: asleep[1] && (watches[1] & BIT(p)) -> asleep[1] = false
#if PRODUCERS + CONSUMERS == 3
  :: asleep[2] && (watches[2] & BIT(p)) -> asleep[2] = false
#endif
  :: else
  fi;
  w = 0; e = 0; i = 0; k = 0; dead = 0; n = 0; s = NONE
}

inline lend() {
  s = NONE;
  i = 0;
#ifdef SHARED
  STEP(n = FLOOR);
#endif
  do
  :: i < SLOTS && s == NONE ->
     STEP(
       w = word[i];
       if
       :: w == FREE -> word[i] = W(HELD, p, 0); s = i
       :: else
       fi
     );
#ifdef SHARED
     if
     :: KIND(w) == READY && NUMBER(w) <= n ->
        if
        MAY_DIE
        :: atomic { assert(word[i] == w); word[i] = W(CLAIMED, p, NUMBER(w)) }  // no other producer is there
        fi;
        if
        MAY_DIE
#ifdef CLAIM_ONCE
        :: true
#else
        :: atomic { true; k = bits[i] & LIVING }
#endif
        fi;
#ifdef BROADCAST
        if
        MAY_DIE
#ifdef FLOOR_ONCE
        :: true
#else
        :: atomic { true; k = (NUMBER(w) <= FLOOR -> k : 1) }
#endif
        fi;
#endif
        STEP(
          if
          :: k == 0 -> word[i] = W(HELD, p, 0); s = i
          :: else -> word[i] = w
          fi
        );
#ifdef BROADCAST
        if
        :: k != 0 -> k = 0; signal_items()
        :: else
        fi;
#endif
        k = 0
     :: else
     fi;
#endif
     i++
  :: else -> break
  od;
  i = 0;
  n = 0;
  w = 0
}

inline number() {
  do
  :: STEP(n = given + 1);
     STEP(w = entry[n % RING]);
     if
#ifdef CROWD
     :: OF(w) == n -> help(n)
#endif
     :: OF(w) > n
     :: OF(w) < n ->
        if
        MAY_DIE
#ifdef OFFER_ONCE
        :: atomic { true; word[s] = (KIND(word[s]) == OFFERED -> word[s] : W(OFFERED, p, n)) }
#else
        :: atomic { true; word[s] = W(OFFERED, p, n) }
#endif
        fi;
        if
        MAY_DIE
        :: atomic {
             true;
             if
#ifdef ENTRY_BLIND
             :: true ->
#else
             :: entry[n % RING] == w ->
#endif
                entry[n % RING] = E(n, s);
                sent = sent | BIT(data[s]);
                w = 200
             :: else
             fi
           }
        fi;
        if :: w == 200 -> break :: else fi
     fi;
     w = 0
  od;
  w = 0;
#ifdef NUMBER_LATE
  STEP(word[s] = W(READY, 0, n));
#endif
  help(n);
  n = 0
}

proctype producer(byte p) {
  byte s = NONE, n, e, i, dead, item, value;
  short w, k;
again:
  do
  :: item == ITEMS -> break
  :: else ->
#ifdef CROWD
     lend();  // there is a slot for each
     assert(s != NONE);
#else
     do
     :: announce(ROOM);
        lend();
        if :: s != NONE -> break :: else fi;
        clean();
        sleep()
     od;
     waits[ROOM] = waits[ROOM] & ~BIT(p);
#endif
     item++;
     STEP(assert(word[s] == W(HELD, p, 0)); data[s] = DIRTY);
     STEP(assert(word[s] == W(HELD, p, 0)); values++; value = values; data[s] = value; value_of[p] = value);
     number();
     s = NONE;
     value = 0;
     signal_items()
  od;
  STEP(roles = roles & ~BIT(p));
  signal_items();
  is_done[p] = true;
  goto over;
#ifdef STOPPED
stop:
end_stopped:
  false;
#else
  atomic {
    false;
die:
    fall();
    value = 0
  }
#endif
#ifdef REBORN
  // Another process in this place, with the lock of the place
  atomic { cleaner == 0 -> cleaner = 1 + p };
  i = 0;
  do
  :: i < SLOTS ->
     atomic {
       if
       :: IS_OF(p, word[i]) ->
          word[i] = (IS_NUMBERED(word[i], i) -> W(READY, 0, NUMBER(word[i])) : FREE)
       :: else
       fi
     };
     i++
  :: else -> break
  od;
  atomic { i = 0; alive[p] = true; unclean = unclean & ~BIT(p); roles = roles | BIT(p); cleaner = 0 };
  item = 0;
  signal_items();
  goto again;
#endif
over:
  skip
}

#ifdef QUEUED
// s: the slot that it has; NONE: there is nothing
inline receive() {
  s = NONE;
#ifdef STRAYS
  STEP(k = strays);
  if
  :: k > 0 ->
     i = 0;
     do
     :: i < SLOTS && s == NONE ->
        STEP(
          if
          :: KIND(word[i]) == READY && NUMBER(word[i]) <= passed ->
             n = NUMBER(word[i]); word[i] = W(HELD, p, n); lost = lost | BIT(data[i]); s = i
          :: else
          fi
        );
        i++
     :: else -> break
     od;
     i = 0;
     if
     :: s != NONE ->
        STEP(strays--)
     :: else
     fi
  :: else
  fi;
#endif
  do
  :: s != NONE -> break
  :: else ->
     STEP(n = passed + 1);
     STEP(k = given);
     if
     :: n > k ->
        help(n);
        STEP(k = given);
        if :: n > k -> break :: else fi
     :: else
     fi;
     STEP(k = entry[n % RING]);
#ifdef PASS_FIRST
     STEP(passed = (passed == n - 1 -> n : passed));
#endif
     if
     :: OF(k) == n ->
        STEP(
          if
          :: word[SLOT(k)] == W(READY, 0, n) ->
             word[SLOT(k)] = W(HELD, p, n); lost = lost | BIT(data[SLOT(k)]); s = SLOT(k)
          :: else
          fi
        )
     :: else
     fi;
     STEP(passed = (passed == n - 1 -> n : passed))
  od;
  k = 0;
  n = (s == NONE -> 0 : n)
}
#else
inline receive() {
  s = NONE;
  do
  :: s != NONE -> break
  :: else ->
     STEP(k = given + 1);
     help(k);
     STEP(k = given);
     if :: k <= seen -> break :: else fi;
#ifdef LATEST
     n = k;
#elif defined(VIEWER)
     n = (IS_VIEWER(p) -> k : seen + 1);
#else
     n = seen + 1;
#endif
     STEP(k = entry[n % RING]);
     if
     :: OF(k) == n ->
#ifdef LOOK_FIRST
        w = 0;
        STEP(w = word[SLOT(k)]);
        STEP(bits[SLOT(k)] = bits[SLOT(k)] | BIT(p));
#else
        STEP(bits[SLOT(k)] = bits[SLOT(k)] | BIT(p));
        STEP(w = word[SLOT(k)]);
#endif
        if
        :: w == W(READY, 0, n) -> s = SLOT(k)
        :: else ->
           STEP(bits[SLOT(k)] = bits[SLOT(k)] & ~BIT(p));
#ifdef BROADCAST
           // Its claimer sees the cursor, gives the item back, and signals it. For a viewer it may be gone.
           assert(KIND(w) == CLAIMED || IS_VIEWER(p));
           if
           :: KIND(w) == CLAIMED && NUMBER(w) == n -> break
           :: else
           fi
#endif
        fi;
        w = 0
#if defined(LATEST) || defined(VIEWER)
     :: else  // a newer one has its entry
#endif
     fi
  od;
  k = 0;
  w = 0;
  n = (s == NONE -> 0 : n)
}
#endif

proctype consumer(byte p) {
  byte s = NONE, n, e, i, dead, seen;
  short w, k;
#ifdef LOOK_ONCE
  bool is_told = true;
#else
  bool is_told = false;
#endif
again:
  do
  :: announce(ITEM);
     receive();
     if :: s != NONE -> break :: else fi;
#ifndef STOPPED
     clean();
#endif
     if
     :: HAS_ENDED && is_told -> goto ended
     :: HAS_ENDED && !is_told -> is_told = true; goto again  // what was sent before the end is received before it
     :: else
     fi;
     sleep()
  od;
  waits[ITEM] = waits[ITEM] & ~BIT(p);
#ifdef QUEUED
  assert(!(got & BIT(data[s])) || (back & BIT(data[s])));
  got = got | BIT(data[s]);
#else
  assert(data[s] == n);
#ifdef BROADCAST
  if
  :: IS_VIEWER(p)
  :: else ->
     STEP(cursor[p] = n);
     STEP(last_received = (last_received < n -> n : last_received))
  fi;
#endif
  seen = n;
#endif
  assert(data[s] != DIRTY);
  if
#if defined(STRAYS) || defined(BROADCAST)
  :: back == 0 ->  // is put back, once
#ifdef QUEUED
     atomic { true; back = BIT(data[s]) };
     STEP(passed = (passed < n -> n : passed));
#ifdef STRAY_LATE
     STEP(lost = lost & ~BIT(data[s]); word[s] = W(READY, 0, n));
     STEP(strays++);
#else
     STEP(strays++);
     STEP(lost = lost & ~BIT(data[s]); word[s] = W(READY, 0, n));
#endif
#else
     back = BIT(data[s]);
     seen = n - 1;
#ifdef BIT_FIRST
     STEP(bits[s] = bits[s] & ~BIT(p));
     STEP(cursor[p] = n - 1);
#else
     STEP(cursor[p] = n - 1);
     STEP(bits[s] = bits[s] & ~BIT(p));
#endif
#endif
     s = NONE;
     n = 0;
     signal_items();
     signal_room();
     goto again
#endif
  :: true
  fi;
#ifdef QUEUED
  assert(word[s] == W(HELD, p, n));
  STEP(word[s] = FREE);
#else
  assert(data[s] == n);
  STEP(bits[s] = bits[s] & ~BIT(p));
#endif
  s = NONE;
  n = 0;
  signal_room();
  goto again;
ended:
#ifndef QUEUED
  assert(seen == given);
#endif
  waits[ITEM] = waits[ITEM] & ~BIT(p);
  // It has a role no more: it does not hold up a broadcast
  STEP(roles = roles & ~BIT(p));
  signal_room();
  is_done[p] = true;
  goto over;
#ifdef STOPPED
stop:
end_stopped:
  false;
#else
  atomic {
    false;
die:
    fall();
    seen = 0
  }
#endif
over:
  skip
}

// No more deaths
proctype peace() { deaths = DEATHS }

#define ENDED(p) (is_done[p] || !alive[p])
#define IS_OPEN(s) (KIND(word[s]) == FREE || KIND(word[s]) == READY)

init {
  atomic {
    byte q = 0;
    do
    :: q < N -> alive[q] = true; roles = roles | BIT(q); q++
    :: else -> break
    od;
    run producer(0);
#if PRODUCERS == 2
    run producer(1);
#endif
    q = PRODUCERS;
    do
    :: q < N -> run consumer(q); q++
    :: else -> break
    od;
    run peace()
  }
  timeout;
#ifdef STOPPED
  // What the others have sent is received.
  if
  :: who_stops == NONE -> ENDED(0) && ENDED(1) && ENDED(2)
  :: who_stops == 2 -> is_done[0] && is_done[1]
  :: who_stops < 2 -> is_done[1 - who_stops]; assert((got & BIT(value_of[1 - who_stops])) != 0)
  fi;
#else
  // Without a living consumer a producer may wait for room, and a viewer for the producer.
#ifdef VIEWER
  (ENDED(0) || !alive[1]) && ENDED(1) && (ENDED(2) || !ENDED(0));
#elif CONSUMERS == 2
  (ENDED(0) || !(alive[1] || alive[2])) && ENDED(1) && ENDED(2);
#elif PRODUCERS == 2
  ((ENDED(0) && ENDED(1)) || !alive[2]) && ENDED(2);
#else
  (ENDED(0) || ENDED(1)) && ENDED(1);
#endif
  // The dead whom nobody has cleaned: all others are dead or done.
#ifdef QUEUED
  // Who was told of the end has left nothing. What was sent was received, is there, or went with who had it.
  if
  :: !unclean && back == 0 ->
#ifndef REBORN
     assert(!is_done[1] || KIND(word[0]) != READY);
#endif
     assert(IS_OPEN(0));
#if SLOTS == 2
     assert(IS_OPEN(1));
     assert(((got | lost | (KIND(word[0]) == READY -> BIT(data[0]) : 0) |
              (KIND(word[1]) == READY -> BIT(data[1]) : 0)) & sent) == sent)
#else
     assert(((got | lost | (KIND(word[0]) == READY -> BIT(data[0]) : 0)) & sent) == sent)
#endif
  :: else
  fi
#endif
#endif
}
