// SPDX-License-Identifier: Apache-2.0
//
// The floors: a word in shared memory, polled or slept on, and what the kernel wakes by.
#include "party.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <semaphore.h>
#include <climits>
#include <new>

namespace bench {
namespace {

// The word holds how many were sent, and the array follows from that.
struct Word {
  alignas(64) std::atomic<uint32_t> sent;
  alignas(64) std::atomic<uint32_t> sleepers;
};

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// kSpins: looks at the word before it sleeps; below zero it never sleeps.
template <int kSpins>
class WordChannel {
 public:
  explicit WordChannel(const Side& side) : word_(*reinterpret_cast<Word*>(side.state())) {}

  void set_up() {}

  void send(uint64_t) {
    // pairs with: WordChannel::receive, "the array is written"
    word_.sent.store(++count_, std::memory_order_seq_cst);
    // pairs with: WordChannel::receive, "somebody sleeps"
    if (kSpins >= 0 && word_.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(word_.sent);
  }

  uint64_t receive() {
    count_++;
    for (int i = 0; kSpins < 0 || i < kSpins; i++) {
      // pairs with: WordChannel::send, "the array is written"
      if (word_.sent.load(std::memory_order_acquire) == count_) return count_ % kArrays;
      relax();
    }
    // pairs with: WordChannel::send, "somebody sleeps"
    word_.sleepers.store(1, std::memory_order_seq_cst);
    // pairs with: WordChannel::send, "the array is written"
    while (word_.sent.load(std::memory_order_seq_cst) != count_) futex_wait(word_.sent, count_ - 1);
    word_.sleepers.store(0, std::memory_order_relaxed);
    return count_ % kArrays;
  }

 private:
  Word& word_;
  uint32_t count_ = 0;
};

class PosixSemaphore {
 public:
  explicit PosixSemaphore(const Side& side) : semaphore_(reinterpret_cast<sem_t*>(side.state())) {
    if (side.is_producer) sem_init(semaphore_, 1, 0);
  }

  void set_up() {}
  void send(uint64_t) { sem_post(semaphore_); }

  uint64_t receive() {
    while (sem_wait(semaphore_) != 0) continue;
    return ++count_ % kArrays;
  }

 private:
  sem_t* semaphore_;
  uint64_t count_ = 0;
};

constexpr int kSpinsBeforeSleep = 2000;
constexpr Contender kContenders[] = {
    {"a word, polled", "spinning", open<HandOver<ArraysOfSide<WordChannel<-1>>, kShortPauseNs>>},
    {"a word, polled, then a futex", "spinning",
     open<HandOver<ArraysOfSide<WordChannel<kSpinsBeforeSleep>>, kShortPauseNs>>},
    {"futex", "asleep", open<HandOver<ArraysOfSide<WordChannel<0>>, kLongPauseNs>>},
    {"POSIX semaphore", "asleep", open<HandOver<ArraysOfSide<PosixSemaphore>, kLongPauseNs>>},
};

}  // namespace

std::span<const Contender> raw_contenders() { return kContenders; }

}  // namespace bench
