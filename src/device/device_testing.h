// SPDX-License-Identifier: Apache-2.0
//
// What the tests of device memory share: the fake driver, and arrays on its devices through the C ABI.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/device.h"
#include "fake_cuda.h"
#include "tenon/dlpack.h"
#include "tenon/tenon.h"

namespace tenon::impl {

using device::Device;
using device::StreamKind;
using Values = std::vector<int32_t>;

inline constexpr tenon_device kCpu{TENON_CPU, 0};
inline constexpr tenon_device kCuda{TENON_CUDA, 0};
inline constexpr tenon_device kOther{TENON_CUDA, 1};
inline constexpr tenon_device kPinned{TENON_CUDA_HOST, 0};
inline constexpr tenon_dtype kInt32{TENON_INT, 32, 1};
inline constexpr tenon_dtype kInt64{TENON_INT, 64, 1};
inline constexpr tenon_dtype kFloat32{TENON_FLOAT, 32, 1};
inline constexpr tenon_dtype kFloat64{TENON_FLOAT, 64, 1};
inline constexpr tenon_dtype kUint8{TENON_UINT, 8, 1};

// A reference to an array.
class Held {
 public:
  Held() = default;
  explicit Held(tenon_array* array) : array_(array) {}
  Held(Held&& other) noexcept : array_(std::exchange(other.array_, nullptr)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(array_, other.array_);
    return *this;
  }
  ~Held() { tenon_array_release(array_); }
  operator tenon_array*() const { return array_; }
  const tenon_array_desc& desc() const { return *tenon_array_describe(array_); }
  void reset() { tenon_array_release(std::exchange(array_, nullptr)); }

 private:
  tenon_array* array_ = nullptr;
};

// A kernel that adds 1 to each element.
struct AddOne {
  uint64_t address;
  size_t n;

  static int run(void* argument) {
    const std::unique_ptr<AddOne> self(static_cast<AddOne*>(argument));
    Values all(self->n);
    if (const int failed = fake_cuda_read(all.data(), self->address, self->n * 4)) return failed;
    for (int32_t& value : all) ++value;
    return fake_cuda_write(self->address, all.data(), self->n * 4);
  }
};

// Two devices of the fake driver. Other tests of the program may have used them before.
class DeviceTest : public testing::Test {
 public:
  // Calls of the fake driver, which need a current device.
  template <class... Parameters, class... Arguments>
  static int on(tenon_device id, int (*function)(Parameters...), Arguments... arguments) {
    const Device::Current current(Device::of(id));
    return function(arguments...);
  }

 protected:
  static void SetUpTestSuite() {
    setenv("TENON_CUDA_DRIVER", TENON_FAKE_CUDA, 1);
    setenv("TENON_FAKE_CUDA", "devices=2,memory=268435456", 0);
    prctl(PR_SET_TIMERSLACK, 1);  // of the threads that start later, too: short sleeps are not 50 us longer
  }
  void SetUp() override {
    fake_cuda_fail(nullptr, 0, 0);
    while (statistics().submitted != 0) std::this_thread::yield();  // of an earlier test
    fake_cuda_reset_counts();
  }
  void TearDown() override {
    EXPECT_EQ(TENON_OK, tenon_wait_all(-1, &error)) << error.message;
    while (tenon_failure* const failure = tenon_failures_take()) tenon_failure_release(failure);
    fake_cuda_fail(nullptr, 0, 0);
    char problem[256] = "";
    fake_cuda_last_problem(problem, sizeof problem);
    EXPECT_EQ(fake_cuda_count("problems"), 0u) << problem;
  }

  tenon_error error = TENON_ERROR_INIT;

  void expect(tenon_status wanted, tenon_status got, const char* text) {
    EXPECT_EQ(wanted, got) << error.message;
    EXPECT_NE(std::strstr(error.message, text), nullptr) << error.message;
  }

