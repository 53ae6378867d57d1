// SPDX-License-Identifier: Apache-2.0
//
// Leases: two threads and two queues. Each thread takes a block lease, keeps, releases or detaches it, may
// push an op over one or both queues and wait for it, and may take a lease on the other queue. Another thread
// releases detached leases. A blocked caller registers the part for which it waits, then walks the wait-for
// graph: from a part to the earlier conflicting ones, from a granted lease to the part for which its thread
// waits. It raises if it returns to a granted lease of its own. It registers and walks under one graph lock.
// The walk reads one queue at a time. Meanwhile ops end, leases are released, ops are pushed and
// registrations end.
//
// Law: no thread hangs; and no false report: when a thread raises, there was a real cycle during its walk.
// variant: SOUND holds
// variant: SOUND ends soak
//
// NO_WALK waits at once.
// variant: NO_WALK refuted deadlock
// WALK_FIRST walks, leaves the lock, then registers: both threads walk before either is visible.
// variant: WALK_FIRST refuted deadlock
// GRANTED_ONLY follows only granted parts, and misses waiting parts in between.
// variant: GRANTED_ONLY refuted deadlock
// OWN_ONLY looks only for its own leases, and does not follow the waits of other threads.
// variant: OWN_ONLY refuted deadlock
// NO_GRAPH_LOCK registers and walks without the lock: edges from different moments form a path.
// variant: NO_GRAPH_LOCK refuted assertion
// DETACHED_OWNED treats a detached lease as one of its first thread, although any thread may release it.
// variant: DETACHED_OWNED refuted assertion

#define CLAIMS 6  // of thread t: leases 3t and 3t+1, op 3t+2
#define NONE 7
#define THREAD(c) ((c) / 3)
#define OP(c) ((c) % 3 == 2)
#define BIT(c) (1 << (c))

byte mode[12];                      // of request c in queue q: 0 no part, 1 read, 2 write
byte place[CLAIMS];                 // in the order of pushes, from 1; 0 not in the queues
bool detached[CLAIMS];
byte waits_for[2] = NONE;           // the registrations
bool walking[2], cycle_was[2];      // for the law
byte graph_lock = 0;
byte ended = 0;

#define AHEAD(c, b) (place[b] > 0 && place[b] < place[c])
#define MODE(q, c) mode[(q)*CLAIMS + (c)]
#define BLOCKS_IN(q, c, b) (AHEAD(c, b) && MODE(q, c) * MODE(q, b) > 1)
#define BLOCKS(c, b) (BLOCKS_IN(0, c, b) || BLOCKS_IN(1, c, b))
#define CLEAR(c) \
  (!BLOCKS(c, 0) && !BLOCKS(c, 1) && !BLOCKS(c, 2) && !BLOCKS(c, 3) && !BLOCKS(c, 4) && !BLOCKS(c, 5))
#define GRANTED(c) (place[c] > 0 && CLEAR(c))
#define REACHED(c) ((OP(c) && place[c] == 0) || (!OP(c) && CLEAR(c)))  // the end of a wait for c
#define MAX(a, b) ((a) > (b) -> (a) : (b))

inline append(c, m0, m1) {
  MODE(0, c) = m0;
  MODE(1, c) = m1;
  place[c] = 1 + MAX(MAX(MAX(place[0], place[1]), MAX(place[2], place[3])), MAX(place[4], place[5]))
}

inline unlink(c) { d_step { place[c] = 0; MODE(0, c) = 0; MODE(1, c) = 0; detached[c] = false } }

// cycle_was[w], if w walks and the graph as it is at this moment leads from what w waits for to a lease of w
inline note_cycle(w) {
  if
  :: walking[w] && waits_for[w] != NONE ->
     reach = BIT(waits_for[w]);
     n = 0;
     do
     :: n < CLAIMS ->
        c_ = 0;
        do
        :: c_ < CLAIMS ->
           if
           :: (reach & BIT(c_)) && place[c_] > 0 ->
              b_ = 0;
              do
              :: b_ < CLAIMS -> if :: BLOCKS(c_, b_) -> reach = reach | BIT(b_) :: else fi; b_++
              :: else -> break
              od;
              if
              :: OP(c_) || detached[c_] || !CLEAR(c_)
              :: else ->
                 if
                 :: THREAD(c_) == w && c_ != waits_for[w] -> cycle_was[w] = true
                 :: THREAD(c_) != w && waits_for[1 - w] != NONE -> reach = reach | BIT(waits_for[1 - w])
                 :: else
                 fi
              fi
           :: else
           fi;
           c_++
        :: else -> break
        od;
        n++
     :: else -> break
     od;
     reach = 0; n = 0; c_ = 0; b_ = 0
  :: else
  fi
}

