// SPDX-License-Identifier: Apache-2.0
//
// The workers' side of a feed: the loop that each thread runs, and everything that it needs. The threads
// themselves belong to feed/feed.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/ref.h"
#include "feed/schema.h"
#include "feed/slots.h"
#include "feed/ticket_queue.h"
#include "tenon/tenon.h"

namespace tenon {

// Counted: the feed and each worker hold a reference, so that a generator that does not return can be left
// behind with all that it uses. The last worker to leave drops the generator.
// Threads: work(i) is run by one thread; everything else may be called by any.
class Crew {
 public:
  // The generator stays the caller's until take_over_generator().
  static Ref<Crew> make(const tenon_generator& generator, Ref<Schema> schema, int32_t workers, int32_t slots,
                        int64_t batches, uint64_t seed);

  int32_t workers() const noexcept { return workers_; }
  Slots& slots() const noexcept { return *slots_; }
  TicketQueue& queue() noexcept { return queue_; }
  const std::string& generator_name() const noexcept { return name_; }
  // Time that workers waited for a free slot.
  uint64_t blocked_ns() const noexcept { return blocked_ns_.load(std::memory_order_relaxed); }

  // What worker number i (from 0) does until dismiss().
  void work(int32_t worker) noexcept;
  // The number of threads that will run work(), before the first of them starts.
  void expect(int32_t count) noexcept { running_ = count; }
  void take_over_generator() noexcept;

  // Ends all waiting; workers leave when their generator returns.
  void dismiss() noexcept;
  // True when all workers have left and the generator is dropped.
  bool wait_until_left(int64_t timeout_ns);
  // The caller is one of this crew's workers.
  bool is_called_by_worker() const noexcept;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  Crew(const tenon_generator& generator, Ref<Schema> schema, Ref<Slots> slots, int32_t workers,
       int64_t batches, uint64_t seed);

  int32_t take_slot(ShortWait& short_wait) noexcept;
  void fill(int32_t worker, const Ticket& ticket, int32_t slot) noexcept;
  void leave() noexcept;

  // Constant after construction.
  tenon_generator generator_;
  const std::string name_;
  const Ref<Schema> schema_;
  const Ref<Slots> slots_;
  const int32_t workers_;
  const uint64_t seed_;

  TicketQueue queue_;
  std::atomic<uint64_t> blocked_ns_{0};     // shared: a plain counter
  std::vector<std::vector<void*>> fields_;  // by worker: addresses for the request; used by that worker only

  std::mutex mutex_;
  std::condition_variable left_;
  // Guarded by mutex_ once threads run.
  int32_t running_ = 0;
  bool owns_generator_ = false;
  bool have_left_ = false;

  RefCount refs_;
};

}  // namespace tenon
