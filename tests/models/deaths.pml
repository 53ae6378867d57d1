// SPDX-License-Identifier: Apache-2.0
//
// Deaths: two processes of a channel have died, and reapers give each death a number. Who reaps has the lock of
// the place, which a dying reaper leaves. The end of the dead process first asks for the next number; then the
// entry of the number, if nobody has changed it, gets the place; then anyone writes into the end that it was
// counted, and moves the last number on (help). There is one entry here, so each number has the entry of the
// number before it. The roles end last. Two of three reapers die, each at any step.
//
// Law: in the end each death has one number, and the numbers have no gap.
// variant: SOUND holds
//
// UNASKED does not ask before the entry has the place: the reaper after a killed one counts the death again.
// variant: UNASKED refuted assertion
// LAST_FIRST moves the last number on before the end says that it was counted: the entry is of a later number
// when the next reaper looks.
// variant: LAST_FIRST refuted assertion
// BLIND writes the entry without a compare: two deaths get one number.
// variant: BLIND refuted assertion
// UNLOCKED reaps without the lock of the place.
// variant: UNLOCKED refuted assertion
// UNHELPED does not move the last number on for an end that was counted.
// variant: UNHELPED refuted assertion

#define DEAD 2
#define REAPERS 3
#define KILLS 2

#define ALIVE 0
#define ASKS 1
#define COUNTED 2
#define OVER 3

// The memory
byte kind[DEAD], number[DEAD];        // the words of the ends
byte entry = 0, entry_place = 0;      // a number, and its place
byte deaths = 0;
byte lock[DEAD];                      // 1 + who has it

// For the law
byte given[DEAD];                     // numbers
byte kills = 0, ended = 0;

#ifdef UNLOCKED
#define MAY_REAP(i) kind[i] != OVER
#define TAKE
#else
#define MAY_REAP(i) kind[i] != OVER && lock[i] == 0
#define TAKE lock[p] = 1 + me
#endif
#ifdef BLIND
#define IS_UNCHANGED true
#else
#define IS_UNCHANGED (entry == e && entry_place == place)
#endif
#define STEP(s) if :: atomic { kills < KILLS -> goto die } :: atomic { true; s } fi

inline say(x) {
  STEP(kind[q] = (kind[q] == ASKS && number[q] == x -> COUNTED : kind[q]))
}
inline move_on(x) { STEP(deaths = (deaths == x - 1 -> x : deaths)) }
inline help(x) {
  STEP(is_its = (entry == x); q = entry_place);
  if
  :: is_its ->
#ifdef LAST_FIRST
     move_on(x);
     say(x)
#else
     say(x);
     move_on(x)
#endif
  :: else
  fi;
  is_its = false;
  q = 0
}

proctype reaper(byte me) {
  byte p = 0, q = 0, n = 0, e = 0, place = 0, k = 0;
  bool is_its = false;
next:
  if
  :: kind[0] == OVER && kind[1] == OVER -> goto over
  :: atomic { MAY_REAP(0) -> p = 0; TAKE }
  :: atomic { MAY_REAP(1) -> p = 1; TAKE }
  fi;
again:
  STEP(k = kind[p]; n = number[p]);
  if
  :: k == ALIVE
#ifdef UNHELPED
  :: k == ASKS -> help(n)
  :: k > ASKS
#else
  :: k != ALIVE -> help(n)
#endif
  fi;
  STEP(k = kind[p]);
  if
  :: k >= COUNTED -> goto roles
  :: else
  fi;
  STEP(n = deaths + 1);
  STEP(e = entry; place = entry_place);
  if
  :: e >= n -> help(n); goto again
  :: else
  fi;
#ifndef UNASKED
  STEP(kind[p] = ASKS; number[p] = n);
#endif
  STEP(is_its = IS_UNCHANGED; entry = (is_its -> n : entry); entry_place = (is_its -> p : entry_place);
       given[p] = given[p] + (is_its -> 1 : 0));
#ifdef UNASKED
  STEP(kind[p] = (is_its -> ASKS : kind[p]); number[p] = n);
#endif
  is_its = false;
  goto again;
roles:
  STEP(kind[p] = OVER);
  STEP(lock[p] = 0);
  k = 0;
  n = 0;
  e = 0;
  place = 0;
  goto next;
  atomic {
    false;
die:
    kills++;
    lock[0] = (lock[0] == 1 + me -> 0 : lock[0]);
    lock[1] = (lock[1] == 1 + me -> 0 : lock[1])
  }
over:
  ended++
}

init {
  atomic { run reaper(0); run reaper(1); run reaper(2) }
  ended == REAPERS;
  assert(given[0] == 1 && given[1] == 1 && deaths == DEAD)
}
