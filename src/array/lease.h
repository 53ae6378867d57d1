// SPDX-License-Identifier: Apache-2.0
//
// A lease of an array: its owner reads or writes the array, and conflicting requests wait.
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
  bool accepts_failure = false;  // also if the memory holds no value; then the caller calls check_value()
  bool is_wait = false;          // it will be released at once
};

// Never moves while it is held or requested; keeps the storage alive. It can be used again after its release:
// describe() sets everything that an earlier use may have left.
// Threads: acquire from one; release, fail and detach from any, any number of times.
class Lease {
 public:
  Lease() noexcept : request_(HolderKind::kLease, {&part_, 1}) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { release(); }

  // Waits until the deadline. Fails as tenon_lease_acquire.
  void acquire(const Array& array, Access access, const LeaseFlags& flags, Actor owner, const char* site,
               const Deadline& deadline);
  // The same, but returns a conflict instead of throwing it, because throwing takes longer than the rest of
  // the recovery from a death.
  std::optional<Error> try_acquire(const Array& array, Access access, const LeaseFlags& flags, Actor owner,
                                   const char* site, const Deadline& deadline) {
    describe(array, access, flags, owner, site);
    return acquire_described(array, deadline);
  }

  // Does not wait. True: it is held. False: done(context) is called once, from any thread, when it has been
  // granted, and check() then says whether it is held; before that, only cancel() is allowed. Fails as
  // tenon_lease_request.
  bool request(const Array& array, Access access, const LeaseFlags& flags, Actor owner, const char* site,
               void (*done)(void* context), void* context);
  // Cancels the request. False: it has been granted, and done has been or will be called; then the caller
  // must release it, and the memory counts as not written.
  bool cancel() noexcept;
  // The node of a request that has not been checked; null: there is none.
  const WaitNode* node() const noexcept { return pending_ != nullptr ? &pending_->node : nullptr; }
  // After the request is granted. Fails with kOp if the memory holds no value, and as acquire if a gate has
  // refused it; it is released then.
  void check();

  // While it is held. Fails with kOp if the memory holds no value; it is released then.
  void check_value();
  // While it is held: releases it, with nothing written under it.
  void withdraw() noexcept;
  // While it is held, by its owner: every byte will be written before any is read.
  void declare_overwrite() noexcept { part_.is_overwrite = part_.access == Access::kWrite; }
  Access access() const noexcept { return part_.access; }
  // It is held and covers all bytes of the array.
  bool covers(const Array& array) const noexcept {
    return storage_.load(std::memory_order_relaxed) == &array.storage() &&
           part_.extent.contains(array.extent());
  }

  // True if a view that was taken under it is still open and continues it.
  bool release() noexcept;
  // Releases it; the memory holds no value then.
  bool fail(std::string_view message) noexcept;
  void detach() noexcept { impl::detach(request_); }

  // False for zero memory.
  bool is_constructed() const noexcept { return is_constructed_; }
  bool is_held() const noexcept { return storage_.load(std::memory_order_relaxed) != nullptr; }

 private:
  // Inline, so that the flags need not be stored in memory for the call.
  void describe(const Array& array, Access access, const LeaseFlags& flags, Actor owner, const char* site) {
    if (access == Access::kWrite && array.is_readonly()) [[unlikely]]
      refuse_write(array, flags.is_wait);
    part_.home = &array.storage().home();
    part_.extent = array.extent();
    part_.access = access;
    part_.is_overwrite = flags.is_overwrite && array.is_dense();
    part_.grant = kNoGrant;
    request_.parts = {&part_, array.size() != 0 ? size_t{1} : 0};
    request_.ignores_dead_owner = flags.ignores_dead_owner;
    request_.heeds_gate_timeout = flags.heeds_gate_timeout;
    request_.begin_again();
    accepts_failure_ = flags.accepts_failure;
    request_.owner = owner;
    request_.site = site;
    request_.name = nullptr;
    request_.since_ms = coarse_now_ms();
    request_.span = trace::kNoSpan;
    if (flags.is_wait) {
      request_.name = access == Access::kWrite ? "wait_to_write" : "wait_to_read";
    } else if (trace::is_on()) [[unlikely]] {
      begin_span(array, site);
    }
  }
  [[noreturn, gnu::cold]] static void refuse_write(const Array& array, bool is_wait);
  std::optional<Error> acquire_described(const Array& array, const Deadline& deadline);
  [[gnu::noinline]] std::optional<Error> acquire_locked(const Array& array, const Deadline& deadline);
  // After the request is granted.
  void begin(const Array& array);
  [[gnu::cold]] void check_failures();
  [[gnu::cold]] void begin_span(const Array& array, const char* site) noexcept;
  void end_span(trace::SpanOutcome outcome, std::string_view note = {}) noexcept {
    trace::close(request_.span, trace::key_of(&request_), outcome, note);
  }
  bool finish(Storage* storage, bool has_written) noexcept;
  void drop_request() noexcept;

  // While held: with a reference. First: zero memory is a free lease.
  std::atomic<Storage*> storage_{nullptr};
  PendingRequest* pending_ = nullptr;  // owned
  const bool is_constructed_ = true;
  bool accepts_failure_ = false;
  RequestPart part_;
  BlockingRequest request_;
};

}  // namespace tenon::impl
