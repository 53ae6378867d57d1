// SPDX-License-Identifier: Apache-2.0
//
// Channel: a producer fills slots and sends them, and two consumers receive them. A slot's item is one
// number, 0: none. The processes that use a slot are a set of bits; a bit has no effect after the death of its
// process (process_lock.pml models how deaths are noticed). slots.pml models how slots pass without a lock; this
// model is about what processes are told of ends and deaths. So here numbers change, and bits are set, under one
// mutex, which stands for single exchanges of words and for the lock of the place of a dead process; a bit is
// cleared without it. A process that finds nothing to do
// announces itself at an event, reads the turn of the event, tries again, and sleeps on the turn and on the life
// words of the others. (One that polls reads the same words instead.) Any two of the three processes die, each at
// any step. The kernel then frees the mutex and wakes one of the processes that sleep on the life word. Nothing
// else ends a sleep.
//
// Law: whenever no step is possible, no living process sleeps that could continue: no wake-up is lost. In the
// end all slots can be used. At most one consumer receives an item. An item that was sent arrives, or was
// held by a consumer that died. An item that a consumer holds is complete and does not change.
// variant: SOUND holds
// LATEST keeps the newest item for all: a consumer that is told of the end has received the newest item.
// variant: LATEST holds soak
//
// TURN_LATE reads the turn after it has tried.
// variant: TURN_LATE refuted deadlock
// EVENT_ALONE does not sleep on life words.
// variant: EVENT_ALONE refuted deadlock
// PRODUCER_ALONE sleeps on the producer's life word, but not on that of the other consumer, which was woken
// and died.
// variant: PRODUCER_ALONE refuted deadlock
// ITEM_FIRST takes an item after a wake, and does not look for deaths, although only it was woken.
// variant: ITEM_FIRST refuted deadlock
// KEPT_QUIET wakes the others only if the dead process had a role: it had closed, and died before it
// signaled.
// variant: KEPT_QUIET refuted deadlock
// CLOSED_LATE ends its role before it counts the end, and dies in between.
// variant: CLOSED_LATE refuted deadlock
// MARKED counts the bits of dead processes, too.
// variant: MARKED refuted deadlock
// NUMBER_KEPT does not remove the number of a received item: it is received again.
// variant: NUMBER_KEPT refuted assertion
// UNLOCKED receives without the mutex: both consumers take one item.
// variant: UNLOCKED refuted assertion
// NUMBER_EARLY shows the latest item before it is complete.
// variant: NUMBER_EARLY refuted assertion
// LAST_GIVEN takes the last assigned number for the newest item: the sender died before it sent this item,
// and the item before it is hidden.
// variant: LAST_GIVEN refuted assertion
// IN_USE gives the producer a slot that a consumer reads.
// variant: IN_USE refuted assertion
//
// THREADS are consumers of one process, with one common bit in the event. No process dies. SILENCED leaves
// the event by clearing the bit while the other thread sleeps.
// variant: THREADS holds
// variant: SILENCED refuted deadlock

#if defined(NUMBER_EARLY) || defined(LAST_GIVEN) || defined(IN_USE)
#define LATEST
#endif
#ifdef SILENCED
#define THREADS
#endif
#ifdef THREADS
#define DEATHS 0
#else
#define DEATHS 2
#endif
#ifdef LATEST
#define SLOTS 2
#define ITEMS 3
#else
#define SLOTS 1
#define ITEMS 2
#endif
#define N 3
#define NONE 9
#define DIRTY 99
#define BIT(i) (1 << (i))
#ifdef THREADS
#define PLACE(p) ((p) == 2 -> 1 : (p))
#else
#define PLACE(p) (p)
#endif

// The memory
byte number[SLOTS];          // of the item in the slot
byte holders[SLOTS];         // as bits
byte data[SLOTS];
byte last = 0;               // number that was given
byte mutex = 0;              // 1 + who holds it
byte roles = 7;              // who takes part, as bits
bool is_closed = false;
byte waits[2];               // of the events: who may sleep, as bits
#ifdef THREADS
byte sleepers = 0;           // of the one process' threads
#endif
#define ITEM 0               // the event of the consumers
#define ROOM 1               // that of the producer

// The kernel
bool alive[N] = true, asleep[N], moved[N], is_done[N];
byte watches[N];             // on whose life words it sleeps
byte deaths = 0;

// For the law
byte sent = 0;               // the newest
byte received = 0;           // items that somebody got, as bits
byte lost = 0;               // items that died with who had them
bool are_released = false;   // those who keep an item for long

