// SPDX-License-Identifier: Apache-2.0
//
// Shared arrays on a device of the fake driver. It counts allocations and mappings, fills freed memory that
// another process has mapped with 0xDD, and runs nothing of a stream that is held: so a use that does not
// wait for work on a stream sees the values from before it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/on_device_testing.h"
#include "tenon/arena.hpp"
#include "tenon/channel.hpp"

namespace tenon::impl {
namespace {

// ---------------------------------------------------------------------------------------------- elements

TEST_F(SharedOnDevice, ProcessesSeeEachOthersWrites) {
  ASSERT_EQ("ok", ask("make"));
  const auto peer = importer();
  EXPECT_EQ("0", peer->ask("value")) << "new memory is zero, also on the streams of another process";
  EXPECT_EQ("ok", ask("fill 5"));
  EXPECT_EQ("5", peer->ask("value"));
  EXPECT_EQ("ok", peer->ask("fill 6"));
  EXPECT_EQ("6", ask("value"));
  EXPECT_EQ("cuda:0", peer->ask("device"));
}

TEST_F(SharedOnDevice, ANameFindsTheArray) {
  const std::string name = new_name();
  ASSERT_EQ("ok", ask("make " + name));
  EXPECT_EQ("ok", ask("fill 3"));
  Peer peer({"side"});
  EXPECT_EQ("ok", peer.ask("attach " + name));
  EXPECT_EQ("3", peer.ask("value"));
  EXPECT_EQ("ok", peer.ask("drop"));
  EXPECT_EQ("ok", peer.ask("none live.ipc"));
  EXPECT_EQ("ok", peer.ask("attach-readonly " + name));
  EXPECT_EQ("3", peer.ask("value"));
  EXPECT_FAILS(TENON_ERR_BUFFER, peer.ask("fill 4"), "read-only");
  EXPECT_FAILS(TENON_ERR_VALUE, ask("make " + name), "exists already");
}

TEST_F(SharedOnDevice, AProcessMapsTheMemoryOnce) {
  ASSERT_EQ("ok", ask("make"));
  const std::string handle = ask("send");
  const auto peer = importer();
  EXPECT_EQ("ok", peer->ask("open " + handle));
  EXPECT_EQ("ok", peer->ask("open " + ask("send")));
  EXPECT_EQ("1", peer->ask("count cuIpcOpenMemHandle_v2"));
  EXPECT_EQ("1", peer->ask("count live.ipc"));
  EXPECT_EQ("ok", peer->ask("drop"));
  EXPECT_EQ("ok", peer->ask("none live.ipc"));
}

TEST_F(SharedOnDevice, TheCreatorOpensItsOwnHandleWithoutTheDriver) {
  const api::Array a = make();
  a.fill(int32_t{2});
  const api::Array again = api::open(api::send(a));
  EXPECT_EQ(a.data(), again.data());
  EXPECT_TRUE(api::is_shared(again));
  EXPECT_EQ(0u, fake_cuda_count("cuIpcOpenMemHandle_v2"));
}

TEST_F(SharedOnDevice, AnArrayWithoutElementsIsSharedToo) {
  const api::Array none = make("", 0);
  EXPECT_EQ(0, api::open(api::send(none)).size());
}

TEST_F(SharedOnDevice, TheNumberOfADeviceMayDifferBetweenProcesses) {
  const std::string name = new_name();
  const api::Array second = make(name, kN, {TENON_CUDA, 1});
  second.fill(int32_t{8});
  const DriverOfPeers driver("devices=1,first=1");
  Peer peer({"side"});
  EXPECT_EQ("ok", peer.ask("attach " + name));
  EXPECT_EQ("cuda:0", peer.ask("device"));
  EXPECT_EQ("8", peer.ask("value"));
  ASSERT_EQ("ok", ask("make"));
  EXPECT_FAILS(TENON_ERR_NOT_FOUND, peer.ask("open " + ask("send")),
               "is on the device GPU-66616b65-2047-5055-0000-000000000000, which is none of the 1 devices");
  EXPECT_EQ(1u, api::revoke_handles(api::open(bytes_of(ask("send")))));
}

// ------------------------------------------------------------------------------------------------- turns

TEST_F(SharedOnDevice, AWriterExcludesOtherProcesses) {
  ASSERT_EQ("ok", ask("make"));
  const auto peer = importer();
  EXPECT_EQ("ok", ask("lease w"));
  EXPECT_FAILS(TENON_ERR_TIMEOUT, peer->ask("try r"), concat("process ", getpid()));
  EXPECT_EQ("ok", ask("release"));
  EXPECT_EQ("ok", peer->ask("try r"));
  EXPECT_EQ("ok", ask("try r"));
  EXPECT_EQ("ok", ask("release"));
  EXPECT_FAILS(TENON_ERR_TIMEOUT, ask("try w"), concat("process ", peer->pid()));
  EXPECT_EQ("ok", peer->ask("release"));
}

TEST_F(SharedOnDevice, DifferentBytesDoNotConflict) {
  const api::Array a = make();
  Peer peer({"side"});
  EXPECT_EQ("ok", peer.ask("open " + hex(api::send(part(a, 0, 1000)))));
  const api::Lease lease(part(a, 1000, kN), api::Access::kWrite);
  EXPECT_EQ("ok", peer.ask("try w"));
  EXPECT_EQ(TENON_ERR_TIMEOUT,
            code_of([&] { const api::Lease other(part(a, 999, 1000), api::Access::kRead, 0, 0ns); }));
}

TEST_F(SharedOnDevice, AViewNeedsALease) {
  ASSERT_EQ("ok", ask("make"));
  EXPECT_FAILS(TENON_ERR_LEASE_CONFLICT, ask("export"), "a view needs a lease");
  EXPECT_EQ("ok", ask("lease r"));
  EXPECT_FAILS(TENON_ERR_LEASE_CONFLICT, ask("export"), "allows reading only");
}

// A consumer submits a kernel under a lease and drops its tensor, before the lease ends or after.
class WorkOnStreams : public SharedOnDevice, public testing::WithParamInterface<bool> {};

TEST_P(WorkOnStreams, OtherProcessesWaitForIt) {
  ASSERT_EQ("ok", ask("make"));
  const auto peer = importer();
  EXPECT_EQ("ok", ask("lease w"));
  ASSERT_EQ("ok", ask("export"));
  EXPECT_EQ("ok", ask("launch 7"));
  EXPECT_EQ("ok", ask(GetParam() ? "unexport" : "release"));
  EXPECT_EQ("ok", ask(GetParam() ? "release" : "unexport"));
  EXPECT_FAILS(TENON_ERR_TIMEOUT, peer->ask("try r"), concat("process ", getpid()));
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    (void)ask("resume");
  });
  EXPECT_EQ("7", peer->ask("value"));
  later.join();
  EXPECT_EQ("ok", peer->ask("fill 8"));
  EXPECT_EQ("8", ask("value"));
}
INSTANTIATE_TEST_SUITE_P(Ends, WorkOnStreams, testing::Bool());

