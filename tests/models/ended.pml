// SPDX-License-Identifier: Apache-2.0
//
// Ended: one queue over two rows with leases, calls, an op and ended parts, and the views beside the queue. A
// owns a lease of both rows and takes one or two views of rows under it. When the lease ends, each view that
// still exists gets an ended part with its own rows and mode, in the place of the lease. The views may live
// longer than A. Leases and calls of others wait for ended parts as for granted ones. A push that conflicts
// with one is refused at once, waits, or (with "ignore") goes beside it, as the caller has chosen. A's next
// access acts in an ended part that allows it: it is inserted before the first part that waits for an ended
// part of A, directly or through others, and waits for the parts before that place and for granted ones. It
// raises if it would wait for its own part, that is, if it writes what A's views only read. An ended part
// for writing is in no way of A. Thread B takes a view that belongs to the host, not to a lease, and makes a
// call while it holds that view. If the op waits for that view, the call is inserted before it in the same
// way, and it raises if the view does not allow it. Thread C takes a lease.
//
// Law: an access never begins beside a conflicting access of another one, nor beside a conflicting view of A
// that has outlived the lease (except A's own, and ops that ignore views); an op that heeds views never begins
// beside a conflicting view; what waits has something in its way that conflicts with it, so that the other
// row is free, and readers beside a view that reads; a push that is to be refused does not wait for views; and
// everything ends.
// variant: SOUND holds
// variant: SOUND ends soak
//
// NO_PARTS: a view that outlives its lease gets no ended part.
// variant: NO_PARTS refuted assertion
// WHOLE: an ended part has the rows and the mode of the lease.
// variant: WHOLE refuted assertion
// OWNERLESS: the ended parts go with their owner, and not with the views.
// variant: OWNERLESS refuted assertion
// EXCLUSIVE: ended parts are granted one after the other, as requests of strangers.
// variant: EXCLUSIVE refuted deadlock
// PUSH_WAITS: a push that is to be refused waits for ended parts.
// variant: PUSH_WAITS refuted assertion
// HEEDLESS: an op does not look at views when it is pushed.
// variant: HEEDLESS refuted assertion
// UNDER: A's next access begins at once if an ended part allows it, as it does under a lease.
// variant: UNDER refuted assertion
// LAST: all requests are appended at the end of the queue.
// variant: LAST refuted deadlock
// STRICT: an ended part for writing is in the way of A, too.
// variant: STRICT refuted deadlock
// WAITS: A waits for its own ended part instead of raising.
// variant: WAITS refuted deadlock
// BLIND: an inserted request does not wait for parts that were granted behind its position.
// variant: BLIND refuted assertion
// DIRECT: a request is inserted before the first part that waits for the view itself, and not before parts
// that wait for that part.
// variant: DIRECT refuted deadlock

#define N 7
// parts: 0 A's lease, 1 A's next access, 2 what B asks for, 3 the op, 4 C's lease, 5 and 6 ended parts of A
#define OP 3
#define FIRST_ENDED 5
#define OF_A(e) ((e) < 2 || (e) >= FIRST_ENDED)
#define IS_ENDED(e) ((e) >= FIRST_ENDED)
#define MODES_CONFLICT(a, b) ((a) * (b) > 1)  // of modes: 0 none, 1 read, 2 write
#define IN(e, m, r) (MODES_CONFLICT(mode[e], m) && (rows[e] & (r)) != 0)
#define CONFLICT(a, b) IN(a, mode[b], rows[b])

byte mode[N];     // 0: not in the queue
byte rows[N];     // bits
byte place[N];    // in the queue's order
bool granted[N];

byte viewed[2];   // the modes of A's views
byte shown[2];    // their rows
bool outlives = false;

#define RAISES 0
#define AWAITS 1
#define IGNORES 2
byte on_conflict;    // of the op
bool heeds = false;  // it waits for B's view
bool nested = false;  // an ended part allows A's next access
byte of_b = 0;       // B's view, of both rows
byte ended = 0;
bool owner_is_gone = false;

