// SPDX-License-Identifier: Apache-2.0
#include "fake_cuda_test.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <set>
#include <thread>

namespace tenon::fake {
namespace {

TEST_F(FakeCuda, HostAccessOfDeviceMemoryFaults) {
  auto* memory = reinterpret_cast<volatile char*>(device(100));
  EXPECT_DEATH(*memory = 1, "");
  EXPECT_DEATH((void)*memory, "");
  auto* freed = pinned<char>(10);
  freed[9] = 1;
  OK(cuMemFreeHost(freed));
  EXPECT_DEATH(*freed = 1, "");
}

TEST_F(FakeCuda, NewMemoryIsNotZero) {
  EXPECT_EQ(bytes_at(device(4), 4), "\xCD\xCD\xCD\xCD");
  EXPECT_EQ(std::string(pinned<char>(2), 2), "\xCD\xCD");
}

TEST_F(FakeCuda, CopiesGoToTheDeviceAndBack) {
  size_t n = 300'000;
  auto *in = pinned<int>(n), *out = pinned<int>(n);
  std::iota(in, in + n, 0);
  CUdeviceptr a = device(4 * n), b = device(4 * n);
  CUstream work = stream();
  OK(cuMemcpyAsync(a, at(in), 4 * n, work));
  OK(cuMemcpyAsync(b, a, 4 * n, work));
  OK(cuMemcpyAsync(at(out), b, 4 * n, work));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(std::memcmp(in, out, 4 * n), 0);
  EXPECT_EQ(fake_cuda_count("bytes.h2d"), 4 * n);
  EXPECT_EQ(fake_cuda_count("bytes.d2d"), 4 * n);
  EXPECT_EQ(fake_cuda_count("copies.d2h"), 1U);
  EXPECT_EQ(fake_cuda_count("copies.pageable"), 0U);
  EXPECT_EQ(fake_cuda_count("cuMemcpyAsync"), 3U);
  std::vector<int> pageable(n);
  OK(cuMemcpyAsync(at(pageable.data()), b, 4 * n, work));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(pageable[n - 1], static_cast<int>(n - 1));
  EXPECT_EQ(fake_cuda_count("bytes.pageable"), 4 * n);
}

TEST_F(FakeCuda, CopiesReadTheirSourceWhenTheyRun) {
  auto* in = pinned<char>(3);
  std::memcpy(in, "old", 3);
  CUdeviceptr a = device(3);
  CUstream work = stream();
  OK(fake_cuda_hold(work));
  OK(cuMemcpyAsync(a, at(in), 3, work));
  EXPECT_EQ(cuStreamQuery(work), CUDA_ERROR_NOT_READY);
  std::memcpy(in, "new", 3);
  OK(fake_cuda_resume(work));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(bytes_at(a, 3), "new");
  OK(cuStreamQuery(work));
}

TEST_F(FakeCuda, CopiesOfBoxesMoveTheirRows) {
  CUstream work = stream();
  std::string in = "..abc.....def...", out(6, '.');  // 2 rows of 3 in rows of 8
  CUdeviceptr a = device(12);
  CUDA_MEMCPY2D c = {};
  c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = in.data(), c.srcPitch = 8, c.srcXInBytes = 2;
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.dstDevice = a, c.dstPitch = 4, c.dstY = 1;
  c.WidthInBytes = 3, c.Height = 2;
  OK(cuMemcpy2DAsync_v2(&c, work));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(bytes_at(a, 12),
            "\xCD\xCD\xCD\xCD"
            "abc\xCD"
            "def\xCD");
  c.dstPitch = 2;
  EXPECT_EQ(cuMemcpy2DAsync_v2(&c, work), CUDA_ERROR_INVALID_VALUE);
  c.dstPitch = 4, c.srcHost = reinterpret_cast<const void*>(a);
  EXPECT_EQ(cuMemcpy2DAsync_v2(&c, work), CUDA_ERROR_INVALID_VALUE) << "memory of the device as host memory";

  std::string cube(27, '.');
  std::iota(cube.begin(), cube.end(), 'A');
  CUDA_MEMCPY3D d = {};
  d.srcMemoryType = CU_MEMORYTYPE_HOST, d.srcHost = cube.data(), d.srcPitch = 3, d.srcHeight = 3, d.srcZ = 1,
  d.srcY = 1;
  d.dstMemoryType = CU_MEMORYTYPE_UNIFIED, d.dstDevice = a, d.dstPitch = 3, d.dstHeight = 2;
  d.WidthInBytes = 3, d.Height = 2, d.Depth = 2;
  OK(cuMemcpy3DAsync_v2(&d, work));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(bytes_at(a, 12), cube.substr(12, 6) + cube.substr(21, 6));
  d.dstHeight = 1;
  EXPECT_EQ(cuMemcpy3DAsync_v2(&d, work), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, FillsWriteTheirPattern) {
  CUstream work = stream();
  CUdeviceptr a = device(12);
  OK(cuMemsetD8Async(a, 'x', 12, work));
  OK(cuMemsetD16Async(a + 2, 0x6261, 2, work));
  OK(cuMemsetD32Async(a + 8, 0x64636261, 1, work));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(bytes_at(a, 12), "xxababxxabcd");
  OK(cuMemsetD2D8Async(a, 4, '.', 2, 3, work));
  OK(cuMemsetD2D16Async(a, 8, 0x3231, 1, 2, work));
  OK(cuMemsetD2D32Async(a + 4, 4, 0x39393939, 1, 1, work));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(bytes_at(a, 12), "12ab999912cd");
  EXPECT_EQ(cuMemsetD16Async(a + 1, 0, 1, work), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8Async(a + 1, 0, 12, work), CUDA_ERROR_INVALID_VALUE);
  std::string pageable = "abc";
  EXPECT_EQ(cuMemsetD8Async(at(pageable.data()), 0, 3, work), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, AnEventIsDoneWhenTheWorkBeforeItIs) {
  CUstream work = stream(), other = stream();
  CUevent end = event();
  OK(cuEventQuery(end)) << "never recorded";
  CUdeviceptr a = device(4), b = device(4);
  OK(fake_cuda_hold(work));
  OK(cuMemsetD8Async(a, '1', 4, work));
  OK(cuEventRecord(end, work));
  OK(cuStreamWaitEvent(other, end, 0));
  OK(cuMemcpyAsync(b, a, 4, other));
  EXPECT_EQ(cuEventQuery(end), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
  std::thread resumes([&] {
    ASSERT_EQ(cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
    ASSERT_EQ(fake_cuda_resume(work), 0);
  });
  OK(cuEventSynchronize(end));
  resumes.join();
  EXPECT_EQ(bytes_at(a, 4), "1111");
  OK(cuStreamSynchronize(other));
  EXPECT_EQ(bytes_at(b, 4), "1111");
}

TEST_F(FakeCuda, AWaitIsForTheLastRecordBeforeIt) {
  CUstream first = stream(), second = stream(), waiting = stream();
  CUevent end = event();
  OK(cuEventRecord(end, first));
  OK(cuStreamWaitEvent(waiting, end, 0));
  OK(fake_cuda_hold(second));
  OK(cuEventRecord(end, second));
  OK(cuStreamSynchronize(waiting)) << "does not wait for the second record";
  EXPECT_EQ(cuEventQuery(end), CUDA_ERROR_NOT_READY);
  OK(cuEventDestroy_v2(end)) << "while it is waited for";
  OK(fake_cuda_resume(second));
  OK(cuStreamSynchronize(second));
}

// A held stream on whose event others wait, so that their work begins when all of it is submitted: what
// happens is up to the seed alone.
struct Gate {
  CUstream held = nullptr;
  CUevent opened = nullptr;

  explicit Gate(std::initializer_list<CUstream> streams) {
    cuStreamCreate(&held, CU_STREAM_NON_BLOCKING);
    cuEventCreate(&opened, CU_EVENT_DISABLE_TIMING);
    fake_cuda_hold(held);
    cuEventRecord(opened, held);
    for (CUstream stream : streams) cuStreamWaitEvent(stream, opened, 0);
  }
  void open() {
    cuEventDestroy_v2(opened);
    cuStreamDestroy_v2(held);  // ends the hold
  }
};

void seed(int number) { fake_cuda_configure(("delay_us=0,seed=" + std::to_string(number)).c_str()); }

// The two letters that two streams write to one place, over the seeds, until all are seen.
std::set<std::string> outcomes(bool waits) {
  std::set<std::string> seen;
  for (int number = 1; number <= 200 && seen.size() < 4; ++number) {
    seed(number);
    CUstream first = nullptr, second = nullptr;
    CUevent end = nullptr;
    CUdeviceptr place = 0;
    cuStreamCreate(&first, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&second, CU_STREAM_NON_BLOCKING);
    cuEventCreate(&end, CU_EVENT_DISABLE_TIMING);
    cuMemAlloc_v2(&place, 2);
    Gate gate({first, second});
    for (CUdeviceptr half = 0; half < 2; ++half) cuMemsetD8Async(place + half, 'a', 1, first);
    cuEventRecord(end, first);
    if (waits) cuStreamWaitEvent(second, end, 0);
    for (CUdeviceptr half = 0; half < 2; ++half) cuMemsetD8Async(place + half, 'b', 1, second);
    gate.open();
    EXPECT_EQ(cuStreamSynchronize(first), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(second), CUDA_SUCCESS);
    std::string result(2, '?');
    EXPECT_EQ(fake_cuda_read(result.data(), place, 2), 0);
    seen.insert(result);
    cuStreamDestroy_v2(first), cuStreamDestroy_v2(second), cuEventDestroy_v2(end), cuMemFree_v2(place);
  }
  return seen;
}

TEST_F(FakeCuda, AMissingWaitIsSeenAsWrongData) {
  EXPECT_EQ(outcomes(true), (std::set<std::string>{"bb"}));
  std::set<std::string> all = {"aa", "ab", "ba", "bb"};
  EXPECT_EQ(outcomes(false), all) << "streams run in any order, and between the steps of each other";
  EXPECT_EQ(fake_cuda_count("live.streams"), 0U);
  EXPECT_EQ(fake_cuda_count("live.events"), 0U);
  EXPECT_EQ(fake_cuda_count("live.device"), 0U);
}

TEST_F(FakeCuda, ACopyIsTornByAnEarlyReuseOfItsSource) {
  size_t n = 6000;
  CUstream fills = stream(), copies = stream();
  CUdeviceptr slot = device(n), out = device(n);
  bool is_torn = false;
  for (int number = 1; number <= 200 && !is_torn; ++number) {
    seed(number);
    OK(cuMemsetD8Async(slot, 'a', n, fills));
    OK(cuStreamSynchronize(fills));
    Gate gate({fills, copies});
    OK(cuMemcpyAsync(out, slot, n, copies));
    OK(cuMemsetD8Async(slot, 'b', n, fills));  // no wait
    gate.open();
    OK(cuStreamSynchronize(fills));
    OK(cuStreamSynchronize(copies));
    std::string bytes = bytes_at(out, n);
    is_torn = bytes.find('a') != std::string::npos && bytes.find('b') != std::string::npos;
  }
  EXPECT_TRUE(is_torn);
}

TEST_F(FakeCuda, WorkStartsLate) {
  fake_cuda_configure("delay_us=1000");
  CUdeviceptr a = device(1);
  auto begin = Clock::now();
  for (int i = 0; i < 100; ++i) {
    OK(cuMemsetD8Async(a, 'a', 1, kPerThread));
    OK(cuStreamSynchronize(kPerThread));
  }
  EXPECT_GT(Clock::now() - begin, std::chrono::milliseconds(20)) << "of 100 ms on average";
}

TEST_F(FakeCuda, WorkThatIsLateByCallsRunsInThreadsThatCall) {
  fake_cuda_configure("delay_calls=20");
  CUdeviceptr a = device(1);
  CUevent done = event();
  for (int i = 0; i < 50; ++i) {
    uint64_t before = fake_cuda_count("executed");
    OK(cuMemsetD8Async(a, 'a', 1, kPerThread));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(fake_cuda_count("executed"), before);
    OK(cuEventRecord(done, kPerThread));
    if (i % 2 == 0) {
      OK(cuEventSynchronize(done));
    } else {
      while (cuEventQuery(done) == CUDA_ERROR_NOT_READY) {
      }
    }
    EXPECT_EQ(fake_cuda_count("executed"), before + 2);
  }
}

// Breaks when the driver's own thread takes work that a calling thread is still running.
TEST_F(FakeCuda, AKernelRunsOnceWhenTheClockChanges) {
  struct Run {
    std::atomic<int> n = 0;
    std::atomic<bool> may_end = false;
    static int run(void* argument) {
      auto* self = static_cast<Run*>(argument);
      for (++self->n; !self->may_end;) std::this_thread::yield();
      return 0;
    }
  } kernel;
  fake_cuda_configure("delay_calls=1");
  CUstream work = stream();
  OK(fake_cuda_launch(work, Run::run, &kernel));
  std::thread waits([&] {
    ASSERT_EQ(cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(work), CUDA_SUCCESS);
  });
  while (kernel.n == 0) std::this_thread::yield();
  fake_cuda_configure("delay_calls=0,delay_us=0");
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  kernel.may_end = true;
  waits.join();
  EXPECT_EQ(kernel.n, 1);
}

TEST_F(FakeCuda, TheLegacyStreamIsOrderedWithBlockingStreams) {
  for (int seed = 1; seed <= 30; ++seed) {
    fake_cuda_configure(("delay_us=20,seed=" + std::to_string(seed)).c_str());
    CUstream blocking = stream(CU_STREAM_DEFAULT);
    CUdeviceptr a = device(1);
    OK(cuMemsetD8Async(a, '1', 1, blocking));
    OK(cuMemsetD8Async(a, '2', 1, seed % 2 == 0 ? nullptr : kLegacy));
    OK(cuMemsetD8Async(a, '3', 1, kPerThread));
    OK(cuStreamSynchronize(kPerThread));
    EXPECT_EQ(bytes_at(a, 1), "3");
    OK(cuStreamQuery(blocking));
    OK(cuStreamDestroy_v2(blocking));
  }
  CUstream free = stream(CU_STREAM_NON_BLOCKING), blocking = stream(CU_STREAM_DEFAULT);
  OK(fake_cuda_hold(free));
  OK(cuMemsetD8Async(device(1), '1', 1, free));
  OK(cuStreamSynchronize(kLegacy)) << "a non-blocking stream is not waited for";
  OK(fake_cuda_hold(blocking));
  OK(cuMemsetD8Async(device(1), '1', 1, blocking));
  EXPECT_EQ(cuStreamQuery(kLegacy), CUDA_ERROR_NOT_READY);
  OK(fake_cuda_resume(free));
  OK(fake_cuda_resume(blocking));
  OK(cuStreamSynchronize(kLegacy));
}

TEST_F(FakeCuda, EachThreadHasAStreamOfItsOwn) {
  OK(fake_cuda_hold(kPerThread));
  CUdeviceptr a = device(1);
  OK(cuMemsetD8Async(a, '1', 1, kPerThread));
  std::thread([&] {
    ASSERT_EQ(cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(kPerThread), CUDA_SUCCESS);
  }).join();
  EXPECT_EQ(cuStreamQuery(kPerThread), CUDA_ERROR_NOT_READY);
  OK(fake_cuda_resume(kPerThread));
  OK(cuStreamSynchronize(kPerThread));
}

TEST_F(FakeCuda, PoolMemoryLivesInTheOrderOfItsStreams) {
  CUstream work = stream(), other = stream();
  CUdeviceptr a = 0;
  OK(cuMemAllocAsync(&a, 100, work));
  OK(cuMemsetD8Async(a, 'x', 100, work));
  OK(cuMemFreeAsync(a, work));
  EXPECT_EQ(cuMemFreeAsync(a, work), CUDA_ERROR_INVALID_VALUE);
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(fake_cuda_count("live.device"), 0U);
  EXPECT_EQ(cuMemsetD8Async(a, 'x', 100, work), CUDA_ERROR_INVALID_VALUE) << "known to be freed at the call";

  OK(cuMemAllocAsync(&a, 100, work));
  OK(cuStreamSynchronize(work));
  OK(fake_cuda_hold(other));
  OK(cuMemsetD8Async(a, 'x', 100, other));
  OK(cuMemFreeAsync(a, work));  // without a wait for the other stream
  OK(cuStreamSynchronize(work));
  OK(fake_cuda_resume(other));
  EXPECT_EQ(cuStreamSynchronize(other), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_NE(problem().find("not allocated"), std::string::npos) << problem();
  EXPECT_EQ(cuStreamQuery(work), CUDA_ERROR_ILLEGAL_ADDRESS) << "for good";
  EXPECT_EQ(cuMemAlloc_v2(&a, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamDestroy_v2(work), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCuda, PoolMemoryIsNotUsedBeforeItsAllocationHasRun) {
  CUstream work = stream(), other = stream();
  OK(fake_cuda_hold(work));
  CUdeviceptr a = 0;
  OK(cuMemAllocAsync(&a, 100, work));
  OK(cuMemsetD8Async(a, 'x', 100, other));  // without a wait for the allocation
  EXPECT_EQ(cuStreamSynchronize(other), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCuda, MemoryIsLimitedAndGivenBack) {
  start("memory=1000000");
  CUdeviceptr a = device(600'000), b = 0;
  EXPECT_EQ(cuMemAlloc_v2(&b, 600'000), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAllocAsync(&b, 600'000, kLegacy), CUDA_ERROR_OUT_OF_MEMORY);
  size_t free_nbytes = 0, total = 0;
  OK(cuMemGetInfo_v2(&free_nbytes, &total));
  EXPECT_EQ(free_nbytes, 400'000U);
  EXPECT_EQ(total, 1'000'000U);
  OK(cuMemFree_v2(a));
  EXPECT_EQ(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
  for (int i = 0; i < 1000; ++i) {  // more addresses than there are
    a = device(600'000);
    EXPECT_NE(a % 4096, 0U);
    OK(cuMemFree_v2(a));
  }
}

TEST_F(FakeCuda, PointersTellWhatTheyPointTo) {
  auto attribute = [](CUdeviceptr address, CUpointer_attribute which) {
    int value = -1;
    return cuPointerGetAttribute(&value, which, address) == CUDA_SUCCESS ? value : -1;
  };
  auto type = [&](CUdeviceptr address) { return attribute(address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE); };
  std::vector<char> memory(100);
  CUdeviceptr a = device(100), host = at(memory.data());
  EXPECT_EQ(type(a + 99), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(type(a + 100), -1);
  EXPECT_EQ(attribute(a, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0);
  EXPECT_EQ(type(at(pinned<char>(1))), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(type(host), -1);
  OK(cuMemHostRegister_v2(memory.data(), 100, 0));
  EXPECT_EQ(type(host), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(cuMemHostRegister_v2(memory.data() + 50, 100, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(memory.data() + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  OK(cuMemHostUnregister(memory.data()));
  EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  uint64_t managed = 0;
  OK(fake_cuda_alloc_managed(&managed, 100));
  *reinterpret_cast<char*>(managed) = 'm';
  EXPECT_EQ(type(managed), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(attribute(managed, CU_POINTER_ATTRIBUTE_IS_MANAGED), 1);
  EXPECT_EQ(attribute(a, CU_POINTER_ATTRIBUTE_IS_MANAGED), 0);
  OK(cuMemFree_v2(managed));
  CUcontext second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxPushCurrent_v2(second));
  EXPECT_EQ(attribute(device(1), CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 1);
}

TEST_F(FakeCuda, KernelsRunInTheOrderOfTheirStream) {
  CUstream work = stream();
  struct Argument {
    CUdeviceptr address;
    std::string seen;
  } argument = {device(3), "???"};
  auto kernel = [](void* given) {
    auto& used = *static_cast<Argument*>(given);
    return fake_cuda_read(used.seen.data(), used.address, 3);
  };
  OK(cuMemsetD8Async(argument.address, 'k', 3, work));
  OK(fake_cuda_launch(work, kernel, &argument));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(argument.seen, "kkk");
  OK(cuMemFree_v2(argument.address));
  OK(fake_cuda_launch(work, kernel, &argument));
  EXPECT_EQ(cuStreamSynchronize(work), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace tenon::fake
