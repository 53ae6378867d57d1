// SPDX-License-Identifier: Apache-2.0
//
// Process walk: three processes of one thread each, and two shared storages. Two processes take up to two
// leases each, the third takes one, on either storage, one after the other or both at once. A blocked process
// shows that its grant waits. Then it walks: from the grant of a waiting process to the processes that block
// it. It reads one storage in one step; the others may change meanwhile. If the walk returns to its
// beginning, it is repeated over the edges that it has seen. An edge counts if both grants still have the
// tickets of the first walk. Then the whole cycle existed at the time between the two walks, and the walker
// raises and frees its grant.
//
// Law: no process hangs; a process that raises was part of a real cycle at some moment of its two walks.
// variant: SOUND holds
// variant: SOUND ends soak
//
// NO_WALK waits at once.
// variant: NO_WALK refuted deadlock
// WALK_FIRST walks before its grant is visible.
// variant: WALK_FIRST refuted deadlock
// GRANTED_ONLY follows only granted leases, and misses processes that wait in between.
// variant: GRANTED_ONLY refuted deadlock
// ONE_WALK raises after the first walk: a blocker has released, and then waits for the walker.
// variant: ONE_WALK refuted assertion
// ANY_EDGE accepts any second walk that returns: another blocker does the same during it. Two readers that
// take further leases are enough: they queue behind the writer that walks.
// variant: ANY_EDGE refuted assertion

#define N 3
#define NONE 2
#define BIT(i) (1 << (i))
#define R(s, p) ((s) * N + (p))         // the grant of process p for storage s
#define EDGE(x, b) BIT((x) * N + (b))

mtype = { none, unseen, waiting, granted };

mtype state[6] = none;
byte mode[6];            // 1 read, 2 write
byte before[6];          // the processes whose grants waited when this one was registered, as bits
byte waits_on[N] = NONE; // the storage
short same[N];           // edges of walker p's first walk whose grants are still the same
bool walking[N], cycle_was[N];  // for the law

#define FIRST(s, p, b) (state[R(s, b)] == waiting && (before[R(s, p)] & BIT(b)))
#define IN_THE_WAY(s, p, b) (state[R(s, b)] == granted || FIRST(s, p, b))
#define BLOCKS(s, p, b) ((b) != (p) && mode[R(s, p)] * mode[R(s, b)] > 1 && IN_THE_WAY(s, p, b))
#define CLEAR(s, p) (!BLOCKS(s, p, 0) && !BLOCKS(s, p, 1) && !BLOCKS(s, p, 2))
#define BLOCKERS(s, p) (BLOCKS(s, p, 0) | (BLOCKS(s, p, 1) << 1) | (BLOCKS(s, p, 2) << 2))
#define EDGES_OF(x) (waits_on[x] == NONE -> 0 : BLOCKERS(waits_on[x], x))
#define FROM(x) (reach & BIT(x) -> EDGES_OF(x) : 0)
#define IS_SEEN(x) (x == p || state[R(waits_on[x], x)] == waiting)
#define WAITS(s, b) (state[R(s, b)] == waiting)

#define LEFT(s, x, b) (waits_on[x] == (s) -> EDGE(x, b) : 0)
inline forget_edges() {
  same[0] = same[0] & ~(edges);
  same[1] = same[1] & ~(edges);
  same[2] = same[2] & ~(edges);
  edges = 0
}

inline register(s) {
  d_step {
    before[R(s, p)] = WAITS(s, 0) | (WAITS(s, 1) << 1) | (WAITS(s, 2) << 2);
    state[R(s, p)] = waiting;
    waits_on[p] = s;
    note_cycles()
  }
}

inline note_cycle(w) {
  if
  :: walking[w] ->
     reach = EDGES_OF(w);
     reach = reach | FROM(0) | FROM(1) | FROM(2);
     reach = reach | FROM(0) | FROM(1) | FROM(2);
     cycle_was[w] = cycle_was[w] || (reach & BIT(w));
     reach = 0
  :: else
  fi
}

inline note_cycles() { note_cycle(0); note_cycle(1); note_cycle(2) }

