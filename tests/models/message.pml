// SPDX-License-Identifier: Apache-2.0
//
// Message: the life of messages of a tensor pool. A sender writes a block of its pool, makes it a message
// by a record, and gives the bytes of the message to two receivers. They read them at any time, also after
// the end of the message. A receiver opens a message: it becomes a user of the block, looks whether the
// block is still that of the message, and counts its open in the record. The sender uses the block, too,
// until the message has ended: it has been opened OPENS times, or is revoked (a deadline does the same).
// There is one record. The next message gets it, with the next generation. The allocator of the sender
// takes blocks back that have no user.
//
// Deaths: any two of the processes die, each at any step. A process reaps a dead one: it clears the bits of
// the dead process in blocks. After the end of the sender, one process at a time is the cleaner: it takes
// blocks without users back and returns their memory. A stop of a process is a pause of any length between
// two of its steps.
//
// A step of the model is one store to shared memory, with loads whose order makes no difference.
//
// Law: bytes do not change under a receiver that has opened the message. A message is opened by at most
// OPENS processes. An open fails only if the message has ended, or the sender and who keeps the message for
// it. Whenever no step is possible, a block without living users is free; if the sender has ended, it has
// no memory.
// variant: SOUND holds
// variant: SOUND ends soak
// BOTH lets both receivers open each message; otherwise one may, and then writes to it.
// variant: BOTH holds
// KEPT has one message, and a process to which the sender passes it as it ends.
// variant: KEPT holds
// variant: KEPT ends soak
//
// COUNT_FIRST counts the open before the receiver is a user.
// variant: COUNT_FIRST refuted assertion
// TWO_STEPS counts an open by a load and a store.
// variant: TWO_STEPS refuted assertion
// SAME_GENERATION gives the record to the next message with the same generation: its opens are counted for
// the old message, which another receiver has kept.
// variant: SAME_GENERATION refuted assertion
// LOOK_FIRST looks at the block before the receiver is a user.
// variant: LOOK_FIRST refuted assertion
// LOOK_ONCE takes a block back without a second look at its users.
// variant: LOOK_ONCE refuted assertion
// NO_WORD lets all survivors be cleaners at once.
// variant: NO_WORD refuted assertion
// WORD_KEPT does not end the role of a cleaner that died.
// variant: WORD_KEPT refuted deadlock
// USED_ONLY continues no block that its owner was about to take back as it died.
// variant: USED_ONLY refuted deadlock
// USED_MEMORY returns no memory of blocks that were free before.
// variant: USED_MEMORY refuted deadlock
// MEMORY_FIRST returns the memory of a block before the block is free. A cleaner that dies in between
// leaves a block that is used again if an open that will fail has made its process a user.
// variant: MEMORY_FIRST refuted assertion
// KEPT_FIRST shows that a message is kept before the keeper is a user of its block.
// variant: KEPT_FIRST refuted assertion

#if defined(NO_WORD) || defined(MEMORY_FIRST) || defined(KEPT_FIRST)
#define KEPT
#endif
#ifdef KEPT
#define N 4
#define MESSAGES 1
#define BLOCKS 1
#else
#define N 3
#define MESSAGES 2
#define BLOCKS 2
#endif
#ifdef BOTH
#define OPENS 2
#else
#define OPENS 1
#endif
#define DEATHS 2
#define S 0     // the sender; 1 and 2 are receivers
#define K 3     // who keeps the message
#define NONE 9
#define DIRTY 100
#define BIT(i) (1 << (i))
#define IN(p, set) ((set) & BIT(p))

mtype = { free, used, closing, live, opened, revoked };

// The memory
mtype state[BLOCKS] = free;
byte users[BLOCKS];          // as bits
byte generation[BLOCKS];
byte data[BLOCKS];           // the number of a message; 0: no memory
byte record = 0;             // its generation, and the rest of its word
byte left;
mtype status = revoked;
byte keeper = 0;             // 1 + the process, 0: the sender
byte cleaner = 0;            // 1 + the process
byte reaped = 0;             // places that are free again, as bits

