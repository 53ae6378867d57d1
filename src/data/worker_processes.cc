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
#include <chrono>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/error.h"
#include "data/fill_loop.h"
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

constexpr int32_t kUnknownStatus = -1;       // other code of this process has waited for the worker
constexpr int64_t kLookNs = kSecond;         // between two looks whether other code has closed a descriptor
constexpr int64_t kOwedLookNs = 10'000'000;  // between two looks whether a batch can tell of an end
constexpr int64_t kShortestLookNs = 1'000'000;
// How long a worker process may take to end by itself.
constexpr int64_t kGraceNs = 400'000'000;

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
[[noreturn]] void run_worker(const tenon_generator& generator, const Slots& slots, Ref<Schema> schema,
                             int32_t number, pid_t feed) noexcept {
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
  ProcessWorker worker(slots.control(), slots.data(0), std::move(schema), slots.file(), number);
  serve(generator, worker, number);
}

}  // namespace

TicketFailure WorkerProcesses::End::as_failure(int32_t worker) const noexcept {
  TicketFailure result;
  result.kind = has_hung ? TENON_HUNG : TENON_DIED;
  result.code = -1;
  result.worker = worker;
  result.set_message(failure.c_str());
  if (!failure.empty()) return result;
  result.pid = pid;
  if (has_hung || status == kUnknownStatus) return result;
  if (WIFSIGNALED(status)) {
    result.exit_signal = WTERMSIG(status);
  } else {
    result.exit_code = WEXITSTATUS(status);
  }
  return result;
}

WorkerProcesses::WorkerProcesses(const tenon_generator& generator, Ref<Schema> schema, Ref<Slots> slots,
                                 uint32_t feed, Feed calls)
    : generator_(generator),
      schema_(std::move(schema)),
      slots_(std::move(slots)),
      control_(slots_->control()),
      feed_(feed),
      calls_(std::move(calls)),
      peers_(static_cast<size_t>(control_.head().workers)) {}

WorkerProcesses::~WorkerProcesses() { end(); }

void WorkerProcesses::start() {
  wake_ = os::create_event();
  try {
    const BlockedSignals blocked;
    supervisor_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    throw_error(Code::kSystem, "feed: cannot start the thread that watches the workers: ", e.what());
  }
  for (int32_t i = 0; i < workers(); ++i) {
    request_start(i);
    if (i == 0) slots_->try_take_memory(0);  // beside the fork: the first worker fills this slot first
    const std::string failure = await_start(i);
    if (!failure.empty()) throw_error(Code::kOp, failure);
  }
}

// Returns why there is no process.
std::string WorkerProcesses::start_one(int32_t worker) noexcept {
  Peer& peer = peers_[static_cast<size_t>(worker)];
  const bool has_ended = peer.pid.load(std::memory_order_relaxed) != 0;
  // A start that takes long counts as the worker's own code. Here no one else writes it.
  // pairs with: WorkerProcesses::kill_late, "what a loop is busy with"
  control_.loop(worker).since_ns.store(FillLoop::outside(now_ns()), std::memory_order_release);
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
      const std::string link = WorkerLink{os::this_process(),      feed_,
                                          slots_->file().fd(),     worker,
                                          control_.head().file_at, control_.head().parts.head_at}
                                   .text();
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
        peer.process = std::move(process);
        peer.start = os::start_of(static_cast<uint32_t>(pid));
        peer.pid.store(pid, std::memory_order_relaxed);
        peer.is_alive.store(true, std::memory_order_relaxed);
      }
    }
  } catch (const std::exception& e) {
    failure = e.what();
  }
  return failure;
}

int64_t WorkerProcesses::fork_worker(int32_t worker) {
  const pid_t feed = getpid();
  const pid_t pid = fork();
  if (pid == 0) run_worker(generator_, *slots_, schema_, worker, feed);
  return pid;
}

// Whether this is sure. What a process has is given to others when it has ended, and its descriptor does not
// tell: other code may have closed it, and its number be another one's. A child that nobody has waited for is
// known without a descriptor.
bool WorkerProcesses::has_ended(const Peer& peer) noexcept {
  const int64_t pid = peer.pid.load(std::memory_order_relaxed);
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid)
    return true;
  return os::has_ended({static_cast<uint32_t>(pid), peer.start});
}

