// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory of the host whose last view goes while work on a stream of another library still uses it: a
// stream that is held has not run. The fake driver fails if work reads what is not registered any more.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "device/device_testing.h"

namespace tenon::impl {
namespace {

constexpr int64_t kMiB = 1 << 20;

// A kernel that reads the bytes, and remembers the first and the last one.
struct Reading {
  const void* data = nullptr;
  int64_t n = 0;
  std::atomic<int> first{-1}, last{-1};

  static int run(void* argument) {
    auto* const self = static_cast<Reading*>(argument);
    std::vector<unsigned char> all(static_cast<size_t>(self->n));
    if (const int failed = fake_cuda_read(all.data(), reinterpret_cast<uint64_t>(self->data), all.size()))
      return failed;
    self->first = all.front();
    self->last = all.back();
    return 0;
  }
};

class PinnedPools : public ConsumerTest {
 protected:
  void SetUp() override {
    ConsumerTest::SetUp();
    make_pool(2 * kMiB);
  }
  void TearDown() override {
    make_pool(0);
    EXPECT_TRUE(soon([] { return fake_cuda_count("live.registered") == 0; }));  // its memory was unpinned
    ConsumerTest::TearDown();
  }
  // 0: none.
  void make_pool(int64_t budget) {
    tenon_tensor_pool_release(std::exchange(pool, nullptr));
    const tenon_pool_options options{sizeof options, TENON_POOL_PINNED, static_cast<uint64_t>(budget), 0, -1};
    if (budget != 0) {
      ASSERT_EQ(TENON_OK, tenon_tensor_pool_create(&options, &pool, &error)) << error.message;
    }
  }
  tenon_status try_empty(int64_t n, int64_t timeout_ns, Held* made) {
    tenon_array* array = nullptr;
    const tenon_status status = tenon_tensor_pool_empty(pool, kUint8, 1, &n, timeout_ns, &array, &error);
    *made = Held(array);
    return status;
  }
  Held filled(int64_t n, int value) {
    Held made;
    EXPECT_EQ(TENON_OK, try_empty(n, -1, &made)) << error.message;
    std::memset(made.desc().data, value, static_cast<size_t>(n));
    return made;
  }
  std::vector<std::byte> send(tenon_array* array, uint32_t opens = 1) {
    const tenon_message_options options{sizeof options, opens, -1, nullptr, 0, 0, nullptr, nullptr};
    std::vector<std::byte> bytes(tenon_message_nbytes(&array, 1));
    uint64_t nbytes = 0;
    EXPECT_EQ(TENON_OK,
              tenon_tensor_pool_send(pool, &array, 1, &options, bytes.data(), bytes.size(), &nbytes, &error))
        << error.message;
    bytes.resize(nbytes);
    return bytes;
  }
  Held open(const std::vector<std::byte>& bytes, uint32_t flags = 0) {
    tenon_array* array = nullptr;
    uint32_t n = 0;
    EXPECT_EQ(TENON_OK, tenon_message_open(bytes.data(), bytes.size(), flags, &array, 1, &n, &error))
        << error.message;
    return Held(array);
  }
  uint64_t used() {
    tenon_pool_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(TENON_OK, tenon_tensor_pool_stats(pool, &stats, nullptr));
    return stats.used_nbytes;
  }
  // A read of the array that does not run before the stream is resumed.
  void read_later(Reading& reading, const Held& array) {
    reading.data = array.desc().data;
    reading.n = array.desc().size;
    EXPECT_EQ(0, on(kCuda, fake_cuda_hold, stream));
    EXPECT_EQ(0, on(kCuda, fake_cuda_launch, stream, Reading::run, &reading));
  }
  void resume() { EXPECT_EQ(0, on(kCuda, fake_cuda_resume, stream)); }
  // Nothing gets the only block before the work has run, which then finds its bytes.
  void expect_held_until_resume(Reading& reading) {
    Held next;
    EXPECT_EQ(TENON_ERR_NO_MEMORY, try_empty(2 * kMiB, 0, &next));
    EXPECT_NE(std::strstr(error.message, "wait for work that it has submitted to its GPUs"), nullptr)
        << error.message;
    moment();
    EXPECT_EQ(TENON_ERR_NO_MEMORY, try_empty(2 * kMiB, 0, &next));
    resume();
    next = filled(2 * kMiB, 9);  // waits for the room
    EXPECT_EQ(7, reading.first);
    EXPECT_EQ(7, reading.last);
  }

