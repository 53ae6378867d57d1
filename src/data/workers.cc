// SPDX-License-Identifier: Apache-2.0
#include "data/workers.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "data/generator_call.h"
#include "data/seed.h"

namespace tenon::impl {
namespace {

// How many times as many slots there may be as at first.
constexpr int32_t kMostGrowth = 16;

constexpr uint64_t kStateNbytes = 64 << 10;

// How many abandoned threads a feed may have at a time.
constexpr int32_t kMostAbandoned = 8;

// Reports that no caller takes are not kept for ever.
constexpr size_t kMostReports = 64;

constexpr char kWayOut[] = "with processes=True a worker that takes too long is killed";

// What a worker process gets to come to an end by itself.
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

// A worker that has a state goes on where its own last batch was.
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
      lanes_(static_cast<size_t>(count_ + most_abandoned(options))) {
  for (int32_t i = 0; i < lanes(); ++i) {
    Lane& lane = lanes_[static_cast<size_t>(i)];
    lane.number = lane.worker = i;
    lane.fields.resize(schema_->fields().size());
    lane.shapes.resize(schema_->fields().size());
    if (i < count_) lane.since_ns = kIdle;
  }
  if (wants_processes(options)) processes_.emplace(generator, *schema_, layout_, slots_, count_, lanes());
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
    record.epoch = job->ticket.epoch;
    record.index = job->ticket.index;
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

int32_t Workers::take_slot(int32_t worker, SpinBudget& short_wait) noexcept {
  int32_t slot = slots_->try_take();
  if (slot != Slots::kNone) return slot;
  const trace::Span span = begin_span(trace::SpanKind::kBlocked, worker, nullptr);
  const int64_t start = now_ns();
  const bool is_consumers = queue_.has_ready();
  const bool is_found = SpinBudget::poll(short_wait.budget_ns(), [&] {
    slot = slots_->try_take();
    return slot != Slots::kNone;
  });
  if (!is_found) slot = slots_->take();
  const int64_t waited = now_ns() - start;
  trace::close(span, trace::key_of(this), trace::SpanOutcome::kDone);
  short_wait.note(waited);
  blocked_ns_.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
  if (is_consumers)
    blocked_by_consumer_ns_.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
  return slot;
}

void Workers::describe(const Job& job, Lane& lane, tenon_fill_request& request) {
  std::byte* const slot = slots_->data(job.slot);
  std::vector<void*>& fields = lane.fields;
  std::vector<int64_t*>& shapes = lane.shapes;
  int64_t* shape = layout_.shapes(slot);
  for (size_t i = 0; i < fields.size(); ++i) {
    fields[i] = slot + schema_->fields()[i].offset;
    shapes[i] = shape;
    shape += schema_->fields()[i].shape.size();
  }
  request = {};
  request.struct_size = sizeof request;
  request.worker = lane.worker;
  request.fields = fields.data();
  request.n = schema_->rows();
  request.index = job.ticket.index;
  request.epoch = job.ticket.epoch;
  request.seed = batch_seed(options_.seed, job.ticket.epoch, job.ticket.index);
  request.shapes = shapes.data();
  request.attachment = layout_.attachment(slot);
  request.attachment_size = layout_.attachment_nbytes;
  request.attachment_nbytes = &layout_.attached(slot);
  request.epoch_seed = epoch_seed(options_.seed, job.ticket.epoch);
  request.flags = flags_of(job);
  request.notes = &layout_.notes(slot);
  request.state = layout_.state(slot);
  request.state_size = layout_.state_nbytes;
  request.state_nbytes = &layout_.stated(slot);
  request.restore_nbytes = job.restored && *job.restored ? (*job.restored)->size() : 0;
}

// False: the batch is settled already.
bool Workers::prepare(Lane& lane, Job& job) {
  tenon_fill_request request;
  describe(job, lane, request);
  FillResult result;
  char message[kMessageSize] = "";
  result.code = call_generator(generator_.prepare, generator_.context, request, message, sizeof message);
  if (result.code != 0) {
    result.message = message;
    settle(-1, job, result);
    return false;
  }
  if (options_.on_error == TENON_ON_ERROR_RETRY || options_.fill_timeout_ns > 0) {
    const std::byte* const bytes = layout_.attachment(slots_->data(job.slot));
    job.attachment.assign(
        bytes, bytes + std::min(layout_.attached(slots_->data(job.slot)), layout_.attachment_nbytes));
  }
  return true;
}

Workers::JobTake Workers::take_job(Lane& lane, bool may_wait, SpinBudget& short_wait, Job& job) {
  const int32_t worker = lane.worker;
  const bool goes_round = impl::goes_round(generator_, options_);
  while (true) {
    // A worker whose turn it is not keeps no slot, and is in the way of no other that prepares.
    if (goes_round && may_wait && !queue_.wait_for_turn(worker)) return JobTake::kOver;
    if (goes_round && !may_wait && !queue_.is_turn_of(worker)) return JobTake::kNone;
    job.slot = may_wait ? take_slot(worker, short_wait) : slots_->try_take();
    if (job.slot == Slots::kOver) return JobTake::kOver;
    if (job.slot == Slots::kNone) return JobTake::kNone;
    std::unique_lock preparing(preparing_, std::defer_lock);
    if (generator_.prepare != nullptr) {
      if (may_wait) preparing.lock();
      if (!may_wait && !preparing.try_lock()) {
        slots_->give(job.slot);
        return JobTake::kNone;
      }
    }
    const TicketQueue::TicketTake taken = queue_.take(job.slot, worker, may_wait && !goes_round, job.ticket);
    if (taken != TicketQueue::TicketTake::kTicket) {
      slots_->give(job.slot);
      if (taken == TicketQueue::TicketTake::kStopped) return JobTake::kOver;
      if (may_wait) continue;  // the epoch has ended meanwhile
      return JobTake::kNone;
    }
    job.retries = 0;
    job.restored.reset();
    if (has_state()) {
      // What it has filled behind the last batch that was delivered is undone.
      job.restored = queue_.first_state(job.ticket, worker);
      if (job.restored && *job.restored == known_[static_cast<size_t>(worker)].last) job.restored.reset();
    }
    slots_->begin_span(job.slot, number_, job.ticket.epoch, job.ticket.index);
    reset_slot(layout_, *schema_, slots_->data(job.slot));
    if (generator_.prepare == nullptr || prepare(lane, job)) return JobTake::kJob;
  }
}

bool Workers::is_failure(const FillResult& result) const noexcept {
  return result.code != 0 && result.code != TENON_NO_BATCH && result.code != TENON_END_OF_EPOCH;
}

bool Workers::may_retry(const Job& job, const FillResult& result) noexcept {
  return is_failure(result) && options_.on_error == TENON_ON_ERROR_RETRY && job.retries < options_.retries &&
         !queue_.is_past(job.ticket);
}

// As it was before it was filled.
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
  unwritten_.fetch_add(1, std::memory_order_relaxed);
}

void Workers::check_shapes(const Job& job, FillResult& result) const {
  if (result.code != 0) return;
  std::byte* const slot = slots_->data(job.slot);
  const Field* const wrong = find_wrong_shape(layout_, *schema_, slot);
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

// worker: -1, it has not come to any.
void Workers::settle(int32_t worker, const Job& job, const FillResult& result) noexcept {
  if (worker >= 0 && is_failure(result)) times_[static_cast<size_t>(worker)].note_failure();
  if (result.code == 0) {
    times_[static_cast<size_t>(worker)].note(result.fill_ns);
    slots_->mark(job.slot, trace::kReady);
    queue_.publish(job.ticket, job.slot, result.fill_ns, result.report);
  } else if (result.code == TENON_END_OF_EPOCH) {
    queue_.finish(job.ticket, job.slot, result.report);
  } else if (result.code == TENON_NO_BATCH || options_.on_error == TENON_ON_ERROR_SKIP) {
    queue_.skip(job.ticket, job.slot, result.report);
  } else {
    TicketFailure failure;
    failure.kind = result.kind;
    failure.code = result.code;
    failure.worker = worker;
    failure.pid = result.pid;
    failure.exit_signal = result.exit_signal;
    failure.exit_code = result.exit_code;
    failure.set_message(result.message.c_str());
    queue_.fail(job.ticket, job.slot, failure, result.report);
  }
}

void Workers::fill_here(Lane& lane, const Job& job, FillResult& result) {
  tenon_fill_request request;
  describe(job, lane, request);
  char message[kMessageSize];
  message[0] = '\0';
  const trace::Span span = begin_span(trace::SpanKind::kFill, lane.worker, &job);
  const int64_t start = now_ns();
  result.code = call_generator(generator_.fill, generator_.context, request, message, sizeof message);
  result.fill_ns = static_cast<uint64_t>(now_ns() - start);
  note_unwritten(result);
  if (result.code != 0) result.message = message;
  check_shapes(job, result);
  read_report(job, result);
  trace::close(span, trace::key_of(this),
               is_failure(result) ? trace::SpanOutcome::kFailed : trace::SpanOutcome::kDone, result.message);
}

void Workers::begin_fill(Lane& lane, Job& job) noexcept {
  if (has_state()) put_state(lane.worker, job);
  if (!processes_) return;
  const Ticket& ticket = job.ticket;
  processes_->ask(lane.number, {job.slot, ticket.index, ticket.epoch,
                                batch_seed(options_.seed, ticket.epoch, ticket.index),
                                epoch_seed(options_.seed, ticket.epoch), ticket.round, ticket.place,
                                flags_of(job), job.restored && *job.restored ? (*job.restored)->size() : 0});
}

uint64_t Workers::flags_of(const Job& job) const noexcept {
  const uint64_t restores = !job.restored ? 0 : *job.restored ? TENON_RESTORE_STATE : TENON_RESTORE_START;
  return restores | (job.ticket.is_resumed ? TENON_RESUMED : 0);
}

void Workers::put_state(int32_t worker, Job& job) noexcept {
  KnownState& known = known_[static_cast<size_t>(worker)];
  if (known.is_lost && !job.restored) job.restored = known.last;
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
    if (!job.restored) job.restored = known.last;
  } else if (result.report.state) {
    known.last = result.report.state;
  } else if (result.code != TENON_END_OF_EPOCH) {  // which the worker's end of the ring can say alone
    if (job.restored) known.last = *job.restored;
    known.is_lost = true;
  }
}

// Of the fill that was begun first. False: the feed ends.
bool Workers::end_fill(Lane& lane, const Job& job, FillResult& result) {
  if (!processes_) {
    fill_here(lane, job, result);
    return true;
  }
  if (!processes_->await(lane.number, options_.fill_timeout_ns, result)) return false;
  note_unwritten(result);
  check_shapes(job, result);
  if (result.kind == TENON_FAILED)
    read_report(job, result);  // a process that has ended may have begun to write
  if (trace::is_on()) note_fill(lane.worker, job, result);
  return true;
}

void Workers::fill_batches(Lane& lane) {
  // Fills that have begun. One, if the next one depends on what becomes of it.
  const uint32_t most = processes_ && !has_state() ? kRingEntries : 1;
  SpinBudget short_wait;
  std::array<Job, kRingEntries>& jobs = lane.jobs;
  uint32_t &begun = lane.begun, &settled = lane.settled;
  bool is_over = false;
  // Those of an abandoned lane.
  for (uint32_t n = settled; n != begun; ++n) begin_fill(lane, jobs[n % kRingEntries]);
  while (true) {
    while (!is_over && begun - settled < most) {
      Job& job = jobs[begun % kRingEntries];
      const JobTake taken = take_job(lane, begun == settled, short_wait, job);
      is_over = taken == JobTake::kOver;
      if (taken != JobTake::kJob) break;
      begin_fill(lane, job);
      ++begun;
    }
    if (begun == settled) return;
    Job& job = jobs[settled % kRingEntries];
    FillResult result;
    // pairs with: Workers::abandon, "what a lane is busy with"
    if (options_.fill_timeout_ns > 0) lane.since_ns.store(now_ns(), std::memory_order_release);
    const bool has_ended = end_fill(lane, job, result);
    // pairs with: Workers::abandon, "what a lane is busy with"
    if (lane.since_ns.exchange(kIdle, std::memory_order_acq_rel) == kAbandoned) return return_late(lane);
    if (!has_ended) break;
    const bool is_again = may_retry(job, result);
    if (has_state()) note_state(lane.worker, job, result, is_again);
    if (processes_ && !processes_->is_thread(lane.number) && (result.kind != TENON_FAILED || is_again)) {
      processes_->stop(lane.number);
      // What it was at meanwhile begins anew.
      for (uint32_t n = settled + 1; n != begun; ++n) {
        if (static_cast<int32_t>(n - processes_->answered(lane.number)) >= 0)
          put_back(jobs[n % kRingEntries]);
      }
      known_[static_cast<size_t>(lane.worker)].is_lost = true;
      const std::string failure = processes_->start(lane.number);
      if (!failure.empty() && result.message.empty()) result.message = failure;
    }
    ++settled;
    if (!is_again) {
      settle(lane.worker, job, result);
      continue;
    }
    retried_.fetch_add(1, std::memory_order_relaxed);
    put_back(job);
    ++job.retries;
    // Behind those that have begun meanwhile.
    Job& again = jobs[begun % kRingEntries];
    if (&again != &job) again = std::move(job);
    begin_fill(lane, again);
    ++begun;
  }
  for (; settled != begun; ++settled) slots_->give(jobs[settled % kRingEntries].slot);
}

// An abandoned lane: its worker goes on in another one.
void Workers::return_late(Lane& lane) noexcept {
  const bool has_left = !processes_ || processes_->await_left(lane.number);
  for (uint32_t n = lane.settled; n != lane.begun; ++n) slots_->give_spare(lane.jobs[n % kRingEntries].slot);
  if (!has_left) return;  // the feed ends, and the lane stays its thread's
  if (processes_) processes_->free(lane.number);
  // pairs with: Workers::abandon, "a free lane"
  lane.since_ns.store(kFree, std::memory_order_release);
}

// A generator of threads that it starts itself is called again beside a call that hangs, as it is called in
// several threads; others only where they say that they may be. The call that hangs may change a state.
bool Workers::may_replace() const noexcept {
  if (has_state()) return false;
  return processes_ ? processes_->are_threads() : (generator_.flags & TENON_THREADSAFE) != 0;
}

bool Workers::give_up_hung(const std::function<void(int32_t abandoned, int32_t other)>& replace) {
  bool has_given_up = false, is_any_at_work = false, is_any_stuck = !lost_.empty();
  for (Lane& lane : lanes_) {
    // pairs with: Workers::fill_batches, "what a lane is busy with"
    const int64_t since = lane.since_ns.load(std::memory_order_acquire);
    if (since < kIdle) continue;
    if (since == kIdle || now_ns() - since < options_.fill_timeout_ns) {
      is_any_at_work = true;
    } else if (may_replace() && abandon(lane, since, replace)) {
      has_given_up = is_any_at_work = true;
    } else {
      is_any_stuck = true;
    }
  }
  return has_given_up || (is_any_stuck && give_up_stuck(is_any_at_work));
}

// False: there is no lane or slot for another thread, or none can be started.
bool Workers::abandon(Lane& lane, int64_t since_ns,
                      const std::function<void(int32_t abandoned, int32_t other)>& replace) {
  const auto other = std::ranges::find_if(lanes_, [](const Lane& l) {
    // pairs with: Workers::return_late, "a free lane"
    return l.since_ns.load(std::memory_order_acquire) == kFree;
  });
  if (other == lanes_.end()) return false;
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
    ++running_;  // before the lane can end
  }
  // pairs with: Workers::fill_batches, "what a lane is busy with"
  if (!lane.since_ns.compare_exchange_strong(since_ns, kAbandoned, std::memory_order_acq_rel)) {
    give_back();
    leave();
    return true;
  }
  if (processes_) {
    processes_->abandon(lane.number);
    processes_->renew(other->number, lane.worker);
  }
  hand_over(lane, *other, spares.data());
  give_back();
  abandoned_.fetch_add(1, std::memory_order_relaxed);
  report(lane, since_ns);
  other->since_ns.store(kIdle, std::memory_order_relaxed);
  try {
    replace(lane.number, other->number);
  } catch (const std::exception& e) {  // of the system, or std::bad_alloc
    lose(*other, e.what());
  }
  return true;
}

// Its thread cannot be started.
void Workers::lose(Lane& lane, const char* reason) noexcept {
  TicketFailure failure;
  failure.kind = TENON_HUNG;
  failure.code = -1;
  failure.worker = lane.worker;
  failure.set_message(reason);
  for (; lane.settled != lane.begun; ++lane.settled) {
    const Job& job = lane.jobs[lane.settled % kRingEntries];
    queue_.fail(job.ticket, job.slot, failure);
  }
  if (processes_) processes_->free(lane.number);
  lane.since_ns.store(kFree, std::memory_order_relaxed);
  lost_ = reason;
  leave();
}

// Of an abandoned lane, to one whose thread does not run yet.
void Workers::hand_over(Lane& lane, Lane& other, int32_t* spares) noexcept {
  other.is_second = true;
  other.worker = lane.worker;
  other.begun = other.settled = 0;
  times_[static_cast<size_t>(lane.worker)].note_failure();
  for (uint32_t n = lane.settled; n != lane.begun; ++n) {
    Job& old = lane.jobs[n % kRingEntries];  // whose slot the lane reads when it returns
    Job job{old.ticket, std::exchange(*spares++, Slots::kNone), old.retries, std::move(old.attachment), {}};
    const bool is_hung = n == lane.settled;
    bool is_again = !queue_.is_past(job.ticket);
    if (is_hung && is_again) {
      is_again = options_.on_error == TENON_ON_ERROR_RETRY && job.retries < options_.retries;
      if (is_again) {
        ++job.retries;
        retried_.fetch_add(1, std::memory_order_relaxed);
      }
    }
    queue_.abandon(old.slot, job.slot, is_again);
    if (is_again) {
      slots_->begin_span(job.slot, number_, job.ticket.epoch, job.ticket.index);
      put_back(job);
      other.jobs[other.begun++ % kRingEntries] = std::move(job);
      continue;
    }
    slots_->give(job.slot);
    if (!is_hung) continue;
    TicketFailure failure;
    failure.kind = TENON_HUNG;
    failure.code = -1;
    failure.worker = lane.worker;
    failure.set_message("its thread is left behind");
    (void)queue_.give_up(job.ticket, options_.on_error == TENON_ON_ERROR_SKIP, failure);
  }
}

// A fill has taken too long in a thread that cannot be replaced.
bool Workers::give_up_stuck(bool is_any_at_work) {
  TicketFailure failure;
  failure.kind = TENON_HUNG;
  failure.code = -1;
  const std::string reason =
      !lost_.empty()  ? concat("no thread can be started in place of one that is left behind: ", lost_)
      : may_replace() ? concat("as many of its threads are left behind as may be (", kMostAbandoned,
                               "), or there is no memory for another slot")
                      : concat(has_state() ? "it has a state" : "it is not thread-safe",
                               ", so it is not called again before it returns");
  failure.set_message(concat(reason, "; ", kWayOut).c_str());
  if (queue_.give_up(options_.fill_timeout_ns, options_.on_error == TENON_ON_ERROR_SKIP, failure))
    return true;
  if (is_any_at_work) return false;
  failure.was_begun = false;
  return queue_.fail_wanted(failure);
}

void Workers::report(const Lane& lane, int64_t since_ns) noexcept try {
  const Ticket& ticket = lane.jobs[lane.settled % kRingEntries].ticket;
  const uint32_t thread =
      processes_ ? processes_->thread(lane.number) : lane.thread.load(std::memory_order_relaxed);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", static_cast<double>(now_ns() - since_ns) * 1e-9);
  const std::scoped_lock lock(reporting_);
  if (reports_.size() == kMostReports) reports_.pop_front();
  reports_.push_back(concat("generator '", name_, "' has not returned from batch ", ticket.index,
                            " of epoch ", ticket.epoch, " for ", seconds, ": its thread ", thread,
                            " (worker ", lane.worker,
                            ") is left behind with its slot, and the worker goes on in another thread"));
  has_reports_.store(true, std::memory_order_relaxed);
} catch (const std::exception&) {  // no memory: it is counted all the same
}

std::string Workers::take_report() {
  if (!has_reports_.load(std::memory_order_relaxed)) return {};
  const std::scoped_lock lock(reporting_);
  if (reports_.empty()) return {};  // another thread took it
  std::string text = std::move(reports_.front());
  reports_.pop_front();
  has_reports_.store(!reports_.empty(), std::memory_order_relaxed);
  return text;
}

void Workers::work(int32_t number) noexcept {
  working_for = this;
  Lane& lane = lanes_[static_cast<size_t>(number)];
  lane.thread.store(static_cast<uint32_t>(syscall(SYS_gettid)), std::memory_order_relaxed);
  try {
    // What it could not be started for is the failure of its first batch.
    if (processes_ && lane.is_second) (void)processes_->start(number);
    fill_batches(lane);
  } catch (const std::exception&) {
    queue_.stop();  // no memory for a message: nothing more comes
  }
  leave();
}

bool Workers::fill_inline() {
  const std::unique_lock lock(inline_, std::try_to_lock);
  if (!lock) return false;
  const Workers* const outer = std::exchange(working_for, this);
  Lane& lane = lanes_[0];
  Job& job = lane.jobs[0];
  SpinBudget no_wait;
  bool has_job = false;
  try {
    has_job = take_job(lane, false, no_wait, job) == JobTake::kJob;
    for (bool is_again = has_job; is_again;) {
      FillResult result;
      begin_fill(lane, job);
      fill_here(lane, job, result);
      is_again = may_retry(job, result);
      if (has_state()) note_state(lane.worker, job, result, is_again);
      if (!is_again) {
        settle(lane.worker, job, result);
        break;
      }
      retried_.fetch_add(1, std::memory_order_relaxed);
      put_back(job);
      ++job.retries;
    }
  } catch (const std::exception&) {
    queue_.stop();  // no memory for a message: nothing more comes
  }
  working_for = outer;
  return has_job;
}

void Workers::leave_inline(int64_t timeout_ns) {
  std::unique_lock lock(inline_, std::defer_lock);
  if (timeout_ns < 0) {
    lock.lock();
  } else {
    (void)lock.try_lock_for(std::chrono::nanoseconds(timeout_ns));
  }
  if (lock && !std::exchange(has_left_inline_, true)) leave();
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
  slots_->wake(lanes());
}

bool Workers::wait_until_left(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto left = [this] { return have_left_; };
  const Deadline deadline(timeout_ns);
  if (!deadline.is_never()) return left_.wait_until(lock, deadline.time_point(), left);
  left_.wait(lock, left);
  return true;
}

bool Workers::is_called_by_worker() const noexcept { return working_for == this; }

}  // namespace tenon::impl
