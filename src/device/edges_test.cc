// SPDX-License-Identifier: Apache-2.0
//
// The order of device memory at its edges: calls under a lease of the caller, casts on the host inside of an
// op on a stream, failures of later ops, memory that is imported twice, many exports on one slow stream. A
// kernel on a stream that is held has not run, so a use that does not wait for it sees other values.
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/device_testing.h"

namespace tenon::impl {
namespace {

constexpr int64_t kN = 3000;

class DeviceEdges : public ConsumerTest {
 protected:
  void TearDown() override {
    if (later.joinable()) later.join();
    ConsumerTest::TearDown();
  }

  void write_lease(tenon_array* array, tenon_lease* lease) {
    tenon_lease_options options{};
    options.struct_size = sizeof options;
    options.access = TENON_WRITE;
    options.timeout_ns = -1;
    ASSERT_EQ(TENON_OK, tenon_lease_acquire(lease, array, &options, &error)) << error.message;
  }
  // The kernel does not run before the stream is resumed.
  void launch_add_one(const void* address) {
    on(kCuda, fake_cuda_hold, stream);
    add_one(stream, address, kN);
  }
  // An export ends, and its consumer's kernel has not run yet.
  void export_and_end(tenon_array* array) {
    DLManagedTensorVersioned* const tensor = exported(array);
    launch_add_one(tensor->dl_tensor.data);
    tensor->deleter(tensor);
    resume_later();
  }
  void resume_later() {
    later = std::thread([held = stream] {
      moment(40);
      on(kCuda, fake_cuda_resume, held);
    });
  }

