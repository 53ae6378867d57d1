// SPDX-License-Identifier: Apache-2.0
#include "array/lease.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "array/access.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

// What the caller wanted: a lease that is taken to be given back at once is a wait, and has its name.
std::string doing(Access access, const Claim& claim) {
  return claim.name != nullptr ? concat("wait to ", infinitive(access))
                               : concat("lease for ", gerund(access));
}

bool is_logged() noexcept {
  static const bool is_wanted = [] {
    const char* const topics = std::getenv("TENON_DEBUG");
    return topics != nullptr && std::string_view(topics).find("leases") != std::string_view::npos;
  }();
  return is_wanted;
}

bool is_new_site(const char* site) {
  static auto* const lock = new std::mutex;
  static auto* const sites = new std::set<std::string>;
  const std::scoped_lock held(*lock);
  return sites->insert(site).second;
}

// TENON_DEBUG=leases: says, once for each line, that the lease was granted beside a view that another thread
// keeps. What is read or written through that one is not ordered by the lease.
[[gnu::cold]] void log_view_beside(const Entry& entry, const Claim& claim) noexcept {
  const auto report = wait_hooks().report;
  if (report == nullptr || claim.site == nullptr || claim.entries.empty()) return;
  std::optional<Obstacle> found;
  {
    Queue& queue = lock_home(*entry.home);
    const std::unique_lock lock(queue.lock, std::adopt_lock);
    for (const View* v = queue.first_view(); v != nullptr && !found; v = v->next) {
      if (v->is_bound || v->actor.thread == claim.owner.thread) continue;
      if (conflict(v->access, v->extent, entry.access, entry.extent)) found = Obstacle::of(*v);
    }
  }
  try {
    if (!found || !is_new_site(claim.site)) return;
    report(concat("the lease of ", claim.site, " was granted beside ", text_of(*found),
                  ": use that view under a lease, too")
               .c_str());
  } catch (const std::bad_alloc&) {
    // It is said the next time.
  }
}

}  // namespace

void Lease::describe(const Array& array, Access access, LeaseFlags flags, Actor owner, const char* site) {
  if (access == Access::kWrite && array.is_readonly()) {
    throw_error(Code::kBuffer, "a read-only array of shape ", shape_text(array.shape()),
                flags.is_wait ? " cannot be waited for to be written: wait to read it"
                              : " cannot be leased for writing");
  }
  Storage& storage = array.storage();
  entry_.home = &storage.home();
  entry_.extent = array.extent();
  entry_.access = access;
  entry_.is_overwrite = flags.is_overwrite && array.is_dense();
  claim_.ignores_dead_owner = flags.ignores_dead_owner;
  claim_.heeds_gate_timeout = flags.heeds_gate_timeout;
  accepts_failure_ = flags.accepts_failure;
  if (array.size() == 0) claim_.entries = {};
  claim_.owner = owner;
  claim_.site = site;
  claim_.since_ms = coarse_now_ms();
  claim_.span = trace::kNoSpan;
  if (flags.is_wait) {
    claim_.name = access == Access::kWrite ? "wait_to_write" : "wait_to_read";
  } else if (trace::is_on()) [[unlikely]] {
    begin_span(array, site);
  }
}

void Lease::begin_span(const Array& array, const char* site) noexcept {
  claim_.span = trace::open(trace::SpanKind::kLease, trace::key_of(&claim_), [&](trace::Record& record) {
    record.access = access();
    record.address = trace::key_of(array.storage().data());
    trace::copy_end(record.site, site);
    trace::Text text(record.text);
    text << "array of ";
    tenon::impl::describe(array, text);
  });
}

void Lease::acquire(const Array& array, Access access, LeaseFlags flags, Actor owner, const char* site,
                    const Deadline& deadline) {
  if (const auto refused = try_acquire(array, access, flags, owner, site, deadline)) throw Error(*refused);
}

