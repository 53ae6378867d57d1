// SPDX-License-Identifier: Apache-2.0
#include "feed/feed.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/error.h"

namespace tenon {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// How many batches a message lists.
constexpr size_t kListed = 5;

std::string seconds_text(int64_t ns) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f s", static_cast<double>(ns) / kSecond);
  return buffer;
}

std::string ticket_text(const Ticket& ticket) {
  return concat("batch ", ticket.index, " of epoch ", ticket.epoch);
}

std::string views_text(tenon_view_count views) {
  const uint32_t count = views.readers + views.writers;
  if (count == 0) return "no open view";
  return concat(count, views.writers > 0 ? " writable" : " read-only", count == 1 ? " view" : " views");
}

int32_t checked_workers(const tenon_generator& generator, const tenon_feed_options& options) {
  if (generator.fill == nullptr) throw_error(Code::kValue, "feed: the generator has no fill function");
  if (options.workers < 1)
    throw_error(Code::kValue, "feed: workers is ", options.workers, ", at least 1 is needed");
  if (options.slots <= options.workers) {
    throw_error(Code::kValue, "feed: ", options.slots, " slots are too few for ", options.workers,
                " workers: at least ", int64_t{options.workers} + 1,
                " are needed, one for each worker and one for the consumer");
  }
  if (options.batches < -1) {
    throw_error(Code::kValue, "feed: batches is ", options.batches, "; it is a count, or -1 for no end");
  }
  return (generator.flags & TENON_THREADSAFE) != 0 ? options.workers : 1;
}

void work(Ref<Crew> crew, int32_t worker) {
  pthread_setname_np(pthread_self(), concat("tenon-feed-", worker).substr(0, 15).c_str());
  crew->work(worker);
}

}  // namespace

Feed::Feed(const tenon_generator& generator, Ref<Schema> schema, const tenon_feed_options& options)
    : schema_(std::move(schema)),
      crew_(Crew::make(generator, schema_, checked_workers(generator, options), options.slots,
                       options.batches, options.seed)),
      threads_(std::make_unique<std::vector<std::thread>>()) {
  start_workers();
  crew_->take_over_generator();
}

