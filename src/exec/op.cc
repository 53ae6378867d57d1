// SPDX-License-Identifier: Apache-2.0
#include "exec/op.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "base/block_cache.h"
#include "base/foreign_call.h"
#include "base/os.h"
#include "exec/engine.h"
#include "exec/thread_pool.h"
#include "sync/gate.h"

namespace tenon::impl {
namespace {

// Each thread numbers its ops from a range of its own.
uint64_t next_number() noexcept {
  uint64_t& last = this_thread.last_op;
  if (last == 0) last = uint64_t{this_thread_id()} << 32;
  return ++last;
}

Code code_of(Conflict::Reason reason) noexcept {
  switch (reason) {
    case Conflict::Reason::kTimeout: return Code::kTimeout;
    case Conflict::Reason::kDeadlock: return Code::kDeadlock;
    case Conflict::Reason::kInterrupted: return Code::kInterrupted;
    case Conflict::Reason::kOwnerDied:
    case Conflict::Reason::kMemoryDied: return Code::kOwnerDied;
    default: return Code::kLeaseConflict;
  }
}

int32_t op_code_of(const Conflict& conflict) noexcept {
  return code_of(conflict.reason) == Code::kOwnerDied ? static_cast<int32_t>(conflict.holder.pid) : 0;
}

// The message of an op that a gate has refused.
std::string text_of(const Conflict& conflict) {
  switch (conflict.reason) {
    case Conflict::Reason::kOwnerDied: return dead_owner_text(conflict.holder);
    case Conflict::Reason::kMemoryDied:
      return concat("process ", conflict.holder.pid, " had allocated the memory on a device, and has ended");
    case Conflict::Reason::kTimeout: return concat("it has waited too long for ", text_of(conflict.holder));
    case Conflict::Reason::kDeadlock: return concat("it would wait for ever for ", text_of(conflict.holder));
    case Conflict::Reason::kNotHeld: return std::string(kNotHeldText);
    case Conflict::Reason::kNoFile: return concat("this process was forked, and ", os::kLostText);
    default: return concat("it cannot use memory of other processes beside ", text_of(conflict.holder));
  }
}

}  // namespace

Op::Op(const Work& work, std::span<RequestPart> op_parts) noexcept
    : Request(HolderKind::kOp, op_parts), work_(work), number_(next_number()) {}

Ref<Op> Op::create(const Work& work, size_t n_parts, const char* name, const char* site,
                   size_t context_size) {
  static_assert(alignof(Op) >= alignof(RequestPart) && sizeof(Op) % alignof(RequestPart) == 0);
  const size_t name_size = name != nullptr ? std::strlen(name) + 1 : 0;
  const size_t site_size = site != nullptr ? std::strlen(site) + 1 : 0;
  const size_t parts_size = n_parts * sizeof(RequestPart);
  const size_t texts_at = sizeof(Op) + parts_size + context_size;
  const size_t size = texts_at + name_size + site_size;
  auto* const block = static_cast<std::byte*>(BlockCache::take(size));
  auto* const parts = reinterpret_cast<RequestPart*>(block + sizeof(Op));
  for (size_t i = 0; i < n_parts; ++i) new (parts + i) RequestPart;
  auto* const op = new (block) Op(work, {parts, n_parts});
  if (context_size != 0) op->work_.context = block + sizeof(Op) + parts_size;
  char* text = reinterpret_cast<char*>(block + texts_at);
  if (name != nullptr) op->name = static_cast<char*>(std::memcpy(text, name, name_size));
  if (site != nullptr) op->site = static_cast<char*>(std::memcpy(text + name_size, site, site_size));
  op->size_ = static_cast<uint32_t>(size);
  op->owner = actor_of_task(0);
  op->since_ms = coarse_now_ms();
  return Ref<Op>::adopt(op);
}

void Op::release(uint64_t n) noexcept {
  if (!refs_.decrement_unlisted(n)) return;
  const size_t size = size_;
  this->~Op();
  BlockCache::give(this, size);
}

void Op::become_ready() noexcept {
  if (is_gated && !pass_gates(*this)) [[unlikely]]
    return;
  trace::mark(span_, number_, trace::kReady);
  // pairs with: Op::begin_running, "what the ops before have written"
  state_.fetch_add(kReady - kQueued, std::memory_order_release);
  Engine::instance().executor().post(this);
}

void Op::refuse_at_gates(const Conflict& conflict) noexcept {
  try {
    failure_ = Ref<Failure>::adopt(
        new Failure(code_of(conflict.reason), op_code_of(conflict), text_of(conflict), name, site));
  } catch (const std::bad_alloc&) {
    failure_ = Failure::without_memory();
  }
  Failures::instance().note(failure_);
}

Task* Op::run() noexcept {
  const Outcome outcome = (traits & kNeedsLock) != 0 ? run_with_lock()
                          : begin_running()          ? execute()
                                                     : end_unreturned();
  release(outcome.is_done ? 2 : 1);  // the references of the executor and of the engine
  return outcome.next;
}

// The body begins when this thread has the lock. Otherwise a thread that has the lock, and waits for the op,
// would have to give the lock to this thread and to get it back. The op is finished without the lock, because
// its objects are dropped then, and a destructor must not run before the op is done.
Op::Outcome Op::run_with_lock() noexcept {
  if ((state_.load(std::memory_order_relaxed) & kStateBits) != kReady) return end_unreturned();
  const WaitHooks& hooks = wait_hooks();
  if (hooks.enter == nullptr) return begin_running() ? execute() : Outcome{};
  void* const token = hooks.enter();
  if (token == nullptr) return {};  // the language has ended
  if (begin_running()) return execute(token);
  hooks.leave(token);
  return {};
}

bool Op::begin_running() noexcept {
  uint32_t state = state_.load(std::memory_order_relaxed);
  while ((state & kStateBits) == kReady) {
    // pairs with: Op::become_ready, "what the ops before have written"
    if (state_.compare_exchange_weak(state, state + (kRunning - kReady), std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

// The body has forked, and this is the child: the op continues only in the parent.
void Op::end_forked_child() const noexcept {
  constexpr int kStatus = 70;  // EX_SOFTWARE
  char text[512];
  const int n = std::snprintf(
      text, sizeof text,
      "tenon: process %d was forked inside of the body of op '%.200s' and has come back from it: the op goes "
      "on in the parent alone, so this process ends here with status %d; let such a child end with "
      "os._exit() (_exit) or exec\n",
      static_cast<int>(getpid()), name != nullptr ? name : "", kStatus);
  (void)!write(STDERR_FILENO, text, std::min(static_cast<size_t>(std::max(n, 0)), sizeof text - 1));
  _exit(kStatus);
}

// token: of the hook `enter`, for `leave`; null: this thread has not entered.
Op::Outcome Op::execute(void* token) noexcept {
  const auto leave = [token] {
    if (token != nullptr) wait_hooks().leave(token);
  };
  if (is_refused) [[unlikely]] {
    leave();
    return {finish(), true};  // at a gate
  }
  if (Ref<Failure> inherited = failure_of(*this)) {
    leave();
    failure_ = std::move(inherited);
    return {finish(), true};
  }
  const ThisThread outer = this_thread;
  this_thread.running = number_;
  this_thread.running_request = this;
  this_thread.may_end = token == nullptr;
  trace::mark(span_, number_, trace::kRunning);
  call_foreign([this] { work_.run(work_.context, this); }, [&] { end_thread(token != nullptr); });
  if (this_thread.running_request != this) [[unlikely]]
    end_forked_child();
  this_thread.running = outer.running;
  this_thread.running_request = outer.running_request;
  this_thread.may_end = outer.may_end;
  leave();
  return end_run();
}

// Code of others cannot be left behind on the stack: that of a language whose lock this thread has, that of a
// caller who waits for the op, and that at the end of another op, which waits for this one.
void Op::end_thread(bool has_lock) noexcept {
  if (this_thread.running_request != this) end_forked_child();
  if (has_lock || this_thread.is_finishing || !ThreadPool::is_worker())
    end_process("the body of op", name != nullptr ? name : "");
  uint32_t both = 2;
  // pairs with: Op::fail and Op::end_body, "the end of a body that does not return"
  if (!has_ended_in_place_ && parts_.compare_exchange_strong(both, kGivenUp, std::memory_order_acq_rel))
    fail(Failure::make(Code::kOp, kEndedThread, name, site));
  has_ended_thread_ = true;
  retain();  // for ever: another thread may have the op and end it at any time
  ThreadPool::replace_worker(this);
  sleep_for_ever();
}

Op::Outcome Op::end_unreturned() noexcept { return has_ended_thread_ ? end_run() : Outcome{}; }

// The body runs no more.
Op::Outcome Op::end_run() noexcept {
  if (has_ended_in_place_) return {finish(), true};
  trace::mark(span_, number_, trace::kReturned);
  device::Completion* const submitted = submitted_;  // the op may be gone when it has ended
  // pairs with: Op::end_body, "the body has ended and returned"
  if (parts_.fetch_sub(1, std::memory_order_acq_rel) != 1) {
    // pairs with: Completions::tell, "the body of an op on a stream has returned"
    if (submitted != nullptr) submitted->is_armed.store(true, std::memory_order_release);
    return {};
  }
  return {finish(), true};
}

void Op::fail(Ref<Failure> failure) noexcept {
  uint32_t part = 1;
  if (this_thread.running_request != this) {
    part += kFailing;
    // pairs with: Op::end_thread, "the end of a body that does not return"
    if ((parts_.fetch_add(kFailing, std::memory_order_acq_rel) & kGivenUp) != 0) return;
  }
  failure_ = std::move(failure);
  Failures::instance().note(failure_);
  end_body(part);
}

void Op::submit(device::Completion* completion) noexcept {
  submitted_ = completion;
  completion->is_armed.store(false, std::memory_order_relaxed);
  // First, so that it is told of before those that go on now.
  if (!device::Completions::instance().add(completion))
    return end_submitted(completion->event->synchronise());
  mark_submitted(*this);
}

void Op::end_submitted(device::Status status) noexcept {
  if (Ref<Failure> inherited = failure_before(*this)) {
    failure_ = std::move(inherited);
    return end_body(1);
  }
  if (status == device::kOk) return end_body(1);
  const device::Device& device = submitted_->event->device();
  std::string text;
  try {
    text = concat("the work of the op on ", device::text_of(device.id()),
                  " failed: ", device.driver().text_of(status));
  } catch (const std::bad_alloc&) {
    // It fails without the reason.
  }
  fail(Failure::make(Code::kSystem, text.c_str(), name, site));
}

void Op::end_body(uint32_t part) noexcept {
  if (this_thread.running_request == this) {
    has_ended_in_place_ = true;  // end_run() continues when the body has returned
    return;
  }
  // pairs with: Op::end_run, "the body has ended and returned"
  // pairs with: Op::end_thread, "the end of a body that does not return"
  if (parts_.fetch_sub(part, std::memory_order_acq_rel) != part) return;
  if (Task* const next = finish()) Engine::instance().executor().post(next);
  release();  // the engine's
}

// Releases the memory first, because the drop of the work may free it, then wakes the waiting threads. The
// caller releases the reference of the engine. Returns a task that is ready to run next, or null.
Task* Op::finish() noexcept {
  if (span_ != trace::kNoSpan) [[unlikely]]
    note_end();
  note_outcome(*this, failure_);
  ReadyList ready;
  impl::release(*this, &ready);
  const bool was_finishing = std::exchange(this_thread.is_finishing, true);
  if (work_.drop != nullptr) work_.drop(work_.context);
  Op* next = nullptr;
  for (Request* request = ready.take_all(); request != nullptr;) {
    Request* const after = request->next_ready;
    if (next == nullptr && request->kind == HolderKind::kOp && !request->is_gated) {
      next = static_cast<Op*>(request);
      trace::mark(next->span_, next->number_, trace::kReady);
      // pairs with: Op::begin_running, "what the ops before have written"
      next->state_.fetch_add(kReady - kQueued, std::memory_order_release);
    } else {
      request->become_ready();
    }
    request = after;
  }
  // pairs with: Op::is_done, "an op's result"
  // pairs with: Op::set_bit, "a thread waits for an op"
  const uint32_t before = state_.exchange(kDone, std::memory_order_acq_rel);
  if ((before & kHasWaiters) != 0) futex_wake_all(state_);
  DoneCall* calls = nullptr;
  if ((before & kHasCalls) != 0) {
    const std::scoped_lock lock(calls_lock_);
    calls = std::exchange(calls_, nullptr);
  }
  while (calls != nullptr) {
    DoneCall* const call = std::exchange(calls, calls->next);
    call->call(call->context);
  }
  this_thread.is_finishing = was_finishing;
  Engine::instance().note_done();
  return next;
}

void Op::note_end() const noexcept {
  if (!failure_) return trace::close(span_, number_, trace::SpanOutcome::kDone);
  bool has_run = is_refused;
  trace::change(span_, number_, [&](const trace::Record& r) { has_run |= r.at_ns[trace::kRunning] != 0; });
  trace::close(span_, number_, has_run ? trace::SpanOutcome::kFailed : trace::SpanOutcome::kSkipped,
               failure_->message);
}

// Sets a bit for the thread that ends the op. False: the op is done.
bool Op::set_bit(uint32_t bit) noexcept {
  uint32_t state = state_.load(std::memory_order_relaxed);
  while ((state & kStateBits) != kDone) {
    // pairs with: Op::finish, "a thread waits for an op"
    if ((state & bit) != 0 || state_.compare_exchange_weak(state, state | bit, std::memory_order_acq_rel,
                                                           std::memory_order_relaxed)) {
      return true;
    }
  }
  // pairs with: Op::finish, "an op's result"
  (void)state_.load(std::memory_order_acquire);
  return false;
}

void Op::call_when_done(DoneCall* call) noexcept {
  {
    const std::scoped_lock lock(calls_lock_);
    if (set_bit(kHasCalls)) {
      call->next = std::exchange(calls_, call);
      return;
    }
  }
  call->call(call->context);
}

bool Op::wait(const Deadline& deadline, Conflict* conflict) noexcept {
  if (is_done()) return true;
  if (this_thread.running != 0) {
    conflict->reason = Conflict::Reason::kInBody;
    return false;
  }
  if (deadline.is_never() && begin_running()) {
    const Outcome outcome = execute();
    if (outcome.next != nullptr) Engine::instance().executor().post(outcome.next);
    if (outcome.is_done) release();  // the reference of the engine; the executor and the caller keep theirs
    if (is_done()) return true;
  }
  if (!set_bit(kHasWaiters)) return true;
  WaitNode node;
  node.actor = current_actor();
  node.request = this;
  // pairs with: Op::finish, "an op's result"
  const auto is_done_in = [](uint32_t value) { return (value & kStateBits) == kDone; };
  return is_over(impl::wait(node, state_, is_done_in, deadline, &conflict->holder), conflict);
}

void Op::abandon(Ref<Failure> failure) noexcept {
  failure_ = std::move(failure);
  note_outcome(*this, failure_);
  // If the body has begun, this thread may be inside of it and may still use its context.
  const bool has_begun = (state_.load(std::memory_order_relaxed) & kStateBits) == kRunning;
  if (work_.drop != nullptr && !has_begun) work_.drop(work_.context);
  // pairs with: Op::is_done, "an op's result"
  state_.store(kDone, std::memory_order_release);
}

}  // namespace tenon::impl
