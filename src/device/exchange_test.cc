// SPDX-License-Identifier: Apache-2.0
//
// DLPack on streams. The consumer is a stand-in that follows the protocol: kernels of the fake driver on a
// stream of its own.
#include <atomic>
#include <thread>

#include "device/device.h"
#include "device/device_testing.h"

namespace tenon::impl {
namespace {

class Exchange : public ConsumerTest {};

TEST_F(Exchange, TheTensorSaysTheDeviceAndCountsAsAView) {
  const Held a = make(kCuda, {4}, kFloat32, TENON_ZEROED);
  DLManagedTensorVersioned* const tensor = exported(a);
  EXPECT_EQ(kDLCUDA, tensor->dl_tensor.device.device_type);
  EXPECT_EQ(a.desc().data, tensor->dl_tensor.data);
  EXPECT_EQ(1u, tenon_array_views(a).writers);
  tenon_op* op = nullptr;
  expect(TENON_ERR_LEASE_CONFLICT, tenon_push_copy(counting({4}), a, nullptr, &op, &error), "ordinary code");
  tensor->deleter(tensor);
  EXPECT_EQ(0u, tenon_array_views(a).writers);
}

TEST_F(Exchange, NumbersOfStreamsFollowTheProtocol) {
  const Held a = make(kCuda, {4}, kFloat32, TENON_ZEROED);
  DLManagedTensorVersioned* tensor = nullptr;
  for (const int64_t wrong : {int64_t{0}, int64_t{-2}}) {
    expect(TENON_ERR_VALUE, tenon_array_to_dlpack_on(a, 0, wrong, nullptr, &tensor, &error), "is none");
  }
  for (const int64_t right : {int64_t{-1}, int64_t{1}, int64_t{2}}) {
    ASSERT_EQ(TENON_OK, tenon_array_to_dlpack_on(a, 0, right, nullptr, &tensor, &error)) << error.message;
    tensor->deleter(tensor);
  }
  DLManagedTensor* legacy = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_to_dlpack_legacy_on(a, 0, 1, nullptr, &legacy, &error)) << error.message;
  legacy->deleter(legacy);
  const Held pinned = make(kPinned, {4});
  ASSERT_EQ(TENON_OK, tenon_array_to_dlpack_on(pinned, 0, 1, nullptr, &tensor, &error)) << error.message;
  EXPECT_EQ(kDLCUDAHost, tensor->dl_tensor.device.device_type);
  tensor->deleter(tensor);
}

// Breaks when the export does not make the stream of the consumer wait for the copy.
TEST_F(Exchange, TheConsumersStreamWaitsForWhatWasSubmitted) {
  const Held a = make(kCuda, {3000}, kInt32, TENON_ZEROED);
  void* const up = Device::of(kCuda).stream(StreamKind::kToDevice);
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, up));
  tenon_op* const op = push(counting({3000}), a);
  DLManagedTensorVersioned* const tensor = exported(a);  // waits until it is submitted, and not for its end
  EXPECT_EQ(0, tenon_op_is_done(op));
  add_one(tensor);
  moment();
  on(kCuda, fake_cuda_resume, up);
  finish(op);
  tensor->deleter(tensor);
  const Values got = values(a);
  EXPECT_EQ(got[0], 1);
  EXPECT_EQ(got[2999], 3000);
}

// Breaks when the end of the export records no event, or later work does not wait for it.
TEST_F(Exchange, LaterWorkWaitsForWhatTheConsumerHadSubmitted) {
  const Held a = make(kCuda, {3000}, kInt32, TENON_ZEROED);
  const Held back = make(kCpu, {3000}, kInt32, TENON_ZEROED);
  ASSERT_EQ(values(a), Values(3000, 0));
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, stream));
  DLManagedTensorVersioned* const tensor = exported(a);
  add_one(tensor);
  tensor->deleter(tensor);
  EXPECT_EQ(1u, statistics().submitted);
  tenon_op* const op = push(a, back);
  tenon_error e = TENON_ERROR_INIT;
  EXPECT_EQ(TENON_ERR_TIMEOUT, tenon_array_wait(a, TENON_READ, 2'000'000, &e));
  EXPECT_NE(std::strstr(e.message, "DLPack export"), nullptr) << e.message;
  while (statistics().submitted < 2) moment();
  EXPECT_EQ(0, tenon_op_is_done(op));
  on(kCuda, fake_cuda_resume, stream);
  finish(op);
  EXPECT_EQ(values(back), Values(3000, 1));
}

