// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <new>
#include <utility>

#include "base/error.h"

namespace tenon::engine {
namespace {

constexpr const char* kDefault = "pool";
constexpr size_t kMostFailures = 1000;  // that are remembered for whoever waits for all ops
constexpr int64_t kChangeTimeoutNs = 60'000'000'000;

}  // namespace

Engine& Engine::instance() noexcept {
  static auto* const engine = new Engine;
  return *engine;
}

Executor& Engine::executor() {
  // pairs with: Engine::make_default, "an executor is complete"
  if (Executor* const executor = executor_.load(std::memory_order_acquire)) return *executor;
  make_default();
  // pairs with: Engine::make_default, "an executor is complete"
  return *executor_.load(std::memory_order_acquire);
}

void Engine::make_default() {
  const std::scoped_lock lock(change_);
  if (executor_.load(std::memory_order_relaxed) != nullptr) return;
  const char* const wanted = std::getenv("TENON_ENGINE");
  name_ = wanted != nullptr && *wanted != '\0' ? wanted : kDefault;
  // pairs with: Engine::executor, "an executor is complete"
  executor_.store(make_executor(name_, 0).release(), std::memory_order_release);
}

bool Engine::push(const Ref<Op>& op, OnHost on_host, Refusal* refusal) {
  if (is_closed_.load(std::memory_order_relaxed)) {
    throw_error(Code::kClosed, "op '", op->name != nullptr ? op->name : "",
                "' was pushed after the engine's end");
  }
  Executor& to = executor();
  const uint64_t limit = limit_.load(std::memory_order_relaxed);
  const bool is_full = limit != 0 && unfinished_.load(std::memory_order_relaxed) >= limit;
  if (is_full && this_thread.running == 0 && !wait_for_room(refusal)) return false;
  op->retain();  // the engine's
  op->retain();  // the executor's
  unfinished_.fetch_add(1, std::memory_order_relaxed);
  switch (append(*op, on_host, refusal)) {
    case Appended::kGranted:
      op->begin_ready();
      to.post(op.get());
      return true;
    case Appended::kWaiting: return true;
    case Appended::kRefused: break;
  }
  note_done();
  op->release();
  op->release();
  return false;
}

void Engine::note_done() noexcept {
  // pairs with: Engine::wait_all, "somebody waits for all ops"
  const uint64_t left = unfinished_.fetch_sub(1, std::memory_order_seq_cst) - 1;
  const bool may_end_waits = left == 0 || left == limit_.load(std::memory_order_relaxed) / 2;
  // pairs with: Engine::wait_all, "somebody waits for all ops"
  if (!may_end_waits || waiters_.load(std::memory_order_seq_cst) == 0) return;
  // pairs with: engine::wait, "what was waited for"
  turns_.fetch_add(1, std::memory_order_release);
  futex_wake_all(turns_);
}

bool Engine::has_own_threads() noexcept {
  // pairs with: Engine::make_default, "an executor is complete"
  const Executor* const here = executor_.load(std::memory_order_acquire);
  return here == nullptr || here->has_own_threads();
}

bool help() noexcept {
  Engine& engine = Engine::instance();
  return !engine.has_own_threads() && engine.executor().try_run_one();
}

bool Engine::wait_for_room(Refusal* refusal) noexcept {
  const auto has_room = [this](uint32_t) {
    const uint64_t limit = limit_.load(std::memory_order_relaxed);
    // pairs with: Engine::note_done, "somebody waits for all ops"
    return limit == 0 || unfinished_.load(std::memory_order_seq_cst) <= limit / 2;
  };
  Waiter waiter;
  waiter.actor = current_actor();
  waiter.waits_for_all = true;
  // pairs with: Engine::note_done, "somebody waits for all ops"
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  const WaitEnd end = wait(waiter, turns_, has_room, Deadline(-1), &refusal->obstacle);
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return engine::is_over(end, refusal);
}

bool Engine::wait_all(const Deadline& deadline, Refusal* refusal) noexcept {
  if (this_thread.running != 0) {
    refusal->reason = Refusal::Reason::kInBody;
    return false;
  }
  // pairs with: Engine::note_done, "somebody waits for all ops"
  const auto is_over = [this](uint32_t) { return unfinished_.load(std::memory_order_seq_cst) == 0; };
  if (is_over(0)) return true;
  Waiter waiter;
  waiter.actor = current_actor();
  waiter.waits_for_all = true;
  // pairs with: Engine::note_done, "somebody waits for all ops"
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  const WaitEnd end = wait(waiter, turns_, is_over, deadline, &refusal->obstacle);
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return engine::is_over(end, refusal);
}

void Engine::note_failure(const Ref<Failure>& failure) noexcept {
  const std::scoped_lock lock(failures_lock_);
  try {
    if (failures_.size() == kMostFailures) failures_.pop_front();
    failures_.push_back(failure);
  } catch (const std::bad_alloc&) {
    // Whoever waits for the op or its memory still learns of it.
  }
}

Ref<Failure> Engine::take_failure() {
  const std::scoped_lock lock(failures_lock_);
  if (failures_.empty()) return {};
  Ref<Failure> oldest = std::move(failures_.front());
  failures_.pop_front();
  return oldest;
}

void Engine::set_executor(const std::string& name, int workers) {
  const std::string wanted = name == "default" ? kDefault : name;
  std::unique_ptr<Executor> fresh = make_executor(wanted, workers);
  Refusal refusal;
  if (!wait_all(Deadline(kChangeTimeoutNs), &refusal)) {
    fresh->stop();
    throw_error(Code::kTimeout, "the engine cannot be changed: ", unfinished(),
                " ops did not end within a minute");
  }
  const std::scoped_lock lock(change_);
  // pairs with: Engine::executor, "an executor is complete"
  const std::unique_ptr<Executor> old(executor_.exchange(fresh.release(), std::memory_order_acq_rel));
  name_ = wanted;
  if (old) old->stop();
}

std::string Engine::executor_name() {
  (void)executor();
  const std::scoped_lock lock(change_);
  return name_;
}

int Engine::concurrency() { return executor().concurrency(); }

bool Engine::shut_down(const Deadline& deadline, Refusal* refusal) noexcept {
  is_closed_.store(true, std::memory_order_relaxed);
  return wait_all(deadline, refusal);
}

void Engine::lock_for_fork() noexcept { failures_lock_.lock(); }

void Engine::unlock_after_fork() noexcept { failures_lock_.unlock(); }

void Engine::start_anew_after_fork() noexcept {
  new (&change_) std::mutex;
  executor_.store(nullptr, std::memory_order_relaxed);  // its threads are not here
  unfinished_.store(0, std::memory_order_relaxed);
  waiters_.store(0, std::memory_order_relaxed);
}

}  // namespace tenon::engine
