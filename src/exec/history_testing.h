// SPDX-License-Identifier: Apache-2.0
//
// Records the accesses of a concurrent test and checks afterwards that they were allowed. Every access notes
// when it began and ended, from inside: after it is granted and before the end of the op, lease or view. The
// checker then shows, for each cell:
//
//   - no two accesses that conflict overlap in time;
//   - accesses that conflict and that one thread asked for began in the order in which it asked.
//
// Time is a counter that every note increments. It is relaxed on purpose: if one access ends before another
// is granted, it has the smaller number only through the synchronisation of the engine. So the notes hide no
// race from ThreadSanitizer, and order nothing that the engine does not order.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "exec/cells_testing.h"

namespace tenon::impl {

// Views do not exclude views, leases do not exclude views of the host, and an op may have been pushed with
// OnHost::kIgnore.
struct CellAccess {
  Wanted what;
  HolderKind kind = HolderKind::kOp;
  uint64_t request = 0;  // the same for what acts under it: nested leases, views
  uint32_t asker = 0;    // the thread of the test that asked for it
  uint64_t nth = 0;      // the number of the access for that thread; 0: not ordered
  uint64_t start = 0;
  uint64_t end = 0;
  bool ignores_views = false;  // of an op

  bool is_in_way_of_views() const { return kind == HolderKind::kOp && !ignores_views; }
};

// Threads: begin() and end() from any; take_fault() when all accesses have ended.
class History {
 public:
  History() : serial_(next_serial().fetch_add(1, std::memory_order_relaxed)) {}
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  void begin(CellAccess& access) noexcept { access.start = now(); }
  // May be called by another thread.
  void end(CellAccess access) {
    access.end = now();
    mine().push_back(access);
  }

  class Scope {
   public:
    Scope(History& history, const CellAccess& access) : history_(history), access_(access) {
      history_.begin(access_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { history_.end(access_); }

   private:
    History& history_;
    CellAccess access_;
  };

  // The first violation; empty: none. Forgets all accesses.
  std::string take_fault() {
    std::map<const Cell*, std::vector<CellAccess>> cells;
    {
      const std::scoped_lock lock(lock_);
      for (const auto& log : logs_) {
        for (const CellAccess& access : *log) cells[access.what.cell].push_back(access);
        log->clear();
      }
    }
    std::string fault;
    for (auto& [cell, accesses] : cells) {
      std::sort(accesses.begin(), accesses.end(),
                [](const CellAccess& a, const CellAccess& b) { return a.start < b.start; });
      if (fault.empty()) fault = overlap_in(accesses);
      if (fault.empty()) fault = disorder_in(accesses);
    }
    return fault;
  }

  uint64_t size() {
    const std::scoped_lock lock(lock_);
    uint64_t n = 0;
    for (const auto& log : logs_) n += log->size();
    return n;
  }

 private:
  using Log = std::vector<CellAccess>;

  static std::atomic<uint64_t>& next_serial() {
    static std::atomic<uint64_t> next{1};
    return next;
  }
  uint64_t now() noexcept { return clock_.fetch_add(1, std::memory_order_relaxed) + 1; }

  Log& mine() {
    thread_local uint64_t serial = 0;
    thread_local Log* log = nullptr;
    if (serial != serial_) {
      const std::scoped_lock lock(lock_);
      logs_.push_back(std::make_unique<Log>());
      log = logs_.back().get();
      serial = serial_;
    }
    return *log;
  }

  static bool exclude(const CellAccess& a, const CellAccess& b) {
    if (a.request == b.request ||
        !in_conflict(a.what.access, extent_of(a.what), b.what.access, extent_of(b.what)))
      return false;
    const bool has_view = a.kind == HolderKind::kView || b.kind == HolderKind::kView;
    return !has_view || a.is_in_way_of_views() || b.is_in_way_of_views();
  }

  static std::string overlap_in(const std::vector<CellAccess>& by_start) {
    std::vector<const CellAccess*> running;
    for (const CellAccess& next : by_start) {
      std::erase_if(running, [&](const CellAccess* a) { return a->end < next.start; });
      for (const CellAccess* a : running) {
        if (exclude(*a, next)) return concat("these overlapped: ", text_of(*a), " and ", text_of(next));
      }
      running.push_back(&next);
    }
    return {};
  }

  // Keeps, for each asker and byte, the last write and read that have begun.
  static std::string disorder_in(const std::vector<CellAccess>& by_start) {
    struct Last {
      std::array<const CellAccess*, sizeof(int64_t)> write{};
      std::array<const CellAccess*, sizeof(int64_t)> read{};
    };
    std::map<uint32_t, Last> lasts;
    for (const CellAccess& next : by_start) {
      if (next.nth == 0) continue;
      Last& last = lasts[next.asker];
      for (size_t i = next.what.begin; i < next.what.end; ++i) {
        const bool is_write = next.what.access == Access::kWrite;
        for (const CellAccess* before : {last.write[i], is_write ? last.read[i] : nullptr}) {
          if (before == nullptr || before->nth <= next.nth) continue;
          return concat("these began out of order: ", text_of(*before), ", then ", text_of(next));
        }
        const CellAccess*& place = is_write ? last.write[i] : last.read[i];
        if (place == nullptr || place->nth < next.nth) place = &next;
      }
    }
    return {};
  }

  static std::string text_of(const CellAccess& a) {
    static constexpr const char* kParties[] = {"view", "op", "lease"};
    return concat(kParties[static_cast<size_t>(a.kind)], a.ignores_views ? " beside views " : " ", a.request,
                  " that ", third_person(a.what.access), " bytes ", a.what.begin, " to ", a.what.end,
                  " of a cell, number ", a.nth, " of asker ", a.asker, ", from ", a.start, " to ", a.end);
  }

  const uint64_t serial_;
  std::atomic<uint64_t> clock_{0};
  std::mutex lock_;
  std::vector<std::unique_ptr<Log>> logs_;  // guarded by lock_; each log is its thread's
};

}  // namespace tenon::impl
