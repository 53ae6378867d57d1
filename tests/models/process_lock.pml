// SPDX-License-Identifier: Apache-2.0
//
// Process lock: each of three processes takes a lease of bytes of one block, without a mutex. A process has a
// grant in its own place. Only the process writes it as long as it exists: arriving, then waiting with a
// ticket, then granted, then free. Afterwards the process that has the lock of the place writes the grant.
//
// A step of the model is one store to shared memory, with loads whose order makes no difference. Comments
// give the names of the functions. A grant is read in one step. This is sound: if the grant is used again
// meanwhile, the request that was seen has ended, and the next one has a higher ticket.
//
// Deaths: any process dies, at any step. First the kernel marks its life word, and wakes one of the processes
// that sleep on it. Other threads of the dying process continue their stores. Later they have ended, and the
// kernel releases the locks of places that they held, which wakes no process. Stops: any process stops at any
// step, also while it dies or cleans up after a dead process, until no other step is possible. Then it
// continues, or is killed. A wait of process 1 may end by its timeout at any time.
//
// A sleep ends by a wake, or because a word has another value. It ends by itself (EndingPace) when a process
// has ended on whose marked life word it sleeps. It also ends by itself (a slice of 50 ms) while a process is
// stopped or when two have died, because the process that should wake others may be one of these.
//
// Law: two processes that conflict never hold the bytes together; a dying process holds them until it has
// ended. Whenever no step is possible, a process sleeps only behind a living process that holds the bytes or
// came first, or behind a dead one after which a stopped one cleans up. A release consists of steps that
// never wait. Each process that would be granted bytes of a dead writer is told of the death, until a process
// with a write lease has overwritten the bytes. No other process is told. In the end all processes have
// ended, and the grants contain the deaths that were not healed.
// variant: SOUND holds
// TWO_DEATHS: two processes die, and none stops. ALL has both, and more requests.
// variant: TWO_DEATHS holds
// variant: ALL holds soak
// REBORN: another process gets the place of the dead one.
// variant: REBORN holds
// SAME_ARRIVAL takes the request of the new process for that of the dead one, and does not announce its wait.
// variant: SAME_ARRIVAL refuted deadlock
//
// NO_ARRIVAL takes the ticket before the grant is visible: the next process is granted meanwhile.
// variant: NO_ARRIVAL refuted assertion
// GRANTED_ALONE reads only granted grants.
// variant: GRANTED_ALONE refuted assertion
// TURN_LATE reads the turn after the grants: a release in between wakes no process.
// variant: TURN_LATE refuted deadlock
// TURN_FIRST changes the turn before the release.
// variant: TURN_FIRST refuted deadlock
// UNTOLD does not announce that it waits for an arriving request.
// variant: UNTOLD refuted deadlock
// TOLD_ONCE announces it and does not read the grants again: the request had its ticket already.
// variant: TOLD_ONCE refuted deadlock
// AT_MARK reaps as soon as the life word is marked: a thread of the dead writer writes under the next lease.
// variant: AT_MARK refuted assertion
// ASLEEP does not poll the lock of the place, but waits for a wake.
// variant: ASLEEP refuted deadlock
// SILENT does not wake the others after the kernel has woken it. The dead process had released, and died
// before its wake.
// variant: SILENT refuted deadlock
// LOOK_FIRST reads the grants before it wakes the others: it is granted, and does not wake them.
// variant: LOOK_FIRST refuted deadlock
// UNANNOUNCED sleeps on a life word without the bit that makes the kernel wake.
// variant: UNANNOUNCED refuted deadlock
// NO_SLICE never ends a sleep by itself: the process that should wake others is stopped.
// variant: NO_SLICE refuted deadlock
// DIED_LATE frees the grant before it notes the death.
// variant: DIED_LATE refuted assertion
// TWO_REAPERS reaps without the lock of the place: the slower reaper drops the grant of a new process in the
// place.
// variant: TWO_REAPERS refuted assertion
//
// HEALERS: process 1 dies with all of three ranges. Process 0 overwrites the middle one, so that the last
// part of the death goes to another grant. Process 2 overwrites, or reads, the last range. If both heal at
// the same time, the last part may return after it was overwritten. So a death may be told too often, but
// never too seldom.
// variant: HEALERS holds
// MOVE_UNSEEN does not check whether bytes of a death moved to another grant while it read the grants.
// variant: MOVE_UNSEEN refuted assertion
// CUT_FIRST shortens the death before its last part is in another grant.
// variant: CUT_FIRST refuted assertion
//
// THREADS: processes 1 and 2 are threads of one process, with one common bit in Block::waiting. No process
// dies.
// variant: THREADS holds
// SILENCED clears the bit without a check whether the other thread has begun to wait.
// variant: SILENCED refuted deadlock
//
// AGAIN: two readers take further leases as long as a writer waits. Law: this ends.
// variant: AGAIN ends
// BARGE reads only granted and arriving grants: the readers alternate for ever.
// variant: BARGE refuted ends

