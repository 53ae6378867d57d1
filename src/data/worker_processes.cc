// SPDX-License-Identifier: Apache-2.0
#include "data/worker_processes.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/error.h"
#include "data/generator_call.h"
#include "data/worker.h"
#include "sync/actor.h"

#ifndef SYS_pidfd_open  // the headers of glibc 2.28 have neither
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

namespace tenon::impl {
namespace {

constexpr int32_t kUnknownStatus = -1;  // other code of this process has waited for the worker
constexpr int kLookMs = 1'000;          // between two looks whether other code has closed a descriptor

os::File pidfd_open(int64_t pid) noexcept {
  return os::File(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))).keep();
}

// The kernel's, for a process that is not waited for here: as waitpid would give it.
int32_t status_of(const siginfo_t& info) noexcept {
  return info.si_code == CLD_EXITED ? (info.si_status & 0xFF) << 8 : info.si_status;
}

// Fills batches until the feed ends.
[[noreturn]] void serve(const tenon_generator& generator, ProcessWorker& worker, int32_t number) noexcept {
  static char message[kMessageSize];
  this_thread.may_end = true;
  try {
    while (worker.next(-1) == Worker::Received::kRequest) {
      message[0] = '\0';
      const auto go_on_elsewhere = [&] {
        start_thread_surely([&] {
          std::thread([&] {
            worker.answer(-1, kEndedThread);
            serve(generator, worker, number);
          }).detach();
        });
        sleep_for_ever();
      };
      const auto fill = [&] {
        return generator.fill(generator.context, worker.request(), message, sizeof message);
      };
      worker.answer(call_checked(message, sizeof message, fill, go_on_elsewhere), message);
    }
    if (generator.leave != nullptr) generator.leave(generator.context, number);
  } catch (...) {
    _exit(1);
  }
  _exit(0);
}

// What a forked worker does.
[[noreturn]] void run_worker(const tenon_generator& generator, std::byte* memory, int32_t number,
                             pid_t feed) noexcept {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != feed) _exit(0);  // it has ended already
  // On Ctrl-C the feed's process ends this one. The signal handlers of the feed's process do not run here.
  (void)signal(SIGINT, SIG_IGN);
  (void)signal(SIGTERM, SIG_DFL);
  char name[16] = "tenon-worker";
  (void)prctl(PR_SET_NAME, name);
  sigset_t none;
  sigemptyset(&none);
  (void)pthread_sigmask(SIG_SETMASK, &none, nullptr);
  ProcessWorker worker(memory, number);
  serve(generator, worker, number);
}

}  // namespace

WorkerProcesses::WorkerProcesses(const tenon_generator& generator, const Schema& schema,
                                 const SlotLayout& layout, Ref<Slots> slots, int32_t workers, uint32_t feed)
    : generator_(generator),
      slots_(std::move(slots)),
      layout_(layout),
      fields_(schema.fields().size()),
      feed_(feed),
      peers_(static_cast<size_t>(workers)),
      has_pages_(static_cast<size_t>(slots_->most()), slots_->is_sparse()) {
  auto* const head = new (slots_->memory()) RingsHead{};
  const os::Process process = os::this_process();
  head->version = kFeedVersion;
  head->pid = process.pid;
  head->start = process.start;
  head->nbytes = os::size_of(slots_->file());
  head->rings = workers;
  head->slots = slots_->count();
  head->fields = static_cast<int32_t>(fields_);
  head->rows = schema.rows();
  head->slots_at = static_cast<uint64_t>(slots_->data(0) - slots_->memory());
  head->has_sparse_slots = slots_->is_sparse();
  head->layout = layout;
  for (size_t i = 0; i < fields_; ++i) {
    head->places[i] = {schema.fields()[i].offset, static_cast<int32_t>(schema.fields()[i].shape.size())};
  }
  for (int32_t i = 0; i < workers; ++i) new (&ring(i)) RequestRing{};
  head->magic = kFeedMagic;
}

RequestRing& WorkerProcesses::ring(int32_t worker) const noexcept {
  return ring_of(slots_->memory(), fields_, static_cast<size_t>(worker));
}

WorkerProcesses::~WorkerProcesses() { (void)end(0); }

void WorkerProcesses::start() {
  wake_ = os::create_event();
  try {
    const BlockedSignals blocked;
    watcher_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    throw_error(Code::kSystem, "feed: cannot start the thread that watches the workers: ", e.what());
  }
  for (int32_t i = 0; i < static_cast<int32_t>(peers_.size()); ++i) {
    request_start(i);
    if (i == 0) slots_->try_take_memory(0);  // beside the fork: the first worker fills this slot first
    const std::string failure = await_start(i);
    if (!failure.empty()) throw_error(Code::kOp, failure);
  }
  restarts_ = 0;
}

