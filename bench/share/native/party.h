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
  virtual void settled() {}
  // n exchanges; writes a time for each, whose difference between the two sides is the latency.
  virtual void turn(int64_t n, int64_t* stamps) = 0;
};

struct Contender {
  const char* name;
  const char* group;  // "spinning", "asleep" or "recovery"
  std::unique_ptr<Party> (*open)(const Side&);
};

// Hands over which array was written. Channel: Channel(side), send(uint64_t), uint64_t receive(), settled().
template <class Channel, int64_t kPauseNs>
class HandOver final : public Party {
 public:
  explicit HandOver(const Side& side) : side_(side), channel_(side) {}

  void settled() override { channel_.settled(); }

  void turn(int64_t n, int64_t* stamps) override {
    for (int64_t i = 0; i < n; i++) stamps[i] = side_.is_producer ? produce() : consume();
  }

 private:
  int64_t produce() {
    await(side_.board().done, count_);
    spin_for(kPauseNs);  // the consumer gets back to waiting
    const uint64_t which = ++count_ % kArrays;
    const int64_t before = now_ns();
    side_.array(which) = count_;
    channel_.send(which);
    return before;
  }

  int64_t consume() {
    const uint64_t value = side_.array(channel_.receive());
    const int64_t after = now_ns();
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

// A lock whose holder is killed. The producer starts holders and kills them; the consumer waits for the
// lock. recover is lock where the holder dies: it throws unless told of that, and leaves the lock free.
std::unique_ptr<Party> recovery(const Side& side, void (*lock)(void*), void (*recover)(void*), void* state);

std::span<const Contender> raw_contenders();
std::span<const Contender> recovery_contenders();
std::span<const Contender> boost_contenders();
const char* boost_version();

}  // namespace bench
