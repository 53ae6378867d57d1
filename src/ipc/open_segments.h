// SPDX-License-Identifier: Apache-2.0
//
// The segments that are open in this process, the allocators on those that it created, and when each is
// closed.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "ipc/block_allocator.h"
#include "ipc/segment.h"

namespace tenon::impl {

// The memory of a segment on a device ends before the segment is closed. That calls the driver and may take
// long, so it is done without the lock. The segment stays open meanwhile, and this process is a user of its
// block. If an array on it is opened meanwhile, the segment gets memory again and is not closed.
//
// Threads: guarded by the lock of Segments.
class OpenSegments {
 public:
  Segment& add(std::unique_ptr<Segment> segment);  // fails with kValue (there is one with this id)
  Segment* find(const SegmentId& id) noexcept;

  // Calls visit with each segment.
  template <class Visit>
  void visit(Visit visit) const {
    for (const auto& [id, segment] : open_) visit(*segment);
  }

  // Its destructor closes the segment that was added through it, if no array uses it: because the array for
  // which it was opened could not be made.
  class CloseUnused {
   public:
    explicit CloseUnused(OpenSegments& segments) noexcept : segments_(segments) {}
    CloseUnused(const CloseUnused&) = delete;
    CloseUnused& operator=(const CloseUnused&) = delete;
    ~CloseUnused();

    Segment& add(std::unique_ptr<Segment> segment);  // once; fails as OpenSegments::add
    // It stays open as long as it may be needed.
    void keep() noexcept { added_.reset(); }

   private:
    OpenSegments& segments_;
    std::optional<SegmentId> added_;
  };

  // A block of an allocator; of a new allocator if the others have no room. Fails with kNoMemory, kSystem.
  AllocatedBlock allocate(uint64_t nbytes);
  // The allocator of a segment that this process has created, until remove_allocator(). Fails with
  // std::bad_alloc.
  BlockAllocator& add_allocator(std::unique_ptr<Segment> segment);
  // The segment is closed when no array in this process uses it.
  void remove_allocator(const SegmentId& id) noexcept;
  // Returns the unused memory of the allocators to the system. False: there was none.
  bool trim_blocks() noexcept;

  // This process does not use a block any more.
  void note_left(const SegmentId& id, uint32_t block) noexcept;
  // Frees some blocks and segments that no process uses any more. Its cost does not grow with the number of
  // arrays.
  void sweep_some();
  // Frees all of them, unless that was done less than 100 ms ago. True: it must be called again later.
  bool sweep_all();
  // Closes all segments that no process uses any more. True: it must be called again later.
  bool close_left() noexcept;

  // Cleans up after the creators of the other segments. Returns when it must be called again; 0: never.
  std::chrono::milliseconds clean() noexcept;

  // A segment whose memory on a device must end before it is closed. Null: there is none. The caller takes
  // the memory, ends it without the lock, and calls note_ended().
  Segment* next_ending() noexcept;
  void note_ended(const SegmentId& id) noexcept;
  bool has_ending() const noexcept { return !ending_.empty(); }
  // Memory of this process on the device may be free a moment later: another thread ends it, or processes use
  // it that may have dropped it a moment ago.
  bool is_freeing(tenon_device device) const noexcept;

  // In a forked child: only the parent allocates in its allocators.
  void become_child() noexcept;

 private:
  using Set = std::set<SegmentId>;
  bool try_close(Set::iterator leaving) noexcept;
  bool close(Set::iterator leaving) noexcept;
  BlockAllocator* allocator_of(const SegmentId& id) noexcept;
  BlockAllocator& new_allocator(uint64_t nbytes);

  std::map<SegmentId, std::unique_ptr<Segment>> open_;
  std::vector<std::unique_ptr<BlockAllocator>>
      allocators_;  // each on a segment of open_ that this process created
  // Each segment of open_ is in one of these sets. Its node moves between them, which needs no memory.
  Set leaving_;  // segments that perhaps nothing in this process uses
  Set staying_;
  Set ending_;                 // their memory is to end
  Set ended_;                  // a thread has taken their memory, and ends it
  int64_t swept_at_ns_ = 0;    // time of the last sweep_all()
  int64_t cleaned_at_ns_ = 0;  // time of the last clean(), and what it returned
  std::chrono::milliseconds clean_again_{0};
  SegmentId last_looked_at_;   // the last one of leaving_ that sweep_some() looked at
  size_t next_allocator_ = 0;  // the allocator for the next call of sweep_some()
};

}  // namespace tenon::impl