std::optional<Error> Lease::try_acquire(const Array& array, Access access, LeaseFlags flags, Actor owner,
                                        const char* site, const Deadline& deadline) {
  describe(array, access, flags, owner, site);
  Storage& storage = array.storage();
  Refusal refusal;
  if (!claim_.acquire(deadline, &refusal)) {
    Error error = error_of(refusal, doing(access, claim_).c_str(), &array);
    end_span(trace::SpanOutcome::kFailed, error.what());
    return error;
  }
  trace::mark(claim_.span, trace::key_of(&claim_), trace::kReady);
  if (!accepts_failure_ && storage.region().has_poison.load(std::memory_order_relaxed)) {
    if (const Ref<Failure> failure = impl::failure_of(claim_)) {
      end_span(trace::SpanOutcome::kFailed, "the memory holds no value");
      impl::release(claim_);
      throw OpFailure(failure);
    }
  }
  storage.retain();
  storage_.store(&storage, std::memory_order_relaxed);
  if (is_logged()) [[unlikely]]
    log_view_beside(entry_, claim_);
  return std::nullopt;
}

bool Lease::request(const Array& array, Access access, LeaseFlags flags, Actor owner, const char* site,
                    void (*done)(void*), void* context) {
  describe(array, access, flags, owner, site);
  auto request = std::make_unique<Request>();
  request->done = done;
  request->context = context;
  Storage& storage = array.storage();
  storage.retain();
  storage_.store(&storage, std::memory_order_relaxed);
  request_ = request.release();  // now, because done may be called before the next line
  Refusal refusal;
  switch (claim_.request(request_, &refusal)) {
    case Appended::kWaiting: return false;
    case Appended::kGranted:
      trace::mark(claim_.span, trace::key_of(&claim_), trace::kReady);
      check();
      return true;
    case Appended::kRefused: break;
  }
  end_span(trace::SpanOutcome::kFailed, "refused");
  drop_request();
  storage_.store(nullptr, std::memory_order_relaxed);
  storage.release();
  throw_refusal(refusal, doing(access, claim_).c_str(), &array);
}

bool Lease::cancel() noexcept {
  Storage* const storage = storage_.load(std::memory_order_relaxed);
  if (storage == nullptr) return false;
  if (request_ == nullptr || !impl::cancel(claim_)) {
    entry_.is_overwrite = false;
    return false;
  }
  end_span(trace::SpanOutcome::kCancelled);
  WaitGraph::instance().leave(&request_->waiter);
  drop_request();
  storage_.store(nullptr, std::memory_order_relaxed);
  storage->release();
  return true;
}

void Lease::check() {
  const Storage* const storage = storage_.load(std::memory_order_relaxed);
  if (storage == nullptr) throw_error(Code::kValue, "the lease is not held");
  if (claim_.missing.load(std::memory_order_relaxed) != 0) {
    throw_error(Code::kValue, "the lease has not been granted yet");
  }
  if (request_ != nullptr && request_->is_refused) {
    const Refusal refusal = request_->refusal;
    withdraw();
    throw_refusal(refusal, doing(access(), claim_).c_str(), nullptr);
  }
  drop_request();
  if (is_logged()) [[unlikely]]
    log_view_beside(entry_, claim_);
  if (!accepts_failure_) check_value();
}

void Lease::check_value() {
  const Storage* const storage = storage_.load(std::memory_order_relaxed);
  if (!storage->region().has_poison.load(std::memory_order_relaxed)) return;
  if (const Ref<Failure> failure = impl::failure_of(claim_)) {
    withdraw();
    throw OpFailure(failure);
  }
}

void Lease::withdraw() noexcept {
  entry_.is_overwrite = false;
  (void)release();
}

void Lease::drop_request() noexcept { delete std::exchange(request_, nullptr); }

bool Lease::release() noexcept {
  if (request_ != nullptr && cancel()) return false;
  // Of several threads that release it, one gets the storage.
  Storage* const storage = storage_.exchange(nullptr, std::memory_order_relaxed);
  if (storage == nullptr) return false;
  if (entry_.is_overwrite) impl::settle(claim_, {});
  return give_back(storage);
}

bool Lease::fail(std::string_view message) {
  const auto failure =
      Ref<Failure>::adopt(new Failure(Code::kOp, 0, std::string(message), "write()",
                                      claim_.site != nullptr ? claim_.site : "", nullptr, nullptr));
  Storage* const storage = storage_.exchange(nullptr, std::memory_order_relaxed);
  if (storage == nullptr) return false;
  end_span(trace::SpanOutcome::kFailed, message);
  impl::settle(claim_, failure);
  return give_back(storage);
}

bool Lease::give_back(Storage* storage) noexcept {
  drop_request();
  end_span(trace::SpanOutcome::kDone);
  const bool has_escaped = impl::release(claim_);
  storage->release();
  return has_escaped;
}

}  // namespace tenon::impl
