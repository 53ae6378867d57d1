// SPDX-License-Identifier: Apache-2.0
#include "array/array.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "array/device_copy.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

// The range of bytes that elements touch.
struct Bytes {
  std::byte* begin;
  size_t nbytes;
};

uint32_t itemsize_of(DType dtype, uint32_t flags) {
  const bool is_packed = !dtype.is_byte_sized() && (flags & TENON_SUBBYTE_PADDED) == 0;
  return is_packed ? 0 : dtype.padded_itemsize();
}

// The bits of an element in memory, for allocations and overflow checks.
uint32_t bits_in_memory(DType dtype, uint32_t flags) {
  const uint32_t itemsize = itemsize_of(dtype, flags);
  return itemsize == 0 ? dtype.element_bits() : itemsize * 8;
}

// The bytes of elements without gaps.
uint64_t packed_nbytes(int64_t size, DType dtype, uint32_t flags) {
  return (static_cast<uint64_t>(size) * bits_in_memory(dtype, flags) + 7) / 8;
}

void check_device(tenon_device device) {
  switch (device.type) {
    case TENON_CUDA:
      if (device.id >= 0) return;
      throw_error(Code::kValue, "the number of the CUDA device is ", device.id, ": it must be at least 0");
    case TENON_CPU:
    case TENON_CUDA_HOST:
    case TENON_ROCM_HOST:
    case TENON_CUDA_MANAGED: return;
    default:
      throw_error(Code::kBuffer, "memory of device type ", device.type, " (device ", device.id,
                  ") is not supported: copy it to the CPU first");
  }
}

// "shape (2, 3) with strides of (3, 1) elements".
std::string layout_text(const Layout& layout) {
  const DimBuffer c_order = c_strides(layout.shape);
  const Dims strides = layout.is_in_c_order() ? c_order.dims() : layout.strides;
  return concat("shape ", shape_text(layout.shape), " with ", strides_text(strides));
}

// The range of span bytes that begins low bytes from element 0. Fails if it would leave the address space,
// because it could not be compared with other ranges. No memory is at address 0.
[[gnu::hot]] Bytes checked_bytes(const Layout& layout, int64_t low, uint64_t span) {
  const auto data = reinterpret_cast<uintptr_t>(layout.data);
  uintptr_t begin = 0;
  uintptr_t end = 0;
  const bool leaves = __builtin_add_overflow(data, low, &begin) || __builtin_add_overflow(begin, span, &end);
  if (leaves || (begin == 0 && span != 0)) {
    throw_error(Code::kValue, layout_text(layout), " leaves the address space from ",
                address_text(layout.data));
  }
  return {layout.data + low, span};
}

// The bytes that the elements of a valid layout touch.
[[gnu::hot]] Bytes touched(const Layout& layout, int64_t size) {
  const uint32_t itemsize = itemsize_of(layout.dtype, layout.flags);
  if (layout.is_in_c_order() || itemsize == 0) {
    return checked_bytes(layout, 0, packed_nbytes(size, layout.dtype, layout.flags));
  }
  const std::optional<Reach> r = reach(layout.shape, layout.strides, itemsize, itemsize);
  int64_t span = 0;
  if (!r || __builtin_sub_overflow(r->high, r->low, &span)) {
    throw_error(Code::kValue, layout_text(layout), " of ", itemsize, " bytes does not fit in 64 bits");
  }
  return checked_bytes(layout, r->low, static_cast<uint64_t>(span));
}

void check_data(const Layout& layout) {
  if (layout.data == nullptr) {
    throw_error(Code::kValue, "data is NULL for an array of shape ", shape_text(layout.shape));
  }
  const uint32_t alignment = layout.dtype.alignment();
  const auto offset = reinterpret_cast<uintptr_t>(layout.data) & (alignment - 1);  // a power of two
  if (offset != 0) {
    throw_error(Code::kBuffer, "address ", address_text(layout.data), " is not aligned for ",
                layout.dtype.name(), ": it lies ", static_cast<uint64_t>(offset),
                " bytes after a multiple of ", alignment, "; copy the data into aligned memory first");
  }
}