// Breaks when a call of the host does not look at the streams of open views.
TEST_F(Exchange, CallsOfTheHostComeAfterTheStreamsOfOpenViews) {
  const Held a = make(kCuda, {3000}, kInt32, TENON_ZEROED);
  DLManagedTensorVersioned* const tensor = exported(a);
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, stream));
  add_one(tensor);
  std::thread resumes([this] {
    moment();
    on(kCuda, fake_cuda_resume, stream);
  });
  EXPECT_EQ(values(a), Values(3000, 1));
  resumes.join();
  tensor->deleter(tensor);
}

// Breaks when an import of managed memory does not wait for its producer, or when an export of it to a stream
// is not ordered in both directions.
TEST_F(Exchange, ManagedMemoryIsOrderedWithTheStreamsThatUseIt) {
  uint64_t address = 0;
  ASSERT_EQ(0, on(kCuda, fake_cuda_alloc_managed, &address, size_t{4000}));
  auto* const memory = reinterpret_cast<int32_t*>(address);
  std::fill_n(memory, 1000, 0);
  Device& device = Device::of(kCuda);
  std::thread later;
  const auto resume_later = [&] {
    later = std::thread([this] {
      moment(40);
      on(kCuda, fake_cuda_resume, stream);
    });
  };
  // The producer has submitted work, and made Tenon's stream wait for it.
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, stream));
  add_one(stream, memory, 1000);
  {
    const Ref<device::Event> produced = device.record(stream);
    const Device::Current current(device);
    ASSERT_EQ(0, device.wait(device.stream(StreamKind::kMemory), *produced));
  }
  resume_later();
  static int64_t shape[] = {1000};
  auto* const given = new DLManagedTensorVersioned{};
  given->version = {1, 0};
  given->deleter = [](DLManagedTensorVersioned* self) { delete self; };
  given->dl_tensor = {memory, {kDLCUDAManaged, 0}, 1, {kDLInt, 32, 1}, shape, nullptr, 0};
  tenon_array* array = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_from_dlpack(given, 0, &array, &error)) << error.message;
  const Held a(array);
  EXPECT_EQ(Values(memory, memory + 1000), Values(1000, 1));
  later.join();

  // The consumer's stream waits for a copy that was submitted before.
  const Held two = make(kCuda, {1000}, kInt32, TENON_ZEROED);
  ASSERT_EQ(values(two), Values(1000, 0));
  Hold hold(StreamKind::kToHost);
  tenon_op* const op = push(two, a);
  DLManagedTensorVersioned* const tensor = exported(a);
  EXPECT_EQ(kDLCUDAManaged, tensor->dl_tensor.device.device_type);
  EXPECT_EQ(memory, tensor->dl_tensor.data);
  add_one(tensor);
  moment();
  EXPECT_EQ(0, tenon_op_is_done(op));
  hold.release();
  finish(op);

  // A copy to a device waits for the work of the open export.
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, stream));
  add_one(tensor);
  resume_later();
  copy(a, two);
  EXPECT_EQ(values(two), Values(1000, 2));
  later.join();

  // What the host does next waits for the consumer's work.
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, stream));
  add_one(tensor);
  tensor->deleter(tensor);
  EXPECT_EQ(1u, statistics().submitted);
  resume_later();
  EXPECT_EQ(values(a), Values(1000, 3));
  later.join();
  const Device::Current current(device);
  EXPECT_EQ(0, device.driver().free(memory, nullptr));
}