  Held make(tenon_device device, std::vector<int64_t> shape, tenon_dtype dtype = kInt32, uint32_t flags = 0) {
    tenon_array* made = nullptr;
    EXPECT_EQ(TENON_OK, tenon_array_create(dtype, static_cast<int32_t>(shape.size()), shape.data(), device,
                                           flags, &made, &error))
        << error.message;
    return Held(made);
  }
  // 0, 1, 2... on the host.
  Held counting(std::vector<int64_t> shape) {
    Held made = make(kCpu, std::move(shape));
    for (int64_t i = 0; i < made.desc().size; ++i)
      static_cast<int32_t*>(made.desc().data)[i] = static_cast<int32_t>(i);
    return made;
  }
  void copy(tenon_array* src, tenon_array* dst) {
    EXPECT_EQ(TENON_OK, tenon_array_copy_to(src, dst, &error)) << error.message;
  }
  // The elements in C order, through a copy on the host.
  Values values(tenon_array* array) {
    tenon_array* copied = nullptr;
    EXPECT_EQ(TENON_OK, tenon_array_copy_on(array, kInt32, kCpu, &copied, &error)) << error.message;
    if (copied == nullptr) return {};
    const Held held(copied);
    const auto* const data = static_cast<const int32_t*>(held.desc().data);
    return {data, data + held.desc().size};
  }
  Held transposed(tenon_array* array) {
    tenon_array* made = nullptr;
    EXPECT_EQ(TENON_OK, tenon_array_transpose(array, nullptr, &made, &error));
    return Held(made);
  }
  Held sliced(tenon_array* array, int64_t start, int64_t stop, int64_t step) {
    tenon_array* made = nullptr;
    const tenon_index index{TENON_INDEX_SLICE, 0, start, stop, step};
    EXPECT_EQ(TENON_OK, tenon_array_index(array, 1, &index, &made, &error)) << error.message;
    return Held(made);
  }
  tenon_device_statistics statistics() {
    tenon_device_statistics now{};
    now.struct_size = sizeof now;
    tenon_device_statistics_get(&now);
    return now;
  }
  // While it lives, nothing runs on this stream of the device.
  class Hold {
   public:
    explicit Hold(StreamKind kind, tenon_device id = kCuda) : id_(id), stream_(Device::of(id).stream(kind)) {
      EXPECT_EQ(0, on(id_, fake_cuda_hold, stream_));
    }
    ~Hold() { release(); }
    void release() {
      if (void* const held = std::exchange(stream_, nullptr)) {
        EXPECT_EQ(0, on(id_, fake_cuda_resume, held));
      }
    }

   private:
    const tenon_device id_;
    void* stream_;
  };

  // True when it holds within a minute.
  template <class Holds>
  static bool soon(Holds holds) {
    for (int i = 0; i < 600'000; ++i) {
      if (holds()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return holds();
  }
  // Long enough for a fault to show itself: what must not run yet would run now.
  static void moment(int ms = 3) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
};

// With a consumer that has a stream of its own on the first device.
class ConsumerTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    Device& device = Device::of(kCuda);
    const Device::Current current(device);
    ASSERT_EQ(0, device.driver().create_stream(&stream));
  }

  int64_t number() const { return static_cast<int64_t>(reinterpret_cast<intptr_t>(stream)); }
  DLManagedTensorVersioned* exported(tenon_array* array, uint32_t flags = 0) {
    DLManagedTensorVersioned* tensor = nullptr;
    EXPECT_EQ(TENON_OK, tenon_array_to_dlpack_on(array, flags, number(), nullptr, &tensor, &error))
        << error.message;
    return tensor;
  }
  // Launches the kernel on this stream.
  void add_one(void* work, const void* address, int64_t n) {
    EXPECT_EQ(0, on(kCuda, fake_cuda_launch, work, AddOne::run,
                    new AddOne{reinterpret_cast<uint64_t>(address), static_cast<size_t>(n)}));
  }
  void add_one(const DLManagedTensorVersioned* tensor) {
    add_one(stream, tensor->dl_tensor.data, tensor->dl_tensor.shape[0]);
  }
  tenon_op* push(tenon_array* src, tenon_array* dst) {
    tenon_op* op = nullptr;
    EXPECT_EQ(TENON_OK, tenon_push_copy(src, dst, nullptr, &op, &error)) << error.message;
    return op;
  }
  // The status of the op at its end.
  tenon_status end(tenon_op* op, int64_t timeout_ns = -1) {
    const tenon_status status = tenon_op_wait(op, timeout_ns, &error);
    tenon_op_release(op);
    return status;
  }
  void finish(tenon_op* op) { EXPECT_EQ(TENON_OK, end(op)) << error.message; }

  void* stream = nullptr;
};

}  // namespace tenon::impl
