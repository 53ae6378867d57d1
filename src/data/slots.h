// SPDX-License-Identifier: Apache-2.0
//
// The slots of a feed: one range of addresses, which is mapped once, and a control part (feed_control.h)
// whose words say which of them are free (free_slots.h). A slot takes its memory before its first fill, or,
// if it is sparse, where it is written. The content of a slot is not known here. Slots that other processes
// map lie in a memory file; with worker processes, the control part lies before them. Slots on a device, and
// pinned ones, are one allocation of the driver.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "array/array.h"
#include "base/fork_mark.h"
#include "base/os.h"
#include "base/ref.h"
#include "base/trace.h"
#include "data/free_slots.h"
#include "device/device.h"
#include "ipc/segment.h"
#include "ipc/served_ends.h"
#include "memory/storage.h"

namespace tenon::impl {

// Begins the names of the memory files of feeds.
inline constexpr char kFeedFilePrefix[] = "tenon-feed";
// And of those that hold slots alone.
inline constexpr char kSlotsFilePrefix[] = "tenon-slots";

// How many, of what size, and where.
struct SlotsPlan {
  int32_t count = 0;
  size_t slot_nbytes = 0;      // a multiple of the page size
  int32_t most = 0;            // up to which they may grow, if the table has room for them; 0: they do not
  int32_t spares = 0;          // how many more may replace others
  bool is_shared = false;      // in a memory file
  bool is_sparse = false;      // a slot takes memory where it is written, and not when it is made
  bool has_processes = false;  // worker processes map the memory file, with the control part
  // Of a feed that may be served, whose slots and control part lie in a segment. The name is not taken.
  std::string shared_name = {};
  // TENON_CUDA, TENON_CUDA_HOST: they do not grow, and are neither shared nor sparse.
  tenon_device device{TENON_CPU, 0};
};

// Counted: the feed holds one reference, each lent slot another, so that delivered batches outlive the
// feed. Threads: everything may be called by any thread. give() and end_loan() never block, allocate
// nothing and take no lock: they are what the release of a batch runs.
// The words of the control part alone say who has a slot. Those of spare slots, and of slots that are not
// made yet, are not free.
class Slots : public FreeSlots {
 public:
  // head: of the control part, as far as it does not concern the slots. schema: encoded. Fails with kValue
  // (overflow), kNoMemory (the message has the numbers), and as Device::of.
  static Ref<Slots> create(const SlotsPlan& plan, const FeedHead& head = {}, std::string_view schema = {});

  // Without the spare ones, and without those that spare ones replace.
  int32_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  int32_t most() const noexcept { return plan_.most + plan_.spares; }
  size_t slot_nbytes() const noexcept { return plan_.slot_nbytes; }
  std::byte* data(int32_t slot) const noexcept {
    return memory_ + slots_at_ + static_cast<size_t>(slot) * plan_.slot_nbytes;
  }
  bool is_sparse() const noexcept { return plan_.is_sparse; }
  tenon_device device() const noexcept { return plan_.device; }

  // Pins the memory for the driver where it lies, also that of later slots if the driver lets it: all slots
  // take their memory then. Fails with kValue (sparse slots), kNoMemory, and as device::Registration; then
  // nothing is pinned. While it is pinned, nothing else may copy from it in the order of a stream and expect
  // the driver to have read it at its return.
  void pin();
  // Requires that the copies from it are done.
  void unpin() noexcept;
  // Empty where the memory is not shared.
  const os::File& file() const noexcept { return segment_ != nullptr ? segment_->file() : file_; }
  // Of the first slot, in the file.
  uint64_t file_at() const noexcept { return file_offset(0); }
  // Null: it cannot be served.
  ServedState* served() const noexcept {
    return segment_ != nullptr ? segment_->control().served() : nullptr;
  }
  // Requires that it is not null.
  ServedEnds served_ends() const noexcept { return ServedEnds(segment_->control()); }
  // Other processes find it by its name from now on, until drop_name(). Fails as Segments::create().
  void take_name();
  void drop_name() noexcept;

  // One more, which is free then. False: there may be no more. Fails with kNoMemory.
  bool grow();

