// SPDX-License-Identifier: Apache-2.0
//
// The C++ layer as a user sees it: handles are values, owners end once, typed views check what they are.
#include "tenon/tenon.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace {

using tenon::Array;
using tenon::dtype_of;
using tenon::Error;
using tenon::Memory;

// What the call threw; TENON_OK when nothing.
template <class Body>
tenon_status status_of(Body&& body) {
  try {
    body();
  } catch (const tenon::Error& error) {
    EXPECT_NE(std::string(error.what()), "");
    return error.code();
  }
  return TENON_OK;
}

Array counted() {
  std::vector<float> elements(12);
  std::iota(elements.begin(), elements.end(), 0.0F);
  return Array::adopt(std::move(elements), {3, 4});
}

// Counts the ends of owners.
struct Owner {
  explicit Owner(int* count) : ends(count) {}
  Owner(Owner&& other) noexcept : ends(std::exchange(other.ends, nullptr)) {}
  Owner(const Owner&) = delete;
  ~Owner() {
    if (ends != nullptr) ++*ends;
  }
  int* ends;
};

TEST(DType, IsFoundByTypeAndByName) {
  static_assert(dtype_of<const int32_t>() == tenon::DType(tenon_dtype{TENON_INT, 32, 1}));
  EXPECT_EQ(dtype_of<float>(), tenon::DType("float32"));
  EXPECT_EQ(dtype_of<uint8_t>(), tenon::DType("u1"));
  EXPECT_EQ(dtype_of<bool>(), tenon::DType("bool"));
  EXPECT_EQ(dtype_of<std::complex<double>>().name(), "complex128");
  EXPECT_EQ(status_of([] { tenon::DType("float31"); }), TENON_ERR_TYPE);
}

TEST(Array, IsAValueThatCountsItsHandle) {
  int ends = 0;
  float memory[4] = {};
  Array a = Array::adopt(memory, {4}, Owner(&ends));
  Array b = a;
  Array c = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(b.get(), c.get());
  b = Array();
  EXPECT_EQ(ends, 0);
  c = c;  // NOLINT
  EXPECT_EQ(ends, 0);
  tenon_array* const handle = c.detach();
  const Array d = Array::share(handle);
  c = Array::steal(handle);
  EXPECT_EQ(d.get(), handle);
  c = Array();
  EXPECT_EQ(ends, 0);
  EXPECT_EQ(d.data(), memory);
}

TEST(Array, EndsItsOwnerWithTheLastWindow) {
  int ends = 0;
  float memory[6] = {};
  Array row;
  {
    const Array a = Array::adopt(memory, {2, 3}, Owner(&ends));
    row = a.index({1});
  }
  EXPECT_EQ(ends, 0);
  row = Array();
  EXPECT_EQ(ends, 1);
}

TEST(Array, TakesOwnersOfAllKinds) {
  auto shared = std::make_shared<std::array<int, 4>>();
  Array a = Array::adopt(shared->data(), {4}, std::shared_ptr(shared));
  EXPECT_EQ(shared.use_count(), 2);
  a = Array();
  EXPECT_EQ(shared.use_count(), 1);
  auto unique = std::make_unique<double[]>(4);
  double* const data = unique.get();
  const Array b = Array::adopt(data, {2, 2}, std::move(unique));
  EXPECT_EQ(b.data(), data);
  std::vector<int64_t> elements{1, 2, 3};
  const int64_t* const first = elements.data();
  const Array c = Array::adopt(std::move(elements));
  EXPECT_EQ(c.data(), first);
  EXPECT_EQ(c.size(), 3);
}

TEST(Array, LeavesTheOwnerAloneWhenAdoptionFails) {
  int ends = 0;
  float memory[4] = {};
  EXPECT_EQ(status_of([&] { Array::adopt(memory, {-1}, Owner(&ends)); }), TENON_ERR_VALUE);
  EXPECT_EQ(ends, 1) << "the owner was moved in and ends with the call";
  EXPECT_EQ(status_of([] { Array::adopt(std::vector<float>(3), {4}); }), TENON_ERR_VALUE);
}