TEST_F(SharedOnDevice, OtherProcessesWaitForAPushedCopy) {
  const api::Array a = make();
  const api::Array source = api::Array::zeros({kN}, kInt);
  source.fill(int32_t{9});
  Peer peer({"side"});
  ASSERT_EQ("ok", peer.ask("open " + hex(api::send(a))));
  void* const stream = Device::of(kCuda).stream(StreamKind::kToDevice);
  EXPECT_EQ(0, on_device(fake_cuda_hold, stream));
  tenon_error error = TENON_ERROR_INIT;
  tenon_op* op = nullptr;
  ASSERT_EQ(TENON_OK, tenon_push_copy(source.get(), a.get(), nullptr, &op, &error)) << error.message;
  EXPECT_TRUE(comes_true([] { return fake_cuda_count("cuMemcpyAsync") != 0; }));
  EXPECT_FAILS(TENON_ERR_TIMEOUT, peer.ask("try r"), concat("process ", getpid()));
  EXPECT_EQ(0, on_device(fake_cuda_resume, stream));
  EXPECT_EQ("9", peer.ask("value"));
  EXPECT_EQ(TENON_OK, tenon_op_wait(op, -1, &error)) << error.message;
  tenon_op_release(op);
}

// This process waits for the other one, which waits for work of this one on a stream: that ends by itself.
TEST_P(WorkOnStreams, IsInNoDeadlock) {
  ASSERT_EQ("ok", ask("make"));
  const auto peer = importer();
  const api::Array second = make();
  ASSERT_EQ("ok", peer->ask("second open " + hex(api::send(second))));
  EXPECT_EQ("ok", peer->ask("second lease w"));
  EXPECT_EQ("ok", ask("lease w"));
  ASSERT_EQ("ok", ask("export"));
  EXPECT_EQ("ok", ask("launch 7"));
  EXPECT_EQ("ok", ask(GetParam() ? "unexport" : "release"));
  EXPECT_EQ("ok", ask(GetParam() ? "release" : "unexport"));
  peer->say("lease w");
  EXPECT_EQ(TENON_ERR_TIMEOUT,
            code_of([&] { const api::Lease other(second, api::Access::kWrite, 0, 300ms); }));
  EXPECT_EQ("ok", ask("resume"));
  std::string given;
  EXPECT_TRUE(peer->hear(&given));
  EXPECT_EQ("ok", given);
}