#if defined(TWO_DEATHS)
#define DEATHS 2
#define STOPS 0
#elif defined(ALL)
#define DEATHS 2
#define STOPS 1
#elif defined(THREADS) || defined(SILENCED)
#define MANY
#define DEATHS 0
#define STOPS 0
#elif defined(AGAIN) || defined(BARGE)
#define RETURN
#define DEATHS 0
#define STOPS 0
#elif defined(REBORN) || defined(SAME_ARRIVAL) || defined(TWO_REAPERS)
#define RENEW
#define DEATHS 1
#define STOPS 0
#elif defined(HEALERS) || defined(MOVE_UNSEEN) || defined(CUT_FIRST)
#define SPLIT
#define DEATHS 1
#define STOPS 0
#else
#define DEATHS 1
#define STOPS 1
#endif

#define N 3
#define BIT(i) (1 << (i))
#ifdef MANY
#define SLOT(p) ((p) == 2 -> 1 : (p))
#else
#define SLOT(p) (p)
#endif

mtype = { none, arriving, waiting, granted, died };

// The segment
mtype state[N] = none;       // of the grant of process p, in its place
byte bytes[N];               // of the grant: ranges as bits
bool writes[N];
bool overwrites[N];          // all of it: heals, and is not told of a death
byte before[N];              // whose tickets are lower, as bits
#ifdef NO_ARRIVAL
byte tickets = 0;            // who has one
#endif
byte waits = 0;              // Block::waiting: places that may have grants that wait
byte live = 7;               // places in use
byte place[N];               // the lock of the place: 1 + who has it; 0: nobody
byte is_marked = 0;          // life words
#if defined(RENEW) && !defined(SAME_ARRIVAL)
byte reborn = 0;             // Place::generation
#endif
#ifdef SPLIT
byte rest[N];                // the grant of p that holds a part of a death: its bytes
#endif
// What has moved since p read it, as bits
byte turn_moved = 0;         // Block::changes
byte arrivals_moved = 0;     // Block::arrivals_seen
byte deaths_moved = 0;       // Block::death_moves

// The kernel
byte asleep = 0;
byte watches[N];             // on whose life words p sleeps; whose grants are in its way
byte stale[N];               // of those, which were marked already when it read them
byte polls = 0;              // who sleeps for short, as one on whose life word it sleeps is ending
byte is_gone = 0;
byte falls = 0;              // 1 + who is going
byte stopped = N;
#if STOPS
bool has_stopped = false;
#endif
#define HALT 99                // nothing moves any more
byte deaths = 0;

// For the law
byte holds = 0;
byte owed = 0;               // the ranges that a dead writer had, and nobody has overwritten
byte done = 0;
byte keeps = 0;              // who has its lease for long
bool are_released = false;   // from then on for short

#define IN(p, mask) (((mask) & BIT(p)) != 0)
#define CONFLICT(p, q) (SLOT(p) != SLOT(q) && (bytes[p] & bytes[q]) && (writes[p] || writes[q]))
#define IS_LEASE(q) (state[q] == arriving || state[q] == waiting || state[q] == granted)
#if defined(GRANTED_ALONE)
#define IS_FIRST(p, q) (state[q] == granted)
#elif defined(BARGE)
#define IS_FIRST(p, q) (state[q] == granted || state[q] == arriving)
#else
#define IS_FIRST(p, q) \
  (state[q] == granted || state[q] == arriving || (state[q] == waiting && IN(q, before[p])))
