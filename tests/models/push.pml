// SPDX-License-Identifier: Apache-2.0
//
// Push: three ops, each with a read or write part in one or both of two queues, pushed by two threads and run
// by two workers. A push takes the locks of all its queues in a fixed order, appends, and leaves the locks.
// Then it subtracts the parts that were granted at once from the number of missing parts. The thread that
// brings this number to zero posts the op.
//
// Law: every op runs, once; conflicting ops never overlap; where ops conflict on a queue, they run in push
// order.
// variant: SOUND holds
// variant: SOUND ends soak
//
// ONE_AT_A_TIME appends under one lock after the other: crossed pairs wait for each other for ever.
// variant: ONE_AT_A_TIME refuted deadlock
// OWN_ORDER holds all locks, but takes them in the op's own order.
// variant: OWN_ORDER refuted deadlock
// GRANTED_ONLY compares new parts only with granted ones: a read overtakes a waiting write.
// variant: GRANTED_ONLY refuted assertion
// ZERO_COUNTS checks for zero also if nothing was granted at once: two threads post the op.
// variant: ZERO_COUNTS refuted assertion
// GRANT_LATER selects successors under the lock and grants them after it: two ops that end grant one part
// twice.
// variant: GRANT_LATER refuted assertion

#define OPS 3
#define CONFLICT(a, b) ((a) * (b) > 1)  // of modes
#define AT(q, o) ((q)*OPS + (o))

byte mode[6];     // of op o in queue q: 0 no part, 1 read, 2 write
byte place[6];    // in the order of the queue, from 1
bool live[6];     // in the queue and unfinished
bool granted[6];
byte tail[2];
bool locked[2];
byte lacks[OPS];  // parts that are not granted
bool posted[OPS], running[OPS], done[OPS];

inline lock(q) { atomic { !locked[q] -> locked[q] = true } }
inline unlock(q) { locked[q] = false }

#ifdef GRANTED_ONLY
#define COUNTS(q, p, o) (p != o && granted[AT(q, p)])
#else
#define COUNTS(q, p, o) (place[AT(q, p)] < place[AT(q, o)])
#endif

// clear = no earlier unfinished part of queue q is in the way of op o's
inline look(q, o) {
  clear = true;
  p = 0;
  do
  :: p < OPS ->
     if
     :: COUNTS(q, p, o) && live[AT(q, p)] && CONFLICT(mode[AT(q, p)], mode[AT(q, o)]) -> clear = false
     :: else
     fi;
     p++
  :: else -> break
  od
}

inline append(q, o) {
  d_step {
    tail[q]++;
    place[AT(q, o)] = tail[q];
    live[AT(q, o)] = true;
    look(q, o);
    if
    :: clear -> granted[AT(q, o)] = true; at_once++
    :: else
    fi;
    clear = false;
    p = 0
  }
}

inline take(o, n) {
  atomic {
    lacks[o] = lacks[o] - n;
    if
    :: lacks[o] == 0 -> assert(!posted[o] && !running[o] && !done[o]); posted[o] = true
    :: else
    fi
  }
}

inline push(o) {
  atomic {
    if :: mode[AT(0, o)] = 0 :: mode[AT(0, o)] = 1 :: mode[AT(0, o)] = 2 fi;
    if :: mode[AT(1, o)] = 1 :: mode[AT(1, o)] = 2 :: mode[AT(0, o)] > 0 -> mode[AT(1, o)] = 0 fi;
    lacks[o] = (mode[AT(0, o)] > 0 -> 1 : 0) + (mode[AT(1, o)] > 0 -> 1 : 0)
  }
  first = 0;
#ifdef OWN_ORDER
  if :: first = 0 :: first = 1 fi;
#endif
  if :: mode[AT(first, o)] > 0 -> lock(first) :: else fi;
#ifdef ONE_AT_A_TIME
  if :: mode[AT(0, o)] > 0 -> append(0, o); unlock(0) :: else fi;
#endif
  if :: mode[AT(1 - first, o)] > 0 -> lock(1 - first) :: else fi;
#ifndef ONE_AT_A_TIME
  if :: mode[AT(0, o)] > 0 -> append(0, o) :: else fi;
#endif
  if :: mode[AT(1, o)] > 0 -> append(1, o) :: else fi;
#ifndef ONE_AT_A_TIME
  if :: mode[AT(0, o)] > 0 -> unlock(0) :: else fi;
#endif
  if :: mode[AT(1, o)] > 0 -> unlock(1) :: else fi;
#ifdef ZERO_COUNTS
  take(o, at_once);
#else
  if :: at_once > 0 -> take(o, at_once) :: else fi;
#endif
  at_once = 0
}

proctype pusher(byte from; byte to) {
  byte at_once, p, first;
  bool clear;
  do
  :: from < to -> push(from); from++
  :: else -> break
  od
}

// fresh = the parts of queue q that nothing is in the way of any more; they are granted
inline advance(q) {
  d_step {
    fresh = 0;
    s = 0;
    do
    :: s < OPS ->
       if
       :: live[AT(q, s)] && !granted[AT(q, s)] ->
          look(q, s);
          if
          :: clear ->
             fresh = fresh | (1 << s);
#ifndef GRANT_LATER
             granted[AT(q, s)] = true
#endif
          :: else
          fi
       :: else
       fi;
       s++
    :: else -> break
    od;
    s = 0;
    p = 0;
    clear = false
  }
}

inline finish(q, o) {
  if
  :: mode[AT(q, o)] > 0 ->
     lock(q);
     live[AT(q, o)] = false;
     advance(q);
     unlock(q);
#ifdef GRANT_LATER
     d_step {
       granted[AT(q, 0)] = granted[AT(q, 0)] || (fresh & 1);
       granted[AT(q, 1)] = granted[AT(q, 1)] || (fresh & 2);
       granted[AT(q, 2)] = granted[AT(q, 2)] || (fresh & 4)
     }
#endif
     do
     :: fresh & 1 -> take(0, 1); fresh = fresh & 6
     :: fresh & 2 -> take(1, 1); fresh = fresh & 5
     :: fresh & 4 -> take(2, 1); fresh = fresh & 3
     :: fresh == 0 -> break
     od
  :: else
  fi
}

#define OVERLAP(q, a, b) (running[b] && CONFLICT(mode[AT(q, a)], mode[AT(q, b)]))
#define PASSED(q, a, b) \
  (live[AT(q, b)] && place[AT(q, b)] < place[AT(q, a)] && CONFLICT(mode[AT(q, a)], mode[AT(q, b)]))
#define WRONG(a, b) (OVERLAP(0, a, b) || OVERLAP(1, a, b) || PASSED(0, a, b) || PASSED(1, a, b))

inline start(o) {
  assert(!WRONG(o, (o + 1) % OPS) && !WRONG(o, (o + 2) % OPS));
  posted[o] = false;
  running[o] = true
}

active[2] proctype worker() {
  byte o, s, p, fresh;
  bool clear;
end:
  do
  :: atomic {
       if :: posted[0] -> o = 0 :: posted[1] -> o = 1 :: posted[2] -> o = 2 fi;
       start(o)
     }
     atomic { running[o] = false; done[o] = true }
     finish(0, o);
     finish(1, o);
     o = 0
  od
}

init {
  atomic { run pusher(0, 1); run pusher(1, 3) }
  done[0] && done[1] && done[2]
}
