// SPDX-License-Identifier: Apache-2.0
//
// Keeper: one message that a process keeps beside its sender. A taker looks at the word of the record, and then
// names itself in it, if the word has not changed. A looker ends the message if nobody keeps it. The word names
// the place of the keeper, and not its process: after the death of the keeper, a reaper removes the name, and
// then frees the place, which another process takes. That one may keep the same message.
//
// Processes: the sender (place 0), a taker (place 1), its successor in the same place, another taker (place 2),
// a looker and a reaper. Two of the sender, the first taker and the reaper die, each at any step. A stop of a
// process is a pause of any length between two of its steps. A step of the model is one load or one exchange of
// the word, or one look whether a process lives.
//
// Law: the word is live and names each living process that was told that it keeps the message; so at most one was
// told. Whenever no step is possible, it names no process that was not told.
// variant: SOUND holds
//
// TWO_WORDS ends a message whatever the word says of its keeper, as if the keeper had a word of its own.
// variant: TWO_WORDS refuted assertion
// PLACE_FIRST frees the place before its name is removed.
// variant: PLACE_FIRST refuted assertion
// NO_REAPER lets a looker end what a dead process has kept, without the lock of its place.
// variant: NO_REAPER refuted assertion
// DISPLACE lets a taker replace a keeper that lives.
// variant: DISPLACE refuted assertion
// LEFT_NAME does not remove the name of a dead keeper.
// variant: LEFT_NAME refuted assertion

#define S 0
#define NOBODY 0

// The word
bool live = true;
byte keeper = NOBODY;        // 1 + the place

// The places, and the processes there
bool alive[3] = true;
bool taken[3] = true;
bool locked[3];              // by a reaper, or by a process that takes the place
byte life[3] = 1;            // the number of the process that has the place

bool told[3];                // the living process there was told that it keeps the message
byte deaths = 2;
byte reaps = 0;              // 1 + the place whose lock the reaper has
bool is_over = false;        // no other step was possible
bool falls = false;          // the reaper dies now

#define IS_SAME (live == was_live && keeper == was_keeper)
#define IS_DEAD(p) (taken[p] && !alive[p])

inline look() { atomic { was_live = live; was_keeper = keeper } }

// What follows from a look: the message ends, or loses its keeper.
inline end_it() {
#ifdef TWO_WORDS
  live = false
#else
  atomic { if :: IS_SAME -> live = false :: else fi }
#endif
}

inline check() {
  assert(!told[1] || (live && keeper == 2));
  assert(!told[2] || (live && keeper == 3))
}

// Removes what the dead process of place q has kept, and frees the place. Requires its lock.
inline remove(q) {
#ifdef PLACE_FIRST
  taken[q] = false;
#endif
  do
  :: look();
     if
     :: atomic { !was_live || (was_keeper != q + 1 && (q != S || was_keeper != NOBODY)) -> was_live = false; was_keeper = 0 } break
     :: else ->
        is_sent = q != S && alive[S];
#ifdef LEFT_NAME
        break
#else
        atomic {
          if
          :: IS_SAME -> live = is_sent; keeper = NOBODY
          :: else
          fi
        }
#endif
     fi
  od;
#ifndef PLACE_FIRST
  taken[q] = false;
#endif
  is_sent = false;
  locked[q] = false
}

#ifdef DISPLACE
#define MAY_NAME true
#else
#define MAY_NAME (was_keeper == NOBODY)
#endif

proctype taker(byte p, l) {
  bool was_live, is_sent;
  byte was_keeper;
  {
    // The successor waits for the place.
    if
    :: l == 1
    :: atomic { l == 2 && !taken[p] && !locked[p] -> taken[p] = true; alive[p] = true; life[p] = 2 }
    :: l == 2 && is_over -> goto ends
    fi;
    do
    :: look();
       if
       :: !was_live -> break
       :: was_live && MAY_NAME ->
          is_sent = alive[S];
          if
          :: !is_sent && was_keeper == NOBODY -> break   // a looker ends it
          :: else ->
             atomic {
               if
               :: IS_SAME -> keeper = p + 1; told[p] = true
               :: else
               fi
             }
             check()
          fi;
          if
          :: told[p] -> break
          :: else
          fi
       :: was_live && !MAY_NAME && was_keeper == p + 1 -> break
       :: was_live && !MAY_NAME && was_keeper != p + 1 ->
          if
          :: !IS_DEAD(was_keeper - 1) -> break           // it is refused
          :: atomic { IS_DEAD(was_keeper - 1) && !locked[was_keeper - 1] -> locked[was_keeper - 1] = true; is_sent = false }
             remove(1)
          :: locked[was_keeper - 1] || !taken[was_keeper - 1]
          fi
       fi
    od
ends:
    skip
  } unless { atomic { l == 1 && p == 1 && (!alive[p] || life[p] != l) -> skip } }
}

proctype looker() {
  bool was_live, is_sent;
  byte was_keeper;
  look();
  if
  :: !was_live
#ifdef NO_REAPER
  :: was_live && was_keeper != NOBODY ->
     if
     :: !IS_DEAD(was_keeper - 1)
     :: IS_DEAD(was_keeper - 1) ->
        is_sent = alive[S];
        if
        :: is_sent
        :: !is_sent -> end_it()
        fi
     fi
#else
  :: was_live && was_keeper != NOBODY   // it is kept, or a reaper comes
#endif
  :: was_live && was_keeper == NOBODY ->
     is_sent = alive[S];
     if
     :: is_sent
     :: !is_sent -> end_it()
     fi
  fi;
  atomic { check(); was_live = false; was_keeper = 0; is_sent = false }
}

// The kernel frees the lock of a reaper that dies. Another one goes on.
proctype reaper() {
  bool was_live, is_sent;
  byte was_keeper;
again:
  {
    do
    :: is_over -> goto ends
    :: atomic { IS_DEAD(0) && !locked[0] -> locked[0] = true; reaps = 1 } remove(0); reaps = 0
    :: atomic { IS_DEAD(1) && !locked[1] -> locked[1] = true; reaps = 2 } remove(1); reaps = 0
    od
  } unless { atomic { falls -> falls = false } }
  atomic {
    if
    :: reaps != 0 -> locked[reaps - 1] = false
    :: else
    fi;
    reaps = 0; was_live = false; was_keeper = 0; is_sent = false
  }
  goto again;
ends:
  skip
}

proctype kernel() {
  do
  :: deaths == 0 -> break
  :: true -> break
  :: atomic { deaths > 0 && alive[0] -> alive[0] = false; deaths-- }
  :: atomic { deaths > 0 && alive[1] && life[1] == 1 -> alive[1] = false; told[1] = false; deaths-- }
  :: atomic { deaths > 0 && reaps != 0 && !falls -> falls = true; deaths-- }
  od
}

init {
  atomic {
    run taker(1, 1);
    run taker(1, 2);
    run taker(2, 1);
    run looker();
    run reaper();
    run kernel()
  }
  timeout;
  is_over = true;
  check();
  assert(!live || keeper == NOBODY || told[keeper - 1])   // a look ends what nobody keeps
}