// ---------------------------------------------------------------------------------------------- lifetime

TEST_F(SharedOnDevice, TheCreatorKeepsTheMemoryForOthers) {
  ASSERT_EQ("ok", ask("make"));
  EXPECT_EQ("ok", ask("fill 4"));
  const auto peer = importer();
  EXPECT_EQ("ok", ask("drop"));
  std::this_thread::sleep_for(600ms);  // two sweeps
  EXPECT_EQ(1u, fake_cuda_count("live.device"));
  EXPECT_EQ("4", peer->ask("value"));
  EXPECT_EQ("ok", ask("open " + peer->ask("send"))) << "another process gives it back";
  EXPECT_EQ("4", ask("value"));
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_EQ("ok", peer->ask("drop"));
  EXPECT_EQ("ok", peer->ask("none live.ipc"));
  EXPECT_TRUE(ends("live.device"));
}

TEST_F(SharedOnDevice, AnUnopenedHandleKeepsTheMemory) {
  ASSERT_EQ("ok", ask("make"));
  const std::string handle = ask("send");
  EXPECT_EQ("ok", ask("drop"));
  std::this_thread::sleep_for(600ms);
  EXPECT_EQ(1u, fake_cuda_count("live.device"));
  Peer peer({"side"});
  EXPECT_EQ("ok", peer.ask("open " + handle));
  EXPECT_EQ("0", peer.ask("value"));
  EXPECT_EQ("ok", peer.ask("drop"));
  EXPECT_TRUE(ends("live.device"));
  EXPECT_FAILS(TENON_ERR_NOT_FOUND, peer.ask("open " + handle), "the shared array ");
}

// Else the creator could free memory that another process has mapped.
TEST_F(SharedOnDevice, AProcessCountsAsUserAsLongAsItHasTheMemoryMapped) {
  const auto peer = exporter();
  const std::string handle = ask("send");  // keeps the segment open without an array
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_EQ(1u, fake_cuda_count("live.ipc"));
  EXPECT_EQ(1u, used_here());
  EXPECT_EQ("ok", ask("open " + handle));
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_TRUE(ends("live.ipc"));
  EXPECT_EQ("ok", peer->ask("drop"));
  EXPECT_EQ("ok", peer->ask("none live.device"));
}

TEST_F(SharedOnDevice, AfterTheCreatorsDeathNoAccessSucceeds) {
  const auto peer = exporter();
  EXPECT_EQ("ok", peer->ask("fill 4"));
  const std::string handle = ask("send");
  const std::string died = concat("was allocated by process ", peer->pid(), ", which has ended");
  peer->kill();
  EXPECT_FAILS(TENON_ERR_OWNER_DIED, ask("value"), died);
  EXPECT_FAILS(TENON_ERR_OWNER_DIED, ask("fill 5"), died);
  EXPECT_FAILS(TENON_ERR_OWNER_DIED, ask("lease w"), died);
  EXPECT_EQ("ok", ask("clear-error")) << "which clears only what can be cleared";
  EXPECT_FAILS(TENON_ERR_OWNER_DIED, ask("try r"), died);
  EXPECT_FAILS(TENON_ERR_NOT_FOUND, ask("open " + handle), "had allocated its memory on a device")
      << "also where it is open";
  Peer third({"side"});
  EXPECT_FAILS(TENON_ERR_NOT_FOUND, third.ask("open " + handle), "had allocated its memory on a device");
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_TRUE(ends("live.ipc")) << "the mapping";
}

TEST_F(SharedOnDevice, TheNameIsFreeAfterTheCreatorsDeath) {
  const std::string name = new_name();
  Peer peer({"side"});
  ASSERT_EQ("ok", peer.ask("make " + name));
  ASSERT_EQ("ok", ask("attach " + name));
  peer.kill();
  Peer next({"side"});
  EXPECT_FAILS(TENON_ERR_NOT_FOUND, next.ask("attach " + name), "no process of this user shares");
  EXPECT_EQ("ok", next.ask("make " + name));
  EXPECT_EQ("ok", next.ask("fill 2"));
  EXPECT_FAILS(TENON_ERR_OWNER_DIED, ask("value"), "which has ended");
  EXPECT_EQ("ok", ask("attach " + name));
  EXPECT_EQ("2", ask("value"));
}

