// SPDX-License-Identifier: Apache-2.0
//
// The functions of requests.h for bytes that hold no value.
#include <mutex>
#include <new>
#include <utility>

#include "sync/gate.h"
#include "sync/requests.h"

namespace tenon::impl {

Ref<Failure> failure_of(Home& home, const Extent& extent) noexcept {
  Queue& queue = lock_home(home);
  Ref<Failure> failure = queue.failure_in(extent);
  queue.lock.unlock();
  return failure;
}

namespace {

// The failure of the first part for which find(part) returns one, of those that read.
template <class Find>
Ref<Failure> first_failure(const Request& request, Find find) noexcept {
  for (const RequestPart& e : request.parts) {
    if (e.is_overwrite || e.is_overwriting || !e.queue->has_failures.load(std::memory_order_relaxed))
      continue;
    if (Ref<Failure> failure = find(e)) return failure;
  }
  return {};
}

}  // namespace

Ref<Failure> failure_of(const Request& request) noexcept {
  return first_failure(request, [](const RequestPart& e) { return failure_of(*e.home, e.extent); });
}

Ref<Failure> failure_before(const Request& request) noexcept {
  return first_failure(request, [](const RequestPart& e) {
    const std::scoped_lock lock(e.queue->lock);
    return e.queue->failure_in(e.extent, e.sequence);
  });
}

bool clear_failures(Home& home, const Extent& extent, Conflict* conflict) noexcept {
  FailedRange* spare = new (std::nothrow) FailedRange;
  Queue& queue = lock_home(home);
  FailedRange* healed = queue.heal(extent, &spare);
  Gate* const gate = queue.gate();
  queue.lock.unlock();
  delete spare;
  while (healed != nullptr) delete std::exchange(healed, healed->next);
  return gate == nullptr || gate->clear_deaths(extent, Deadline(gate_timeout_ns()), conflict);
}

void note_outcome(const Request& request, const Ref<Failure>& failure) noexcept {
  for (const RequestPart& e : request.parts) {
    if (e.access != Access::kWrite || (!failure && !e.is_overwrite)) continue;
    if (e.is_overwrite && !failure && e.queue->gate() != nullptr) [[unlikely]] {
      e.queue->gate()->heal(e.extent);
    }
    FailedRange* node =
        failure ? new (std::nothrow) FailedRange{e.extent, failure, nullptr, e.sequence} : nullptr;
    FailedRange* healed = nullptr;
    const bool may_heal = e.is_overwrite && e.queue->has_failures.load(std::memory_order_relaxed);
    if (failure || may_heal) {
      FailedRange* spare = new (std::nothrow) FailedRange;
      {
        const std::scoped_lock lock(e.queue->lock);
        healed = e.queue->heal(e.extent, &spare);
        if (node != nullptr) {
          e.queue->add_failure(node);
        } else if (failure) {
          e.queue->add_failure_without_node(e.extent);
        }
      }
      delete spare;
    }
    while (healed != nullptr) delete std::exchange(healed, healed->next);
  }
}

}  // namespace tenon::impl
