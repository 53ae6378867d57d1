// SPDX-License-Identifier: Apache-2.0
#include "data/workers.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "data/generator_call.h"
#include "data/seed.h"
#include "sync/actor.h"

namespace tenon::impl {
namespace {

// How many times as many slots there may be as at first.
constexpr int32_t kMostGrowth = 16;

constexpr uint64_t kStateNbytes = 64 << 10;

// How long a worker process may take to end by itself.
constexpr int64_t kGraceNs = 400'000'000;

constexpr int64_t kLeftLookNs = 5'000'000;  // between two looks whether all have left

std::atomic<uint32_t> feeds{0};

uint64_t state_nbytes_of(const tenon_generator& generator, const tenon_feed_options& options) {
  if ((generator.flags & TENON_HAS_STATE) == 0) return 0;
  return options.state_nbytes == 0 ? kStateNbytes : options.state_nbytes;
}

// With states, worker i fills each batch whose number modulo workers is i: it continues from its own last
// batch.
bool goes_round(const tenon_generator& generator, const tenon_feed_options& options) {
  return (options.flags & TENON_ROUND_ROBIN) != 0 || (generator.flags & TENON_HAS_STATE) != 0;
}

bool starts_threads(const tenon_generator& generator, const tenon_feed_options& options) {
  return (generator.flags & TENON_STARTS_THREADS) != 0 && generator.start != nullptr && options.workers > 0;
}

bool wants_processes(const tenon_generator& generator, const tenon_feed_options& options) {
  return (options.flags & TENON_PROCESSES) != 0 && !starts_threads(generator, options);
}

// A generator that is not thread-safe is called by one thread, and has a copy in each process.
int32_t workers_of(const tenon_generator& generator, const tenon_feed_options& options) {
  const bool may_be_many = wants_processes(generator, options) || starts_threads(generator, options) ||
                           (generator.flags & TENON_THREADSAFE) != 0;
  return may_be_many ? std::max(options.workers, 1) : 1;
}

int32_t most_abandoned(const tenon_feed_options& options) {
  return options.fill_timeout_ns > 0 ? kMostAbandoned : 0;
}

FeedHead head_of(const tenon_generator& generator, const Schema& schema, const SlotLayout& layout,
                 int32_t workers, const tenon_feed_options& options) {
  FeedHead head{};
  const auto set = [&](bool is_so, FeedFlags flag) { head.flags |= is_so ? flag : 0U; };
  set((options.flags & TENON_SPARSE_SLOTS) != 0, kHasSparseSlots);
  set((generator.flags & TENON_HAS_STATE) != 0, kHasStates);
  set(goes_round(generator, options), kGoesRound);
  set((options.flags & TENON_SHUFFLE) != 0, kIsShuffled);
  head.loops = workers + most_abandoned(options);
  head.workers = workers;
  head.fields = static_cast<int32_t>(schema.fields().size());
  head.on_error = options.on_error;
  head.retries = options.retries;
  head.fill_timeout_ns = options.fill_timeout_ns;
  head.seed = options.seed;
  head.batches = options.batches < 0 ? Order::kNoEnd : static_cast<uint64_t>(options.batches);
  head.rank = static_cast<uint64_t>(options.rank);
  head.ranks = static_cast<uint64_t>(std::max(options.world_size, 1));
  head.rows = schema.rows();
  head.layout = layout;
  std::strncpy(head.generator, generator.name != nullptr ? generator.name : "generator",
               sizeof head.generator - 1);
  return head;
}

Ref<Slots> slots_for(const tenon_generator& generator, const Schema& schema, const SlotLayout& layout,
                     int32_t workers, const tenon_feed_options& options) {
  if ((options.flags & TENON_SHUFFLE) != 0 && options.batches < 0)
    throw_error(Code::kValue, "a feed that is shuffled needs batches >= 0");
  SlotsPlan plan;
  plan.count = options.slots;
  plan.slot_nbytes = layout.slot_nbytes;
  if (options.on_starved == TENON_ON_STARVED_GROW) {
    plan.most = options.slots > INT32_MAX / kMostGrowth ? INT32_MAX : options.slots * kMostGrowth;
  }
  if (wants_processes(generator, options)) {
    plan.is_shared = true;
    plan.control_nbytes = control_nbytes(schema.fields().size(), static_cast<size_t>(workers));
  }
  if ((options.flags & TENON_SHARED_SLOTS) != 0) plan.is_shared = true;
  plan.spares = most_abandoned(options);
  plan.is_sparse = (options.flags & TENON_SPARSE_SLOTS) != 0;
  std::string encoded;
  schema.encode(&encoded);
  return Slots::create(plan, head_of(generator, schema, layout, workers, options), encoded);
}

}  // namespace

constinit thread_local const Workers* Workers::working_for_ = nullptr;

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
      slots_(slots_for(generator, *schema_, layout_, workers_of(generator, options), options)),
      count_(workers_of(generator, options)),
      queue_(slots_, number_),
      are_started_(starts_threads(generator, options)),
      known_(static_cast<size_t>(count_)),
      loops_(static_cast<size_t>(slots_->control().head().loops)),
      skips_(shared().failed_in_a_row, shared().failed_skips) {
  for (int32_t i = 0; i < loops(); ++i) {
    FillLoop& loop = loops_[static_cast<size_t>(i)];
    loop.number = loop.worker = i;
    loop.fields.resize(schema_->fields().size());
    loop.shapes.resize(schema_->fields().size());
    loop.record = &slots_->control().loop(i);
    if (i >= count_) loop.since_ns() = FillLoop::kFree;
  }
  for (KnownState& known : known_) known.bytes.reserve(layout_.state_nbytes);
  if (wants_processes(generator, options))
    processes_.emplace(generator, *schema_, layout_, slots_, count_, number_);
}

Workers::~Workers() { set_findable(false); }

void Workers::start() {
  {
    const std::scoped_lock lock(mutex_);
    running_ = count_;
  }
  if (is_inline()) return;
  has_processes_ = processes_.has_value();
  if (generator_.start != nullptr && (are_started_ || processes_)) set_findable(true);
  if (processes_) return start_processes();
  for (int32_t i = 0; are_started_ && i < count_; ++i) {
    const std::string failure = start_thread(loops_[static_cast<size_t>(i)]);
    if (!failure.empty()) throw_error(Code::kOp, failure);
  }
}

bool Workers::needs_thread(int32_t loop) noexcept {
  const std::scoped_lock lock(mutex_);
  return loops_[static_cast<size_t>(loop)].started == Started::kNo;
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

// Of a fill that was answered from elsewhere.
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

int32_t Workers::take_slot(FillLoop& loop, const Deadline& deadline) noexcept {
  const uint32_t holder = holder_of(loop);
  int32_t slot = slots_->try_take(holder);
  if (slot != Slots::kNone || deadline.leaves_no_time()) return slot;
  const trace::Span span = begin_span(trace::SpanKind::kBlocked, loop.worker, nullptr);
  const int64_t start = now_ns();
  const bool is_consumers = queue_.has_ready();
  const bool is_found = SpinBudget::poll(loop.short_wait.budget_ns(), [&] {
    slot = slots_->try_take(holder);
    return slot != Slots::kNone;
  });
  if (!is_found) slot = slots_->take(holder, deadline);
  const int64_t waited = now_ns() - start;
  trace::close(span, trace::key_of(this), trace::SpanOutcome::kDone);
  loop.short_wait.note(waited);
  shared().blocked_ns.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
  if (is_consumers)
    shared().blocked_by_consumer_ns.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
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
    settle(loop, job, result, false);
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

Workers::JobTake Workers::take_job(FillLoop& loop, const Deadline& deadline, Job& job) {
  const int32_t worker = loop.worker;
  while (true) {
    // Before it is its turn, a worker takes neither a slot nor the mutex of prepare.
    const TicketRing::TicketTake turn = queue_.await_turn(worker, deadline);
    if (turn == TicketRing::TicketTake::kStopped) return JobTake::kOver;
    if (turn == TicketRing::TicketTake::kNone) return JobTake::kNone;
    job.slot = take_slot(loop, deadline);
    if (job.slot == Slots::kOver) return JobTake::kOver;
    if (job.slot == Slots::kNone) return JobTake::kNone;
    std::string reason;
    const bool has_memory = take_memory(job.slot, reason);
    const bool prepares = generator_.prepare != nullptr;
    if (prepares &&
        !preparing_.lock_within(deadline.is_never() ? -1 : std::max<int64_t>(deadline.left_ns(), 0))) {
      slots_->give(job.slot);
      return JobTake::kNone;
    }
    std::unique_lock<TimedMutex> preparing;
    if (prepares) preparing = std::unique_lock(preparing_, std::adopt_lock);
    const TicketRing::TicketTake taken = queue_.take(worker, job);
    if (taken != TicketRing::TicketTake::kTicket) {
      slots_->give(job.slot);
      if (taken == TicketRing::TicketTake::kStopped) return JobTake::kOver;
      // Another worker has taken the last one, or the epoch has ended.
      if (!deadline.leaves_no_time()) continue;
      return JobTake::kNone;
    }
    job.seed = batch_seed(options_.seed, job.epoch, job.index);
    job.epoch_seed = epoch_seed(options_.seed, job.epoch);
    job.retries = 0;
    job.restore_nbytes = 0;
    // Fills behind the last delivered batch are undone.
    if (has_state() && !queue_.start_state(job, worker, known_[static_cast<size_t>(worker)])) {
      queue_.skip(job);
      if (!deadline.leaves_no_time()) continue;
      return JobTake::kNone;
    }
    slots_->begin_span(job.slot, number_, job.epoch, job.index);
    if (!has_memory && !take_memory(job.slot, reason)) {  // there may be some by now
      TicketFailure failure;
      failure.code = TENON_ERR_NO_MEMORY;
      failure.was_begun = false;
      failure.set_message(reason.c_str());
      queue_.fail(job, loop.number, failure);
      if (!is_inline() && deadline.leaves_no_time()) return JobTake::kNone;
      continue;
    }
    reset_slot(layout_, *schema_, slots_->data(job.slot));
    if (generator_.prepare == nullptr || prepare(loop, job)) return JobTake::kJob;
    // Each batch may be skipped. A consumer that fills looks itself.
    if (!is_inline() && deadline.leaves_no_time()) return JobTake::kNone;
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
  shared().retried.fetch_add(1, std::memory_order_relaxed);
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
  const bool is_first = shared().unwritten.fetch_add(1, std::memory_order_relaxed) == 0;
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
  queue_.skip(job, result.notes);
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

// was_begun: else it has not come to a fill.
void Workers::settle(const FillLoop& loop, const Job& job, const FillResult& result,
                     bool was_begun) noexcept {
  FillTimes& times = times_of(loop.worker);
  if (was_begun && is_failure(result)) times.note_failure();
  if (result.code == 0) {
    skips_.note_batch();
    times.note(result.fill_ns);
    slots_->mark(job.slot, trace::kReady);
    queue_.publish(job, result.notes);
  } else if (result.code == TENON_END_OF_EPOCH) {
    queue_.finish(job, result.notes);
  } else if (result.code == TENON_NO_BATCH) {
    queue_.skip(job, result.notes);
  } else if (!skip(job, result)) {
    TicketFailure failure;
    failure.kind = result.kind;
    failure.code = result.code;
    failure.worker = was_begun ? loop.worker : -1;
    failure.pid = result.pid;
    failure.exit_signal = result.exit_signal;
    failure.exit_code = result.exit_code;
    const bool is_limit = options_.on_error == TENON_ON_ERROR_SKIP;
    failure.set_message((is_limit ? Skips::limit_text() : "").append(result.message).c_str());
    queue_.fail(job, loop.number, failure, result.notes);
  }
}

void Workers::check_fill(const Job& job, FillResult& result) {
  note_unwritten(result);
  check_shapes(job, result);
  if (result.kind == TENON_FAILED)
    read_report(job, result);  // a process that has ended may have begun to write
}

void Workers::fill_here(FillLoop& loop, FillResult& result) {
  Job& job = loop.job();
  if (loop.started == Started::kEnded) {
    result.code = -1;
    result.message = concat("the thread of worker ", loop.worker, " has ended: make the feed anew");
    loop.has_ended = false;
    return read_report(job, result);
  }
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
  check_fill(job, result);
  trace::close(span, trace::key_of(this),
               is_failure(result) ? trace::SpanOutcome::kFailed : trace::SpanOutcome::kDone, result.message);
}

void Workers::put_state(int32_t worker, Job& job) noexcept {
  KnownState& known = known_[static_cast<size_t>(worker)];
  if (!std::exchange(known.is_lost, false)) return;
  job.flags |= known.number != 0 ? TENON_RESTORE_STATE : TENON_RESTORE_START;
  job.restore_nbytes = known.bytes.size();
  if (!known.bytes.empty())
    std::memcpy(layout_.state(slots_->data(job.slot)), known.bytes.data(), known.bytes.size());
}

void Workers::read_report(const Job& job, FillResult& result) const {
  std::byte* const slot = slots_->data(job.slot);
  if (result.code == 0 && (layout_.notes(slot) & TENON_IGNORED_INDEX) != 0) result.notes |= kIgnoredIndex;
  if (!has_state()) return;
  const uint64_t nbytes = layout_.stated(slot);
  if (nbytes <= layout_.state_nbytes) {
    result.notes |= kHasState;
  } else if (result.code == 0) {
    result.code = -1;
    result.message =
        nbytes == SlotLayout::kNoState
            ? "it left no state"
            : concat("its state has ", nbytes, " bytes, and state_nbytes is ", layout_.state_nbytes);
  }
}

void Workers::note_state(int32_t worker, const Job& job, const FillResult& result, bool is_again) {
  KnownState& known = known_[static_cast<size_t>(worker)];
  if (!is_again && (result.notes & kHasState) != 0) {
    std::byte* const slot = slots_->data(job.slot);
    const std::byte* const state = layout_.state(slot);
    known.bytes.assign(state, state + std::min(layout_.stated(slot), layout_.state_nbytes));
    known.number = job.number;
  } else if (is_again || result.code != TENON_END_OF_EPOCH || job.is_restored()) {
    known.is_lost = true;  // the worker's end of the ring can say an end alone
  }
}

Workers::JobTake Workers::begin(FillLoop& loop, const Deadline& deadline) {
  Job& job = loop.job();
  if (loop.has_ended) return JobTake::kJob;  // as it began before
  if (loop.has_job()) {                      // again, or it was another loop's
    if (is_dismissed()) return JobTake::kOver;
  } else {
    const JobTake taken = take_job(loop, deadline, job);
    if (taken != JobTake::kJob) return taken;
    ++loop.begun;
  }
  if (has_state()) put_state(loop.worker, job);
  // pairs with: Workers::abandon, "what a loop is busy with"
  if (options_.fill_timeout_ns > 0 || loop.started != Started::kNo)
    loop.since_ns().store(FillLoop::in_fill(now_ns()), std::memory_order_release);
  return JobTake::kJob;
}

bool Workers::end(FillLoop& loop, const FillResult& result) {
  // pairs with: Workers::abandon, "what a loop is busy with"
  if (loop.since_ns().exchange(FillLoop::kIdle, std::memory_order_acq_rel) == FillLoop::kAbandoned) {
    return_late(loop);
    return false;
  }
  Job& job = loop.job();
  if (is_retried(loop, job, result)) {
    retry(job);
    return true;
  }
  ++loop.settled;
  settle(loop, job, result);
  return true;
}

void Workers::drop_jobs(FillLoop& loop) noexcept {
  for (; loop.has_job(); ++loop.settled) slots_->give(loop.job().slot);
}

void Workers::fill_batches(FillLoop& loop) {
  while (begin(loop, Deadline(-1)) == JobTake::kJob) {
    FillResult result;
    fill_here(loop, result);
    if (!end(loop, result)) return;
  }
  drop_jobs(loop);
}

void Workers::work(int32_t number) noexcept {
  pthread_setname_np(pthread_self(), concat("tenon-feed-", number).substr(0, 15).c_str());
  this_thread.may_end = true;
  working_for_ = this;
  FillLoop& loop = loops_[static_cast<size_t>(number)];
  loop.thread.store(static_cast<uint32_t>(syscall(SYS_gettid)), std::memory_order_relaxed);
  try {
    processes_&& loop.started == Started::kNo ? ask_process(loop) : fill_batches(loop);
  } catch (const std::exception&) {
    queue_.stop();  // no memory for a message: nothing more comes
  }
  this_thread.may_end = false;
  leave();
}

// This thread ends, and holds nothing.
void Workers::go_on_elsewhere(FillLoop& loop) noexcept {
  if (is_inline()) end_process("generator", name_.c_str());
  {
    const std::scoped_lock lock(mutex_);
    if (loop.started != Started::kNo) loop.started = Started::kEnded;
  }
  loop.is_replaced = true;
  go_on(loop, Ref<Workers>::adopt(this));
  sleep_for_ever();
}

// In a thread of the feed.
void Workers::go_on(FillLoop& loop, Ref<Workers> self) noexcept {
  const BlockedSignals blocked;
  start_thread_surely([&] { std::thread([&loop, self] { self->work(loop.number); }).detach(); });
}

bool Workers::fill_inline(bool* needs_slot) {
  *needs_slot = false;
  const std::unique_lock lock(inline_, std::try_to_lock);
  if (!lock) return false;
  const Workers* const outer = std::exchange(working_for_, this);
  FillLoop& loop = loops_[0];
  bool has_job = false;
  try {
    has_job = begin(loop, Deadline::from_first_look(0)) == JobTake::kJob;
    *needs_slot = !has_job && !slots_->has_free();
    for (bool is_again = has_job; is_again;) {
      FillResult result;
      fill_here(loop, result);
      (void)end(loop, result);
      is_again = loop.has_job() && begin(loop, Deadline::from_first_look(0)) == JobTake::kJob;
    }
    drop_jobs(loop);
  } catch (const std::exception&) {
    queue_.stop();  // no memory for a message: nothing more comes
  }
  working_for_ = outer;
  return has_job;
}

void Workers::leave_inline(int64_t timeout_ns) {
  if (!inline_.lock_within(timeout_ns)) return;
  const std::unique_lock lock(inline_, std::adopt_lock);
  if (!std::exchange(has_left_inline_, true)) leave();
}

void Workers::end_processes() noexcept {
  const std::scoped_lock lock(ending_);
  if (processes_) (void)processes_->end(kGraceNs);
}

// True: it was the last one.
bool Workers::note_left() noexcept {
  const std::scoped_lock lock(mutex_);
  if (--running_ == 0) return true;
  left_.notify_all();
  return false;
}

void Workers::leave() noexcept {
  if (note_left()) drop_generator();
}

void Workers::drop_generator() noexcept {
  std::unique_lock lock(mutex_);
  if (owns_generator_ && generator_.drop != nullptr) {
    lock.unlock();
    end_processes();
    generator_.drop(generator_.context);
    lock.lock();
  }
  have_left_ = true;
  left_.notify_all();
}

void Workers::dismiss() noexcept {
  set_findable(false);
  int32_t missing = 0;
  {
    const std::scoped_lock lock(mutex_);
    is_dismissed_ = true;
    for (FillLoop& loop : loops_) {
      if (loop.started != Started::kAwaited) continue;
      loop.started = Started::kNo;
      ++missing;
    }
  }
  queue_.stop();
  if (processes_) processes_->dismiss();
  slots_->wake();
  for (; missing > 0; --missing) leave();
}

bool Workers::is_busy() {
  if (processes_ || are_started_) {  // processes are killed, such threads are not waited for
    const std::scoped_lock lock(mutex_);
    return starting_ > 0;
  }
  const auto is_abandoned = [](const FillLoop& loop) {
    return loop.since_ns().load(std::memory_order_relaxed) == FillLoop::kAbandoned;
  };
  return queue_.snapshot().longest || std::ranges::any_of(loops_, is_abandoned);
}

bool Workers::wait_until_left(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto left = [this] { return have_left_ || are_rest_started(); };
  const Deadline deadline(timeout_ns);
  // One that the generator has started does not tell that it has begun to fill.
  while (!left() && !deadline.has_passed()) {
    left_.wait_for(lock, std::chrono::nanoseconds(std::min(deadline.left_ns(), kLeftLookNs)));
  }
  return left();
}

void Workers::put_counts(tenon_feed_statistics& s) const noexcept {
  for (int32_t i = 0; i < count_; ++i) s.fill_ns += times_of(i).sum_ns();
  s.retried = shared().retried.load(std::memory_order_relaxed);
  s.unwritten = shared().unwritten.load(std::memory_order_relaxed);
  s.abandoned = abandoned_.load(std::memory_order_relaxed);
  s.blocked_ns = shared().blocked_ns.load(std::memory_order_relaxed);
  s.blocked_by_consumer_ns = shared().blocked_by_consumer_ns.load(std::memory_order_relaxed);
}

}  // namespace tenon::impl
