// SPDX-License-Identifier: Apache-2.0
//
// The batches of a feed on a device: a ring of device slots, and the copies of filled slots into them. Does
// not know in which order batches are taken.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fork_mark.h"
#include "base/ref.h"
#include "data/batch.h"
#include "data/slots.h"
#include "exec/op.h"
#include "ipc/schema.h"

namespace tenon::impl {

// A batch is copied by an op on a stream for each of its fields. The ops keep the slot of the host until the
// event of the copy has come. A device slot is free when its batch, the arrays and views of it, and the work
// that consumers had submitted before they dropped them are gone: its storage ends then, as that of each
// slot.
//
// The slots of the host are pinned where they lie, while this exists: no consumer gets them then. A consumer
// of pinned slots could let a framework copy from one asynchronously and drop it, and the slot would be
// filled again under the copy. So slots are not pinned while a consumer has one. Where they are not, a batch
// is copied to one of two pinned slots first, by an op of the host. Without pinned memory the driver copies
// from pageable memory.
//
// Counted. Threads: copy() one at a time; else any.
class DeviceBatches {
 public:
  enum class HostMemory : int32_t { kPageable, kRegistered, kStaged };  // TENON_HOST_PAGEABLE, ...

  // Fails as Device::of, and with kNoMemory.
  DeviceBatches(Ref<Schema> schema, Slots& host, tenon_device device, int32_t slots);
  DeviceBatches(const DeviceBatches&) = delete;
  DeviceBatches& operator=(const DeviceBatches&) = delete;

  tenon_device device() const noexcept { return ring_->device(); }
  const Slots& ring() const noexcept { return *ring_; }
  HostMemory host_memory() const noexcept { return host_memory_; }

  // Memory for a batch. It is free again when the storages end.
  struct Room {
    Ref<Storage> target;
    Ref<Storage> pinned;  // with kStaged; null: the batch is copied directly from its slot
    bool is_beyond_ring = false;
    explicit operator bool() const noexcept { return static_cast<bool>(target); }
  };
  // Waits at most so long (>= 0). Empty: none is free. Fails with std::bad_alloc.
  Room take(int64_t timeout_ns);
  // With memory that is not of the ring, for consumers that keep all of it. Fails as Storage::allocate.
  Room make();

  // Consumers hold all device slots: none has copies or other work that would make it free at its end.
  bool is_starved() const;
  std::string held_text() const;

  // Pushes the copies of a filled batch. Fails as push_copy; the room is free when those that were pushed are
  // done.
  Ref<Batch> copy(const Batch& filled, Room room, std::vector<Ref<Op>>* copies);

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  // Waits for the copies, but at most a second. In a forked child, the copies and the pins are the parent's.
  ~DeviceBatches();

  const ForkMark process_;
  const Ref<Schema> schema_;
  const Ref<Slots> host_;
  const Ref<Slots> ring_;
  HostMemory host_memory_ = HostMemory::kPageable;
  Ref<Slots> pinned_;               // with kStaged
  std::vector<Ref<Op>> in_flight_;  // of copy()
  RefCount refs_;
};

}  // namespace tenon::impl
