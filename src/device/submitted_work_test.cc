// SPDX-License-Identifier: Apache-2.0
//
// Calls after the work of all streams. Work on a stream that is held has not run, so a call that comes before
// it is released is too early. What needs a driver of its own is in no_driver_test.cc.
#include "device/submitted_work.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "device/device.h"
#include "device/device_testing.h"

namespace tenon::impl {
namespace {

using device::AfterWork;
using device::SubmittedWork;

constexpr int kOutOfMemory = 2;
constexpr int kCaptureInvalidated = 901;

struct Told : AfterWork {
  Told() {
    call = [](AfterWork* self) noexcept { static_cast<Told*>(self)->is_told = true; };
  }
  std::atomic<bool> is_told{false};
};

class AfterSubmittedWork : public ConsumerTest {
 protected:
  void SetUp() override {
    ConsumerTest::SetUp();
    SubmittedWork::instance().prepare();
    (void)Device::of(kOther);
  }
  void TearDown() override {
    EXPECT_TRUE(soon([] { return SubmittedWork::instance().pending() == 0; }));
    ConsumerTest::TearDown();
  }
  // A kernel on the stream of another library, which does not run before the stream is resumed.
  void launch_held() {
    EXPECT_EQ(0, on(kCuda, fake_cuda_hold, stream));
    EXPECT_EQ(0, on(kCuda, fake_cuda_launch, stream, +[](void*) { return 0; }, nullptr));
  }
  void resume() { EXPECT_EQ(0, on(kCuda, fake_cuda_resume, stream)); }
  static void then(Told& told) { EXPECT_TRUE(SubmittedWork::instance().then(&told)); }

  // Not while the capture lasts, and afterwards. Returns what the end of the capture says.
  int told_after_capture_of(void* captured, bool is_announced = false) {
    Told told;
    if (is_announced) tenon_graph_capture_begin();
    EXPECT_EQ(0, on(kCuda, fake_cuda_begin_capture, captured, 0));
    then(told);
    moment(20);
    EXPECT_FALSE(told.is_told);
    const int status = on(kCuda, fake_cuda_end_capture, captured, nullptr);
    if (is_announced) tenon_graph_capture_end();
    EXPECT_TRUE(soon([&] { return told.is_told.load(); }));
    return status;
  }
};

TEST_F(AfterSubmittedWork, ACallComesAfterTheWorkOfAStreamOfAnotherLibrary) {
  Told told;
  launch_held();
  then(told);
  moment();
  EXPECT_FALSE(told.is_told);
  resume();
  EXPECT_TRUE(soon([&] { return told.is_told.load(); }));
}

TEST_F(AfterSubmittedWork, ACallWaitsForEachDeviceOfTheProcess) {
  Told told;
  Hold hold(StreamKind::kToDevice, kOther);
  EXPECT_EQ(0, on(
                   kOther, fake_cuda_launch, Device::of(kOther).stream(StreamKind::kToDevice),
                   +[](void*) { return 0; }, nullptr));
  then(told);
  moment();
  EXPECT_FALSE(told.is_told);
  hold.release();
  EXPECT_TRUE(soon([&] { return told.is_told.load(); }));
}

TEST_F(AfterSubmittedWork, CapturesAreCounted) {
  Told told;
  tenon_graph_capture_begin();
  tenon_graph_capture_begin();
  then(told);
  tenon_graph_capture_end();
  moment();
  EXPECT_FALSE(told.is_told);
  tenon_graph_capture_end();
  EXPECT_TRUE(soon([&] { return told.is_told.load(); }));
}

TEST_F(AfterSubmittedWork, ACallDoesNotWaitForLaterWork) {
  Told told;
  then(told);
  EXPECT_TRUE(soon([&] { return fake_cuda_count("cuCtxRecordEvent") == 2; }));
  launch_held();
  EXPECT_TRUE(soon([&] { return told.is_told.load(); }));
  resume();
}

// The thread that makes the call is not the caller, who may hold what the call needs.
TEST_F(AfterSubmittedWork, TheCallerOnlyQueues) {
  Told told;
  EXPECT_EQ(0, fake_cuda_hold_calls("cuCtxRecordEvent"));
  then(told);
  EXPECT_FALSE(told.is_told);
  fake_cuda_release_calls();
  EXPECT_TRUE(soon([&] { return told.is_told.load(); }));
}

TEST_F(AfterSubmittedWork, ACallIsHeldUntilACaptureHasEnded) {
  // Nothing tells of this capture but the failure.
  EXPECT_EQ(kCaptureInvalidated, told_after_capture_of(stream));
}

TEST_F(AfterSubmittedWork, ACaptureThatIsAnnouncedStaysValid) {
  EXPECT_EQ(0, told_after_capture_of(stream, true));
}

TEST_F(AfterSubmittedWork, ACaptureThatTheLegacyStreamWaitsForStaysValid) {
  EXPECT_EQ(0, told_after_capture_of(Device::of(kCuda).driver().stream_of(2)));
  EXPECT_EQ(0u, fake_cuda_count("problems"));
}

TEST_F(AfterSubmittedWork, AnEventThatCannotBeHadIsTriedAgain) {
  Told told;
  launch_held();
  fake_cuda_fail("cuCtxRecordEvent", 1, kOutOfMemory);
  then(told);
  EXPECT_TRUE(soon([&] { return fake_cuda_count("cuCtxRecordEvent") >= 3; }));
  moment();
  EXPECT_FALSE(told.is_told);
  resume();
  EXPECT_TRUE(soon([&] { return told.is_told.load(); }));
}

TEST_F(AfterSubmittedWork, AForkedChildIsTold) {
  const pid_t child = fork();
  if (child == 0) {
    Told told;
    _exit(SubmittedWork::instance().then(&told) ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
}

}  // namespace
}  // namespace tenon::impl
