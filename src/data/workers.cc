// SPDX-License-Identifier: Apache-2.0
#include "data/workers.h"

#include <array>
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

bool wants_processes(const tenon_feed_options& options) { return (options.flags & TENON_PROCESSES) != 0; }

// A generator that is not thread-safe is called by one thread, and has a copy in each process.
int32_t workers_of(const tenon_generator& generator, const tenon_feed_options& options) {
  const bool may_be_many = wants_processes(options) || (generator.flags & TENON_THREADSAFE) != 0;
  return may_be_many ? options.workers : 1;
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
    plan.control_nbytes = control_nbytes(schema.fields().size(), static_cast<size_t>(workers));
  }
  if ((options.flags & TENON_SHARED_SLOTS) != 0) plan.is_shared = true;
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
      layout_(SlotLayout::of(*schema_, options.attachment_nbytes)),
      slots_(slots_for(*schema_, layout_, workers_of(generator, options), options)),
      count_(workers_of(generator, options)),
      queue_(slots_, order_of(options), (options.flags & TENON_ROUND_ROBIN) != 0 ? count_ : 0, number_),
      times_(static_cast<size_t>(count_)),
      fields_(static_cast<size_t>(count_), std::vector<void*>(schema_->fields().size())),
      shapes_(static_cast<size_t>(count_), std::vector<int64_t*>(schema_->fields().size())) {
  if (wants_processes(options)) processes_.emplace(generator, *schema_, layout_, slots_, count_);
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

void Workers::describe(const Job& job, int32_t worker, tenon_fill_request& request) {
  std::byte* const slot = slots_->data(job.slot);
  std::vector<void*>& fields = fields_[static_cast<size_t>(worker)];
  std::vector<int64_t*>& shapes = shapes_[static_cast<size_t>(worker)];
  int64_t* shape = layout_.shapes(slot);
  for (size_t i = 0; i < fields.size(); ++i) {
    fields[i] = slot + schema_->fields()[i].offset;
    shapes[i] = shape;
    shape += schema_->fields()[i].shape.size();
  }
  request = {};
  request.struct_size = sizeof request;
  request.worker = worker;
  request.fields = fields.data();
  request.n = schema_->rows();
  request.index = job.ticket.index;
  request.epoch = job.ticket.epoch;
  request.seed = batch_seed(options_.seed, job.ticket.epoch, job.ticket.index);
  request.shapes = shapes.data();
  request.attachment = layout_.attachment(slot);
  request.attachment_size = layout_.attachment_nbytes;
  request.attachment_nbytes = &layout_.attached(slot);
}

// False: the batch is settled already.
bool Workers::prepare(int32_t worker, Job& job) {
  tenon_fill_request request;
  describe(job, worker, request);
  FillResult result;
  char message[kMessageSize] = "";
  result.code = call_generator(generator_.prepare, generator_.context, request, message, sizeof message);
  if (result.code != 0) {
    result.message = message;
    settle(-1, job, result);
    return false;
  }
  if (options_.on_error == TENON_ON_ERROR_RETRY) {
    const std::byte* const bytes = layout_.attachment(slots_->data(job.slot));
    job.attachment.assign(
        bytes, bytes + std::min(layout_.attached(slots_->data(job.slot)), layout_.attachment_nbytes));
  }
  return true;
}

Workers::JobTake Workers::take_job(int32_t worker, bool may_wait, SpinBudget& short_wait, Job& job) {
  const bool goes_round = (options_.flags & TENON_ROUND_ROBIN) != 0;
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
    slots_->begin_span(job.slot, number_, job.ticket.epoch, job.ticket.index);
    reset_slot(layout_, *schema_, slots_->data(job.slot));
    if (generator_.prepare == nullptr || prepare(worker, job)) return JobTake::kJob;
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
    queue_.publish(job.ticket, job.slot, result.fill_ns);
  } else if (result.code == TENON_END_OF_EPOCH) {
    queue_.finish(job.ticket, job.slot);
  } else if (result.code == TENON_NO_BATCH || options_.on_error == TENON_ON_ERROR_SKIP) {
    queue_.skip(job.ticket, job.slot);
  } else {
    TicketFailure failure;
    failure.kind = result.kind;
    failure.code = result.code;
    failure.worker = worker;
    failure.pid = result.pid;
    failure.exit_signal = result.exit_signal;
    failure.exit_code = result.exit_code;
    failure.set_message(result.message.c_str());
    queue_.fail(job.ticket, job.slot, failure);
  }
}

