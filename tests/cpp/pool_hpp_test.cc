// SPDX-License-Identifier: Apache-2.0
//
// Tensor pools as a user of the C++ layer sees them. Their laws: src/ipc/tensor_pool_test.cc.
#include "tenon/pool.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tenon/share.hpp"

namespace {

using namespace std::chrono_literals;
using tenon::Array;
using tenon::Message;
using tenon::MessageOptions;
using tenon::open_message;
using tenon::TensorPool;

constexpr uint64_t kBudget = 4 << 20;

Array numbered(const TensorPool& pool, int64_t n, int32_t first = 0) {
  const Array made = pool.empty<int32_t>({n});
  const auto view = made.as<int32_t, 1>();
  for (int64_t i = 0; i < n; ++i) view(i) = first + static_cast<int32_t>(i);
  return made;
}

int32_t at(const Array& array, int64_t i) { return array.as<const int32_t, 1>()(i); }

// The code of the error, and for GONE the reason.
struct Failed {
  tenon_status status = TENON_OK;
  int32_t reason = 0;
};
template <class Body>
Failed failure_of(Body&& body) {
  try {
    body();
  } catch (const tenon::Error& error) {
    return {error.code(), error.op_code()};
  }
  return {};
}
int32_t reason_why_gone(const Message& message) {
  const Failed failed = failure_of([&] { (void)open_message(message); });
  return failed.status == TENON_ERR_GONE ? failed.reason : 0;
}

TEST(PoolHpp, AMessageHandsItsArraysOver) {
  const TensorPool pool = TensorPool::create(kBudget);
  const Array x = numbered(pool, 1000);
  const void* const data = x.data();
  EXPECT_EQ(pool.owns(x), 1);
  const Message message = pool.send(x);
  EXPECT_EQ(failure_of([&] { (void)at(x, 0); }).status, TENON_ERR_MOVED);
  EXPECT_TRUE(tenon::is_unopened_message(message));
  const std::vector<Array> got = open_message(message);
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].data(), data);
  EXPECT_EQ(at(got[0], 999), 999);
  got[0].fill(int32_t{7});
  EXPECT_EQ(at(got[0], 0), 7);
  EXPECT_FALSE(tenon::is_unopened_message(message));
}

TEST(PoolHpp, AMessageHasAnyNumberOfArraysInTheirOrder) {
  const TensorPool pool = TensorPool::create(kBudget);
  EXPECT_TRUE(open_message(pool.send(std::vector<Array>())).empty());
  std::vector<Array> arrays;
  for (int32_t i = 0; i < 100; ++i) arrays.push_back(numbered(pool, 3, i));
  arrays.push_back(pool.empty({}, "f8"));
  const std::vector<Array> got = open_message(pool.send(arrays));
  ASSERT_EQ(got.size(), 101U);
  for (int32_t i = 0; i < 100; ++i) EXPECT_EQ(at(got[static_cast<size_t>(i)], 0), i);
  EXPECT_EQ(got.back().ndim(), 0);
  EXPECT_EQ(got.back().dtype().name(), "float64");
}