#define ALIVE(p) (alive[p] -> BIT(p) : 0)
#define LIVING (ALIVE(0) | ALIVE(1) | ALIVE(2))
#ifdef MARKED
#define IS_IDLE(s) (holders[s] == 0)
#else
#define IS_IDLE(s) ((holders[s] & LIVING) == 0)
#endif
#ifdef LATEST
#define LARGER(a, b) ((a) > (b) -> (a) : (b))
#ifdef LAST_GIVEN
#define NEWEST last
#else
#define NEWEST LARGER(number[0], number[1])
#endif
#define IS_READY(s, p) (number[s] != 0 && number[s] == NEWEST && number[s] > cursor[p])
#define READY(p) (IS_READY(0, p) -> 0 : (IS_READY(1, p) -> 1 : NONE))
#ifdef IN_USE
#define IS_SPARE(s) (number[s] == 0 || number[s] != NEWEST)
#else
#define IS_SPARE(s) ((number[s] == 0 || number[s] != NEWEST) && IS_IDLE(s))
#endif
#define SPARE (IS_SPARE(0) -> 0 : (IS_SPARE(1) -> 1 : NONE))
byte cursor[N];
#else
#define READY(p) (number[0] != 0 && IS_IDLE(0) -> 0 : NONE)
#define SPARE (number[0] == 0 && IS_IDLE(0) -> 0 : NONE)
#endif

#define HAS_ENDED (!(roles & 1) && is_closed)
#define UNNOTED (roles & ~LIVING)
#define SEES_DEAD(p) ((watches[p] & ~LIVING) != 0)
#define STUCK(p) (alive[p] && asleep[p] && (READY(p) != NONE || HAS_ENDED || (UNNOTED & 1)))
#define STUCK_PRODUCER (alive[0] && asleep[0] && SPARE != NONE)
#define ENDED(p) (is_done[p] || !alive[p])
#ifdef EVENT_ALONE
#define TO_WATCH(p) 0
#elif defined(PRODUCER_ALONE)
#define TO_WATCH(p) (LIVING & ((p) == 0 -> 6 : 1))
#elif defined(THREADS)
#define TO_WATCH(p) (LIVING & ((p) == 0 -> 6 : 1))
#else
#define TO_WATCH(p) (LIVING & ~BIT(p))
#endif

#if DEATHS
#define MAY_DIE :: atomic { deaths < DEATHS -> goto die }
#else
#define MAY_DIE
#endif

inline wake_consumers() { asleep[1] = false; asleep[2] = false }
inline ring_items() {
  if
  MAY_DIE
  :: atomic { true; moved[1] = true; moved[2] = true }
  fi;
  if
  MAY_DIE
  :: atomic { true; if :: waits[ITEM] -> wake_consumers() :: else fi }
  fi
}
inline ring_room() {
  if
  MAY_DIE
  :: moved[0] = true
  fi;
  if
  MAY_DIE
  :: atomic { true; if :: waits[ROOM] -> asleep[0] = false :: else fi }
  fi
}
#define SLEEPS_ON(q, p) (asleep[q] && (watches[q] & BIT(p)))
inline wake_one(p) {
  if
  :: SLEEPS_ON(0, p) -> asleep[0] = false
  :: SLEEPS_ON(1, p) -> asleep[1] = false
  :: SLEEPS_ON(2, p) -> asleep[2] = false
  :: else
  fi
}

inline announce(event) {
  if
  MAY_DIE
  :: atomic {
       true;
#ifdef THREADS
       sleepers = sleepers | BIT(p);
#endif
       waits[event] = waits[event] | BIT(PLACE(p));
       moved[p] = false;
       watches[p] = TO_WATCH(p)
     }
  fi
}
// What the dead leave; requires the mutex.
inline look() {
#if DEATHS
  do
  :: atomic { UNNOTED -> dead = (UNNOTED & 1 -> 0 : (UNNOTED & 2 -> 1 : 2)) }
     if
     MAY_DIE
     :: atomic { true; is_closed = is_closed || dead == 0 }
     fi;
     if
     MAY_DIE
     :: roles = roles & ~BIT(dead)
     fi;
     dead = 0;
     ring_items();
     ring_room()
  :: else -> break
  od
#else
  skip
#endif
}
inline enter() {
  if
  MAY_DIE
  :: atomic { mutex == 0 -> mutex = 1 + p }
  fi
}
inline leave() {
  if
  MAY_DIE
  :: mutex = 0
  fi
}
inline sleep() {
  if
  MAY_DIE
  :: atomic {
       true;
#ifdef TURN_LATE
       moved[p] = false;
#endif
       if
       :: moved[p] || SEES_DEAD(p)
       :: else -> asleep[p] = true
       fi
     }
  fi;
end_asleep:
  if
  MAY_DIE
  :: !asleep[p]
  fi;
#if DEATHS && !defined(ITEM_FIRST)
  if
  :: SEES_DEAD(p) ->
     enter();
     look();
     leave();
#ifndef KEPT_QUIET
     ring_items();
     ring_room()
#endif
  :: else
  fi
#endif
}