void Workers::fill_here(int32_t worker, const Job& job, FillResult& result) {
  tenon_fill_request request;
  describe(job, worker, request);
  char message[kMessageSize];
  message[0] = '\0';
  const trace::Span span = begin_span(trace::SpanKind::kFill, worker, &job);
  const int64_t start = now_ns();
  result.code = call_generator(generator_.fill, generator_.context, request, message, sizeof message);
  result.fill_ns = static_cast<uint64_t>(now_ns() - start);
  note_unwritten(result);
  if (result.code != 0) result.message = message;
  check_shapes(job, result);
  trace::close(span, trace::key_of(this),
               is_failure(result) ? trace::SpanOutcome::kFailed : trace::SpanOutcome::kDone, result.message);
}

void Workers::begin_fill(int32_t worker, const Job& job) noexcept {
  if (!processes_) return;
  const Ticket& ticket = job.ticket;
  processes_->ask(
      worker, {job.slot, ticket.index, ticket.epoch, batch_seed(options_.seed, ticket.epoch, ticket.index),
               ticket.round, ticket.place});
}

// Of the fill that was begun first. False: the feed ends.
bool Workers::end_fill(int32_t worker, const Job& job, FillResult& result) {
  if (!processes_) {
    fill_here(worker, job, result);
    return true;
  }
  if (!processes_->await(worker, options_.fill_timeout_ns, result)) return false;
  note_unwritten(result);
  check_shapes(job, result);
  if (trace::is_on()) note_fill(worker, job, result);
  return true;
}

void Workers::fill_batches(int32_t worker) {
  const uint32_t most = processes_ ? kRingEntries : 1;  // fills that have begun
  SpinBudget short_wait;
  std::array<Job, kRingEntries> jobs;  // in order of the requests: number n lies at n % kRingEntries
  uint32_t begun = 0, settled = 0;
  bool is_over = false;
  while (true) {
    while (!is_over && begun - settled < most) {
      Job& job = jobs[begun % kRingEntries];
      const JobTake taken = take_job(worker, begun == settled, short_wait, job);
      is_over = taken == JobTake::kOver;
      if (taken != JobTake::kJob) break;
      begin_fill(worker, job);
      ++begun;
    }
    if (begun == settled) return;
    Job& job = jobs[settled % kRingEntries];
    FillResult result;
    if (!end_fill(worker, job, result)) break;
    const bool is_again = may_retry(job, result);
    if (processes_ && !processes_->is_thread(worker) && (result.kind != TENON_FAILED || is_again)) {
      processes_->stop(worker);
      // What it was at meanwhile begins anew.
      for (uint32_t n = settled + 1; n != begun; ++n) {
        if (static_cast<int32_t>(n - processes_->answered(worker)) >= 0) put_back(jobs[n % kRingEntries]);
      }
      const std::string failure = processes_->start(worker);
      if (!failure.empty() && result.message.empty()) result.message = failure;
    }
    ++settled;
    if (!is_again) {
      settle(worker, job, result);
      continue;
    }
    retried_.fetch_add(1, std::memory_order_relaxed);
    put_back(job);
    ++job.retries;
    // Behind those that have begun meanwhile.
    Job& again = jobs[begun % kRingEntries];
    if (&again != &job) again = std::move(job);
    begin_fill(worker, again);
    ++begun;
  }
  for (; settled != begun; ++settled) slots_->give(jobs[settled % kRingEntries].slot);
}

void Workers::work(int32_t worker) noexcept {
  working_for = this;
  try {
    fill_batches(worker);
  } catch (const std::exception&) {
    queue_.stop();  // no memory for a message: nothing more comes
  }
  leave();
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
  slots_->wake(count_);
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
