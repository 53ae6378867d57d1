// SPDX-License-Identifier: Apache-2.0
//
// Windows of any shape and strides, against one element after the other. What a cast does to a value is
// the business of elements_cast_test.cc; here single elements are trusted.
#include "array/elements.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "array/elements_select.h"
#include "base/error.h"
#include "base/repeats_testing.h"

namespace tenon::impl {
namespace {

using Bytes = std::vector<std::byte>;

constexpr StreamFrom kAlwaysStreamed{0, 0};
constexpr StreamFrom kNeverStreamed{INT64_MAX, INT64_MAX};

// A strided window on bytes that others own.
struct Window {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in bytes
  int64_t offset = 0;            // of element 0

  Elements on(std::byte* memory) const {
    return {memory + offset, dtype, static_cast<int32_t>(shape.size()), shape.data(), strides.data()};
  }

  int64_t size() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }

  // The offset of each element, in C order.
  std::vector<int64_t> offsets() const {
    std::vector<int64_t> all;
    std::vector<int64_t> index(shape.size());
    for (int64_t n = size(); n > 0; --n) {
      int64_t at = offset;
      for (size_t k = 0; k < shape.size(); ++k) at += index[k] * strides[k];
      all.push_back(at);
      for (size_t k = shape.size(); k-- > 0;) {
        if (++index[k] < shape[k]) break;
        index[k] = 0;
      }
    }
    return all;
  }

  std::string text() const {
    return concat(dtype.name(), " ", shape_text(shape), " strides ", shape_text(strides), " offset ", offset);
  }
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  template <class T>
  const T& of(const std::vector<T>& items) {
    return items[static_cast<size_t>(below(static_cast<int64_t>(items.size())))];
  }
  Bytes bytes(int64_t n) {
    Bytes result(static_cast<size_t>(n));
    size_t k = 0;
    for (; k + 8 <= result.size(); k += 8) {
      const uint64_t word = engine_();
      std::memcpy(&result[k], &word, 8);
    }
    for (; k < result.size(); ++k) result[k] = static_cast<std::byte>(engine_());
    return result;
  }

  std::vector<int64_t> shape() {
    static const std::vector<int64_t> kSizes{0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 64, 65, 130, 700};
    std::vector<int64_t> result(static_cast<size_t>(below(6)));
    int64_t product = 1;
    for (int64_t& n : result) {
      n = one_in(30) ? 0 : kSizes[static_cast<size_t>(1 + below(15))];
      if (n * product > 6000) n = 1 + below(3);
      product *= std::max<int64_t>(n, 1);
    }
    return result;
  }

  // Axes in any order in memory, with gaps, backwards, and (sources only) of stride zero. nbytes gets
  // the bytes that the window lies in.
  Window window(DType dtype, const std::vector<int64_t>& shape, bool may_repeat, int64_t& nbytes) {
    int64_t dense_nbytes = dtype.padded_itemsize();
    for (int64_t n : shape) dense_nbytes *= std::max<int64_t>(n, 1);
    for (;;) {
      const Window result = any_window(dtype, shape, may_repeat, nbytes);
      if (nbytes <= 8 * dense_nbytes) return result;
    }
  }