  std::thread later;
};

TEST_F(DeviceEdges, CallsUnderALeaseWaitForExportsThatEndedUnderIt) {
  const Held a = make(kCuda, {kN}, kInt32, TENON_ZEROED);
  tenon_lease lease = TENON_LEASE_INIT;
  write_lease(a, &lease);
  export_and_end(a);
  EXPECT_EQ(values(a), Values(kN, 1));
  tenon_lease_release(&lease);
}

TEST_F(DeviceEdges, FillsUnderALeaseRunAfterExportsThatEndedUnderIt) {
  const Held a = make(kCuda, {kN}, kInt32, TENON_ZEROED);
  tenon_lease lease = TENON_LEASE_INIT;
  write_lease(a, &lease);
  export_and_end(a);
  const int32_t seven = 7;
  ASSERT_EQ(TENON_OK, tenon_array_fill(a, &seven, kInt32, &error)) << error.message;
  tenon_lease_release(&lease);
  EXPECT_EQ(values(a), Values(kN, 7));
}

TEST_F(DeviceEdges, ACastOnTheHostWaitsForTheCopyIntoItsSource) {
  const Held d = make(kCuda, {kN}, kInt32, TENON_ZEROED);
  copy(counting({kN}), d);
  const Held h = make(kPinned, {kN}, kInt32, TENON_ZEROED);
  const Held wide = make(kCuda, {kN}, kInt64, TENON_ZEROED);
  void* const down = Device::of(kCuda).stream(StreamKind::kToHost);
  on(kCuda, fake_cuda_hold, down);
  tenon_op* const first = push(d, h);
  tenon_op* const second = push(h, wide);
  moment(20);
  on(kCuda, fake_cuda_resume, down);
  EXPECT_EQ(TENON_OK, end(first)) << error.message;
  EXPECT_EQ(TENON_OK, end(second)) << error.message;
  const Held back = make(kCpu, {kN}, kInt64, TENON_ZEROED);
  copy(wide, back);
  EXPECT_EQ(static_cast<int64_t*>(back.desc().data)[kN - 1], kN - 1);
}

TEST_F(DeviceEdges, TheFailureOfALaterOpIsNotThatOfASubmittedOne) {
  const Held x = make(kCuda, {kN}, kInt32, TENON_ZEROED);
  const Held y = make(kCpu, {kN}, kInt32, TENON_ZEROED);
  const Held without_value = counting({kN});
  void* const down = Device::of(kCuda).stream(StreamKind::kToHost);
  on(kCuda, fake_cuda_hold, down);
  tenon_op* const earlier = push(x, y);
  while (statistics().submitted < 1) std::this_thread::yield();
  tenon_lease lease = TENON_LEASE_INIT;
  write_lease(without_value, &lease);
  tenon_lease_fail(&lease, "it was not written");
  EXPECT_EQ(TENON_ERR_OP, end(push(without_value, x)));
  on(kCuda, fake_cuda_resume, down);
  EXPECT_EQ(TENON_OK, end(earlier)) << error.message;
}

TEST_F(DeviceEdges, ASlowStreamDoesNotKeepOthersFromTheirEnd) {
  const Held a = make(kCuda, {30}, kInt32, TENON_ZEROED);
  const Held b = make(kCuda, {30}, kInt32, TENON_ZEROED);
  const Held h = make(kCpu, {30}, kInt32, TENON_ZEROED);
  on(kCuda, fake_cuda_hold, stream);
  std::vector<DLManagedTensorVersioned*> tensors(100);
  for (auto& tensor : tensors) tensor = exported(a);
  for (auto* tensor : tensors) tensor->deleter(tensor);
  EXPECT_EQ(TENON_OK, end(push(b, h), 60'000'000'000)) << error.message;
  on(kCuda, fake_cuda_resume, stream);
}

TEST_F(DeviceEdges, ASecondImportIsOrderedBehindItsProducer) {
  Device& device = Device::of(kCuda);
  void* memory = nullptr;
  {
    const Device::Current current(device);
    ASSERT_EQ(0, device.driver().allocate(kN * 4, nullptr, &memory));
  }
  const Values zeros(kN, 0);
  ASSERT_EQ(0, fake_cuda_write(reinterpret_cast<uint64_t>(memory), zeros.data(), kN * 4));
  static int64_t shape[] = {kN};
  const auto imported = [&] {
    auto* const tensor = new DLManagedTensorVersioned{};
    tensor->version = {1, 0};
    tensor->deleter = [](DLManagedTensorVersioned* self) { delete self; };
    tensor->dl_tensor.data = memory;
    tensor->dl_tensor.device = {kDLCUDA, 0};
    tensor->dl_tensor.ndim = 1;
    tensor->dl_tensor.dtype = {kDLInt, 32, 1};
    tensor->dl_tensor.shape = shape;
    tenon_array* array = nullptr;
    EXPECT_EQ(TENON_OK, tenon_array_from_dlpack(tensor, 0, &array, &error)) << error.message;
    return Held(array);
  };
  const Held a = imported();
  EXPECT_EQ(values(a), zeros);
  launch_add_one(memory);
  {  // as a producer does: the stream of Tenon waits for its own
    const Ref<device::Event> produced = device.record(stream);
    const Device::Current current(device);
    ASSERT_EQ(0, device.wait(device.stream(StreamKind::kMemory), *produced));
  }
  resume_later();
  const Held b = imported();
  EXPECT_EQ(values(b), Values(kN, 1));
}

TEST_F(DeviceEdges, ARegistrationThatIsRefusedLeavesTheOneBefore) {
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(4096, 8192), std::free);
  tenon_registration* first = nullptr;
  tenon_registration* second = nullptr;
  ASSERT_EQ(TENON_OK, tenon_device_register(memory.get(), 4096, 0, &first, &error)) << error.message;
  EXPECT_EQ(TENON_ERR_SYSTEM, tenon_device_register(memory.get(), 8192, 0, &second, &error));
  EXPECT_NE(std::string(error.message).find("4096"), std::string::npos) << error.message;
  tenon_registration_release(first);
  EXPECT_EQ(0u, statistics().registered_nbytes);
  EXPECT_EQ(0u, fake_cuda_count("live.registered"));
}

TEST_F(DeviceEdges, PackedElementsAreCopiedOnTheHostAsTheyAre) {
  constexpr tenon_dtype kFloat4{TENON_FLOAT4_E2M1FN, 4, 1};
  const Held a = make(kCpu, {64}, kFloat4, TENON_ZEROED);
  const Held b = make(kCpu, {64}, kFloat4, TENON_ZEROED);
  std::memset(a.desc().data, 0x57, 32);
  EXPECT_EQ(TENON_OK, end(push(a, b))) << error.message;
  EXPECT_EQ(0, std::memcmp(a.desc().data, b.desc().data, 32));
}

}  // namespace
}  // namespace tenon::impl
