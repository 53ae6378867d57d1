// SPDX-License-Identifier: Apache-2.0
//
// Process lock: three processes take a lease each on a shared storage of two ranges of bytes. A claim is a
// record in the process's own slot, with a ticket; it is granted when no record of another process conflicts
// that is granted or waits with a lower ticket. Who is blocked reads the turn under the mutex, leaves it, and
// sleeps on the turn and on the life words of the other processes. Any two processes die, each at any of its
// steps: as holder of a lease or of the mutex, waiting, asleep, between a change of the turn and the wake, or
// reaping a dead one. Each death has two steps. First the kernel marks the life word of the process, and wakes
// one sleeper if the word says that somebody sleeps on it; threads inside of system calls may go on writing.
// Then all threads are gone, and the locks of places that the process had fall: that of its own place, and
// that of whom it was reaping. This wakes nobody: who goes to sleep on a word that is marked looks by itself
// whether the lock has fallen. Who was asleep when it was marked wakes all others, so that they do the same.
//
// What is done under the mutex here, is done by single stores in the code, which can be stopped between any
// two: grants shows that. Nothing wakes a sleeper but a wake: no sleep ends by itself. A process that is told of
// a death overwrites the bytes at once.
//
// Law: conflicting leases never overlap, those of ending processes included, until all their threads are gone,
// and disjoint ones run together; whenever nothing
// moves any more, a living process waits only for leases and claims of living ones; the death of a writer is
// told to all that ask for bytes that it had, until they are overwritten; a free slot has no lease.
// variant: SOUND holds
//
// AT_MARK reaps as soon as the life word is marked: a thread of the dead writer goes on under the next lease.
// variant: AT_MARK refuted assertion
// ASLEEP does not look whether the lock of a place has fallen, but waits to be woken.
// variant: ASLEEP refuted deadlock
// SILENT wakes nobody when it finds a mark: the dead one had left before it died, and before it woke others;
// the one sleeper whom the kernel wakes is granted its claim, and nobody reaps.
// variant: SILENT refuted deadlock
// BLOCKERS_ONLY sleeps on the life words of the blockers alone: the one sleeper whom a death wakes dies
// before it reaps, and the other one is never woken. With one death it holds; with a sleep that ends by
// itself, too, SLICED, even with the two faults after it.
// variant: BLOCKERS_ONLY refuted deadlock
// variant: BLOCKERS_ONCE holds
// variant: SLICED holds soak
// FLAG wakes for a flag that whoever leaves clears: it dies before the wake, and the next to leave, for whom
// the others wait, finds no flag. SOUND looks for records that wait.
// variant: FLAG refuted deadlock
// QUIET_REAP wakes only if it found a record: the first reaper died after it had dropped it.
// variant: QUIET_REAP refuted deadlock
// LOOK_FIRST looks at the records before the life words it slept on: granted, it never reaps, and the death
// woke nobody else.
// variant: LOOK_FIRST refuted deadlock
// UNANNOUNCED sleeps on a life word without the bit that makes the kernel wake.
// variant: UNANNOUNCED refuted deadlock
// NO_TURN wakes without changing the turn: who is about to sleep is not reached.
// variant: NO_TURN refuted deadlock
// CLEAR_LATE clears the flag after the wake.
// variant: CLEAR_LATE refuted deadlock
// CHECK_FIRST looks for blockers, leaves the mutex, then registers what it found.
// variant: CHECK_FIRST refuted assertion
// DIED_LATE frees the record before it notes the death: the reaper dies in between.
// variant: DIED_LATE refuted assertion
// ONE_FLAG keeps one note that covers several deaths, and takes all of it: a writer's death is not told.
// variant: ONE_FLAG refuted assertion
// TWO_REAPERS reaps without holding the lock of the place: the slot has a new owner, whose record the slower one
// drops. REBORN is sound with such new owners.
// variant: TWO_REAPERS refuted assertion
// variant: REBORN holds soak
//
// AGAIN: two readers that come back as long as a writer waits. Law: they come to an end. BARGE looks at
// granted records alone: the readers relieve each other for ever.
// variant: AGAIN ends
// variant: BARGE refuted ends

#ifdef BLOCKERS_ONCE
#define BLOCKERS_ONLY
#define DEATHS 1
#endif
#ifdef SLICED
#define BLOCKERS_ONLY
#define FLAG
#define QUIET_REAP
#endif
#ifdef CLEAR_LATE
#define FLAG
#endif
#ifdef TWO_REAPERS
#define REBORN
#endif
#ifdef REBORN
#define DEATHS 1
#endif
#ifdef BARGE
#define AGAIN
#endif
#ifdef AGAIN
#define DEATHS 0
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#define N 3
#define FREE 0
#define DIED 9
#define BIT(i) (1 << (i))