// For a process whose pidfd is lost. False: it has ended.
bool WorkerProcesses::watch_again(Peer& peer) noexcept {
  const int64_t pid = peer.pid.load(std::memory_order_relaxed);
  if (has_ended(peer)) return false;
  if (os::File again = pidfd_open(pid)) peer.process = std::move(again);
  return true;
}

// Requires mutex_.
void WorkerProcesses::renew_wake() noexcept {
  try {
    wake_ = os::create_event();
  } catch (const std::exception&) {
    // The next look tries again.
  }
}

// Its descriptor says that its process has ended.
void WorkerProcesses::note_end(int32_t worker) noexcept {
  Peer& peer = peers_[static_cast<size_t>(worker)];
  if (!has_ended(peer)) {
    if (os::File again = pidfd_open(peer.pid.load(std::memory_order_relaxed))) {
      peer.process = std::move(again);
    } else {  // poll() would return at once again
      std::this_thread::sleep_for(std::chrono::nanoseconds(kOwedLookNs));
    }
    return;
  }
  End end;
  end.pid = peer.pid.load(std::memory_order_relaxed);
  end.status = kUnknownStatus;
  if (generator_.start != nullptr && generator_.reap != nullptr) {
    generator_.reap(generator_.context, worker, end.pid, &end.status);
  } else {
    siginfo_t info{};
    constexpr idtype_t kPidfd = static_cast<idtype_t>(3);  // P_PIDFD
    const int fd = peer.process.fd();
    if (fd < 0) {
      // It may be another child by now.
      if (waitpid(static_cast<pid_t>(end.pid), &end.status, WNOHANG) != end.pid) end.status = kUnknownStatus;
    } else if (waitid(kPidfd, static_cast<id_t>(fd), &info, WEXITED) == 0) {
      end.status = status_of(info);
    }
  }
  peer.process = os::File();
  peer.is_alive.store(false, std::memory_order_relaxed);
  LoopRecord& record = control_.loop(worker);
  end.has_hung = record.since_ns.load(std::memory_order_relaxed) == FillLoop::kAbandoned;
  const bool is_told = calls_.on_end(worker, end);
  record.since_ns.store(FillLoop::kIdle, std::memory_order_relaxed);
  store(record.ended, record.begun.load(std::memory_order_relaxed));
  is_told ? want(worker) : owe(worker, std::move(end));
}

// It may be started again.
void WorkerProcesses::want(int32_t worker) noexcept {
  const std::scoped_lock lock(mutex_);
  if (!is_over_) to_start_.push_back(worker);
}

void WorkerProcesses::owe(int32_t worker, End end) noexcept {
  peers_[static_cast<size_t>(worker)].owed = std::move(end);
  owed_.fetch_add(1, std::memory_order_relaxed);
}

void WorkerProcesses::tell_owed() noexcept {
  for (int32_t i = 0; i < workers(); ++i) {
    std::optional<End>& owed = peers_[static_cast<size_t>(i)].owed;
    if (!owed || !calls_.on_owed(i, *owed)) continue;
    owed.reset();
    owed_.fetch_sub(1, std::memory_order_relaxed);
    want(i);
  }
}

// False: there is none to start.
bool WorkerProcesses::start_next() noexcept {
  int32_t worker = -1;
  {
    const std::scoped_lock lock(mutex_);
    if (to_start_.empty()) return false;
    worker = to_start_.front();
    to_start_.pop_front();
  }
  std::string failure = start_one(worker);
  Peer& peer = peers_[static_cast<size_t>(worker)];
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(peer.is_wanted, false)) {
      peer.failure = std::move(failure);
      changed_.notify_all();
      return true;
    }
  }
  restarts_.fetch_add(1, std::memory_order_relaxed);
  if (failure.empty()) return true;
  control_.loop(worker).since_ns.store(FillLoop::kIdle, std::memory_order_relaxed);
  End end;
  end.failure = std::move(failure);
  owe(worker, std::move(end));
  return true;
}

