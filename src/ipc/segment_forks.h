// SPDX-License-Identifier: Apache-2.0
//
// The forks of this process: each child gets a place in the segments that are open.
#pragma once

#include <utility>
#include <vector>

#include "base/os.h"
#include "ipc/open_segments.h"

namespace tenon::impl {

// Threads: one at a time; Segments has the lock, also from before() to after() or become_child().
class SegmentForks {
 public:
  void before(OpenSegments& segments) noexcept;
  // In the parent, also where the fork has failed.
  void after(OpenSegments& segments) noexcept;
  // In the child, when it has taken its places.
  void become_child() noexcept;

  // Gives back the places of children that have ended before they took them, and of forks that have failed.
  void look(OpenSegments& segments) noexcept;
  // No child is awaited.
  bool is_empty() const noexcept { return forks_.empty(); }

 private:
  // A child that has not taken its places yet: it has the other end of a pipe open until then. So its end,
  // and a fork that has failed, are known.
  struct Fork {
    os::File reader;
    std::vector<std::pair<SegmentId, Participant::Reserved>> places;
  };

  std::vector<Fork> forks_;
  os::File writer_;  // between the handlers of a fork
};

}  // namespace tenon::impl
