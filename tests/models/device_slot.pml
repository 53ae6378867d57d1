// SPDX-License-Identifier: Apache-2.0
//
// Device slots: a feed copies batches from a host slot to device slots on its copy stream, and two consumers use
// them, each with a stream of its own. The filler fills a free host slot. The loader takes a filled host slot and
// a free device slot, and submits: a wait for the last view of the device slot, the copy, the record of the copy's
// event. The completion thread sees the event, completes the op, and frees the host slot. A consumer gets the batch
// as soon as its copy is submitted. It either makes its stream wait for the copy's event, submits a kernel that
// reads the batch, and closes the view at once, which records an event; or it waits for the completion of the op
// and reads the batch on the host. A closed view frees the device slot.
//
// A stream runs its work in order. A copy and a kernel have a beginning and an end. Each event is recorded once,
// so that an event is named by its batch.
//
// Law: no host slot is filled while a copy reads it; no device slot is written while a kernel or the host reads
// it; each reader finds its own batch, whole; all batches come to their end.
// variant: SOUND holds
// variant: SOUND ends
//
// NO_COPY_WAIT: the consumer's stream does not wait for the copy's event.
// variant: NO_COPY_WAIT refuted assertion
// NO_VIEW_WAIT: the copy stream does not wait for the event of the last view of the device slot.
// variant: NO_VIEW_WAIT refuted assertion
// CLOSED_WITHOUT_EVENT: the view is closed, and frees the slot, without an event on the consumer's stream.
// variant: CLOSED_WITHOUT_EVENT refuted assertion
// EVENT_BEFORE_KERNEL: the event of the view is recorded when the batch is exported, so that it does not cover
// the kernel.
// variant: EVENT_BEFORE_KERNEL refuted assertion
// RELEASE_AT_SUBMISSION: the host slot is free as soon as the copy is submitted.
// variant: RELEASE_AT_SUBMISSION refuted assertion
// COMPLETION_BEFORE_EVENT: the completion thread completes the op without the event.
// variant: COMPLETION_BEFORE_EVENT refuted assertion
// SLEEP_UNLOCKED: the completion thread looks for submitted ops, and goes to sleep in another step.
// variant: SLEEP_UNLOCKED refuted deadlock
// EVENT_UNRECORDED: the consumer waits for an event that is never recorded, as after a submission that failed
// and was not reported.
// variant: EVENT_UNRECORDED refuted deadlock

#define BATCHES 3
#define HOST_SLOTS 1
#define DEVICE_SLOTS 2
#define CONSUMERS 2
#define TORN 255
#define COPY_STREAM CONSUMERS

mtype = { WAIT_COPY, WAIT_VIEW, COPY, KERNEL, RECORD_COPY, RECORD_VIEW };

// Batches are numbered from 1; 0: none.
byte host[HOST_SLOTS], device[DEVICE_SLOTS];  // the batch in a slot, or TORN
byte last_view[DEVICE_SLOTS];                 // the batch whose view had the slot last and left an event
bool copied[BATCHES + 1], viewed[BATCHES + 1];  // events
bool completed[BATCHES + 1];                    // ops
bool asleep = false;                            // the completion thread

chan host_free = [HOST_SLOTS] of { byte };
chan filled = [HOST_SLOTS] of { byte, byte };           // slot, batch
chan device_free = [DEVICE_SLOTS] of { byte };
chan submitted = [BATCHES] of { byte, byte };           // batch, host slot
chan ready = [DEVICE_SLOTS] of { byte, byte };          // batch, device slot
chan stream[CONSUMERS + 1] = [8] of { mtype, byte, byte, byte };  // work, batch, device slot, host slot

proctype Filler() {
  byte slot, batch = 1;
  do
  :: batch <= BATCHES ->
    host_free?slot;
    host[slot] = TORN;
    host[slot] = batch;
    filled!slot, batch;
    batch++
  :: else -> break
  od
}

proctype Loader() {
  byte slot, batch, target, n = 0;
  do
  :: n < BATCHES ->
    filled?slot, batch;
    device_free?target;
#ifndef NO_VIEW_WAIT
    if
    :: last_view[target] != 0 -> stream[COPY_STREAM]!WAIT_VIEW, last_view[target], 0, 0
    :: else
    fi;
#endif
    stream[COPY_STREAM]!COPY, batch, target, slot;
#ifdef EVENT_UNRECORDED
    if
    :: batch != 2 -> stream[COPY_STREAM]!RECORD_COPY, batch, 0, 0
    :: else
    fi;
#else
    stream[COPY_STREAM]!RECORD_COPY, batch, 0, 0;
#endif
#ifdef RELEASE_AT_SUBMISSION
    host_free!slot;
#endif
    atomic {
      submitted!batch, slot;
      asleep = false
    }
    ready!batch, target;
    n++
  :: else -> break
  od
}

proctype Completions() {
  byte batch, slot, n = 0;
  do
  :: n < BATCHES ->
#ifdef SLEEP_UNLOCKED
    if
    :: empty(submitted) -> asleep = true; !asleep
    :: nempty(submitted)
    fi;
#else
    if
    :: atomic { empty(submitted) -> asleep = true }; !asleep
    :: nempty(submitted)
    fi;
#endif
    submitted?batch, slot;
#ifndef COMPLETION_BEFORE_EVENT
    copied[batch];
#endif
    completed[batch] = true;
#ifndef RELEASE_AT_SUBMISSION
    host_free!slot;
#endif
    n++
  :: else -> break
  od
}

proctype Consumer(byte own) {
  byte batch, slot;
end:
  do
  :: ready?batch, slot ->
    if
    :: true ->
#ifdef EVENT_BEFORE_KERNEL
      stream[own]!RECORD_VIEW, batch, 0, 0;
#endif
#ifndef NO_COPY_WAIT
      stream[own]!WAIT_COPY, batch, 0, 0;
#endif
      stream[own]!KERNEL, batch, slot, 0;
#ifdef CLOSED_WITHOUT_EVENT
      last_view[slot] = 0
#else
#ifndef EVENT_BEFORE_KERNEL
      stream[own]!RECORD_VIEW, batch, 0, 0;
#endif
      last_view[slot] = batch
#endif
    :: true ->
      completed[batch];
      assert(device[slot] == batch);
      assert(device[slot] == batch);
      last_view[slot] = 0
    fi;
    device_free!slot
  od
}

proctype Stream(byte own) {
  byte batch, slot, source;
end:
  do
  :: stream[own]?WAIT_COPY, batch, _, _ -> copied[batch]
  :: stream[own]?WAIT_VIEW, batch, _, _ -> viewed[batch]
  :: stream[own]?RECORD_COPY, batch, _, _ -> copied[batch] = true
  :: stream[own]?RECORD_VIEW, batch, _, _ -> viewed[batch] = true
  :: stream[own]?COPY, batch, slot, source ->
    atomic { assert(host[source] == batch); device[slot] = TORN }
    atomic { assert(host[source] == batch); device[slot] = batch }
  :: stream[own]?KERNEL, batch, slot, _ ->
    assert(device[slot] == batch);
    assert(device[slot] == batch)
  od
}

init {
  byte i;
  atomic {
    for (i : 0 .. HOST_SLOTS - 1) { host_free!i }
    for (i : 0 .. DEVICE_SLOTS - 1) { device_free!i }
    run Filler();
    run Loader();
    run Completions();
    for (i : 0 .. CONSUMERS - 1) { run Consumer(i) }
    for (i : 0 .. CONSUMERS) { run Stream(i) }
  }
}
