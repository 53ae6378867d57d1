// SPDX-License-Identifier: Apache-2.0
//
// The end of a channel, and a crash: producers close or die, one of them comes back, and a consumer that waits
// for producers after a crash is to be told of an end if the last one has closed. A producer that ends counts
// it before its role ends, in one word with whether it has died. For a dead one another process does that, and
// one before it may have done it and died. The consumer reads the word, looks at all roles twice, and reads
// the word again.
//
// Law: the consumer is told of an end only if the last end that was counted was a close, and there is no
// producer; if that is so in the end, it is told. After a death it waits.
// variant: SOUND holds
//
// BIT_LATE counts and says who has died by two stores: a close that was counted before a death hides it.
// variant: BIT_LATE refuted assertion
// READ_ONCE does not read the word again: it tells an end before the death of a producer that has come since.
// variant: READ_ONCE refuted assertion

#define BIT(i) (1 << (i))

byte word = 0;         // ends * 2 + 1 if the last one was a death
byte roles = 3;        // producers 0 and 1; 2 may come later
byte dead = 0;         // as bits
bool is_close[9];      // of the end with this number
byte told = 0;         // the number of ends of which the consumer was told
bool is_coming = true;

inline count_end(is_death) {
#ifdef BIT_LATE
  atomic { word = word + 2; is_close[word / 2] = !is_death };
  word = (word / 2) * 2 + is_death
#else
  atomic { word = (word / 2 + 1) * 2 + is_death; is_close[word / 2] = !is_death }
#endif
}

proctype producer(byte p) {
  if
  :: p == 2 -> atomic { roles = roles | BIT(p); is_coming = false }
  :: else
  fi;
  if
  :: atomic { true; dead = dead | BIT(p); goto over }
  :: true
  fi;
  count_end(0);
  if
  :: atomic { true; dead = dead | BIT(p); goto over }
  :: true
  fi;
  roles = roles & ~BIT(p);
over:
  skip
}

inline reap(p) {
  if
  :: dead & roles & BIT(p) ->
     count_end(1);
     if
     :: word < 12 -> count_end(1)  // the one before has died
     :: true
     fi;
     roles = roles & ~BIT(p)
  :: else
  fi
}

inline look_at_roles() {
  seen = seen | (roles & BIT(0));
  seen = seen | (roles & BIT(1));
  seen = seen | (roles & BIT(2))
}

proctype consumer() {
  byte before, seen;
  do
  :: before = word;
     seen = 0;
     look_at_roles();
     look_at_roles();
     if
#ifdef READ_ONCE
     :: atomic { seen == 0 && before / 2 > told && before % 2 == 0 ->
#else
     :: atomic { seen == 0 && word == before && before / 2 > told && before % 2 == 0 ->
#endif
          assert(is_close[word / 2]);
          told = before / 2
        }
     :: else
     fi;
     before = 0;
     // It sleeps until there is something new
end_asleep:
     roles == 0 && word / 2 > told && word % 2 == 0
  od
}

proctype reaper() {
  do
  :: reap(0);
     reap(1);
     reap(2);
end_idle:
     (dead & roles) != 0
  od
}

init {
  atomic { run producer(0); run producer(1); run producer(2); run consumer(); run reaper() }
  timeout;
  assert(roles != 0 || is_coming || word % 2 == 1 || told == word / 2)
}
