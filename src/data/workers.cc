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
#include "sync/actor.h"

namespace tenon::impl {
namespace {

// How many times as many slots there may be as at first.
constexpr int32_t kMostGrowth = 16;

constexpr uint64_t kStateNbytes = 64 << 10;

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
  // The last loop is that of the thread which prepares batches for worker processes.
  const bool prepares = generator.prepare != nullptr && wants_processes(generator, options);
  set(prepares, kPrepares);
  head.loops = workers + most_abandoned(options) + (prepares ? 1 : 0);
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
    plan.is_shared = plan.has_processes = true;
  }
  if ((options.flags & TENON_SHARED_SLOTS) != 0) {
    plan.is_shared = true;
    if (options.shared_name != nullptr) plan.shared_name = options.shared_name;
  }
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
      loops_(static_cast<size_t>(slots_->control().head().loops)) {
  for (int32_t i = 0; i < loops(); ++i) {
    FillLoop& loop = loops_[static_cast<size_t>(i)];
    loop.number = loop.worker = i;
    loop.fields.resize(schema_->fields().size());
    loop.shapes.resize(schema_->fields().size());
    loop.workers = this;
    loop.record = &slots_->control().loop(i);
    loop.filling.emplace(*slots_, slots_->data(0), schema_, i, hooks_of(loop));
    if (i >= count_) loop.since_ns() = FillLoop::kFree;
  }
  if (!wants_processes(generator, options)) return;
  if (slots_->control().head().has(kPrepares)) {
    FillLoop& preparer = loops_.back();
    preparer.worker = 0;
    preparer.filling->set_worker(Tickets::kPreparer);
    preparer.since_ns() = FillLoop::kIdle;
    prepared_.resize(static_cast<size_t>(slots_->most()));
  }
  processes_.emplace(
      generator, schema_, slots_, number_,
      WorkerProcesses::Feed{
          [this](int32_t worker, const WorkerProcesses::End& end) { return end_process(worker, end); },
          [this](int32_t worker, const WorkerProcesses::End& end) { return tell_owed(worker, end); },
          [this] { leave_processes(); }});
}

// Each is called with the loop.
Filling::Hooks Workers::hooks_of(FillLoop& loop) noexcept {
  Filling::Hooks hooks;
  hooks.take_memory = [](void* self, int32_t slot, std::string& reason) {
    return static_cast<FillLoop*>(self)->workers->take_memory(slot, reason);
  };
  if (generator_.prepare != nullptr) {
    hooks.prepare = [](void* self, Job& job) {
      auto& of = *static_cast<FillLoop*>(self);
      return of.workers->prepare(of, job);
    };
    hooks.preparing = &preparing_;
  }
  hooks.begin_span = [](void* self, const Job& job) {
    const Workers& workers = *static_cast<FillLoop*>(self)->workers;
    workers.slots_->begin_span(job.slot, workers.number_, job.epoch, job.index);
  };
  hooks.begin_blocked = [](void* self) {
    const auto& of = *static_cast<FillLoop*>(self);
    return of.workers->begin_span(trace::SpanKind::kBlocked, trace::key_of(self), of.worker, nullptr);
  };
  hooks.report = [](void* self, std::string text) {
    static_cast<FillLoop*>(self)->workers->reports_.add(std::move(text));
  };
  hooks.self = &loop;
  hooks.is_inline = is_inline();
  return hooks;
}

Workers::~Workers() { set_findable(false); }

void Workers::start() {
  {
    const std::scoped_lock lock(mutex_);
    running_ = count_;
    // With processes: the thread that watches them, the one that prepares, and those that a generator starts.
    if (processes_) running_ = 1 + (prepared_.empty() ? 0 : 1) + (generator_.start != nullptr ? count_ : 0);
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
  const FillLoop& of = loops_[static_cast<size_t>(loop)];
  if (loop >= count_) return is_preparer(of);
  if (has_process(of)) return false;
  const std::scoped_lock lock(mutex_);
  return of.started == Started::kNo;
}

void Workers::take_over_generator() noexcept {
  const std::scoped_lock lock(mutex_);
  owns_generator_ = true;
}

// job: null where there is none yet.
trace::Span Workers::begin_span(trace::SpanKind kind, uint64_t key, int32_t worker,
                                const Job* job) const noexcept {
  return trace::open(kind, key, [&](trace::Record& record) {
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
  const trace::Span span = begin_span(trace::SpanKind::kFill, trace::key_of(this), worker, &job);
  trace::change(span, trace::key_of(this), [&](trace::Record& record) {
    record.at_ns[trace::kBegun] = result.began_ns;
    record.at_ns[trace::kEnded] = result.began_ns + static_cast<int64_t>(result.fill_ns);
    record.pid = static_cast<int32_t>(result.pid);
    record.outcome = is_failure(result) ? trace::SpanOutcome::kFailed : trace::SpanOutcome::kDone;
    trace::SpanText(record.note) << trace::last_line_of(result.message);
  });
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
  if (is_preparer(loop) && slots_->control().head().has(kGoesRound)) loop.worker = queue_.worker_of(job);
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

void Workers::settle(FillLoop& loop, const Job& job, const FillResult& result, bool was_begun) noexcept {
  if (result.code == 0) slots_->mark(job.slot, trace::kReady);
  loop.filling->settle(job, result, was_begun);
}

void Workers::fill_here(FillLoop& loop, FillResult& result) {
  Job& job = loop.job;
  if (loop.started == Started::kEnded) {
    result.code = -1;
    result.message = concat("the thread of worker ", loop.worker, " has ended: make the feed anew");
    loop.has_ended = false;
    return loop.filling->read_notes(job, result);
  }
  if (std::exchange(loop.has_ended, false)) {
    result.code = -1;
    result.message = kEndedThread;
    return loop.filling->read_notes(job, result);
  }
  const tenon_fill_request request = fill_request(job, loop);
  char message[kMessageSize];
  message[0] = '\0';
  const trace::Span span = begin_span(trace::SpanKind::kFill, trace::key_of(this), loop.worker, &job);
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
  loop.filling->check_fill(job, result);
  trace::close(span, trace::key_of(this),
               is_failure(result) ? trace::SpanOutcome::kFailed : trace::SpanOutcome::kDone, result.message);
}

Workers::JobTake Workers::begin(FillLoop& loop, const Deadline& deadline) {
  Job& job = loop.job;
  if (loop.has_ended) return JobTake::kJob;  // as it began before
  if (loop.has_job) {                        // again, or it was another loop's
    if (is_dismissed()) return JobTake::kOver;
  } else {
    const JobTake taken = loop.filling->take_job(deadline, job);
    if (taken != JobTake::kJob) return taken;
    if (!prepared_.empty()) job.attachment = prepared_[static_cast<size_t>(job.slot)];
    loop.has_job = true;
  }
  loop.filling->put_state(job);
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
  Job& job = loop.job;
  if (loop.filling->note_result(job, result)) {
    loop.filling->retry(job);
    return true;
  }
  loop.has_job = false;
  settle(loop, job, result);
  return true;
}

void Workers::drop_jobs(FillLoop& loop) noexcept {
  if (std::exchange(loop.has_job, false)) slots_->give(loop.job.slot);
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
    is_preparer(loop) ? prepare_batches(loop) : fill_batches(loop);
  } catch (const std::exception&) {
    queue_.stop();  // no memory for a message: nothing more comes
  }
  this_thread.may_end = false;
  leave();
}

// For worker processes, which fill what they are asked, in any order.
void Workers::prepare_batches(FillLoop& loop) {
  Job& job = loop.job;
  while (loop.filling->take_job(Deadline(-1), job) == JobTake::kJob) {
    std::vector<std::byte>& kept = prepared_[static_cast<size_t>(job.slot)];
    if (options_.on_error == TENON_ON_ERROR_RETRY) kept = job.attachment;
    const bool goes_round = slots_->control().head().has(kGoesRound);
    (void)queue_.ask(job, goes_round ? queue_.worker_of(job) : Tickets::kPreparer);
  }
}

// This thread ends, and holds nothing.
void Workers::go_on_elsewhere(FillLoop& loop) noexcept {
  if (is_inline()) impl::end_process("generator", name_.c_str());
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
      is_again = loop.has_job && begin(loop, Deadline::from_first_look(0)) == JobTake::kJob;
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
  if (!processes_) return;
  processes_->end();
  supervised_ = {};  // if its thread was not started; the caller holds another one
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
