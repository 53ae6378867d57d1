// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the fake driver share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fake.h"

namespace tenon::fake {

#define OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

// A driver with two devices and the context of device 0 current.
class FakeCuda : public testing::Test {
 protected:
  void SetUp() override { start("devices=2"); }
  void TearDown() override { fake_cuda_reset(); }

  void start(const std::string& settings) {
    fake_cuda_reset();
    ASSERT_EQ(fake_cuda_configure(settings.c_str()), 0);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxPushCurrent_v2(context));
  }
  CUdeviceptr device(size_t nbytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, nbytes), CUDA_SUCCESS);
    return address;
  }
  template <class T>
  T* pinned(size_t n) {
    void* address = nullptr;
    EXPECT_EQ(cuMemHostAlloc(&address, n * sizeof(T), 0), CUDA_SUCCESS);
    return static_cast<T*>(address);
  }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    EXPECT_EQ(cuStreamCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }
  CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent made = nullptr;
    EXPECT_EQ(cuEventCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }
  static CUdeviceptr at(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }
  static std::string problem() {
    char text[256];
    fake_cuda_last_problem(text, sizeof text);
    return text;
  }
  // What is at the address now.
  static std::string bytes_at(CUdeviceptr address, size_t n) {
    std::string bytes(n, '?');
    EXPECT_EQ(fake_cuda_read(bytes.data(), address, n), 0);
    return bytes;
  }

  CUcontext context = nullptr;
};

inline const CUstream kLegacy = reinterpret_cast<CUstream>(CU_STREAM_LEGACY);
inline const CUstream kPerThread = reinterpret_cast<CUstream>(CU_STREAM_PER_THREAD);

}  // namespace tenon::fake