TEST(PoolHpp, AnotherProcessHasTheArrays) {
  const TensorPool pool = TensorPool::create(kBudget);
  const Message message = pool.send(numbered(pool, 1000), {.opens = 2});
  const pid_t child = fork();
  if (child == 0) {
    int result = 1;
    try {
      const std::vector<Array> got = open_message(message, true);
      if (got[0].is_readonly() && at(got[0], 999) == 999) result = 0;
    } catch (const tenon::Error&) {
      result = 2;
    }
    _exit(result);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(tenon::linger_for_messages(0ns), 1U) << "it may be opened once more";
  const std::vector<Array> shared = open_message(message, true), copies = open_message(message);
  copies[0].fill(int32_t{1});
  EXPECT_EQ(at(shared[0], 999), 999) << "a copy is the caller's alone";
  EXPECT_EQ(tenon::linger_for_messages(0ns), 0U);
}

TEST(PoolHpp, AFrozenArrayIsSentRepeatedly) {
  const TensorPool pool = TensorPool::create(kBudget);
  const Array frozen = pool.freeze(pool.put(Array::adopt(std::vector<int32_t>{4, 5, 6})));
  EXPECT_EQ(pool.owns(frozen), 2);
  EXPECT_TRUE(frozen.is_readonly());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(at(open_message(pool.send(frozen))[0], 1), 5);
  EXPECT_EQ(at(frozen, 2), 6);
  EXPECT_EQ(failure_of([&] { (void)pool.freeze(Array::zeros<int32_t>({3})); }).status, TENON_ERR_TYPE);
}

TEST(PoolHpp, AMessageEndsAsItsOptionsSay) {
  const TensorPool pool = TensorPool::create(kBudget);
  const auto send = [&](const MessageOptions& options) { return pool.send(numbered(pool, 3), options); };
  Message message = send({});
  (void)open_message(message);
  EXPECT_EQ(reason_why_gone(message), TENON_GONE_OPENED) << "one open, and its arrays are gone";
  EXPECT_EQ(reason_why_gone(send({.timeout = 0ns})), TENON_GONE_EXPIRED);
  const Message first = send({.opens = 0, .tag = "a"}), second = send({.opens = 0, .tag = "b"});
  EXPECT_EQ(pool.revoke("a"), 1U);
  EXPECT_EQ(reason_why_gone(first), TENON_GONE_REVOKED);
  EXPECT_TRUE(tenon::is_unopened_message(second));
  tenon::revoke_message(second);
  EXPECT_EQ(reason_why_gone(second), TENON_GONE_REVOKED);
  const pid_t child = fork();
  if (child == 0) {
    (void)pause();
    _exit(0);
  }
  message = send({.receivers = {static_cast<uint32_t>(child)}});
  EXPECT_TRUE(tenon::is_unopened_message(message));
  EXPECT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(pool.stats().messages, 0U);
  EXPECT_EQ(reason_why_gone(message), TENON_GONE_RECEIVERS);
  EXPECT_EQ(failure_of([&] { (void)send({.receivers = {static_cast<uint32_t>(child)}}); }).status,
            TENON_ERR_NOT_FOUND);
}

// Messages that several threads send, open and revoke.
class Sent {
 public:
  struct One {
    Message message;
    int32_t value;  // of all elements
  };
  void add(One one) {
    const std::scoped_lock locked(lock_);
    if (all_.size() < 16) return all_.push_back(std::move(one));
    all_[last_++ % all_.size()] = std::move(one);
  }
  std::optional<One> any(uint32_t number) {
    const std::scoped_lock locked(lock_);
    if (all_.empty()) return std::nullopt;
    return all_[number % all_.size()];
  }

 private:
  std::mutex lock_;
  std::vector<One> all_;  // guarded by lock_
  size_t last_ = 0;       // the same
};

// With memcmp, since loops of debug builds are slow: a process of low priority gets little time.
bool is_filled(const Array& array, int32_t value) {
  const auto view = array.as<const int32_t, 1>();
  const std::span<const int32_t> all = view.span();
  return all.front() == value &&
         std::memcmp(all.data(), all.data() + 1, all.size_bytes() - sizeof value) == 0;
}

// Oracle: an open fails with GONE, or gives the elements that were sent. Nobody sees what another one writes.
// At the end the pool is empty.
TEST(PoolHpp, ThreadsUseAPoolAtOnce) {
  constexpr int kThreads = 4, kSteps = 1000, kMostKept = 4;
  constexpr int64_t kShort = 1000, kLong = 1 << 20;  // arrays; copies of long ones lie in private pages
  const TensorPool pool = TensorPool::create(64 << 20, {.idle_nbytes = 1 << 20});
  const uint64_t seed = std::random_device()();
  Sent sent;
  const auto run = [&](uint32_t thread) {
    std::minstd_rand random(static_cast<uint32_t>(seed) + thread);
    std::vector<std::pair<Array, int32_t>> kept;
    for (int step = 0; step < kSteps; ++step) {
      const auto number = static_cast<uint32_t>(random());
      const auto value = static_cast<int32_t>(number);
      const std::optional<Sent::One> one = sent.any(number);
      const Failed failed = failure_of([&] {
        switch (random() % 8) {
          case 0:
          case 1:
          case 2: {
            Array x = pool.empty<int32_t>({number % 16 == 0 ? kLong : kShort}, 0ns);
            x.fill(value);
            if (number / 64 % 2 == 0) x = pool.freeze(x);
            const uint32_t opens = number / 16 % 3;
            sent.add({pool.send(x, {.opens = opens, .tag = std::to_string(number % 5)}), value});
            break;
          }
          case 3:
          case 4: {
            if (!one) break;
            const std::vector<Array> got = open_message(one->message, number / 64 % 2 == 0);
            EXPECT_TRUE(is_filled(got[0], one->value));
            kept.emplace_back(got[0], one->value);
            break;
          }
          case 5:
            if (one) tenon::revoke_message(one->message);
            break;
          case 6: (void)pool.revoke(std::to_string(number % 5)); break;
          default:
            (void)pool.stats();
            (void)pool.key();
            if (!one) break;
            (void)tenon::is_unopened_message(one->message);
            (void)tenon::key_of_message(one->message);
            (void)tenon::take_over_message(one->message);
        }
      });
      EXPECT_TRUE(failed.status == TENON_OK || failed.status == TENON_ERR_GONE ||
                  failed.status == TENON_ERR_NO_MEMORY)
          << failed.status;
      if (kept.size() < kMostKept) continue;
      EXPECT_TRUE(is_filled(kept.front().first, kept.front().second));
      kept.erase(kept.begin());
    }
  };
  SCOPED_TRACE(seed);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 5; ++i) (void)pool.revoke(std::to_string(i));
  while (pool.stats().used_nbytes != 0) std::this_thread::yield();
}

