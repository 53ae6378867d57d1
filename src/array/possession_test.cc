// SPDX-License-Identifier: Apache-2.0
//
// Arrays over memory that other processes use, too: what leases, views and calls do there, and what a fork
// means. The other processes are stand-ins (exec/gate_testing.h).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "array/access.h"
#include "array/lease.h"
#include "array/ownership.h"
#include "base/error_testing.h"
#include "exec/gate_testing.h"
#include "memory/known_memory.h"

namespace tenon::impl {
namespace {

constexpr int64_t kCount = 64;
constexpr size_t kNbytes = kCount * sizeof(float);
constexpr DType kFloat32{TENON_FLOAT, 32};

class Possession : public testing::Test {
 protected:
  Ref<Array> array(Gate* gate) {
    Memory memory{bytes(), kNbytes, bytes(), kNbytes, false, this, [](void*) {}};
    memory.gate = gate;
    return Array::make(
        Storage::adopt(memory),
        {bytes(), kFloat32, {TENON_CPU, 0}, 0, std::array<int64_t, 1>{kCount}, std::array<int64_t, 1>{1}});
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(values_.data()); }
  bool is_held(Access access) { return turns_.holds(1, {0, kNbytes}, access); }
  void TearDown() override { EXPECT_EQ(turns_.grants(), 0U) << "every grant ends"; }

  static void acquire(Lease& lease, const Array& a, Access access, LeaseFlags flags = {},
                      int64_t timeout = -1) {
    lease.acquire(a, access, flags, current_actor(), "own.py:1", Deadline(timeout));
  }
  // Another process has the memory while it lives.
  class Elsewhere {
   public:
    Elsewhere(Possession& test, Access access) : test_(test), request_(HolderKind::kLease, {&part_, 1}) {
      cell_.queue.set_gate(&test_.there_);
      part_.home = &cell_.home;
      const auto begin = reinterpret_cast<uintptr_t>(test_.bytes());
      part_.extent = {begin, begin + kNbytes};
      part_.access = access;
      Conflict conflict;
      EXPECT_TRUE(request_.acquire(Deadline(-1), &conflict));
    }
    ~Elsewhere() { impl::release(request_); }

   private:
    Possession& test_;
    Cell cell_;
    RequestPart part_;
    BlockingRequest request_;
  };