// The checked layout of an adoption, and the number of its elements.
[[gnu::hot]] Layout layout_of(const tenon_adoption& adoption, int64_t* size) {
  Layout layout;
  layout.data = static_cast<std::byte*>(adoption.data);
  layout.dtype = adoption.dtype;
  layout.device = adoption.device;
  layout.flags = adoption.flags;
  check_dtype(layout.dtype);
  check_device(layout.device);
  layout.shape = checked_shape(adoption.ndim, adoption.shape);
  *size = element_count(layout.shape, bits_in_memory(layout.dtype, layout.flags));
  if (adoption.strides != nullptr) layout.strides = {adoption.strides, layout.shape.size()};
  if (*size > 0) check_data(layout);
  if (!layout.is_in_c_order() && itemsize_of(layout.dtype, layout.flags) == 0 &&
      !is_c_contiguous(layout.shape, layout.strides)) {
    throw_error(Code::kBuffer, "packed ", layout.dtype.name(), " elements must lie in C order, and those of ",
                layout_text(layout), " do not");
  }
  return layout;
}

}  // namespace

size_t nbytes_of(DType dtype, Dims shape, uint32_t flags) {
  return packed_nbytes(element_count(shape, bits_in_memory(dtype, flags)), dtype, flags);
}

[[gnu::hot]] Array::Array(Ref<Storage> storage, const Layout& layout) noexcept
    : desc_{}, storage_(std::move(storage)) {
  auto* const dims = reinterpret_cast<int64_t*>(this + 1);
  const size_t ndim = layout.shape.size();
  uint64_t size = 1;  // may wrap only for arrays without elements, and becomes 0 then
  for (size_t i = 0; i < ndim; ++i) {
    dims[i] = layout.shape[i];
    size *= static_cast<uint64_t>(layout.shape[i]);
  }
  if (layout.is_in_c_order()) {
    fill_c_strides(layout.shape, dims + ndim);
  } else {
    std::copy_n(layout.strides.data(), ndim, dims + ndim);
  }
  desc_.struct_size = sizeof desc_;
  desc_.flags = layout.flags & (TENON_READONLY | TENON_SUBBYTE_PADDED);
  desc_.data = layout.data;
  desc_.device = layout.device;
  desc_.ndim = static_cast<int32_t>(ndim);
  desc_.dtype = layout.dtype;
  desc_.shape = dims;
  desc_.strides = dims + ndim;
  desc_.size = static_cast<int64_t>(size);
  desc_.itemsize = itemsize_of(layout.dtype, layout.flags);
  desc_.nbytes = packed_nbytes(desc_.size, layout.dtype, layout.flags);
}

bool Array::is_dense() const noexcept {
  const Extent span = extent();
  return span.end - span.begin == desc_.nbytes;
}

[[gnu::hot]] Extent Array::extent() const noexcept {
  const auto first = reinterpret_cast<uintptr_t>(desc_.data);
  if (!is_byte_sized()) return {first, first + desc_.nbytes};
  // touched() has found that it fits.
  const Reach r = reach(shape(), strides(), desc_.itemsize, desc_.itemsize).value_or(Reach{});
  return {first + static_cast<uintptr_t>(r.low), first + static_cast<uintptr_t>(r.high)};
}

Ref<Array> Array::make(Ref<Storage> storage, const Layout& layout) {
  void* const memory = ::operator new(sizeof(Array) + 2 * layout.shape.size() * sizeof(int64_t));
  return Ref<Array>::adopt(new (memory) Array(std::move(storage), layout));
}

[[gnu::hot]] void Array::release() noexcept {
  if (!refs_.decrement_unlisted()) return;
  this->~Array();
  ::operator delete(this);
}

Layout Array::layout() const noexcept {
  return {data(), dtype(), desc_.device, desc_.flags, shape(), strides()};
}

Ref<Array> Array::create(DType dtype, Dims shape, uint32_t flags, tenon_device device) {
  check_dtype(dtype);
  return over(Storage::allocate(nbytes_of(dtype, shape, flags), (flags & TENON_ZEROED) != 0, device), dtype,
              shape, flags);
}

Ref<Array> Array::over(Ref<Storage> storage, DType dtype, Dims shape, uint32_t flags) {
  Layout layout;
  layout.data = storage->data();
  layout.dtype = dtype;
  layout.device = storage->device();
  layout.flags = flags;
  layout.shape = shape;
  return make(std::move(storage), layout);
}

namespace {

void end_lost(void* why) { delete static_cast<Error*>(why); }

}  // namespace

