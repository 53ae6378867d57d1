// SPDX-License-Identifier: Apache-2.0
//
// Host: the views of ordinary code (the host), that is, of two threads that count as one user, and two ops
// that are pushed over two queues. A new view that needs no more access than the host has is made at once:
// conflicting ops already wait for the host. Any other view is a request. Pushes treat the request like a
// view, and it waits for the earlier unfinished parts that conflict. If one of these parts, directly or
// through other ops, waits for the host, the request raises. A push that conflicts with the host raises, or
// waits until the views and requests that it found are gone. The first thread keeps its views while the other
// one requests a view, as threads may wait for each other. (ended.pml models the turns of views, calls and
// leases.)
//
// Law: a granted op and a conflicting view never overlap; every request and every op ends.
// variant: SOUND holds
// variant: SOUND ends soak
//
// WAITS_FOR_ALL does not look for parts that wait for the host: both wait.
// variant: WAITS_FOR_ALL refuted deadlock
// DIRECT_ONLY looks only at the conflicting parts, and not at those for which they wait.
// variant: DIRECT_ONLY refuted deadlock
// VIEWS_ONLY does not count the host's requests: a push waits for a request, and a request of the other
// thread for the push.
// variant: VIEWS_ONLY refuted deadlock
// LOOK_FIRST looks for such parts before it shows the request: another part is appended in between.
// variant: LOOK_FIRST refuted deadlock
// UNSEEN shows a request to pushes only when it has become a view.
// variant: UNSEEN refuted assertion
// PUSH_IN_TWO looks at the host, leaves the locks, then appends.
// variant: PUSH_IN_TWO refuted assertion
// JOIN_ANY lets a write join views that read.
// variant: JOIN_ANY refuted assertion

#define CONFLICT(a, b) ((a) * (b) > 1)  // of modes: 0 none, 1 read, 2 write
#define AT(q, i) ((q)*2 + (i))
#define BIT(o) (1 << (o))

// ops
byte mode[4];       // of op o in queue q
bool behind[4];     // waits there for views or requests of the host
bool live[2];       // in the queues and unfinished; op 0 is pushed first
bool running[2];
byte pushes = 0;

// host: thread h
byte views[4];      // in queue q: how many of the mode, AT(q, mode - 1)
byte asks_in[2];    // the queue of h's request
byte asks[2];       // its mode, 0 none
byte waits_on[2];   // the ops that it waits for
byte ended = 0;

#define VIEWED(q, m) ((m) > 0 && (views[AT(q, 1)] > 0 || ((m) == 2 && views[AT(q, 0)] > 0)))
#define ASKED_BY(h, q, m) (asks_in[h] == q && CONFLICT(asks[h], m))
#ifdef UNSEEN
#define SEEN(q, m) VIEWED(q, m)
#else
#define SEEN(q, m) (VIEWED(q, m) || ASKED_BY(0, q, m) || ASKED_BY(1, q, m))
#endif
#define BEFORE(a, b) ((a) < (b) && live[a])
#define CLASH(a, b) (CONFLICT(mode[AT(0, a)], mode[AT(0, b)]) || CONFLICT(mode[AT(1, a)], mode[AT(1, b)]))

// op o no longer waits in queue q once views, and requests that do not wait for o, are gone
#define STILL(q, o) \
  (VIEWED(q, mode[AT(q, o)]) || (ASKED_BY(0, q, mode[AT(q, o)]) && !(waits_on[0] & BIT(o))) || \
   (ASKED_BY(1, q, mode[AT(q, o)]) && !(waits_on[1] & BIT(o))))

inline host_left(q) {
  behind[AT(q, 0)] = behind[AT(q, 0)] && STILL(q, 0);
  behind[AT(q, 1)] = behind[AT(q, 1)] && STILL(q, 1)
}

inline choose(o) {
  if
  :: mode[AT(0, o)] = 1
  :: mode[AT(0, o)] = 2
  :: mode[AT(0, o)] = 1; mode[AT(1, o)] = 2
  :: mode[AT(0, o)] = 2; mode[AT(1, o)] = 1
  :: mode[AT(0, o)] = 2; mode[AT(1, o)] = 2
  :: mode[AT(1, o)] = 1
  :: mode[AT(1, o)] = 2
  fi
}

inline look_at_host(o) {
  in_0 = SEEN(0, mode[AT(0, o)]);
  in_1 = SEEN(1, mode[AT(1, o)]);
  if
  :: in_0 || in_1 -> raised = true  // on_conflict="raise"
  :: skip                           // no conflict, or on_conflict="wait"
  fi
}

inline append(o) {
  if
  :: raised
  :: else ->
     live[o] = true;
     behind[AT(0, o)] = in_0;
     behind[AT(1, o)] = in_1
  fi;
  in_0 = false;
  in_1 = false;
  pushes++
}