// The bytes of messages
byte sent = 0;
byte block_of[MESSAGES];
byte generation_of[MESSAGES];

// The kernel
byte gone = 0;               // processes that have ended, as bits
byte falls = 0;              // 1 + a process that dies now
byte reaper[N];              // 1 + who has the lock of the place of a process that has ended
byte deaths = 0;

// For the law
byte opens[MESSAGES];
bool is_asked = false, is_passed = false;
bool are_released = false;   // those who keep a message for long

#ifdef SAME_GENERATION
#define RECORD(m) 1
#else
#define RECORD(m) (1 + (m))
#endif
#define IS_LIVE(m) (record == RECORD(m) && status == live)
#define AT(m) block_of[m]
#define IS_THERE(m) (state[AT(m)] == used && generation[AT(m)] == generation_of[m])
#define IS_LOST(m) (IS_LIVE(m) && (!IN(S, gone) || (is_passed && !IN(K, gone))))
#if OPENS == 1
#define WANTED(m) (DIRTY + p)   // the message is handed over: the receiver writes
#else
#define WANTED(m) (1 + (m))
#endif

#if BLOCKS == 2
#define ANY_BLOCK(IS) (IS(0) || IS(1))
#define FIRST_BLOCK(IS) (IS(0) -> 0 : 1)
#else
#define ANY_BLOCK(IS) IS(0)
#define FIRST_BLOCK(IS) 0
#endif
#ifdef LOOK_ONCE
#define HAS_USERS(i) false
#else
#define HAS_USERS(i) (users[i] != 0)
#endif
#define IS_FREE(i) (state[i] == free)
#define IS_UNUSED(i) (state[i] == used && users[i] == 0)
#ifdef USED_ONLY
#define IS_OPEN(i) IS_UNUSED(i)
#else
#define IS_OPEN(i) (IS_UNUSED(i) || state[i] == closing)
#endif
#ifdef USED_MEMORY
#define IS_WARM(i) false
#else
#define IS_WARM(i) (state[i] == free && data[i] != 0)
#endif
#define IS_LEFT(i) (state[i] != free || data[i] != 0)
#define TO_CLEAN(i) (IS_OPEN(i) || IS_WARM(i))
#ifdef NO_WORD
#define MAY_CLEAN true
#else
#define MAY_CLEAN (cleaner == 1 + p)
#endif

#define TO_REAP(q) (IN(q, gone & ~reaped) && reaper[q] == 0)
#ifdef KEPT
#define ANY_TO_REAP (TO_REAP(0) || TO_REAP(1) || TO_REAP(2) || TO_REAP(3))
#define FIRST_TO_REAP (TO_REAP(0) -> 0 : (TO_REAP(1) -> 1 : (TO_REAP(2) -> 2 : 3)))
#define ALL_GONE (gone == 15)
#else
#define ANY_TO_REAP (TO_REAP(0) || TO_REAP(1) || TO_REAP(2))
#define FIRST_TO_REAP (TO_REAP(0) -> 0 : (TO_REAP(1) -> 1 : 2))
#define ALL_GONE (gone == 7)
#endif

inline use(i) { users[i] = users[i] | BIT(p) }
inline leave(i) { users[i] = users[i] & ~BIT(p) }

inline reap_one() {
  atomic { ANY_TO_REAP -> q = FIRST_TO_REAP; reaper[q] = 1 + p }
  users[0] = users[0] & ~BIT(q);
#if BLOCKS == 2
  users[1] = users[1] & ~BIT(q);
#endif
#ifndef WORD_KEPT
  atomic { cleaner = (cleaner == 1 + q -> 0 : cleaner) }
#endif
  d_step { reaped = reaped | BIT(q); reaper[q] = 0; q = 0 }
}

