// SPDX-License-Identifier: Apache-2.0
#include "data/workers.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "data/generator_call.h"
#include "data/request_ring.h"
#include "data/seed.h"
#include "sync/actor.h"

namespace tenon::impl {
namespace {

// How many times as many slots there may be as at first.
constexpr int32_t kMostGrowth = 16;

constexpr uint64_t kStateNbytes = 64 << 10;

constexpr char kWayOut[] = "with processes=True a worker that takes too long is killed";

// How long a worker process may take to end by itself.
constexpr int64_t kGraceNs = 400'000'000;

thread_local const Workers* working_for = nullptr;

std::atomic<uint32_t> feeds{0};

Order order_of(const tenon_feed_options& options) {
  const Order order(options.batches < 0 ? Order::kNoEnd : static_cast<uint64_t>(options.batches),
                    static_cast<uint64_t>(options.rank),
                    static_cast<uint64_t>(std::max(options.world_size, 1)));
  if ((options.flags & TENON_SHUFFLE) == 0) return order;
  if (options.batches < 0) throw_error(Code::kValue, "a feed that is shuffled needs batches >= 0");
  return order.shuffled(options.seed);
}

uint64_t state_nbytes_of(const tenon_generator& generator, const tenon_feed_options& options) {
  if ((generator.flags & TENON_HAS_STATE) == 0) return 0;
  return options.state_nbytes == 0 ? kStateNbytes : options.state_nbytes;
}

// With states, worker i fills each batch whose number modulo workers is i: it continues from its own last
// batch.
bool goes_round(const tenon_generator& generator, const tenon_feed_options& options) {
  return (options.flags & TENON_ROUND_ROBIN) != 0 || (generator.flags & TENON_HAS_STATE) != 0;
}

bool wants_processes(const tenon_feed_options& options) { return (options.flags & TENON_PROCESSES) != 0; }

// A generator that is not thread-safe is called by one thread, and has a copy in each process.
int32_t workers_of(const tenon_generator& generator, const tenon_feed_options& options) {
  const bool may_be_many = wants_processes(options) || (generator.flags & TENON_THREADSAFE) != 0;
  return may_be_many ? std::max(options.workers, 1) : 1;
}

int32_t most_abandoned(const tenon_feed_options& options) {
  return options.fill_timeout_ns > 0 ? kMostAbandoned : 0;
}

// worker: -1, it is not known.
TicketFailure hung(int32_t worker, const char* message) noexcept {
  TicketFailure failure;
  failure.kind = TENON_HUNG;
  failure.code = -1;
  failure.worker = worker;
  failure.set_message(message);
  return failure;
}

Ref<Slots> slots_for(const Schema& schema, const SlotLayout& layout, int32_t workers,
                     const tenon_feed_options& options) {
  SlotsPlan plan;
  plan.count = options.slots;
  plan.slot_nbytes = layout.slot_nbytes;
  if (options.on_starved == TENON_ON_STARVED_GROW) {
    plan.most = options.slots > INT32_MAX / kMostGrowth ? INT32_MAX : options.slots * kMostGrowth;
  }
  if (wants_processes(options)) {
    plan.is_shared = true;
    plan.control_nbytes =
        control_nbytes(schema.fields().size(), static_cast<size_t>(workers + most_abandoned(options)));
  }
  if ((options.flags & TENON_SHARED_SLOTS) != 0) plan.is_shared = true;
  plan.spares = most_abandoned(options) * static_cast<int32_t>(kRingEntries);
  plan.is_sparse = (options.flags & TENON_SPARSE_SLOTS) != 0;
  return Slots::create(plan);
}

}  // namespace

Ref<Workers> Workers::make(const tenon_generator& generator, Ref<Schema> schema,
                           const tenon_feed_options& options) {
  return Ref<Workers>::adopt(new Workers(generator, std::move(schema), options));
}

Workers::Workers(const tenon_generator& generator, Ref<Schema> schema, const tenon_feed_options& options)
    : generator_(generator),
      name_(generator.name != nullptr ? generator.name : "generator"),
      number_(feeds.fetch_add(1, std::memory_order_relaxed) + 1),
      schema_(std::move(schema)),
      options_(options),
      layout_(SlotLayout::of(*schema_, options.attachment_nbytes, state_nbytes_of(generator, options))),
      slots_(slots_for(*schema_, layout_, workers_of(generator, options), options)),
      count_(workers_of(generator, options)),
      queue_(slots_, order_of(options), goes_round(generator, options) ? count_ : 0, number_),
      times_(static_cast<size_t>(count_)),
      known_(static_cast<size_t>(count_)),
      loops_(static_cast<size_t>(count_ + most_abandoned(options))) {
  for (int32_t i = 0; i < loops(); ++i) {
    FillLoop& loop = loops_[static_cast<size_t>(i)];
    loop.number = loop.worker = i;
    loop.fields.resize(schema_->fields().size());
    loop.shapes.resize(schema_->fields().size());
    if (i < count_) loop.since_ns = kIdle;
  }
  if (wants_processes(options)) processes_.emplace(generator, *schema_, layout_, slots_, count_, loops());
}

void Workers::take_over_generator() noexcept {
  const std::scoped_lock lock(mutex_);
  owns_generator_ = true;
}

// job: null where there is none yet. The key is this object's.
trace::Span Workers::begin_span(trace::SpanKind kind, int32_t worker, const Job* job) const noexcept {
  return trace::open(kind, trace::key_of(this), [&](trace::Record& record) {
    record.group = number_;
    record.worker = worker;
    trace::copy_end(record.name, name_.c_str());
    if (job == nullptr) return;
    record.slot = job->slot;
    record.epoch = job->epoch;
    record.index = job->index;
  });
}

// Of a worker process: the fill that it has answered.
void Workers::note_fill(int32_t worker, const Job& job, const FillResult& result) const noexcept {
  const trace::Span span = begin_span(trace::SpanKind::kFill, worker, &job);
  trace::change(span, trace::key_of(this), [&](trace::Record& record) {
    record.at_ns[trace::kBegun] = result.began_ns;
    record.at_ns[trace::kEnded] = result.began_ns + static_cast<int64_t>(result.fill_ns);
    record.pid = static_cast<int32_t>(result.pid);
    record.outcome = is_failure(result) ? trace::SpanOutcome::kFailed : trace::SpanOutcome::kDone;
    trace::SpanText(record.note) << trace::last_line_of(result.message);
  });
}

int32_t Workers::take_slot(const FillLoop& loop, SpinBudget& short_wait) noexcept {
  const uint32_t holder = holder_of(loop);
  int32_t slot = slots_->try_take(holder);
  if (slot != Slots::kNone) return slot;
  const trace::Span span = begin_span(trace::SpanKind::kBlocked, loop.worker, nullptr);
  const int64_t start = now_ns();
  const bool is_consumers = queue_.has_ready();
  const bool is_found = SpinBudget::poll(short_wait.budget_ns(), [&] {
    slot = slots_->try_take(holder);
    return slot != Slots::kNone;
  });
  if (!is_found) slot = slots_->take(holder);
  const int64_t waited = now_ns() - start;
  trace::close(span, trace::key_of(this), trace::SpanOutcome::kDone);
  short_wait.note(waited);
  blocked_ns_.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
  if (is_consumers)
    blocked_by_consumer_ns_.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
  return slot;
}

tenon_fill_request Workers::fill_request(const Job& job, FillLoop& loop) {
  std::byte* const slot = slots_->data(job.slot);
  int64_t* shape = layout_.shapes(slot);
  for (size_t i = 0; i < loop.fields.size(); ++i) {
    loop.fields[i] = slot + schema_->fields()[i].offset;
    loop.shapes[i] = shape;
    shape += schema_->fields()[i].shape.size();
  }
  tenon_fill_request request = fill_request_of(job, layout_, slot, loop.fields.data(), loop.shapes.data());
  request.worker = loop.worker;
  request.rows = schema_->rows();
  return request;
}

// False: the batch is settled already.
bool Workers::prepare(FillLoop& loop, Job& job) {
  const tenon_fill_request request = fill_request(job, loop);
  char message[kMessageSize] = "";
  const auto fail = [&](int32_t code) {
    FillResult result;
    result.code = code;
    result.message = message;
    settle(-1, job, result);
  };
  // A binding of a language may prepare.
  const bool may_end = std::exchange(this_thread.may_end, false);
  const int32_t code = call_checked(
      message, sizeof message,
      [&] { return generator_.prepare(generator_.context, &request, message, sizeof message); },
      [&] {
        std::snprintf(message, sizeof message, "%s", kEndedThread);
        fail(-1);
        preparing_.unlock();
        go_on_elsewhere(loop);
      });
  this_thread.may_end = may_end;
  if (code != 0) {
    fail(code);
    return false;
  }
  if (options_.on_error == TENON_ON_ERROR_RETRY || options_.fill_timeout_ns > 0) {
    const std::byte* const bytes = layout_.attachment(slots_->data(job.slot));
    job.attachment.assign(
        bytes, bytes + std::min(layout_.attached(slots_->data(job.slot)), layout_.attachment_nbytes));
  }
  return true;
}

// False: there is none, for this reason.
bool Workers::take_memory(int32_t slot, std::string& reason) noexcept {
  try {
    slots_->take_memory(slot);
    return true;
  } catch (const std::exception& e) {
    reason = e.what();
  }
  return false;
}

Workers::JobTake Workers::take_job(FillLoop& loop, bool may_wait, SpinBudget& short_wait, Job& job) {
  const int32_t worker = loop.worker;
  while (true) {
    // Before it is its turn, a worker takes neither a slot nor the mutex of prepare.
    const TicketRing::TicketTake turn = queue_.await_turn(worker, may_wait);
    if (turn == TicketRing::TicketTake::kStopped) return JobTake::kOver;
    if (turn == TicketRing::TicketTake::kNone) return JobTake::kNone;
    job.slot = may_wait ? take_slot(loop, short_wait) : slots_->try_take(holder_of(loop));
    if (job.slot == Slots::kOver) return JobTake::kOver;
    if (job.slot == Slots::kNone) return JobTake::kNone;
    std::string reason;
    const bool has_memory = take_memory(job.slot, reason);
    std::unique_lock preparing(preparing_, std::defer_lock);
    if (generator_.prepare != nullptr) {
      if (may_wait) preparing.lock();
      if (!may_wait && !preparing.try_lock()) {
        slots_->give(job.slot);
        return JobTake::kNone;
      }
    }
    const TicketRing::TicketTake taken = queue_.take(worker, job);
    if (taken != TicketRing::TicketTake::kTicket) {
      slots_->give(job.slot);
      if (taken == TicketRing::TicketTake::kStopped) return JobTake::kOver;
      if (may_wait) continue;  // another worker has taken the last one, or the epoch has ended
      return JobTake::kNone;
    }
    job.seed = batch_seed(options_.seed, job.epoch, job.index);
    job.epoch_seed = epoch_seed(options_.seed, job.epoch);
    job.retries = 0;
    job.restored.reset();
    if (has_state()) {
      // Fills behind the last delivered batch are undone.
      std::optional<StateRef> first = queue_.first_state(job, worker);
      if (first && *first != known_[static_cast<size_t>(worker)].last) job.restore(std::move(*first));
    }
    slots_->begin_span(job.slot, number_, job.epoch, job.index);
    if (!has_memory && !take_memory(job.slot, reason)) {  // there may be some by now
      TicketFailure failure;
      failure.code = TENON_ERR_NO_MEMORY;
      failure.was_begun = false;
      failure.set_message(reason.c_str());
      queue_.fail(job, failure);
      continue;
    }
    reset_slot(layout_, *schema_, slots_->data(job.slot));
    if (generator_.prepare == nullptr || prepare(loop, job)) return JobTake::kJob;
  }
}

bool Workers::is_failure(const FillResult& result) const noexcept {
  return result.code != 0 && result.code != TENON_NO_BATCH && result.code != TENON_END_OF_EPOCH;
}

// Notes the state after a fill. True: the batch is to be filled again.
bool Workers::is_retried(const FillLoop& loop, Job& job, const FillResult& result) {
  const bool is_again = is_failure(result) && options_.on_error == TENON_ON_ERROR_RETRY &&
                        job.retries < options_.retries && !queue_.is_past(job);
  if (has_state()) note_state(loop.worker, job, result, is_again);
  return is_again;
}

void Workers::retry(Job& job) noexcept {
  retried_.fetch_add(1, std::memory_order_relaxed);
  put_back(job);
  ++job.retries;
}

// Gives the slot the content from before the fill.
void Workers::put_back(const Job& job) noexcept {
  std::byte* const slot = slots_->data(job.slot);
  reset_slot(layout_, *schema_, slot);
  if (job.attachment.empty()) return;
  std::memcpy(layout_.attachment(slot), job.attachment.data(), job.attachment.size());
  layout_.attached(slot) = job.attachment.size();
}

void Workers::note_unwritten(FillResult& result) noexcept {
  if (result.code != TENON_UNWRITTEN) return;
  result.code = 0;
  const bool is_first = unwritten_.fetch_add(1, std::memory_order_relaxed) == 0;
  std::string text = std::exchange(result.message, {});
  if (is_first && !text.empty()) reports_.add(std::move(text));
}

void Workers::check_shapes(const Job& job, FillResult& result) const {
  if (result.code != 0) return;
  std::byte* const slot = slots_->data(job.slot);
  const SchemaField* const wrong = find_wrong_shape(layout_, *schema_, slot);
  if (wrong != nullptr) {
    result.code = -1;
    result.message =
        concat("it left field '", wrong->name, "' in a shape that does not fit into ",
               shape_text(wrong->shape), ", or with another number of rows than the first field");
  } else if (layout_.attached(slot) > layout_.attachment_nbytes) {
    result.code = -1;
    result.message = concat("it attached ", layout_.attached(slot), " bytes where there is room for ",
                            layout_.attachment_nbytes);
  }
}

// Skips a batch that failed, and reports some. False: it is not to be skipped.
bool Workers::skip(const Job& job, const FillResult& result) noexcept {
  if (options_.on_error != TENON_ON_ERROR_SKIP || !skips_.note_failure()) return false;
  queue_.skip(job, result.report);
  const uint64_t count = skips_.note_skip();
  if (count == 0) return true;
  try {
    const std::string_view last = trace::last_line_of(result.message);
    reports_.add(concat("generator '", name_, "' has failed at ", count,
                        " batches, which were skipped; the last one was ", ticket_text(job), ": ",
                        last.empty() ? failed_text(result.code, "") : last));
  } catch (const std::exception&) {  // no memory for the text
  }
  return true;
}

// worker: -1, it has not come to any.
void Workers::settle(int32_t worker, const Job& job, const FillResult& result) noexcept {
  if (worker >= 0 && is_failure(result)) times_[static_cast<size_t>(worker)].note_failure();
  if (result.code == 0) {
    skips_.note_batch();
    times_[static_cast<size_t>(worker)].note(result.fill_ns);
    slots_->mark(job.slot, trace::kReady);
    queue_.publish(job, result.report);
  } else if (result.code == TENON_END_OF_EPOCH) {
    queue_.finish(job, result.report);
  } else if (result.code == TENON_NO_BATCH) {
    queue_.skip(job, result.report);
  } else if (!skip(job, result)) {
    TicketFailure failure;
    failure.kind = result.kind;
    failure.code = result.code;
    failure.worker = worker;
    failure.pid = result.pid;
    failure.exit_signal = result.exit_signal;
    failure.exit_code = result.exit_code;
    const bool is_limit = options_.on_error == TENON_ON_ERROR_SKIP;
    failure.set_message((is_limit ? Skips::limit_text() : "").append(result.message).c_str());
    queue_.fail(job, failure, result.report);
  }
}

void Workers::fill_here(FillLoop& loop, const Job& job, FillResult& result) {
  if (std::exchange(loop.has_ended, false)) {
    result.code = -1;
    result.message = kEndedThread;
    return read_report(job, result);
  }
  const tenon_fill_request request = fill_request(job, loop);
  char message[kMessageSize];
  message[0] = '\0';
  const trace::Span span = begin_span(trace::SpanKind::kFill, loop.worker, &job);
  const int64_t start = now_ns();
  result.code = call_checked(
      message, sizeof message,
      [&] { return generator_.fill(generator_.context, &request, message, sizeof message); },
      [&] {
        trace::close(span, trace::key_of(this), trace::SpanOutcome::kFailed, kEndedThread);
        loop.has_ended = true;
        go_on_elsewhere(loop);
      });
  result.fill_ns = static_cast<uint64_t>(now_ns() - start);
  if (result.code != 0) result.message = message;
  note_unwritten(result);
  check_shapes(job, result);
  read_report(job, result);
  trace::close(span, trace::key_of(this),
               is_failure(result) ? trace::SpanOutcome::kFailed : trace::SpanOutcome::kDone, result.message);
}

void Workers::begin_fill(FillLoop& loop, Job& job) noexcept {
  if (has_state()) put_state(loop.worker, job);
  if (!processes_) return;
  processes_->ask(loop.number, job);
}

void Workers::put_state(int32_t worker, Job& job) noexcept {
  KnownState& known = known_[static_cast<size_t>(worker)];
  if (known.is_lost && !job.restored) job.restore(known.last);
  known.is_lost = false;
  if (job.restored && *job.restored) {
    std::memcpy(layout_.state(slots_->data(job.slot)), (*job.restored)->data(), (*job.restored)->size());
  }
}

void Workers::read_report(const Job& job, FillResult& result) const {
  std::byte* const slot = slots_->data(job.slot);
  result.report.ignored_index = result.code == 0 && (layout_.notes(slot) & TENON_IGNORED_INDEX) != 0;
  if (!has_state()) return;
  const uint64_t nbytes = layout_.stated(slot);
  if (nbytes <= layout_.state_nbytes) {
    const std::byte* const state = layout_.state(slot);
    result.report.state = std::make_shared<const std::vector<std::byte>>(state, state + nbytes);
  } else if (result.code == 0) {
    result.code = -1;
    result.message =
        nbytes == SlotLayout::kNoState
            ? "it left no state"
            : concat("its state has ", nbytes, " bytes, and state_nbytes is ", layout_.state_nbytes);
  }
}

void Workers::note_state(int32_t worker, Job& job, const FillResult& result, bool is_again) {
  KnownState& known = known_[static_cast<size_t>(worker)];
  if (is_again) {
    if (!job.restored) job.restore(known.last);
  } else if (result.report.state) {
    known.last = result.report.state;
  } else if (result.code != TENON_END_OF_EPOCH) {  // which the worker's end of the ring can say alone
    if (job.restored) known.last = *job.restored;
    known.is_lost = true;
  }
}

// Of the fill that was begun first. False: the feed ends.
bool Workers::end_fill(FillLoop& loop, const Job& job, FillResult& result) {
  if (!processes_) {
    fill_here(loop, job, result);
    return true;
  }
  if (!processes_->await(loop.number, job.slot, options_.fill_timeout_ns, result)) return false;
  note_unwritten(result);
  check_shapes(job, result);
  if (result.kind == TENON_FAILED)
    read_report(job, result);  // a process that has ended may have begun to write
  if (trace::is_on()) note_fill(loop.worker, job, result);
  return true;
}

void Workers::fill_batches(FillLoop& loop) {
  // Fills that have begun. One, if the next one depends on what becomes of it.
  const uint32_t most = processes_ && !has_state() ? kRingEntries : 1;
  SpinBudget short_wait;
  std::array<Job, kRingEntries>& jobs = loop.jobs;
  uint32_t &begun = loop.begun, &settled = loop.settled;
  bool is_over = false;
  while (true) {
    // Only one before the first one ends: else the first batch would wait for the memory of a second slot.
    while (!is_over && begun - settled < (settled == 0 ? 1 : most)) {
      Job& job = jobs[begun % kRingEntries];
      const JobTake taken = take_job(loop, begun == settled, short_wait, job);
      is_over = taken == JobTake::kOver;
      if (taken != JobTake::kJob) break;
      begin_fill(loop, job);
      ++begun;
    }
    if (begun == settled) return;
    Job& job = jobs[settled % kRingEntries];
    FillResult result;
    // pairs with: Workers::abandon, "what a loop is busy with"
    if (options_.fill_timeout_ns > 0 && !loop.has_ended)
      loop.since_ns.store(now_ns(), std::memory_order_release);
    const bool has_ended = end_fill(loop, job, result);
    // pairs with: Workers::abandon, "what a loop is busy with"
    if (loop.since_ns.exchange(kIdle, std::memory_order_acq_rel) == kAbandoned) return return_late(loop);
    if (!has_ended) break;
    const bool is_again = is_retried(loop, job, result);
    if (processes_ && !processes_->is_thread(loop.number) && (result.kind != TENON_FAILED || is_again)) {
      processes_->stop(loop.number);
      // The other fills that it had begun begin again.
      for (uint32_t n = settled + 1; n != begun; ++n) {
        if (static_cast<int32_t>(n - processes_->answered(loop.number)) >= 0)
          put_back(jobs[n % kRingEntries]);
      }
      known_[static_cast<size_t>(loop.worker)].is_lost = true;
      const std::string failure = processes_->start(loop.number);
      if (!failure.empty() && result.message.empty()) result.message = failure;
    }
    ++settled;
    if (!is_again) {
      settle(loop.worker, job, result);
      continue;
    }
    retry(job);
    // Behind those that have begun meanwhile.
    Job& again = jobs[begun % kRingEntries];
    if (&again != &job) again = std::move(job);
    begin_fill(loop, again);
    ++begun;
  }
  for (; settled != begun; ++settled) slots_->give(jobs[settled % kRingEntries].slot);
}

// An abandoned loop: its worker goes on in another one.
void Workers::return_late(FillLoop& loop) noexcept {
  const bool has_left = !processes_ || processes_->await_left(loop.number);
  for (uint32_t n = loop.settled; n != loop.begun; ++n) slots_->give_spare(loop.jobs[n % kRingEntries].slot);
  if (!has_left) return;  // the feed ends, and the loop stays its thread's
  if (processes_) processes_->free(loop.number);
  // pairs with: Workers::abandon, "a free loop"
  loop.since_ns.store(kFree, std::memory_order_release);
}

// Whether the generator may be called while another call hangs. It may if it starts threads itself or is
// thread-safe, unless it has a state, which the call that hangs may change.
bool Workers::may_replace() const noexcept {
  if (has_state()) return false;
  return processes_ ? processes_->are_threads() : (generator_.flags & TENON_THREADSAFE) != 0;
}

bool Workers::give_up_hung(const std::function<void(int32_t abandoned, int32_t other)>& replace) {
  bool has_given_up = false, is_any_at_work = false, is_any_stuck = !lost_.empty();
  for (FillLoop& loop : loops_) {
    // pairs with: Workers::fill_batches, "what a loop is busy with"
    const int64_t since = loop.since_ns.load(std::memory_order_acquire);
    if (since < kIdle) continue;
    if (since == kIdle || now_ns() - since < options_.fill_timeout_ns) {
      is_any_at_work = true;
    } else if (may_replace() && abandon(loop, since, replace)) {
      has_given_up = is_any_at_work = true;
    } else {
      is_any_stuck = true;
    }
  }
  return has_given_up || (is_any_stuck && give_up_stuck(is_any_at_work));
}

// False: there is no loop or slot for another thread, or none can be started.
bool Workers::abandon(FillLoop& loop, int64_t since_ns,
                      const std::function<void(int32_t abandoned, int32_t other)>& replace) {
  const auto other = std::ranges::find_if(loops_, [](const FillLoop& l) {
    // pairs with: Workers::return_late, "a free loop"
    return l.since_ns.load(std::memory_order_acquire) == kFree;
  });
  if (other == loops_.end()) return false;
  std::array<int32_t, kRingEntries> spares;
  spares.fill(Slots::kNone);
  const auto give_back = [&] {
    for (const int32_t slot : spares) {
      if (slot != Slots::kNone) slots_->give_spare(slot);
    }
  };
  try {
    for (int32_t& slot : spares) slot = slots_->take_spare();
  } catch (const Error&) {  // no memory
  }
  if (spares.back() == Slots::kNone) {
    give_back();
    return false;
  }
  {
    const std::scoped_lock lock(mutex_);
    ++running_;  // before the loop can end
  }
  // pairs with: Workers::fill_batches, "what a loop is busy with"
  if (!loop.since_ns.compare_exchange_strong(since_ns, kAbandoned, std::memory_order_acq_rel)) {
    give_back();
    leave();
    return true;
  }
  if (processes_) {
    processes_->abandon(loop.number);
    processes_->renew(other->number, loop.worker);
  }
  hand_over(loop, *other, spares.data());
  give_back();
  abandoned_.fetch_add(1, std::memory_order_relaxed);
  report(loop, since_ns);
  other->since_ns.store(kIdle, std::memory_order_relaxed);
  try {
    replace(loop.number, other->number);
  } catch (const std::exception& e) {  // of the system, or std::bad_alloc
    lose(*other, e.what());
  }
  return true;
}

// Its thread cannot be started.
void Workers::lose(FillLoop& loop, const char* reason) noexcept {
  const TicketFailure failure = hung(loop.worker, reason);
  for (; loop.settled != loop.begun; ++loop.settled) {
    const Job& job = loop.jobs[loop.settled % kRingEntries];
    queue_.fail(job, failure);
  }
  if (processes_) processes_->free(loop.number);
  loop.since_ns.store(kFree, std::memory_order_relaxed);
  lost_ = reason;
  leave();
}

// Moves the jobs of an abandoned loop to one whose thread does not run yet.
void Workers::hand_over(FillLoop& loop, FillLoop& other, int32_t* spares) noexcept {
  other.is_second = true;
  other.is_replaced = false;
  other.worker = loop.worker;
  other.begun = other.settled = 0;
  times_[static_cast<size_t>(loop.worker)].note_failure();
  for (uint32_t n = loop.settled; n != loop.begun; ++n) {
    Job& old = loop.jobs[n % kRingEntries];  // whose slot the loop reads when it returns
    Job job{old, old.retries, std::move(old.attachment), {}};
    job.flags &= TENON_RESUMED;  // nothing is restored
    job.restore_nbytes = 0;
    job.slot = std::exchange(*spares++, Slots::kNone);
    if (!queue_.abandon(old, job, holder_of(other))) {
      slots_->give(job.slot);
      continue;
    }
    slots_->begin_span(job.slot, number_, job.epoch, job.index);
    if (n == loop.settled) {  // the one that hangs
      const bool is_again = options_.on_error == TENON_ON_ERROR_RETRY && job.retries < options_.retries;
      if (!is_again) {
        options_.on_error == TENON_ON_ERROR_SKIP
            ? queue_.skip(job)
            : queue_.fail(job, hung(loop.worker, "its thread is left behind"));
        continue;
      }
      ++job.retries;
      retried_.fetch_add(1, std::memory_order_relaxed);
    }
    put_back(job);
    other.jobs[other.begun++ % kRingEntries] = std::move(job);
  }
}

// A fill has taken too long in a thread that cannot be replaced.
bool Workers::give_up_stuck(bool is_any_at_work) {
  const std::string reason =
      !lost_.empty()  ? concat("no thread can be started in place of one that is left behind: ", lost_)
      : may_replace() ? concat("as many of its threads are left behind as may be (", kMostAbandoned,
                               "), or there is no memory for another slot")
                      : concat(has_state() ? "it has a state" : "it is not thread-safe",
                               ", so it is not called again before it returns");
  TicketFailure failure = hung(-1, concat(reason, "; ", kWayOut).c_str());
  if (queue_.give_up(options_.fill_timeout_ns, options_.on_error == TENON_ON_ERROR_SKIP, failure))
    return true;
  if (is_any_at_work) return false;
  failure.was_begun = false;
  return queue_.fail_wanted(failure);
}

void Workers::report(const FillLoop& loop, int64_t since_ns) noexcept try {
  const Ticket& ticket = loop.jobs[loop.settled % kRingEntries];
  const uint32_t thread =
      processes_ ? processes_->thread(loop.number) : loop.thread.load(std::memory_order_relaxed);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", static_cast<double>(now_ns() - since_ns) * 1e-9);
  reports_.add(concat("generator '", name_, "' has not returned from ", ticket_text(ticket), " for ", seconds,
                      ": its thread ", thread, " (worker ", loop.worker,
                      ") is left behind with its slot, and the worker goes on in another thread"));
} catch (const std::exception&) {  // no memory: abandoned_ counts it
}

void Workers::work(int32_t number) noexcept {
  pthread_setname_np(pthread_self(), concat("tenon-feed-", number).substr(0, 15).c_str());
  this_thread.may_end = true;
  working_for = this;
  FillLoop& loop = loops_[static_cast<size_t>(number)];
  loop.thread.store(static_cast<uint32_t>(syscall(SYS_gettid)), std::memory_order_relaxed);
  try {
    if (std::exchange(loop.is_second, false)) {
      // If it cannot be started, its first batch fails.
      if (processes_) (void)processes_->start(number);
      for (uint32_t n = loop.settled; n != loop.begun; ++n) begin_fill(loop, loop.jobs[n % kRingEntries]);
    }
    fill_batches(loop);
  } catch (const std::exception&) {
    queue_.stop();  // no memory for a message: nothing more comes
  }
  this_thread.may_end = false;
  leave();
}

// This thread ends, and holds nothing.
void Workers::go_on_elsewhere(FillLoop& loop) noexcept {
  if (is_inline()) end_process("generator", name_.c_str());
  loop.is_replaced = true;
  start_thread_surely([&] {
    std::thread([number = loop.number, self = this] { Ref<Workers>::adopt(self)->work(number); }).detach();
  });
  sleep_for_ever();
}

bool Workers::fill_inline(bool* needs_slot) {
  *needs_slot = false;
  const std::unique_lock lock(inline_, std::try_to_lock);
  if (!lock) return false;
  const Workers* const outer = std::exchange(working_for, this);
  FillLoop& loop = loops_[0];
  Job& job = loop.jobs[0];
  SpinBudget no_wait;
  bool has_job = false;
  try {
    has_job = take_job(loop, false, no_wait, job) == JobTake::kJob;
    *needs_slot = !has_job && !slots_->has_free();
    for (bool is_again = has_job; is_again;) {
      FillResult result;
      begin_fill(loop, job);
      fill_here(loop, job, result);
      is_again = is_retried(loop, job, result);
      is_again ? retry(job) : settle(loop.worker, job, result);
    }
  } catch (const std::exception&) {
    queue_.stop();  // no memory for a message: nothing more comes
  }
  working_for = outer;
  return has_job;
}

void Workers::leave_inline(int64_t timeout_ns) {
  if (!inline_.lock_within(timeout_ns)) return;
  const std::unique_lock lock(inline_, std::adopt_lock);
  if (!std::exchange(has_left_inline_, true)) leave();
}

void Workers::leave() noexcept {
  std::unique_lock lock(mutex_);
  if (--running_ > 0) return;
  if (owns_generator_ && generator_.drop != nullptr) {
    lock.unlock();
    if (processes_) (void)processes_->end(kGraceNs);
    generator_.drop(generator_.context);
    lock.lock();
  }
  have_left_ = true;
  left_.notify_all();
}

void Workers::dismiss() noexcept {
  queue_.stop();
  if (processes_) processes_->dismiss();
  slots_->wake();
}

bool Workers::is_busy() {
  if (processes_) return false;  // processes are killed, and threads are joined by who has started them
  const auto is_abandoned = [](const FillLoop& loop) {
    return loop.since_ns.load(std::memory_order_relaxed) == kAbandoned;
  };
  return queue_.snapshot().longest || std::ranges::any_of(loops_, is_abandoned);
}

bool Workers::wait_until_left(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto left = [this] { return have_left_; };
  const Deadline deadline(timeout_ns);
  if (!deadline.is_never()) return left_.wait_until(lock, deadline.time_point(), left);
  left_.wait(lock, left);
  return true;
}

void Workers::put_counts(tenon_feed_statistics& s) const noexcept {
  for (const FillTimes& times : times_) s.fill_ns += times.sum_ns();
  s.retried = retried_.load(std::memory_order_relaxed);
  s.unwritten = unwritten_.load(std::memory_order_relaxed);
  s.abandoned = abandoned_.load(std::memory_order_relaxed);
  s.blocked_ns = blocked_ns_.load(std::memory_order_relaxed);
  s.blocked_by_consumer_ns = blocked_by_consumer_ns_.load(std::memory_order_relaxed);
}

bool Workers::is_called_by_worker() const noexcept { return working_for == this; }

}  // namespace tenon::impl
