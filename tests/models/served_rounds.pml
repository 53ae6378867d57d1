// SPDX-License-Identifier: Apache-2.0
//
// Rounds of a served feed: two consumers in other processes join, receive the items of a round, read that
// it has ended, and take part in the next one. Each has a record: a word (none, joining, consumer), its
// cursor, and the base of the last round that it has ended. The server begins the next round when each
// living consumer has ended this one. It looks at the records, makes the version odd, and looks again. A
// consumer that joins announces itself in its word and then reads the round by the version. One consumer,
// or the server, dies at any step. A reaper clears the record and wakes all. Consumers also leave at any
// item, and come late. Slots are left out: an item is ready, and received by one exchange of the passed
// number (QUEUE), or by the consumer's cursor (BROADCAST). served_slots.pml has the slots.
//
// Law: no round begins while a living consumer is in the one before. Each consumer takes part in each
// round after its first; one that has joined before the first round takes part in that. A number is
// received once (QUEUE), or by each consumer that is in the round, in order (BROADCAST). If the server
// closes within a round (CLOSES, in a broadcast), all that are in it have received the same. No process
// sleeps that could continue. The server reads cursor and bit of a consumer in one step here; the code reads
// all cursors, then all bits.
// variant: QUEUE holds
// variant: BROADCAST holds
// variant: CLOSES holds
//
// JOIN_LATE reads the round, and begins to receive, before it announces itself.
// variant: JOIN_LATE refuted assertion
// LOOK_ONCE does not look at the records again when the version is odd.
// variant: LOOK_ONCE refuted assertion
// PHASE_FIRST says that the feed is served before the version is odd: who joins then counts an empty
// round.
// variant: PHASE_FIRST refuted assertion
// PHASE_LATE says it after the version is even: who joins then misses the first round.
// variant: PHASE_LATE refuted assertion
// ABORT_QUIET does not wake those who wait for an even version when the round does not begin.
// variant: ABORT_QUIET refuted deadlock
// FORGET_NONE wakes nobody when a record is cleared.
// variant: FORGET_NONE refuted deadlock
// CLOSE_ONCE does not look which items consumers receive after it has said from which number on none is sent.
// variant: CLOSE_ONCE refuted assertion
// JOINED_IN takes part in a round that others have ended.
// variant: JOINED_IN refuted assertion

#ifdef CLOSE_ONCE
#define CLOSES
#endif
#ifdef CLOSES
#define BROADCAST
#define ROUNDS 1
#else
#define ROUNDS 2
#endif
#define SERVER 2
#define LENGTH 2
#define WANTS 1

#define NOBODY 0
#define JOINING 1
#define CONSUMER 2

#define GATHERING 0
#define SERVING 1
#define OVER 2

// The memory
byte version = 2;            // odd while the round changes
byte base = 2, limit = 2;    // of the round; at first it is empty
byte passed = 1;             // what was received
byte ready = 1;              // the last number that is ready, and given
byte told = 0;               // the base of the last round whose end somebody was told
byte phase = GATHERING;
byte word[2], cursor[2], ended[2];
byte closing;                // no number from here on is for consumers, once it is sure; 0: not yet known
bool is_sure;
byte reads[2];               // BROADCAST: the number for whose slot the consumer has set its bit
bool woken[3];               // events

bool alive[3] = true;
byte deaths = 1;

// For the law
byte round = 0;              // its number
byte inside[2];              // the round in which the consumer is
byte seen[2];                // the last round that it was in; 0: none
byte got = 0;                // the last number received

#define MAY_DIE(p) :: atomic { deaths > 0 -> goto die }
#define STEP(...) if MAY_DIE(p) :: atomic { true; __VA_ARGS__ } fi
#define WAKE_CONSUMERS woken[0] = true; woken[1] = true

#ifdef JOIN_LATE
#define IS_LATE (p == 1)
#else
#define IS_LATE false
#endif
#ifdef BROADCAST
#define PLACE (cursor[p] < base -> base - 1 : cursor[p])
#else
#define PLACE passed
#endif

