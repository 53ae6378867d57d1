// SPDX-License-Identifier: Apache-2.0
//
// Ops on streams: dependencies between them are waits of streams for events, and all others wait in the queue
// until the work is done. The oracle of the orders is the fake driver: work on a stream that is held has not
// run, and a copy that runs too early reads other values.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "device/device.h"
#include "device/device_testing.h"

namespace tenon::impl {
namespace {

// An op, waited for at its end.
class Pushed {
 public:
  explicit Pushed(tenon_op* op) : op_(op) {}
  Pushed(Pushed&& other) noexcept : op_(std::exchange(other.op_, nullptr)) {}
  ~Pushed() { tenon_op_release(op_); }
  operator tenon_op*() const { return op_; }
  bool is_done() const { return tenon_op_is_done(op_) != 0; }
  tenon_status wait(tenon_error* error) const { return tenon_op_wait(op_, -1, error); }

 private:
  tenon_op* op_;
};

class Streams : public DeviceTest {
 protected:
  Pushed push(tenon_array* src, tenon_array* dst, int32_t on_conflict = TENON_CONFLICT_RAISE) {
    tenon_copy_options options{};
    options.struct_size = sizeof options;
    options.on_conflict = on_conflict;
    options.site = "test.py:1";
    tenon_op* op = nullptr;
    EXPECT_EQ(TENON_OK, tenon_push_copy(src, dst, &options, &op, &error)) << error.message;
    return Pushed(op);
  }
  void finish(const Pushed& op) { EXPECT_EQ(TENON_OK, op.wait(&error)) << error.message; }