  alignas(64) std::vector<float> values_ = std::vector<float>(kCount);
  Turns turns_{1};
  StandInWaiter waiter_;
  StandInGate gate_{turns_, 1, reinterpret_cast<uintptr_t>(values_.data()), waiter_};
  StandInGate there_{turns_, 2, reinterpret_cast<uintptr_t>(values_.data()), waiter_};
};

TEST_F(Possession, AViewIsRefusedWithoutALeaseAndKeepsTheGrantAfterIt) {
  const Ref<Array> a = array(&gate_);
  std::string message;
  HostView view;
  EXPECT_EQ(code_of([&] { view.open(*a, Access::kRead, nullptr); }, &message), Code::kLeaseConflict);
  EXPECT_NE(message.find("other processes use it, too, so a view needs a lease"), std::string::npos)
      << message;
  {
    Lease lease;
    acquire(lease, *a, Access::kRead);
    EXPECT_EQ(code_of([&] { view.open(*a, Access::kWrite, nullptr); }), Code::kLeaseConflict);
    view.open(*a, Access::kWrite, nullptr, true);
    EXPECT_EQ(view.access(), Access::kRead) << "weakened";
  }
  EXPECT_TRUE(is_held(Access::kRead));
  HostView joins(*a, Access::kRead);
  view.close();
  EXPECT_TRUE(is_held(Access::kRead));
  EXPECT_EQ(code_of([&] { HostView writer(*a, Access::kWrite); }), Code::kLeaseConflict);
  joins.close();
  EXPECT_FALSE(is_held(Access::kRead));
}

TEST_F(Possession, AViewWithoutElementsNeedsNothing) {
  const Ref<Array> a = array(&gate_);
  tenon_index none{};
  none.kind = TENON_INDEX_SLICE;
  none.step = 1;
  const Ref<Array> empty = index(*a, {&none, 1});
  HostView view(*empty, Access::kWrite);
  EXPECT_TRUE(view.is_open());
}

TEST_F(Possession, CallsTakeTheirTurn) {
  const Ref<Array> a = array(&gate_);
  const float one = 1;
  const uint64_t before = a->storage().region().version();
  fill(*a, &one, kFloat32);
  EXPECT_EQ(values_[0], 1);
  EXPECT_EQ(a->storage().region().version(), before + 1);
  EXPECT_EQ(gate_.version(), before + 1) << "the version is that of all processes";
  (void)copy(*a, kFloat32);
  EXPECT_EQ(turns_.turns_taken(), 2U);
  Lease lease;
  acquire(lease, *a, Access::kWrite);
  fill(*a, &one, kFloat32);
  EXPECT_EQ(turns_.turns_taken(), 3U) << "under the lease";
  HostView view(*a, Access::kWrite);
  lease.release();
  fill(*a, &one, kFloat32);
  EXPECT_EQ(turns_.turns_taken(), 3U) << "beside the view";
  EXPECT_NE(a->storage().region().version(), a->storage().region().version()) << "a writable view lives";
}

TEST_F(Possession, ATimeoutNamesTheProcess) {
  const Ref<Array> a = array(&gate_);
  const Elsewhere there(*this, Access::kRead);
  Lease lease;
  std::string message;
  EXPECT_EQ(code_of([&] { acquire(lease, *a, Access::kWrite, {}, 1'000'000); }, &message), Code::kTimeout);
  EXPECT_NE(message.find("process 2 (stand-in) that holds it for reading since "), std::string::npos)
      << message;
  acquire(lease, *a, Access::kRead);
}

TEST_F(Possession, WhoComesAfterADeadWriterLearnsOfItOrIgnoresIt) {
  const Ref<Array> a = array(&gate_);
  std::string message;
  int32_t pid = 0;
  turns_.refuse_next(Conflict::Reason::kOwnerDied);
  Lease lease;
  EXPECT_EQ(code_of([&] { acquire(lease, *a, Access::kRead); }, &message, &pid), Code::kOwnerDied);
  EXPECT_EQ(pid, 4711);
  EXPECT_NE(message.find("process 4711 died while it was writing there"), std::string::npos) << message;
  EXPECT_FALSE(lease.is_held());
  for (const LeaseFlags flags : {LeaseFlags{true, false}, LeaseFlags{false, true}}) {
    turns_.refuse_next(Conflict::Reason::kOwnerDied);
    acquire(lease, *a, Access::kWrite, flags);
    lease.release();
  }
  turns_.refuse_next(Conflict::Reason::kOwnerDied);
  EXPECT_EQ(code_of([&] { (void)copy(*a, kFloat32); }), Code::kOwnerDied);
}

TEST_F(Possession, TryAcquireReturnsARefusal) {
  const Ref<Array> a = array(&gate_);
  turns_.refuse_next(Conflict::Reason::kOwnerDied);
  Lease lease;
  const auto attempt = [&] {
    return lease.try_acquire(*a, Access::kWrite, {}, current_actor(), nullptr, Deadline(-1));
  };
  std::optional<Error> refused;
  EXPECT_NO_THROW(refused = attempt());
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code(), Code::kOwnerDied);
  EXPECT_EQ(refused->op_code(), 4711);
  EXPECT_FALSE(lease.is_held());
  EXPECT_FALSE(attempt().has_value());
  EXPECT_TRUE(is_held(Access::kWrite));
}

TEST_F(Possession, ARefusedRequestFailsInItsCheck) {
  const Ref<Array> a = array(&gate_);
  std::optional<Elsewhere> there(std::in_place, *this, Access::kWrite);
  std::atomic<int> told{0};
  Lease lease;
  const auto count = [](void* n) { ++*static_cast<std::atomic<int>*>(n); };
  EXPECT_FALSE(lease.request(*a, Access::kWrite, {}, current_actor(), nullptr, count, &told));
  EXPECT_TRUE(lease.cancel());
  EXPECT_FALSE(lease.request(*a, Access::kWrite, {}, current_actor(), nullptr, count, &told));
  turns_.refuse_next(Conflict::Reason::kOwnerDied);
  there.reset();
  while (told == 0) std::this_thread::yield();
  EXPECT_EQ(code_of([&] { lease.check(); }), Code::kOwnerDied);
  EXPECT_FALSE(lease.is_held());
  turns_.refuse_next(Conflict::Reason::kOwnerDied);
  EXPECT_EQ(
      code_of([&] { (void)lease.request(*a, Access::kRead, {}, current_actor(), nullptr, count, &told); }),
      Code::kOwnerDied);
  EXPECT_FALSE(lease.is_held());
  EXPECT_TRUE(lease.request(*a, Access::kRead, {}, current_actor(), nullptr, count, &told));
  EXPECT_EQ(told, 1);
}

TEST_F(Possession, SharedMemoryIsNotMovedOutNorReplaced) {
  const Ref<Array> a = array(&gate_);
  std::string message;
  EXPECT_EQ(code_of([&] { (void)move_out(*a, nullptr); }, &message), Code::kLeaseConflict);
  EXPECT_NE(message.find("it is shared with other processes"), std::string::npos) << message;
  EXPECT_EQ(code_of([&] { (void)renew(*a); }), Code::kLeaseConflict);
}

TEST_F(Possession, TheGateGoesWithTheLastStorageAndComesToMemoryThatIsNotInUse) {
  Ref<Array> own = array(nullptr);
  {
    HostView view(*own, Access::kRead);
    EXPECT_EQ(code_of([&] { (void)array(&gate_); }), Code::kLeaseConflict) << "views without a grant";
  }
  Ref<Array> shared = array(&gate_);
  EXPECT_EQ(code_of([&] { HostView view(*own, Access::kRead); }), Code::kLeaseConflict) << "the same bytes";
  EXPECT_EQ(code_of([&] { (void)array(&there_); }), Code::kLeaseConflict) << "no memory has two gates";
  shared = {};
  EXPECT_EQ(code_of([&] { HostView view(*own, Access::kRead); }), Code::kLeaseConflict) << "not the last";
  own = {};
  own = array(nullptr);
  HostView view(*own, Access::kWrite);
  EXPECT_TRUE(view.is_open());
}

TEST_F(Possession, AnImportAcrossItsEndsKeepsTheGate) {
  Ref<Array> a = array(&gate_);
  // As of an import whose root begins before the memory that is known.
  const Memory part{bytes() + 64, 64, bytes() + 64, 64, false, this, [](void*) {}};
  a = {};
  Ref<Storage> inner = Storage::adopt(part);
  a = array(&gate_);
  EXPECT_EQ(a->storage().region().gate(), &gate_);
  EXPECT_EQ(&inner->region(), &a->storage().region());
  EXPECT_EQ(code_of([&] { HostView view(*inner, Access::kRead); }), Code::kLeaseConflict);
}

// What the child of a fork finds. Returns the number of the first that was wrong.
int in_child(const Ref<Array>& a, Lease& lease, HostView& view, Turns& turns) {
  const size_t references = turns.references();
  if (code_of([&] { HostView refused(*a, Access::kRead); }) != Code::kLeaseConflict) return 1;
  Lease own;
  std::string message;
  const auto take = [&] {
    own.acquire(*a, Access::kWrite, {}, current_actor(), nullptr, Deadline(1'000'000));
  };
  if (code_of(take, &message) != Code::kLeaseConflict) return 2;
  if (message.find("from before the fork") == std::string::npos) return 3;
  if (code_of([&] { (void)copy(*a, kFloat32); }) != Code::kLeaseConflict) return 4;
  const auto op = Op::create({nullptr, [](void*, Op* self) { self->complete(); }, nullptr}, 1, "op", nullptr);
  op->parts[0].home = &a->storage().home();
  op->parts[0].extent = a->extent();
  Conflict conflict;
  if (Engine::instance().push(op, OnHost::kIgnore, &conflict)) return 5;
  if (conflict.reason != Conflict::Reason::kInherited) return 6;
  lease.release();
  view.close();
  if (turns.references() != references) return 7;  // the parent's grants
  if (code_of([&] { HostView refused(*a, Access::kRead); }, &message) != Code::kLeaseConflict) return 8;
  if (message.find("other processes use it, too") == std::string::npos) return 9;
  if (code_of(take) != Code{0}) return 10;
  if (turns.references() != references + 1) return 11;
  {
    HostView held(*a, Access::kWrite);
    own.release();
    if (turns.references() != references + 1) return 12;
  }
  return turns.references() == references ? 0 : 13;
}

TEST_F(Possession, AForkedChildHasNothingUntilItDropsWhatItInheritedAndTakesItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not support threads in a forked child";
#endif
  const Ref<Array> a = array(&gate_);
  for (const bool is_detached : {false, true}) {
    Lease lease;
    acquire(lease, *a, Access::kWrite);
    HostView view;
    view.open(*a, Access::kWrite, "here.py:3");
    if (is_detached) lease.detach();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(in_child(a, lease, view, turns_));
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_TRUE(is_held(Access::kWrite)) << "the parent has all that it had";
    HostView another(*a, Access::kWrite);
  }
}

}  // namespace
}  // namespace tenon::impl