TEST_F(Exchange, MemoryIsKeptUntilTheConsumersWorkIsDone) {
  Held a = make(kCuda, {1000}, kInt32, TENON_ZEROED);
  const uint64_t before = statistics().device_nbytes;
  DLManagedTensorVersioned* const tensor = exported(a);
  a.reset();
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, stream));
  add_one(tensor);
  std::thread([tensor] { tensor->deleter(tensor); }).join();
  moment();
  EXPECT_EQ(statistics().device_nbytes, before);
  on(kCuda, fake_cuda_resume, stream);
  EXPECT_TRUE(soon([&] { return statistics().device_nbytes == before - 4000; }));
}

TEST_F(Exchange, AnExportBreaksNoCaptureAndIsRefusedWhereItCannotWork) {
  const Held a = make(kCuda, {1000}, kInt32, TENON_ZEROED);
  ASSERT_EQ(values(a), Values(1000, 0));
  ASSERT_EQ(0, on(kCuda, fake_cuda_begin_capture, stream, 0));
  DLManagedTensorVersioned* tensor = exported(a);
  const AddOne captured{reinterpret_cast<uint64_t>(tensor->dl_tensor.data), 1000};  // does not run
  EXPECT_EQ(0, on(kCuda, fake_cuda_launch, stream, AddOne::run, const_cast<AddOne*>(&captured)));
  tensor->deleter(tensor);
  EXPECT_EQ(0, on(kCuda, fake_cuda_end_capture, stream, nullptr));
  void* const up = Device::of(kCuda).stream(StreamKind::kToDevice);
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, up));
  tenon_op* const op = push(counting({1000}), a);
  while (statistics().submitted == 0) moment();
  ASSERT_EQ(0, on(kCuda, fake_cuda_begin_capture, stream, 0));
  expect(TENON_ERR_BUFFER, tenon_array_to_dlpack_on(a, 0, number(), nullptr, &tensor, &error),
         "that captures a graph: work on the array is not done");
  EXPECT_EQ(0, on(kCuda, fake_cuda_end_capture, stream, nullptr));
  on(kCuda, fake_cuda_resume, up);
  finish(op);
}

TEST_F(Exchange, ImportedMemoryIsUsedAfterTheWorkOfItsProducer) {
  // The producer has made the stream that it was given wait for its own.
  Held theirs = make(kCuda, {1000}, kInt32, TENON_ZEROED);
  ASSERT_EQ(values(theirs), Values(1000, 0));
  int64_t ours = 0;
  ASSERT_EQ(TENON_OK, tenon_device_stream(kCuda, &ours, &error));
  void* const our_stream = reinterpret_cast<void*>(ours);
  tenon_array* raw = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_unchecked(theirs, &raw, &error));
  const Held unlisted(raw);
  const int64_t n = 1000;
  DLManagedTensorVersioned tensor{};
  tensor.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  void* memory = nullptr;
  Ref<device::Event> born;
  memory = Device::of(kCuda).allocate(4000, true, &born);
  tensor.dl_tensor.data = memory;
  tensor.dl_tensor.device = {kDLCUDA, 0};
  tensor.dl_tensor.ndim = 1;
  tensor.dl_tensor.dtype = {kDLInt, 32, 1};
  tensor.dl_tensor.shape = const_cast<int64_t*>(&n);
  int ended = 0;
  tensor.manager_ctx = &ended;
  tensor.deleter = [](DLManagedTensorVersioned* self) { ++*static_cast<int*>(self->manager_ctx); };
  ASSERT_EQ(0, born->synchronise());
  ASSERT_EQ(0, on(kCuda, fake_cuda_hold, our_stream));
  add_one(our_stream, memory, 1000);
  tenon_array* imported = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_from_dlpack(&tensor, 0, &imported, &error)) << error.message;
  Held mine(imported);
  const Held back = make(kCpu, {1000}, kInt32, TENON_ZEROED);
  tenon_op* const op = push(mine, back);
  moment();
  on(kCuda, fake_cuda_resume, our_stream);
  finish(op);
  EXPECT_EQ(values(back), Values(1000, 1));
  mine.reset();
  EXPECT_EQ(1, ended);
  Device::of(kCuda).free(memory, 4000);
}