mtype = { none, waiting, granted };

// The segment
mtype state[N] = none;       // of the record of slot p
byte extent[N];              // the ranges as bits
bool writes[N];
byte before[N];              // whose records had lower tickets and were not granted, as bits
byte life[N];                // FREE, 1 + who holds it, DIED
byte place[N];               // the lock: FREE, 1 + who holds it
bool has_sleepers[N];        // the bit in the life word that makes the kernel wake somebody
byte mutex = FREE;           // 1 + who holds it; with nothing to repair, that its owner died is no state
byte died = 0;               // bit e: a writer of extent e died
bool is_awaited = false;

// The kernel
bool alive[N], is_done[N], asleep[N];
byte watches[N];             // the slots on whose life words p sleeps, as bits
bool moved[N];               // the turn is not what p has read
byte deaths = 0;

// For the law
bool holds[N];
byte owed = 0;               // deaths that nobody was told of, as `died`
bool are_released = false;   // those who keep their lease for long

#define OVERLAP(p, b) ((b) != (p) && (extent[p] & extent[b]) && (writes[p] || writes[b]))
#ifdef BARGE
#define BLOCKS(p, b) (OVERLAP(p, b) && state[b] == granted)
#else
#define BLOCKS(p, b) (OVERLAP(p, b) && (state[b] == granted || (before[p] & BIT(b))))
#endif
#define BLOCKED(p) (BLOCKS(p, 0) || BLOCKS(p, 1) || BLOCKS(p, 2))
#ifdef CHECK_FIRST
#define CLEAR(p) (found || !BLOCKED(p))
#else
#define CLEAR(p) (!BLOCKED(p))
#endif
#define BLOCKERS(p) (BLOCKS(p, 0) | (BLOCKS(p, 1) << 1) | (BLOCKS(p, 2) << 2))
#define USED(p, b) ((b) != (p) && life[b] != FREE)
#define OTHERS(p) (USED(p, 0) | (USED(p, 1) << 1) | (USED(p, 2) << 2))
#define WAITS(p, b) ((b) != (p) && state[b] == waiting)
#define SEES_MARK(p, s) ((watches[p] & BIT(s)) && life[s] == DIED)
#ifdef AT_MARK
#define IS_GONE(s) (place[s] == FREE || place[s] == 1 + (s))
#else
#define IS_GONE(s) (place[s] == FREE)
#endif
#define NEW_MARK(p) (!looks && (SEES_MARK(p, 0) || SEES_MARK(p, 1) || SEES_MARK(p, 2)))
#define SEES_DEAD(p, s) (SEES_MARK(p, s) && IS_GONE(s))
#define TOUCHING(e) ((e) == 1 -> 10 : ((e) == 2 -> 12 : 14))
#define HELD(p, b) (holds[b] && OVERLAP(p, b))
#define DEAD(p, b) (BLOCKS(p, b) && !alive[b])
#define STUCK(p) (alive[p] && state[p] == waiting && (!BLOCKED(p) || DEAD(p, 0) || DEAD(p, 1) || DEAD(p, 2)))
#define ENDED(p) (is_done[p] || !alive[p])

#ifdef BLOCKERS_ONLY
#define TO_WATCH(p) BLOCKERS(p)
#else
#define TO_WATCH(p) OTHERS(p)
#endif
#ifdef FLAG
#define AWAITED(p) is_awaited
#else
#define AWAITED(p) (WAITS(p, 0) || WAITS(p, 1) || WAITS(p, 2))
#endif
#ifdef ONE_FLAG
#define ADD(d, e) ((d) -> BIT(3) : BIT(e))
#define TAKE(d, e) 0
#else
#define ADD(d, e) ((d) | BIT(e))
#define TAKE(d, e) ((d) & ~TOUCHING(e))
#endif

inline drop(b) {
  state[b] = none;
  before[0] = before[0] & ~BIT(b);
  before[1] = before[1] & ~BIT(b);
  before[2] = before[2] & ~BIT(b);
  before[b] = 0
}

#define AWAKE(q) (state[q] == waiting && !asleep[q])  // only they compare it
inline move_turn() { moved[0] = AWAKE(0); moved[1] = AWAKE(1); moved[2] = AWAKE(2) }
inline wake_all() { asleep[0] = false; asleep[1] = false; asleep[2] = false }

