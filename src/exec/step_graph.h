// SPDX-License-Identifier: Apache-2.0
//
// The order of the steps of a recording: a step waits for each earlier step that uses some of its bytes,
// unless both only read them. A step that need not wait may run at the same time as others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

#include "sync/request.h"

namespace tenon::impl {

// A use of memory by a step. The extent is not empty.
struct StepUse {
  Home* home = nullptr;
  Extent extent;
  Access access = Access::kRead;
  bool is_overwrite = false;  // every byte will be written, none is read
  bool is_unchecked = false;  // of an unchecked array: it conflicts only with other such uses

  // Checked uses come first, then unchecked ones, each in the order of their bytes.
  using Place = std::pair<bool, uintptr_t>;
  Place place() const noexcept { return {is_unchecked, extent.begin}; }
};

// Threads: one, until the last step has been added; then any.
class StepGraph {
 public:
  StepGraph() = default;
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Adds a step, and uses of the last step. Throw std::bad_alloc; the graph is incomplete then.
  void add_step() { steps_.emplace_back(); }
  void use(const StepUse& use);

  uint32_t size() const noexcept { return static_cast<uint32_t>(steps_.size()); }
  size_t n_edges() const noexcept { return edges_.size(); }
  // How many steps a step waits for.
  uint32_t n_before(uint32_t step) const noexcept { return steps_[step].n_before; }
  // Calls visit with each step that waits for this one.
  template <class Visit>
  void visit_after(uint32_t step, Visit visit) const {
    for (uint32_t i = steps_[step].first_edge; i != kNone; i = edges_[i].next) visit(edges_[i].to);
  }

  // What all steps use together. First extents that do not overlap, each with the strongest access of its
  // bytes, which count as overwritten if their first step overwrites them. Then uses, such that each step
  // finds one claim for each of its uses, under which it can act; they count as overwritten, because the
  // first claims say which of their bytes must hold a value. Throws std::bad_alloc.
  std::vector<StepUse> claims() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Node {
    uint32_t n_before = 0;
    uint32_t first_edge = kNone;
  };
  struct Edge {
    uint32_t to;
    uint32_t next;
  };
  struct Reader {
    uint32_t step;
    uint32_t next;
  };
  // Bytes with the same history.
  struct Bytes {
    StepUse claim;
    uint32_t first_step;
    bool is_used_as_whole = false;  // by a step, and uses_ does not have it
    uint32_t writer = kNone;        // the last step that writes them
    uint32_t readers =
        kNone;  // the steps that have read them since, newest first; parts of a split share them
  };

  void use_some(uint32_t step, const StepUse& use);
  void visit(uint32_t step, const StepUse& use, Bytes* bytes);
  void add_edge(uint32_t from, uint32_t to);
  Bytes*& recent(uintptr_t begin) noexcept { return recent_[(begin >> 6) % recent_.size()]; }

  std::vector<Node> steps_;
  std::vector<Edge> edges_;
  std::vector<Reader> readers_;
  std::vector<StepUse> uses_;                   // those that are not of one entry of bytes_
  std::pmr::monotonic_buffer_resource memory_;  // of bytes_, which only grows
  // By the places of their claims; they do not overlap.
  std::pmr::map<StepUse::Place, Bytes> bytes_{&memory_};
  // The uses of each unchecked array, which has a queue of its own, for its claims; and their last step.
  std::map<Home*, std::pair<std::unique_ptr<StepGraph>, uint32_t>> unchecked_;
  std::array<Bytes*, 256> recent_{};  // found without a search if a step uses exactly these bytes again
};

}  // namespace tenon::impl