// p's grant for storage s is no more
inline leave(s) {
  d_step {
    if
    :: waits_on[p] == s -> edges = 7 << (p * N); forget_edges(); waits_on[p] = NONE
    :: else
    fi;
    edges = LEFT(s, 0, p) | LEFT(s, 1, p) | LEFT(s, 2, p);
    forget_edges();
    state[R(s, p)] = none;
    mode[R(s, p)] = 0;
    before[R(s, 0)] = before[R(s, 0)] & ~BIT(p);
    before[R(s, 1)] = before[R(s, 1)] & ~BIT(p);
    before[R(s, 2)] = before[R(s, 2)] & ~BIT(p);
    before[R(s, p)] = 0
  }
}

#ifdef GRANTED_ONLY
#define FOLLOWED(b) (state[R(waits_on[at], b)] == granted)
#else
#define FOLLOWED(b) true
#endif
#ifdef ANY_EDGE
#define COUNTS(b) true
#else
#define COUNTS(b) (!is_second || (same[p] & EDGE(at, b)))
#endif

// under the mutex of the storage that `at` waits on
inline look(b) {
  if
  :: waits_on[at] != NONE && IS_SEEN(at) && BLOCKS(waits_on[at], at, b) && FOLLOWED(b) && COUNTS(b) ->
     if
     :: b == p -> found = true
     :: b != p && !(seen & BIT(b)) -> todo = todo | BIT(b)
     :: else
     fi;
     if
     :: !is_second -> same[p] = same[p] | EDGE(at, b)
     :: else
     fi
  :: else
  fi
}

// from p's own grant
inline walk() {
  d_step { found = false; todo = BIT(p); seen = 0 }
  do
  :: todo != 0 ->
     d_step {
       at = (todo & 1 -> 0 : (todo & 2 -> 1 : 2));
       todo = todo & ~BIT(at);
       seen = seen | BIT(at);
       look(0);
       look(1);
       look(2);
       at = 0
     }
  :: else -> break
  od;
  true
}

inline search() {
  d_step { walking[p] = true; note_cycles() }
  walk();
#ifndef ONE_WALK
  if
  :: found -> is_second = true; walk()
  :: else
  fi;
#endif
  d_step {
    assert(!found || cycle_was[p]);
    raised = found;
    walking[p] = false; cycle_was[p] = false; same[p] = 0; found = false; is_second = false; seen = 0
  }
}

inline grant(s) {
  edges = 7 << (p * N); forget_edges();
  waits_on[p] = NONE;
  state[R(s, p)] = granted;
  before[R(s, 0)] = before[R(s, 0)] & ~BIT(p);
  before[R(s, 1)] = before[R(s, 1)] & ~BIT(p);
  before[R(s, 2)] = before[R(s, 2)] & ~BIT(p);
  before[R(s, p)] = 0
}

#define EVALUATE \
  if \
  :: CLEAR(s, p) -> grant(s) \
  :: else \
  fi

#define HOLDS(s) (state[R(s, p)] == granted)

proctype process(byte p; byte leases) {
  short edges;
  byte s, todo, seen, at, reach;
  bool is_second, found, raised;
  do
  :: atomic {
       !raised && !(HOLDS(0) && HOLDS(1)) && leases > 0 ->
       leases--;
       if
       :: state[R(0, p)] == none -> s = 0
       :: state[R(1, p)] == none -> s = 1
       fi;
       if :: mode[R(s, p)] = 1 :: mode[R(s, p)] = 2 fi;
#ifdef WALK_FIRST
       before[R(s, p)] = WAITS(s, 0) | (WAITS(s, 1) << 1) | (WAITS(s, 2) << 2);
       waits_on[p] = s;
       state[R(s, p)] = unseen;
       EVALUATE
     }
     if
     :: state[R(s, p)] == unseen -> search()
     :: else
     fi;
     if
     :: state[R(s, p)] == unseen && !raised -> register(s)
     :: else
     fi;
#else
       register(s);
       EVALUATE
     }
#ifndef NO_WALK
     if
     :: state[R(s, p)] == waiting -> search()
     :: else
     fi;
#endif
#endif
     if
     :: raised -> leave(s)
     :: atomic { state[R(s, p)] == waiting && CLEAR(s, p) -> grant(s) }
     :: HOLDS(s)
     fi;
     s = 0
  :: HOLDS(0) -> leave(0)
  :: HOLDS(1) -> leave(1)
  :: atomic { raised && !HOLDS(0) && !HOLDS(1) -> raised = false }
  :: !raised && !HOLDS(0) && !HOLDS(1) -> break
  od;
  leases = 0
}

init {
  atomic { run process(0, 1); run process(1, 2); run process(2, 2) }
  _nr_pr == 1
}
