// SPDX-License-Identifier: Apache-2.0
//
// Shared arrays on a device whose driver is short of memory, takes long, or ends. The fake driver holds
// calls: so they take long.
#include <sys/wait.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ipc/on_device_testing.h"

namespace tenon::impl {
namespace {

TEST_F(SharedOnDevice, TooMuchMemoryIsAnErrorWithTheNumbers) {
  std::string text;
  EXPECT_EQ(TENON_ERR_NO_MEMORY, code_of([] { (void)make("", int64_t{1} << 40); }, &text));
  EXPECT_NE(text.find("cannot allocate 4398046511104 bytes on cuda:0, where "), std::string::npos) << text;
  EXPECT_EQ(2u, fake_cuda_count("cuMemAlloc_v2")) << "no memory is on its way that a wait would bring";
}

constexpr int64_t kLarge = (80 << 20) / 4;  // more than half of the device's memory

// Breaks when only some of the segments are looked at.
TEST_F(SharedOnDevice, TheMemoryOfArraysThatHaveGoneIsUsedAgain) {
  std::vector<api::Array> small;
  for (int i = 0; i < 60; ++i) small.push_back(make());
  small.clear();
  EXPECT_EQ(kLarge, make("", kLarge).size());
}

// Breaks when the creator tries a fixed number of times.
TEST_F(SharedOnDevice, MemoryOfArraysThatOthersAreClosingIsWaitedFor) {
  std::string given = "not tried";
  for (int i = 0; i < 20 && given != "ok"; ++i) {  // on a busy machine the other process may take too long
    here.keep(make("", kLarge));
    const auto peer = importer();
    EXPECT_EQ("ok", ask("drop"));
    EXPECT_EQ("ok", peer->ask("hold cuIpcCloseMemHandle"));
    EXPECT_EQ("ok", peer->ask("drop"));
    EXPECT_EQ("ok", peer->ask("await cuIpcCloseMemHandle"));
    fake_cuda_reset_counts();
    std::atomic<bool> has_ended{false};
    std::thread maker([&] {
      given = concat("error ", code_of([&] { here.keep(make("", kLarge)); }));
      if (given == "error 0") given = "ok";
      has_ended = true;
    });
    EXPECT_TRUE(comes_true([&] { return has_ended || fake_cuda_count("cuMemAlloc_v2") >= 4; }));
    EXPECT_EQ("ok", peer->ask("let-go"));
    maker.join();
    EXPECT_EQ("ok", ask("drop"));
    EXPECT_TRUE(ends("live.device"));
  }
  EXPECT_EQ("ok", given);
}

// ------------------------------------------------------------------------------- calls that take long

// While a call of the driver is held. Breaks when the call is made under the lock of Segments, or in the
// thread of MutexOwner.
void expect_others_go_on() {
  api::SharedOptions options;
  options.name = new_name();
  const api::Array named = api::zeros_shared({16}, kInt, options);
  const api::Array pooled = api::zeros_shared({16}, kInt, {});
  EXPECT_EQ(16, api::open(api::send(pooled)).size());
  EXPECT_EQ(16, api::attach(options.name).size());
  EXPECT_EQ(0, status_of_child([] { return true; }));
}

TEST_F(SharedOnDevice, FreeingHoldsUpNothing) {
  ASSERT_EQ("ok", ask("make"));
  EXPECT_EQ("ok", ask("hold cuMemFree_v2"));
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_EQ("ok", ask("await cuMemFree_v2"));
  expect_others_go_on();
  EXPECT_EQ("ok", ask("make"));
  EXPECT_EQ("ok", ask("let-go"));
  EXPECT_EQ("0", ask("value"));
}

TEST_F(SharedOnDevice, UnmappingHoldsUpNothing) {
  const auto peer = exporter();
  EXPECT_EQ("ok", peer->ask("fill 4"));
  EXPECT_EQ("ok", ask("hold cuIpcCloseMemHandle"));
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_EQ("ok", ask("await cuIpcCloseMemHandle"));
  expect_others_go_on();
  EXPECT_EQ("ok", ask("open " + peer->ask("send"))) << "it is mapped again";
  EXPECT_EQ("ok", peer->ask("drop"));
  EXPECT_EQ("4", ask("value"));
  EXPECT_EQ("ok", ask("let-go"));
  std::this_thread::sleep_for(600ms);  // two sweeps
  EXPECT_EQ("4", ask("value")) << "the end of the first mapping is not the end of the use";
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_EQ("ok", peer->ask("none live.device"));
}

TEST_F(SharedOnDevice, AProcessCountsAsUserUntilItsMemoryIsUnmapped) {
  const auto peer = exporter();
  const std::string handle = peer->ask("send");
  EXPECT_EQ("ok", ask("hold cuIpcCloseMemHandle"));
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_EQ("ok", ask("await cuIpcCloseMemHandle"));
  fake_cuda_fail("cuIpcOpenMemHandle_v2", 1, 999);
  EXPECT_FAILS(TENON_ERR_SYSTEM, ask("open " + handle), "CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(1u, used_here());
  Segments::instance().visit(
      [](Segment& segment) { EXPECT_FALSE(segment.use(0, 99)) << "a forged handle, of another generation"; });
  EXPECT_EQ(1u, used_here());
#if !defined(__SANITIZE_THREAD__)  // under which a child cannot start threads
  EXPECT_EQ(0, status_of_child([&] {
              return ask("open " + handle).find("forked after CUDA had started") != std::string::npos;
            }));
  EXPECT_EQ(1u, used_here());
#endif
  EXPECT_EQ("ok", ask("let-go"));
  EXPECT_EQ("ok", ask("open " + handle));
}

TEST_F(SharedOnDevice, MappingHoldsUpNothing) {
  const std::string name = new_name();
  Peer peer({"side"});
  ASSERT_EQ("ok", peer.ask("make " + name));
  EXPECT_EQ("ok", peer.ask("fill 4"));
  const std::string handle = peer.ask("send");
  EXPECT_EQ("ok", ask("hold cuIpcOpenMemHandle_v2"));
  Side second;
  std::string attached, opened;
  std::thread first_one([&] { attached = ask("attach " + name); });
  std::thread second_one([&] { opened = second.answer("open " + handle); });
  EXPECT_TRUE(comes_true([] { return fake_cuda_count("cuIpcOpenMemHandle_v2") == 2; }));
  expect_others_go_on();
  Peer third({"side"});
  EXPECT_EQ("ok", third.ask("attach " + name)) << "the name is not locked";
  EXPECT_EQ("ok", ask("let-go"));
  first_one.join();
  second_one.join();
  EXPECT_EQ("ok", attached);
  EXPECT_EQ("ok", opened);
  EXPECT_EQ("4", ask("value"));
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_EQ("4", second.answer("value"));
}

// The driver ends in exit(), too: a call that it runs then may crash.
TEST_F(SharedOnDevice, ExitWaitsForACallThatFreesMemory) {
  const DriverOfPeers driver("devices=2,strict_end=1");
  int status = -1;
  for (int i = 0; i < 5 && status != 0; ++i) {  // it waits a second, which may be too short on a busy machine
    Peer peer({"side"});
    ASSERT_EQ("ok", peer.ask("make"));
    EXPECT_EQ("ok", peer.ask("hold cuMemFree_v2"));
    EXPECT_EQ("ok", peer.ask("drop"));
    EXPECT_EQ("ok", peer.ask("await cuMemFree_v2"));
    EXPECT_EQ("ok", peer.ask("let-go-in-exit"));
    status = peer.end();
  }
  EXPECT_EQ(0, status);
}

TEST_F(SharedOnDevice, NothingIsFreedAfterTheEndOfTheDriver) {
  const DriverOfPeers driver("devices=2,strict_end=1");
  Peer peer({"side"});
  ASSERT_EQ("ok", peer.ask("make"));
  EXPECT_EQ("ok", peer.ask("drop-late"));
  EXPECT_EQ(0, peer.end());
}

}  // namespace
}  // namespace tenon::impl