// The block i, which is closing
inline look_again() {
  if
  :: atomic { HAS_USERS(i) -> state[i] = used; i = 0 }
  :: !HAS_USERS(i) ->
#ifdef MEMORY_FIRST
     data[i] = 0;
#endif
     d_step {
       generation[i]++;
       state[i] = free;
#ifdef USED_MEMORY
       data[i] = 0;
#endif
       i = 0
     }
  fi
}

// What any process does for those that have ended.
#define SWEEP \
  :: reap_one() \
  :: atomic { IN(S, gone) && cleaner == 0 && ANY_BLOCK(TO_CLEAN) -> cleaner = 1 + p } \
  :: atomic { \
       IN(S, gone) && MAY_CLEAN && ANY_BLOCK(IS_WARM) -> \
       i = FIRST_BLOCK(IS_WARM); \
       data[i] = 0; \
       i = 0 \
     } \
  :: atomic { IN(S, gone) && MAY_CLEAN && ANY_BLOCK(IS_OPEN) -> i = FIRST_BLOCK(IS_OPEN) } \
     state[i] = closing; \
     look_again()

#if BLOCKS == 1
#define SWEEP_OTHERS :: reap_one()   // while it uses the only block
#else
#define SWEEP_OTHERS SWEEP
#endif

#define IS_OVER (are_released && IN(S, gone) && !ANY_BLOCK(IS_LEFT))

// p dies
#define DIES \
  falls = 0; \
  gone = gone | BIT(p); \
  reaper[0] = (reaper[0] == 1 + p -> 0 : reaper[0]); \
  reaper[1] = (reaper[1] == 1 + p -> 0 : reaper[1]); \
  reaper[2] = (reaper[2] == 1 + p -> 0 : reaper[2]); \
  reaper[N - 1] = (reaper[N - 1] == 1 + p -> 0 : reaper[N - 1]); \
  q = 0; \
  i = 0

proctype sender(byte p) provided (falls == 0 || falls == _pid) {
  byte q, i, b;
  {
    do
    :: sent == MESSAGES -> break
    :: sent < MESSAGES ->
       do
       :: atomic { ANY_BLOCK(IS_FREE) -> b = FIRST_BLOCK(IS_FREE) } break
#ifndef KEPT
       :: atomic { ANY_BLOCK(IS_UNUSED) -> i = FIRST_BLOCK(IS_UNUSED) }
          state[i] = closing;
          look_again()
#endif
       :: reap_one()
       od;
       data[b] = 1 + sent;
       use(b);
       state[b] = used;
       d_step { record = RECORD(sent); left = OPENS; status = live }
       d_step { block_of[sent] = b; generation_of[sent] = generation[b]; sent++ }
#ifdef KEPT
       if
       :: true
       :: is_asked = true;
          if
          :: atomic { keeper != 0 -> is_passed = true }
          :: IN(K, gone) || status != live
          fi;
          goto ends
       fi;
#endif
       if
       :: atomic { status == live -> status = revoked }
       :: status != live
       fi;
#ifdef KEPT
ends:
#endif
       leave(b)
    od;
    atomic { gone = gone | BIT(p); reaped = reaped | BIT(p) }
  } unless { atomic { falls == 1 + p -> d_step { DIES; b = 0 } } }
}

