// SPDX-License-Identifier: Apache-2.0
#include "ipc/timed_lock.h"

#include <errno.h>
#include <linux/futex.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/os.h"
#include "base/spin_budget.h"
#include "base/timed_mutex.h"
#include "sync/waiter.h"

namespace tenon::impl {
namespace {

constexpr int64_t kLockSliceNs = 20'000'000;
constexpr int64_t kHolderGraceNs = 1'000'000'000;  // for a holder that is not stopped: the sections are short

// The process that holds the mutex; 0: unknown. glibc's mutexes begin with the word that robust-futexes.rst
// of the kernel describes. It contains the number of the thread that holds it.
uint32_t holder_of(pthread_mutex_t& mutex) {
  const auto& word = *reinterpret_cast<const std::atomic<uint32_t>*>(&mutex);
  const uint32_t thread = word.load(std::memory_order_relaxed) & FUTEX_TID_MASK;
  if (thread == 0) return 0;
  std::ifstream file(concat("/proc/", thread, "/status"));
  const std::string wanted = "Tgid:";
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, wanted.size(), wanted) != 0) continue;
    return static_cast<uint32_t>(std::strtoul(line.c_str() + wanted.size(), nullptr, 10));
  }
  return 0;
}

}  // namespace

void make_robust(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int result = pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (result != 0) throw_error(Code::kSystem, "no robust mutex: ", std::strerror(result));
}

bool TimedLock::poll() noexcept {
  int result = EBUSY;
  const auto is_over = [&] { return (result = pthread_mutex_trylock(&mutex_)) != EBUSY; };
  return spin(kBriefLooks, is_over) && note(result);
}

void TimedLock::wait(const Deadline& deadline, const char* doing) {
  is_held_ = poll();
  if (is_held_) return;
  Waiter waiter;
  while (true) {
    const int64_t left = deadline.left_ns();
    const WaitEnd end = waiter.sleep(
        std::clamp<int64_t>(left, 1'000'000, kLockSliceNs),
        [&](int64_t ns) { return is_held_ = note(lock_until(mutex_, now_ns() + ns)); },
        [&] { return concat("to ", doing, ": ", os::process_text(holder_of(mutex_)), " holds its lock"); });
    if (is_held_) return;
    if (end == WaitEnd::kInterrupted)
      throw_error(Code::kInterrupted, "the wait to ", doing, " was interrupted");
    if (deadline.has_passed()) {
      const uint32_t holder = holder_of(mutex_);
      const bool is_stopped = holder != 0 && os::is_stopped(holder);
      if (is_stopped || left < -kHolderGraceNs) {
        throw_error(Code::kTimeout, "cannot ", doing, " in the time given: ", os::process_text(holder),
                    " holds its lock", is_stopped ? ": continue or end that process" : "");
      }
    }
  }
}

}  // namespace tenon::impl