  tenon_tensor_pool* pool = nullptr;
};

TEST_F(PinnedPools, ABlockIsUsedAgainAfterTheWorkOfItsLastView) {
  Reading reading;
  Held x = filled(2 * kMiB, 7);
  read_later(reading, x);
  x.reset();
  expect_held_until_resume(reading);
}

TEST_F(PinnedPools, TheReceiverOfAMessageHoldsItForItsWork) {
  for (const uint32_t flags : {0u, uint32_t{TENON_READONLY}}) {
    Reading reading;
    Held x = open(send(filled(2 * kMiB, 7)), flags);
    read_later(reading, x);
    x.reset();
    expect_held_until_resume(reading);
  }
}

TEST_F(PinnedPools, TheSenderOfAMessageHoldsItForItsWork) {
  Reading reading;
  const Held x = filled(2 * kMiB, 7);
  read_later(reading, x);
  const std::vector<std::byte> bytes = send(x);
  EXPECT_EQ(TENON_OK, tenon_message_revoke(bytes.data(), bytes.size(), &error)) << error.message;
  expect_held_until_resume(reading);
}

TEST_F(PinnedPools, AnAnnouncedCaptureStaysValidAndHoldsBlocks) {
  Held x = filled(2 * kMiB, 7), next;
  tenon_graph_capture_begin();
  EXPECT_EQ(0, on(kCuda, fake_cuda_begin_capture, stream, 0));
  x.reset();
  moment();
  EXPECT_EQ(TENON_ERR_NO_MEMORY, try_empty(2 * kMiB, 0, &next));
  EXPECT_NE(std::strstr(error.message, "the end of the capture of a graph"), nullptr) << error.message;
  EXPECT_EQ(0, on(kCuda, fake_cuda_end_capture, stream, nullptr));
  tenon_graph_capture_end();
  next = filled(2 * kMiB, 9);
}

TEST_F(PinnedPools, MemoryIsPinnedWhileACaptureRuns) {
  EXPECT_EQ(0, on(kCuda, fake_cuda_begin_capture, stream, 0));
  const Held x = filled(2 * kMiB, 7);
  EXPECT_EQ(0, on(kCuda, fake_cuda_end_capture, stream, nullptr));
}

// Breaks when the child keeps what its parent waits for, or ends it for its parent.
TEST_F(PinnedPools, AForkedChildKeepsNoBlockThatItsParentHoldsForWork) {
  Reading reading;
  Held x = filled(2 * kMiB, 7);
  read_later(reading, x);
  x.reset();
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  expect_held_until_resume(reading);
  kill(child, SIGKILL);
  ASSERT_EQ(child, waitpid(child, nullptr, 0));
}

TEST_F(PinnedPools, AForkedChildDropsItsArraysAtOnce) {
  Reading reading;
  Held x = filled(2 * kMiB, 7);
  const pid_t child = fork();
  if (child == 0) {
    x.reset();
    pause();
  }
  read_later(reading, x);
  x.reset();
  expect_held_until_resume(reading);
  kill(child, SIGKILL);
  ASSERT_EQ(child, waitpid(child, nullptr, 0));
}

TEST_F(PinnedPools, EachBlockLiesInOnePinnedUnit) {
  make_pool(128 * kMiB);  // units of 8 MiB
  std::vector<Held> all;
  Reading reading;
  const auto expect_pinned = [&] {
    for (const Held& x : all) {
      reading.data = x.desc().data;
      reading.n = x.desc().size;
      EXPECT_EQ(0, Reading::run(&reading));  // of one registration
    }
  };
  EXPECT_EQ(0u, statistics().registered_nbytes);
  for (int i = 0; i < 3; ++i) all.push_back(filled(5 * kMiB, i));  // each in a unit
  all.push_back(filled(2 * kMiB, 3));
  EXPECT_EQ(3u, fake_cuda_count("cuMemHostRegister_v2"));
  all.push_back(filled(11 * kMiB, 4));  // two units
  EXPECT_EQ(4u, fake_cuda_count("cuMemHostRegister_v2"));
  EXPECT_EQ(40u * kMiB, statistics().registered_nbytes);
  expect_pinned();
  all.clear();
  EXPECT_TRUE(soon([&] { return used() == 0; }));
  for (int i = 0; i < 3; ++i) all.push_back(filled(5 * kMiB, i));
  EXPECT_EQ(4u, fake_cuda_count("cuMemHostRegister_v2"));
  all.push_back(filled(100 * kMiB, 5));  // pinned with what was pinned alone before
  expect_pinned();
  EXPECT_EQ(0u, fake_cuda_count("problems"));
}

// Else the driver would go on to use pages that are not the memory any more.
TEST_F(PinnedPools, FreeMemoryStaysWhereItIsPinned) {
  Held x = filled(2 * kMiB, 7);
  const auto* const data = static_cast<const unsigned char*>(x.desc().data);
  x.reset();
  EXPECT_TRUE(soon([&] { return used() == 0; }));
  moment(600);  // two sweeps, with idle_nbytes = 0
  EXPECT_EQ(7, *data);
}

TEST_F(PinnedPools, OtherCallsDoNotWaitForTheDriver) {
  const auto use_another_pool = [&] {
    const tenon_pool_options options{sizeof options, 0, 1 << 20, 0, -1};
    tenon_tensor_pool* other = nullptr;
    EXPECT_EQ(TENON_OK, tenon_tensor_pool_create(&options, &other, &error)) << error.message;
    tenon_tensor_pool_release(other);
  };
  EXPECT_EQ(0, fake_cuda_hold_calls("cuMemHostRegister_v2"));
  std::thread pinning([&] { (void)filled(2 * kMiB, 7); });
  EXPECT_TRUE(soon([] { return fake_cuda_count("cuMemHostRegister_v2") == 1; }));
  use_another_pool();
  fake_cuda_release_calls();
  pinning.join();
  EXPECT_EQ(0, fake_cuda_hold_calls("cuMemHostUnregister"));
  make_pool(0);
  EXPECT_TRUE(soon([] { return fake_cuda_count("cuMemHostUnregister") == 1; }));
  use_another_pool();
  fake_cuda_release_calls();
}

TEST_F(PinnedPools, AnArrayThatCannotBePinnedIsAnError) {
  Held x;
  fake_cuda_fail("cuMemHostRegister_v2", 1, 801);
  EXPECT_EQ(TENON_ERR_SYSTEM, try_empty(2 * kMiB, -1, &x));
  EXPECT_NE(std::strstr(error.message, "cannot pin"), nullptr) << error.message;
  EXPECT_EQ(TENON_OK, try_empty(2 * kMiB, -1, &x)) << error.message;
}

TEST_F(PinnedPools, ARegisteredArrayStaysForTheWorkThatWasSubmitted) {
  Reading reading;
  Held x = make(kCpu, {1 << 20}, kUint8);
  std::memset(x.desc().data, 7, 1 << 20);
  tenon_registration* registration = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_register(x, &registration, &error)) << error.message;
  read_later(reading, x);
  tenon_registration_release(registration);
  x.reset();
  moment();
  EXPECT_EQ(1u, fake_cuda_count("live.registered"));
  resume();
  EXPECT_TRUE(soon([] { return fake_cuda_count("live.registered") == 0; }));
  EXPECT_EQ(7, reading.last);
}

TEST_F(PinnedPools, PinnedMemoryStaysForTheWorkThatWasSubmitted) {
  Reading reading;
  Held x = make(kPinned, {1 << 20}, kUint8);
  std::memset(x.desc().data, 7, 1 << 20);
  read_later(reading, x);
  x.reset();
  moment();
  EXPECT_EQ(uint64_t{1} << 20, statistics().pinned_nbytes);
  resume();
  EXPECT_TRUE(soon([this] { return statistics().pinned_nbytes == 0; }));
  EXPECT_EQ(7, reading.last);
}

}  // namespace
}  // namespace tenon::impl
