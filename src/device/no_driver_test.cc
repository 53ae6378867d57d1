// SPDX-License-Identifier: Apache-2.0
//
// Without a driver. Each test is a process of its own, because a process looks for the driver once.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "device/completions.h"
#include "device/device_testing.h"
#include "device/submitted_work.h"

namespace tenon::impl {
namespace {

// Runs body in a child, which has not looked for a driver. It returns what it finds wrong.
std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string wrong = body();
    (void)!write(ends[1], wrong.data(), wrong.size());
    _exit(0);
  }
  close(ends[1]);
  std::string wrong;
  char piece[512];
  for (ssize_t n = 0; (n = read(ends[0], piece, sizeof piece)) > 0;)
    wrong.append(piece, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? wrong : wrong + " and died";
}

std::string error_of_create(tenon_device device, tenon_status wanted) {
  tenon_array* made = nullptr;
  const int64_t n = 4;
  tenon_error e = TENON_ERROR_INIT;
  const tenon_status got = tenon_array_create(kInt32, 1, &n, device, 0, &made, &e);
  return got == wanted ? e.message : "another status: " + std::to_string(got) + " " + e.message;
}

TEST(NoDriver, EachCallSaysWhatWasLookedForAndWhere) {
  const std::string text = in_child([]() -> std::string {
    setenv("TENON_CUDA_DRIVER", "/nowhere/libcuda.so", 1);
    const std::string first = error_of_create(kCuda, TENON_ERR_NOT_FOUND);
    const std::string second = error_of_create(kPinned, TENON_ERR_NOT_FOUND);
    return first == second ? first : first + " then " + second;
  });
  EXPECT_NE(
      text.find("there is no CUDA driver: the library '/nowhere/libcuda.so', which TENON_CUDA_DRIVER names"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("No such file"), std::string::npos) << text;
}

TEST(NoDriver, ADriverWithoutDevicesOrFunctionsSaysSo) {
  EXPECT_NE(in_child([] {
              setenv("TENON_CUDA_DRIVER", TENON_FAKE_CUDA, 1);
              setenv("TENON_FAKE_CUDA", "devices=0", 1);
              return error_of_create(kCuda, TENON_ERR_NOT_FOUND);
            }).find("does not start: CUDA_ERROR_NO_DEVICE"),
            std::string::npos);
  EXPECT_NE(in_child([] {
              setenv("TENON_CUDA_DRIVER", "libm.so.6", 1);
              return error_of_create(kCuda, TENON_ERR_NOT_FOUND);
            }).find("has no function cuInit: a driver of CUDA 11.2 or newer is needed"),
            std::string::npos);
}

TEST(NoDriver, DevicesWithoutPoolsAllocateAllTheSame) {
  EXPECT_EQ("", in_child([]() -> std::string {
              setenv("TENON_CUDA_DRIVER", TENON_FAKE_CUDA, 1);
              setenv("TENON_FAKE_CUDA", "devices=1,pools=0", 1);
              return error_of_create(kCuda, TENON_OK);
            }));
}

// The thread that waits for events must not keep a process from ending, nor call a driver that has ended.
TEST(NoDriver, AProcessEndsWhileItsWorkIsNotDone) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TENON_CUDA_DRIVER", TENON_FAKE_CUDA, 1);
    setenv("TENON_FAKE_CUDA", "devices=1", 1);
    alarm(60);
    const int64_t n = 1000;
    tenon_array* a = nullptr;
    tenon_array* b = nullptr;
    tenon_op* op = nullptr;
    if (tenon_array_create(kInt32, 1, &n, kCpu, TENON_ZEROED, &a, nullptr) != TENON_OK) _exit(1);
    if (tenon_array_create(kInt32, 1, &n, kCuda, TENON_ZEROED, &b, nullptr) != TENON_OK) _exit(2);
    device::Device& device = device::Device::of(kCuda);
    if (DeviceTest::on(kCuda, fake_cuda_hold, device.stream(device::StreamKind::kToDevice)) != 0) _exit(3);
    if (tenon_push_copy(a, b, nullptr, &op, nullptr) != TENON_OK) _exit(4);
    while (device::Completions::instance().pending() == 0) std::this_thread::yield();
    std::exit(0);
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
}

// A call after the work of a stream that is held until this returns.
struct AfterHeldWork : device::AfterWork {
  explicit AfterHeldWork(const char* settings) {
    setenv("TENON_CUDA_DRIVER", TENON_FAKE_CUDA, 1);
    setenv("TENON_FAKE_CUDA", settings, 1);
    alarm(60);
    call = [](AfterWork* self) noexcept { static_cast<AfterHeldWork*>(self)->is_told = true; };
    device::SubmittedWork::instance().prepare();
    stream = device::Device::of(kCuda).stream(device::StreamKind::kToDevice);
    (void)DeviceTest::on(kCuda, fake_cuda_hold, stream);
  }
  void launch(int (*kernel)(void*)) {
    (void)DeviceTest::on(kCuda, fake_cuda_launch, stream, kernel, nullptr);
    (void)device::SubmittedWork::instance().then(this);
  }
  std::string told_after_resume() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (is_told) return "it was told before the work had ended";
    (void)DeviceTest::on(kCuda, fake_cuda_resume, stream);
    while (!is_told) std::this_thread::yield();
    return "";
  }
  void* stream = nullptr;
  std::atomic<bool> is_told{false};
};