proctype consumer(byte p) {
  byte v, b, h, t, n, comes_at;
  bool is_first = true, was_there = false;
  STEP(was_there = (round == 0));
  STEP(
    word[p] = (IS_LATE -> NOBODY : JOINING);
    comes_at = (told == base && passed + 1 == limit -> round + 1 : 0)
  );
#ifdef BROADCAST
  STEP(n = passed);
  STEP(cursor[p] = n; n = 0);
#endif
joins:
  STEP(woken[p] = false);
  STEP(v = version; b = base; h = phase);   // the version guards them
  if
  :: v & 1 ->
     if
     MAY_DIE(p)
     :: woken[p]
     :: !alive[SERVER] -> goto over
     fi;
     goto joins
  :: else
  fi;
  STEP(t = told; n = passed);
  STEP(if :: version != v -> t = 0; n = 0; goto joins :: else fi);
  v = 0;
  if
#ifdef JOINED_IN
  :: h == GATHERING ->
#else
  :: h == GATHERING || (t == b && n + 1 == limit) ->
#endif
     STEP(ended[p] = b; assert(b != base || round == 0 || told == base))
  :: else
  fi;
  t = 0; n = 0; h = 0; b = 0;
  STEP(word[p] = (IS_LATE -> NOBODY : CONSUMER); was_there = was_there && round == 0);
  STEP(woken[SERVER] = true);
begins:
  STEP(woken[p] = false);
  STEP(
    v = version; b = base; h = phase;
    if
    :: !(v & 1) && b > ended[p] && h != OVER ->
       v = 0; h = 0;
       inside[p] = round;
       assert(round > 0);
       assert(is_first || seen[p] == round - 1);
       assert(!was_there || round == 1);
       was_there = false;
       is_first = false;
       seen[p] = round;
       assert(round >= comes_at);
       comes_at = 0;
       goto receives
    :: else
    fi
  );
  if
  :: h == OVER || !alive[SERVER] -> goto over
  :: else
  fi;
  v = 0; h = 0; b = 0;
  if
  MAY_DIE(p)
  :: woken[p]
  :: !alive[SERVER]
  fi;
  goto begins;
receives:
#ifdef JOIN_LATE
  STEP(word[p] = CONSUMER);
#endif
#ifndef CLOSES
  if
  :: true
  :: goto over                              // it leaves
  fi;
#endif
  STEP(woken[p] = false);
  STEP(
    assert(b == base);
    n = PLACE + 1;
    if
    :: n == limit -> n = 0; goto ends
    :: n < limit && n <= ready ->
#ifdef CLOSES
       reads[p] = n
#elif defined(BROADCAST)
       cursor[p] = n
#else
       assert(n == got + 1 || n == base);
       got = n;
       passed = n
#endif
       ;
       v = 1
    :: else
    fi
  );
#ifdef CLOSES
  STEP(
    if
    :: closing == 0 || n < closing -> cursor[p] = (v == 1 -> n : cursor[p])
    :: closing != 0 && n >= closing && is_sure -> assert(n == closing); reads[p] = 0; v = 0; n = 0; goto over
    :: else -> v = 0
    fi;
    reads[p] = 0
  );
#endif
  if
  :: v == 1 ->
     v = 0;
#ifdef BROADCAST
     STEP(passed = (passed < n -> n : passed));
#endif
     n = 0;
     goto receives
  :: v == 0 && !alive[SERVER] -> goto over
  :: else
  fi;
  n = 0;
  if
  MAY_DIE(p)
  :: woken[p]
  :: !alive[SERVER]
  fi;
  goto receives;
ends:
  STEP(told = (told < base -> base : told));
  STEP(ended[p] = base; inside[p] = 0);
  STEP(woken[SERVER] = true);
  b = 0;
  goto begins;
over:
  inside[p] = 0;
  STEP(word[p] = NOBODY);
  STEP(woken[SERVER] = true);
  goto gone;
  atomic {
    false;
die:
    deaths = 0;
    alive[p] = false;
    reads[p] = 0;
    inside[p] = 0; v = 0; b = 0; h = 0; t = 0; n = 0
  };
  // The reaper, in another process
  word[p] = NOBODY;
  cursor[p] = 0;
#ifndef FORGET_NONE
  atomic { WAKE_CONSUMERS; woken[SERVER] = true };
#endif
gone:
  skip
}

