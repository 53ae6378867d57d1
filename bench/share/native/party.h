// SPDX-License-Identifier: Apache-2.0
//
// Two processes that hand something to each other: what each contender is a pair of, and the loops that time
// it. Both map the same memory, which is zero at first: a board of words, room for what a contender needs,
// and arrays. Times are those of CLOCK_MONOTONIC, which the processors share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include <sys/types.h>

namespace bench {

constexpr std::size_t kStateOffset = 4096;
constexpr std::size_t kArraysOffset = 65'536;
constexpr std::size_t kArrayBytes = 4096;
constexpr uint64_t kArrays = 16;
constexpr std::size_t kMemoryBytes = kArraysOffset + kArrays * kArrayBytes;

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Words that the two sides pace themselves by, each written by one of them; outside the times.
struct Board {
  alignas(64) std::atomic<uint64_t> done;     // exchanges that the consumer has ended
  alignas(64) std::atomic<uint64_t> held;     // recovery: locks that a holder has got
  alignas(64) std::atomic<uint64_t> asked;    // recovery: locks that the consumer is to wait for
  alignas(64) std::atomic<uint64_t> waiting;  // recovery: locks that it is about to wait for
};

// pairs with: publish(), "what was written before the word"
inline void await(const std::atomic<uint64_t>& word, uint64_t value) {
  while (word.load(std::memory_order_acquire) < value) relax();
}

// pairs with: await(), "what was written before the word"
inline void publish(std::atomic<uint64_t>& word, uint64_t value) {
  word.store(value, std::memory_order_release);
}

inline void spin_for(int64_t ns) {
  for (const int64_t end = now_ns() + ns; now_ns() < end;) relax();
}

// What one process has of the memory.
struct Side {
  char* memory;
  std::string name;  // for what needs one: of this pair alone
  bool is_producer;

  Board& board() const { return *reinterpret_cast<Board*>(memory); }
  char* state() const { return memory + kStateOffset; }
  volatile uint64_t& array(uint64_t i) const {
    return *reinterpret_cast<volatile uint64_t*>(memory + kArraysOffset + i * kArrayBytes);
  }
};

// One process of a contender. One thread.
class Party {
 public:
  virtual ~Party() = default;
  // Both sides are open: names may go.
  virtual void set_up() {}
  // n exchanges; writes a time for each, whose difference between the two sides is the latency.
  virtual void turn(int64_t n, int64_t* stamps) = 0;
};

struct Contender {
  const char* name;
  const char* group;  // "spinning", "asleep", "recovery" or "late recovery"
  std::unique_ptr<Party> (*open)(const Side&);
};

// A channel that hands over which of the side's arrays was written. Numbers: Numbers(side), set_up(),
// send(uint64_t), uint64_t receive().
template <class Numbers>
class ArraysOfSide {
 public:
  explicit ArraysOfSide(const Side& side) : side_(side), numbers_(side) {}

  void set_up() { numbers_.set_up(); }
  void hand_over(uint64_t value) {
    const uint64_t which = value % kArrays;
    side_.array(which) = value;
    numbers_.send(which);
  }
  uint64_t take() { return side_.array(numbers_.receive()); }
  void give_back() {}

 private:
  const Side side_;
  Numbers numbers_;
};

// Channel: Channel(side), set_up(), hand_over(uint64_t), which writes that into an array, uint64_t take(),
// which reads it there, and give_back(), behind the time, when the array is not needed any more.
template <class Channel, int64_t kPauseNs>
class HandOver final : public Party {
 public:
  explicit HandOver(const Side& side) : side_(side), channel_(side) {}

  void set_up() override { channel_.set_up(); }

  void turn(int64_t n, int64_t* stamps) override {
    for (int64_t i = 0; i < n; i++) stamps[i] = side_.is_producer ? produce() : consume();
  }

 private:
  int64_t produce() {
    await(side_.board().done, count_);
    spin_for(kPauseNs);  // the consumer gets back to waiting
    const int64_t before = now_ns();
    channel_.hand_over(++count_);
    return before;
  }

  int64_t consume() {
    const uint64_t value = channel_.take();
    const int64_t after = now_ns();
    channel_.give_back();
    if (value != ++count_) throw std::runtime_error("the array holds what another exchange wrote");
    publish(side_.board().done, count_);
    return after;
  }

  const Side side_;
  Channel channel_;
  uint64_t count_ = 0;
};

// Long enough for the consumer to poll again, and long enough for it to fall asleep.
constexpr int64_t kShortPauseNs = 2'000;
constexpr int64_t kLongPauseNs = 100'000;

template <class T>
std::unique_ptr<Party> open(const Side& side) {
  return std::make_unique<T>(side);
}

// A lock whose holder is killed. The producer starts holders and kills them; the consumer waits for the lock.
struct Lock {
  void* state;
  void (*lock)(void* state);  // by the holder, a forked child of the producer
  // lock() where the holder dies: throws unless told of that, and leaves the lock free.
  void (*recover)(void* state);
  pid_t (*start_holder)(void* state) = nullptr;  // where it is no forked child: returns when it has the lock
};
// is_late: the consumer asks for the lock when the holder has ended already.
std::unique_ptr<Party> recovery(const Side& side, const Lock& lock, bool is_late);

std::span<const Contender> raw_contenders();
std::span<const Contender> recovery_contenders();
std::span<const Contender> boost_contenders();
std::span<const Contender> tenon_contenders();
const char* boost_version();

}  // namespace bench