void WorkerProcesses::start_one(int32_t worker) noexcept {
  RingUser& peer = peers_[static_cast<size_t>(worker)];
  const bool has_ended = peer.pid.load(std::memory_order_relaxed) != 0;
  int64_t pid = -1;
  std::string failure;
  char text[kMessageSize] = "";
  try {
    if (generator_.start == nullptr) {
      pid = fork_worker(worker);
      if (pid < 0) failure = concat("worker process ", worker, " cannot be forked: ", std::strerror(errno));
    } else if (slots_->file().is_lost()) {
      failure = concat("worker ", worker, " cannot be started: ", os::kLostText);
    } else {
      const std::string link = WorkerLink{os::this_process(), feed_, slots_->file().fd(), worker}.text();
      const int32_t code =
          generator_.start(generator_.context, worker, link.c_str(), &pid, text, sizeof text);
      text[sizeof text - 1] = '\0';
      if (code != 0) failure = start_failure_text(worker, has_ended, code, text);
    }
    if (failure.empty() && pid == 0) {
      if (has_ended) failure = concat("worker ", worker, " was a process, and is started as a thread");
    } else if (failure.empty() && !may_be_worker(pid)) {
      failure = no_worker_text(worker, pid);
    } else if (failure.empty()) {
      os::File process = pidfd_open(pid);
      if (!process) {
        failure = concat("worker process ", worker, " (", pid,
                         ") cannot be watched (pidfd_open): ", std::strerror(errno));
        if (errno != ESRCH) (void)kill(static_cast<pid_t>(pid), SIGKILL);
        int32_t status = 0;
        if (generator_.start == nullptr) {
          (void)waitpid(static_cast<pid_t>(pid), &status, 0);
        } else if (generator_.reap != nullptr) {
          generator_.reap(generator_.context, worker, pid, &status);
        }
      } else {
        const std::scoped_lock lock(mutex_);
        peer.process = std::move(process);
        peer.start = os::start_of(static_cast<uint32_t>(pid));
        peer.pid.store(pid, std::memory_order_relaxed);
        // pairs with: WorkerProcesses::await, "a process that lives"
        peer.is_alive.store(true, std::memory_order_release);
      }
    }
  } catch (const std::exception& e) {
    failure = e.what();
  }
  const std::scoped_lock lock(mutex_);
  peer.failure = std::move(failure);
  peer.is_wanted = false;
  changed_.notify_all();
}

int64_t WorkerProcesses::fork_worker(int32_t worker) {
  const pid_t feed = getpid();
  const pid_t pid = fork();
  if (pid == 0) run_worker(generator_, slots_->memory(), worker, feed);
  return pid;
}

// For a process whose pidfd is lost. False: it has ended. Requires the lock.
bool WorkerProcesses::watch_again(RingUser& peer) noexcept {
  const int64_t pid = peer.pid.load(std::memory_order_relaxed);
  if (os::has_ended({static_cast<uint32_t>(pid), peer.start})) return false;
  if (os::File again = pidfd_open(pid)) peer.process = std::move(again);
  return true;
}

// Requires the lock.
void WorkerProcesses::renew_wake() noexcept {
  try {
    wake_ = os::create_event();
  } catch (const std::exception&) {
    // The next look tries again.
  }
}

// Its process has ended.
void WorkerProcesses::note_end(int32_t worker) noexcept {
  RingUser& peer = peers_[static_cast<size_t>(worker)];
  const int64_t pid = peer.pid.load(std::memory_order_relaxed);
  int32_t status = kUnknownStatus;
  if (generator_.start != nullptr && generator_.reap != nullptr) {
    generator_.reap(generator_.context, worker, pid, &status);
  } else {
    siginfo_t info{};
    constexpr idtype_t kPidfd = static_cast<idtype_t>(3);  // P_PIDFD
    const int fd = peer.process.fd();
    if (fd < 0) {
      // It may be another child by now.
      if (waitpid(static_cast<pid_t>(pid), &status, WNOHANG) != pid) status = kUnknownStatus;
    } else if (waitid(kPidfd, static_cast<id_t>(fd), &info, WEXITED) == 0) {
      status = status_of(info);
    }
  }
  {
    const std::scoped_lock lock(mutex_);
    peer.process = os::File();
    peer.status = status;
    // pairs with: WorkerProcesses::await, "a process that lives"
    peer.is_alive.store(false, std::memory_order_release);
    changed_.notify_all();
  }
  RequestRing& ring = this->ring(worker);
  // pairs with: WorkerProcesses::await, "the feed sleeps"
  ring.changes.fetch_add(1, std::memory_order_seq_cst);
  os::wake_all(ring.changes);
}