// Kills those that take too long: in a fill; and while a consumer waits, also outside of one, or on the way
// to one. A worker changes since_ns before it settles what it has filled. So it settles nothing after this.
void WorkerProcesses::kill_late() noexcept {
  const int64_t timeout_ns = control_.head().fill_timeout_ns;
  if (timeout_ns <= 0) return;
  const bool is_awaited = control_.shared().settled.has_sleepers();
  note_ungiven(is_awaited);
  for (int32_t i = 0; i < workers(); ++i) {
    Peer& peer = peers_[static_cast<size_t>(i)];
    if (!peer.process) continue;
    std::atomic<int64_t>& since_ns = control_.loop(i).since_ns;
    // pairs with: ProcessWorker::note_busy, "what a loop is busy with"
    int64_t since = since_ns.load(std::memory_order_acquire);
    if (since == FillLoop::kAbandoned) kill_one(peer);  // again: the descriptor may have been lost
    int64_t busy_since = since;
    if (since == FillLoop::kIdle && is_awaited) busy_since = idle_since(i);
    if (busy_since <= FillLoop::kIdle || now_ns() - busy_since < timeout_ns) continue;
    if (FillLoop::is_outside(since) && !is_awaited) continue;
    // pairs with: ProcessWorker::note_busy, "what a loop is busy with"
    if (since_ns.compare_exchange_strong(since, FillLoop::kAbandoned, std::memory_order_acq_rel))
      kill_one(peer);
  }
}

// Since when consumers wait for a ticket that no worker takes.
void WorkerProcesses::note_ungiven(bool is_awaited) noexcept {
  const SlotTable table = control_.table();
  const SharedRound& round = control_.shared().round;
  const uint64_t wanted = table.passed() + 1;
  const bool is_ungiven = is_awaited && !control_.head().has(kPrepares) && table.given() < wanted &&
                          wanted < look(round.limit) && look(round.closed) < look(round.base);
  if (is_ungiven && ungiven_ == wanted) return;
  ungiven_ = is_ungiven ? wanted : 0;
  ungiven_since_ns_ = now_ns();
}

// Of a worker that asks for a batch: since when it keeps the consumers waiting, which a process that is
// stopped does. It has the ticket for which they wait, or could take it. 0: it does not, or it takes memory,
// for which there is no limit of time.
int64_t WorkerProcesses::idle_since(int32_t worker) const noexcept {
  const FeedHead& head = control_.head();
  const SlotTable table = control_.table();
  const uint64_t wanted = table.passed() + 1;
  const uint32_t holder = Slots::kFirstLoop + static_cast<uint32_t>(worker);
  const auto has_memory = [&](uint32_t slot) {
    return head.has(kHasSparseSlots) || look(control_.record(slot).has_memory) != 0;
  };
  const uint32_t front = table.slot_of(wanted);
  if (front != SlotTable::kNone && table.word(front) == SlotWord::held(holder, wanted)) {
    const int64_t since = look(control_.record(front).since_ns);
    return has_memory(front) && table.word(front) == SlotWord::held(holder, wanted) ? since : 0;
  }
  if (ungiven_ != wanted) return 0;
  const SharedRound& round = control_.shared().round;
  const uint64_t turn = wanted - look(round.base) + look(round.first_worker);
  if (head.has(kGoesRound) && turn % static_cast<uint64_t>(head.workers) != static_cast<uint64_t>(worker))
    return 0;
  bool is_any_free = false;
  for (uint32_t slot = 0; slot < static_cast<uint32_t>(slots_->made()); ++slot) {
    const uint64_t word = table.word(slot);
    if (word == SlotWord::held(holder, 0)) return has_memory(slot) ? ungiven_since_ns_ : 0;
    is_any_free = is_any_free || word == SlotWord::kFree;
  }
  return is_any_free ? ungiven_since_ns_ : 0;  // else it waits for a slot
}