#endif
#define IN_WAY(p, q) (CONFLICT(p, q) && IS_FIRST(p, q))

// PlaceLocks::try_lock() of reap() succeeds.
#if defined(AT_MARK)
#define IS_REAPABLE(q) (IN(q, live) && IN(q, is_marked) && (place[q] == 0 || place[q] == 1 + q))
#elif defined(TWO_REAPERS)
#define IS_REAPABLE(q) (IN(q, live) && place[q] != 1 + q)
#else
#define IS_REAPABLE(q) (IN(q, live) && place[q] == 0)
#endif
#define IS_ENDING ((watches[p] & is_marked) != 0)

// One that is there, or that a stopped one is giving back.
#define IS_BEHIND(p, q) (IN_WAY(p, q) && (!IN(q, is_gone) || place[q] != 0))
#define IS_LOST(p) \
  (IN(p, asleep) && stopped != p && !IS_BEHIND(p, 0) && !IS_BEHIND(p, 1) && !IS_BEHIND(p, 2))
#ifdef NO_SLICE
#define HAS_SLICES false
#else
#define HAS_SLICES (stopped != N || deaths > 1)
#endif
#define HAS_REAPABLE(p, q) (IN(q, watches[p]) && IS_REAPABLE(q))
#ifdef ASLEEP
#define SEES_END(p) false
#else
#define SEES_END(p) (IN(p, polls) && (HAS_REAPABLE(p, 0) || HAS_REAPABLE(p, 1) || HAS_REAPABLE(p, 2)))
#endif
#define REAPS_ANY (HAS_REAPABLE(p, 0) || HAS_REAPABLE(p, 1) || HAS_REAPABLE(p, 2))
inline take_place() {
  s = (HAS_REAPABLE(p, 0) -> 0 : (HAS_REAPABLE(p, 1) -> 1 : 2));
  place[s] = 1 + p
}
// The sleep ends by itself: EndingPace, or a slice.
#define CAN_WAKE(p) (IN(p, asleep) && stopped != p && (SEES_END(p) || (HAS_SLICES && IS_LOST(p))))
#define HELD(p, q) (IN(q, holds) && CONFLICT(p, q))
#define ENDS_LEASE (!IN(p, keeps) || are_released)
#define ENDED ((done | is_gone) == 7)

#define READS(q) (state[q] == waiting && !IN(q, asleep) -> BIT(q) : 0)  // only these compare it
inline move_turn() { turn_moved = READS(0) | READS(1) | READS(2) }

// note_change(): the turn, then a wake if a bit is set in Block::waiting.
inline note_change() {
  d_step { move_turn() }
  d_step { if :: waits != 0 -> asleep = 0 :: else fi }
}

#ifdef NO_ARRIVAL
#define TICKETS tickets
#else
#define HAS_TICKET(q) (state[q] == waiting -> BIT(q) : 0)
#define TICKETS (HAS_TICKET(0) | HAS_TICKET(1) | HAS_TICKET(2))
#endif

inline forget_ticket(q_) {
#ifdef NO_ARRIVAL
  tickets = tickets & ~BIT(q_);
#endif
  before[0] = before[0] & ~BIT(q_);
  before[1] = before[1] & ~BIT(q_);
  before[2] = before[2] & ~BIT(q_);
  before[q_] = 0
}

#ifdef MANY
#define OTHER_WAITS (p != 0 && (state[3 - p] == arriving || state[3 - p] == waiting))
// ProcessLock::end_wait(), behind its store of the state: the bit goes when no other thread waits.
inline end_wait() {
  if
  :: atomic { OTHER_WAITS -> skip }
  :: atomic { !OTHER_WAITS -> skip }
     waits = waits & ~BIT(SLOT(p));
#ifndef SILENCED
     if
     :: atomic { OTHER_WAITS -> waits = waits | BIT(SLOT(p)) }
        asleep = 0
     :: atomic { !OTHER_WAITS -> skip }
     fi
#endif
  fi
}
#define END_WAIT
#else
#define END_WAIT waits = waits & ~BIT(p)  // a wake more at most, if it came later
#endif