void WorkerProcesses::run() noexcept {
  (void)pthread_setname_np(pthread_self(), "tenon-feed-w");
  std::vector<pollfd> files;
  std::vector<int32_t> workers;
  while (true) {
    workers.assign(1, -1);
    int32_t to_start = -1, ended = -1;
    {
      const std::scoped_lock lock(mutex_);
      if (wake_.is_lost()) renew_wake();
      files.assign(1, {wake_.fd(), POLLIN, 0});
      for (int32_t i = 0; i < static_cast<int32_t>(peers_.size()); ++i) {
        RingUser& peer = peers_[static_cast<size_t>(i)];
        if (!peer.process) continue;
        if (peer.process.is_lost() && !watch_again(peer)) ended = i;
        files.push_back({peer.process.fd(), POLLIN, 0});
        workers.push_back(i);
      }
      if (is_over_ && workers.size() == 1) return;
      // Not before its predecessor has been waited for.
      for (size_t k = 0; k < to_start_.size() && to_start < 0 && ended < 0; ++k) {
        if (peers_[static_cast<size_t>(to_start_[k])].process) continue;
        to_start = to_start_[k];
        to_start_.erase(to_start_.begin() + static_cast<ptrdiff_t>(k));
      }
    }
    if (ended >= 0) {
      note_end(ended);
      continue;
    }
    if (to_start >= 0) {
      start_one(to_start);
      continue;
    }
    if (poll(files.data(), files.size(), kLookMs) <= 0) continue;
    if (files[0].revents != 0) os::clear_event(wake_);
    for (size_t k = 1; k < files.size(); ++k) {
      if (files[k].revents != 0 && !peers_[static_cast<size_t>(workers[k])].process.is_lost())
        note_end(workers[k]);
    }
  }
}

void WorkerProcesses::kill_one(int32_t worker) noexcept {
  const std::scoped_lock lock(mutex_);
  RingUser& peer = peers_[static_cast<size_t>(worker)];
  if (peer.process.is_lost() && !watch_again(peer)) return;
  const int fd = peer.process.fd();
  if (fd >= 0) (void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0);
}

void WorkerProcesses::stop(int32_t worker) {
  kill_one(worker);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !peers_[static_cast<size_t>(worker)].process; });
}

uint32_t WorkerProcesses::answered(int32_t worker) const noexcept {
  // pairs with: ProcessWorker::answer, "an answer"
  return ring(worker).answered.load(std::memory_order_acquire);
}

std::string WorkerProcesses::start(int32_t worker) {
  request_start(worker);
  return await_start(worker);
}

void WorkerProcesses::request_start(int32_t worker) {
  const std::scoped_lock lock(mutex_);
  peers_[static_cast<size_t>(worker)].is_wanted = true;
  if (!is_over_) to_start_.push_back(worker);
  os::signal_event(wake_);
}

std::string WorkerProcesses::await_start(int32_t worker) {
  RingUser& peer = peers_[static_cast<size_t>(worker)];
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !peer.is_wanted || is_over_; });
  if (peer.is_wanted) return "the feed is closed";
  restarts_.fetch_add(1, std::memory_order_relaxed);
  return peer.failure;
}

void WorkerProcesses::ask(int32_t worker, const Ticket& request) noexcept {
  RequestRing& ring = this->ring(worker);
  RingUser& peer = peers_[static_cast<size_t>(worker)];
  ring.requests[peer.asked % kRingEntries] = request;
  ++peer.asked;
  // pairs with: ProcessWorker::wait_for_request, "a request" and "the worker sleeps"
  ring.asked.store(peer.asked, std::memory_order_seq_cst);
  // pairs with: ProcessWorker::wait_for_request, "the worker sleeps"
  if (ring.is_worker_asleep.load(std::memory_order_seq_cst) != 0) os::wake_all(ring.asked);
}

bool WorkerProcesses::has_answer(const RingUser& peer, const RequestRing& ring) const noexcept {
  // pairs with: ProcessWorker::answer, "an answer"
  return ring.answered.load(std::memory_order_acquire) != peer.seen;
}