  // Takes the memory of a slot before its first use; later calls do nothing. So the threads that fill take
  // the memory side by side, and a feed begins before all slots have theirs. Until then it counts as
  // promised, in the check of create(). Fails with kNoMemory (the message has the numbers).
  void take_memory(int32_t slot);
  // The same for a slot that a worker process fills, right after create(), which has checked the room. Does
  // not use the heap, whose locks a fork holds. Leaves a slot to take_memory() if it is large
  // (os::try_commit) or there is no memory.
  void try_take_memory(int32_t slot) noexcept;
  // What worker processes have taken is not promised any more.
  void note_memory_of_workers() noexcept;

  // Takes memory for a part of a sparse slot, which its holder is going to write. Fails with kNoMemory.
  void commit(int32_t slot, uint64_t at, uint64_t nbytes);

  // A slot that replaces a taken one, which is not given back for a long time. kNone: there are no more.
  // Fails with kNoMemory. give_spare() takes the replaced slot when it comes back, or a spare one that was
  // not used.
  int32_t take_spare();
  void give_spare(int32_t slot) noexcept;

  // For the holder of the slot: the span that ends when it is free again, and its times before that.
  void begin_span(int32_t slot, uint32_t feed, uint64_t epoch, uint64_t index) noexcept;
  void mark(int32_t slot, trace::Mark at) noexcept {
    const Link& link = links_[static_cast<size_t>(slot)];
    trace::mark(link.span, trace::key_of(&link), at);
  }
  // The same of what a worker process has done: begins the span if there is none.
  void note_span(int32_t slot, uint32_t feed, uint64_t epoch, uint64_t index, int64_t begun_ns,
                 int64_t ready_ns) noexcept;

  // Lends a taken slot to a user outside of the feed. The result must be passed to end_loan() exactly once,
  // after the last use of the slot; the slot is then free.
  void* lend(int32_t slot) noexcept;
  static void end_loan(void* owner) noexcept;
  // The same as a storage, whose end is the end of the loan. On failure the slot is free. Fails with
  // std::bad_alloc.
  Ref<Storage> lend_storage(int32_t slot);
  // How many slots are lent.
  int32_t lent() const noexcept { return lent_.load(std::memory_order_relaxed); }

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  struct Link {
    Slots* pool;
    trace::Span span = trace::kNoSpan;  // of its holder
    std::mutex taking;
    bool has_memory = false;  // guarded by taking
  };

  Slots(const SlotsPlan& plan, const FeedHead& head, std::string_view schema);
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  void set_control(const FeedControl& control, uint32_t self = 0) noexcept;
  FeedHead head_of(FeedHead head, size_t schema_nbytes) const;
  bool is_on_host() const noexcept { return plan_.device.type == TENON_CPU; }
  bool takes_memory() const noexcept { return is_on_host() && !plan_.is_sparse; }
  void populate_slot(int32_t slot);
  size_t file_offset(int32_t slot) const noexcept {
    return file_at_ + static_cast<size_t>(data(slot) - memory_);
  }
  void make_segment(FeedHead head, std::string_view schema);
  void note_memory(Link& link) noexcept;
  bool has_memory_of_worker(const Link& link) const noexcept;
  void make_memory(const FeedHead& head, std::string_view schema);
  void drop_memory() noexcept;
  int32_t make_slot();
  void end_span(Link& link) noexcept;

  // Constant after construction.
  const SlotsPlan plan_;
  const ForkMark process_;
  size_t slots_at_ = 0;                  // of a file with a control part, its size
  size_t nbytes_;                        // addresses; the memory of the slots that there are is taken
  size_t file_at_ = 0;                   // of memory_, in the file
  Ref<Array> shared_;                    // the control part in a segment, which keeps the slots
  Segment* segment_ = nullptr;           // of shared_
  std::byte* control_memory_ = nullptr;  // of a control part that is not in the file
  size_t control_nbytes_ = 0;
  os::File file_;
  std::byte* memory_ = nullptr;
  std::atomic<size_t> promised_{0};      // of the slots that have not taken it yet
  device::Device* on_device_ = nullptr;  // of device memory
  Ref<device::Event> born_;              // of device memory: see Memory::born

  std::mutex growing_;
  // Guarded by growing_.
  bool has_name_ = false;
  int32_t made_ = 0;  // the truth of the number that other processes read, and might write
  std::vector<int32_t> spares_;
  std::vector<std::unique_ptr<device::Registration>> pins_;  // empty: not pinned

  // Shared.
  std::atomic<int32_t> count_{0};
  std::vector<Link> links_;
  alignas(64) std::atomic<int32_t> lent_{0};
  RefCount refs_;
};

}  // namespace tenon::impl