#define SLEEPS_ON(q, s) (has_sleepers[s] && asleep[q] && (watches[q] & BIT(s)))
inline wake_one(s_) {
  if
  :: SLEEPS_ON(0, s_) -> asleep[0] = false
  :: SLEEPS_ON(1, s_) -> asleep[1] = false
  :: SLEEPS_ON(2, s_) -> asleep[2] = false
  :: else
  fi
}

#define MAY_DIE :: atomic { deaths < DEATHS -> goto die }

// p's record, granted or waiting
inline give_back() {
  if
  MAY_DIE
  :: atomic { mutex == FREE -> mutex = 1 + p; holds[p] = false; drop(p); found = AWAITED(p) }
  fi;
#if defined(FLAG) && !defined(CLEAR_LATE)
  if
  MAY_DIE
  :: is_awaited = false
  fi;
#endif
  if
  MAY_DIE
  :: atomic {
       true;
       if
       :: found ->
#ifndef NO_TURN
          move_turn();
#endif
       :: else
       fi;
       mutex = FREE
     }
  fi;
  if
  MAY_DIE
  :: atomic {
       true;
       if :: found -> wake_all() :: else fi;
       found = false
     }
  fi
#ifdef CLEAR_LATE
  ; is_awaited = false
#endif
}

// who holds the lock of the dead one's place
inline reap() {
  if
  MAY_DIE
  :: atomic {
       mutex == FREE -> mutex = 1 + p;
       found = state[s] != none;
       was_granted = state[s] == granted && writes[s];
#ifdef DIED_LATE
       drop(s)
#else
       if :: was_granted -> died = ADD(died, extent[s]) :: else fi
#endif
     }
  fi;
  if
  MAY_DIE
  :: atomic {
#ifdef DIED_LATE
       true;
       if :: was_granted -> died = ADD(died, extent[s]) :: else fi;
#else
       drop(s);
#endif
       was_granted = false
     }
  fi;
  if
  MAY_DIE
  :: atomic {
#ifdef QUIET_REAP
       true;
       if :: found -> move_turn() :: else fi;
#else
       found = true;
       move_turn();
#endif
       mutex = FREE
     }
  fi;
  if
  MAY_DIE
  :: atomic {
       true;
       if :: found -> wake_all() :: else fi;
       found = false
     }
  fi;
  if
  MAY_DIE
  :: atomic {
       assert(state[s] == none);
       if :: !alive[s] -> extent[s] = 0; writes[s] = false :: else fi;
       life[s] = FREE;
       place[s] = FREE;
       has_sleepers[s] = false;
       s = N
     }
  fi
}

inline evaluate() {
  if
  :: CLEAR(p) && (died & TOUCHING(extent[p])) ->
     assert(owed & TOUCHING(extent[p]));
     owed = owed & ~TOUCHING(extent[p]);
     died = TAKE(died, extent[p]);
     is_told = true
  :: CLEAR(p) && !(died & TOUCHING(extent[p])) ->
     assert(!(owed & TOUCHING(extent[p])));
     assert(!HELD(p, 0) && !HELD(p, 1) && !HELD(p, 2));
     holds[p] = true;
     state[p] = granted;
     before[0] = before[0] & ~BIT(p);
     before[1] = before[1] & ~BIT(p);
     before[2] = before[2] & ~BIT(p);
     before[p] = 0
  :: else ->
     moved[p] = false;
#ifdef FLAG
     is_awaited = true;
#endif
     watches[p] = TO_WATCH(p)
  fi;
  mutex = FREE
}

// until there is something to look at
inline sleep() {
  if
  MAY_DIE
  :: atomic {
       true;
       if
       :: SEES_DEAD(p, 0) || SEES_DEAD(p, 1) || SEES_DEAD(p, 2) || moved[p] -> looks = true
       :: else ->
          asleep[p] = true;
          looks = SEES_MARK(p, 0) || SEES_MARK(p, 1) || SEES_MARK(p, 2);
#ifndef UNANNOUNCED
          has_sleepers[0] = has_sleepers[0] || (watches[p] & 1);
          has_sleepers[1] = has_sleepers[1] || (watches[p] & 2);
          has_sleepers[2] = has_sleepers[2] || (watches[p] & 4);
#endif
#ifndef AGAIN
          if :: has_deadline = true :: true fi
#endif
       fi;
       moved[p] = false
     }
  fi;
end_asleep:
  if
  MAY_DIE
  :: atomic { !asleep[p] -> has_deadline = false }
  :: atomic { has_deadline -> asleep[p] = false; has_deadline = false; times_out = true }
#ifndef ASLEEP
  :: atomic {
       asleep[p] && looks && (SEES_DEAD(p, 0) || SEES_DEAD(p, 1) || SEES_DEAD(p, 2)) ->
       asleep[p] = false;
       has_deadline = false
     }
#endif
#ifdef SLICED
  :: atomic { asleep[p] && STUCK(p) -> asleep[p] = false; has_deadline = false }
#endif
  fi
}

