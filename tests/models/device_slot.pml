// SPDX-License-Identifier: Apache-2.0
//
// Device slots: a feed copies batches from a host slot to device slots on its copy stream, and two consumers use
// them, each with a stream of its own. The filler fills a free host slot. The loader takes a filled host slot and
// a free device slot, and submits the copy and the record of its event. The completion thread sees the event,
// completes the op, and frees the host slot. A consumer gets the batch as soon as its copy is submitted. It either
// makes its stream wait for the copy's event, submits a kernel that reads the batch, and closes the view at once,
// which records an event: the completion thread sees that event, and frees the device slot. Or it waits for the
// completion of the op, reads the batch on the host, and frees the device slot.
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
// FREE_BEFORE_VIEW: the completion thread frees the device slot without the event of the view.
// variant: FREE_BEFORE_VIEW refuted assertion
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

mtype = { WAIT_COPY, COPY, KERNEL, RECORD_COPY, RECORD_VIEW };

// Batches are numbered from 1; 0: none.
byte host[HOST_SLOTS], device[DEVICE_SLOTS];  // the batch in a slot, or TORN
bool copied[BATCHES + 1], viewed[BATCHES + 1];  // events
bool completed[BATCHES + 1];                    // ops
bool asleep = false;                            // the completion thread

chan host_free = [HOST_SLOTS] of { byte };
chan filled = [HOST_SLOTS] of { byte, byte };           // slot, batch
chan device_free = [DEVICE_SLOTS] of { byte };
chan submitted = [BATCHES] of { byte, byte };           // batch, host slot
chan closed = [BATCHES] of { byte, byte };              // batch, device slot: a view with an event
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
  byte batch, slot;
end:
  do
#ifdef SLEEP_UNLOCKED
  :: empty(submitted) && empty(closed) -> asleep = true;
end_sleep:
    !asleep
#else
  :: atomic { empty(submitted) && empty(closed) -> asleep = true };
end_sleep:
    !asleep
#endif
  :: nempty(submitted) ->
    submitted?batch, slot;
#ifndef COMPLETION_BEFORE_EVENT
    copied[batch];
#endif
    completed[batch] = true;
#ifndef RELEASE_AT_SUBMISSION
    host_free!slot
#endif
  :: nempty(closed) ->
    closed?batch, slot;
#ifndef FREE_BEFORE_VIEW
    viewed[batch];
#endif
    device_free!slot
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
      device_free!slot
#else
#ifndef EVENT_BEFORE_KERNEL
      stream[own]!RECORD_VIEW, batch, 0, 0;
#endif
      atomic {
        closed!batch, slot;
        asleep = false
      }
#endif
    :: true ->
      completed[batch];
      assert(device[slot] == batch);
      assert(device[slot] == batch);
      device_free!slot
    fi
  od
}

proctype Stream(byte own) {
  byte batch, slot, source;
end:
  do
  :: stream[own]?WAIT_COPY, batch, _, _ -> copied[batch]
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
