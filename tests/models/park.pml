// SPDX-License-Identifier: Apache-2.0
//
// Park: two workers of a pool and three tasks from two pushers. A pusher puts its task into the inbox, then
// reads the number of parked workers. If it is not zero, it changes the word on which they sleep, and wakes
// one worker. A worker that finds the inbox empty reads that word, announces that it parks, checks the inbox
// again, and sleeps unless the word has changed. Every step is one sequentially consistent operation.
//
// Law: no task stays in the inbox while a worker sleeps. So every task runs, although the body of task 0 ends
// only after all others.
// variant: SOUND holds
// variant: SOUND ends
//
// NO_SECOND_LOOK sleeps right after the announcement.
// variant: NO_SECOND_LOOK refuted deadlock
// WORD_LATE reads the word after the second look.
// variant: WORD_LATE refuted deadlock
// WORD_KEPT wakes without changing the word: a worker that is about to sleep misses the wake.
// variant: WORD_KEPT refuted deadlock
// LOOK_FIRST shows the effect of a too weak memory order of the announcement: the second check comes before
// it.
// variant: LOOK_FIRST refuted deadlock
// COUNT_FIRST is the same for the pusher: it reads the number of parked workers before the task is visible.
// variant: COUNT_FIRST refuted deadlock
// WAKE_FROM_EMPTY wakes only for a task that finds the inbox empty: one worker for two tasks.
// variant: WAKE_FROM_EMPTY refuted deadlock
// WAKE_FIRST_PARKED wakes only when exactly one worker is parked, as if more had been woken before.
// variant: WAKE_FIRST_PARKED refuted deadlock

#define WORKERS 2
#define TASKS 3

bool inbox[TASKS], done[TASKS];
byte word = 0;       // the futex
byte parked = 0;
bool asleep[WORKERS];

#define EMPTY (!inbox[0] && !inbox[1] && !inbox[2])

inline wake_one() {
  if
  :: asleep[0] -> asleep[0] = false
  :: asleep[1] -> asleep[1] = false
  :: else
  fi
}

inline look_and_wake() {
#ifndef COUNT_FIRST
  count = parked;
#endif
  if
#ifdef WAKE_FROM_EMPTY
  :: count > 0 && was_empty ->
#elif defined(WAKE_FIRST_PARKED)
  :: count == 1 ->
#else
  :: count > 0 ->
#endif
#ifndef WORD_KEPT
     word++;
#endif
     atomic { wake_one() }
  :: else
  fi;
  count = 0
}

proctype pusher(byte task; byte to) {
  byte count;
  bool was_empty;
  do
  :: task < to ->
#ifdef COUNT_FIRST
     count = parked;
#endif
     atomic { was_empty = EMPTY; inbox[task] = true }
     look_and_wake();
     task++
  :: else -> break
  od
}

#define ALL_BUT_FIRST (done[1] && done[2])

proctype worker(byte w) {
  byte task, seen;
  do
  :: atomic {
       if
       :: inbox[0] -> task = 0; inbox[0] = false
       :: inbox[1] -> task = 1; inbox[1] = false
       :: inbox[2] -> task = 2; inbox[2] = false
       fi
     }
     if
     :: task == 0 -> ALL_BUT_FIRST
     :: else
     fi;
     done[task] = true;
     task = 0
  :: EMPTY ->
     seen = word;
#ifdef LOOK_FIRST
     if
     :: EMPTY -> parked++
     :: else -> goto next
     fi;
#else
     parked++;
#ifndef NO_SECOND_LOOK
     if
     :: EMPTY
     :: else -> goto unpark
     fi;
#endif
#endif
#ifdef WORD_LATE
     seen = word;
#endif
     atomic {
       if
       :: word == seen -> asleep[w] = true
       :: else
       fi
     }
end: !asleep[w];
unpark:
     parked--;
next:
     seen = 0
  od
}

init {
  atomic { run worker(0); run worker(1); run pusher(0, 1); run pusher(1, TASKS) }
  done[0] && done[1] && done[2]
}
