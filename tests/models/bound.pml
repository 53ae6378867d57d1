// SPDX-License-Identifier: Apache-2.0
//
// Bound: one queue with leases, calls, an op and requests for views, and the views beside the queue. Thread A
// takes a lease and a view under it, and releases the lease while the view exists. The view is then bound to
// A: leases, calls and views of other threads wait for it. A makes another access under it meanwhile. Thread
// B takes a view that is not bound, and makes a call while it holds that view. Thread C takes a lease. An op
// is pushed, which waits for the views that it finds. Leases are granted beside views that are not bound. If
// a thread holds a view for which other parts wait, its next request is inserted before the first of these.
// It waits for the parts before this position and for granted parts. It raises if the thread's views do not
// allow the access.
//
// Law: an access never begins beside a conflicting granted access of another thread, nor beside a conflicting
// view that is bound to another thread; an op never begins beside a conflicting view; and everything ends.
// variant: SOUND holds
// variant: SOUND ends soak
//
// JOIN_GRANTED lets calls and views begin at once if the thread holds a view that allows them.
// variant: JOIN_GRANTED refuted assertion
// UNBOUND does not bind a view that outlives its lease.
// variant: UNBOUND refuted assertion
// LAST appends all requests at the end of the queue.
// variant: LAST refuted deadlock
// BLIND: an inserted request does not wait for parts that were granted behind its position.
// variant: BLIND refuted assertion
// DIRECT inserts before the first part that waits for the view itself, not before parts that wait for that
// part.
// variant: DIRECT refuted deadlock

#define NONE 5
#define CONFLICT(a, b) ((a) * (b) > 1)  // of modes: 0 none, 1 read, 2 write
// parts: 0 A's lease, 1 A's next access, 2 what B asks for, 3 the op, 4 C's lease
#define OP 3
#define SAME(a, b) ((a) == (b) || (a) + (b) == 1)  // of one thread

byte mode[5];       // 0: not in the queue
byte place[5];      // in the queue's order
bool granted[5];
bool heeds = false;  // the op waits for views
byte of_a = 0;       // A's view
bool bound = false;
byte of_b = 0;       // B's view
byte ended = 0;

#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define LAST_PLACE MAX(MAX(MAX(place[0], place[1]), MAX(place[2], place[3])), place[4])
#define HOSTS_A (bound -> of_a : 0)

// b keeps e from being granted
#ifdef BLIND
#define BEFORE(b, e) (place[b] < place[e])
#else
#define BEFORE(b, e) (place[b] < place[e] || granted[b])
#endif
#define BLOCKS(b, e) ((b) != (e) && mode[b] > 0 && CONFLICT(mode[b], mode[e]) && BEFORE(b, e))
#define FREE(e) (!BLOCKS(0, e) && !BLOCKS(1, e) && !BLOCKS(2, e) && !BLOCKS(3, e) && !BLOCKS(4, e))
#define OP_BEHIND (heeds && (CONFLICT(mode[OP], HOSTS_A) || CONFLICT(mode[OP], of_b)))
#ifdef UNBOUND
#define BEHIND(e) ((e) == OP && OP_BEHIND)
#else
#define BEHIND(e) ((e) == OP -> OP_BEHIND : (e) > 1 && CONFLICT(mode[e], HOSTS_A))
#endif
#define GRANTABLE(e) (mode[e] > 0 && FREE(e) && !BEHIND(e))

// what the law forbids
#define OVERLAPS(e, b) (granted[b] && !SAME(e, b) && CONFLICT(mode[e], mode[b]))
#define FOREIGN(e) ((e) > 1 && bound && CONFLICT(mode[e], of_a))

inline check(e) {
  assert(!OVERLAPS(e, 0) && !OVERLAPS(e, 1) && !OVERLAPS(e, 2) && !OVERLAPS(e, 3) && !OVERLAPS(e, 4));
  assert(!FOREIGN(e) && (e != OP || (!CONFLICT(mode[e], of_a) && !CONFLICT(mode[e], of_b))))
}

inline append(e, m) {
  mode[e] = m;
  place[e] = LAST_PLACE + 1
}

inline put_before(e, m, b) {
  p = place[b];
  if :: place[0] >= p -> place[0]++ :: else fi;
  if :: place[1] >= p -> place[1]++ :: else fi;
  if :: place[2] >= p -> place[2]++ :: else fi;
  if :: place[3] >= p -> place[3]++ :: else fi;
  if :: place[4] >= p -> place[4]++ :: else fi;
  mode[e] = m;
  place[e] = p;
  p = 0
}

inline grant(e) { if :: !granted[e] && GRANTABLE(e) -> granted[e] = true; check(e) :: else fi }

