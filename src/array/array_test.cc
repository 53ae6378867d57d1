// SPDX-License-Identifier: Apache-2.0
#include "array/array.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "base/error_testing.h"

namespace tenon::impl {
namespace {

using Vector = std::vector<int64_t>;
constexpr DType kFloat32{TENON_FLOAT, 32};
constexpr DType kInt32{TENON_INT, 32};
constexpr DType kUint8{TENON_UINT, 8};
constexpr DType kFloat4{TENON_FLOAT4_E2M1FN, 4};

Vector to_vector(Dims dims) { return {dims.begin(), dims.end()}; }

tenon_adoption adoption_of(void* data, DType dtype, const Vector& shape, const int64_t* strides = nullptr) {
  static std::deque<Vector> shapes;  // the descriptions point here
  shapes.push_back(shape);
  tenon_adoption a{};
  a.struct_size = sizeof a;
  a.data = data;
  a.device = {TENON_CPU, 0};
  a.ndim = static_cast<int32_t>(shape.size());
  a.dtype = dtype;
  a.shape = shapes.back().data();
  a.strides = strides;
  return a;
}

Ref<Array> counting(const Vector& shape) {
  Ref<Array> a = Array::create(kInt32, shape);
  std::iota(reinterpret_cast<int32_t*>(a->data()), reinterpret_cast<int32_t*>(a->data()) + a->size(), 0);
  return a;
}

// The elements in C order, read through the strides one by one.
std::vector<int32_t> elements_of(const Array& a) {
  std::vector<int32_t> out;
  Vector at(a.shape().size(), 0);
  for (int64_t n = 0; n < a.size(); ++n) {
    int64_t offset = 0;
    for (size_t i = 0; i < at.size(); ++i) offset += at[i] * a.strides()[i];
    out.push_back(reinterpret_cast<const int32_t*>(a.data())[offset]);
    for (size_t i = at.size(); i-- > 0;) {
      if (++at[i] < a.shape()[i]) break;
      at[i] = 0;
    }
  }
  return out;
}

tenon_index at(int64_t i) { return {TENON_INDEX_AT, 0, i, 0, 0}; }
tenon_index slice(int64_t start, int64_t stop, int64_t step = 1) {
  return {TENON_INDEX_SLICE, 0, start, stop, step};
}
constexpr tenon_index kNewAxis{TENON_INDEX_NEW_AXIS, 0, 0, 0, 0};
constexpr tenon_index kEllipsis{TENON_INDEX_ELLIPSIS, 0, 0, 0, 0};

Ref<Array> get(const Ref<Array>& a, std::vector<tenon_index> indices) { return index(*a, indices); }

TEST(Array, CreateGivesCOrderAndTheNumbers) {
  const Ref<Array> a = Array::create(kFloat32, Vector{2, 3, 4}, TENON_ZEROED);
  EXPECT_EQ(to_vector(a->strides()), (Vector{12, 4, 1}));
  EXPECT_EQ(a->size(), 24);
  EXPECT_EQ(a->desc().nbytes, 96U);
  EXPECT_EQ(a->desc().itemsize, 4U);
  EXPECT_TRUE(a->is_contiguous());
  EXPECT_FALSE(a->is_readonly());
}

TEST(Array, ZeroAxesAndZeroElementsWork) {
  const Ref<Array> scalar = Array::create(kFloat32, Vector{});
  EXPECT_EQ(scalar->size(), 1);
  EXPECT_EQ(scalar->desc().nbytes, 4U);
  const Ref<Array> empty = Array::create(kFloat32, Vector{3, 0, 2});
  EXPECT_EQ(empty->size(), 0);
  EXPECT_EQ(to_vector(get(empty, {slice(1, TENON_OMITTED)})->shape()), (Vector{2, 0, 2}));
}

TEST(Array, SubByteElementsArePackedUnlessPadded) {
  const Ref<Array> packed = Array::create(kFloat4, Vector{3, 3});
  EXPECT_EQ(packed->desc().nbytes, 5U);
  EXPECT_EQ(packed->desc().itemsize, 0U);
  const Ref<Array> padded = Array::create(kFloat4, Vector{3, 3}, TENON_SUBBYTE_PADDED);
  EXPECT_EQ(padded->desc().nbytes, 9U);
  const Ref<Array> pairs = Array::create(DType{TENON_FLOAT4_E2M1FN, 4, 2}, Vector{3, 3});
  EXPECT_EQ(pairs->desc().nbytes, 9U);
  EXPECT_EQ(pairs->desc().itemsize, 1U);
}

TEST(Array, PackedViewsMustBeginOnAByteAndHaveNoGaps) {
  const Ref<Array> packed = Array::create(kFloat4, Vector{4, 2});
  EXPECT_EQ(get(packed, {slice(1, 3)})->data(), packed->data() + 1);
  EXPECT_THROW(get(packed, {slice(0, 4, 2)}), Error);
  EXPECT_THROW(get(packed, {at(0), at(1)}), Error);
  EXPECT_THROW(transpose(*packed, nullptr), Error);
}

TEST(Adopt, ChecksShapeAlignmentDeviceAndExtent) {
  alignas(8) std::byte bytes[64];
  EXPECT_NE(message_of([&] {
              Array::adopt(adoption_of(bytes + 1, kFloat32, {2}));
            }).find("not aligned for float32"),
            std::string::npos);
  EXPECT_THROW(Array::adopt(adoption_of(nullptr, kFloat32, {2})), Error);
  EXPECT_THROW(Array::adopt(adoption_of(bytes, DType{99, 32}, {2})), Error);
  EXPECT_THROW(Array::adopt(adoption_of(bytes, kFloat32, {-2})), Error);
  tenon_adoption device = adoption_of(bytes, kFloat32, {2});
  device.device = {8, 0};
  EXPECT_NE(message_of([&] { Array::adopt(device); }).find("device type 8"), std::string::npos);
  tenon_adoption outside = adoption_of(bytes + 56, kFloat32, {4});
  outside.extent = bytes;
  outside.extent_nbytes = 64;
  EXPECT_NE(message_of([&] { Array::adopt(outside); }).find("outside of the 64 bytes"), std::string::npos);
  EXPECT_TRUE(Array::adopt(adoption_of(nullptr, kFloat32, {0})));
}

TEST(Adopt, BytesBehindTheExtentAreOutside) {
  alignas(8) std::byte bytes[64];
  tenon_adoption behind = adoption_of(bytes + 32, kFloat32, {4});
  behind.extent = bytes;
  behind.extent_nbytes = 16;
  EXPECT_THROW(Array::adopt(behind), Error);
  behind.extent_nbytes = UINT64_MAX;
  EXPECT_THROW(Array::adopt(behind), Error);
}

TEST(Adopt, NothingMayLeaveTheAddressSpace) {
  alignas(8) std::byte bytes[64];
  const int64_t down = -(int64_t{1} << 58);
  EXPECT_THROW(Array::adopt(adoption_of(bytes, kFloat32, {2}, &down)), Error);
  auto* const last = reinterpret_cast<std::byte*>(UINTPTR_MAX - 3);
  EXPECT_THROW(Array::adopt(adoption_of(last, kFloat32, {8})), Error);
  const int64_t apart[] = {int64_t{1} << 62, -(int64_t{1} << 62)};
  EXPECT_THROW(Array::adopt(adoption_of(bytes, DType{TENON_UINT, 8}, {2, 2}, apart)), Error);
}

TEST(Adopt, NegativeStridesCoverTheBytesBelow) {
  alignas(8) std::byte bytes[64];
  const int64_t stride = -1;
  const Ref<Array> a = Array::adopt(adoption_of(bytes + 60, kFloat32, {16}, &stride));
  EXPECT_EQ(a->storage().data(), bytes);
  EXPECT_EQ(a->storage().nbytes(), 64U);
}

TEST(Adopt, OnFailureTheDeleterDoesNotRun) {
  alignas(8) std::byte bytes[64];
  int deaths = 0;
  tenon_adoption a = adoption_of(bytes + 2, kFloat32, {2});
  a.owner = &deaths;
  a.deleter = [](void* owner) { ++*static_cast<int*>(owner); };
  EXPECT_THROW(Array::adopt(a), Error);
  EXPECT_EQ(deaths, 0);
  a.data = bytes;
  (void)Array::adopt(a);
  EXPECT_EQ(deaths, 1);
}

TEST(Alias, FindsKnownMemoryThatAllowsTheAccess) {
  const Ref<Array> a = Array::create(kFloat32, Vector{4});
  const Ref<Array> b = Array::alias(adoption_of(a->data() + 4, kFloat32, {2}));
  ASSERT_TRUE(b);
  EXPECT_EQ(&b->storage(), &a->storage());
  EXPECT_FALSE(Array::alias(adoption_of(a->data() + 8, kFloat32, {3})));
  alignas(8) std::byte bytes[16];
  tenon_adoption readonly = adoption_of(bytes, kFloat32, {4});
  readonly.flags = TENON_READONLY;
  readonly.deleter = [](void*) {};
  const Ref<Array> c = Array::adopt(readonly);
  EXPECT_TRUE(Array::alias(readonly)->is_readonly());
  EXPECT_FALSE(Array::alias(adoption_of(bytes, kFloat32, {4})));
}

TEST(Views, KeepTheStorageAlive) {
  int deaths = 0;
  alignas(8) int32_t data[4] = {1, 2, 3, 4};
  tenon_adoption adoption = adoption_of(data, kInt32, {4});
  adoption.owner = &deaths;
  adoption.deleter = [](void* owner) { ++*static_cast<int*>(owner); };
  Ref<Array> a = Array::adopt(adoption);
  Ref<Array> view = get(get(a, {slice(1, 3)}), {at(1)});
  a = {};
  EXPECT_EQ(deaths, 0);
  EXPECT_EQ(elements_of(*view), (std::vector<int32_t>{3}));
  view = {};
  EXPECT_EQ(deaths, 1);
}

TEST(Index, FollowsThePythonRules) {
  const Ref<Array> a = counting({4, 5});
  EXPECT_EQ(elements_of(*get(a, {at(-1), slice(TENON_OMITTED, TENON_OMITTED, -2)})),
            (std::vector<int32_t>{19, 17, 15}));
  EXPECT_EQ(elements_of(*get(a, {slice(1, 100, 2), at(0)})), (std::vector<int32_t>{5, 15}));
  EXPECT_EQ(elements_of(*get(a, {at(0), slice(-3, -1)})), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(get(a, {at(0), slice(3, 1)})->size(), 0);
  EXPECT_EQ(get(a, {at(0), slice(-100, 2)})->size(), 2);
  EXPECT_EQ(get(a, {at(0), slice(100, -100, -1)})->size(), 5);
  EXPECT_EQ(get(a, {at(0), slice(0, 5, INT64_MAX)})->size(), 1);
  EXPECT_EQ(get(a, {at(0), slice(TENON_OMITTED, TENON_OMITTED, -INT64_MAX)})->size(), 1);
  EXPECT_EQ(to_vector(get(a, {kNewAxis, kEllipsis, kNewAxis, at(2)})->shape()), (Vector{1, 4, 1}));
  EXPECT_EQ(get(a, {at(1), at(2)})->desc().ndim, 0);
}

TEST(Index, ErrorsNameTheNumbers) {
  const Ref<Array> a = counting({4, 5});
  EXPECT_EQ(message_of([&] { get(a, {at(0), at(5)}); }), "index 5 is out of bounds for axis 1 with size 5");
  EXPECT_EQ(message_of([&] { get(a, {at(-5)}); }), "index -5 is out of bounds for axis 0 with size 4");
  EXPECT_NE(message_of([&] { get(a, {at(0), at(0), at(0)}); }).find("2 axes, but 3"), std::string::npos);
  EXPECT_THROW(get(a, {kEllipsis, kEllipsis}), Error);
  EXPECT_THROW(get(a, {slice(0, 1, 0)}), Error);
}

TEST(Reshape, IsAViewWhenStridesAllowIt) {
  const Ref<Array> a = counting({4, 6});
  const Ref<Array> even = get(a, {slice(TENON_OMITTED, TENON_OMITTED, 2)});
  const Ref<Array> b = reshape(*even, Vector{2, 2, -1}, TENON_COPY_NEVER);
  EXPECT_EQ(b->data(), a->data());
  EXPECT_EQ(elements_of(*b), elements_of(*even));
  const Ref<Array> turned = transpose(*a, nullptr);
  EXPECT_THROW(reshape(*turned, Vector{24}, TENON_COPY_NEVER), Error);
  const Ref<Array> copied = reshape(*turned, Vector{24}, TENON_COPY_IF_NEEDED);
  EXPECT_NE(copied->data(), a->data());
  EXPECT_EQ(elements_of(*copied), elements_of(*turned));
  EXPECT_NE(reshape(*a, Vector{24}, TENON_COPY_ALWAYS)->data(), a->data());
}

TEST(Reshape, SizesThatDifferAreErrors) {
  const Ref<Array> a = counting({4, 6});
  EXPECT_EQ(message_of([&] { reshape(*a, Vector{5, -1}, TENON_COPY_IF_NEEDED); }),
            "cannot reshape array of 24 elements, shape (4, 6), into shape (5, -1)");
  EXPECT_THROW(reshape(*a, Vector{-1, -1}, TENON_COPY_IF_NEEDED), Error);
  EXPECT_THROW(reshape(*a, Vector{-2, 12}, TENON_COPY_IF_NEEDED), Error);
  EXPECT_THROW(reshape(*counting({0}), Vector{0, -1}, TENON_COPY_IF_NEEDED), Error);
  EXPECT_EQ(reshape(*counting({0, 3}), Vector{3, 0}, TENON_COPY_NEVER)->size(), 0);
  EXPECT_EQ(reshape(*counting({1}), Vector{}, TENON_COPY_NEVER)->desc().ndim, 0);
  EXPECT_EQ(to_vector(reshape(*counting({6}), Vector{1, 6, 1, 1}, TENON_COPY_NEVER)->shape()),
            (Vector{1, 6, 1, 1}));
}

TEST(Transpose, PermutesAndRefusesAnythingElse) {
  const Ref<Array> a = counting({2, 3, 4});
  const int32_t axes[] = {1, -1, 0};
  EXPECT_EQ(to_vector(transpose(*a, axes)->shape()), (Vector{3, 4, 2}));
  const int32_t twice[] = {0, 0, 1};
  EXPECT_THROW(transpose(*a, twice), Error);
}

TEST(Reinterpret, NamesTheNumbersAndTheWayOut) {
  const Ref<Array> a = Array::create(kUint8, Vector{30});
  EXPECT_EQ(message_of([&] { reinterpret(*a, kFloat32, nullptr, 0); }),
            "last axis of 30 bytes cannot be viewed as float32: 30 is not a multiple of 4");
  const auto advice = [](Array& array, const Dims* shape, uint64_t offset) {
    const std::string text = message_of([&] { reinterpret(array, kFloat32, shape, offset); });
    return text.substr(text.rfind(": ") + 2);
  };
  EXPECT_EQ(advice(*a, nullptr, 6), "use byte offset 4 or 8 and a shape");
  EXPECT_EQ(advice(*Array::create(kUint8, Vector{32}), nullptr, 6), "26 is not a multiple of 4");
  EXPECT_EQ(advice(*get(Array::create(kUint8, Vector{33}), {slice(1, 33)}), nullptr, 0),
            "copy the array first");
  const Vector four{4};
  const Dims shape(four);
  EXPECT_EQ(advice(*a, &shape, 6), "use byte offset 4 or 8");
  EXPECT_EQ(advice(*a, &shape, 13), "use byte offset 12");
  EXPECT_EQ(advice(*get(Array::create(kUint8, Vector{17}), {slice(1, 17)}), &shape, 0),
            "copy the array first");
  EXPECT_NE(
      message_of([&] { reinterpret(*a, kFloat32, &shape, 16); }).find("the largest offset that works is 14"),
      std::string::npos);
  const Ref<Array> b = reinterpret(*a, kFloat32, &shape, 12);
  EXPECT_EQ(b->data(), a->data() + 12);
  EXPECT_THROW(reinterpret(*a, kFloat32, &shape, UINT64_MAX), Error);
}

TEST(Reinterpret, KeepsStridesForElementsOfTheSameSize) {
  const Ref<Array> turned = transpose(*counting({2, 3}), nullptr);
  const Ref<Array> b = reinterpret(*turned, kFloat32, nullptr, 0);
  EXPECT_EQ(to_vector(b->strides()), to_vector(turned->strides()));
  EXPECT_THROW(reinterpret(*turned, kUint8, nullptr, 0), Error);
  EXPECT_EQ(to_vector(reinterpret(*counting({2, 3}), kUint8, nullptr, 0)->shape()), (Vector{2, 12}));
  EXPECT_EQ(to_vector(reinterpret(*counting({2, 4}), DType(TENON_FLOAT, 64), nullptr, 0)->shape()),
            (Vector{2, 2}));
  EXPECT_EQ(to_vector(reinterpret(*Array::create(kUint8, Vector{2, 3}), kFloat4, nullptr, 0)->shape()),
            (Vector{2, 6}));
}

TEST(Broadcast, StretchesAndIsReadOnly) {
  const Ref<Array> a = counting({3, 1});
  const Ref<Array> b = broadcast(*a, Vector{2, 3, 2});
  EXPECT_TRUE(b->is_readonly());
  EXPECT_EQ(elements_of(*b), (std::vector<int32_t>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(message_of([&] { broadcast(*a, Vector{2, 2}); }),
            "cannot broadcast shape (3, 1) to shape (2, 2)");
  EXPECT_THROW(broadcast(*a, Vector{3}), Error);
}

TEST(CopyTo, BroadcastsCastsAndMovesTheVersion) {
  const Ref<Array> source = counting({3});
  const Ref<Array> target = Array::create(kFloat32, Vector{2, 3});
  const uint64_t before = target->storage().region().version();
  copy_to(*source, *target);
  EXPECT_NE(target->storage().region().version(), before);
  const auto* values = reinterpret_cast<const float*>(target->data());
  EXPECT_EQ(std::vector<float>(values, values + 6), (std::vector<float>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(target->storage().region().views().writers, 0U);
}

TEST(CopyTo, OverlapActsAsIfCopiedFirst) {
  const Ref<Array> a = counting({6});
  copy_to(*get(a, {slice(0, 5)}), *get(a, {slice(1, 6)}));
  EXPECT_EQ(elements_of(*a), (std::vector<int32_t>{0, 0, 1, 2, 3, 4}));
  copy_to(*get(a, {slice(TENON_OMITTED, TENON_OMITTED, -1)}), *a);
  EXPECT_EQ(elements_of(*a), (std::vector<int32_t>{4, 3, 2, 1, 0, 0}));
}

TEST(CopyTo, ReadOnlyTargetsAreRefused) {
  const Ref<Array> a = counting({3});
  const Ref<Array> frozen = as_readonly(*a);
  EXPECT_THROW(copy_to(*a, *frozen), Error);
  const int32_t value = 7;
  EXPECT_THROW(fill(*frozen, &value, kInt32), Error);
  fill(*a, &value, kInt32);
  EXPECT_EQ(elements_of(*frozen), (std::vector<int32_t>{7, 7, 7}));
}

TEST(CopyTo, PackedElementsAreCopiedAsTheyAre) {
  const Ref<Array> a = Array::create(kFloat4, Vector{3}, TENON_ZEROED);
  a->data()[0] = std::byte{0x21};
  const Ref<Array> b = copy(*a, kFloat4);
  EXPECT_EQ(b->data()[0], std::byte{0x21});
  EXPECT_THROW(copy(*a, kFloat32), Error);
}

}  // namespace
}  // namespace tenon::impl
