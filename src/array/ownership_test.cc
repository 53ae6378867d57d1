// SPDX-License-Identifier: Apache-2.0
#include "array/ownership.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "array/access.h"
#include "array/lease.h"
#include "base/error_testing.h"
#include "exec/engine.h"
#include "memory/known_memory.h"

namespace tenon::impl {
namespace {

constexpr DType kFloat32{TENON_FLOAT, 32};

Ref<Array> numbers(int64_t n) { return Array::create(kFloat32, std::array{n}, TENON_ZEROED); }

tenon_statistics statistics() {
  tenon_statistics s{};
  KnownMemory::instance().statistics(&s);
  return s;
}

void give_back(const Memory& memory) {
  if (memory.deleter != nullptr) memory.deleter(memory.owner);
}

// What an op does to all of an array.
Ref<Op> pushed_write(const Ref<Array>& array, std::atomic<int>* runs) {
  const Work work{runs,
                  [](void* context, Op* op) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(20));
                    static_cast<std::atomic<int>*>(context)->fetch_add(1);
                    op->complete();
                  },
                  nullptr};
  Ref<Op> op = Op::create(work, 1, "write", nullptr);
  op->parts[0].home = &array->storage().home();
  op->parts[0].extent = array->extent();
  op->parts[0].access = Access::kWrite;
  Conflict conflict;
  EXPECT_TRUE(Engine::instance().push(op, OnHost::kRaise, &conflict));
  return op;
}

TEST(Move, GivesTheMemoryAwayOnceAndRefusesEveryArrayOnIt) {
  std::atomic<int> deaths{0};
  std::vector<float> values(64);
  const auto bytes = reinterpret_cast<std::byte*>(values.data());
  const Memory given{bytes, 256, bytes, 256, false, &deaths, [](void* owner) {
                       static_cast<std::atomic<int>*>(owner)->fetch_add(1);
                     }};
  Ref<Array> a = Array::make(
      Storage::adopt(given),
      {bytes, kFloat32, {TENON_CPU, 0}, 0, std::array<int64_t, 1>{64}, std::array<int64_t, 1>{1}});
  Ref<Array> readonly = as_readonly(*a);
  const Memory memory = move_out(*a, "train.py:3");
  EXPECT_EQ(memory.data, bytes);
  EXPECT_STREQ(a->storage().moved_at(), "train.py:3");
  std::string message;
  EXPECT_EQ(code_of([&] { HostView view(*a, Access::kRead); }, &message), Code::kMoved);
  EXPECT_NE(message.find("train.py:3"), std::string::npos) << message;
  EXPECT_EQ(code_of([&] { (void)copy(*readonly, kFloat32); }), Code::kMoved);
  EXPECT_EQ(code_of([&] { (void)move_out(*readonly, nullptr); }), Code::kMoved);
  Lease lease;
  EXPECT_EQ(code_of([&] { lease.acquire(*a, Access::kRead, {}, current_actor(), nullptr, Deadline(0)); }),
            Code::kMoved);
  a = {};
  readonly = {};
  EXPECT_EQ(deaths, 0) << "the memory is not the storage's any more";
  give_back(memory);
  EXPECT_EQ(deaths, 1);
}

TEST(Move, LeavesTheBytesUnknownSoThatTheyCanBeImportedAgain) {
  const tenon_statistics before = statistics();
  Ref<Array> a = numbers(1000);
  const Memory memory = move_out(*a, nullptr);
  EXPECT_EQ(statistics().heap_nbytes, before.heap_nbytes);
  {
    const Ref<Storage> again =
        Storage::adopt({memory.data, memory.nbytes, memory.data, memory.nbytes, false, nullptr, nullptr});
    HostView view(*again, Access::kWrite);
    EXPECT_TRUE(view.is_open());
    EXPECT_EQ(code_of([&] { HostView refused(*a, Access::kRead); }), Code::kMoved);
  }
  a = {};
  give_back(memory);
  EXPECT_EQ(statistics().storages, before.storages);
  EXPECT_EQ(statistics().regions, before.regions);
}

TEST(Move, WaitsForOpsAndIsRefusedWhileAViewOrLeaseOrImportHoldsTheMemory) {
  Ref<Array> a = numbers(1000);
  std::string message;
  {
    HostView view;
    view.open(*a, Access::kRead, "look.py:9");
    EXPECT_EQ(code_of([&] { (void)move_out(*a, nullptr); }, &message), Code::kLeaseConflict);
    EXPECT_NE(message.find("look.py:9"), std::string::npos) << message;
  }
  {
    Lease lease;
    lease.acquire(*a, Access::kWrite, {}, current_actor(), "own.py:1", Deadline(-1));
    EXPECT_EQ(code_of([&] { (void)move_out(*a, nullptr); }, &message), Code::kLeaseConflict);
    EXPECT_NE(message.find("own.py:1"), std::string::npos) << message;
  }
  {
    const Ref<Storage> other = Storage::adopt({a->data(), 8, a->data(), 8, false, nullptr, nullptr});
    EXPECT_EQ(code_of([&] { (void)move_out(*a, nullptr); }), Code::kLeaseConflict);
  }
  std::atomic<int> runs{0};
  const Ref<Op> op = pushed_write(a, &runs);
  const Memory memory = move_out(*a, nullptr);
  EXPECT_EQ(runs, 1);
  give_back(memory);
}

