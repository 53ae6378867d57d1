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

// What the caller wanted to do, for errors. A wait is a lease that is released at once, and has a name.
std::string doing(Access access, const Request& request) {
  return request.name != nullptr ? concat("wait to ", infinitive(access))
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

// TENON_DEBUG=leases: reports, once for each line, that the lease was granted while another thread has a
// view. Accesses through that view are not ordered by the lease.
[[gnu::cold]] void log_view_beside(const RequestPart& part, const Request& request) noexcept {
  const auto report = wait_hooks().report;
  if (report == nullptr || request.site == nullptr || request.parts.empty()) return;
  std::optional<Holder> found;
  {
    Queue& queue = lock_home(*part.home);
    const std::unique_lock lock(queue.lock, std::adopt_lock);
    for (const View* v = queue.first_view(); v != nullptr && !found; v = v->next) {
      if (v->thread == request.owner.thread) continue;
      if (in_conflict(v->access, v->extent, part.access, part.extent)) found = Holder::of(*v);
    }
  }
  try {
    if (!found || !is_new_site(request.site)) return;
    report(concat("the lease of ", request.site, " was granted beside ", text_of(*found),
                  ": use that view under a lease, too")
               .c_str());
  } catch (const std::bad_alloc&) {
    // The next lease reports it.
  }
}

}  // namespace

void Lease::refuse_write(const Array& array, bool is_wait) {
  if (is_wait) {
    throw_error(Code::kBuffer, "a read-only array of shape ", shape_text(array.shape()),
                " cannot be waited for to be written: wait to read it");
  }
  throw_error(Code::kBuffer, "a read-only array of shape ", shape_text(array.shape()),
              " cannot be leased for writing: ", kHowToWrite);
}

void Lease::begin_span(const Array& array, const char* site) noexcept {
  request_.span = trace::open(trace::SpanKind::kLease, trace::key_of(&request_), [&](trace::Record& record) {
    record.access = access();
    record.address = trace::key_of(array.storage().data());
    trace::copy_end(record.site, site);
    trace::SpanText text(record.text);
    text << "array of ";
    tenon::impl::describe(array, text);
  });
}

void Lease::acquire(const Array& array, Access access, const LeaseFlags& flags, Actor owner, const char* site,
                    const Deadline& deadline) {
  if (const auto refused = try_acquire(array, access, flags, owner, site, deadline)) throw Error(*refused);
}

std::optional<Error> Lease::acquire_described(const Array& array, const Deadline& deadline) {
  if (!request_.acquire_idle()) [[unlikely]]
    return acquire_locked(array, deadline);
  begin(array);
  return std::nullopt;
}

std::optional<Error> Lease::acquire_locked(const Array& array, const Deadline& deadline) {
  Conflict conflict;
  if (request_.acquire_locked(deadline, &conflict)) {
    begin(array);
    return std::nullopt;
  }
  Error error = error_of(conflict, doing(access(), request_).c_str(), &array);
  end_span(trace::SpanOutcome::kFailed, error.what());
  return error;
}

inline void Lease::begin(const Array& array) {
  trace::mark(request_.span, trace::key_of(&request_), trace::kReady);
  Storage& storage = array.storage();
  if (storage.region().has_failures.load(std::memory_order_relaxed)) [[unlikely]]
    check_failures();
  storage.retain();
  storage_.store(&storage, std::memory_order_relaxed);
  if (is_logged()) [[unlikely]]
    log_view_beside(part_, request_);
}

void Lease::check_failures() {
  const Ref<Failure> failure = accepts_failure_ ? Ref<Failure>() : impl::failure_of(request_);
  if (!failure) return;
  end_span(trace::SpanOutcome::kFailed, "the values are invalid");
  impl::release(request_, false);
  throw OpFailure(failure);
}

bool Lease::request(const Array& array, Access access, const LeaseFlags& flags, Actor owner, const char* site,
                    void (*done)(void*), void* context) {
  describe(array, access, flags, owner, site);
  auto pending = std::make_unique<PendingRequest>();
  pending->done = done;
  pending->context = context;
  Storage& storage = array.storage();
  storage.retain();
  storage_.store(&storage, std::memory_order_relaxed);
  pending_ = pending.release();  // now, because done may be called during submit()
  Conflict conflict;
  switch (request_.submit(pending_, &conflict)) {
    case Appended::kWaiting: return false;
    case Appended::kGranted:
      trace::mark(request_.span, trace::key_of(&request_), trace::kReady);
      check();
      return true;
    case Appended::kRefused: break;
  }
  end_span(trace::SpanOutcome::kFailed, "refused");
  drop_request();
  storage_.store(nullptr, std::memory_order_relaxed);
  storage.release();
  throw_conflict(conflict, doing(access, request_).c_str(), &array);
}

bool Lease::cancel() noexcept {
  Storage* const storage = storage_.load(std::memory_order_relaxed);
  if (storage == nullptr) return false;
  if (pending_ == nullptr || !impl::cancel(request_)) {
    part_.is_overwrite = false;
    return false;
  }
  end_span(trace::SpanOutcome::kCancelled);
  WaitGraph::instance().leave(&pending_->node);
  drop_request();
  storage_.store(nullptr, std::memory_order_relaxed);
  storage->release();
  return true;
}

void Lease::check() {
  const Storage* const storage = storage_.load(std::memory_order_relaxed);
  if (storage == nullptr) throw_error(Code::kValue, "the lease is not held");
  if (request_.missing.load(std::memory_order_relaxed) != 0) {
    throw_error(Code::kValue, "the lease has not been granted yet");
  }
  if (pending_ != nullptr && pending_->is_refused) {
    const Conflict conflict = pending_->conflict;
    withdraw();
    throw_conflict(conflict, doing(access(), request_).c_str(), nullptr);
  }
  drop_request();
  if (is_logged()) [[unlikely]]
    log_view_beside(part_, request_);
  if (!accepts_failure_) check_value();
}

void Lease::check_value() {
  const Storage* const storage = storage_.load(std::memory_order_relaxed);
  if (!storage->region().has_failures.load(std::memory_order_relaxed)) return;
  if (const Ref<Failure> failure = impl::failure_of(request_)) {
    withdraw();
    throw OpFailure(failure);
  }
}

void Lease::withdraw() noexcept {
  if (pending_ != nullptr && cancel()) return;
  if (Storage* const storage = storage_.exchange(nullptr, std::memory_order_relaxed))
    (void)finish(storage, false);
}

void Lease::drop_request() noexcept { delete std::exchange(pending_, nullptr); }

bool Lease::release() noexcept {
  if (!is_held() || (pending_ != nullptr && cancel())) return false;
  // If several threads release it, one of them gets the storage.
  Storage* const storage = storage_.exchange(nullptr, std::memory_order_relaxed);
  if (storage == nullptr) return false;
  if (part_.is_overwrite) impl::note_outcome(request_, {});
  return finish(storage, true);
}

bool Lease::fail(std::string_view message) noexcept {
  const Ref<Failure> failure = Failure::make(Code::kOp, message, "write()", request_.site);
  Storage* const storage = storage_.exchange(nullptr, std::memory_order_relaxed);
  if (storage == nullptr) return false;
  end_span(trace::SpanOutcome::kFailed, message);
  impl::note_outcome(request_, failure);
  return finish(storage, true);
}

bool Lease::finish(Storage* storage, bool has_written) noexcept {
  drop_request();
  end_span(trace::SpanOutcome::kDone);
  const bool has_outlived = impl::release(request_, has_written);
  storage->release();
  return has_outlived;
}

}  // namespace tenon::impl
