// SPDX-License-Identifier: Apache-2.0
//
// The slots of a feed: one range of addresses, which is mapped once, and a table (ipc/slot_table.h) that says
// which of them are free. A slot takes its memory before its first fill, or, if it is sparse, where it is
// written. The content of a slot is not known here. Slots that other processes map lie in a memory file; with
// worker processes, a control part lies before them (request_ring.h). Slots on a device, and pinned ones, are
// one allocation of the driver.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/clock.h"
#include "base/event.h"
#include "base/os.h"
#include "base/ref.h"
#include "base/trace.h"
#include "device/device.h"
#include "ipc/slot_table.h"
#include "memory/storage.h"

namespace tenon::impl {

// Begins the names of the memory files of feeds.
inline constexpr char kFeedFilePrefix[] = "tenon-feed";
// And of those that hold slots alone.
inline constexpr char kSlotsFilePrefix[] = "tenon-slots";

// How many, of what size, and where.
struct SlotsPlan {
  int32_t count = 0;
  size_t slot_nbytes = 0;  // a multiple of the page size
  int32_t most = 0;        // up to which they may grow, if the table has room for them; 0: they do not
  int32_t spares = 0;      // how many more may replace others
  bool is_shared = false;  // in a memory file
  bool is_sparse = false;  // a slot takes memory where it is written, and not when it is made
  // Of a memory file that worker processes fill: what lies before the slots; a multiple of the page size.
  size_t control_nbytes = 0;
  // TENON_CUDA, TENON_CUDA_HOST: they do not grow, and are neither shared nor sparse.
  tenon_device device{TENON_CPU, 0};
};

// Counted: the feed holds one reference, each lent slot another, so that delivered batches outlive the
// feed. Threads: everything may be called by any thread. give() and end_loan() never block, allocate
// nothing and take no lock: they are what the release of a batch runs.
// The words of the table alone say who has a slot. Those of spare slots, and of slots that are not made yet,
// are not free.
class Slots {
 public:
  // Fails with kValue (overflow), kNoMemory (the message has the numbers), and as Device::of.
  static Ref<Slots> create(const SlotsPlan& plan);

  // Without the spare ones, and without those that spare ones replace.
  int32_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  // The numbers of all slots are smaller than this.
  int32_t made() const noexcept { return observe(made_); }
  int32_t most() const noexcept { return plan_.most + plan_.spares; }
  size_t slot_nbytes() const noexcept { return plan_.slot_nbytes; }
  std::byte* data(int32_t slot) const noexcept {
    return memory_ + plan_.control_nbytes + static_cast<size_t>(slot) * plan_.slot_nbytes;
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
  std::byte* control() const noexcept { return memory_; }
  // Empty where the memory is not shared.
  const os::File& file() const noexcept { return file_; }

  // One more, which is free then. False: there may be no more. Fails with kNoMemory.
  bool grow();

  // In place of a slot.
  static constexpr int32_t kNone = -1;  // none is free
  static constexpr int32_t kOver = -2;  // wake() has been called

  // The holders in the words of taken slots: consumers and other users that have no number, slots that no
  // thread has, and fill loop number n.
  static constexpr uint32_t kConsumer = 0, kNobody = 1, kFirstLoop = kParticipants;
  static constexpr int32_t kMostLoops = 4096 - kFirstLoop;

  // A free slot, if possible the one that was given last; waits for one. kNone: there was none in this time.
  // kOver after wake().
  int32_t take(uint32_t holder = kConsumer, const Deadline& deadline = Deadline(-1)) noexcept;
  // The same without waiting.
  int32_t try_take(uint32_t holder = kConsumer) noexcept;
  // Whether try_take() would find one now.
  bool has_free() noexcept;
  // Waits so long (>= 0) until one is free, or wake() was called.
  void await_free(int64_t timeout_ns) noexcept;
  // Of any slot that is not free.
  void give(int32_t slot) noexcept;
  // Its words, for the order of what lies in the slots. It has an entry for each slot that there may be.
  const SlotTable& table() const noexcept { return table_; }

  // Takes the memory of a slot before its first use; later calls do nothing. So the threads that fill take
  // the memory side by side, and a feed begins before all slots have theirs. Until then it counts as
  // promised, in the check of create(). Fails with kNoMemory (the message has the numbers).
  void take_memory(int32_t slot);
  // The same for a slot that a worker process fills, right after create(), which has checked the room. Does
  // not use the heap, whose locks a fork holds. Leaves a slot to take_memory() if it is large
  // (os::try_commit) or there is no memory.
  void try_take_memory(int32_t slot) noexcept;

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

  // Lends a taken slot to a user outside of the feed. The result must be passed to end_loan() exactly once,
  // after the last use of the slot; the slot is then free.
  void* lend(int32_t slot) noexcept;
  static void end_loan(void* owner) noexcept;
  // The same as a storage, whose end is the end of the loan. On failure the slot is free. Fails with
  // std::bad_alloc.
  Ref<Storage> lend_storage(int32_t slot);
  // How many slots are lent.
  int32_t lent() const noexcept { return lent_.load(std::memory_order_relaxed); }

  // Ends all waits in take(), also later ones.
  void wake() noexcept;

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

  explicit Slots(const SlotsPlan& plan);
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // What lies at the start of the table's memory. Plain data.
  struct Head {
    SlotCounters counters;
    // The one that was given last: a hint. Workers without a slot poll its line of the cache, so what
    // consumers write besides lies in another one.
    alignas(64) std::atomic<uint32_t> recent;
    std::atomic<uint32_t> is_over;
    Event room;
  };

  void make_table();
  bool is_over() const noexcept { return observe(head_->is_over) != 0; }
  bool is_on_host() const noexcept { return plan_.device.type == TENON_CPU; }
  bool takes_memory() const noexcept { return is_on_host() && !plan_.is_sparse; }
  void populate_slot(int32_t slot);
  size_t file_offset(int32_t slot) const noexcept { return static_cast<size_t>(data(slot) - memory_); }
  void note_memory(Link& link) noexcept;
  void make_memory();
  void drop_memory() noexcept;
  int32_t make_slot();
  void end_span(Link& link) noexcept;

  // Constant after construction.
  const SlotsPlan plan_;
  const size_t nbytes_;  // addresses; the memory of the slots that there are is taken
  os::File file_;
  std::byte* memory_ = nullptr;
  std::atomic<size_t> promised_{0};      // of the slots that have not taken it yet
  device::Device* on_device_ = nullptr;  // of device memory
  Ref<device::Event> born_;              // of device memory: see Memory::born

  std::mutex growing_;
  // Guarded by growing_.
  std::vector<int32_t> spares_;
  std::vector<std::unique_ptr<device::Registration>> pins_;  // empty: not pinned

  struct FreeBlock {
    void operator()(std::byte* block) const noexcept { ::operator delete(block, std::align_val_t{64}); }
  };
  // One block: the head, the states of the slots, the entries.
  std::unique_ptr<std::byte, FreeBlock> block_;
  Head* head_ = nullptr;
  SlotTable table_;

  // Shared.
  std::atomic<int32_t> count_{0}, made_{0};
  std::vector<Link> links_;
  alignas(64) std::atomic<int32_t> lent_{0};
  RefCount refs_;
};

}  // namespace tenon::impl