#define HAS_ENDED(c) (!alive[c] || word[c] == NOBODY || ended[c] >= base)
#define IS_THERE(c) (alive[c] && word[c] == CONSUMER)

proctype server() {
  byte p = SERVER, n;
  bool none;
gathers:
  STEP(woken[SERVER] = false);
  STEP(n = (IS_THERE(0) -> 1 : 0) + (IS_THERE(1) -> 1 : 0));
  if
  :: n < WANTS ->
     n = 0;
end_gathers:                                // nobody comes any more
     if
     MAY_DIE(SERVER)
     :: woken[SERVER]
     fi;
     goto gathers
  :: else
  fi;
  n = 0;
#ifdef PHASE_FIRST
  STEP(phase = SERVING);
#endif
begin:
#ifdef CLOSES
  if :: true :: round > 0 -> goto closes fi;
#endif
  STEP(woken[SERVER] = false);
  STEP(none = word[0] == NOBODY || !alive[0]; if :: !HAS_ENDED(0) -> goto waits :: else fi);
  STEP(none = none && (word[1] == NOBODY || !alive[1]); if :: !HAS_ENDED(1) -> goto waits :: else fi);
  STEP(
    if
    :: round > 0 && told != base && !(none && passed + 1 == limit) -> goto waits
    :: else
    fi
  );
  none = false;
  if :: round == ROUNDS -> goto closes :: else fi;
  STEP(version++);
#ifndef LOOK_ONCE
  STEP(if :: !HAS_ENDED(0) -> goto aborts :: else fi);
  STEP(if :: !HAS_ENDED(1) -> goto aborts :: else fi);
#endif
  STEP(
    assert(inside[0] == 0 && inside[1] == 0);
    base = ready + 2;
    round++
  );
  STEP(
    ready = base - 1;
    passed = base - 1;
    limit = base + LENGTH
#if !defined(PHASE_FIRST) && !defined(PHASE_LATE)
    ;
    phase = SERVING
#endif
  );
  STEP(version++);
#ifdef PHASE_LATE
  STEP(phase = SERVING);
#endif
  STEP(WAKE_CONSUMERS);
  goto begin;
aborts:
  STEP(version++);
#ifndef ABORT_QUIET
  STEP(WAKE_CONSUMERS);
#endif
  goto end_sleeps;
waits:
  none = false;
end_sleeps:                                 // nobody comes any more
  if
  MAY_DIE(SERVER)
  :: woken[SERVER]
  fi;
  goto begin;
closes:
#ifdef CLOSES
  STEP(n = ready + 1);
  STEP(
    closing = n
#ifdef CLOSE_ONCE
    ;
    is_sure = true
#endif
  );
#define BEHIND(c) (reads[c] > cursor[c] -> reads[c] + 1 : cursor[c] + 1)
  STEP(n = (n < BEHIND(0) -> BEHIND(0) : n));
  STEP(n = (n < BEHIND(1) -> BEHIND(1) : n));
  STEP(n = (n < passed + 1 -> passed + 1 : n));  // of one that has died meanwhile
  STEP(closing = n; is_sure = true);
#endif
  STEP(phase = OVER);
  STEP(WAKE_CONSUMERS);
  goto gone;
  atomic {
    false;
die:
    deaths = 0;
    alive[SERVER] = false;
    WAKE_CONSUMERS
  };
gone:
  skip
}

proctype worker() {
end_idle:
  do
  :: atomic { !(version & 1) && ready + 1 < limit -> ready++; WAKE_CONSUMERS }
  od
}

init {
  atomic { run consumer(0); run consumer(1); run server(); run worker() }
}
