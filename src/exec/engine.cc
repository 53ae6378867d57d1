// SPDX-License-Identifier: Apache-2.0
#include "exec/engine.h"

#include <time.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "base/error.h"

namespace tenon::impl {
namespace {

constexpr const char* kDefault = "pool";
constexpr int64_t kChangeTimeoutNs = 60'000'000'000;

const Runner kRunner{[]() noexcept { return Engine::instance().help(); },
                     []() noexcept { return Engine::instance().has_own_threads(); }};

// True if the body of an op with parts runs in another thread.
bool is_any_body_running() noexcept {
  bool is_running = false;
  ListedQueues::visit([&](const Queue& queue) {
    for (const RequestPart* e = queue.first(); e != nullptr; e = e->next) {
      if (e->request->kind != HolderKind::kOp || e->request == this_thread.running_request) continue;
      is_running |= static_cast<const Op*>(e->request)->is_running();
    }
  });
  return is_running;
}

}  // namespace

Engine::Engine() noexcept
    : byte_limit_(static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                  static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2) {
  // What is used when there is no memory any more.
  (void)Failure::without_memory();
  (void)Failures::instance();
  set_runner(kRunner);
}

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
  const bool is_wanted = wanted != nullptr && *wanted != '\0';
  name_ = is_wanted ? wanted : kDefault;
  std::unique_ptr<Executor> executor;
  try {
    executor = make_executor(name_, 0);
  } catch (const Error& e) {
    if (!is_wanted) throw;
    throw_error(e.code(), "TENON_ENGINE is '", name_, "': ", e.what());
  }
  // pairs with: Engine::executor, "an executor is complete"
  executor_.store(executor.release(), std::memory_order_release);
}

bool Engine::push(const Ref<Op>& op, OnHost on_host, Conflict* conflict) {
  if (is_closed_.load(std::memory_order_relaxed)) {
    throw_error(Code::kClosed, "op '", op->name != nullptr ? op->name : "",
                "' was pushed after the engine's end");
  }
  if (!begin_push(conflict)) return false;
  Executor* to = nullptr;
  try {
    to = &executor();
  } catch (...) {
    note_done();
    throw;
  }
  op->retain(2);  // the engine's and the executor's
  switch (append(*op, on_host, conflict)) {
    case Appended::kGranted:
      if (op->is_gated) [[unlikely]] {
        op->become_ready();
        return true;
      }
      op->begin_ready();
      to->post(op.get());
      return true;
    case Appended::kWaiting: return true;
    case Appended::kRefused: break;
  }
  note_done();
  op->release(2);
  return false;
}

// From here on the op counts as unfinished, so that the executor is not changed.
bool Engine::begin_push(Conflict* conflict) noexcept {
  const bool may_wait = this_thread.running == 0 && !this_thread.is_finishing;
  while (true) {
    const uint64_t limit = this->limit(), byte_limit = this->byte_limit();
    const bool is_full =
        (limit != 0 && has_reached(limit)) || (byte_limit != 0 && Queue::held_nbytes() >= byte_limit);
    if (may_wait && is_full && !wait_for_turn(has_room_in, Deadline(-1), conflict)) return false;
    // pairs with: Engine::set_executor, "no push beside a change"
    pushed_.fetch_add(1, std::memory_order_seq_cst);
    // pairs with: Engine::set_executor, "no push beside a change"
    if (!may_wait || !is_changing_.load(std::memory_order_seq_cst)) return true;
    note_done();
    if (!wait_for_turn(has_room_in, Deadline(-1), conflict)) return false;
  }
}

bool Engine::has_reached(uint64_t limit) noexcept {
  const uint64_t pushed = pushed_.load(std::memory_order_relaxed);
  if (pushed - seen_finished_.load(std::memory_order_relaxed) < limit) return false;
  const uint64_t finished = finished_.load(std::memory_order_relaxed);
  seen_finished_.store(finished, std::memory_order_relaxed);
  return pushed - finished >= limit;
}

bool Engine::is_within(uint64_t ops, uint64_t nbytes) const noexcept {
  return (limit() == 0 || unfinished() <= ops) && (byte_limit() == 0 || Queue::held_nbytes() <= nbytes);
}

bool Engine::has_room() const noexcept {
  // pairs with: Engine::set_executor, "no push beside a change"
  return is_within(limit() / 2, byte_limit() / 2) && !is_changing_.load(std::memory_order_seq_cst);
}

bool Engine::has_room_in(const Engine& engine) noexcept { return engine.has_room(); }

void Engine::note_done() noexcept {
  // pairs with: Engine::unfinished, "a thread waits for all ops"
  finished_.fetch_add(1, std::memory_order_seq_cst);
  // pairs with: Engine::wait_for_turn, "a thread waits for all ops"
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  const bool has_ended_wait =
      unfinished() == 0 || (pushers_.load(std::memory_order_relaxed) != 0 && has_room());
  if (!has_ended_wait) return;
  // pairs with: impl::wait, "what was waited for"
  turns_.fetch_add(1, std::memory_order_release);
  futex_wake_all(turns_);
}

