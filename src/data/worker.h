// SPDX-License-Identifier: Apache-2.0
//
// A worker's end of a feed: of a worker process, and of a thread that a generator has started in the feed's
// process (thread_worker.h).
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
  os::Process process;
  uint32_t feed = 0;  // which one of the process
  int fd = -1;        // of its memory; -1: the worker is a thread of the process
  int32_t loop = 0;

  std::string text() const;
  static WorkerLink parse(const std::string& text);  // fails with kValue
};

// Threads: one at a time.
class Worker {
 public:
  // Finds the feed in this process, or opens its memory. Fails with kNotFound, kValue, kSystem.
  static std::unique_ptr<Worker> join(const std::string& link);
  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  virtual ~Worker() = default;

  enum class Received { kRequest, kLate, kOver };
  // The next request, which request() then has, until it is answered. timeout_ns < 0: for ever.
  virtual Received next(int64_t timeout_ns) = 0;
  // Null: there is none.
  const tenon_fill_request* request() const noexcept { return has_request_ ? &request_ : nullptr; }
  // Takes memory for the first bytes of a sparse slot, that of the current request. Fails with kValue,
  // kNoMemory.
  virtual void commit(uint64_t nbytes) = 0;
  // message is cut where it is too long; null: none.
  virtual void answer(int32_t code, const char* message) noexcept = 0;

 protected:
  tenon_fill_request request_{};
  bool has_request_ = false;
  bool has_left_ = false;
  int64_t since_ns_ = 0;  // when the current one was taken
};

class ProcessWorker final : public Worker {
 public:
  static std::unique_ptr<ProcessWorker> join(const WorkerLink& link);
  // For a child that the feed has forked: it has the memory.
  ProcessWorker(std::byte* memory, int32_t ring);
  ~ProcessWorker() override;

  // Requests that were made ahead behind the end of an epoch, which this worker has told of, are answered
  // here.
  Received next(int64_t timeout_ns) override;
  void commit(uint64_t nbytes) override;
  void answer(int32_t code, const char* message) noexcept override;

 private:
  bool wait_for_request(int64_t timeout_ns);
  size_t offset_of(int32_t slot) const noexcept;
  bool is_feed_alive() const noexcept;

  os::File file_;  // empty: the memory is not this object's
  std::byte* const memory_;
  const RingsHead& head_;
  RequestRing& ring_;
  const int32_t number_;
  std::vector<void*> fields_;
  std::vector<int64_t*> shapes_;
  uint32_t done_ = 0;            // requests so far
  std::vector<bool> has_pages_;  // by slot: its pages are in this process' table, as far as they can be
  Ticket ended_{};               // before which an epoch has ended; round 0: none
  SpinBudget short_wait_;
};

}  // namespace tenon::impl