#ifdef STRICT
#define IS_IGNORED(b, e) (IS_ENDED(b) && ((e) == OP && on_conflict == IGNORES || (e) == 1 && nested))
#else
#define IS_IGNORED(b, e) \
  (IS_ENDED(b) && ((e) == OP && on_conflict == IGNORES || (e) == 1 && (nested || mode[b] == 2)))
#endif
#ifdef BLIND
#define BEFORE(b, e) (place[b] < place[e])
#else
#define BEFORE(b, e) (place[b] < place[e] || granted[b])
#endif
// b keeps e from being granted
#define BLOCKS(b, e) ((b) != (e) && CONFLICT(b, e) && BEFORE(b, e) && !IS_IGNORED(b, e))
#define BEHIND_HOST(e) ((e) == OP && heeds && MODES_CONFLICT(mode[OP], of_b))

// A view of A that has outlived its lease, which a request must not meet.
#define MEETS(v, m, r) (outlives && MODES_CONFLICT(viewed[v], m) && (shown[v] & (r)) != 0)
#define MEETS_VIEWS(m, r) (MEETS(0, m, r) || MEETS(1, m, r))
#define IS_FOREIGN(e) ((e) != 1 && !((e) == OP && on_conflict == IGNORES) && MEETS_VIEWS(mode[e], rows[e]))
#define IS_DISTURBED(e) ((e) == OP && on_conflict != IGNORES && MODES_CONFLICT(mode[e], of_b))

// Lease, access and views of A are of one actor, and the code of B is below its own call.
#define OVERLAPS(e, b) ((b) != (e) && granted[b] && CONFLICT(b, e) && !(OF_A(b) && OF_A(e)))

inline check(e) {
  assert(!OVERLAPS(e, 0) && !OVERLAPS(e, 1) && !OVERLAPS(e, 2) && !OVERLAPS(e, 3) && !OVERLAPS(e, 4));
  assert(!IS_FOREIGN(e) && !IS_DISTURBED(e))
}

#define PARTS_ALLOW(e) (!BLOCKS(0, e) && !BLOCKS(1, e) && !BLOCKS(2, e) && !BLOCKS(3, e) && !BLOCKS(4, e))
#define ENDED_ALLOW(e) (!BLOCKS(5, e) && !BLOCKS(6, e))
#define HAS_REASON(e) (IS_FOREIGN(e) || (e) == 1 && MEETS_VIEWS(mode[e], rows[e]))

