// SPDX-License-Identifier: Apache-2.0
//
// A worker process' end of a feed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/os.h"
#include "base/spin_budget.h"
#include "data/request_ring.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// What a worker needs to find its feed.
struct WorkerLink {
  os::Process feed;
  int fd = -1;
  int32_t ring = 0;

  std::string text() const;
  static WorkerLink parse(const std::string& text);  // fails with kValue
};

// Threads: one at a time.
class Worker {
 public:
  // Opens the feed's memory. Fails with kNotFound, kValue, kSystem.
  static std::unique_ptr<Worker> join(const std::string& link);
  // For a child that the feed has forked: it has the memory.
  Worker(std::byte* memory, int32_t ring);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  enum class Received { kRequest, kLate, kOver };
  // The next request, which request() then has, until it is answered. timeout_ns < 0: for ever. Requests
  // that were made ahead behind the end of an epoch, which this worker has told of, are answered here.
  Received next(int64_t timeout_ns);
  // Null: there is none.
  const tenon_fill_request* request() const noexcept { return has_request_ ? &request_ : nullptr; }
  // Takes memory for the first bytes of a sparse slot, that of the current request. Fails with kValue,
  // kNoMemory.
  void commit(uint64_t nbytes);
  // message is cut where it is too long; null: none.
  void answer(int32_t code, const char* message) noexcept;

 private:
  bool wait_for_request(int64_t timeout_ns);
  size_t offset_of(int32_t slot) const noexcept;
  bool is_feed_alive() const noexcept;
  void leave() noexcept;
  void tell_feed() noexcept;  // that something has changed

  os::File file_;  // empty: the memory is not this object's
  std::byte* const memory_;
  const FeedHead& head_;
  RequestRing& ring_;
  const int32_t number_;
  tenon_fill_request request_{};
  std::vector<void*> fields_;
  std::vector<int64_t*> shapes_;
  uint32_t done_ = 0;            // requests so far
  std::vector<bool> has_pages_;  // by slot: its pages are in this process' table, as far as they can be
  bool has_request_ = false;
  bool has_left_ = false;  // the ring may be another's by now
  Ticket ended_{};         // before which an epoch has ended; round 0: none
  int64_t since_ns_ = 0;   // when the current one was taken
  SpinBudget short_wait_;
};

}  // namespace tenon::impl
