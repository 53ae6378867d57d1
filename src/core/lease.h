// SPDX-License-Identifier: Apache-2.0
//
// A lease of an array: its owner reads or writes it, and what conflicts waits.
#pragma once

#include <atomic>
#include <string_view>

#include "core/array.h"
#include "engine/wait.h"

namespace tenon {

// Never moves while it is held; keeps the storage alive.
// Threads: acquire from one; release, fail and detach from any, as often as wanted.
class Lease {
 public:
  Lease() noexcept : claim_(engine::Kind::kLease, {&entry_, 1}) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { release(); }

  // Waits until the deadline. Fails as tenon_lease_acquire.
  void acquire(const Array& array, Access access, bool is_overwrite, engine::Actor owner, const char* site,
               const Deadline& deadline);

  // True if a view that was taken under it is in the way of work that waits.
  bool release() noexcept;
  // The memory holds no value from now on.
  bool fail(std::string_view message);
  void detach() noexcept { claim_.is_detached.store(true, std::memory_order_relaxed); }

  bool is_held() const noexcept { return storage_.load(std::memory_order_relaxed) != nullptr; }

 private:
  bool give_back(Storage* storage) noexcept;

  std::atomic<Storage*> storage_{nullptr};  // a reference while held; first: zero memory is a free lease
  engine::Entry entry_;
  engine::BlockingClaim claim_;
};

}  // namespace tenon
