// SPDX-License-Identifier: Apache-2.0
//
// Grants: how a process gets its turn without a mutex. Two processes, with THREE and in the faulty variants
// three, ask for the same bytes, each by a record of its own, which it alone writes: arriving, then waiting with
// a ticket, then granted, then free. It is granted when no record of another one is arriving, granted, or
// waiting with a lower ticket; these are looked at one by one, while they change. Who is blocked sleeps on the turn, as it was before it looked; whoever
// gives something back moves it, and wakes if somebody may sleep. Who is blocked by one that arrives tells so,
// and looks again; one that has got its ticket moves the turn if it was told.
//
// One of them stops at any of its steps, with what it knew, and is continued when nothing else moves any
// more. A wait may end by its timeout then. One that stops between what it gives back and the wake wakes
// nobody: as long as one is stopped a sleep ends by itself (a slice of 50 ms). Else nothing but a wake does.
//
// Law: two that conflict never have the bytes together, also not when one goes on with stale knowledge;
// whenever nothing moves any more, a process sleeps only behind one that has the bytes or came first; to give
// back never waits; and when the one that was stopped is continued, all come to their end.
// variant: SOUND holds
// variant: THREE holds soak
//
// NO_ARRIVAL takes the ticket before it is seen: the next one is granted meanwhile.
// variant: NO_ARRIVAL refuted assertion
// GRANTED_ALONE looks at granted records alone.
// variant: GRANTED_ALONE refuted assertion
// TURN_LATE reads the turn after the records: what was given back in between wakes nobody.
// variant: TURN_LATE refuted deadlock
// TURN_FIRST moves the turn before it gives back.
// variant: TURN_FIRST refuted deadlock
// UNTOLD does not tell one that arrives that it is waited for.
// variant: UNTOLD refuted deadlock
// TOLD_ONCE tells so without looking again: it had its ticket by then.
// variant: TOLD_ONCE refuted deadlock

#ifdef SOUND
#define PAIR
#endif
#define N 3
#define BIT(i) (1 << (i))

mtype = { none, arriving, waiting, granted };

mtype state[N] = none;
byte ticket[N];
byte next_ticket = 1;
bool is_told[N];             // somebody has met p since it began to arrive
bool writes[N];

bool asleep[N], moved[N];    // the turn is not what p has read
bool is_done[N];
bool is_stopped[N];
bool is_continued = false;

#define CONFLICT(p, q) ((p) != (q) && (writes[p] || writes[q]))
#ifdef GRANTED_ALONE
#define IN_WAY(p, q) (CONFLICT(p, q) && state[q] == granted)
#else
#define IN_WAY(p, q) (CONFLICT(p, q) && (state[q] == granted || state[q] == arriving || \
                      (state[q] == waiting && ticket[q] < ticket[p])))
#endif
#define BLOCKED(p) (IN_WAY(p, 0) || IN_WAY(p, 1) || IN_WAY(p, 2))
#define LOST(p) (asleep[p] && !BLOCKED(p))
#define STOPPED (is_stopped[0] || is_stopped[1] || is_stopped[2])
#define HELD(p, q) (CONFLICT(p, q) && state[q] == granted)

// Of those alone who have read it.
#define READS(q) (state[q] == waiting && !asleep[q])
inline move_turn() { moved[0] = READS(0); moved[1] = READS(1); moved[2] = READS(2) }
inline wake_all() { asleep[0] = false; asleep[1] = false; asleep[2] = false }

proctype process(byte p) provided (!is_stopped[p]) {
  byte q, met, told;
  bool is_blocked, times_out;
#ifdef NO_ARRIVAL
  atomic { ticket[p] = next_ticket; next_ticket++ }
  state[p] = waiting;
#else
  state[p] = arriving;
  atomic { ticket[p] = next_ticket; next_ticket++ }
  state[p] = waiting;
  atomic {
    if
    :: is_told[p] -> move_turn()
    :: else
    fi
  }
  atomic {
    if
    :: is_told[p] -> wake_all(); is_told[p] = false
    :: else
    fi
  }
#endif
  do
  :: true;
again:
     atomic {
#ifndef TURN_LATE
       moved[p] = false;
#endif
       is_blocked = false;
       met = 0;
       q = (p == 0 -> 1 : 0)
     }
     do
     :: atomic { q < N ->
          if
          :: IN_WAY(p, q) ->
             is_blocked = true;
             if :: state[q] == arriving -> met = met | BIT(q) :: else fi
          :: else
          fi;
          q = (q + 1 == p -> q + 2 : q + 1)
        }
     :: atomic { q >= N -> q = 0; break }
     od;
#ifdef TURN_LATE
     moved[p] = false;
#endif
#ifndef UNTOLD
     if
     :: atomic { met != 0 && met != told ->
          told = met;
          met = 0;
          is_told[0] = is_told[0] || state[0] == arriving;
          is_told[1] = is_told[1] || state[1] == arriving;
          is_told[2] = is_told[2] || state[2] == arriving;
#ifndef TOLD_ONCE
          goto again
#endif
        }
     :: atomic { met == 0 || met == told -> met = 0 }
     fi;
#endif
     if
     :: atomic { !is_blocked -> told = 0; break }
     :: atomic { is_blocked ->
          told = 0;
          is_blocked = false;
          if :: !moved[p] -> asleep[p] = true :: else -> moved[p] = false fi
        }
     fi;
end_asleep:
     if
     :: atomic { !asleep[p] -> moved[p] = false }
     :: atomic { LOST(p) && STOPPED -> asleep[p] = false }
     :: atomic { asleep[p] && is_continued -> asleep[p] = false; times_out = true; break }
     fi
  od;
  if
  :: atomic { times_out -> times_out = false }
  :: atomic { !times_out ->
       assert(!HELD(p, 0) && !HELD(p, 1) && !HELD(p, 2));
       moved[p] = false;
       state[p] = granted
     }
  fi;
#ifdef TURN_FIRST
  atomic { move_turn() }
  atomic { state[p] = none; ticket[p] = 0 }
#else
  atomic { state[p] = none; ticket[p] = 0 }
  atomic { move_turn() }
#endif
  atomic { wake_all(); is_done[p] = true }
}

proctype stopper() {
  if
  :: is_stopped[0] = true
  :: is_stopped[2] = true
  :: true
  fi
}

init {
  atomic {
    // The first two are alike.
    if
    :: writes[0] = true; writes[1] = true
    :: true
    fi;
    writes[2] = true;
    run process(0);
#ifdef PAIR
    is_done[1] = true;
#else
    run process(1);
#endif
    run process(2);
    run stopper()
  }
  timeout;
  !LOST(0) && !LOST(1) && !LOST(2);
  is_continued = true;
  is_stopped[0] = false;
  is_stopped[2] = false;
  is_done[0] && is_done[1] && is_done[2]
}