void Feed::start_workers() {
  const int32_t count = crew_->workers();
  threads_->reserve(static_cast<size_t>(count));
  const BlockedSignals blocked;
  crew_->expect(count);
  try {
    for (int32_t worker = 0; worker < count; ++worker) threads_->emplace_back(work, crew_, worker);
  } catch (const std::system_error& e) {
    crew_->dismiss();
    for (std::thread& thread : *threads_) thread.join();
    throw_error(Code::kSystem, "feed: cannot start worker ", threads_->size() + 1, " of ", count, ": ",
                e.what());
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
  crew_->queue().begin();
}

void Feed::end() {
  if (!process_.is_child()) crew_->queue().end();
}

bool Feed::next(int64_t timeout_ns, Ref<Batch>& batch) {
  check_process();
  if (crew_->is_called_by_worker()) {
    throw_error(Code::kValue, "a generator cannot take batches from the feed that it fills");
  }
  TicketQueue::Item item;
  switch (crew_->queue().next(timeout_ns, item)) {
    case TicketQueue::Outcome::kLate: return false;
    case TicketQueue::Outcome::kStopped: throw_error(Code::kClosed, "the feed is closed");
    case TicketQueue::Outcome::kFailure: throw Error(Code::kOp, failure_text(item), item.code);
    case TicketQueue::Outcome::kEnd: batch = {}; return true;
    case TicketQueue::Outcome::kBatch: break;
  }
  try {
    batch = Batch::make(*schema_, crew_->slots(), item.slot, item.ticket);
  } catch (...) {
    crew_->queue().end();
    throw;
  }
  batches_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::string Feed::failure_text(const TicketQueue::Item& item) const {
  return concat("generator '", crew_->generator_name(), "' returned ", item.code, " at ",
                ticket_text(item.ticket), item.message.empty() ? "" : ": ", item.message);
}

std::string Feed::waiting_text() {
  const TicketQueue::Snapshot now = crew_->queue().snapshot();
  if (!now.wanted) return "the batch has just become ready";
  std::string text =
      concat("no ", ticket_text(*now.wanted), " for ", seconds_text(now_ns() - now.waiting_since_ns), ": ");
  if (crew_->slots().lent() == crew_->slots().count()) return text + held_text(now.wanted->epoch);
  if (!now.longest) return text + "no worker has begun it";
  return concat(text, "generator '", crew_->generator_name(), "' has been busy with ",
                ticket_text(now.longest->ticket), " for ", seconds_text(now_ns() - now.longest->since_ns));
}

std::string Feed::held_text(uint64_t epoch) {
  const std::vector<TicketQueue::Delivery> deliveries = crew_->queue().deliveries();
  const int64_t now = now_ns();
  struct Held {
    TicketQueue::Delivery delivery;
    tenon_view_count views;
  };
  std::vector<Held> held;
  for (int32_t slot = 0; slot < crew_->slots().count(); ++slot) {
    const Ref<Storage> storage = Storage::find(crew_->slots().data(slot), 1, Access::kWrite);
    if (storage) held.push_back({deliveries[static_cast<size_t>(slot)], storage->region().views()});
  }
  std::ranges::sort(held, {}, [](const Held& h) { return h.delivery.at_ns; });
  std::string text =
      concat("all ", crew_->slots().count(),
             " slots hold delivered batches. Let go of those that are done with, and of arrays and "
             "tensors made from them, or use slots=",
             held.size() + static_cast<size_t>(crew_->workers()) + 1, ". Held, oldest first: ");
  for (size_t i = 0; i < std::min(held.size(), kListed); ++i) {
    const Ticket& ticket = held[i].delivery.ticket;
    text += concat(i > 0 ? ", " : "", ticket.index,
                   ticket.epoch != epoch ? concat(" of epoch ", ticket.epoch) : "", " (",
                   seconds_text(now - held[i].delivery.at_ns), ", ", views_text(held[i].views), ")");
  }
  if (held.size() > kListed) text += concat(" and ", held.size() - kListed, " more");
  return text;
}

void Feed::close(int64_t timeout_ns) {
  if (process_.is_child()) {
    (void)threads_.release();  // handles of threads that do not exist here can be neither joined nor detached
    return;
  }
  const std::scoped_lock lock(closing_);
  crew_->dismiss();
  const bool have_left = !crew_->is_called_by_worker() && crew_->wait_until_left(timeout_ns);
  for (std::thread& thread : *threads_) have_left ? thread.join() : thread.detach();
  threads_->clear();
  if (have_left) return;
  const TicketQueue::Snapshot now = crew_->queue().snapshot();
  throw_error(Code::kTimeout, "the feed is closed, but generator '", crew_->generator_name(),
              "' has not returned",
              now.longest ? concat(" from ", ticket_text(now.longest->ticket), " for ",
                                   seconds_text(now_ns() - now.longest->since_ns))
                          : "",
              ": its thread is left behind");
}

tenon_feed_statistics Feed::statistics() {
  const Slots& slots = crew_->slots();
  tenon_feed_statistics s{};
  s.struct_size = sizeof s;
  s.workers = crew_->workers();
  s.slots = slots.count();
  s.slot_nbytes = slots.slot_nbytes();
  s.memory = slots.data(0);
  s.batches = batches_.load(std::memory_order_relaxed);
  s.nbytes = s.batches * schema_->nbytes();
  s.slots_held = slots.lent();
  if (!process_.is_child()) {
    const TicketQueue::Snapshot now = crew_->queue().snapshot();
    s.slots_filling = now.filling;
    s.slots_ready = now.ready;
    s.fill_ns = now.fill_ns;
    s.starved_ns = now.starved_ns;
    s.blocked_ns = crew_->blocked_ns();
  }
  s.slots_free = std::max(0, s.slots - s.slots_held - s.slots_ready - s.slots_filling);
  return s;
}

}  // namespace tenon