TEST(Array, OfConstElementsIsReadOnly) {
  static const float memory[4] = {1, 2, 3, 4};
  const Array a = Array::borrow(memory, {4});
  EXPECT_TRUE(a.is_readonly());
  EXPECT_EQ(status_of([&] { a.fill(1.0F); }), TENON_ERR_BUFFER);
  EXPECT_EQ(status_of([&] { (void)a.as<float, 1>(); }), TENON_ERR_BUFFER);
  EXPECT_EQ((a.as<const float, 1>()(3)), 4);
  EXPECT_TRUE(counted().readonly().is_readonly());
}

TEST(Array, GivesWindowsOnTheSameMemory) {
  const Array a = counted();
  EXPECT_EQ((a.index({1, 2}).as<float, 0>()()), 6);
  EXPECT_EQ((a.index({tenon::ellipsis, 3}).as<float, 1>()(2)), 11);
  EXPECT_EQ(a.index({tenon::new_axis, tenon::slice(2, TENON_OMITTED, -1)}).ndim(), 3);
  EXPECT_EQ((a.slice(1, 1, TENON_OMITTED, 2).as<float, 2>()(0, 1)), 3);
  EXPECT_EQ((a.transpose().as<float, 2>()(3, 1)), 7);
  const std::array<int32_t, 2> axes{1, 0};
  EXPECT_EQ(a.transpose(axes).shape()[0], 4);
  EXPECT_EQ(a.reshape({2, -1}).shape()[1], 6);
  EXPECT_EQ(a.reinterpret("uint8").shape()[1], 16);
  EXPECT_EQ(a.reinterpret("int16", {4}, 8).data(), static_cast<char*>(a.data()) + 8);
  EXPECT_EQ(a.index({0}).broadcast({5, 4}).strides()[0], 0);
}

TEST(Array, ReportsWhatCannotBe) {
  const Array a = counted();
  EXPECT_EQ(status_of([&] { (void)a.index({3}); }), TENON_ERR_INDEX);
  EXPECT_EQ(status_of([&] { (void)a.slice(2, 0, 1); }), TENON_ERR_INDEX);
  EXPECT_EQ(status_of([&] { (void)a.reshape({5}); }), TENON_ERR_VALUE);
  EXPECT_EQ(status_of([&] { (void)a.transpose().reshape({12}); }), TENON_ERR_VALUE);
  EXPECT_EQ(status_of([&] { (void)a.transpose(std::array<int32_t, 1>{0}); }), TENON_ERR_VALUE);
  EXPECT_EQ(status_of([&] { (void)a.reinterpret("int64", {3}, 4); }), TENON_ERR_VALUE);
  EXPECT_EQ(status_of([&] { (void)Array::empty({-1}); }), TENON_ERR_VALUE);
}

TEST(Array, CopiesAndFillsElements) {
  const Array a = counted();
  const Array b = a.transpose().copy("int32");
  EXPECT_EQ((b.as<int32_t, 2>()(3, 2)), 11);
  b.fill(int64_t{7});
  b.transpose().copy_to(a);
  EXPECT_EQ((a.as<float, 2>()(1, 1)), 7);
  EXPECT_EQ((Array::zeros<double>({2}).as<double, 1>()(1)), 0);
  EXPECT_TRUE(a.transpose().reshape({12}, tenon::Copy::kIfNeeded).is_contiguous());
}

TEST(Array, GivesItsMemoryAwayOrUsesItOutsideOfTheContract) {
  const Array a = Array::zeros<float>({4});
  {
    const Array free = a.unchecked();
    EXPECT_EQ(free.data(), a.data());
    EXPECT_THROW((void)a.move_out(), Error) << "somebody may use it at any time";
  }
  EXPECT_NE(a.renewed().data(), a.data());
  EXPECT_EQ(a.moved_at(), nullptr);
  {
    const Memory memory = a.move_out("here:1");
    EXPECT_EQ(memory.nbytes(), 16U);
    EXPECT_FALSE(memory.is_readonly());
    EXPECT_STREQ(a.moved_at(), "here:1");
    static_cast<float*>(memory.data())[3] = 1;
  }
  try {
    (void)a.as<float, 1>();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), TENON_ERR_MOVED);
  }
}

