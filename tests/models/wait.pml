// SPDX-License-Identifier: Apache-2.0
//
// Wait: two threads wait for one op. Its state word changes from queued to running to done, and has a bit
// that shows waiting threads. A waiter sets the bit by compare-and-swap on the value that it read, and sleeps
// on the new value, so it sleeps only if the word has not changed. The worker changes the word to running by
// a compare-and-swap that keeps the bit. It exchanges the word for done, and wakes all waiters if the bit was
// set in the old value.
//
// Law: no waiter sleeps after the op is done, and none continues before.
// variant: SOUND holds
// variant: SOUND ends
//
// LOAD_THEN_STORE ends the op by a load and a store: a bit set in between is lost.
// variant: LOAD_THEN_STORE refuted deadlock
// RUNNING_STORED changes to running by a plain store, which overwrites the bit.
// variant: RUNNING_STORED refuted deadlock
// BIT_STORED sets the bit by a plain store, which overwrites a change by the worker.
// variant: BIT_STORED refuted deadlock
// BLIND_SLEEP sleeps without comparing the value.
// variant: BLIND_SLEEP refuted deadlock
// WAKE_ONE wakes one waiter of several.
// variant: WAKE_ONE refuted deadlock
// NO_LOOK_AFTER continues after its sleep without reading the word: the word had changed to running.
// variant: NO_LOOK_AFTER refuted assertion

#define QUEUED 0
#define RUNNING 2
#define DONE 4
#define WAITS 1  // the bit

byte word = QUEUED;
bool asleep[2];
byte returned = 0;

proctype waiter(byte t) {
  byte seen;
  bool set;
  do
  :: seen = word;
     if
     :: seen == DONE -> break
     :: else
     fi;
#ifdef BIT_STORED
     word = seen | WAITS;
#else
     atomic {
       set = (word == seen);
       if
       :: set -> word = seen | WAITS
       :: else
       fi
     }
     if
     :: set
     :: else -> goto again
     fi;
#endif
     atomic {
       if
#ifdef BLIND_SLEEP
       :: true -> asleep[t] = true
#else
       :: word == (seen | WAITS) -> asleep[t] = true
       :: else
#endif
       fi
     }
     !asleep[t];
#ifdef NO_LOOK_AFTER
     break;
#endif
again:
     set = false
  od;
  assert(word == DONE);
  returned++
}

active proctype worker() {
  byte seen;
#ifdef RUNNING_STORED
  word = RUNNING;
#else
  do
  :: seen = word;
     if
     :: atomic { word == seen -> word = RUNNING | (seen & WAITS) }
        break
     :: else
     fi
  od;
#endif
#ifdef LOAD_THEN_STORE
  seen = word;
  word = DONE;
#else
  atomic { seen = word; word = DONE }
#endif
  if
  :: seen & WAITS ->
#ifdef WAKE_ONE
     atomic {
       if
       :: asleep[0] -> asleep[0] = false
       :: asleep[1] -> asleep[1] = false
       :: else
       fi
     }
#else
     d_step { asleep[0] = false; asleep[1] = false }
#endif
  :: else
  fi
}

init {
  atomic { run waiter(0); run waiter(1) }
  returned == 2
}