#define HAS_NOTED(q) (q != s && state[q] == died && (bytes[q] & bytes[s]) == bytes[s])
// reap(), which has the lock of the place: clear(), drop_grant(), note_death()
inline reap() {
#ifdef DIED_LATE
  was_granted = state[s] == granted && writes[s];
  atomic { if :: IS_LEASE(s) -> state[s] = none; forget_ticket(s) :: else fi }
  atomic { if :: was_granted -> state[s] = died; was_granted = false :: else fi }
#else
  atomic {
    if
    :: IS_LEASE(s) ->
       if
       :: state[s] == granted && writes[s] && !HAS_NOTED(0) && !HAS_NOTED(1) && !HAS_NOTED(2) ->
          state[s] = died
       :: else -> state[s] = none  // is_noted(), or nothing was written
       fi;
       forget_ticket(s)
    :: else
    fi
  }
#endif
  d_step { move_turn() }
  d_step {
    asleep = 0;
    waits = waits & ~BIT(s);
    live = live & ~BIT(s);
    place[s] = 0;
    s = N
  }
}

#if defined(RENEW) && !defined(SAME_ARRIVAL)
#define ARRIVAL(q) (IN(q, reborn) -> BIT(N + q) : BIT(q))
#else
#define ARRIVAL(q) BIT(q)
#endif
// try_grant(): one grant, and note_sleeper()
inline look_at(q) {
  if
  :: IN_WAY(p, q) ->
     watches[p] = watches[p] | BIT(q);
     if :: IN(q, is_marked) -> stale[p] = stale[p] | BIT(q) :: else fi;
     if :: state[q] == arriving -> met = met | ARRIVAL(q) :: else fi
  :: else
  fi;
  has_died = has_died || (state[q] == died && (bytes[q] & bytes[p]));
#ifdef SPLIT
  has_died = has_died || (rest[q] & bytes[p]);
#else
  assert(state[q] != died || !(bytes[q] & ~owed))
#endif
}
#define FIRST_OTHER (p == 0 -> 1 : 0)
#define LAST_OTHER (p == 2 -> 1 : 2)
#ifdef UNTOLD
#define HAS_NEWS false
#else
#define HAS_NEWS (met != 0 && met != told)
#endif
#if defined(SPLIT) && !defined(MOVE_UNSEEN)
#define HAS_MOVED (watches[p] == 0 && IN(p, deaths_moved))
#else
#define HAS_MOVED false
#endif
#define ARRIVES(q) (state[q] == arriving -> BIT(q) : 0)  // only these compare it

#ifdef SPLIT
// heal() for one death, that of process 1, and its rest in a grant of process 0
inline heal() {
  do
  :: atomic {
       deaths_moved = deaths_moved & ~BIT(p);
       rest[0] = rest[0] & ~bytes[p]
     }
     atomic { true; if :: state[1] == died -> dead = bytes[1] :: else fi }
     if
     :: atomic { (dead & bytes[p]) == 0 -> skip }
     :: atomic { p == 2 && (dead & 4) && (dead & 3) -> bytes[1] = bytes[1] & 3 }
     :: atomic { p == 0 && (dead & 3) == 3 -> skip }
#ifdef CUT_FIRST
        bytes[1] = bytes[1] & 1;
#endif
        if
        :: atomic { dead & 4 -> rest[0] = 4 }  // split()
           deaths_moved = 7
        :: atomic { !(dead & 4) -> skip }
        fi;
#ifndef CUT_FIRST
        bytes[1] = bytes[1] & 1
#endif
     fi;
     if
     :: atomic { IN(p, deaths_moved) -> dead = 0 }
     :: atomic { !IN(p, deaths_moved) -> dead = 0; owed = owed & ~bytes[p]; break }
     fi
  od
}
#else
inline heal_one(q) {
  if
  :: state[q] == died ->
     bytes[q] = bytes[q] & ~bytes[p];
     if :: bytes[q] == 0 -> state[q] = none :: else fi
  :: else
  fi
}
// Of others than heal() looks at them: nobody else changes these bytes of deaths meanwhile.
inline heal() { d_step { heal_one(0); heal_one(1); heal_one(2); owed = owed & ~bytes[p] } }
#endif

