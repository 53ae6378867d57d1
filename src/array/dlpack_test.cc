// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "array/dlpack_export.h"
#include "array/dlpack_import.h"
#include "base/error_testing.h"
#include "memory/known_memory.h"

namespace tenon::impl::dlpack {
namespace {

using Vector = std::vector<int64_t>;
constexpr DType kFloat32{TENON_FLOAT, 32};

// A foreign tensor over data, which counts the calls of its deleter.
template <class Tensor>
struct Foreign {
  Tensor tensor{};
  Vector shape;
  Vector strides;
  int deaths = 0;

  Foreign(void* data, Vector dims, Vector steps = {}) : shape(std::move(dims)), strides(std::move(steps)) {
    tensor.dl_tensor.data = data;
    tensor.dl_tensor.device = {kDLCPU, 0};
    tensor.dl_tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.dl_tensor.dtype = {kDLFloat, 32, 1};
    tensor.dl_tensor.shape = shape.data();
    tensor.dl_tensor.strides = strides.empty() ? nullptr : strides.data();
    tensor.manager_ctx = this;
    tensor.deleter = [](Tensor* self) { ++static_cast<Foreign*>(self->manager_ctx)->deaths; };
    if constexpr (std::is_same_v<Tensor, DLManagedTensorVersioned>) tensor.version = {1, 0};
  }
};
using ForeignVersioned = Foreign<DLManagedTensorVersioned>;
using ForeignLegacy = Foreign<DLManagedTensor>;

Vector to_vector(Dims dims) { return {dims.begin(), dims.end()}; }

TEST(Export, FillsEveryField) {
  const Ref<Array> a = Array::create(kFloat32, Vector{2, 3});
  DLManagedTensorVersioned* const t = export_versioned(*a, 0);
  EXPECT_EQ(t->version.major, 1U);
  EXPECT_EQ(t->version.minor, 3U);
  EXPECT_EQ(t->flags, 0U);
  EXPECT_EQ(t->dl_tensor.data, a->data());
  EXPECT_EQ(t->dl_tensor.byte_offset, 0U);
  EXPECT_EQ(t->dl_tensor.strides[0], 3);
  EXPECT_EQ(t->dl_tensor.strides[1], 1);
  EXPECT_EQ(t->dl_tensor.device.device_type, kDLCPU);
  t->deleter(t);
}

TEST(Export, StridesAreThereForScalarsAndEmptyArraysToo) {
  for (const Vector& shape : {Vector{}, Vector{0}, Vector{3, 0}}) {
    const Ref<Array> a = Array::create(kFloat32, shape);
    DLManagedTensorVersioned* const t = export_versioned(*a, 0);
    EXPECT_NE(t->dl_tensor.strides, nullptr);
    EXPECT_EQ(t->dl_tensor.data == nullptr, a->size() == 0);
    t->deleter(t);
  }
}

TEST(Export, IsAViewUntilTheDeleterRunsFromAnyThread) {
  Ref<Array> a = Array::create(kFloat32, Vector{4});
  DLManagedTensorVersioned* const writer = export_versioned(*a, 0);
  DLManagedTensor* const reader = export_legacy(*a, TENON_EXPORT_FOR_READ);
  EXPECT_EQ(a->storage().region().views().writers, 1U);
  EXPECT_EQ(a->storage().region().views().readers, 1U);
  std::thread([&] { writer->deleter(writer); }).join();
  EXPECT_EQ(a->storage().region().views().writers, 0U);
  a = {};
  reader->dl_tensor.data = nullptr;  // the consumer may scribble on its struct
  std::thread([&] { reader->deleter(reader); }).join();
}

TEST(Export, SaysReadOnlyOrRefuses) {
  const Ref<Array> a = as_readonly(*Array::create(kFloat32, Vector{4}));
  DLManagedTensorVersioned* const t = export_versioned(*a, TENON_EXPORT_COPIED);
  EXPECT_EQ(t->flags, DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED);
  t->deleter(t);
  EXPECT_EQ(code_of([&] { export_legacy(*a, 0); }), Code::kBuffer);
  DLManagedTensor* const legacy = export_legacy(*a, TENON_EXPORT_FOR_READ);
  legacy->deleter(legacy);
}

TEST(Export, LegacyStridesOfWhatHasNoGapsAreThoseOfCOrder) {
  alignas(64) float data[4] = {};
  ForeignLegacy odd(data, {1, 4, 1}, Vector{77, 1, 9});
  const Ref<Array> a = import_legacy(&odd.tensor, 0);
  DLManagedTensor* const t = export_legacy(*a, 0);
  EXPECT_EQ(to_vector({t->dl_tensor.strides, 3}), (Vector{4, 1, 1}));
  EXPECT_EQ(t->dl_tensor.data, data);
  EXPECT_EQ(a->storage().region().views().writers, 1U);
  t->deleter(t);
  EXPECT_EQ(a->storage().region().views().writers, 0U);
}

TEST(Export, PaddedSubByteElementsCarryTheirFlag) {
  const Ref<Array> a = Array::create(DType{TENON_FLOAT4_E2M1FN, 4}, Vector{3}, TENON_SUBBYTE_PADDED);
  DLManagedTensorVersioned* const t = export_versioned(*a, 0);
  EXPECT_EQ(t->flags, DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
  t->deleter(t);
  EXPECT_EQ(code_of([&] { export_legacy(*a, 0); }), Code::kBuffer);
}

TEST(Import, HonoursNullStridesAndByteOffset) {
  alignas(64) float data[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  ForeignVersioned foreign(data, {2, 3});
  foreign.tensor.dl_tensor.byte_offset = 8;
  Ref<Array> a = import_versioned(&foreign.tensor, 0);
  EXPECT_EQ(a->data(), reinterpret_cast<std::byte*>(data + 2));
  EXPECT_EQ(to_vector(a->strides()), (Vector{3, 1}));
  EXPECT_EQ(foreign.deaths, 0);
  a = {};
  EXPECT_EQ(foreign.deaths, 1);
}

TEST(Import, IgnoresStridesOfAxesThatHaveNone) {
  alignas(64) float data[4] = {};
  ForeignVersioned foreign(data, {1, 4}, {INT64_MAX, 1});
  const Ref<Array> a = import_versioned(&foreign.tensor, 0);
  EXPECT_TRUE(a->is_contiguous());
  ForeignVersioned empty(data, {0, 4}, {INT64_MIN, 7});
  EXPECT_EQ(import_versioned(&empty.tensor, 0)->size(), 0);
}

TEST(Import, OfAnotherMajorVersionTouchesNothingButTheDeleter) {
  ForeignVersioned foreign(nullptr, {4});
  foreign.tensor.version = {2, 0};
  std::memset(static_cast<void*>(&foreign.tensor.dl_tensor), 0xff, sizeof foreign.tensor.dl_tensor);
  foreign.tensor.flags = ~uint64_t{0};
  EXPECT_EQ(code_of([&] { import_versioned(&foreign.tensor, 0); }), Code::kBuffer);
  EXPECT_EQ(foreign.deaths, 1);
}

TEST(Import, WorksWithoutADeleter) {
  alignas(64) float data[4] = {};
  ForeignVersioned foreign(data, {4});
  foreign.tensor.deleter = nullptr;
  Ref<Array> a = import_versioned(&foreign.tensor, 0);
  a = {};
  foreign.tensor.version.major = 2;
  EXPECT_THROW(import_versioned(&foreign.tensor, 0), Error);
}

TEST(Import, MalformedTensorsAreConsumedWithAnError) {
  alignas(64) float data[16] = {};
  const auto fails_with = [&](Code expected, auto break_it) {
    ForeignVersioned foreign(data, {4}, {1});
    break_it(foreign.tensor.dl_tensor);
    const Code code = code_of([&] { import_versioned(&foreign.tensor, 0); });
    return code == expected && foreign.deaths == 1;
  };
  const auto fails = [&](auto break_it) { return fails_with(Code::kBuffer, break_it); };
  const auto has_no_dtype = [&](auto break_it) { return fails_with(Code::kType, break_it); };
  EXPECT_TRUE(fails([](DLTensor& t) { t.ndim = -1; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.ndim = 65; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.shape = nullptr; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.shape[0] = -4; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.shape[0] = INT64_MAX; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.strides[0] = INT64_MAX / 2; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.strides[0] = INT64_MIN; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.data = nullptr; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.byte_offset = 2; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.byte_offset = UINT64_MAX; }));
  EXPECT_TRUE(has_no_dtype([](DLTensor& t) { t.dtype.code = 3; }));
  EXPECT_TRUE(has_no_dtype([](DLTensor& t) { t.dtype.code = 200; }));
  EXPECT_TRUE(has_no_dtype([](DLTensor& t) { t.dtype.bits = 24; }));
  EXPECT_TRUE(has_no_dtype([](DLTensor& t) { t.dtype.lanes = 0; }));
  EXPECT_TRUE(fails([](DLTensor& t) { t.device = {kDLMetal, 0}; }));
}

// No code touches the memory that such a tensor claims.
TEST(Import, OfWhatReachesDownToAddress0IsAnError) {
  for (const auto& [address, extent, stride] :
       {std::array<int64_t, 3>{16, 5, -1}, {16, 6, -1}, {4, 2, -1}, {1 << 20, 1 << 20, -(1 << 20)}}) {
    ForeignVersioned foreign(reinterpret_cast<void*>(address), {extent}, {stride});
    EXPECT_EQ(code_of([&] { (void)import_versioned(&foreign.tensor, 0); }), Code::kBuffer) << address;
    EXPECT_EQ(foreign.deaths, 1);
  }
}

TEST(Import, ReadOnlyComesFromTheFlagOrTheCaller) {
  alignas(64) float data[4] = {};
  ForeignVersioned flagged(data, {4});
  flagged.tensor.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  EXPECT_TRUE(import_versioned(&flagged.tensor, 0)->is_readonly());
  ForeignLegacy legacy(data, {4});
  EXPECT_FALSE(import_legacy(&legacy.tensor, 0)->is_readonly());
  ForeignLegacy asked(data, {4});
  EXPECT_TRUE(import_legacy(&asked.tensor, TENON_READONLY)->is_readonly());
  EXPECT_EQ(flagged.deaths + legacy.deaths + asked.deaths, 3);
}

TEST(RoundTrip, IsAnotherHandleOnTheSameStorage) {
  const Ref<Array> a = Array::create(kFloat32, Vector{2, 3});
  const Ref<Array> b = import_versioned(export_versioned(*a, 0), 0);
  EXPECT_EQ(&a->storage(), &b->storage());
  EXPECT_EQ(a->storage().region().views().writers, 0U);
  const Ref<Array> frozen = import_versioned(export_versioned(*as_readonly(*a), 0), 0);
  EXPECT_TRUE(frozen->is_readonly());
  const Ref<Array> c = import_legacy(export_legacy(*a, 0), 0);
  EXPECT_EQ(&a->storage(), &c->storage());
}

TEST(RoundTrip, OfForeignMemoryImportedTwiceSharesTheStorage) {
  alignas(64) float data[4] = {};
  ForeignVersioned first(data, {4});
  ForeignVersioned second(data + 1, {2});
  Ref<Array> a = import_versioned(&first.tensor, 0);
  Ref<Array> b = import_versioned(&second.tensor, 0);
  EXPECT_EQ(second.deaths, 1);
  EXPECT_EQ(&a->storage(), &b->storage());
  a = {};
  EXPECT_EQ(first.deaths, 0);
  b = {};
  EXPECT_EQ(first.deaths, 1);
}

TEST(Import, OfKnownMemoryDeletesTheSecondTensorOnceAlsoOnFailure) {
  alignas(64) float data[8] = {};
  ForeignVersioned first(data, {4});
  Ref<Array> a = import_versioned(&first.tensor, TENON_READONLY);
  ForeignVersioned same(data, {4});
  Ref<Array> b = import_versioned(&same.tensor, TENON_READONLY);
  EXPECT_EQ(same.deaths, 1);
  ForeignVersioned writable(data, {4});  // the known memory cannot lend it
  Ref<Array> c = import_versioned(&writable.tensor, 0);
  EXPECT_EQ(writable.deaths, 0);
  ForeignVersioned malformed(data, {-4});
  EXPECT_EQ(code_of([&] { (void)import_versioned(&malformed.tensor, 0); }), Code::kBuffer);
  EXPECT_EQ(malformed.deaths, 1);
  ForeignVersioned rest(data + 4, {4});
  const Ref<Array> d = import_versioned(&rest.tensor, 0);
  const auto in_use = {export_versioned(*c, 0), export_versioned(*d, 0)};
  ForeignVersioned bridge(data, {8});
  EXPECT_EQ(code_of([&] { (void)import_versioned(&bridge.tensor, 0); }), Code::kLeaseConflict);
  EXPECT_EQ(bridge.deaths, 1);
  for (DLManagedTensorVersioned* view : in_use) view->deleter(view);
  c = {};
  EXPECT_EQ(writable.deaths, 1);
  a = {};
  EXPECT_EQ(first.deaths, 0);
  b = {};
  EXPECT_EQ(first.deaths, 1);
  EXPECT_EQ(same.deaths + malformed.deaths + bridge.deaths + writable.deaths + rest.deaths, 4);
}

}  // namespace
}  // namespace tenon::impl::dlpack