TEST(Move, BesideViewsOfOtherThreadsIsRefusedOrRefusesThem) {
  for (int round = 0; round < 300; ++round) {
    Ref<Array> a = numbers(16);
    std::atomic<int> open{0}, refused{0};
    std::atomic<bool> is_moved{false};
    std::thread other([&] {
      for (int i = 0; i < 50; ++i) {
        try {
          HostView view(*a, Access::kWrite);
          ++open;
          EXPECT_FALSE(is_moved) << "a view of memory that another owner has";
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), Code::kMoved);
          ++refused;
        }
      }
    });
    Memory memory;
    while (memory.data == nullptr) {
      const Code code = code_of([&] { memory = move_out(*a, nullptr); });
      if (code == Code{0}) is_moved = true;
    }
    other.join();
    EXPECT_EQ(open + refused, 50);
    give_back(memory);
  }
}

// The waiting thread goes on while this one releases the lease, which keeps the memory too: hence the rounds.
TEST(View, KeepsTheMemoryIfItsArrayIsReleasedWhileItWaits) {
  alignas(64) std::array<float, 16> values{};
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> is_deleted{false};
    const auto note = [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; };
    Ref<Storage> storage =
        Storage::adopt({bytes, sizeof values, bytes, sizeof values, false, &is_deleted, note});
    Home& home = storage->home();
    Ref<Array> a = Array::over(std::move(storage), kFloat32, std::array<int64_t, 1>{16}, 0);
    Lease lease;
    lease.acquire(*a, Access::kWrite, {}, current_actor(), nullptr, Deadline(-1));
    std::thread other([&, array = a.get()] {
      HostView view(*array, Access::kRead);
      EXPECT_FALSE(is_deleted);
    });
    for (bool is_waiting = false; !is_waiting;) {
      Queue& queue = lock_home(home);
      is_waiting = queue.first()->next != nullptr;
      queue.lock.unlock();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that it sleeps
    a = {};
    lease.release();
    other.join();
    EXPECT_TRUE(is_deleted);
  }
}

TEST(Renew, GivesNewMemoryAndLeavesTheOldToItsReaders) {
  Ref<Array> a = numbers(8);
  HostView reader(*a, Access::kRead);
  const Ref<Array> fresh = renew(*a);
  EXPECT_NE(fresh->data(), a->data());
  EXPECT_EQ(fresh->size(), 8);
  EXPECT_EQ(fresh->dtype(), a->dtype());
}

TEST(Renew, IsRefusedForPartsAndReadOnlyArraysAndBesideWritableViews) {
  Ref<Array> a = numbers(8);
  EXPECT_EQ(code_of([&] { (void)renew(*as_readonly(*a)); }), Code::kBuffer);
  const tenon_index half{TENON_INDEX_SLICE, 0, 0, 4, 1};
  EXPECT_EQ(code_of([&] { (void)renew(*index(*a, {&half, 1})); }), Code::kValue);
  {
    HostView writer(*a, Access::kWrite);
    EXPECT_EQ(code_of([&] { (void)renew(*a); }), Code::kLeaseConflict);
  }
  give_back(move_out(*a, nullptr));
  EXPECT_EQ(code_of([&] { (void)renew(*a); }), Code::kMoved);
}

TEST(Unchecked, WaitsForNobodyAndKeepsTheMemory) {
  const tenon_statistics before = statistics();
  Ref<Array> a = numbers(8);
  Lease lease;
  lease.acquire(*a, Access::kWrite, {}, {this_thread_id() + 1, 0}, nullptr, Deadline(-1));
  const Ref<Array> free = unchecked(*a);
  EXPECT_EQ(free->data(), a->data());
  {
    HostView view(*free, Access::kWrite);
    std::memset(free->data(), 1, 4);
  }
  lease.release();
  struct Context {
    const Ref<Array>& array;
    bool is_open = false;
  } context{free};
  const Work work{&context,
                  [](void* c, Op* op) {
                    auto& self = *static_cast<Context*>(c);
                    self.is_open = code_of([&] { HostView view(*self.array, Access::kRead); }) == Code{0};
                    op->complete();
                  },
                  nullptr};
  const Ref<Op> op = Op::create(work, 0, "look", nullptr);
  Conflict conflict;
  EXPECT_TRUE(Engine::instance().push(op, OnHost::kRaise, &conflict));
  EXPECT_TRUE(op->wait(Deadline(-1), &conflict));
  EXPECT_TRUE(context.is_open) << "also in the body of an op that has not declared it";
  a = {};
  EXPECT_EQ(std::to_integer<int>(free->data()[0]), 1) << "the memory is still there";
  EXPECT_EQ(statistics().views, before.views);
}

}  // namespace
}  // namespace tenon::impl