bool WorkerProcesses::await(int32_t worker, int32_t slot, int64_t timeout_ns, FillResult& result) {
  RequestRing& ring = this->ring(worker);
  RingUser& peer = peers_[static_cast<size_t>(worker)];
  const auto is_settled = [&] {
    // pairs with: WorkerProcesses::note_end, "a process that lives"
    return has_answer(peer, ring) || !peer.is_alive.load(std::memory_order_acquire) ||
           is_over_.load(std::memory_order_relaxed);
  };
  const int64_t began = now_ns();
  Deadline deadline(timeout_ns > 0 ? timeout_ns : -1);
  if (!std::exchange(has_pages_[static_cast<size_t>(slot)], true))
    map_slot(layout_, slots_->data(slot), true, is_settled);
  bool has_hung = false;
  if (!is_settled() && !SpinBudget::poll(peer.short_wait.budget_ns(), is_settled)) {
    while (true) {
      // pairs with: ProcessWorker::answer, "the feed sleeps"
      ring.is_feed_asleep.store(1, std::memory_order_seq_cst);
      // pairs with: ProcessWorker::answer, "the feed sleeps"
      const uint32_t seen = ring.changes.load(std::memory_order_seq_cst);
      if (is_settled()) break;
      if (deadline.has_passed()) {
        has_hung = true;
        kill_one(worker);
        deadline = Deadline(-1);
      }
      const os::Sleep sleep{&ring.changes, seen};
      os::sleep_on(&sleep, 1, std::min(deadline.left_ns(), kSecond));
    }
    ring.is_feed_asleep.store(0, std::memory_order_relaxed);
  }
  peer.short_wait.note(now_ns() - began);
  result = {};
  result.pid = peer.pid.load(std::memory_order_relaxed);
  if (has_answer(peer, ring)) {  // also where the process has ended since
    const RingAnswer& answer = ring.answers[peer.seen % kRingEntries];
    result.code = answer.code;
    result.fill_ns = answer.fill_ns;
    result.began_ns = answer.began_ns;
    if (answer.code != 0) result.message = std::string(answer.message, strnlen(answer.message, kMessageSize));
    ++peer.seen;
    return true;
  }
  if (is_over_.load(std::memory_order_relaxed)) return false;
  // The worker has ended: what it was busy with is answered in its place.
  ++peer.seen;
  ring.answered.store(peer.seen, std::memory_order_relaxed);  // no other process writes it now
  result.code = -1;
  describe_end(peer, result);
  if (has_hung) {
    result.kind = TENON_HUNG;
    result.exit_signal = 0;
  }
  result.began_ns = began;
  result.fill_ns = static_cast<uint64_t>(now_ns() - began);
  return true;
}

// How its process has ended.
void WorkerProcesses::describe_end(const RingUser& peer, FillResult& result) {
  const std::scoped_lock lock(mutex_);
  result.kind = TENON_DIED;
  result.message = peer.failure;
  if (!peer.failure.empty()) {
    result.pid = 0;
  } else if (peer.status == kUnknownStatus) {
    result.exit_code = -1;
  } else if (WIFSIGNALED(peer.status)) {
    result.exit_signal = WTERMSIG(peer.status);
  } else {
    result.exit_code = WEXITSTATUS(peer.status);
  }
}

int64_t WorkerProcesses::pid(int32_t worker) const noexcept {
  const RingUser& peer = peers_[static_cast<size_t>(worker)];
  return peer.is_alive.load(std::memory_order_relaxed) ? peer.pid.load(std::memory_order_relaxed) : 0;
}

void WorkerProcesses::dismiss() noexcept {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
    to_start_.clear();
    changed_.notify_all();
    if (wake_) os::signal_event(wake_);
  }
  for (int32_t i = 0; i < static_cast<int32_t>(peers_.size()); ++i) {
    RequestRing& r = this->ring(i);
    r.is_over.store(1, std::memory_order_relaxed);
    // Not a request: a worker that sees it move first looks whether it is over.
    // pairs with: ProcessWorker::wait_for_request, "the worker sleeps"
    r.asked.fetch_add(kRingEntries, std::memory_order_seq_cst);
    os::wake_all(r.asked);
    // pairs with: WorkerProcesses::await, "the feed sleeps"
    r.changes.fetch_add(1, std::memory_order_seq_cst);
    os::wake_all(r.changes);
  }
}

bool WorkerProcesses::end(int64_t timeout_ns) {
  if (!watcher_.joinable()) return true;
  dismiss();
  const Deadline deadline(timeout_ns);
  bool have_left = false;
  {
    std::unique_lock lock(mutex_);
    const auto are_gone = [this] {
      return std::ranges::all_of(peers_, [](const RingUser& user) { return !user.process; });
    };
    have_left = deadline.is_never() ? (changed_.wait(lock, are_gone), true)
                                    : changed_.wait_until(lock, deadline.time_point(), are_gone);
  }
  for (int32_t i = 0; !have_left && i < static_cast<int32_t>(peers_.size()); ++i) kill_one(i);
  {
    const std::scoped_lock lock(mutex_);
    os::signal_event(wake_);
  }
  watcher_.join();
  return have_left;
}

}  // namespace tenon::impl
