// SPDX-License-Identifier: Apache-2.0
//
// Forks of this process: each child gets a place in every open segment.
#pragma once

#include <utility>
#include <vector>

#include "base/os.h"
#include "ipc/open_segments.h"

namespace tenon::impl {

// Threads: guarded by the lock of Segments, which is held from before() to after() or become_child().
class SegmentForks {
 public:
  void before(OpenSegments& segments) noexcept;
  // In the parent, also after a fork that failed.
  void after(OpenSegments& segments) noexcept;
  // In the child, after it has taken its places.
  void become_child() noexcept;

  // Frees the places of children that ended before they took them, and of forks that failed.
  void look(OpenSegments& segments) noexcept;
  // All children have taken their places, or have ended.
  bool is_empty() const noexcept { return forks_.empty(); }

 private:
  // A child that has not taken its places yet. It has the write end of a pipe open until then, so its end and
  // a failed fork are noticed.
  struct Fork {
    os::File reader;
    std::vector<std::pair<SegmentId, Participant::Reserved>> places;
  };

  std::vector<Fork> forks_;
  os::File writer_;  // only during a fork
};

}  // namespace tenon::impl