#ifdef TWO_REAPERS
#define TAKE_LIFE(s_) atomic { SEES_DEAD(p, s_) -> s = s_ }
#else
#define TAKE_LIFE(s_) atomic { SEES_DEAD(p, s_) -> s = s_; place[s] = 1 + p }
#endif
#define FALLS(s_) if :: place[s_] == 1 + p -> place[s_] = FREE :: else fi

proctype process(byte p) {
  byte s = N;
  bool has_deadline, times_out, found, was_granted, is_told, looks;
again:
#ifdef CHECK_FIRST
  if
  MAY_DIE
  :: atomic { mutex == FREE -> found = !BLOCKED(p) }  // who waits is not in the way of who is not registered
  fi;
#endif
  if
  MAY_DIE
  :: atomic {
       mutex == FREE -> mutex = 1 + p;
       before[p] = WAITS(p, 0) | (WAITS(p, 1) << 1) | (WAITS(p, 2) << 2);
       state[p] = waiting
     }
  fi;
  if
  MAY_DIE
  :: atomic { true; evaluate() }
  fi;
  do
  :: atomic { state[p] == granted || is_told -> break }
  :: atomic { state[p] == waiting && !is_told -> skip }
     sleep();
     if
     :: atomic { times_out -> watches[p] = 0; times_out = false; looks = false; break }
     :: !times_out
     fi;
#ifndef LOOK_FIRST
#ifndef SILENT
     if
     MAY_DIE
     :: atomic { NEW_MARK(p) && mutex == FREE -> found = true; move_turn() }
     :: atomic { !NEW_MARK(p) -> skip }
     fi;
     if
     MAY_DIE
     :: atomic { found -> wake_all(); found = false }
     :: !found
     fi;
#endif
     do
     MAY_DIE
     :: TAKE_LIFE(0) reap()
     :: TAKE_LIFE(1) reap()
     :: TAKE_LIFE(2) reap()
     :: !SEES_DEAD(p, 0) && !SEES_DEAD(p, 1) && !SEES_DEAD(p, 2) -> break
     od;
#endif
     if
     MAY_DIE
     :: atomic { mutex == FREE -> watches[p] = 0; looks = false; evaluate() }
     fi
  od;
  if
  :: true
  :: holds[p] ->
end_keeps:
     if
     MAY_DIE
     :: are_released
     fi
  fi;
  give_back();
#ifdef AGAIN
  if
  :: atomic { !writes[p] && state[2] == waiting -> goto again }
  :: writes[p] || state[2] != waiting
  fi;
#endif
  atomic { is_done[p] = true; is_told = false }
  goto over;
  atomic {
    false;
die:
    alive[p] = false;
    deaths++;
    asleep[p] = false;
    watches[p] = 0;
    moved[p] = false;
    s = N; has_deadline = false; times_out = false; found = false; was_granted = false; is_told = false;
    looks = false;
    if
    :: state[p] == granted && writes[p] -> owed = owed | BIT(extent[p])
    :: else
    fi;
    if
    :: mutex == 1 + p -> mutex = FREE
    :: else
    fi;
    wake_one(p);
    life[p] = DIED
  }
  atomic {
    holds[p] = false;
    FALLS(0);
    FALLS(1);
    FALLS(2)
  }
#ifdef REBORN
  if
  :: atomic { life[p] == FREE && place[p] == FREE -> life[p] = 1 + p; place[p] = 1 + p; alive[p] = true; goto again }
  :: true
  fi;
#endif
over:
  skip
}

// No more deaths
proctype peace() { deaths = DEATHS }

inline claim(p, want_) {
  extent[p] = want_ / 2;
  writes[p] = want_ % 2;
  alive[p] = true;
  life[p] = 1 + p;
  place[p] = 1 + p
}

// The processes are alike: their claims are in rising order
inline choose(p) {
  do
  :: want < 7 -> want = (want == 2 -> 3 : want + 2)
  :: break
  od;
  claim(p, want)
}

init {
  byte want = 2;
  atomic {
#ifdef AGAIN
    claim(0, 2);
    claim(1, 2);
    claim(2, 3);
#else
    choose(0);
    choose(1);
    choose(2);
#endif
    want = 0;
    run process(0);
    run process(1);
    run process(2);
    run peace()
  }
  timeout;
  !STUCK(0) && !STUCK(1) && !STUCK(2);
  are_released = true;
  ENDED(0) && ENDED(1) && ENDED(2)
}
