// SPDX-License-Identifier: Apache-2.0
//
// Calls that fail: in the wrong state, during a capture, by injection.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "fake_cuda_test.h"

namespace tenon::fake {
namespace {

using FakeCudaLimits = FakeCuda;

CUresult exchange_mode(int mode) { return cuThreadExchangeStreamCaptureMode(&mode); }

TEST_F(FakeCudaLimits, ForkedChildrenAreNotInitialised) {
  OK(cuMemsetD8Async(device(1), 0, 1, kLegacy));  // the scheduler runs
  pid_t child = fork();
  if (child == 0) {
    int count = 0;
    bool is_refused = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                      cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                      cuStreamSynchronize(kLegacy) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  OK(cuStreamSynchronize(kLegacy));
}

TEST_F(FakeCudaLimits, CallsNeedInitialisationAndAContext) {
  std::thread([&] {
    CUdeviceptr a = 0;
    CUcontext current = context;
    int ordinal = 0;
    EXPECT_EQ(cuMemAlloc_v2(&a, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuStreamSynchronize(kLegacy), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuCtxGetDevice(&ordinal), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuCtxPopCurrent_v2(&current), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  }).join();
  CUcontext current = nullptr;
  OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, context);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&current, 2), CUDA_ERROR_INVALID_DEVICE);
  device(100);
  stream();
  OK(cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(cuStreamSynchronize(kLegacy), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  for (const char* live : {"live.device", "live.streams", "live.contexts"})
    EXPECT_EQ(fake_cuda_count(live), 0U) << live;
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  fake_cuda_reset();
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

TEST_F(FakeCudaLimits, StaleHandlesAreRefused) {
  CUstream gone = stream();
  CUevent past = event();
  OK(cuStreamDestroy_v2(gone));
  OK(cuEventDestroy_v2(past));
  EXPECT_EQ(cuStreamSynchronize(gone), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy_v2(gone), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(past), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamDestroy_v2(kPerThread), CUDA_ERROR_INVALID_HANDLE);
  CUcontext second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  CUevent first_device = event();
  OK(cuCtxPushCurrent_v2(second));
  EXPECT_EQ(cuEventRecord(first_device, kLegacy), CUDA_ERROR_INVALID_HANDLE) << "an event of another context";
  OK(cuStreamWaitEvent(kLegacy, first_device, 0)) << "but it can be waited for";
}

TEST_F(FakeCudaLimits, CapturesAreSpoiltByUnsafeCalls) {
  CUstream captured = stream();
  CUdeviceptr a = 0, b = device(1);
  CUevent outside = event(), inside = event();
  OK(cuEventRecord(outside, kLegacy));
  OK(cuEventSynchronize(outside));
  auto spoils = [&](int mode, auto call, CUresult expected, bool in_other_thread = false) {
    ASSERT_EQ(fake_cuda_begin_capture(captured, mode), 0);
    CUresult result = CUDA_SUCCESS;
    auto called = [&] {
      cuCtxPushCurrent_v2(context);
      result = call();
    };
    if (in_other_thread)
      std::thread(called).join();
    else
      called();
    EXPECT_EQ(result, expected);
    EXPECT_EQ(fake_cuda_end_capture(captured, nullptr),
              expected == CUDA_SUCCESS ? 0 : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  };
  auto allocate = [&] { return cuMemAlloc_v2(&a, 1); };
  auto query = [&] { return cuEventQuery(outside); };
  const bool other_thread = true;
  spoils(0, allocate, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  spoils(0, query, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, other_thread);
  spoils(1, query, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  spoils(1, query, CUDA_SUCCESS, other_thread);
  spoils(2, allocate, CUDA_SUCCESS);
  auto relaxed_query = [&] {
    exchange_mode(2);
    return cuEventQuery(outside);
  };
  spoils(0, relaxed_query, CUDA_SUCCESS, other_thread);
  spoils(2, [&] { return cuStreamSynchronize(captured); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  spoils(2, [&] { return cuStreamQuery(captured); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  spoils(0, [&] { return cuStreamWaitEvent(captured, outside, 0); }, kCaptureIsolation);
  auto query_inside = [&] {
    EXPECT_EQ(cuEventRecord(inside, captured), CUDA_SUCCESS);
    return cuEventQuery(inside);
  };
  spoils(2, query_inside, CUDA_ERROR_CAPTURED_EVENT);
  spoils(
      0, [&] { return cuMemsetD8Async(b, 0, 1, kLegacy); },
      CUDA_SUCCESS);  // the captured stream is non-blocking
  captured = stream(CU_STREAM_DEFAULT);
  spoils(2, [&] { return cuMemsetD8Async(b, 0, 1, kLegacy); }, kCaptureImplicit);
  spoils(2, [&] { return cuStreamSynchronize(kLegacy); }, kCaptureImplicit);
  spoils(2, [&] { return cuEventRecord(outside, nullptr); }, kCaptureImplicit);
}

TEST_F(FakeCudaLimits, CapturedWorkDoesNotRunAndOtherStreamsJoin) {
  CUstream captured = stream(CU_STREAM_DEFAULT), joins = stream();
  CUdeviceptr a = device(1);
  CUevent fork_event = event();
  CUstreamCaptureStatus status = -1;
  OK(fake_cuda_begin_capture(captured, 0));
  OK(cuMemsetD8Async(a, 'x', 1, captured));
  OK(cuEventRecord(fork_event, captured));
  OK(cuStreamWaitEvent(joins, fork_event, 0));
  OK(cuStreamIsCapturing(joins, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cuStreamIsCapturing(kLegacy, &status), kCaptureImplicit);
  EXPECT_EQ(cuStreamSynchronize(joins), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  OK(cuStreamIsCapturing(captured, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cuMemsetD8Async(a, 'x', 1, captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  uint64_t n_captured = 0;
  EXPECT_EQ(fake_cuda_end_capture(captured, &n_captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(n_captured, 2U);
  OK(cuStreamIsCapturing(joins, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuStreamSynchronize(captured));
  EXPECT_EQ(bytes_at(a, 1), "\xCD");
}

TEST_F(FakeCudaLimits, FailuresAreInjectedByNameAndNumber) {
  CUdeviceptr a = device(8), b = 0;
  ASSERT_EQ(fake_cuda_fail("cuMemcpyAsync", 2, CUDA_ERROR_OUT_OF_MEMORY), 0);
  OK(cuMemcpyAsync(a, a + 4, 4, kLegacy));
  EXPECT_EQ(cuMemcpyAsync(a, a + 4, 4, kLegacy), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemcpyAsync(a, a + 4, 4, kLegacy));
  ASSERT_EQ(fake_cuda_configure("fail=cuMemHostRegister_v2:0:801,fail=cuMemAlloc_v2:1:2"), 0);
  std::vector<char> memory(10);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cuMemHostRegister_v2(memory.data(), 10, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemAlloc_v2(&b, 1), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemAlloc_v2(&b, 1));
  fake_cuda_fail(nullptr, 0, 0);
  OK(cuMemHostRegister_v2(memory.data(), 10, 0));
  EXPECT_EQ(fake_cuda_fail("cuMemcpy", 1, 1), -1);
  EXPECT_EQ(fake_cuda_configure("devises=1"), -1);
  EXPECT_EQ(fake_cuda_configure("fail=cuMemAlloc_v2"), -1);
}

TEST_F(FakeCudaLimits, ACopyThatFailsWhenItRunsEndsItsContextAlone) {
  CUcontext second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  CUdeviceptr a = device(8);
  CUstream work = stream();
  CUevent end = event();  // once the copy has failed, a call that makes an event may report it
  fake_cuda_fail_copy(2, CUDA_ERROR_LAUNCH_FAILED);
  OK(cuMemcpyAsync(a, a + 4, 4, work));
  OK(cuMemcpyAsync(a, a + 4, 4, work)) << "the call itself does not fail";
  CUresult recorded = cuEventRecord(end, work);
  EXPECT_TRUE(recorded == CUDA_SUCCESS || recorded == CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuEventSynchronize(end), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuEventQuery(end), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuMemcpyAsync(a, a + 4, 4, work), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuEventDestroy_v2(end), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(fake_cuda_count("live.events"), 0U);
  OK(cuCtxPushCurrent_v2(second));
  OK(cuStreamSynchronize(kLegacy));
  OK(cuCtxPopCurrent_v2(nullptr));
  OK(cuDevicePrimaryCtxRelease_v2(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuStreamSynchronize(kLegacy)) << "a new context does not have the error";
}

TEST_F(FakeCudaLimits, FunctionsAreFoundByNameAndVersion) {
  void* found = nullptr;
  int status = -1;
  OK(cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, &status));
  EXPECT_EQ(found, reinterpret_cast<void*>(&cuMemAlloc_v2));
  EXPECT_EQ(status, 0);
  EXPECT_EQ(cuGetProcAddress("cuNothing", &found, 12000, 0), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuGetProcAddress_v2("cuMemAllocAsync", &found, 10020, 0, &status), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(status, 2) << "the program is older than the function";
  start("version=10020,missing=cuMemAlloc+cuMemFree");
  EXPECT_EQ(cuGetProcAddress_v2("cuMemAllocAsync", &found, 12000, 0, &status), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(status, 1) << "the driver is older than the function";
  EXPECT_EQ(cuGetProcAddress_v2("cuMemFree", &found, 12000, 0, nullptr), CUDA_ERROR_NOT_FOUND);
  int version = 0;
  OK(cuDriverGetVersion(&version));
  EXPECT_EQ(version, 10020);
  const char* text = nullptr;
  OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(cuGetErrorName(12345, &text), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaLimits, FeaturesCanBeMissing) {
  auto attribute = [](CUdevice_attribute which) {
    int value = -1;
    EXPECT_EQ(cuDeviceGetAttribute(&value, which, 0), CUDA_SUCCESS);
    return value;
  };
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), 1);
  start("pools=0,vmm=0,ipc=0,register=0");
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), 0);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 0);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED), 0);
  CUdeviceptr a = 0;
  CUmemoryPool pool = nullptr;
  CUipcMemHandle handle;
  char memory[10];
  EXPECT_EQ(cuMemAllocAsync(&a, 1, kLegacy), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuIpcGetMemHandle(&handle, device(1)), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemHostRegister_v2(memory, 10, 0), CUDA_ERROR_NOT_SUPPORTED);
  fake_cuda_reset();
  fake_cuda_configure("devices=0");
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
  fake_cuda_reset();
  fake_cuda_configure("fail=cuInit:1:999");
  EXPECT_EQ(cuInit(0), CUDA_ERROR_UNKNOWN);
  OK(cuInit(0));
}

TEST_F(FakeCudaLimits, TheLogHasTheOrderOfExecution) {
  CUstream held = stream(), runs = stream();
  CUdeviceptr a = device(4);
  OK(fake_cuda_hold(held));
  OK(cuMemsetD8Async(a, 0, 1, held));
  OK(cuMemcpyAsync(a, a + 2, 1, runs));
  OK(cuStreamSynchronize(runs));
  OK(fake_cuda_resume(held));
  OK(cuStreamSynchronize(held));
  fake_cuda_entry entries[10];
  ASSERT_EQ(fake_cuda_log(entries, 10), 4U);
  EXPECT_STREQ(entries[0].name, "cuMemcpyAsync");
  EXPECT_EQ(entries[0].stream, runs);
  EXPECT_STREQ(entries[2].name, "cuMemsetD8Async");
  EXPECT_LT(entries[2].sequence, entries[0].sequence) << "submitted first";
  EXPECT_EQ(fake_cuda_count("executed"), 4U);
  fake_cuda_reset_counts();
  EXPECT_EQ(fake_cuda_count("executed"), 0U);
  EXPECT_EQ(fake_cuda_count("live.streams"), 2U);
}

}  // namespace
}  // namespace tenon::fake