 private:
  Window any_window(DType dtype, const std::vector<int64_t>& shape, bool may_repeat, int64_t& nbytes) {
    Window result{dtype, shape, std::vector<int64_t>(shape.size())};
    std::vector<size_t> order(shape.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (!one_in(3)) std::shuffle(order.begin(), order.end(), engine_);
    const bool is_dense = one_in(3);
    int64_t stride = dtype.padded_itemsize();
    result.offset = one_in(2) ? 0 : below(3) * stride;
    for (size_t k = order.size(); k-- > 0;) {
      const size_t axis = order[k];
      if (may_repeat && one_in(6)) continue;
      const int64_t n = std::max<int64_t>(shape[axis], 1);
      if (!is_dense && one_in(2)) stride *= 1 + below(4);
      result.strides[axis] = stride;
      if (!is_dense && one_in(4)) {
        result.offset += (n - 1) * stride;
        result.strides[axis] = -stride;
      }
      stride *= n;
      if (!is_dense && one_in(3)) stride += below(5) * dtype.padded_itemsize();
    }
    nbytes = result.offset + stride + dtype.padded_itemsize();
    return result;
  }

  std::mt19937_64 engine_;
};

const std::vector<DType> kMovedOnly{
    {TENON_UINT, 8, 3},       {TENON_FLOAT, 32, 3},    {TENON_FLOAT4_E2M1FN, 4},    {TENON_UINT, 16, 5},
    {TENON_FLOAT, 64, 4},     {TENON_COMPLEX, 128, 3}, {TENON_FLOAT4_E2M1FN, 4, 2}, {TENON_UINT, 8, 16},
    {TENON_FLOAT6_E3M2FN, 6}, {TENON_UINT, 8, 33},     {TENON_FLOAT6_E2M3FN, 6, 4},
};

const std::vector<DType> kCastable{
    {TENON_BOOL, 8},   {TENON_INT, 8},           {TENON_UINT, 8},     {TENON_INT, 16},      {TENON_INT, 32},
    {TENON_INT, 64},   {TENON_UINT, 64},         {TENON_FLOAT, 16},   {TENON_BFLOAT, 16},   {TENON_FLOAT, 32},
    {TENON_FLOAT, 64}, {TENON_FLOAT8_E4M3FN, 8}, {TENON_COMPLEX, 64}, {TENON_COMPLEX, 128},
};

// One element after the other, from a snapshot of the source's bytes.
void copy_one_by_one(const Window& dst, std::byte* dst_memory, const Window& src, Bytes src_bytes) {
  const std::vector<int64_t> to = dst.offsets();
  const std::vector<int64_t> from = src.offsets();
  for (size_t k = 0; k < to.size(); ++k) {
    std::byte* element = &src_bytes[static_cast<size_t>(from[k])];
    if (dst.dtype == src.dtype) {
      std::memcpy(dst_memory + to[k], element, dst.dtype.padded_itemsize());
    } else {
      copy_elements(*available_kernels().front(), kNeverStreamed,
                    {dst_memory + to[k], dst.dtype, 0, nullptr, nullptr},
                    {element, src.dtype, 0, nullptr, nullptr});
    }
  }
}

std::pair<DType, DType> some_dtypes(Random& random) {
  if (random.one_in(4)) {
    const DType dtype = random.of(kMovedOnly);
    return {dtype, dtype};
  }
  const DType to = random.of(kCastable);
  return {to, random.one_in(2) ? to : random.of(kCastable)};
}

TEST(Elements, WindowsOfAnyStridesAreCopiedElementByElement) {
  Random random(20240601);
  for (int round = 0, n = repeats(50000, 2500); round < n; ++round) {
    const auto [to, from] = some_dtypes(random);
    const std::vector<int64_t> shape = random.shape();
    int64_t dst_nbytes = 0;
    int64_t src_nbytes = 0;
    const Window dst = random.window(to, shape, false, dst_nbytes);
    const Window src = random.window(from, shape, true, src_nbytes);
    Bytes src_bytes = random.bytes(src_nbytes);
    Bytes dst_bytes = random.bytes(dst_nbytes);
    Bytes expected = dst_bytes;
    copy_one_by_one(dst, expected.data(), src, src_bytes);
    const Kernels& kernels = *available_kernels()[static_cast<size_t>(round) % available_kernels().size()];
    const StreamFrom limits = random.one_in(2) ? kAlwaysStreamed : kNeverStreamed;
    copy_elements(kernels, limits, dst.on(dst_bytes.data()), src.on(src_bytes.data()));
    ASSERT_EQ(dst_bytes, expected) << "round " << round << ", " << kernels.name << ", "
                                   << (limits.rows == 0 ? "streamed" : "not streamed") << ": " << dst.text()
                                   << " from " << src.text();
  }
}

TEST(Elements, OverlappingWindowsBehaveAsIfTheSourceHadBeenCopiedFirst) {
  Random random(20240602);
  for (int round = 0, n = repeats(50000, 2500); round < n; ++round) {
    const auto [to, from] = some_dtypes(random);
    const std::vector<int64_t> shape = random.shape();
    int64_t dst_nbytes = 0;
    int64_t src_nbytes = 0;
    Window dst = random.window(to, shape, false, dst_nbytes);
    Window src = random.window(from, shape, true, src_nbytes);
    if (to == from && random.one_in(3)) {
      src = dst;
      src_nbytes = dst_nbytes;
    }
    // Shifted against each other by few or many bytes.
    int64_t& shifted = random.one_in(2) ? dst.offset : src.offset;
    shifted += random.below(random.one_in(2) ? 40 : std::max<int64_t>(std::min(dst_nbytes, src_nbytes), 1));
    Bytes bytes = random.bytes(2 * std::max(dst_nbytes, src_nbytes) + 64);
    Bytes expected = bytes;
    copy_one_by_one(dst, expected.data(), src, bytes);
    const Kernels& kernels = *available_kernels()[static_cast<size_t>(round) % available_kernels().size()];
    copy_elements(kernels, random.one_in(2) ? kAlwaysStreamed : kNeverStreamed, dst.on(bytes.data()),
                  src.on(bytes.data()));
    ASSERT_EQ(bytes, expected) << "round " << round << ", " << kernels.name << ": " << dst.text() << " from "
                               << src.text();
  }
}

TEST(Elements, FillWritesTheValueToEveryElementAndNothingElse) {
  Random random(20240603);
  for (int round = 0, n = repeats(20000, 1000); round < n; ++round) {
    const auto [to, from] = some_dtypes(random);
    int64_t nbytes = 0;
    const Window dst = random.window(to, random.shape(), false, nbytes);
    const Window value{from, dst.shape, std::vector<int64_t>(dst.shape.size()), 1};  // not aligned
    Bytes value_bytes = random.bytes(from.padded_itemsize() + 1);
    Bytes bytes = random.bytes(nbytes);
    Bytes expected = bytes;
    copy_one_by_one(dst, expected.data(), value, value_bytes);
    fill_elements(dst.on(bytes.data()), value_bytes.data() + value.offset, from);
    ASSERT_EQ(bytes, expected) << "round " << round << ": " << dst.text() << " filled with " << from.name();
  }
}

TEST(Elements, TheValueOfAFillMayLieInTheWindow) {
  for (DType dtype : {DType(TENON_UINT, 8), DType(TENON_FLOAT, 32), DType(TENON_FLOAT, 32, 3)}) {
    Random random(5);
    const int64_t stride = dtype.padded_itemsize();
    const Window dst{dtype, {100}, {stride}};
    Bytes bytes = random.bytes(100 * stride);
    Bytes expected;
    for (int k = 0; k < 100; ++k)
      expected.insert(expected.end(), &bytes[50 * size_t(stride)], &bytes[51 * size_t(stride)]);
    fill_elements(dst.on(bytes.data()), &bytes[50 * static_cast<size_t>(stride)], dtype);
    EXPECT_EQ(bytes, expected) << dtype.name();
  }
}

// Whole tiles, their edges and their alignment: sides around the side of a tile, in every position
// relative to a cache line.
TEST(Elements, TransposesOfEverySizeAndAlignmentAreExact) {
  Random random(20240604);
  const DType dtypes[] = {
      {TENON_UINT, 8}, {TENON_UINT, 16}, {TENON_FLOAT, 32}, {TENON_FLOAT, 64}, {TENON_COMPLEX, 128}};
  for (int round = 0; round < 400; ++round) {
    const DType from = dtypes[random.below(5)];
    const DType to = random.one_in(3) ? DType(TENON_FLOAT, 32) : from;
    const int64_t rows = random.one_in(2) ? 1 + random.below(300) : 64 * (1 + random.below(3));
    const int64_t columns = random.one_in(2) ? 1 + random.below(300) : 64 * (1 + random.below(3));
    const int64_t to_width = to.padded_itemsize();
    const int64_t from_width = from.padded_itemsize();
    const int64_t padding = random.one_in(3) ? random.below(70) : 0;
    const Window dst{
        to, {rows, columns}, {(columns + padding) * to_width, to_width}, random.below(64) * to_width};
    const Window src{
        from, {rows, columns}, {from_width, (rows + padding) * from_width}, random.below(64) * from_width};
    Bytes src_bytes = random.bytes(src.offset + columns * (rows + padding) * from_width);
    Bytes dst_bytes = random.bytes(dst.offset + rows * (columns + padding) * to_width);
    Bytes expected = dst_bytes;
    copy_one_by_one(dst, expected.data(), src, src_bytes);
    const Kernels& kernels = *available_kernels()[static_cast<size_t>(round) % available_kernels().size()];
    copy_elements(kernels, random.one_in(2) ? kAlwaysStreamed : kNeverStreamed, dst.on(dst_bytes.data()),
                  src.on(src_bytes.data()));
    ASSERT_EQ(dst_bytes, expected) << "round " << round << ", " << kernels.name << ": " << dst.text()
                                   << " from " << src.text();
  }
}

TEST(Elements, SizesBeyondTheStreamLimitsAreExact) {
  Random random(6);
  constexpr int64_t kSide = 2600;  // 26 MiB of float32
  const DType dtype(TENON_FLOAT, 32);
  std::vector<uint32_t> src(kSide * kSide);
  std::iota(src.begin(), src.end(), 0u);
  std::vector<uint32_t> dst(src.size());
  auto* src_bytes = reinterpret_cast<std::byte*>(src.data());
  auto* dst_bytes = reinterpret_cast<std::byte*>(dst.data());
  const Window plain{dtype, {kSide, kSide}, {4 * kSide, 4}};
  const Window transposed{dtype, {kSide, kSide}, {4, 4 * kSide}};
  copy_elements(plain.on(dst_bytes), plain.on(src_bytes));
  EXPECT_EQ(dst, src);
  copy_elements(plain.on(dst_bytes), transposed.on(src_bytes));
  for (int64_t row = 0; row < kSide; ++row) {
    for (int64_t column = 0; column < kSide; ++column) {
      ASSERT_EQ(dst[size_t(row * kSide + column)], src[size_t(column * kSide + row)])
          << row << ", " << column;
    }
  }
}

TEST(Elements, AsManyAxesAsThereCanBe) {
  const std::vector<int64_t> ones(TENON_MAX_NDIM, 1);
  Window src_window{DType(TENON_COMPLEX, 64), ones, ones};
  Window dst_window{DType(TENON_COMPLEX, 128), ones, ones};
  for (size_t k = 0; k < 10; ++k) {
    src_window.shape[40 + k] = dst_window.shape[40 + k] = 2;
    src_window.strides[40 + k] = 8 << k;
    dst_window.strides[40 + k] = 16 << (9 - k);
  }
  Random random(8);
  Bytes src = random.bytes(16 << 10);
  Bytes dst(16 << 10);
  Bytes expected = dst;
  copy_one_by_one(dst_window, expected.data(), src_window, src);
  copy_elements(dst_window.on(dst.data()), src_window.on(src.data()));
  EXPECT_EQ(dst, expected);
}

TEST(Elements, EmptyWindowsTouchNoAddress) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{0}, {3, 0, 2}, {0, 0}}) {
    const Window window{DType(TENON_FLOAT, 32), shape, std::vector<int64_t>(shape.size(), 4)};
    const float value = 1;
    copy_elements(window.on(nullptr), window.on(nullptr));
    fill_elements(window.on(nullptr), &value, DType(TENON_FLOAT, 32));
  }
}

}  // namespace
}  // namespace tenon::impl