proctype process(byte p) provided (stopped != _pid - 1 && (falls == 0 || falls == _pid)) {
  byte s = N, met, told;
  bool has_died;
#ifdef SPLIT
  byte dead;
#endif
#ifdef DIED_LATE
  bool was_granted;
#endif
life:
  {
#ifdef RETURN
     skip;
again:
#endif
     // write_request()
#ifdef NO_ARRIVAL
     d_step { waits = waits | BIT(SLOT(p)); before[p] = tickets; tickets = tickets | BIT(p) }
     state[p] = waiting;
#else
     atomic { true; d_step { arrivals_moved = arrivals_moved & ~BIT(p); state[p] = arriving } }
     atomic {  // a ticket that was taken and is not shown yet, is none to others
       waits = waits | BIT(SLOT(p));
       before[p] = TICKETS;
       state[p] = waiting;
       if
       :: IN(p, arrivals_moved) -> arrivals_moved = arrivals_moved & ~BIT(p)
       :: else -> goto look
       fi
     }
     note_change();
#endif
look:  // try_grant()
     atomic {
       true;
       d_step {
#ifndef TURN_LATE
         turn_moved = turn_moved & ~BIT(p);
#endif
         deaths_moved = deaths_moved & ~BIT(p);
         watches[p] = 0;
         stale[p] = 0;
         look_at(FIRST_OTHER)
       }
     }
     atomic {
       d_step { look_at(LAST_OTHER) };
#ifdef TURN_LATE
     }
     atomic {
       turn_moved = turn_moved & ~BIT(p);
#endif
       if
       :: HAS_NEWS -> skip
#ifdef SPLIT
       :: !HAS_NEWS && HAS_MOVED -> told = 0; has_died = false; goto look
#endif
       :: !HAS_NEWS && !HAS_MOVED && watches[p] == 0 -> told = 0; goto turn
       :: !HAS_NEWS && watches[p] != 0 -> met = 0; told = 0; has_died = false; goto blocked
       fi
     }
     atomic {
       arrivals_moved = arrivals_moved | ARRIVES(0) | ARRIVES(1) | ARRIVES(2);
       told = met;
       met = 0;
       has_died = false;
#ifdef TOLD_ONCE
       told = 0
#else
       goto look
#endif
     }
blocked:  // enter(): is_ending(), reap_dead(), os::sleep_on()
     atomic {
#if DEATHS
       if
       :: REAPS_ANY -> take_place(); goto reaping
       :: else
       fi;
       if :: IS_ENDING -> polls = polls | BIT(p) :: else fi;
#endif
       if
       :: IN(p, turn_moved) || (watches[p] & is_marked & ~stale[p]) -> turn_moved = turn_moved & ~BIT(p)
       :: else -> asleep = asleep | BIT(p)
       fi
     }
end_asleep:
     if
#if !DEATHS || defined(LOOK_FIRST)
     :: atomic { !IN(p, asleep) -> polls = polls & ~BIT(p); goto look }
#else
     :: atomic { !IN(p, asleep) && REAPS_ANY -> polls = polls & ~BIT(p); take_place(); goto reaping }
#ifdef SILENT
     :: atomic { !IN(p, asleep) && !REAPS_ANY -> polls = polls & ~BIT(p); goto look }
#else
     :: atomic { !IN(p, asleep) && !REAPS_ANY && !IN(p, polls) && IS_ENDING -> skip }
        note_change();
        goto look
     :: atomic { !IN(p, asleep) && !REAPS_ANY && (IN(p, polls) || !IS_ENDING) ->
          polls = polls & ~BIT(p);
          goto look
        }
#endif
#endif
#if DEATHS || STOPS
     :: atomic { CAN_WAKE(p) -> asleep = asleep & ~BIT(p); goto end_asleep }
#endif
#ifndef RETURN
     :: atomic { p == 1 && IN(p, asleep) ->  // kTimeout
          asleep = asleep & ~BIT(p);
          polls = polls & ~BIT(p);
          goto leave
        }
#endif
     fi;
#if DEATHS
reaping:
     reap();
     goto look;
#endif
turn:
     atomic {
#if DEATHS
       if
       :: has_died && !overwrites[p] -> has_died = false; goto leave  // kDied
       :: else -> has_died = false
       fi;
#endif
       assert(!HELD(p, 0) && !HELD(p, 1) && !HELD(p, 2));
       assert(overwrites[p] || !(owed & bytes[p]));
       d_step {
         holds = holds | BIT(p);
         state[p] = granted;
         forget_ticket(p);
#ifndef MANY
         END_WAIT
#endif
       };
       if :: keeps = keeps | BIT(p) :: true fi;
#ifdef MANY
     }
     end_wait();
     atomic { true;
#endif
       if :: !overwrites[p] -> goto leave :: else fi
     }
     heal();
leave:  // free_grant()
#ifdef TURN_FIRST
     atomic { true; move_turn() }
#endif
end_keeps:
#ifdef MANY
     if
     :: d_step {
          state[p] == granted && ENDS_LEASE ->
          state[p] = none;
          holds = holds & ~BIT(p);
          keeps = keeps & ~BIT(p)
        }
     :: d_step { state[p] != granted -> state[p] = none; forget_ticket(p) }
        end_wait()
     fi;
#else
     atomic {
       ENDS_LEASE ->
       d_step {
         keeps = keeps & ~BIT(p);
         state[p] = none;
         holds = holds & ~BIT(p);
         watches[p] = 0;
         stale[p] = 0;
         forget_ticket(p);
         END_WAIT
       }
     }
#endif
#ifdef RETURN
     note_change();
     if
     :: atomic { !writes[p] && state[2] == waiting -> goto again }
     :: atomic { writes[p] || state[2] != waiting -> skip }
     fi;
     done = done | BIT(p)
#else
#ifndef TURN_FIRST
     d_step { move_turn() }
#endif
     d_step { if :: waits != 0 -> asleep = 0 :: else fi; done = done | BIT(p) }
#endif
  }
#if DEATHS
  unless {
    atomic {
      falls == 1 + p ->
      d_step {
        falls = 0;
        is_gone = is_gone | BIT(p);
        if :: state[p] == granted && writes[p] -> owed = owed | bytes[p] :: else fi;
        if :: place[0] == 1 + p -> place[0] = 0 :: else fi;
        if :: place[1] == 1 + p -> place[1] = 0 :: else fi;
        if :: place[2] == 1 + p -> place[2] = 0 :: else fi;
        asleep = asleep & ~BIT(p);
        turn_moved = turn_moved & ~BIT(p);
        arrivals_moved = arrivals_moved & ~BIT(p);
        deaths_moved = deaths_moved & ~BIT(p);
        watches[p] = 0;
        stale[p] = 0;
        polls = polls & ~BIT(p);
        holds = holds & ~BIT(p);
        keeps = keeps & ~BIT(p);
        s = N;
        met = 0;
        told = 0;
#ifdef SPLIT
        dead = 0;
#endif
#ifdef DIED_LATE
        was_granted = false;
#endif
        has_died = false
      }
    }
  }
#endif
#ifdef RENEW
  // take_place(), come_to_life()
  if
  :: atomic {
       IN(p, is_gone) && !IN(p, live) && place[p] == 0 && state[p] == none ->
       live = live | BIT(p);
       place[p] = 1 + p;
       is_marked = is_marked & ~BIT(p);
       is_gone = is_gone & ~BIT(p);
#ifndef SAME_ARRIVAL
       reborn = reborn | BIT(p);
#endif
       goto life
     }
  :: true
  fi
#endif
}