  uint64_t submitted() { return statistics().submitted; }
};

TEST_F(Streams, ACopyIsDoneWhenItsWorkIs) {
  const Held host = counting({1000});
  const Held a = make(kCuda, {1000}, kInt32, TENON_ZEROED);
  Hold hold(StreamKind::kToDevice);
  const Pushed op = push(host, a);
  EXPECT_TRUE(soon([&] { return submitted() == 1; }));
  moment();
  EXPECT_FALSE(op.is_done());
  hold.release();
  finish(op);
  EXPECT_EQ(values(a), values(host));
  EXPECT_TRUE(soon([&] { return submitted() == 0; }));
}

// Breaks when Op::submit does not let others go on, or when the stream does not wait for the event.
TEST_F(Streams, DependentCopiesAreSubmittedAtOnceAndWaitForEvents) {
  const Held host = counting({5000});
  const Held a = make(kCuda, {5000}, kInt32, TENON_ZEROED);
  const Held b = make(kCuda, {5000}, kInt32, TENON_ZEROED);
  const Held back = make(kCpu, {5000}, kInt32, TENON_ZEROED);
  Hold hold(StreamKind::kToDevice);
  const Pushed up = push(host, a);
  const Pushed across = push(a, b);
  const Pushed down = push(b, back);
  EXPECT_TRUE(soon([&] { return submitted() == 3; })) << submitted();
  moment();
  EXPECT_FALSE(up.is_done() || across.is_done() || down.is_done());
  hold.release();
  finish(down);
  EXPECT_EQ(values(back), values(host));
}

TEST_F(Streams, AWriterWaitsForReadersOnOtherStreams) {
  const Held ones = make(kCpu, {5000});
  const int32_t one = 1;
  ASSERT_EQ(TENON_OK, tenon_array_fill(ones, &one, kInt32, &error));
  const Held a = make(kCuda, {5000}, kInt32, TENON_ZEROED);
  const Held back = counting({5000});
  Hold hold(StreamKind::kToHost);
  const Pushed read = push(a, back);
  const Pushed write = push(ones, a);
  EXPECT_TRUE(soon([&] { return submitted() == 2; }));
  moment();
  hold.release();
  finish(write);
  finish(read);
  EXPECT_EQ(values(back), Values(5000, 0));
  EXPECT_EQ(values(a), Values(5000, 1));
}

TEST_F(Streams, TheHostWaitsUntilTheWorkIsDone) {
  const Held host = counting({1000});
  const Held a = make(kCuda, {1000}, kInt32, TENON_ZEROED);
  Hold hold(StreamKind::kToDevice);
  const Pushed op = push(host, a);
  EXPECT_TRUE(soon([&] { return submitted() == 1; }));
  tenon_error e = TENON_ERROR_INIT;
  EXPECT_EQ(TENON_ERR_TIMEOUT, tenon_array_wait(a, TENON_READ, 2'000'000, &e));
  EXPECT_EQ(TENON_ERR_TIMEOUT, tenon_array_wait(host, TENON_WRITE, 2'000'000, &e));
  EXPECT_EQ(TENON_OK, tenon_array_wait(host, TENON_READ, 2'000'000'000, &e)) << e.message;
  std::atomic<bool> is_written{false};
  std::thread writer([&] {
    tenon_view view = TENON_VIEW_INIT;
    tenon_error own = TENON_ERROR_INIT;
    EXPECT_EQ(TENON_OK, tenon_view_open(&view, host, TENON_WRITE, nullptr, &own)) << own.message;
    is_written = true;
    static_cast<int32_t*>(host.desc().data)[0] = -1;
    tenon_view_close(&view);
  });
  moment();
  EXPECT_FALSE(is_written);
  hold.release();
  writer.join();
  finish(op);
  EXPECT_EQ(values(a)[0], 0);
}

TEST_F(Streams, WorkOfTheHostBehindACopyRunsWhenItIsDone) {
  const Held host = counting({100});
  const Held a = make(kCuda, {100}, kInt32, TENON_ZEROED);
  const Held after = make(kCpu, {100}, kInt32, TENON_ZEROED);
  Hold hold(StreamKind::kToDevice);
  const Pushed up = push(host, a);
  // A host op that writes what the copy reads.
  const Pushed clear = push(after, host);
  moment();
  EXPECT_FALSE(clear.is_done());
  hold.release();
  finish(clear);
  finish(up);
  EXPECT_EQ(values(a)[99], 99);
  EXPECT_EQ(values(host)[99], 0);
}

TEST_F(Streams, HostCopiesCastsAndStridesWorkAsOps) {
  const Held host = counting({4, 6});
  const Held other = make(kCpu, {4, 6}, kFloat32);
  finish(push(host, other));
  EXPECT_EQ(values(other), values(host));
  const Held device = make(kCuda, {4, 6}, kFloat32);
  finish(push(host, device));
  EXPECT_EQ(values(device), values(host));
  tenon_error e = TENON_ERROR_INIT;
  tenon_op* op = nullptr;
  EXPECT_EQ(TENON_ERR_TYPE, tenon_push_copy(device, host, nullptr, &op, &e));
  EXPECT_EQ(TENON_ERR_VALUE, tenon_push_copy(counting({5}), device, nullptr, &op, &e));
  const Held a = make(kCuda, {10});
  finish(push(counting({10}), a));
  finish(push(sliced(a, 0, 8, 1), sliced(a, 2, 10, 1)));
  EXPECT_EQ(values(a), (Values{0, 1, 0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(Streams, CopiesBetweenDevicesWaitForEachOther) {
  const Held host = counting({3000});
  const Held a = make(kCuda, {3000}, kInt32, TENON_ZEROED);
  const Held b = make(kOther, {3000}, kInt32, TENON_ZEROED);
  const Held back = make(kPinned, {3000}, kInt32, TENON_ZEROED);
  Hold hold(StreamKind::kToDevice);
  const Pushed one = push(host, a);
  const Pushed two = push(a, b);
  const Pushed three = push(b, back);
  EXPECT_TRUE(soon([&] { return submitted() == 3; }));
  hold.release();
  finish(three);
  EXPECT_EQ(values(back), values(host));
}

TEST_F(Streams, ARefusedSubmissionFailsTheOpAndWhatReadsItsResult) {
  const Held host = counting({100});
  const Held a = make(kCuda, {100}, kInt32, TENON_ZEROED);
  const Held back = make(kCpu, {100}, kInt32, TENON_ZEROED);
  ASSERT_EQ(values(a), Values(100, 0));
  fake_cuda_fail("cuMemcpyAsync", 1, 1);
  const Pushed up = push(host, a);
  const Pushed down = push(a, back);
  expect(TENON_ERR_OP, up.wait(&error), "cannot copy elements on cuda:0");
  expect(TENON_ERR_OP, down.wait(&error), "cannot copy elements on cuda:0");
  tenon_error e = TENON_ERROR_INIT;
  EXPECT_EQ(TENON_ERR_OP, tenon_array_wait(a, TENON_READ, -1, &e));
  finish(push(host, a));
  EXPECT_EQ(values(a), values(host));
}

TEST_F(Streams, MemoryIsKeptUntilTheWorkOnItIsDone) {
  Held host = counting({1000});
  Held a = make(kCuda, {1000}, kInt32, TENON_ZEROED);
  const uint64_t before = statistics().device_nbytes;
  Hold hold(StreamKind::kToDevice);
  const Pushed op = push(host, a);
  host.reset();
  a.reset();
  moment();
  EXPECT_EQ(statistics().device_nbytes, before);
  hold.release();
  finish(op);
  EXPECT_TRUE(soon([&] { return statistics().device_nbytes == before - 4000; }));
}

TEST_F(Streams, AForkedChildHasTheFailureOfWhatTheParentGoesOnWith) {
  const Held host = counting({1000});
  const Held a = make(kCuda, {1000}, kInt32, TENON_ZEROED);
  Hold hold(StreamKind::kToDevice);
  const Pushed op = push(host, a);
  EXPECT_TRUE(soon([&] { return submitted() == 1; }));
  const pid_t child = fork();
  if (child == 0) {
    tenon_error e = TENON_ERROR_INIT;
    const bool has_failed = op.wait(&e) == TENON_ERR_OP && std::strstr(e.message, "forked") != nullptr;
    _exit(has_failed && tenon_array_wait(a, TENON_READ, -1, &e) == TENON_ERR_OP ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  hold.release();
  finish(op);
  EXPECT_EQ(values(a), values(host));
}

// Oracle: the same copies, one after the other on the host.
TEST_F(Streams, RandomCopiesGiveWhatTheyGiveInOrder) {
  constexpr int kArrays = 8;
  constexpr int kCopies = 400;
  constexpr int64_t kSize = 64;
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const tenon_device devices[] = {kCpu, kCuda, kOther, kPinned};
  std::vector<Held> arrays;
  std::vector<Values> model;
  for (int i = 0; i < kArrays; ++i) {
    arrays.push_back(make(devices[i % 4], {kSize}));
    const Held start = counting({kSize});
    static_cast<int32_t*>(start.desc().data)[0] = 1000 * i;
    copy(start, arrays.back());
    model.push_back(values(start));
  }
  for (int i = 0; i < kCopies; ++i) {
    const size_t from = random() % kArrays;
    const size_t to = random() % kArrays;
    if (from == to) continue;
    const auto n = static_cast<int64_t>(1 + random() % kSize);
    const auto at = static_cast<int64_t>(random() % static_cast<uint64_t>(kSize - n + 1));
    const auto into = static_cast<int64_t>(random() % static_cast<uint64_t>(kSize - n + 1));
    (void)push(sliced(arrays[from], at, at + n, 1), sliced(arrays[to], into, into + n, 1));
    std::copy_n(model[from].begin() + at, n, model[to].begin() + into);
  }
  for (int i = 0; i < kArrays; ++i)
    EXPECT_EQ(values(arrays[static_cast<size_t>(i)]), model[static_cast<size_t>(i)]) << i;
}

// Last: the context of the device is lost for good.
TEST_F(Streams, ZZAFailureOfTheDeviceFailsTheOpAndThoseBehindItWithTheFirstCause) {
  const Held host = counting({100});
  const Held a = make(kOther, {100}, kInt32, TENON_ZEROED);
  const Held back = make(kCpu, {100}, kInt32, TENON_ZEROED);
  ASSERT_EQ(values(a), Values(100, 0));
  Hold hold(StreamKind::kToDevice, kOther);
  const Pushed up = push(host, a);
  const Pushed down = push(a, back);
  EXPECT_TRUE(soon([&] { return submitted() == 2; }));
  fake_cuda_fail_copy(1, 700);
  hold.release();
  expect(TENON_ERR_OP, up.wait(&error), "the work of the op on cuda:1 failed: CUDA_ERROR_ILLEGAL_ADDRESS");
  tenon_failure* const first = tenon_op_failure(up);
  EXPECT_EQ(TENON_ERR_OP, down.wait(&error));
  tenon_failure* const second = tenon_op_failure(down);
  EXPECT_EQ(first, second);
  tenon_failure_release(first);
  tenon_failure_release(second);
}

}  // namespace
}  // namespace tenon::impl
