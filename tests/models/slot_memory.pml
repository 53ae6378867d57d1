// SPDX-License-Identifier: Apache-2.0
//
// The memory of the slots of a channel: two producers take pages for their slots out of one budget, without a
// lock. A producer that finds no room beside the slots that processes have takes nothing and sleeps. Else it
// chooses a slot that no process has, takes the pages of other such slots until there is room, and takes the
// slot. To grow it, it looks whether the bytes fit, announces how many it reserves, adds up what all slots
// reserve, and then takes the pages. If that is too much, another one may have come at the same time: the one
// in the lower slot looks again when the other one has its pages or has given up; the one in the higher slot
// gives up. One of the two dies at any step; its slots are free from then on, with what they reserve. Slot 2
// is such a slot at the beginning.
//
// Law: never more pages than the budget; a slot that is written has its pages; no producer sleeps that could
// continue, and none goes on for ever without the other one.
// variant: SOUND holds
// variant: SOUND ends
// variant: UNEVEN holds
// variant: UNEVEN ends
// variant: STOPPED holds
//
// In UNEVEN one producer needs the whole budget. In STOPPED no producer dies, and one stops at any step; the
// other one gives up a look that would be in vain.
//
// UNSUMMED does not add up after it has announced.
// variant: UNSUMMED refuted assertion
// NO_TIE has both give up: they do so again and again.
// variant: NO_TIE refuted ends
// NO_LOOK takes a slot before there is room for it: to give it back wakes the producer itself, for ever.
// variant: NO_LOOK refuted ends
// PUNCH_LATE gives up what a slot reserves before its pages.
// variant: PUNCH_LATE refuted assertion
// RETRACT_LOW gives up down to the pages that are known: a dead process may have left more.
// variant: RETRACT_LOW refuted assertion

#define SLOTS 3
#define BUDGET 3
// How many pages each producer needs
#if defined(UNEVEN) || defined(RETRACT_LOW)
#define FIRST 3
#define SECOND 1
#else
#define FIRST 2
#define SECOND 2
#endif
#define LAST (SLOTS - 1)
#ifdef STOPPED
#define DEATHS 0
#define STOPS 1
#else
#define DEATHS 1
#define STOPS 0
#endif
#define MOST(a, b) ((a) > (b) -> (a) : (b))

// The memory
byte holder[SLOTS];     // 1 + the producer; 0: none
byte reserved[SLOTS];
byte committed[SLOTS];  // so many pages are known to be there
byte pages[SLOTS];
byte signals = 0;       // of the event

byte deaths = 0, stops = 0;

#define PAGES (pages[0] + pages[1] + pages[2])
#ifdef STOPPED
#define MAY_END :: atomic { stops < STOPS -> stops++; goto stop }
#else
#define MAY_END :: atomic { deaths < DEATHS -> deaths++; goto die }
#endif
#define STEP(...) if MAY_END :: atomic { true; __VA_ARGS__ } fi
#define SIGNAL signals = (signals + 1) % 32

// It has announced more than it has pages for.
#define GROWS(j) (holder[j] != 0 && reserved[j] > committed[j])

// Adds what the other slots reserve to sum. k: 1: a slot above s grows, 2: one below.
inline add_up() {
  sum = 0;
  k = 0;
  i = 0;
  do
  :: i < SLOTS && i != s ->
     STEP(n = reserved[i]; sum = sum + n);
     STEP(moves = (n > committed[i]));
     STEP(moves = (moves && holder[i] == 0 -> 2 : moves));
     STEP(
       moves = (moves == 1 || (moves == 2 && reserved[i] != n));
       k = (moves -> (i > s -> k | 1 : k | 2) : k);
       n = 0;
       moves = 0
     );
     i++
  :: i < SLOTS && i == s -> i++
  :: else -> break
  od;
  i = 0
}

#ifdef STOPPED
#define GIVE_UP :: atomic { stops > 0 -> goto retract }
#else
#define GIVE_UP
#endif
// While this lasts, a look would find what the last one has found.
#define look_again(growing) if MAY_END :: atomic { !(growing) -> true } GIVE_UP fi