#ifdef UNANNOUNCED
#define SLEEPS_ON(q, v) false
#else
#define SLEEPS_ON(q, v) (IN(q, asleep) && IN(v, watches[q]))
#endif
// The bit in the life word is set by all that sleep on it: note_sleeper().
inline wake_one(v) {
  if
#ifndef SPLIT
  :: SLEEPS_ON(1, v) -> asleep = asleep & ~2
#endif
  :: SLEEPS_ON(0, v) -> asleep = asleep & ~1
  :: SLEEPS_ON(2, v) -> asleep = asleep & ~4
  :: else
  fi
}

inline mark(v) {
  deaths++;
  is_marked = is_marked | BIT(v);
  wake_one(v)
}
#if defined(SPLIT)
#define MAY_DIE(v) ((v) == 1)
#else
#define MAY_DIE(v) true
#endif
#define CAN_MARK(v) (deaths < DEATHS && MAY_DIE(v) && !IN(v, is_marked | done))
#define CAN_FALL(v) IN(v, is_marked & ~is_gone & ~done)
#define CAN_STOP(v) (!has_stopped && !IN(v, done | is_gone))
#ifdef SPLIT
#define ONE_OF(CAN) v = 1
#else
#define ONE_OF(CAN) \
  if \
  :: CAN(0) -> v = 0 \
  :: CAN(1) -> v = 1 \
  :: CAN(2) -> v = 2 \
  fi