bool Engine::has_own_threads() noexcept {
  // pairs with: Engine::make_default, "an executor is complete"
  const Executor* const here = executor_.load(std::memory_order_acquire);
  return here == nullptr || here->has_own_threads();
}

bool Engine::wait_for_turn(bool (*is_over)(const Engine& engine), const Deadline& deadline,
                           Conflict* conflict) noexcept {
  WaitNode node;
  node.actor = current_actor();
  node.waits_for_all = true;
  node.is_pusher = is_over == has_room_in;
  const uint32_t is_pusher = node.is_pusher ? 1 : 0;
  pushers_.fetch_add(is_pusher, std::memory_order_relaxed);
  // pairs with: Engine::note_done, "a thread waits for all ops"
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  const auto is_over_now = [this, is_over](uint32_t) { return is_over(*this); };
  const WaitEnd end = wait(node, turns_, is_over_now, deadline, &conflict->holder);
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  pushers_.fetch_sub(is_pusher, std::memory_order_relaxed);
  return impl::is_over(end, conflict);
}

bool Engine::wait_all(const Deadline& deadline, Conflict* conflict) noexcept {
  if (this_thread.running != 0) {
    conflict->reason = Conflict::Reason::kInBody;
    return false;
  }
  const auto is_over = [](const Engine& engine) { return engine.unfinished() == 0; };
  Failures::instance().begin_wait();
  const bool is_done = is_over(*this) || wait_for_turn(is_over, deadline, conflict);
  Failures::instance().end_wait();
  return is_done;
}

// No push begins while this object lives.
class Engine::Change {
 public:
  explicit Change(Engine& engine) noexcept : engine_(engine), lock_(engine.changers_) {
    // pairs with: Engine::begin_push, "no push beside a change"
    engine_.is_changing_.store(true, std::memory_order_seq_cst);
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  ~Change() {
    // pairs with: Engine::begin_push, "no push beside a change"
    engine_.is_changing_.store(false, std::memory_order_seq_cst);
    // pairs with: impl::wait, "what was waited for"
    engine_.turns_.fetch_add(1, std::memory_order_release);
    futex_wake_all(engine_.turns_);
  }

 private:
  Engine& engine_;
  const std::scoped_lock<std::mutex> lock_;
};

void Engine::set_executor(const std::string& name, int workers) {
  const std::string wanted = name == "default" ? kDefault : name;
  if (this_thread.running != 0) {
    throw_error(Code::kLeaseConflict, "the body of an op cannot change the engine: it would wait for itself");
  }
  // The executor is stopped if it is not used.
  struct Fresh {
    std::unique_ptr<Executor> executor;
    ~Fresh() {
      if (executor) executor->stop();
    }
  } fresh{make_executor(wanted, workers)};
  const Change change(*this);
  Conflict conflict;
  if (wait_all(Deadline(kChangeTimeoutNs), &conflict)) return exchange_executor(&fresh.executor, wanted);
  const Code code = conflict.reason == Conflict::Reason::kDeadlock      ? Code::kDeadlock
                    : conflict.reason == Conflict::Reason::kInterrupted ? Code::kInterrupted
                                                                        : Code::kTimeout;
  throw_error(code, "the engine cannot be changed while ops are unfinished: ", text_of(conflict.holder));
}

// Takes fresh, or throws and leaves it.
void Engine::exchange_executor(std::unique_ptr<Executor>* fresh, std::string name) {
  const std::scoped_lock lock(change_);
  former_.reserve(former_.size() + 1);
  // pairs with: Engine::executor, "an executor is complete"
  std::unique_ptr<Executor> old(executor_.exchange(fresh->release(), std::memory_order_acq_rel));
  name_.swap(name);
  if (!old) return;
  old->stop();
  former_.push_back(std::move(old));
}

std::string Engine::executor_name() {
  (void)executor();
  const std::scoped_lock lock(change_);
  return name_;
}

bool Engine::shut_down(const Deadline& deadline, Conflict* conflict) noexcept {
  is_closed_.store(true, std::memory_order_relaxed);
  const bool is_done = wait_all(deadline, conflict);
  Failures::instance().report_rest();
  return is_done;
}

bool Engine::wait_for_bodies(const Deadline& deadline) noexcept {
  constexpr timespec kMoment{0, 200'000};
  while (is_any_body_running()) {
    if (deadline.left_ns() <= 0) return false;
    nanosleep(&kMoment, nullptr);
  }
  return true;
}

void Engine::start_anew_after_fork() noexcept {
  Failures::instance().start_anew_after_fork();
  new (&changers_) std::mutex;
  new (&change_) std::mutex;
  is_changing_.store(false, std::memory_order_relaxed);
  pushers_.store(0, std::memory_order_relaxed);
  executor_.store(nullptr, std::memory_order_relaxed);  // its threads do not exist here
  finished_.store(pushed_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  waiters_.store(0, std::memory_order_relaxed);
}

}  // namespace tenon::impl
