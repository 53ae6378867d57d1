// SPDX-License-Identifier: Apache-2.0
//
// A lease of an array: its owner reads or writes it, and what conflicts waits.
#pragma once

#include <atomic>
#include <optional>
#include <string_view>

#include "array/array.h"
#include "base/error.h"
#include "sync/wait.h"

namespace tenon::impl {

struct LeaseFlags {
  bool is_overwrite = false;
  bool ignores_dead_owner = false;
  bool heeds_gate_timeout = false;
  bool accepts_failure = false;  // also where the memory holds no value: check_value() is to follow
  bool is_wait = false;          // it is taken to be given back at once
};

// Never moves while it is held or requested; keeps the storage alive.
// Threads: acquire from one; release, fail and detach from any, as often as wanted.
class Lease {
 public:
  Lease() noexcept : request_(HolderKind::kLease, {&part_, 1}) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { release(); }

  // Waits until the deadline. Fails as tenon_lease_acquire.
  void acquire(const Array& array, Access access, LeaseFlags flags, Actor owner, const char* site,
               const Deadline& deadline);
  // The same, but a conflict is returned: to throw costs more than a recovery from a death takes besides.
  std::optional<Error> try_acquire(const Array& array, Access access, LeaseFlags flags, Actor owner,
                                   const char* site, const Deadline& deadline);

  // Does not wait. True: it is held. Else done(context) is called once, from any thread, when it has been
  // granted, and check() says whether it is held then; no other call but cancel() is allowed before that.
  // Fails as tenon_lease_request.
  bool request(const Array& array, Access access, LeaseFlags flags, Actor owner, const char* site,
               void (*done)(void* context), void* context);
  // Takes back what was requested. False: it has been granted, and done has been or will be called; then it
  // is to be released, and counts as not written.
  bool cancel() noexcept;
  // Of a request that has not been checked; null: there is none.
  const WaitNode* node() const noexcept { return pending_ != nullptr ? &pending_->node : nullptr; }
  // After the grant. Fails with kOp when the memory holds no value, and as acquire when it was refused where
  // other processes take turns: then it is released.
  void check();

  // While it is held. Fails with kOp when the memory holds no value: then it is released.
  void check_value();
  // While it is held: released, and nothing was written under it.
  void withdraw() noexcept;
  // While it is held, by its owner: every byte will be written before any is read.
  void declare_overwrite() noexcept { part_.is_overwrite = part_.access == Access::kWrite; }
  Access access() const noexcept { return part_.access; }
  // It is held, and all bytes of the array are its.
  bool covers(const Array& array) const noexcept {
    return storage_.load(std::memory_order_relaxed) == &array.storage() &&
           part_.extent.contains(array.extent());
  }

  // True if a view that was taken under it lives on, and continues it.
  bool release() noexcept;
  // The memory holds no value from now on.
  bool fail(std::string_view message);
  void detach() noexcept { impl::detach(request_); }

  bool is_held() const noexcept { return storage_.load(std::memory_order_relaxed) != nullptr; }

 private:
  void describe(const Array& array, Access access, LeaseFlags flags, Actor owner, const char* site);
  [[gnu::cold]] void begin_span(const Array& array, const char* site) noexcept;
  void end_span(trace::SpanOutcome outcome, std::string_view note = {}) noexcept {
    trace::close(request_.span, trace::key_of(&request_), outcome, note);
  }
  bool finish(Storage* storage, bool has_written) noexcept;
  void drop_request() noexcept;

  std::atomic<Storage*> storage_{nullptr};  // a reference while held; first: zero memory is a free lease
  PendingRequest* pending_ = nullptr;       // owned
  bool accepts_failure_ = false;
  RequestPart part_;
  BlockingRequest request_;
};

}  // namespace tenon::impl