proctype receiver(byte p) provided (falls == 0 || falls == _pid) {
  byte q, i, m, read;
  bool keeps;
  {
    do
    SWEEP
    :: IS_OVER -> break
    :: atomic {
         if
         :: sent > 0 && !IN(0, read) -> m = 0
#if MESSAGES == 2
         :: sent > 1 && !IN(1, read) -> m = 1
#endif
         fi;
         read = read | BIT(m)
       }
#ifdef COUNT_FIRST
       if
       :: atomic { IS_LIVE(m) -> left--; status = (left == 0 -> opened : live); opens[m]++ }
       :: !IS_LIVE(m) -> goto next
       fi;
#endif
#ifdef LOOK_FIRST
       if
       :: IS_THERE(m)
       :: !IS_THERE(m) -> goto next
       fi;
       use(AT(m));
#else
       use(AT(m));
       if
       :: IS_THERE(m)
       :: !IS_THERE(m) ->
          leave(AT(m));
#ifdef COUNT_FIRST
          assert(false);
#endif
          assert(!IS_LOST(m));
          goto next
       fi;
#endif
#if defined(TWO_STEPS)
       if
       :: atomic { IS_LIVE(m) -> i = left - 1 }
          d_step { left = i; status = (left == 0 -> opened : live); i = 0; opens[m]++ }
       :: !IS_LIVE(m) -> leave(AT(m)); goto next
       fi;
#elif !defined(COUNT_FIRST)
       if
       :: d_step { IS_LIVE(m) -> left--; status = (left == 0 -> opened : live); opens[m]++ }
       :: atomic { !IS_LIVE(m) -> leave(AT(m)) } goto next
       fi;
#endif
       assert(opens[m] <= OPENS);
       atomic { assert(data[AT(m)] == 1 + m); data[AT(m)] = WANTED(m) }
       if :: keeps = true :: true fi;
       do
       SWEEP_OTHERS
       :: atomic { !keeps || are_released -> keeps = false } break
       od;
       assert(data[AT(m)] == WANTED(m));
       leave(AT(m));
next:
       m = 0
    od;
    atomic { gone = gone | BIT(p); reaped = reaped | BIT(p) }
  } unless { atomic { falls == 1 + p -> d_step { DIES; m = 0; read = 0; keeps = false } } }
}

#ifdef KEPT
proctype parent(byte p) provided (falls == 0 || falls == _pid) {
  byte q, i;
  bool has_looked;
  {
    do
    SWEEP
    :: IS_OVER -> break
    :: atomic { is_asked && !has_looked -> has_looked = true }
#ifdef KEPT_FIRST
       if
       :: d_step { IS_LIVE(0) -> keeper = 1 + p }
       :: !IS_LIVE(0) -> goto next
       fi;
#endif
       use(AT(0));
       if
       :: IS_THERE(0)
       :: !IS_THERE(0) -> leave(AT(0)); goto next
       fi;
#ifndef KEPT_FIRST
       if
       :: d_step { IS_LIVE(0) -> keeper = 1 + p }
       :: atomic { !IS_LIVE(0) -> leave(AT(0)) } goto next
       fi;
#endif
       do
       SWEEP_OTHERS
       :: d_step { IS_LIVE(0) -> status = revoked }
       :: !IS_LIVE(0) -> break
       od;
       leave(AT(0));
next:
       skip
    od;
    atomic { gone = gone | BIT(p); reaped = reaped | BIT(p) }
  } unless { atomic { falls == 1 + p -> d_step { DIES; has_looked = false } } }
}
#endif

#define CAN_FALL(v) (falls == 0 && !IN(v, gone))
proctype kernel() {
  byte v;
  do
  :: deaths == DEATHS -> break
  :: deaths < DEATHS -> break
  :: atomic {
       deaths < DEATHS && falls == 0 ->
       if
       :: !IN(0, gone) -> v = 0
       :: !IN(1, gone) -> v = 1
       :: !IN(2, gone) -> v = 2
#ifdef KEPT
       :: !IN(3, gone) -> v = 3
#endif
       fi;
       falls = 1 + v;
       deaths++;
       v = 0
     }
  od;
  deaths = DEATHS
}

#define LIVING (~gone & (BIT(N) - 1))
#define RESTS(i) (state[i] == free -> (!IN(S, gone) || data[i] == 0) : (users[i] & LIVING) != 0)
#define BREAKS(i) (!RESTS(i))

init {
  atomic {
    run sender(0);
    run receiver(1);
    run receiver(2);
#ifdef KEPT
    run parent(3);
#endif
    run kernel()
  }
  timeout;
  LIVING == 0 || !ANY_BLOCK(BREAKS);
  are_released = true;
  ALL_GONE
}