// Whatever has its turn after a change is granted with it. What is not has something in its way.
inline grant_all() {
  d_step {
    i = 0;
    do
    :: i < FIRST_ENDED ->
       if
       :: mode[i] == 0 || granted[i] || BEHIND_HOST(i) || !PARTS_ALLOW(i)
       :: else ->
          if
          :: ENDED_ALLOW(i) -> granted[i] = true; check(i)
          :: else -> assert(HAS_REASON(i))
          fi
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
}

#define LOCALS byte i, j, p, found

#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define LAST_PLACE \
  MAX(MAX(MAX(place[0], place[1]), MAX(place[2], place[3])), MAX(place[4], MAX(place[5], place[6])))

inline append(e, m, r) {
  d_step {
    mode[e] = m;
    rows[e] = r;
    place[e] = LAST_PLACE + 1
  }
}

inline put_before(e, m, r, b) {
  d_step {
    p = place[b];
    i = 0;
    do
    :: i < N -> place[i] = (place[i] >= p -> place[i] + 1 : place[i]); i++
    :: else -> break
    od;
    i = 0;
    mode[e] = m;
    rows[e] = r;
    place[e] = p;
    p = 0
  }
}

// Ended parts have the same place. Places are numbered anew, so that equal queues are equal states.
inline end(e) {
  d_step {
    p = place[e];
    mode[e] = 0;
    rows[e] = 0;
    place[e] = 0;
    granted[e] = false;
    if
    :: p > 0 && place[5] != p && place[6] != p ->
       i = 0;
       do
       :: i < N -> place[i] = (place[i] > p -> place[i] - 1 : place[i]); i++
       :: else -> break
       od;
       i = 0
    :: else
    fi;
    p = 0
  }
}

// The first part that conflicts with (m, r) and waits for what A (or B) keeps, or for a part that does.
#define IS_KEPT_BY_A(e) (!((e) == OP && on_conflict == IGNORES) && (CONFLICT(5, e) || CONFLICT(6, e)))
#define IS_KEPT_BY_B(e) BEHIND_HOST(e)
#define IS_WAITING(e) (mode[e] > 0 && !granted[e])
#ifdef DIRECT
#define IS_BEHIND(k, e) false
#else
#define IS_BEHIND(k, e) ((kept & (1 << (k))) && CONFLICT(k, e) && place[k] < place[e])
#endif
#define IS_BEHIND_KEPT(e) \
  (IS_BEHIND(0, e) || IS_BEHIND(1, e) || IS_BEHIND(2, e) || IS_BEHIND(3, e) || IS_BEHIND(4, e))
#define IS_KEPT(e, is_a) \
  (IS_WAITING(e) && ((is_a && IS_KEPT_BY_A(e)) || (!(is_a) && IS_KEPT_BY_B(e)) || IS_BEHIND_KEPT(e)))

inline find_kept(m, r, is_a) {
  d_step {
    found = N;
    j = 0;
    do  // often enough that each one that waits behind a kept one is kept
    :: j < 3 ->
       i = 0;
       do
       :: i < FIRST_ENDED -> kept = kept | (IS_KEPT(i, is_a) -> 1 << i : 0); i++
       :: else -> break
       od;
       j++
    :: else -> break
    od;
    i = 0;
    do
    :: i < FIRST_ENDED ->
       found = ((kept & (1 << i)) && IN(i, m, r) && (found == N || place[i] < place[found]) -> i : found);
       i++
    :: else -> break
    od;
    i = 0;
    j = 0;
    kept = 0
  }
}

inline choose(m) { if :: m = 1 :: m = 2 fi }

inline put_in(e, m, r, is_a) {
#ifdef LAST
  append(e, m, r);
#else
  find_kept(m, r, is_a);
  if
  :: found < N -> put_before(e, m, r, found)
  :: else -> append(e, m, r)
  fi;
#endif
  found = 0
}

#define ALLOWS(e, m, r) (mode[e] >= (m) && (rows[e] & (r)) == (r))

inline keep(v) {
  outlives = true;
#ifdef NO_PARTS
  skip
#elif defined(WHOLE)
  if
  :: viewed[v] > 0 -> mode[5 + v] = mode[0]; rows[5 + v] = 3; place[5 + v] = place[0]; granted[5 + v] = true
  :: else
  fi
#else
  if
  :: viewed[v] > 0 ->
     mode[5 + v] = viewed[v];
     rows[5 + v] = shown[v];
     place[5 + v] = place[0];
     granted[5 + v] = true
  :: else
  fi
#endif
}

active proctype thread_a() {
  LOCALS;
  byte m, r, kept;
  atomic { choose(m); append(0, m, 3); grant_all(); m = 0 }
  granted[0];
  atomic {
    if :: viewed[0] = 1 :: mode[0] == 2 -> viewed[0] = 2 fi;
    if :: shown[0] = 1 :: shown[0] = 3 fi;
    if
    :: viewed[1] = 1; shown[1] = 2
    :: mode[0] == 2 -> viewed[1] = 2; shown[1] = 2
    :: shown[1] = 0
    fi
  }
  atomic {
    d_step { keep(0); keep(1) };
    end(0);
#ifdef EXCLUSIVE
    granted[6] = false;
    (mode[6] == 0 || !CONFLICT(5, 6)) -> granted[6] = (mode[6] > 0);
#endif
    grant_all()
  }
  do
  :: atomic {
       choose(m);
       if :: r = 2 :: r = 3 fi;
       nested = ALLOWS(5, m, r) || ALLOWS(6, m, r);
#ifndef WAITS
       if
       :: !nested && m == 2 && ((viewed[0] == 1 && (shown[0] & r)) || (viewed[1] == 1 && (shown[1] & r))) ->
          goto stop  // DeadlockError: it would wait for its own view
       :: else
       fi;
       find_kept(m, r, true);
       if
       :: !nested && found < N -> goto stop  // the same, through others
       :: else
       fi;
       found = 0;
#endif
       // It could wait for views of the host, which belong to nobody, so that no search finds the cycle.
       if
       :: !nested && mode[OP] > 0 -> goto stop
       :: else
       fi;
#ifdef UNDER
       if
       :: nested -> mode[1] = m; rows[1] = r; check(1); mode[1] = 0; rows[1] = 0; goto stop
       :: else
       fi;
#endif
       if
       :: nested -> put_in(1, m, r, true)
       :: else -> append(1, m, r)
       fi;
       grant_all()
     }
     granted[1];
     atomic { end(1); grant_all() }
     break
  :: break
  od;
stop:
  atomic {
    m = 0;
    r = 0;
    found = 0;
    nested = false;
#ifdef OWNERLESS
    end(5);
    end(6);
    grant_all();
#endif
    owner_is_gone = true
  }
}

// What refers to the views drops them, in any order.
active proctype holder() {
  LOCALS;
  owner_is_gone;
  do
  :: atomic { viewed[0] > 0 -> viewed[0] = 0; shown[0] = 0; end(5); grant_all() }
  :: atomic { viewed[1] > 0 -> viewed[1] = 0; shown[1] = 0; end(6); grant_all() }
  :: atomic { viewed[0] == 0 && viewed[1] == 0 -> break }
  od;
  ended++
}

active proctype thread_b() {
  LOCALS;
  byte m, kept;
  atomic { choose(m); append(2, m, 3); grant_all() }
  granted[2];
  atomic {
    of_b = m;
    end(2);
    heeds = heeds || (mode[OP] > 0 && !granted[OP] && on_conflict != IGNORES && MODES_CONFLICT(mode[OP], of_b));
    grant_all();
    m = 0
  }
  do
  :: atomic {
       choose(m);
       if
       :: m > of_b && mode[OP] > 0 && !granted[OP] && heeds -> goto stop  // LeaseConflict
       :: m <= of_b -> put_in(2, m, 3, false)
       :: else -> append(2, m, 3)
       fi;
       grant_all()
     }
     granted[2];
     atomic { end(2); grant_all() }
     break
  :: break
  od;
stop:
  atomic { of_b = 0; grant_all(); m = 0; ended++ }
}

#define MEETS_ENDED(m, r) (IN(5, m, r) || IN(6, m, r))

active proctype op() {
  LOCALS;
  byte m, r;
  atomic {
    choose(m);
    if :: r = 1 :: r = 2 :: r = 3 fi;
    if :: on_conflict = RAISES :: on_conflict = AWAITS :: on_conflict = IGNORES fi;
#ifndef HEEDLESS
    heeds = on_conflict == AWAITS && MODES_CONFLICT(m, of_b);
#endif
    if
#ifndef PUSH_WAITS
    :: on_conflict == RAISES && (MODES_CONFLICT(m, of_b) || MEETS_ENDED(m, r)) -> goto stop  // LeaseConflict
#endif
    :: else
    fi;
    assert(on_conflict != RAISES || !MEETS_VIEWS(m, r));
    append(OP, m, r);
    grant_all()
  }
  granted[OP];
  atomic { end(OP); grant_all() }
stop:
  atomic { heeds = false; m = 0; r = 0; on_conflict = 0; ended++ }
}

active proctype thread_c() {
  LOCALS;
  byte m, r;
  atomic {
    choose(m);
    if :: r = 1 :: r = 3 fi;
    append(4, m, r);
    grant_all();
    m = 0;
    r = 0
  }
  granted[4];
  atomic { end(4); grant_all(); ended++ }
}

init { ended == 4 }
