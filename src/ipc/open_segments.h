// SPDX-License-Identifier: Apache-2.0
//
// The segments that are open in this process, the pools on those that it has made, and when each is closed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "ipc/pool.h"
#include "ipc/segment.h"

namespace tenon::impl {

// Threads: one at a time; Segments has the lock.
class OpenSegments {
 public:
  Segment& add(std::unique_ptr<Segment> segment);  // fails with kValue (there is one with its id)
  Segment* find(const SegmentId& id) noexcept;

  // Calls visit with each segment.
  template <class Visit>
  void visit(Visit visit) const {
    for (const auto& [id, segment] : open_) visit(*segment);
  }

  // While an array is opened: a segment that was opened for it, and gave none, is closed again.
  class Opening {
   public:
    explicit Opening(OpenSegments& segments) noexcept : segments_(segments) { segments_.added_.reset(); }
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;
    ~Opening();

   private:
    OpenSegments& segments_;
  };

  // Bytes of a pool, of a new one where the others have no room. Fails with kNoMemory, kSystem.
  struct InPool {
    Segment* segment = nullptr;
    Pool::Allocation allocation;
  };
  InPool allocate(uint64_t nbytes);
  // Gives the memory that the pools keep for later to the system. False: there was none.
  bool trim_pools() noexcept;

  // This process does not use a block any more.
  void note_left(const SegmentId& id, uint32_t block) noexcept;
  // Gives back some of what no process uses any more: what costs the same however many arrays there are.
  void sweep_some();
  // The same with all of it, unless that was done a moment ago. True: something is left for later.
  bool sweep_all();

  // In a forked child: the pools are the parent's to give away.
  void become_child() noexcept;

 private:
  bool try_close(std::set<SegmentId>::iterator leaving) noexcept;
  Pool* pool_of(const SegmentId& id) noexcept;
  Pool& new_pool(uint64_t nbytes);

  std::map<SegmentId, std::unique_ptr<Segment>> open_;
  std::vector<std::unique_ptr<Pool>> pools_;  // each on a segment of open_ that this process has made
  // Each of open_ is in one of the two. It goes from one to the other with its node, which needs no memory.
  std::set<SegmentId> leaving_;  // those that nothing here may use any more
  std::set<SegmentId> staying_;
  int64_t swept_at_ns_ = 0;         // all of it
  SegmentId last_looked_at_;        // of leaving_, by sweep_some()
  std::optional<SegmentId> added_;  // the last one that was opened or made
  size_t next_pool_ = 0;            // which the next call of sweep_some() looks at
};

}  // namespace tenon::impl
