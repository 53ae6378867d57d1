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
  Recovery(const Side& side, void (*lock)(void*), void (*recover)(void*), void* state)
      : side_(side), lock_(lock), recover_(recover), state_(state) {}

  void turn(int64_t n, int64_t* stamps) override {
    for (int64_t i = 0; i < n; i++) {
      count_++;
      stamps[i] = side_.is_producer ? kill_a_holder() : wait_for_the_lock();
    }
  }

 private:
  int64_t kill_a_holder() {
    const pid_t holder = start_holder();
    // Sleeps: the holder runs on this core.
    while (side_.board().held.load(std::memory_order_acquire) < count_) usleep(20);
    publish(side_.board().asked, count_);
    await(side_.board().waiting, count_);
    spin_for(kBeforeDeathNs);
    const int64_t before = now_ns();
    kill(holder, SIGKILL);
    waitpid(holder, nullptr, 0);  // and dies on it
    await(side_.board().done, count_);
    return before;
  }

  pid_t start_holder() {
    const pid_t parent = getpid();
    const pid_t holder = fork();
    if (holder < 0) throw std::runtime_error("fork failed");
    if (holder > 0) return holder;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    lock_(state_);
    publish(side_.board().held, count_);
    for (;;) pause();
  }

  int64_t wait_for_the_lock() {
    await(side_.board().asked, count_);
    publish(side_.board().waiting, count_);
    recover_(state_);
    const int64_t after = now_ns();
    publish(side_.board().done, count_);
    return after;
  }

  const Side side_;
  void (*const lock_)(void*);
  void (*const recover_)(void*);
  void* const state_;
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

std::unique_ptr<Party> robust_mutex(const Side& side) {
  auto* mutex = reinterpret_cast<pthread_mutex_t*>(side.state());
  if (side.is_producer) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attributes);
  }
  return recovery(side, lock_mutex, recover_mutex, mutex);
}

constexpr Contender kContenders[] = {{"robust mutex of POSIX", "recovery", robust_mutex}};

}  // namespace

std::unique_ptr<Party> recovery(const Side& side, void (*lock)(void*), void (*recover)(void*), void* state) {
  return std::make_unique<Recovery>(side, lock, recover, state);
}

std::span<const Contender> recovery_contenders() { return kContenders; }

}  // namespace bench
