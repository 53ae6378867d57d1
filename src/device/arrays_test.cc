// SPDX-License-Identifier: Apache-2.0
//
// Arrays on devices and in pinned memory: they are made, copied, filled and refused as include/tenon/device.h
// says.
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>

#include "device/device_testing.h"

namespace tenon::impl {
namespace {

Values counted(int32_t n) {
  Values values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

class Arrays : public DeviceTest {};

TEST_F(Arrays, NamesOfDevicesGoBothWays) {
  for (const char* name : {"cpu", "cuda:0", "cuda:1", "cuda_host"}) {
    tenon_device device{};
    ASSERT_EQ(TENON_OK, tenon_device_from_name(name, &device, &error));
    char text[32];
    tenon_device_name(device, text, sizeof text);
    EXPECT_STREQ(name, text);
  }
  tenon_device device{};
  expect(TENON_ERR_VALUE, tenon_device_from_name("cuda:-1", &device, &error), "'cuda:-1' is unknown");
  ASSERT_EQ(TENON_OK, tenon_device_from_name("cuda", &device, &error));
  EXPECT_EQ(0, device.id);
}

TEST_F(Arrays, DevicesAreCountedAndDescribed) {
  int32_t n = 0;
  ASSERT_EQ(TENON_OK, tenon_device_count(TENON_CUDA, &n, &error)) << error.message;
  EXPECT_EQ(2, n);
  tenon_device_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(TENON_OK, tenon_device_describe(kCuda, &info, &error)) << error.message;
  EXPECT_NE('\0', info.model[0]);
  EXPECT_GE(info.total_nbytes, info.free_nbytes);
  expect(TENON_ERR_VALUE, tenon_device_describe({TENON_CUDA, 2}, &info, &error),
         "device 'cuda:2' does not exist: this process sees 2 devices");
}

TEST_F(Arrays, MemoryOfADeviceIsCountedAndGivenBack) {
  const tenon_device_statistics before = statistics();
  Held a = make(kCuda, {1000});
  EXPECT_EQ(a.desc().device.type, TENON_CUDA);
  EXPECT_EQ(statistics().device_nbytes, before.device_nbytes + 4000);
  const uint64_t live = fake_cuda_count("live.device");
  EXPECT_GE(live, 1u);
  a.reset();
  EXPECT_EQ(statistics().device_nbytes, before.device_nbytes);
  EXPECT_EQ(statistics().events, before.events);
}

TEST_F(Arrays, ZeroedMemoryIsZeroOnAllDevices) {
  for (const tenon_device device : {kCpu, kCuda, kOther, kPinned}) {
    const Held a = make(device, {37}, kInt32, TENON_ZEROED);
    EXPECT_EQ(values(a), Values(37, 0));
  }
}

TEST_F(Arrays, ElementsAreCopiedBetweenAnyTwoDevices) {
  const tenon_device all[] = {kCpu, kCuda, kOther, kPinned};
  const Held source = counting({5, 7});
  for (const tenon_device from : all) {
    for (const tenon_device to : all) {
      const Held a = make(from, {5, 7});
      const Held b = make(to, {5, 7});
      copy(source, a);
      copy(a, b);
      EXPECT_EQ(values(b), counted(35)) << from.type << " to " << to.type;
    }
  }
}

TEST_F(Arrays, StridedCopiesTakeOneCallOfTheDriver) {
  const Held source = counting({4, 6, 8});
  const Held a = make(kCuda, {4, 6, 8});
  copy(source, a);
  const tenon_index part[] = {
      {TENON_INDEX_SLICE, 0, 1, 4, 2}, {TENON_INDEX_SLICE, 0, 0, 6, 2}, {TENON_INDEX_SLICE, 0, 2, 6, 1}};
  tenon_array* made = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_index(a, 3, part, &made, &error));
  const Held window(made);
  const Held b = make(kCuda, {2, 3, 4});
  fake_cuda_reset_counts();
  copy(window, b);
  EXPECT_EQ(1u, fake_cuda_count("cuMemcpy3DAsync_v2"));
  Values wanted;
  for (int32_t i : {1, 3})
    for (int32_t j : {0, 2, 4})
      for (int32_t k = 2; k < 6; ++k) wanted.push_back((i * 6 + j) * 8 + k);
  EXPECT_EQ(values(b), wanted);
  EXPECT_EQ(values(window), wanted);
}

TEST_F(Arrays, WritesThroughWindowsLeaveTheRest) {
  const Held a = make(kCuda, {10}, kInt32, TENON_ZEROED);
  const Held odd = sliced(a, 1, TENON_OMITTED, 2);
  copy(counting({5}), odd);
  EXPECT_EQ(values(a), (Values{0, 0, 0, 1, 0, 2, 0, 3, 0, 4}));
}

TEST_F(Arrays, SourcesMayRunBackwardsAndSideways) {
  const Held a = make(kCuda, {3, 4});
  copy(counting({3, 4}), a);
  EXPECT_EQ(values(transposed(a)), (Values{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  const Held b = make(kCuda, {4, 3});
  copy(transposed(a), b);
  EXPECT_EQ(values(b), (Values{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  const Held backwards = sliced(a, TENON_OMITTED, TENON_OMITTED, -1);
  EXPECT_EQ(values(backwards), (Values{8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3}));
}

TEST_F(Arrays, OverlappingWindowsAreCopiedAsIfThroughACopy) {
  const Held a = make(kCuda, {10});
  copy(counting({10}), a);
  copy(sliced(a, 0, 8, 1), sliced(a, 2, 10, 1));
  EXPECT_EQ(values(a), (Values{0, 1, 0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(Arrays, TheHostCastsAndBroadcastsForCopiesFromAndToIt) {
  const Held host = counting({3});
  const Held device = make(kCuda, {2, 3}, kFloat32);
  copy(host, device);
  EXPECT_EQ(values(device), (Values{0, 1, 2, 0, 1, 2}));
  const Held wide = make(kCpu, {2, 3}, kFloat64);
  copy(device, wide);
  EXPECT_EQ(static_cast<double*>(wide.desc().data)[4], 1.0);
}

TEST_F(Arrays, WhatNeedsAKernelIsRefusedWithTheNameOfACall) {
  const Held a = make(kCuda, {4}, kFloat32, TENON_ZEROED);
  const Held b = make(kCuda, {4}, kFloat64, TENON_ZEROED);
  expect(TENON_ERR_TYPE, tenon_array_copy_to(a, b, &error), "cannot cast float32 to float64 on cuda:0");
  EXPECT_NE(std::strstr(error.message, "a.torch()"), nullptr) << error.message;
  const Held c = make(kCuda, {300, 300});
  const Held d = make(kCuda, {300, 300});
  expect(TENON_ERR_VALUE, tenon_array_copy_to(transposed(c), d, &error), "more than 256 calls of the driver");
}

TEST_F(Arrays, FillsTakeAnySizeOfElementAndAnyWindow) {
  for (const tenon_dtype dtype : {kUint8, tenon_dtype{TENON_INT, 16, 1}, kInt32, kFloat32, kInt64, kFloat64,
                                  tenon_dtype{TENON_COMPLEX, 128, 1}}) {
    const Held a = make(kCuda, {4, 5}, dtype, TENON_ZEROED);
    const int32_t seven = 7;
    ASSERT_EQ(TENON_OK, tenon_array_fill(sliced(a, 1, 4, 2), &seven, kInt32, &error)) << error.message;
    Values wanted(20, 0);
    for (size_t i = 0; i < 5; ++i) wanted[5 + i] = wanted[15 + i] = 7;
    EXPECT_EQ(values(a), wanted) << int{dtype.bits};
    ASSERT_EQ(TENON_OK, tenon_array_fill(transposed(a), &seven, kInt32, &error)) << error.message;
    EXPECT_EQ(values(a), Values(20, 7));
  }
}

TEST_F(Arrays, TheHostGetsNoViewOfDeviceMemory) {
  const Held a = make(kCuda, {2, 3}, kFloat32);
  tenon_view view = TENON_VIEW_INIT;
  expect(TENON_ERR_BUFFER, tenon_view_open(&view, a, TENON_READ, nullptr, &error),
         "cannot read the array of shape (2, 3) and dtype float32: its memory is on cuda:0");
  EXPECT_NE(std::strstr(error.message, "a.to(\"cpu\")"), nullptr) << error.message;
  DLManagedTensorVersioned* exported = nullptr;
  EXPECT_EQ(TENON_ERR_BUFFER, tenon_array_to_dlpack(a, 0, nullptr, &exported, &error));
  const Held pinned = make(kPinned, {2});
  ASSERT_EQ(TENON_OK, tenon_view_open(&view, pinned, TENON_WRITE, nullptr, &error)) << error.message;
  tenon_view_close(&view);
}

TEST_F(Arrays, AdoptedMemoryOfADeviceEndsWithItsDeleter) {
  Held owner = make(kCuda, {8}, kInt32, TENON_ZEROED);
  ASSERT_EQ(values(owner), Values(8, 0));
  const int64_t n = 8;
  tenon_adoption adoption{};
  adoption.struct_size = sizeof adoption;
  adoption.data = owner.desc().data;
  adoption.device = kCuda;
  adoption.ndim = 1;
  adoption.dtype = kInt32;
  adoption.shape = &n;
  int ended = 0;
  adoption.owner = &ended;
  adoption.deleter = [](void* count) { ++*static_cast<int*>(count); };
  tenon_array* made = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_adopt(&adoption, &made, &error)) << error.message;
  Held adopted(made);
  copy(counting({8}), adopted);
  EXPECT_EQ(values(owner), counted(8));
  adopted.reset();
  EXPECT_EQ(1, ended);
}

TEST_F(Arrays, LeasesOrderAccessToADevice) {
  const Held a = make(kCuda, {4}, kInt32, TENON_ZEROED);
  tenon_lease lease = TENON_LEASE_INIT;
  tenon_lease_options options{};
  options.struct_size = sizeof options;
  options.access = TENON_WRITE;
  options.timeout_ns = -1;
  ASSERT_EQ(TENON_OK, tenon_lease_acquire(&lease, a, &options, &error)) << error.message;
  copy(counting({4}), a);
  tenon_lease_release(&lease);
  EXPECT_EQ(values(a), counted(4));
}

TEST_F(Arrays, TheDriversReasonIsInErrors) {
  tenon_array* made = nullptr;
  const int64_t much = int64_t{1} << 40;
  expect(TENON_ERR_NO_MEMORY, tenon_array_create(kUint8, 1, &much, kCuda, 0, &made, &error),
         "cannot allocate 1099511627776 bytes on cuda:0, where ");
  EXPECT_NE(std::strstr(error.message, "CUDA_ERROR_OUT_OF_MEMORY"), nullptr) << error.message;
  const Held a = make(kCuda, {4}, kInt32, TENON_ZEROED);
  fake_cuda_fail("cuMemcpyAsync", 1, 1);
  const Held b = make(kCpu, {4});
  expect(TENON_ERR_SYSTEM, tenon_array_copy_to(a, b, &error), "cannot copy elements on cuda:0: ");
  copy(a, b);
}

TEST_F(Arrays, MemoryIsRegisteredOnceForAllItsUsers) {
  const Held a = make(kCpu, {1 << 18}, kInt32, TENON_ZEROED);
  tenon_registration* whole = nullptr;
  tenon_registration* part = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_register(a, &whole, &error)) << error.message;
  ASSERT_EQ(TENON_OK, tenon_device_register(a.desc().data, 100, 0, &part, &error)) << error.message;
  EXPECT_EQ(1u, fake_cuda_count("cuMemHostRegister_v2"));
  EXPECT_GE(statistics().registered_nbytes, 1u << 20);
  tenon_registration_release(whole);
  EXPECT_EQ(0u, fake_cuda_count("cuMemHostUnregister"));
  tenon_registration_release(part);
  EXPECT_TRUE(soon([] { return fake_cuda_count("cuMemHostUnregister") == 1; }));
  EXPECT_EQ(0u, statistics().registered_nbytes);
  fake_cuda_fail("cuMemHostRegister_v2", 1, 801);
  expect(TENON_ERR_SYSTEM, tenon_array_register(a, &whole, &error), "cannot pin ");
}

TEST_F(Arrays, AForkedChildGetsAClearErrorAndFreesNothing) {
  Held a = make(kCuda, {4}, kInt32, TENON_ZEROED);
  ASSERT_EQ(values(a), Values(4, 0));
  const pid_t child = fork();
  if (child == 0) {
    tenon_array* made = nullptr;
    const int64_t n = 4;
    tenon_error e = TENON_ERROR_INIT;
    const bool is_refused = tenon_array_create(kInt32, 1, &n, kCuda, 0, &made, &e) == TENON_ERR_SYSTEM;
    const bool is_clear = std::strstr(e.message, "forked after CUDA had started") != nullptr;
    a.reset();
    _exit(is_refused && is_clear ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  EXPECT_EQ(values(a), Values(4, 0));
}

}  // namespace
}  // namespace tenon::impl