proctype producer(byte p, need) {
  byte s, t, i, n, k, moves, sum, before, seen;

again:
  STEP(seen = signals);
  // The bytes of slots that a process has.
  sum = 0;
  i = 0;
  do
  :: i < SLOTS ->
     STEP(k = (holder[i] != 0 -> 1 : 0));
     STEP(sum = sum + (k -> reserved[i] : 0); k = 0);
     i++
  :: else -> break
  od;
  i = 0;
  if
  :: sum + need > BUDGET -> sum = 0; goto asleep
  :: else -> sum = 0
  fi;
  // Chooses a slot, and takes the pages of others until it may grow.
  if
  MAY_END
  :: atomic { holder[0] == 0 -> s = 0 }
  :: atomic { holder[1] == 0 -> s = 1 }
  :: atomic { holder[2] == 0 -> s = 2 }
  fi;
make_room:
  add_up();
  if
#ifdef NO_LOOK
  :: true -> goto take
#endif
  :: sum + need <= BUDGET -> goto take
  :: else
  fi;
  sum = 0; k = 0;
  if
  MAY_END
  :: atomic { s != 0 && holder[0] == 0 && reserved[0] > 0 -> holder[0] = 1 + p; t = 0 }
  :: atomic { s != 1 && holder[1] == 0 && reserved[1] > 0 -> holder[1] = 1 + p; t = 1 }
  :: atomic { s != 2 && holder[2] == 0 && reserved[2] > 0 -> holder[2] = 1 + p; t = 2 }
  :: atomic {
       !(s != 0 && holder[0] == 0 && reserved[0] > 0) && !(s != 1 && holder[1] == 0 && reserved[1] > 0) &&
         !(s != LAST && holder[LAST] == 0 && reserved[LAST] > 0) -> goto asleep
     }
  fi;
  STEP(committed[t] = 0);
#ifdef PUNCH_LATE
  STEP(reserved[t] = 0);
  STEP(pages[t] = 0);
#else
  STEP(pages[t] = 0);
  STEP(reserved[t] = 0);
#endif
  STEP(holder[t] = 0; t = 0);
  STEP(SIGNAL);
  goto make_room;

take:
  if
  MAY_END
  :: atomic { holder[s] == 0 -> holder[s] = 1 + p }
  :: atomic { holder[s] != 0 -> sum = 0; k = 0; s = 0; goto again }
  fi;

  // Grows it.
  before = reserved[s];
  if
  :: committed[s] >= need -> goto write
  :: else
  fi;
  add_up();
  if
  :: sum + MOST(before, need) > BUDGET -> goto leave
  :: else
  fi;
  STEP(reserved[s] = MOST(before, need));
  do
  :: add_up();
     if
#ifdef UNSUMMED
     :: true -> break
#else
     :: sum + reserved[s] <= BUDGET -> break
     :: else ->
        if
#ifndef NO_TIE
        :: k == 1 -> look_again((s < 1 && GROWS(1)) || (s < LAST && GROWS(LAST)))
        :: else -> goto retract
#else
        :: true -> goto retract
#endif
        fi
#endif
     fi
  od;
  STEP(pages[s] = MOST(pages[s], need); assert(PAGES <= BUDGET); assert(pages[s] <= reserved[s]));
  STEP(committed[s] = need);
write:
  sum = 0; k = 0; before = 0;
  STEP(assert(pages[s] >= need));
  STEP(holder[s] = 0);
  STEP(SIGNAL);
  goto done;

retract:
#ifdef RETRACT_LOW
  STEP(reserved[s] = committed[s]);
#else
  STEP(reserved[s] = before);
#endif

leave:
  sum = 0; k = 0; before = 0;
  STEP(holder[s] = 0; s = 0);
  STEP(SIGNAL);
asleep:
#ifdef STOPPED
end_asleep:
#endif
  if
  MAY_END
  :: atomic { signals != seen -> true }
  fi;
  goto again;

#ifndef STOPPED
die:
  atomic {
    i = 0;
    do
    :: i < SLOTS -> holder[i] = (holder[i] == 1 + p -> 0 : holder[i]); i++
    :: else -> break
    od;
    SIGNAL;
    goto done
  }
#else
stop:
end_stop:
  false;
#endif
done:
  s = 0; t = 0; i = 0; n = 0; k = 0; moves = 0; sum = 0; before = 0; seen = 0
}

init {
  atomic {
    reserved[2] = 2;  // of a process that died as it grew the slot
    pages[2] = 2;
    run producer(0, FIRST);
    run producer(1, SECOND)
  }
}
