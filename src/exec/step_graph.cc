// SPDX-License-Identifier: Apache-2.0
#include "exec/step_graph.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace tenon::impl {

void StepGraph::use(const StepUse& use) {
  const uint32_t step = size() - 1;
  if (use.is_unchecked) [[unlikely]] {
    auto& [graph, last_step] = unchecked_[use.home];
    if (graph == nullptr) graph = std::make_unique<StepGraph>();
    if (graph->size() == 0 || last_step != step) graph->add_step();
    last_step = step;
    StepUse alone = use;
    alone.is_unchecked = false;
    graph->use(alone);
  }
  Bytes* const known = recent(use.extent.begin);
  if (known == nullptr || known->claim.extent != use.extent || known->claim.is_unchecked != use.is_unchecked)
    return use_some(step, use);
  known->is_used_as_whole = true;
  visit(step, use, known);
}

// Splits known bytes at the ends of the extent, and adds those between them.
void StepGraph::use_some(uint32_t step, const StepUse& use) {
  const auto split = [this](auto at, uintptr_t address) {
    Bytes& whole = at->second;
    if (std::exchange(whole.is_used_as_whole, false)) uses_.push_back(whole.claim);
    Bytes rest = whole;
    rest.claim.extent.begin = address;
    whole.claim.extent.end = address;
    return bytes_.emplace_hint(std::next(at), rest.claim.place(), rest);
  };
  const auto is_same_kind = [&use](const auto& known) { return known.first.first == use.is_unchecked; };
  const auto begin_of = [&](auto at) {
    return at != bytes_.end() && is_same_kind(*at) ? at->first.second : UINTPTR_MAX;
  };
  const auto [begin, end] = use.extent;
  auto at = bytes_.end();
  // Arrays that were made one after another often lie so: no search then.
  if (at != bytes_.begin() && std::prev(at)->first > use.place()) at = bytes_.upper_bound(use.place());
  if (at != bytes_.begin() && is_same_kind(*std::prev(at)) &&
      std::prev(at)->second.claim.extent.end > begin) {
    --at;
    if (begin_of(at) < begin) at = split(at, begin);
  }
  for (uintptr_t address = begin; address < end; ++at) {
    if (begin_of(at) > address) {
      StepUse claim = use;
      claim.extent = {address, std::min(end, begin_of(at))};
      claim.is_overwrite &= claim.access == Access::kWrite;
      at = bytes_.emplace_hint(at, claim.place(), Bytes{claim, step});
    } else if (at->second.claim.extent.end > end) {
      (void)split(at, end);
    }
    visit(step, use, &at->second);
    address = at->second.claim.extent.end;
    recent(begin_of(at)) = &at->second;
    if (at->second.claim.extent == use.extent) {
      at->second.is_used_as_whole = true;
      return;
    }
  }
  uses_.push_back(use);
}

void StepGraph::visit(uint32_t step, const StepUse& use, Bytes* bytes) {
  if (bytes->first_step == step && !use.is_overwrite) bytes->claim.is_overwrite = false;
  if (use.access == Access::kRead) {
    add_edge(bytes->writer, step);
    readers_.push_back({step, bytes->readers});
    bytes->readers = static_cast<uint32_t>(readers_.size() - 1);
    return;
  }
  // The readers wait for the writer.
  bool is_behind_reader = false;
  for (uint32_t i = bytes->readers; i != kNone; i = readers_[i].next) {
    add_edge(readers_[i].step, step);
    is_behind_reader |= readers_[i].step != step;
  }
  if (!is_behind_reader) add_edge(bytes->writer, step);
  bytes->claim.access = Access::kWrite;
  bytes->writer = step;
  bytes->readers = kNone;
}

void StepGraph::add_edge(uint32_t from, uint32_t to) {
  if (from == kNone || from == to) return;
  uint32_t& first = steps_[from].first_edge;
  if (first != kNone && edges_[first].to == to) return;  // the newest edge, because steps come in order
  edges_.push_back({to, first});
  first = static_cast<uint32_t>(edges_.size() - 1);
  ++steps_[to].n_before;
}

std::vector<StepUse> StepGraph::claims() const {
  std::vector<StepUse> claims;
  claims.reserve(bytes_.size());
  for (const auto& [place, bytes] : bytes_) {
    const StepUse& claim = bytes.claim;
    if (claim.is_unchecked) break;
    if (!claims.empty()) {
      StepUse& last = claims.back();
      if (last.extent.end == claim.extent.begin && last.home == claim.home && last.access == claim.access &&
          last.is_overwrite == claim.is_overwrite) {
        last.extent.end = claim.extent.end;
        continue;
      }
    }
    claims.push_back(claim);
  }
  const size_t n = claims.size();
  const auto is_inside = [&claims, n](const StepUse& use) {
    if (use.is_unchecked) return true;
    const auto end = claims.begin() + static_cast<ptrdiff_t>(n);
    const auto behind = std::upper_bound(claims.begin(), end, use.place(),
                                         [](const auto& a, const StepUse& b) { return a < b.place(); });
    const StepUse& claim = *std::prev(behind);
    return claim.extent.contains(use.extent) && includes(claim.access, use.access);
  };
  const auto key = [](const StepUse& use) { return std::tuple(use.place(), use.extent.end, use.access); };
  std::vector<StepUse> rest;
  std::remove_copy_if(uses_.begin(), uses_.end(), std::back_inserter(rest), is_inside);
  std::sort(rest.begin(), rest.end(), [&](const StepUse& a, const StepUse& b) { return key(a) < key(b); });
  rest.erase(std::unique(rest.begin(), rest.end(), [&](auto& a, auto& b) { return key(a) == key(b); }),
             rest.end());
  for (StepUse& use : rest) {
    use.is_overwrite = true;
    claims.push_back(use);
  }
  for (const auto& [home, uses] : unchecked_) {
    for (StepUse& use : uses.first->claims()) {
      use.is_unchecked = true;
      claims.push_back(use);
    }
  }
  return claims;
}

}  // namespace tenon::impl