TEST_F(SharedOnDevice, AReportOfSharedMemoryShowsTheArray) {
  ASSERT_EQ("ok", ask("make " + new_name()));
  const std::string report = api::describe_shared();
  EXPECT_NE(report.find(R"("nbytes": 12000, "dtype": "int32", "shape": [3000])"), std::string::npos)
      << report;
}

TEST_F(SharedOnDevice, AfterTheCreatorsExitNoAccessSucceeds) {
  const auto peer = exporter();
  EXPECT_EQ(0, peer->end());
  EXPECT_FAILS(TENON_ERR_OWNER_DIED, ask("value"), "which has ended");
}

TEST_F(SharedOnDevice, AWaiterIsToldOfTheCreatorsDeath) {
  const auto peer = exporter();
  EXPECT_EQ("ok", peer->ask("lease w"));
  std::string given;
  std::thread waiter([&] { given = ask("lease r"); });
  std::this_thread::sleep_for(20ms);
  peer->kill();
  waiter.join();
  EXPECT_FAILS(TENON_ERR_OWNER_DIED, given, "which has ended");
}

TEST_F(SharedOnDevice, ALeaseGoesOnAfterTheCreatorsDeath) {
  const auto peer = exporter();
  EXPECT_EQ("ok", ask("lease w"));
  peer->kill();
  EXPECT_EQ("ok", ask("fill 5"));
  EXPECT_EQ("5", ask("value"));
  EXPECT_EQ("ok", ask("release"));
  EXPECT_FAILS(TENON_ERR_OWNER_DIED, ask("value"), "which has ended");
}

TEST_F(SharedOnDevice, ADeadImporterLeavesNothing) {
  ASSERT_EQ("ok", ask("make"));
  EXPECT_EQ("ok", ask("fill 4"));
  importer()->kill();
  const auto reader = importer();
  EXPECT_EQ("ok", reader->ask("lease r"));
  reader->kill();
  EXPECT_EQ("4", ask("value"));
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_TRUE(ends("live.device"));
}

// It is killed at each of its stores to shared memory in turn, or in the end at none.
TEST_F(SharedOnDevice, AnImporterMayDieAtAnyMoment) {
  ASSERT_EQ("ok", ask("make"));
  const api::Array a = api::open(bytes_of(ask("send")));
  bool has_ended = false;
  int at = 1;
  for (; !has_ended; ++at) {
    Peer peer({"side"}, at);
    const std::vector<std::string> lines{
        "open " + ask("send"), "lease w", "fill 1", "release", "value", "drop", "none live.ipc"};
    try {
      for (const std::string& line : lines) {
        const std::string given = peer.ask(line);
        ASSERT_EQ(line == "value" ? "1" : "ok", given) << line << " of the process that dies at " << at;
      }
      has_ended = true;
    } catch (const std::runtime_error&) {
      // It has died.
    }
    peer.kill();
    (void)api::revoke_handles(a);
    ASSERT_EQ("ok", ask("fill 5")) << at;
    ASSERT_EQ("5", ask("value")) << at;
  }
  EXPECT_GT(at, 20) << "so many stores at least";
}

TEST_F(SharedOnDevice, ADeadWriterIsNotedUntilItsBytesAreOverwritten) {
  ASSERT_EQ("ok", ask("make"));
  const auto peer = importer();
  EXPECT_EQ("ok", peer->ask("lease w"));
  peer->kill();
  EXPECT_FAILS(TENON_ERR_OWNER_DIED, ask("value"), "died while it was writing there");
  EXPECT_EQ("ok", ask("fill 3"));
  EXPECT_EQ("3", ask("value"));
}

TEST_F(SharedOnDevice, AForkedChildFreesNothing) {
  ASSERT_EQ("ok", ask("make"));
  EXPECT_EQ("ok", ask("fill 4"));
  EXPECT_EQ(0, status_of_child([&] {
              const bool is_clear = ask("value").find("forked after CUDA had started") != std::string::npos;
              (void)ask("drop");
              return is_clear;
            }));
  EXPECT_EQ("4", ask("value"));
  const auto peer = importer();
  EXPECT_EQ("4", peer->ask("value"));
}

// ------------------------------------------------------------------------------------------------ failures

class CallsOfTheDriver : public SharedOnDevice, public testing::WithParamInterface<const char*> {};