Ref<Array> Array::lost(DType dtype, Dims shape, uint32_t flags, tenon_device device, const Error& why) {
  auto owned = std::make_unique<Error>(why);
  Ref<Storage> storage = Storage::lost(nbytes_of(dtype, shape, flags), owned.get(), end_lost, device);
  (void)owned.release();
  return over(std::move(storage), dtype, shape, flags);
}

const Error* Array::why_lost() const noexcept {
  return static_cast<const Error*>(storage().owner_with(end_lost));
}

void Array::check_memory() const {
  if (const Error* const why = why_lost()) throw Error(*why);
}

struct Array::Checked {
  Layout layout;
  int64_t size = 0;
  std::byte* begin = nullptr;  // of the bytes that the elements touch
  size_t nbytes = 0;
};

[[gnu::hot]] Array::Checked Array::checked(const tenon_adoption& adoption) {
  Checked result;
  result.layout = layout_of(adoption, &result.size);
  const Bytes bytes = result.size > 0 ? touched(result.layout, result.size) : Bytes{result.layout.data, 0};
  result.begin = bytes.begin;
  result.nbytes = bytes.nbytes;
  return result;
}

[[gnu::hot]] Ref<Array> Array::adopt(const Checked& described, const tenon_adoption& adoption,
                                     device::Event* born) {
  const auto& [layout, size, begin, nbytes] = described;
  Memory memory;
  memory.data = begin;
  memory.nbytes = nbytes;
  memory.extent = adoption.extent != nullptr ? static_cast<std::byte*>(adoption.extent) : begin;
  memory.extent_nbytes = adoption.extent != nullptr ? adoption.extent_nbytes : nbytes;
  memory.is_readonly = (adoption.flags & TENON_READONLY) != 0;
  memory.owner = adoption.owner;
  memory.deleter = adoption.deleter;
  memory.device = layout.device;
  memory.born = born;
  // The queue of known memory has no part for the work that born stands for.
  if (born != nullptr && nbytes != 0 && Storage::is_known(begin, nbytes)) wait_for_producer(*born);
  if (size == 0) {
    memory.extent = memory.data;
    memory.extent_nbytes = 0;
  } else if (begin < memory.extent || nbytes > memory.extent_nbytes ||
             static_cast<size_t>(begin - memory.extent) > memory.extent_nbytes - nbytes ||
             memory.extent_nbytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(memory.extent)) {
    throw_error(Code::kValue, layout_text(layout), " touches ", nbytes, " bytes from ", address_text(begin),
                ", outside of the ", memory.extent_nbytes, " bytes at ", address_text(memory.extent));
  }
  // Allocates the object first: after the storage has the deleter, nothing may fail.
  void* const block = ::operator new(sizeof(Array) + 2 * layout.shape.size() * sizeof(int64_t));
  try {
    return Ref<Array>::adopt(new (block) Array(Storage::adopt(memory), layout));
  } catch (...) {
    ::operator delete(block);
    throw;
  }
}

[[gnu::hot]] Ref<Array> Array::alias(const Checked& described) {
  const auto& [layout, size, begin, nbytes] = described;
  if (size == 0) return {};
  const Access access = (layout.flags & TENON_READONLY) != 0 ? Access::kRead : Access::kWrite;
  Ref<Storage> storage = Storage::find(begin, nbytes, access);
  if (!storage) return {};
  return make(std::move(storage), layout);
}

[[gnu::hot]] Ref<Array> Array::adopt(const tenon_adoption& adoption, device::Event* born) {
  return adopt(checked(adoption), adoption, born);
}

Ref<Array> Array::alias(const tenon_adoption& adoption) { return alias(checked(adoption)); }

[[gnu::hot]] Ref<Array> Array::alias_or_adopt(const tenon_adoption& adoption, bool* is_adopted) {
  const Checked described = checked(adoption);
  Ref<Array> known = alias(described);
  *is_adopted = !known;
  return known ? std::move(known) : adopt(described, adoption, nullptr);
}

void describe(const Array& array, trace::SpanText& text) noexcept {
  try {
    text << "shape " << shape_text(array.shape()) << " and dtype " << array.dtype().name();
    if (array.is_on_device()) text << " on " << device::text_of(array.desc().device);
  } catch (const std::bad_alloc&) {
    text << "unknown shape";
  }
}

}  // namespace tenon::impl
