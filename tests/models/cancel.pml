// SPDX-License-Identifier: Apache-2.0
//
// Cancel: three requests for one queue, each for reading or writing, each with a timeout that may occur at
// any moment. A request that leaves the queue, by release or timeout, unlinks its part under the queue's lock
// and grants the parts that no longer wait. It wakes their waiters after it has left the lock, by address,
// and does not access a part then. After a timeout, a request reads its part under the lock: if it is
// granted, the request has succeeded; otherwise it leaves the queue.
//
// Law: a request ends in exactly one way, granted or timed out; no part is granted after it was unlinked;
// whenever the lock is free, no part waits that could be granted; conflicting holders never overlap.
// variant: SOUND holds
// variant: SOUND ends
//
// NO_ADVANCE unlinks and grants nothing: a read behind a write that timed out waits for another release.
// variant: NO_ADVANCE refuted assertion
// LOOK_OUTSIDE reads the state before it takes the lock.
// variant: LOOK_OUTSIDE refuted assertion
// GRANT_OUTSIDE selects the parts under the lock, and stores that they are granted after it has left the
// lock.
// variant: GRANT_OUTSIDE refuted assertion
// TOUCH_AFTER reads the granted parts after it has left the lock, to see whether a thread waits.
// variant: TOUCH_AFTER refuted assertion

#define N 3
#define CONFLICT(a, b) ((a) * (b) > 1)
#define BIT(r) (1 << (r))

mtype = { outside, queued, granted, timed_out };

mtype state[N] = outside;
byte mode[N];      // 1 read, 2 write
byte place[N];     // in the order of the queue, from 1
bool linked[N];
bool chosen[N];    // for the law: granted, or about to be
bool exists[N];    // the part's memory: from the request to its end
bool holds[N];
byte ends[N];      // how often a request was granted or unlinked ungranted
byte tail = 0;
bool locked = false;

#define IN_THE_WAY(r, p) (linked[p] && place[p] < place[r] && CONFLICT(mode[p], mode[r]))
#define CLEAR(r) (!IN_THE_WAY(r, 0) && !IN_THE_WAY(r, 1) && !IN_THE_WAY(r, 2))
#define SETTLED(r) (!linked[r] || chosen[r] || !CLEAR(r))

inline lock() { atomic { !locked -> locked = true } }
inline unlock() { atomic { assert(SETTLED(0) && SETTLED(1) && SETTLED(2)); locked = false } }

inline grant(r) {
  assert(linked[r] && state[r] == queued);
  state[r] = granted;
  ends[r]++
}

inline choose(r) {
  if
  :: linked[r] && !chosen[r] && CLEAR(r) ->
     chosen[r] = true;
     fresh = fresh | BIT(r);
#ifndef GRANT_OUTSIDE
     grant(r)
#endif
  :: else
  fi
}

inline after_unlock(r) {
#ifdef GRANT_OUTSIDE
  if
  :: atomic { fresh & BIT(r) -> grant(r) }
  :: else
  fi;
#endif
#ifdef TOUCH_AFTER
  assert(!(fresh & BIT(r)) || exists[r]);
#endif
  skip
}

inline leave(r) {
  linked[r] = false;
#ifndef NO_ADVANCE
  advance()
#else
  if
  :: state[r] == granted -> advance()
  :: else
  fi
#endif
}

inline advance() {
  choose(0);
  choose(1);
  choose(2)
}

inline dispatch() {
  after_unlock(0);
  after_unlock(1);
  after_unlock(2);
  fresh = 0
}

#define OVERLAP(r, p) (p != r && holds[p] && CONFLICT(mode[p], mode[r]))

proctype request(byte r) {
  byte fresh;
  atomic {
    if :: mode[r] = 1 :: mode[r] = 2 fi;
    exists[r] = true
  }
  lock();
  atomic { tail++; place[r] = tail; linked[r] = true; state[r] = queued }
  choose(r);
  unlock();
  dispatch();

  if
  :: state[r] == granted
  :: skip ->  // the time-out fires, in whatever state
#ifdef LOOK_OUTSIDE
     if
     :: state[r] == queued -> lock(); state[r] = timed_out; ends[r]++; leave(r); unlock(); dispatch()
     :: else
     fi
#else
     lock();
     if
     :: state[r] == queued -> state[r] = timed_out; ends[r]++; leave(r)
     :: else
     fi;
     unlock();
     dispatch()
#endif
  fi;

  if
  :: atomic {
       state[r] == granted ->
       assert(!OVERLAP(r, 0) && !OVERLAP(r, 1) && !OVERLAP(r, 2));
       holds[r] = true
     }
     holds[r] = false;
     lock();
     leave(r);
     unlock();
     dispatch()
  :: else
  fi;
  atomic {
    assert(ends[r] == 1 && !linked[r]);
    exists[r] = false
  }
}

init {
  atomic { run request(0); run request(1); run request(2) }
  tail == N && !exists[0] && !exists[1] && !exists[2]
}