TEST(PoolHpp, AFullPoolIsAnError) {
  const TensorPool pool = TensorPool::create(kBudget, {.idle_nbytes = 0, .timeout = 1h});
  const Array x = pool.empty({kBudget}, "u1");
  EXPECT_EQ(failure_of([&] { (void)pool.empty({1}, "u1", 0ns); }).status, TENON_ERR_NO_MEMORY);
  EXPECT_EQ(failure_of([&] { (void)pool.empty({1}, "u1", 1ms); }).status, TENON_ERR_TIMEOUT);
  EXPECT_EQ(failure_of([&] { (void)pool.empty({kBudget + 1}, "u1"); }).status, TENON_ERR_VALUE);
  const tenon_pool_stats stats = pool.stats();
  EXPECT_EQ(stats.budget_nbytes, kBudget);
  EXPECT_EQ(stats.used_nbytes, kBudget);
  EXPECT_EQ(stats.blocks, 1U);
}

TEST(PoolHpp, APoolIsServedAsLongAsItsServerExists) {
  const std::string path = "/tmp/tenon-test-" + std::to_string(getpid()) + ".socket";
  const TensorPool pool = TensorPool::create(kBudget);
  EXPECT_EQ(failure_of([&] { (void)tenon::PoolLink::attach(path); }).status, TENON_ERR_NOT_FOUND);
  {
    const tenon::PoolServer server = pool.serve(path);
    const tenon::PoolLink link = tenon::PoolLink::attach(path, 1h);
    link.offer(pool);
    EXPECT_EQ(failure_of([&] { (void)pool.serve(path); }).status, TENON_ERR_SYSTEM);
  }
  EXPECT_EQ(failure_of([&] { (void)tenon::PoolLink::attach(path); }).status, TENON_ERR_NOT_FOUND);
}

TEST(PoolHpp, ACallerCountsWhatItRefuses) {
  const TensorPool pool = TensorPool::create(kBudget);
  EXPECT_EQ(failure_of([&] {
              const Array x = pool.empty({kBudget}, "u1");
              (void)pool.empty({1}, "u1", 0ns);
            }).status,
            TENON_ERR_NO_MEMORY);
  pool.note(2, 1, 300);
  const tenon_pool_stats stats = pool.stats();
  EXPECT_EQ(stats.refused, 3U);
  EXPECT_EQ(stats.inlined, 1U);
  EXPECT_EQ(stats.inlined_nbytes, 300U);
}

TEST(PoolHpp, AMessageNamesItsPoolAndItsLine) {
  const TensorPool pool = TensorPool::create(kBudget);
  const Message message = pool.send(numbered(pool, 3));
  EXPECT_EQ(tenon::key_of_message(message), pool.key());
  EXPECT_NE(TensorPool::create(kBudget).key(), pool.key());
  EXPECT_NE(tenon::describe_shared().find("pool_hpp_test.cc:"), std::string::npos);
  EXPECT_TRUE(tenon::take_over_message(message)) << "this process keeps it already";
  Message damaged = message;
  damaged.pop_back();
  EXPECT_EQ(failure_of([&] { (void)open_message(damaged); }).status, TENON_ERR_VALUE);
  EXPECT_EQ(failure_of([&] { tenon::revoke_message(Message()); }).status, TENON_ERR_VALUE);
}

}  // namespace