proctype op(byte o) {
  bool in_0, in_1, raised;
#ifdef PUSH_IN_TWO
  atomic { pushes == o; choose(o); look_at_host(o) }
  atomic { append(o) }
#else
  atomic { pushes == o; choose(o); look_at_host(o); append(o) }
#endif
  if
  :: raised
  :: else ->
     atomic {
       !behind[AT(0, o)] && !behind[AT(1, o)] && !(BEFORE(1 - o, o) && CLASH(o, 1 - o)) ->
       running[o] = true;
       assert(!VIEWED(0, mode[AT(0, o)]) && !VIEWED(1, mode[AT(1, o)]));
       assert(!(running[1 - o] && CLASH(o, 1 - o)))
     }
     atomic { running[o] = false; live[o] = false }
  fi;
  atomic { mode[AT(0, o)] = 0; mode[AT(1, o)] = 0; raised = false; ended++ }
}

// One step of the search, under the lock of queue q: does op o wait for the host there
#ifdef VIEWS_ONLY
#define HOST_AHEAD(q, o) (behind[AT(q, o)] && VIEWED(q, mode[AT(q, o)]))
#else
#define HOST_AHEAD(q, o) behind[AT(q, o)]
#endif

inline search_queue(q_) {
  atomic {
    found = found || (live[o] && HOST_AHEAD(q_, o));
#ifndef DIRECT_ONLY
    if
    :: BEFORE(1 - o, o) && CONFLICT(mode[AT(q_, o)], mode[AT(q_, 1 - o)]) -> todo = todo | BIT(1 - o)
    :: else
    fi
#endif
  }
}

inline search() {
  todo = waits_on[h];
#ifndef WAITS_FOR_ALL
  do
  :: atomic { todo != 0 -> o = (todo & 1 -> 0 : 1); todo = todo & ~BIT(o) }
     search_queue(0);
     search_queue(1);
     o = 0
  :: else -> break
  od;
#endif
  todo = 0
}

#ifdef JOIN_ANY
#define JOINS(q, m) (views[AT(q, 0)] > 0 || views[AT(q, 1)] > 0)
#else
#define JOINS(q, m) (views[AT(q, 1)] > 0 || ((m) == 1 && views[AT(q, 0)] > 0))
#endif
#define IN_WAY(q, m, o) (live[o] && CONFLICT(m, mode[AT(q, o)]))
#define ENTRIES(q, m) ((IN_WAY(q, m, 0) -> 1 : 0) + (IN_WAY(q, m, 1) -> 2 : 0))

inline take() {
  views[AT(q, m - 1)]++;
  held[AT(q, m - 1)]++;
  assert(!(running[0] && CONFLICT(m, mode[AT(q, 0)])) && !(running[1] && CONFLICT(m, mode[AT(q, 1)])))
}

inline ask() {
  asks_in[h] = q;
  asks[h] = m;
  waits_on[h] = ENTRIES(q, m)
}

inline choose_view() {
  if :: q = 0 :: q = 1 fi;
  if :: m = 1 :: m = 2 fi
}

inline leave() {
  atomic {
    asks[h] = 0;
    waits_on[h] = 0;
    asks_in[h] = 0;
    found = false;
    host_left(q);
    q = 0;
    m = 0
  }
}

inline drop(in, with) {
  held[AT(in, with - 1)] > 0 && (h == 1 || asks[1] == 0) ->
  held[AT(in, with - 1)]--;
  views[AT(in, with - 1)]--;
  host_left(in)
}

proctype host(byte h; byte requests) {
  byte held[4];
  byte q, m, o, todo;
  bool found;
  do
  :: atomic {
       requests > 0 ->
       requests--;
       choose_view();
       if
       :: JOINS(q, m) -> take(); goto next
       :: else
       fi;
#ifdef LOOK_FIRST
       waits_on[h] = ENTRIES(q, m)
     }
     search();
     atomic { ask() }
#else
       ask()
     }
     search();
#endif
     if
     :: found  // LeaseConflict
     :: else -> atomic { !(live[0] && (waits_on[h] & 1)) && !(live[1] && (waits_on[h] & 2)) -> take() }
     fi;
next:
     leave()
  :: requests == 0 -> break
  od;
  do
  :: atomic { drop(0, 1) }
  :: atomic { drop(0, 2) }
  :: atomic { drop(1, 1) }
  :: atomic { drop(1, 2) }
  :: held[0] + held[1] + held[2] + held[3] == 0 -> break
  od;
  ended++
}

init {
  atomic { run op(0); run op(1); run host(0, 2); run host(1, 1) }
  ended == 4
}
