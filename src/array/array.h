// SPDX-License-Identifier: Apache-2.0
//
// An array: a typed, strided window on a storage. Operations that return another window share the storage;
// only copy_to, fill and copy access elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "array/dtype.h"
#include "array/shape.h"
#include "base/error.h"
#include "base/ref.h"
#include "base/trace.h"
#include "memory/storage.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// The layout of an array on a storage. Strides count elements.
struct Layout {
  std::byte* data = nullptr;
  DType dtype;
  tenon_device device{TENON_CPU, 0};
  uint32_t flags = 0;  // TENON_READONLY, TENON_SUBBYTE_PADDED
  Dims shape;
  Dims strides;  // null: those of C order

  bool is_in_c_order() const noexcept { return strides.data() == nullptr; }
};

// Bytes of an array in C order. flags: TENON_SUBBYTE_PADDED. Fails with kValue (negative, too large).
size_t nbytes_of(DType dtype, Dims shape, uint32_t flags);

// Counted, immutable after creation. Shape and strides are behind it in the same allocation.
// Threads: every function may be called from any thread. Access to the elements is ordered by leases, calls
// and views (lease.h, access.h). Invariants: all elements lie inside of the storage; packed sub-byte elements
// are in C order.
class Array {
 public:
  // Requires: the layout's elements lie inside of the storage.
  static Ref<Array> make(Ref<Storage> storage, const Layout& layout);

  // New memory in C order. flags: TENON_ZEROED, TENON_SUBBYTE_PADDED. Fails with kValue, kType, and as
  // Storage::allocate.
  static Ref<Array> create(DType dtype, Dims shape, uint32_t flags = 0, tenon_device device = {TENON_CPU, 0});

  // An array in C order on the first bytes of a storage. Requires: they fit.
  static Ref<Array> over(Ref<Storage> storage, DType dtype, Dims shape, uint32_t flags);

  // An array in C order that has no memory: each use fails with this error.
  static Ref<Array> lost(DType dtype, Dims shape, uint32_t flags, tenon_device device, const Error& why);
  // Why it has no memory; null: it has memory, or that was moved out.
  const Error* why_lost() const noexcept;
  // Fails with why_lost(), for functions that read the memory without a lease.
  void check_memory() const;

  // tenon_array_adopt and tenon_array_alias (may return null). born: as Memory::born. If Tenon knows some of
  // the bytes already, adopt() waits for born.
  static Ref<Array> adopt(const tenon_adoption& adoption, device::Event* born = nullptr);
  static Ref<Array> alias(const tenon_adoption& adoption);
  // alias(), and where that is null adopt(): then *is_adopted is true. The layout is checked once.
  static Ref<Array> alias_or_adopt(const tenon_adoption& adoption, bool* is_adopted);

  const tenon_array_desc& desc() const noexcept { return desc_; }
  std::byte* data() const noexcept { return static_cast<std::byte*>(desc_.data); }
  DType dtype() const noexcept { return desc_.dtype; }
  Dims shape() const noexcept { return {desc_.shape, static_cast<size_t>(desc_.ndim)}; }
  Dims strides() const noexcept { return {desc_.strides, static_cast<size_t>(desc_.ndim)}; }
  int64_t size() const noexcept { return desc_.size; }
  bool is_readonly() const noexcept { return (desc_.flags & TENON_READONLY) != 0; }
  // Each element takes whole bytes: true for all but packed fp4 and fp6.
  bool is_byte_sized() const noexcept { return desc_.itemsize != 0; }
  // The host cannot read or write the elements.
  bool is_on_device() const noexcept { return device::is_device_memory(desc_.device); }
  bool is_contiguous() const noexcept { return is_c_contiguous(shape(), strides()); }
  Storage& storage() const noexcept { return *storage_; }
  // The elements fill the bytes that they span, in any order.
  bool is_dense() const noexcept;
  // The bytes that the elements span; empty for an array without elements.
  Extent extent() const noexcept;
  // The layout of the array, as the base of another one.
  Layout layout() const noexcept;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept;

 private:
  // The layout of an adoption, checked.
  struct Checked;
  static Checked checked(const tenon_adoption& adoption);
  static Ref<Array> adopt(const Checked& described, const tenon_adoption& adoption, device::Event* born);
  static Ref<Array> alias(const Checked& described);

  Array(Ref<Storage> storage, const Layout& layout) noexcept;

  tenon_array_desc desc_;  // first: the C boundary hands out its address
  Ref<Storage> storage_;
  RefCount refs_;
};

// "shape (3, 4) and dtype float32".
void describe(const Array& array, trace::SpanText& text) noexcept;

// Windows: array/views.cc. The failures are those of the functions of the same name in tenon.h.
Ref<Array> index(Array& array, std::span<const tenon_index> indices);
Ref<Array> reshape(Array& array, Dims shape, int32_t copy);
Ref<Array> transpose(Array& array, const int32_t* axes);
Ref<Array> reinterpret(Array& array, DType dtype, const Dims* shape, uint64_t byte_offset);
Ref<Array> broadcast(Array& array, Dims shape);
Ref<Array> as_readonly(Array& array);

// Elements: array/assign.cc.
void copy_to(const Array& src, Array& dst);
// src as copy_to broadcasts it to dst. Fails as that for what can be seen before the copy.
Ref<Array> copy_source(const Array& src, const Array& dst);
void fill(Array& dst, const void* value, DType value_dtype);
Ref<Array> copy(const Array& array, DType dtype);
Ref<Array> copy(const Array& array, DType dtype, tenon_device device);

}  // namespace tenon::impl
