// SPDX-License-Identifier: Apache-2.0
//
// The parts of a long queue by their bytes: a search visits the parts near an extent, not all parts.
//
// A part of n bytes has the level l with 2^(l-1) < n <= 2^l. At level l, memory is divided into cells of 2^l
// bytes, and the part is in the cell of its first byte. So a part that overlaps an extent begins at most
// 2^l - 1 bytes before it. A hash table leads from a level and a cell to the parts.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sync/request.h"

namespace tenon::impl {

// Owned by its queue, whose lock guards it. Allocates only when it is made.
class PartIndex {
 public:
  // Null: there is no memory.
  static PartIndex* make(size_t room) noexcept;

  size_t size() const noexcept { return size_; }
  bool is_full() const noexcept { return size_ == nodes_.size(); }

  // Requires that it is not full. The extent of the part does not change while it is here.
  void insert(RequestPart* part) noexcept;
  void erase(RequestPart* part) noexcept;

  // Calls visit once with each part that overlaps the extent, in no order. visit must not change the index.
  // False: nothing was visited, because the extent has more cells than there are parts.
  template <class Visit>
  bool visit(const Extent& extent, Visit visit) const noexcept {
    uint64_t n_cells = 0;
    for (uint64_t rest = levels_; rest != 0; rest &= rest - 1) {
      const Cells cells = cells_of(std::countr_zero(rest), extent);
      if (cells.last - cells.first >= size_ || (n_cells += cells.last - cells.first + 1) > size_)
        return false;
    }
    for (uint64_t rest = levels_; rest != 0; rest &= rest - 1) {
      const int level = std::countr_zero(rest);
      const Cells cells = cells_of(level, extent);
      for (uint64_t cell = cells.first; cell <= cells.last; ++cell) {
        const Key key{cell, level};
        for (uint32_t i = chains_[chain_of(key)]; i != kNone; i = nodes_[i].next) {
          if (nodes_[i].key == key && nodes_[i].part->extent.overlaps(extent)) visit(nodes_[i].part);
        }
      }
    }
    return true;
  }

  // Empty, with room for all parts, for the caller of visit().
  std::vector<RequestPart*>& found() noexcept {
    found_.clear();
    return found_;
  }

 private:
  static constexpr int kLevels = 64;
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Key {
    uint64_t cell;
    int level;
    bool operator==(const Key&) const = default;
  };
  struct Node {
    Key key;
    RequestPart* part;
    uint32_t next;  // in its chain, or in the list of unused nodes
    uint32_t previous;
  };
  struct Cells {
    uint64_t first;
    uint64_t last;
  };

  explicit PartIndex(size_t room);

  static int level_of(const Extent& extent) noexcept {
    return std::min(static_cast<int>(std::bit_width(extent.end - extent.begin - 1)), kLevels - 1);
  }
  static Cells cells_of(int level, const Extent& extent) noexcept {
    const uint64_t before = level == kLevels - 1 ? UINT64_MAX : (uint64_t{1} << level) - 1;
    return {(extent.begin - std::min<uint64_t>(before, extent.begin)) >> level, (extent.end - 1) >> level};
  }
  size_t chain_of(const Key& key) const noexcept {
    return ((key.cell * kLevels + static_cast<uint64_t>(key.level)) * 0x9E3779B97F4A7C15u) >> shift_;
  }

  std::vector<Node> nodes_;
  std::vector<uint32_t> chains_;  // the first node of each
  std::vector<RequestPart*> found_;
  uint32_t unused_ = 0;  // the first unused node
  int shift_;
  size_t size_ = 0;
  uint64_t levels_ = 0;  // a bit for each level that has parts
  std::array<uint32_t, kLevels> n_parts_{};
};

}  // namespace tenon::impl