// Until something has to be done that no descriptor tells of.
int64_t WorkerProcesses::time_left_ns(const Deadline* grace) const noexcept {
  if (grace != nullptr) return std::min(kLookNs, std::max<int64_t>(grace->left_ns(), 0));
  const SharedRound& round = control_.shared().round;
  const bool may_tell = owed_.load(std::memory_order_relaxed) > 0 && look(round.limit) != look(round.base);
  int64_t left = may_tell ? kOwedLookNs : kLookNs;
  const int64_t timeout_ns = control_.head().fill_timeout_ns;
  for (int32_t i = 0; timeout_ns > 0 && i < workers(); ++i) {
    if (!peers_[static_cast<size_t>(i)].process) continue;
    const int64_t since = control_.loop(i).since_ns.load(std::memory_order_relaxed);
    if (since < FillLoop::kIdle) continue;  // it is killed
    const int64_t own = since == FillLoop::kIdle ? timeout_ns : since - now_ns() + timeout_ns;
    // One that is late already is killed as soon as a consumer waits.
    left = std::min(left, own > 0 ? own : std::max(timeout_ns / 8, kShortestLookNs));
  }
  return left;
}

void WorkerProcesses::run() noexcept {
  (void)pthread_setname_np(pthread_self(), "tenon-feed-w");
  std::vector<pollfd> files;
  std::vector<int32_t> watched;
  bool has_killed = false;
  while (true) {
    std::optional<Deadline> grace;
    watched.assign(1, -1);
    {
      const std::scoped_lock lock(mutex_);
      if (wake_.is_lost()) renew_wake();
      files.assign(1, {wake_.fd(), POLLIN, 0});
      if (is_over_) grace = grace_;
    }
    int32_t ended = -1;
    for (int32_t i = 0; i < workers(); ++i) {
      Peer& peer = peers_[static_cast<size_t>(i)];
      if (!peer.process) continue;
      if (peer.process.is_lost() && !watch_again(peer)) ended = i;
      files.push_back({peer.process.fd(), POLLIN, 0});
      watched.push_back(i);
    }
    if (grace && watched.size() == 1) break;
    if (ended >= 0) {
      note_end(ended);
      continue;
    }
    if (!grace) {
      tell_owed();
      if (start_next()) continue;
      kill_late();
    } else if (!has_killed && grace->has_passed()) {
      has_killed = true;
      for (Peer& peer : peers_) kill_one(peer);
    }
    const timespec left = timespec_of(time_left_ns(grace && !has_killed ? &*grace : nullptr));
    if (ppoll(files.data(), files.size(), &left, nullptr) <= 0) continue;
    if (files[0].revents != 0) os::clear_event(wake_);
    for (size_t k = 1; k < files.size(); ++k) {
      if (files[k].revents != 0 && !peers_[static_cast<size_t>(watched[k])].process.is_lost())
        note_end(watched[k]);
    }
  }
  calls_.on_over();
}

void WorkerProcesses::kill_one(Peer& peer) noexcept {
  if (peer.process.is_lost() && !watch_again(peer)) return;
  const int fd = peer.process.fd();
  if (fd >= 0) (void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0);
}

void WorkerProcesses::request_start(int32_t worker) {
  const std::scoped_lock lock(mutex_);
  peers_[static_cast<size_t>(worker)].is_wanted = true;
  if (!is_over_) to_start_.push_back(worker);
  os::signal_event(wake_);
}

std::string WorkerProcesses::await_start(int32_t worker) {
  Peer& peer = peers_[static_cast<size_t>(worker)];
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !peer.is_wanted || is_over_; });
  return peer.is_wanted ? "the feed is closed" : peer.failure;
}

int64_t WorkerProcesses::pid(int32_t worker) const noexcept {
  const Peer& peer = peers_[static_cast<size_t>(worker)];
  return peer.is_alive.load(std::memory_order_relaxed) ? peer.pid.load(std::memory_order_relaxed) : 0;
}

void WorkerProcesses::note_begin() noexcept {
  if (owed_.load(std::memory_order_relaxed) == 0) return;
  const std::scoped_lock lock(mutex_);
  if (wake_) os::signal_event(wake_);
}

void WorkerProcesses::dismiss() noexcept {
  const std::scoped_lock lock(mutex_);
  if (!std::exchange(is_over_, true)) grace_ = Deadline(kGraceNs);
  to_start_.clear();
  changed_.notify_all();
  if (wake_) os::signal_event(wake_);
}

void WorkerProcesses::end() noexcept {
  dismiss();
  if (supervisor_.joinable()) supervisor_.join();
}

}  // namespace tenon::impl
