// SPDX-License-Identifier: Apache-2.0
#include "data/feed.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/error.h"
#include "data/bind.h"
#include "data/failure_text.h"
#include "data/generator_call.h"
#include "exec/engine.h"

namespace tenon::impl {
namespace {

static_assert(sizeof tenon_feed_failure::text == kMessageSize);

constexpr int64_t kShortestLook = 1'000'000, kLongestLook = 50'000'000;
// For what wakes no consumer: an op to run, a free slot.
constexpr int64_t kShortLook = 5'000'000;

constexpr int64_t kReapLook = 50'000'000;

constexpr int64_t kLeaveNs = 10 * kSecond;

// How many batches a message lists.
constexpr size_t kListed = 5;

std::string views_text(tenon_view_count views) {
  const uint32_t count = views.readers + views.writers;
  if (count == 0) return "no open view";
  return concat(count, views.writers > 0 ? " writable" : " read-only", count == 1 ? " view" : " views");
}

// A slot that is lent.
struct LentSlot {
  TicketRing::SlotUse use;
  tenon_view_count views;
};

// Oldest first.
std::vector<LentSlot> held_slots(const Slots& slots, const std::vector<TicketRing::SlotUse>& uses) {
  std::vector<LentSlot> held;
  for (int32_t slot = 0; slot < slots.made(); ++slot) {
    if (uses[static_cast<size_t>(slot)].is_filling) continue;  // a generator may have arrays of it
    const Ref<Storage> storage = Storage::find(slots.data(slot), 1, Access::kWrite);
    if (storage) held.push_back({uses[static_cast<size_t>(slot)], storage->region().views()});
  }
  std::ranges::sort(held, {}, [](const LentSlot& h) { return h.use.since_ns; });
  return held;
}

void check(const tenon_generator& generator, const tenon_feed_options& options) {
  if (generator.fill == nullptr) throw_error(Code::kValue, "feed: the generator has no fill function");
  if (options.workers < 0) throw_error(Code::kValue, "feed: workers is ", options.workers, "; it is a count");
  const bool may_prepare = generator.prepare != nullptr && (options.flags & TENON_PROCESSES) != 0;
  const int32_t most = Slots::kMostLoops - kMostAbandoned - (may_prepare ? 1 : 0);
  if (options.workers > most) {
    throw_error(Code::kValue, "feed: workers is ", options.workers, "; at most ", most, " are possible");
  }
  if (options.workers == 0 && ((options.flags & TENON_PROCESSES) != 0 || options.fill_timeout_ns > 0)) {
    throw_error(Code::kValue,
                "feed: workers is 0, so the consumer fills: neither processes nor a limit of the "
                "time of a fill are possible");
  }
  if ((options.flags & TENON_PROCESSES) != 0) refuse_written_constants(generator);
  if (options.slots <= options.workers) {
    throw_error(Code::kValue, "feed: ", options.slots, " slots are too few for ", options.workers,
                " workers: at least ", int64_t{options.workers} + 1,
                " are needed, one for each worker and one for the consumer");
  }
  if (options.batches < -1) {
    throw_error(Code::kValue, "feed: batches is ", options.batches, "; it is a count, or -1 for no end");
  }
  if (options.world_size < 0 || options.rank < 0 || options.rank >= std::max(options.world_size, 1)) {
    throw_error(Code::kValue, "feed: rank is ", options.rank, " of world_size ", options.world_size,
                "; a rank is a number from 0 to world_size - 1");
  }
  if (options.on_error < TENON_ON_ERROR_RAISE || options.on_error > TENON_ON_ERROR_RETRY ||
      options.on_starved < TENON_ON_STARVED_WAIT || options.on_starved > TENON_ON_STARVED_RAISE) {
    throw_error(Code::kValue, "feed: on_error is ", options.on_error, " and on_starved ", options.on_starved,
                "; they are a TENON_ON_ERROR_ and a TENON_ON_STARVED_");
  }
  if (options.on_error == TENON_ON_ERROR_RETRY && options.retries < 1) {
    throw_error(Code::kValue, "feed: retries is ", options.retries, ", at least 1 is needed to retry");
  }
}

void work(const Ref<Workers>& workers, int32_t loop) { workers->work(loop); }

}  // namespace

Feed::Feed(const tenon_generator& generator, Ref<Schema> schema, const tenon_feed_options& options)
    : options_((check(generator, options), options)),
      schema_(std::move(schema)),
      workers_(Workers::make(generator, schema_, options)),
      threads_(std::make_unique<std::vector<std::thread>>()) {
  try {
    workers_->start();
    // A slot of one part is mapped by the first touch.
    if (workers_->processes() != nullptr && !workers_->slots().is_sparse() &&
        workers_->slots().slot_nbytes() > kMapPart) {
      has_pages_ = std::vector<std::atomic<bool>>(static_cast<size_t>(workers_->slots().most()));
    }
    start_workers();
  } catch (...) {
    workers_->dismiss();
    for (std::thread& thread : *threads_) {
      if (thread.joinable()) thread.join();
    }
    workers_->end_processes();  // the generator is the caller's
    throw;
  }
  workers_->take_over_generator();
}

void Feed::start_workers() {
  const int32_t count = workers_->count();
  threads_->reserve(static_cast<size_t>(workers_->loops()));
  const BlockedSignals blocked;
  for (int32_t loop = 0; !workers_->is_inline() && loop < workers_->loops(); ++loop) {
    if (!workers_->needs_thread(loop)) continue;
    try {
      threads_->resize(static_cast<size_t>(loop) + 1);
      threads_->back() = std::thread(work, workers_, loop);
    } catch (const std::exception& e) {  // of the system, or std::bad_alloc
      throw_error(Code::kSystem, "feed: cannot start worker ", std::min(loop + 1, count), " of ", count, ": ",
                  e.what());
    }
  }
}

Feed::~Feed() {
  try {
    close(kSecond);
  } catch (const std::exception&) {
    // The generator did not return: its thread is left behind, as tenon_feed_release promises.
  }
}

void Feed::check_process() const {
  if (process_.is_child()) {
    throw_error(Code::kClosed,
                "this feed belongs to the parent process: its workers do not exist after fork(); "
                "create the feed in this process");
  }
}

void Feed::begin() {
  check_process();
  check_not_served();
  const std::scoped_lock lock(staging_);
  if (!ahead_.empty()) end_at_consumer();
  workers_->queue().begin();
  if (WorkerProcesses* const processes = workers_->processes()) {
    workers_->slots().note_memory_of_workers();
    processes->note_begin();
  }
}

void Feed::end() {
  if (process_.is_child()) return;
  if (is_serving_) return;  // the round is that of consumers in other processes
  const std::scoped_lock lock(staging_);
  end_at_consumer();
}

void Feed::seek(uint64_t epoch, uint64_t place) { workers_->queue().seek(epoch, place); }

std::pair<uint64_t, uint64_t> Feed::position() {
  const FeedPosition position = position_of_consumer();
  return {position.epoch, position.place};
}

FeedPosition Feed::state() {
  FeedPosition position = position_of_consumer();
  if (!workers_->has_state()) position.states.clear();
  return position;
}

void Feed::resume(FeedPosition position) {
  const auto workers = static_cast<size_t>(workers_->has_state() ? workers_->count() : 0);
  if (position.states.size() != workers) {
    throw_error(Code::kValue, "the position has states of ", position.states.size(),
                " workers, and this feed has them of ", workers);
  }
  if (position.worker < 0 || position.worker >= workers_->count()) {
    throw_error(Code::kValue, "the position has worker ", position.worker, ", and this feed has ",
                workers_->count());
  }
  for (const WorkerState& state : position.states) {
    if (!state.bytes || state.bytes->size() <= workers_->layout().state_nbytes) continue;
    throw_error(Code::kValue, "a state of the generator has ", state.bytes->size(),
                " bytes, and state_nbytes is ", options_.state_nbytes);
  }
  workers_->queue().seek(std::move(position));
}

bool Feed::is_starved() const noexcept { return workers_->slots().lent() == workers_->slots().count(); }

// The consumer holds every slot.
void Feed::help_starved() {
  if (options_.on_starved == TENON_ON_STARVED_GROW) {
    if (workers_->slots().grow()) return;
    throw_error(Code::kLeaseConflict, held_text(workers_->queue().position().epoch),
                "; there are as many slots as there may be");
  }
  if (options_.on_starved == TENON_ON_STARVED_RAISE) {
    throw_error(Code::kLeaseConflict, held_text(workers_->queue().position().epoch));
  }
}

// False: no thread hangs, or the feed is being closed.
bool Feed::give_up_hung(bool has_waited) {
  const std::unique_lock lock(closing_, std::try_to_lock);
  if (!lock || workers_->is_dismissed()) return false;
  return workers_->give_up_hung(has_waited, [this](int32_t abandoned, int32_t other) {
    std::vector<std::thread>& threads = *threads_;
    threads[static_cast<size_t>(abandoned)].detach();
    threads.resize(std::max(threads.size(), static_cast<size_t>(other) + 1));
    const BlockedSignals blocked;
    threads[static_cast<size_t>(other)] = std::thread(work, workers_, other);
  });
}

TicketRing::NextBatch Feed::take_next(int64_t timeout_ns, TicketRing::Delivery& item) {
  const TicketRing::NextBatch outcome = workers_->queue().next(timeout_ns, item);
  // Worker processes, and consumers, have the slots mapped.
  const bool is_shared = workers_->processes() != nullptr || workers_->slots().served() != nullptr;
  if (outcome != TicketRing::NextBatch::kBatch || !is_shared) return outcome;
  if (workers_->processes() != nullptr) workers_->note_delivery(item.ticket);
  // What other processes have written into the slot since the worker has checked it.
  Slots& slots = workers_->slots();
  const SchemaField* const wrong =
      find_wrong_shape(workers_->layout(), *schema_, slots.data(item.ticket.slot));
  if (wrong == nullptr) return outcome;
  slots.give(item.ticket.slot);
  workers_->queue().end();
  item.failure.emplace();
  item.failure->code = -1;
  item.failure->set_message(concat("the shape of field '", wrong->name, "' was overwritten").c_str());
  return TicketRing::NextBatch::kFailure;
}

// While a worker process fills the slot for which the consumer waits, and maps it from its start, this maps
// it from its end. False: the worker has not begun, so there may be something to map later.
bool Feed::map_front() {
  Slots& slots = workers_->slots();
  const SlotTable& table = slots.table();
  const uint64_t number = table.passed() + 1;
  const uint32_t slot = table.slot_of(number);
  if (slot == SlotTable::kNone) return false;
  const uint64_t word = table.word(slot);
  if (SlotWord::number(word) != number || SlotWord::kind(word) == SlotWord::kAsked) return false;
  if (SlotWord::kind(word) != SlotWord::kHeld) return true;  // it is filled
  if (has_pages_[slot].load(std::memory_order_relaxed)) return true;
  if (look(slots.control().record(slot).has_memory) == 0) return false;
  if (has_pages_[slot].exchange(true, std::memory_order_relaxed)) return true;
  mapped_.fetch_add(1, std::memory_order_relaxed);
  map_slot(workers_->layout(), slots.data(static_cast<int32_t>(slot)), true,
           [&] { return table.word(slot) != word; });
  return true;
}

// Waits in steps. Between them, it looks whether a fill takes too long and whether the consumer holds all
// slots. item: null, nothing is taken. False: the time has passed.
bool Feed::wait(int64_t timeout_ns, TicketRing::Delivery* item, TicketRing::NextBatch& outcome) {
  const auto look = [&](int64_t ns) {
    return item != nullptr ? take_next(ns, *item) : workers_->queue().peek(ns);
  };
  const bool watches_fill =
      options_.fill_timeout_ns > 0 && (workers_->processes() == nullptr || workers_->are_started());
  const Deadline deadline(timeout_ns);
  bool may_map = !has_pages_.empty() && mapped_.load(std::memory_order_relaxed) < workers_->slots().made();
  int64_t between_looks = kShortestLook;
  while (true) {
    const bool runs_ops = !Engine::instance().has_own_threads();
    while (runs_ops && Engine::instance().help() &&
           !deadline.has_passed()) {  // the end of an op may free a slot
    }
    if (is_starved() && !is_on_device_.load(std::memory_order_relaxed)) help_starved();
    int64_t step = timeout_ns == 0 ? 0 : deadline.is_never() ? -1 : std::max<int64_t>(deadline.left_ns(), 0);
    if (runs_ops) step = step < 0 ? kShortLook : std::min(step, kShortLook);
    if (watches_fill && step != 0) {
      const int64_t between = std::max<int64_t>(options_.fill_timeout_ns / 8, kShortestLook);
      step = step < 0 ? between : std::min(step, between);
    }
    if (step != 0 && may_map) {
      outcome = look(0);
      if (outcome != TicketRing::NextBatch::kLate) return true;
      may_map = !map_front();
      // A worker process that is about to fill the slot wakes no one.
      if (may_map) step = step < 0 ? between_looks : std::min(step, between_looks);
      between_looks = std::min(2 * between_looks, kLongestLook);
    }
    // Consumers in other processes may have died with slots.
    if (workers_->slots().served() != nullptr && step != 0) {
      ends().reap_dead();
      step = step < 0 ? kReapLook : std::min(step, kReapLook);
    }
    if (workers_->is_inline()) {
      outcome = look(0);
      if (outcome != TicketRing::NextBatch::kLate) return true;
      bool needs_slot = false;
      if (workers_->fill_inline(&needs_slot)) {
        if (!deadline.has_passed()) continue;  // each batch may be skipped
        step = 0;
      }
      // A slot may become free, or another consumer ends its fill.
      step = step < 0 ? kShortLook : std::min(step, kShortLook);
      if (needs_slot) {
        const int64_t start = now_ns();
        workers_->slots().await_free(step);
        workers_->queue().note_starved(now_ns() - start);
        step = 0;
      }
    }
    outcome = look(step);
    if (outcome != TicketRing::NextBatch::kLate) return true;
    if (watches_fill && give_up_hung(step != 0)) continue;
    if (timeout_ns == 0 || deadline.has_passed()) return false;
  }
}

Ref<Batch> Feed::batch_of(const TicketRing::Delivery& item) {
  Slots& slots = workers_->slots();
  const bool is_scarce =
      options_.on_starved == TENON_ON_STARVED_COPY && slots.lent() + 1 + workers_->count() > slots.count();
  if (!is_scarce) return Batch::make(*schema_, workers_->layout(), slots, item.ticket);
  copied_.fetch_add(1, std::memory_order_relaxed);
  return Batch::copy(*schema_, workers_->layout(), slots, item.ticket);
}

// What next() has found. False: the end of the epoch. Throws the failure of the generator.
bool Feed::has_batch(TicketRing::NextBatch outcome, const TicketRing::Delivery& item) {
  if (outcome == TicketRing::NextBatch::kStopped) throw_error(Code::kClosed, "the feed is closed");
  if (outcome == TicketRing::NextBatch::kFailure) throw_failure(item);
  return outcome == TicketRing::NextBatch::kBatch;
}

void Feed::throw_failure(const TicketRing::Delivery& item) {
  note_failure(item.ticket, *item.failure);
  throw Error(Code::kOp, failure_text(item.ticket, *item.failure, workers_->slots().control().head()),
              item.failure->code);
}

void Feed::note_failure(const Ticket& ticket, const TicketFailure& f) {
  const std::scoped_lock lock(failing_);
  failure_ = failure_record(ticket, f);
}

void Feed::note_delivery(const Batch& batch) noexcept {
  batches_.fetch_add(1, std::memory_order_relaxed);
  nbytes_.fetch_add(batch.nbytes(), std::memory_order_relaxed);
}

void Feed::check_consumer() const {
  check_process();
  if (workers_->is_called_by_worker()) {
    throw_error(Code::kValue, "a generator cannot take batches from the feed that it fills");
  }
  check_not_served();
}

bool Feed::await(int64_t timeout_ns) {
  check_consumer();
  if (const Ref<DeviceBatches> device = device_batches()) return await_on_device(*device, timeout_ns);
  TicketRing::NextBatch outcome{};
  return wait(timeout_ns, nullptr, outcome);
}

bool Feed::next(int64_t timeout_ns, Ref<Batch>& batch) {
  check_consumer();
  if (const Ref<DeviceBatches> device = device_batches()) return next_on_device(*device, timeout_ns, batch);
  TicketRing::Delivery item;
  TicketRing::NextBatch outcome{};
  if (!wait(timeout_ns, &item, outcome)) return false;
  if (!has_batch(outcome, item)) {
    batch = {};
    return true;
  }
  workers_->slots().mark(item.ticket.slot, trace::kRunning);
  try {
    batch = batch_of(item);
  } catch (...) {
    workers_->queue().end();
    throw;
  }
  note_delivery(*batch);
  return true;
}

tenon_feed_failure Feed::failure() {
  const std::scoped_lock lock(failing_);
  tenon_feed_failure copy = failure_;
  copy.struct_size = sizeof copy;
  return copy;
}

std::string Feed::waiting_text() {
  if (const Ref<DeviceBatches> device = device_batches()) {
    if (device->ring().lent() == device->ring().count()) return device->held_text();
  }
  const TicketRing::Snapshot now = workers_->queue().snapshot();
  if (!now.wanted) return "the batch has just become ready";
  std::string text =
      concat("no ", ticket_text(*now.wanted), " for ", seconds_text(now_ns() - now.waiting_since_ns), ": ");
  if (workers_->slots().lent() == workers_->slots().count()) return text + held_text(now.wanted->epoch);
  if (!now.longest) return text + "no worker has begun it";
  return concat(text, "generator '", workers_->generator_name(), "' has been busy with ",
                ticket_text(now.longest->ticket), " for ", seconds_text(now_ns() - now.longest->since_ns));
}

std::string Feed::held_text(uint64_t epoch) {
  const std::vector<TicketRing::SlotUse> uses = workers_->queue().uses();
  const int64_t now = now_ns();
  const std::vector<LentSlot> held = held_slots(workers_->slots(), uses);
  std::string text =
      concat("all ", workers_->slots().count(),
             " slots hold delivered batches. Let go of those that are done with, and of arrays and "
             "tensors made from them, and keep copies of fields (.copy())",
             (options_.flags & TENON_SHARED_SLOTS) != 0 ? "" : "; or use on_starved=\"copy\"",
             "; or slots=", held.size() + static_cast<size_t>(workers_->threads()) + 1,
             ", if no more are kept than now. Held, oldest first: ");
  for (size_t i = 0; i < std::min(held.size(), kListed); ++i) {
    const Ticket& ticket = held[i].use.ticket;
    text += concat(i > 0 ? ", " : "", ticket.index,
                   ticket.epoch != epoch ? concat(" of epoch ", ticket.epoch) : "", " (",
                   seconds_text(now - held[i].use.since_ns), ", ", views_text(held[i].views), ")");
  }
  if (held.size() > kListed) text += concat(" and ", held.size() - kListed, " more");
  return text;
}

void Feed::close(int64_t timeout_ns) {
  if (process_.is_child()) {
    (void)threads_.release();  // handles of threads that do not exist here can be neither joined nor detached
    return;
  }
  serve_end();
  const std::scoped_lock lock(closing_);
  workers_->dismiss();
  workers_->slots().drop_name();
  Ref<DeviceBatches> device;  // ends after staging_: it waits for its copies
  {
    const std::scoped_lock staging(staging_);
    ahead_.clear();
    device = std::move(device_);
    is_on_device_.store(false, std::memory_order_relaxed);
  }
  const bool is_filled_here = workers_->is_inline() && !workers_->is_called_by_worker();
  const auto wait_until_left = [&](int64_t ns) {
    if (is_filled_here) workers_->leave_inline(ns);  // once no other thread fills
    return workers_->wait_until_left(ns);
  };
  // On a busy machine, threads that have nothing to do may need longer than the caller would wait for a fill.
  const bool may_wait = workers_->are_started() || !workers_->is_called_by_worker();
  const bool have_left =
      may_wait && (wait_until_left(timeout_ns) || (!workers_->is_busy() && wait_until_left(kLeaveNs)));
  for (size_t i = 0; i < threads_->size(); ++i) {
    std::thread& thread = (*threads_)[i];
    if (!thread.joinable()) continue;
    have_left && !workers_->has_replaced(static_cast<int32_t>(i)) ? thread.join() : thread.detach();
  }
  threads_->clear();
  if (have_left) {
    workers_->end_processes();  // where threads that the generator has started are left
    return;
  }
  const TicketRing::Snapshot now = workers_->queue().snapshot();
  throw_error(Code::kTimeout, "the feed is closed, but generator '", workers_->generator_name(),
              "' has not returned",
              now.longest ? concat(" from ", ticket_text(now.longest->ticket), " for ",
                                   seconds_text(now_ns() - now.longest->since_ns))
                          : "",
              ": its thread is left behind");
}

void Feed::note_oldest(tenon_feed_statistics& s) {
  const std::vector<LentSlot> held = held_slots(workers_->slots(), workers_->queue().uses());
  if (held.empty()) return;
  s.oldest_epoch = held[0].use.ticket.epoch;
  s.oldest_index = held[0].use.ticket.index;
  s.oldest_ns = static_cast<uint64_t>(now_ns() - held[0].use.since_ns);
}

tenon_feed_statistics Feed::statistics() {
  const Slots& slots = workers_->slots();
  tenon_feed_statistics s{};
  s.struct_size = sizeof s;
  s.workers = workers_->threads();
  s.slots = slots.count();
  s.slot_nbytes = slots.slot_nbytes();
  s.memory = slots.data(0);
  s.memory_file = slots.file().fd();
  s.memory_at = slots.file() ? slots.file_at() : 0;
  s.batches = batches_.load(std::memory_order_relaxed);
  s.nbytes = nbytes_.load(std::memory_order_relaxed);
  s.copied = copied_.load(std::memory_order_relaxed);
  s.slots_held = slots.lent();
  workers_->put_counts(s);
  if (!process_.is_child()) {
    const TicketRing::Snapshot now = workers_->queue().snapshot();
    s.slots_filling = now.filling;
    s.slots_ready = now.ready;
    s.starved_ns = workers_->is_inline() ? s.fill_ns : now.starved_ns;
    s.skipped = now.skipped;
    if (WorkerProcesses* const processes = workers_->processes()) s.restarted = processes->restarts();
    note_oldest(s);
    const ServeCounts served = serve_counts();
    s.batches += served.batches;
    s.nbytes += served.nbytes;
    s.starved_ns += served.starved_ns;
    s.slots_held = std::max(s.slots_held, served.held);  // which counts what is lent here, too
  }
  if (const Ref<DeviceBatches> device = device_batches()) {
    s.device = device->device();
    s.device_slots = device->ring().count();
    s.device_slots_held = device->ring().lent();
    s.host_memory = static_cast<int32_t>(device->host_memory());
  } else {
    s.device = {TENON_CPU, 0};
  }
  s.slots_free = std::max(0, s.slots - s.slots_held - s.slots_ready - s.slots_filling);
  return s;
}

tenon_worker_statistics Feed::worker_statistics(int32_t worker) {
  tenon_worker_statistics s{};
  s.struct_size = sizeof s;
  s.worker = worker;
  if (worker < 0 || worker >= workers_->count()) return s;
  const FillTimes& times = workers_->times(worker);
  if (WorkerProcesses* const processes = workers_->processes(); processes != nullptr && !process_.is_child())
    s.pid = processes->pid(worker);
  s.fills = times.count();
  s.fill_ns = times.sum_ns();
  s.fill_p50_ns = times.quantile_ns(0.5);
  s.fill_p99_ns = times.quantile_ns(0.99);
  s.failures = times.failures();
  return s;
}

}  // namespace tenon::impl