// Breaks when the import records no event on the stream of the library.
TEST_F(Exchange, AdoptedMemoryIsUsedAfterTheWorkOnTheStreamOfItsLibrary) {
  const tenon_device second{TENON_CUDA, 1};
  Device& device = Device::of(second);
  Ref<device::Event> born;
  void* const memory = device.allocate(4000, true, &born);
  ASSERT_EQ(0, born->synchronise());
  void* theirs = nullptr;
  {
    const Device::Current current(device);
    ASSERT_EQ(0, device.driver().create_stream(&theirs));
  }
  const auto number = static_cast<int64_t>(reinterpret_cast<intptr_t>(theirs));
  const int64_t n = 1000;
  int ended = 0;
  tenon_adoption adoption{};
  adoption.struct_size = sizeof adoption;
  adoption.data = memory;
  adoption.device = {TENON_CUDA, TENON_DEVICE_OF_MEMORY};
  adoption.ndim = 1;
  adoption.dtype = kInt32;
  adoption.shape = &n;
  adoption.owner = &ended;
  adoption.deleter = [](void* owner) { ++*static_cast<int*>(owner); };
  ASSERT_EQ(0, on(second, fake_cuda_hold, theirs));
  const auto launch = [&] {
    ASSERT_EQ(0, on(second, fake_cuda_launch, theirs, AddOne::run,
                    new AddOne{reinterpret_cast<uint64_t>(memory), static_cast<size_t>(n)}));
  };
  launch();
  tenon_array* adopted = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_adopt_on(&adoption, number, &adopted, &error)) << error.message;
  Held mine(adopted);
  EXPECT_EQ(1, mine.desc().device.id);
  const Held back = make(kCpu, {1000}, kInt32, TENON_ZEROED);
  tenon_op* const op = push(mine, back);
  moment();
  EXPECT_EQ(0, tenon_op_is_done(op));
  on(second, fake_cuda_resume, theirs);
  finish(op);
  EXPECT_EQ(values(back), Values(1000, 1));

  // The queue of known memory knows no work of the library, so the call waits for it.
  const auto adopt_known = [&] {
    ASSERT_EQ(0, on(second, fake_cuda_hold, theirs));
    launch();
    std::atomic<bool> is_resumed{false};
    std::thread later([&] {
      moment(20);
      is_resumed = true;
      on(second, fake_cuda_resume, theirs);
    });
    EXPECT_EQ(TENON_OK, tenon_array_adopt_on(&adoption, number, &adopted, &error)) << error.message;
    EXPECT_TRUE(is_resumed);
    later.join();
  };
  adopt_known();
  Held known(adopted);
  EXPECT_EQ(1, ended);  // the first storage keeps the memory
  EXPECT_EQ(values(mine), Values(1000, 2));
  known.reset();
  mine.reset();
  EXPECT_EQ(2, ended);

  // The first one is read-only, so the second one has a storage of its own.
  adoption.flags = TENON_READONLY;
  ASSERT_EQ(TENON_OK, tenon_array_adopt_on(&adoption, number, &adopted, &error)) << error.message;
  mine = Held(adopted);
  adoption.flags = 0;
  adopt_known();
  known = Held(adopted);
  EXPECT_EQ(2, ended);
  EXPECT_EQ(values(mine), Values(1000, 3));
  known.reset();
  mine.reset();
  EXPECT_EQ(4, ended);

  // Nothing keeps memory that has no deleter, so no later import may rely on it.
  adoption.deleter = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_adopt_on(&adoption, number, &adopted, &error)) << error.message;
  mine = Held(adopted);
  adoption.device = second;
  ASSERT_EQ(TENON_OK, tenon_array_alias(&adoption, &adopted, &error)) << error.message;
  EXPECT_EQ(adopted, nullptr);
  mine.reset();
  adoption.device.id = TENON_DEVICE_OF_MEMORY;
  adoption.deleter = [](void* owner) { ++*static_cast<int*>(owner); };

  // Elements that do not exist need no memory, and no order.
  const int64_t none = 0;
  adoption.shape = &none;
  adoption.data = static_cast<std::byte*>(memory) + 4000;
  ASSERT_EQ(TENON_OK, tenon_array_adopt_on(&adoption, number, &adopted, &error)) << error.message;
  tenon_array_release(adopted);
  EXPECT_EQ(5, ended);
  adoption.shape = &n;
  adoption.data = memory;
  expect(TENON_ERR_VALUE, tenon_array_adopt(&adoption, &adopted, &error), "at least 0");

  expect(TENON_ERR_VALUE, tenon_array_adopt_on(&adoption, 0, &adopted, &error), "is none");
  adoption.data = back.desc().data;
  expect(TENON_ERR_BUFFER, tenon_array_adopt_on(&adoption, -1, &adopted, &error), "memory of the host");
  adoption.device = kCpu;
  ASSERT_EQ(TENON_OK, tenon_array_adopt_on(&adoption, number, &adopted, &error)) << error.message;
  tenon_array_release(adopted);
  EXPECT_EQ(6, ended);
  device.free(memory, 4000);
}

