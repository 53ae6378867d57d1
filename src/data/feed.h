// SPDX-License-Identifier: Apache-2.0
//
// A feed: worker threads that run a generator on free slots, and the functions of the consumer. TicketRing
// has the order, Slots the memory, Batch the arrays, DeviceBatches the device slots and the copies to them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fork_mark.h"
#include "base/ref.h"
#include "base/timed_mutex.h"
#include "data/batch.h"
#include "data/device_batches.h"
#include "data/feed_serving.h"
#include "data/workers.h"
#include "ipc/schema.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// Owned by its handle. Threads: every function may be called by any thread, as long as the handle lives.
// In a forked child, where the workers do not exist, nothing waits and every call but close() fails.
class Feed {
 public:
  // Takes over the generator unless it throws. Failures: as tenon_feed_create in tenon.h.
  Feed(const tenon_generator& generator, Ref<Schema> schema, const tenon_feed_options& options);
  // Closes, waiting at most a second.
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // Later batches lie on the device (TENON_CUDA), in a ring of so many device slots, or on the slots
  // (TENON_CPU). Ends the epoch, unless nothing changes. Fails with kValue, kClosed, and as DeviceBatches;
  // then batches lie on the slots.
  void use_device(tenon_device device, int32_t slots);

  // Fails with kClosed.
  void begin();
  void end();

  // Epoch and place in it, as tenon.h says: the place of the whole epoch, not of this rank.
  void seek(uint64_t epoch, uint64_t place);
  std::pair<uint64_t, uint64_t> position();
  FeedPosition state();
  // As seek, with the states of the generator. Fails with kValue: other states than this feed can have.
  void resume(FeedPosition position);

  // False when the time has passed. batch is null at the end of the epoch. Fails with kClosed, with kOp
  // at the place of a batch for which the generator failed, with kLeaseConflict if the consumer holds all
  // slots and on_starved does not let it wait, and with std::bad_alloc, which ends the epoch.
  bool next(int64_t timeout_ns, Ref<Batch>& batch);
  // Waits until next() would not wait, and takes nothing. Fails as next(), but not with kOp.
  bool await(int64_t timeout_ns);
  // What the consumer waits for, and what would help.
  std::string waiting_text();

  // For a thread that serves the feed to consumers in other processes, which take its batches in place of
  // next(). serve() takes the name of the feed at the first call. Fails with kValue (no name, or it is taken,
  // another mode than before, it is being served), kClosed.
  void serve(const ServeOptions& options);
  // The duties of the server, until there is something to tell; timeout_ns < 0: without a limit.
  ServeReport serve_wait(int64_t timeout_ns);
  // Begins the next epoch, after kGathered or kEpochEnded: at once, or, as long as a consumer has not noticed
  // the end of the last one, in serve_wait(). Fails with kClosed.
  void serve_next();
  // After kGathered, where consumers want to begin; none: there are not so many.
  std::optional<ServeWanted> serve_wanted(int32_t i);
  // Consumers get what is ready, at most as much as they may hold, and then the end. Any thread.
  void serve_end() noexcept;

  // Zeros for a feed without a name.
  ServeCounts serve_counts() const noexcept;

  // Fails with kTimeout when a generator does not return.
  void close(int64_t timeout_ns);

  // Details of the last failure of next().
  tenon_feed_failure failure();
  tenon_feed_statistics statistics();
  tenon_worker_statistics worker_statistics(int32_t worker);
  std::string take_report() { return workers_->take_report(process_.is_child()); }

 private:
  // A batch that was taken from the queue, and whose copies to the device are pushed.
  struct Copied {
    FeedPosition before;
    Ticket ticket;
    Ref<Batch> batch;
    std::vector<Ref<Op>> copies;
    std::exception_ptr error;  // why there is no batch
  };

  void check_process() const;
  void check_consumer() const;
  void start_workers();
  std::string held_text(uint64_t epoch);
  bool give_up_hung(bool has_waited);
  bool wait(int64_t timeout_ns, TicketRing::Delivery* item, TicketRing::NextBatch& outcome);
  TicketRing::NextBatch take_next(int64_t timeout_ns, TicketRing::Delivery& item);
  bool map_front();
  void note_oldest(tenon_feed_statistics& s);
  bool is_starved() const noexcept;
  void help_starved();
  Ref<Batch> batch_of(const TicketRing::Delivery& item);
  bool has_batch(TicketRing::NextBatch outcome, const TicketRing::Delivery& item);
  [[noreturn]] void throw_failure(const TicketRing::Delivery& item);
  void note_delivery(const Batch& batch) noexcept;

  // On a device: feed_on_device.cc.
  Ref<DeviceBatches> device_batches();
  FeedPosition position_of_consumer();
  void end_at_consumer();
  bool await_on_device(DeviceBatches& device, int64_t timeout_ns);
  bool next_on_device(DeviceBatches& device, int64_t timeout_ns, Ref<Batch>& batch);
  void copy_ahead(DeviceBatches& device);
  std::optional<Copied> take_copied(DeviceBatches& device);
  bool wait_for_room(DeviceBatches& device, const Deadline& deadline, DeviceBatches::Room& room);
  DeviceBatches::Room help_starved_device(DeviceBatches& device);
  void copy_to_device(DeviceBatches& device, DeviceBatches::Room room, Copied& copied) noexcept;
  void check_copied(const Copied& copied);

  // Constant after construction.
  const ForkMark process_;
  const tenon_feed_options options_;
  const Ref<Schema> schema_;
  const Ref<Workers> workers_;

  // Shared: plain counters.
  std::atomic<uint64_t> batches_{0}, nbytes_{0}, copied_{0};

  TimedMutex taking_;  // held in next_on_device(), so that batches come in order; before staging_
  // device_ is not null: for feeds on the host and for forked children, which do not lock staging_.
  std::atomic<bool> is_on_device_{false};
  std::mutex staging_;  // for short sections: taking_ may be held as long as a batch takes
  // Guarded by staging_. One epoch.
  Ref<DeviceBatches> device_;  // null: batches lie on the slots
  std::deque<Copied> ahead_;   // of the consumer, in the order of the epoch

  // Of slots that worker processes fill: those whose pages are in the page table of this process.
  std::vector<std::atomic<bool>> has_pages_;  // empty: they are mapped by the first touch
  std::atomic<int32_t> mapped_{0};            // how many have theirs

  // feed_serving.cc
  ServedEnds ends() const noexcept;
  bool begin_serving(const ServeOptions& options, int32_t tokens);
  void take_name();
  void check_not_served() const;
  void read_wanted();
  bool is_round_ended(const TicketRing::RoundView& view) const;
  ServeReport look_at_serving();
  void begin_served_round();
  void note_failure(const Ticket& ticket, const TicketFailure& failure);

  std::mutex serving_;
  // Written under serving_.
  std::atomic<bool> is_serving_{false};
  std::atomic<bool> is_in_round_{false};
  bool has_gathered_ = false;
  bool is_beginning_ = false;  // serve_next() was called
  std::vector<ServeWanted> wanted_;

  std::mutex failing_;
  tenon_feed_failure failure_{};  // guarded by failing_

  std::mutex closing_;
  // Guarded by closing_. By number of the fill loop; empty once joined or detached.
  std::unique_ptr<std::vector<std::thread>> threads_;
};

}  // namespace tenon::impl