#ifdef NO_GRAPH_LOCK
#define LOCK_GRAPH skip
#define UNLOCK_GRAPH skip
#else
#define LOCK_GRAPH atomic { graph_lock == 0 -> graph_lock = 1 }
#define UNLOCK_GRAPH graph_lock = 0
#endif

#ifdef GRANTED_ONLY
#define FOLLOWED(b) (CLEAR(b))
#else
#define FOLLOWED(b) true
#endif

#ifdef DETACHED_OWNED
#define OWNED(c) (!OP(c))
#else
#define OWNED(c) (!OP(c) && !detached[c])
#endif

// Under the lock of queue q: who is ahead of request c there; a granted lease is left for its owner
inline look(q_, c) {
  b_ = 0;
  do
  :: b_ < CLAIMS ->
     if
     :: !BLOCKS_IN(q_, c, b_)
     :: else ->
        if
        :: OWNED(b_) && CLEAR(b_) && THREAD(b_) == t -> found = true
        :: OWNED(b_) && CLEAR(b_) && THREAD(b_) != t -> other = true
        :: else ->
           if
           :: FOLLOWED(b_) && !(seen & BIT(b_)) -> todo = todo | BIT(b_)
           :: else
           fi
        fi
     fi;
     b_++
  :: else -> break
  od;
  b_ = 0
}

inline walk(t, target) {
  todo = BIT(target);
  do
  :: todo != 0 && !found ->
     d_step {
       at = 0;
       do
       :: !(todo & BIT(at)) -> at++
       :: else -> break
       od;
       todo = todo & ~BIT(at);
       seen = seen | BIT(at);
       look(0, at)
     }
     d_step { look(1, at); at = 0 }
#ifndef OWN_ONLY
  :: d_step {
       other && !asked && !found ->
       asked = true;
       if
       :: waits_for[1 - t] != NONE && !(seen & BIT(waits_for[1 - t])) -> todo = todo | BIT(waits_for[1 - t])
       :: else
       fi
     }
#endif
  :: else -> break
  od
}

inline register(t, target) {
  d_step {
    waits_for[t] = target;
    walking[t] = true;
    note_cycle(0);
    note_cycle(1)
  }
}

// raised, or request c is reached
inline wait_for(t, c) {
  if
  :: REACHED(c)
  :: else ->
#ifdef NO_WALK
     skip;
#else
     LOCK_GRAPH;
#ifdef WALK_FIRST
     walk(t, c);
     UNLOCK_GRAPH;
     LOCK_GRAPH;
     register(t, c);
#else
     register(t, c);
     walk(t, c);
#endif
     if
     :: found ->
        assert(cycle_was[t]);
        found = false;
        raised = true;
        waits_for[t] = NONE
     :: else
     fi;
     d_step { walking[t] = false; cycle_was[t] = false; todo = 0; seen = 0; other = false; asked = false };
     UNLOCK_GRAPH;
#endif
     if
     :: raised
     :: !raised && REACHED(c) -> waits_for[t] = NONE
     fi
  fi
}

inline lease(c, where) {
  if
  :: where == 0 -> if :: append(c, 1, 0) :: append(c, 2, 0) fi
  :: else -> if :: append(c, 0, 1) :: append(c, 0, 2) fi
  fi
}

inline push(c) {
  if
  :: append(c, 2, 0)
  :: append(c, 0, 2)
  :: c == 2 -> append(c, 1, 2)
  fi
}

proctype thread(byte t) {
  byte q, step, target = NONE, todo, seen, at, reach, n, c_, b_;
  bool other, asked, found, raised;
  atomic {
    if :: skip :: t == 1 -> q = 1 fi;  // the queues are alike
    lease(3 * t, q);
    target = 3 * t
  }
  do
  :: target != NONE -> wait_for(t, target); target = NONE
  :: atomic { target == NONE && step == 0 && t == 0 -> detached[3 * t] = true; step = 1 }
  :: atomic { target == NONE && step == 0 && t == 0 -> unlink(3 * t); step = 1 }
  :: atomic { target == NONE && step <= 1 -> push(3 * t + 2); step = 2; if :: target = 3 * t + 2 :: skip fi }
  :: atomic {
       target == NONE && step <= 2 && !raised ->
       lease(3 * t + 1, 1 - q);
       step = 3;
       target = 3 * t + 1
     }
  :: target == NONE -> break
  od;
  unlink(3 * t + 1);
  if
  :: !detached[3 * t] -> unlink(3 * t)
  :: else
  fi;
  atomic { ended++; q = 0; step = 0; raised = false }
}

active proctype worker() {
end:
  do
  :: GRANTED(2) -> unlink(2)
  :: GRANTED(5) -> unlink(5)
  od
}

active proctype keeper() {
end:
  do
  :: detached[0] -> unlink(0)
  :: detached[3] -> unlink(3)
  od
}

init {
  atomic { run thread(0); run thread(1) }
  ended == 2 && place[0] + place[1] + place[2] + place[3] + place[4] + place[5] == 0
}