TEST_F(Exchange, ManagedMemoryIsImportedWithItsTypeAndUsedByTheHost) {
  uint64_t address = 0;
  ASSERT_EQ(0, on(kCuda, fake_cuda_alloc_managed, &address, size_t{16}));
  int64_t n = 4;
  DLManagedTensorVersioned tensor{};
  tensor.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  tensor.dl_tensor.data = reinterpret_cast<void*>(address);
  tensor.dl_tensor.device = {kDLCUDAManaged, 0};
  tensor.dl_tensor.ndim = 1;
  tensor.dl_tensor.dtype = {kDLInt, 32, 1};
  tensor.dl_tensor.shape = &n;
  tenon_array* imported = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_from_dlpack(&tensor, 0, &imported, &error)) << error.message;
  const Held a(imported);
  EXPECT_EQ(TENON_CUDA_MANAGED, a.desc().device.type);
  copy(counting({4}), a);
  tenon_view view = TENON_VIEW_INIT;
  ASSERT_EQ(TENON_OK, tenon_view_open(&view, a, TENON_READ, nullptr, &error)) << error.message;
  EXPECT_EQ(3, static_cast<const int32_t*>(a.desc().data)[3]);
  tenon_view_close(&view);
  const Held device = make(kCuda, {4}, kInt32, TENON_ZEROED);
  finish(push(a, device));
  EXPECT_EQ(values(device), (Values{0, 1, 2, 3}));
  Device& cuda = Device::of(kCuda);
  const Device::Current current(cuda);
  EXPECT_EQ(0, cuda.driver().free(tensor.dl_tensor.data, nullptr));
}

TEST_F(Exchange, OurOwnMemoryComesBackAsItself) {
  const Held a = make(kCuda, {4}, kInt32, TENON_ZEROED);
  DLManagedTensorVersioned* const tensor = exported(a);
  tenon_array* again = nullptr;
  ASSERT_EQ(TENON_OK, tenon_array_from_dlpack(tensor, 0, &again, &error)) << error.message;
  const Held b(again);
  EXPECT_EQ(a.desc().data, b.desc().data);
  copy(counting({4}), b);
  EXPECT_EQ(values(a), (Values{0, 1, 2, 3}));
}

}  // namespace
}  // namespace tenon::impl
