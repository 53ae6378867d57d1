// SPDX-License-Identifier: Apache-2.0
//
// Locks whose holder is killed, and the floor of them: the robust mutex of POSIX.
#include "party.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace bench {
namespace {

// Long enough for the consumer to be asleep in the lock.
constexpr int64_t kBeforeDeathNs = 200'000;

class Recovery final : public Party {
 public:
  Recovery(const Side& side, const Lock& lock, bool is_late) : side_(side), lock_(lock), is_late_(is_late) {}

  void turn(int64_t n, int64_t* stamps) override {
    for (int64_t i = 0; i < n; i++) {
      count_++;
      stamps[i] = side_.is_producer ? kill_a_holder() : get_the_lock();
    }
  }

 private:
  int64_t kill_a_holder() {
    const pid_t holder = lock_.start_holder ? lock_.start_holder(lock_.state) : fork_holder();
    if (!is_late_) {
      publish(side_.board().asked, count_);
      await(side_.board().waiting, count_);
      spin_for(kBeforeDeathNs);
    }
    const int64_t before = now_ns();
    kill(holder, SIGKILL);
    waitpid(holder, nullptr, 0);  // and dies on it
    if (is_late_) publish(side_.board().asked, count_);
    await(side_.board().done, count_);
    return is_late_ ? 0 : before;
  }

  pid_t fork_holder() {
    const pid_t parent = getpid();
    const pid_t holder = fork();
    if (holder < 0) throw std::runtime_error("fork failed");
    if (holder > 0) {
      // Sleeps: the holder runs on this core.
      while (side_.board().held.load(std::memory_order_acquire) < count_) usleep(20);
      return holder;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    lock_.lock(lock_.state);
    publish(side_.board().held, count_);
    for (;;) pause();
  }

  int64_t get_the_lock() {
    await(side_.board().asked, count_);
    publish(side_.board().waiting, count_);
    const int64_t before = is_late_ ? now_ns() : 0;
    lock_.recover(lock_.state);
    const int64_t after = now_ns();
    publish(side_.board().done, count_);
    return after - before;
  }

  const Side side_;
  const Lock lock_;
  const bool is_late_;
  uint64_t count_ = 0;
};

void lock_mutex(void* mutex) {
  if (pthread_mutex_lock(static_cast<pthread_mutex_t*>(mutex)) != 0) _exit(1);
}

void recover_mutex(void* state) {
  auto* mutex = static_cast<pthread_mutex_t*>(state);
  if (pthread_mutex_lock(mutex) != EOWNERDEAD) throw std::runtime_error("no word of the holder's death");
  pthread_mutex_consistent(mutex);
  pthread_mutex_unlock(mutex);
}

template <bool kIsLate>
std::unique_ptr<Party> robust_mutex(const Side& side) {
  auto* mutex = reinterpret_cast<pthread_mutex_t*>(side.state());
  if (side.is_producer) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attributes);
  }
  return recovery(side, {mutex, lock_mutex, recover_mutex}, kIsLate);
}

constexpr Contender kContenders[] = {
    {"robust mutex of POSIX", "recovery", robust_mutex<false>},
    {"robust mutex of POSIX", "late recovery", robust_mutex<true>},
};

}  // namespace

std::unique_ptr<Party> recovery(const Side& side, const Lock& lock, bool is_late) {
  return std::make_unique<Recovery>(side, lock, is_late);
}

std::span<const Contender> recovery_contenders() { return kContenders; }

}  // namespace bench