TEST(NoDriver, APinnedPoolSaysThatThereIsNoDriver) {
  EXPECT_EQ("", in_child([]() -> std::string {
              setenv("TENON_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
              const tenon_pool_options options{sizeof options, TENON_POOL_PINNED, 1 << 20, 0, -1};
              tenon_tensor_pool* pool = nullptr;
              tenon_error error = TENON_ERROR_INIT;
              const tenon_status status = tenon_tensor_pool_create(&options, &pool, &error);
              return status == TENON_ERR_NOT_FOUND && std::strstr(error.message, "/nowhere/") != nullptr
                         ? ""
                         : error.message;
            }));
}

TEST(NoDriver, WithoutEventsOfContextsAThreadWaitsForTheWork) {
  EXPECT_EQ("", in_child([]() -> std::string {
              AfterHeldWork after("devices=2,missing=cuCtxRecordEvent");
              after.launch([](void*) { return 0; });
              const std::string wrong = after.told_after_resume();
              return fake_cuda_count("cuCtxRecordEvent") != 0 ? "it records events" : wrong;
            }));
}

// Nothing tells whether its copies have ended.
TEST(NoDriver, ACallIsNotMadeAfterADeviceHasFailed) {
  for (const char* settings : {"devices=1", "devices=1,missing=cuCtxRecordEvent"}) {
    EXPECT_EQ("", in_child([&]() -> std::string {
                AfterHeldWork after(settings);
                after.launch([](void*) { return 700; });
                (void)DeviceTest::on(kCuda, fake_cuda_resume, after.stream);
                auto& work = device::SubmittedWork::instance();
                while (work.describe().find("CUDA_ERROR_ILLEGAL_ADDRESS") == std::string::npos)
                  std::this_thread::yield();
                return after.is_told ? "it was told" : "";
              }))
        << settings;
  }
}

TEST(NoDriver, AProcessEndsWhileACallWaitsForWork) {
  for (const char* settings : {"devices=1,strict_end=1", "devices=1,missing=cuCtxRecordEvent"}) {
    EXPECT_EQ("", in_child([&]() -> std::string {
                static AfterHeldWork after(settings);
                after.launch([](void*) { return 0; });
                const char* const call =
                    std::strstr(settings, "missing") ? "cuCtxSynchronize" : "cuCtxRecordEvent";
                while (fake_cuda_count(call) == 0) std::this_thread::yield();
                std::exit(0);
              }))
        << settings;
  }
}

// Of the child, for its handler.
tenon_lease held = TENON_LEASE_INIT;
tenon_op* waiting = nullptr;

// exit() calls it after the end of the driver.
void let_the_copy_run() {
  (void)tenon_lease_release(&held);
  tenon_error e = TENON_ERROR_INIT;
  const tenon_status status = tenon_op_wait(waiting, 60'000'000'000, &e);
  const bool is_refused = status == TENON_ERR_OP && std::strstr(e.message, "the process is in exit()");
  tenon_op_release(waiting);
  _exit(is_refused ? 0 : 1);
}

// The status of a child that calls exit() while a copy to its device waits for a lease. push takes the array
// of the host on which the lease is, and the one of the device.
int exit_before_the_copy(const char* engine, tenon_op* (*push)(tenon_array* host, tenon_array* device)) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TENON_CUDA_DRIVER", TENON_FAKE_CUDA, 1);
    setenv("TENON_FAKE_CUDA", "devices=1,strict_end=1", 1);
    alarm(60);
    std::atexit(let_the_copy_run);
    const int64_t n = 1000;
    tenon_array* a = nullptr;
    tenon_array* b = nullptr;
    tenon_lease_options options{};
    options.struct_size = sizeof options;
    options.access = TENON_WRITE;
    options.timeout_ns = -1;
    if (tenon_engine_set(engine, 0, nullptr) != TENON_OK) _exit(2);
    if (tenon_array_create(kInt32, 1, &n, kCpu, TENON_ZEROED, &a, nullptr) != TENON_OK) _exit(3);
    if (tenon_array_create(kInt32, 1, &n, kCuda, TENON_ZEROED, &b, nullptr) != TENON_OK) _exit(4);
    if (tenon_lease_acquire(&held, a, &options, nullptr) != TENON_OK) _exit(5);
    waiting = push(a, b);
    std::exit(6);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child ? status : -1;
}

tenon_op* push_copy(tenon_array* from, tenon_array* to) {
  tenon_op* op = nullptr;
  if (tenon_push_copy(from, to, nullptr, &op, nullptr) != TENON_OK) _exit(7);
  return op;
}

TEST(NoDriver, ACopyThatBecomesReadyInExitFails) {
  EXPECT_EQ(0, exit_before_the_copy("pool", push_copy));
  EXPECT_EQ(0, exit_before_the_copy("inline", push_copy));
}

TEST(NoDriver, MemoryThatIsPinnedInExitStaysPinned) {
  static tenon_registration* registration = nullptr;
  const pid_t child = fork();
  if (child == 0) {
    setenv("TENON_CUDA_DRIVER", TENON_FAKE_CUDA, 1);
    setenv("TENON_FAKE_CUDA", "devices=1,strict_end=1", 1);
    std::atexit([] {
      tenon_registration_release(registration);
      _exit(0);
    });
    const int64_t n = 1000;
    tenon_array* a = nullptr;
    if (tenon_array_create(kInt32, 1, &n, kCpu, TENON_ZEROED, &a, nullptr) != TENON_OK) _exit(2);
    if (tenon_array_register(a, &registration, nullptr) != TENON_OK) _exit(3);
    std::exit(4);
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
}

// The op has the last reference to the memory. With this engine it ends in the handler.
TEST(NoDriver, MemoryThatIsDroppedInExitIsLeftToTheEndOfTheProcess) {
  EXPECT_EQ(0, exit_before_the_copy("inline", [](tenon_array* host, tenon_array* device) {
              tenon_op* const op = push_copy(host, device);
              tenon_array_release(device);
              return op;
            }));
  EXPECT_EQ(0, exit_before_the_copy("inline", [](tenon_array* host, tenon_array* device) {
              const int64_t n = 1000;
              tenon_array* pinned = nullptr;
              if (tenon_array_create(kInt32, 1, &n, kPinned, TENON_ZEROED, &pinned, nullptr) != TENON_OK)
                _exit(8);
              tenon_op_release(push_copy(host, pinned));
              tenon_op* const op = push_copy(pinned, device);
              tenon_array_release(pinned);
              return op;
            }));
}

}  // namespace
}  // namespace tenon::impl