// Whatever has its turn after a change is granted with it.
inline grant_all() { grant(0); grant(1); grant(2); grant(OP); grant(4) }

inline end(e) { mode[e] = 0; place[e] = 0; granted[e] = false }

// The first part that conflicts with m and waits for a view that A, or B, holds.
#define KEPT_BY_A(b, m) \
  (mode[b] > 0 && !granted[b] && CONFLICT(m, mode[b]) && CONFLICT(of_a, mode[b]) && ((b) != OP || heeds))
#define IS_OP_KEPT (mode[OP] > 0 && !granted[OP] && heeds && CONFLICT(of_b, mode[OP]))
#ifdef DIRECT
#define IS_BEHIND_OP(b) false
#else
#define IS_BEHIND_OP(b) (!granted[b] && place[b] > place[OP] && CONFLICT(mode[b], mode[OP]))
#endif
#define KEPT_BY_B(b, m) (CONFLICT(m, mode[b]) && IS_OP_KEPT && ((b) == OP || IS_BEHIND_OP(b)))
#define EARLIER(b) (found == NONE || place[b] < place[found])

inline find_kept_by_a(m) {
  if :: KEPT_BY_A(2, m) -> found = 2 :: else fi;
  if :: KEPT_BY_A(3, m) && EARLIER(3) -> found = 3 :: else fi;
  if :: KEPT_BY_A(4, m) && EARLIER(4) -> found = 4 :: else fi
}

inline find_kept_by_b(m) {
  if :: KEPT_BY_B(0, m) -> found = 0 :: else fi;
  if :: KEPT_BY_B(1, m) && EARLIER(1) -> found = 1 :: else fi;
  if :: KEPT_BY_B(3, m) && EARLIER(3) -> found = 3 :: else fi;
  if :: KEPT_BY_B(4, m) && EARLIER(4) -> found = 4 :: else fi
}

inline choose(m) { if :: m = 1 :: m = 2 fi }

// What a part finds that has come to the views.
inline show_views() { heeds = heeds || (mode[OP] > 0 && !granted[OP]) }

active proctype thread_a() {
  byte m, found = NONE, p;
  atomic { choose(m); append(0, m); grant_all() }
  granted[0];
  atomic { if :: of_a = 1 :: m == 2 -> of_a = 2 fi; m = 0 }
  atomic {
    end(0);
    bound = true;
    show_views();
    grant_all()
  }
  do
  :: atomic {
       choose(m);
       if
       :: m > of_a -> goto stop  // DeadlockError: it would wait for its own view
       :: else
       fi;
       find_kept_by_a(m);
#ifdef LAST
       append(1, m);
#else
       if
       :: found != NONE -> put_before(1, m, found)
       :: else -> append(1, m)
       fi;
#endif
       grant_all();
       found = NONE;
       m = 0
     }
     granted[1];
     atomic { end(1); grant_all() }
     break
  :: break
  od;
stop:
  atomic { of_a = 0; bound = false; grant_all(); m = 0; ended++ }
}

active proctype thread_b() {
  byte m, found = NONE, p;
  atomic { choose(m); append(2, m); grant_all() }
  granted[2];
  atomic {
    of_b = m;
    end(2);
    show_views();
    grant_all();
    m = 0
  }
  do
  :: atomic {
       choose(m);
#ifdef JOIN_GRANTED
       if
       :: m <= of_b -> mode[2] = m; check(2); mode[2] = 0; goto stop
       :: else
       fi;
#endif
       find_kept_by_b(m);
       if
       :: m > of_b && KEPT_BY_B(OP, m) -> goto stop  // LeaseConflict: it would wait for its own view
#ifdef LAST
       :: else -> append(2, m)
#else
       :: m <= of_b && found != NONE -> put_before(2, m, found)
       :: else -> append(2, m)
#endif
       fi;
       grant_all();
       found = NONE;
       m = 0
     }
     granted[2];
     atomic { end(2); grant_all() }
     break
  :: break
  od;
stop:
  atomic { of_b = 0; grant_all(); m = 0; ended++ }
}

active proctype op() {
  byte m;
  atomic {
    choose(m);
    append(OP, m);
    heeds = CONFLICT(m, HOSTS_A) || CONFLICT(m, of_b);
    grant_all();
    m = 0
  }
  granted[OP];
  atomic { end(OP); heeds = false; grant_all(); ended++ }
}

active proctype thread_c() {
  byte m;
  atomic { choose(m); append(4, m); grant_all(); m = 0 }
  granted[4];
  atomic { end(4); grant_all(); ended++ }
}

init { ended == 4 }