// p dies
inline fall() {
  alive[p] = false;
  deaths++;
  asleep[p] = false;
  watches[p] = 0;
  moved[p] = false;
  mutex = (mutex == 1 + p -> 0 : mutex);
  wake_one(p)
}

proctype producer(byte p) {
  byte s = NONE, item, dead;
  do
  :: item == ITEMS -> break
  :: else ->
     do
     :: announce(ROOM);
        enter();
        s = SPARE;
        if
        :: s != NONE -> break
        :: else
        fi;
#ifndef LATEST
        look();
#endif
        leave();
        sleep()
     od;
     if
     MAY_DIE
     :: holders[s] = holders[s] | BIT(p)
     fi;
#ifdef LATEST
     if
     MAY_DIE
     :: number[s] = 0
     fi;
#endif
     leave();
     waits[ROOM] = 0;
     item++;
#ifdef NUMBER_EARLY
     number[s] = item;
     sent = item;
#endif
     if
     MAY_DIE
     :: data[s] = DIRTY
     fi;
     if
     MAY_DIE
     :: data[s] = item
     fi;
     enter();
     if
     MAY_DIE
     :: holders[s] = holders[s] & ~BIT(p)
     fi;
     if
     MAY_DIE
     :: last = item
     fi;
     if
     MAY_DIE
     :: atomic { number[s] = item; sent = item }
     fi;
     s = NONE;
     leave();
     ring_items()
  od;
  enter();
#ifdef CLOSED_LATE
  if
  MAY_DIE
  :: roles = roles & ~1
  fi;
  if
  MAY_DIE
  :: is_closed = true
  fi;
#else
  if
  MAY_DIE
  :: is_closed = true
  fi;
  if
  MAY_DIE
  :: roles = roles & ~1
  fi;
#endif
  leave();
  ring_items();
  is_done[p] = true;
#if DEATHS
  goto over;
  atomic {
    false;
die:
    fall();
    s = NONE;
    item = 0;
    dead = 0
  }
over:
#endif
  skip
}

proctype consumer(byte p) {
  byte s = NONE, item, dead;
again:
  do
  :: announce(ITEM);
#ifdef UNLOCKED
     s = READY(p);
     if
     :: s != NONE -> item = number[s]
     :: else
     fi;
#endif
     enter();
#ifndef UNLOCKED
     s = READY(p);
#endif
     if
     :: s != NONE -> break
     :: else
     fi;
     look();
     if
     :: HAS_ENDED -> leave(); goto ended
     :: else
     fi;
     leave();
     sleep()
  od;
#ifndef UNLOCKED
  item = number[s];
#endif
  if
  MAY_DIE
  :: holders[s] = holders[s] | BIT(p)
  fi;
#ifdef LATEST
  if
  MAY_DIE
  :: cursor[p] = item
  fi;
#elif !defined(NUMBER_KEPT)
  if
  MAY_DIE
  :: atomic { number[s] = 0; lost = lost | BIT(item) }
  fi;
#endif
  leave();
#ifdef THREADS
  atomic {
    true;
    sleepers = sleepers & ~BIT(p);
#ifndef SILENCED
    if
    :: sleepers == 0 ->
#endif
       waits[ITEM] = waits[ITEM] & ~BIT(PLACE(p))
#ifndef SILENCED
    :: else  // another thread of the process may sleep
    fi
#endif
  };
#endif
#ifndef LATEST
  atomic { assert(!(received & BIT(item))); received = received | BIT(item) }
#endif
  assert(data[s] == item);
  if
  :: true
  :: true ->
end_keeps:
     if
     MAY_DIE
     :: are_released
     fi
  fi;
  assert(data[s] == item);
  if
  MAY_DIE
  :: holders[s] = holders[s] & ~BIT(p)
  fi;
  s = NONE;
  item = 0;
  ring_room();
  goto again;
ended:
#ifdef LATEST
  assert(cursor[p] >= sent);
#endif
  is_done[p] = true;
#if DEATHS
  goto over;
  atomic {
    false;
die:
    fall();
    s = NONE;
    item = 0;
    dead = 0
  }
over:
#endif
  skip
}

// No more deaths
proctype peace() { deaths = DEATHS }

init {
  atomic { run producer(0); run consumer(1); run consumer(2); run peace() }
  timeout;
  !STUCK_PRODUCER && !STUCK(1) && !STUCK(2);
  are_released = true;
  (ENDED(0) || !(alive[1] || alive[2])) && ENDED(1) && ENDED(2);
#ifdef LATEST
  IS_IDLE(0) && IS_IDLE(1);
#else
  IS_IDLE(0);
  // What was sent is there, or was received, or was in the hands of who died.
  assert(sent == 0 || (received | lost | BIT(number[0])) & BIT(sent))
#endif
}