TEST_P(CallsOfTheDriver, AFailureLeavesNothing) {
  ASSERT_EQ("ok", ask("make"));
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_TRUE(ends("live.device"));
  fake_cuda_fail(GetParam(), 1, 999);
  EXPECT_FAILS(TENON_ERR_SYSTEM, ask("make"), "CUDA_ERROR_UNKNOWN");
  EXPECT_TRUE(ends("live.device"));
  EXPECT_TRUE(comes_true([] { return open_here() == 0; }));
  fake_cuda_fail(nullptr, 0, 0);
  EXPECT_EQ("ok", ask("make"));
}
INSTANTIATE_TEST_SUITE_P(Create, CallsOfTheDriver,
                         testing::Values("cuDeviceGetUuid_v2", "cuMemAlloc_v2", "cuMemsetD8Async",
                                         "cuEventRecord", "cuEventSynchronize", "cuIpcGetMemHandle"));

TEST_F(SharedOnDevice, AFailureToOpenLeavesNothing) {
  Peer peer({"side"});
  ASSERT_EQ("ok", peer.ask("make"));
  const std::string handle = peer.ask("send");
  for (const char* call : {"cuDeviceGetUuid_v2", "cuIpcOpenMemHandle_v2"}) {
    fake_cuda_fail(call, 1, 999);
    EXPECT_FAILS(TENON_ERR_SYSTEM, ask("open " + handle), "CUDA_ERROR_UNKNOWN");
    EXPECT_EQ(0u, fake_cuda_count("live.ipc"));
    EXPECT_TRUE(comes_true([] { return open_here() == 0; }));
    fake_cuda_fail(nullptr, 0, 0);
  }
  EXPECT_EQ("ok", ask("open " + handle));
  EXPECT_EQ("ok", ask("drop"));
  EXPECT_TRUE(ends("live.ipc"));
  EXPECT_EQ("ok", peer.ask("drop"));
  EXPECT_EQ("ok", peer.ask("none live.device")) << "no failed attempt has left a user of the memory";
}

TEST_F(SharedOnDevice, ADriverWithoutIpcSaysSo) {
  const DriverOfPeers driver("devices=2,ipc=0");
  Peer peer({"side"});
  EXPECT_FAILS(TENON_ERR_SYSTEM, peer.ask("make"),
               "cannot share memory of cuda:0 with other processes: CUDA_ERROR_NOT_SUPPORTED");
  EXPECT_EQ("0", peer.ask("count live.device"));
}

TEST_F(SharedOnDevice, WhatOnlyTheHostHasIsRefused) {
  std::string text;
  const auto refused = [&](const api::SharedOptions& options, const char* why) {
    EXPECT_EQ(TENON_ERR_VALUE, code_of([&] { (void)api::zeros_shared({4}, kInt, options); }, &text));
    EXPECT_NE(text.find(why), std::string::npos) << text;
  };
  refused({"", false, false, -1, api::Device("cuda_host")}, "a shared array cannot be on cuda_host");
  refused({"", true, false, -1, kCuda}, "a shared array on cuda:0 cannot have them");
  refused({"", false, true, -1, kCuda}, "cannot have them");
  refused({"", false, false, 0, kCuda}, "cannot have them");
  api::SharedOptions options;
  options.device = kCuda;
  const std::vector<api::ArenaLayout> layouts{{"layout", {{"x", kInt, {4}}}}};
  EXPECT_EQ(TENON_ERR_VALUE, code_of([&] { (void)api::Arena::create_shared(layouts, options); }, &text));
  EXPECT_NE(text.find("the memory of an arena cannot be on cuda:0"), std::string::npos) << text;
  EXPECT_EQ(0u, fake_cuda_count("live.device"));
}

TEST_F(SharedOnDevice, MemoryOnADeviceIsNoArenaAndNoChannel) {
  api::SharedOptions options;
  options.device = kCuda;
  options.name = new_name();
  const api::Array bytes = api::zeros_shared({1 << 16}, api::dtype_of<uint8_t>(), options);
  tenon_error error = TENON_ERROR_INIT;
  tenon_arena* arena = nullptr;
  EXPECT_EQ(TENON_ERR_VALUE, tenon_arena_open(bytes.get(), &arena, &error)) << error.message;
  EXPECT_NE(TENON_OK, code_of([&] { (void)api::Channel::open(bytes); }));
}

}  // namespace
}  // namespace tenon::impl

int main(int count, char** words) {
  (void)signal(SIGPIPE, SIG_IGN);  // a process that is spoken to may have died
  setenv("TENON_CUDA_DRIVER", TENON_FAKE_CUDA, 1);
  setenv("TENON_FAKE_CUDA", "devices=2,memory=134217728", 0);
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_peer);
}