TEST(View, ChecksDTypeAndAxes) {
  const Array a = counted();
  EXPECT_EQ(status_of([&] { (void)a.as<double, 2>(); }), TENON_ERR_TYPE);
  EXPECT_EQ(status_of([&] { (void)a.as<float, 1>(); }), TENON_ERR_VALUE);
  EXPECT_EQ(a.views().writers, 0U);
}

TEST(View, IsCheckedWhenAskedTo) {
  const Array a = counted();
  const auto checked = a.as<float, 2, true>();
  EXPECT_EQ(checked(2, 3), 11);
  EXPECT_EQ(status_of([&] { (void)checked(3, 0); }), TENON_ERR_INDEX);
  EXPECT_EQ(status_of([&] { (void)checked(0, -1); }), TENON_ERR_INDEX);
  static_assert(noexcept(std::declval<tenon::View<float, 2, false>&>()(0, 0)));
}

TEST(View, IsCountedWhileItLives) {
  const Array a = counted();
  {
    const auto writer = a.as<float, 2>();
    const auto reader = a.index({0}).as<const float, 1>();
    EXPECT_EQ(a.views().writers, 1U);
    EXPECT_EQ(a.views().readers, 1U);
    writer(0, 1) = 5;
    EXPECT_EQ(reader(1), 5);
  }
  EXPECT_EQ(a.views().writers + a.views().readers, 0U);
}

TEST(View, KeepsTheMemory) {
  int ends = 0;
  float memory[4] = {};
  {
    const auto view = Array::adopt(memory, {4}, Owner(&ends)).as<float, 1>();
    EXPECT_EQ(ends, 0);
    view(0) = 1;
  }
  EXPECT_EQ(ends, 1);
}

TEST(View, IsASpanWhenContiguous) {
  const Array a = counted();
  float sum = 0;
  for (const float x : a.as<const float, 2>().span()) sum += x;
  EXPECT_EQ(sum, 66);
  EXPECT_EQ(status_of([&] { (void)a.transpose().as<float, 2>().span(); }), TENON_ERR_VALUE);
  EXPECT_EQ((a.as<float, 2>().stride(0)), 4);
  EXPECT_EQ((a.as<float, 2>().shape(1)), 4);
}

TEST(HostView, ClosesOnce) {
  const Array a = counted();
  tenon::HostView view(a, tenon::Access::kWrite);
  EXPECT_EQ(a.views().writers, 1U);
  view.close();
  view.close();
  EXPECT_EQ(a.views().writers, 0U);
}

TEST(DLPack, GoesBothWays) {
  const Array a = counted();
  const Array b = Array::from_dlpack(a.to_dlpack());
  EXPECT_EQ(b.data(), a.data());
  const Array c = Array::from_dlpack(a.to_dlpack_legacy());
  EXPECT_EQ(c.data(), a.data());
  EXPECT_TRUE(Array::from_dlpack(a.readonly().to_dlpack()).is_readonly());
  EXPECT_EQ(status_of([&] { (void)a.readonly().to_dlpack_legacy(); }), TENON_ERR_BUFFER);
  EXPECT_EQ(a.views().writers + a.views().readers, 0U);
}

TEST(Device, HasANameAndIsTheCpuByDefault) {
  EXPECT_EQ(tenon::Device("cuda").name(), "cuda:0");
  EXPECT_EQ(status_of([] { (void)tenon::Device("gpu"); }), TENON_ERR_VALUE);
  const Array a = counted();
  EXPECT_EQ(a.device(), tenon::Device());
  const Array b = a.to("cpu");
  EXPECT_EQ(b.device().name(), "cpu");
  EXPECT_NE(b.data(), a.data());
}

}  // namespace