#endif
#define ANY(CAN) (falls == 0 && (CAN(0) || CAN(1) || CAN(2)))

#if DEATHS || STOPS
proctype kernel() {
  byte v;
end_kernel:
  do
#if DEATHS
  :: atomic { ANY(CAN_MARK) -> ONE_OF(CAN_MARK); mark(v); v = 0 }
  :: atomic {
       ANY(CAN_FALL) -> ONE_OF(CAN_FALL);
       falls = 1 + v;
#if STOPS
       if :: stopped == v -> stopped = N :: else fi;
#endif
       v = 0
     }
#endif
#if STOPS
  :: atomic { ANY(CAN_STOP) -> ONE_OF(CAN_STOP); stopped = v; has_stopped = true; v = 0 }
#endif
  od
}
#endif

// Nothing moves but what ends a sleep by itself.
#define RESTS(p) (IN(p, done | is_gone | keeps | asleep) || stopped == p)
#define IS_QUIET (falls == 0 && RESTS(0) && RESTS(1) && RESTS(2))

inline reads(p, b) { bytes[p] = b }
inline write(p, b) { bytes[p] = b; writes[p] = true }
inline overwrite(p, b) { bytes[p] = b; writes[p] = true; overwrites[p] = true }

#define GRANT(q) (state[q] == died || (state[q] == granted && writes[q] && IN(q, is_gone)) -> bytes[q] : 0)

init {
  atomic {
    place[0] = 1; place[1] = 2; place[2] = 3;
#if defined(SPLIT)
    overwrite(0, 2); write(1, 7);
    if :: reads(2, 4) :: overwrite(2, 4) fi;
#elif defined(RETURN)
    reads(0, 3); reads(1, 3); write(2, 3);
#elif defined(MANY)
    overwrite(0, 3); reads(1, 1);
    if :: write(2, 2) :: reads(2, 1) fi;
#else
    if
#ifndef TWO_DEATHS
    :: reads(0, 3); reads(1, 3); write(2, 3)
#endif
    :: write(0, 1); overwrite(1, 3); write(2, 2)
#ifdef ALL
    :: write(0, 3); write(1, 3); write(2, 3)
    :: reads(0, 1); write(1, 3); reads(2, 3)
#endif
    fi;
#endif
    run process(0);
    run process(1);
    run process(2);
#if DEATHS || STOPS
    run kernel();
#endif
  }
  atomic {
    IS_QUIET && !CAN_WAKE(0) && !CAN_WAKE(1) && !CAN_WAKE(2) ->
    falls = (IS_LOST(0) || IS_LOST(1) || IS_LOST(2) -> HALT : 0);
    falls == 0;
    are_released = true;
#if STOPS
    if
    :: stopped != N ->
       asleep = asleep & ~BIT(stopped);  // its time is over
       if
       :: stopped = N
       :: !IN(stopped, is_marked) -> mark(stopped)
       fi
    :: else
    fi;
    has_stopped = true
#endif
  }
  ENDED;
#ifdef SPLIT
  assert(!(owed & ~(GRANT(0) | GRANT(1) | GRANT(2) | rest[0])))
#else
  assert(owed == (GRANT(0) | GRANT(1) | GRANT(2)))
#endif
}
