// SPDX-License-Identifier: Apache-2.0
//
// Calls that access elements: copy_to, fill and copy. They check, broadcast, hold both arrays meanwhile, and
// call the loops of array/elements.h.
#include <algorithm>
#include <cstring>
#include <vector>

#include "array/access.h"
#include "array/array.h"
#include "array/device_copy.h"
#include "array/elements.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

// The description of an array for the loops, during one call.
class Window {
 public:
  explicit Window(const Array& array) : array_(array) {
    for (int64_t stride : array.strides())
      byte_strides_.push(stride * static_cast<int64_t>(array.desc().itemsize));
  }
  Elements elements() const {
    return {array_.data(), array_.dtype(), array_.desc().ndim, array_.desc().shape,
            byte_strides_.values.data()};
  }

 private:
  const Array& array_;
  DimBuffer byte_strides_;
};

void check_writable(const Array& dst) {
  if (dst.is_readonly()) {
    throw_error(Code::kBuffer, "the array of shape ", shape_text(dst.shape()),
                " is read-only: ", kHowToWrite);
  }
}

[[noreturn]] void throw_no_cast(DType from, DType to) {
  throw_error(Code::kType, "cannot cast ", from.name(), " to ", to.name());
}

// Packed elements have no strides, so the bytes are copied.
void check_packed(const Array& src, const Array& dst) {
  if (src.dtype() != dst.dtype() || src.desc().itemsize != dst.desc().itemsize) {
    throw_no_cast(src.dtype(), dst.dtype());
  }
  if (!std::ranges::equal(src.shape(), dst.shape())) {
    throw_error(Code::kValue, "packed ", src.dtype().name(), " elements do not broadcast: shape ",
                shape_text(src.shape()), " differs from ", shape_text(dst.shape()));
  }
}

void copy_packed(const Array& src, Array& dst) {
  check_packed(src, dst);
  if (src.is_on_device() || dst.is_on_device()) return copy_with_device(src, dst);
  if (src.size() > 0) std::memmove(dst.data(), src.data(), src.desc().nbytes);
}

// The source without leading axes of length 1 that dst does not have. Assignments of NumPy drop them, too.
Ref<Array> without_surplus_axes(const Array& src, const Array& dst) {
  const auto source = Ref<Array>::share(&const_cast<Array&>(src));
  const int32_t surplus = src.desc().ndim - dst.desc().ndim;
  if (surplus <= 0) return source;
  const Dims leading = src.shape().first(static_cast<size_t>(surplus));
  if (std::ranges::any_of(leading, [](int64_t extent) { return extent != 1; })) return source;
  return reshape(*source, src.shape().subspan(leading.size()), TENON_COPY_NEVER);
}

void fill_with_cast(const Array& dst, const void* value, DType value_dtype) {
  std::vector<std::byte> element(dst.desc().itemsize);
  fill_elements({element.data(), dst.dtype(), 0, nullptr, nullptr}, value, value_dtype);
  fill_on_device(dst, element.data());
}

}  // namespace

Ref<Array> copy_source(const Array& src, const Array& dst) {
  check_writable(dst);
  if (src.is_byte_sized() && dst.is_byte_sized()) {
    if (!can_cast(src.dtype(), dst.dtype())) throw_no_cast(src.dtype(), dst.dtype());
    return broadcast(*without_surplus_axes(src, dst), dst.shape());
  }
  check_packed(src, dst);
  return Ref<Array>::share(&const_cast<Array&>(src));
}

void copy_to(const Array& src, Array& dst) {
  check_writable(dst);
  const HostCall call("copyto", {{src, Access::kRead}, {dst, Access::kWrite, dst.is_dense()}});
  if (!src.is_byte_sized() || !dst.is_byte_sized()) return copy_packed(src, dst);
  if (!can_cast(src.dtype(), dst.dtype())) throw_no_cast(src.dtype(), dst.dtype());
  const Ref<Array> source = broadcast(*without_surplus_axes(src, dst), dst.shape());
  if (dst.size() == 0) return;
  if (src.is_on_device() || dst.is_on_device()) return copy_with_device(*source, dst);
  copy_elements(Window(dst).elements(), Window(*source).elements());
}

void fill(Array& dst, const void* value, DType value_dtype) {
  check_writable(dst);
  check_dtype(value_dtype);
  const HostCall call("fill", {{dst, Access::kWrite, dst.is_dense()}});
  if (!dst.is_byte_sized()) {
    throw_error(Code::kType, "packed ", dst.dtype().name(),
                " elements cannot be filled: fill the bytes through a uint8 view");
  }
  if (!can_cast(value_dtype, dst.dtype())) throw_no_cast(value_dtype, dst.dtype());
  if (dst.size() == 0) return;
  if (dst.is_on_device()) return fill_with_cast(dst, value, value_dtype);
  fill_elements(Window(dst).elements(), value, value_dtype);
}

Ref<Array> copy(const Array& array, DType dtype) {
  // Copies of pinned and managed memory are plain memory.
  return copy(array, dtype, array.is_on_device() ? array.desc().device : tenon_device{TENON_CPU, 0});
}

Ref<Array> copy(const Array& array, DType dtype, tenon_device device) {
  const uint32_t padded = dtype == array.dtype() ? array.desc().flags & TENON_SUBBYTE_PADDED : 0;
  Ref<Array> result = Array::create(dtype, array.shape(), padded, device);
  copy_to(array, *result);
  return result;
}

}  // namespace tenon::impl
