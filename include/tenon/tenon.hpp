// SPDX-License-Identifier: Apache-2.0
//
// tenon.hpp - a C++20 wrapper of the C ABI (tenon.h): reference-counted handles, exceptions, typed views.
// Header-only. Every function calls tenon_* functions, so programs built with different compilers can share
// arrays through one libtenon.
//
// Copying an Array copies a handle, never elements. Functions throw tenon::Error.
#ifndef TENON_TENON_HPP_
#define TENON_TENON_HPP_

#if __cplusplus < 202002L
#error "tenon.hpp needs C++20: g++ 11 or clang++ 15 or newer, with -std=c++20"
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tenon/dlpack.h"
#include "tenon/tenon.h"

// Element access of typed views is checked unless NDEBUG is defined.
#ifdef NDEBUG
#define TENON_CHECKED_VIEWS false
#else
#define TENON_CHECKED_VIEWS true
#endif

namespace tenon {
// Versioned, so that these types do not collide with those of other versions at link time.
inline namespace api0 {

// ------------------------------------------------------------------------------------- errors

class Error : public std::runtime_error {
 public:
  Error(tenon_status code, const std::string& message, int32_t op_code = 0)
      : std::runtime_error(message), code_(code), op_code_(op_code) {}

  tenon_status code() const noexcept { return code_; }
  // With TENON_ERR_OP: the result of the user's function.
  int32_t op_code() const noexcept { return op_code_; }

 private:
  tenon_status code_;
  int32_t op_code_;
};

namespace detail {

// Deletes the T behind a payload of tenon.h. T is part of the symbol name, so other standard libraries have
// other symbols.
template <class T>
void drop(void* dropped) {
  delete static_cast<T*>(dropped);
}

// A struct of tenon.h with zeros and its size.
template <class T>
constexpr T sized() noexcept {
  T made{};
  made.struct_size = sizeof made;
  return made;
}

}  // namespace detail

// The reason why an op has no result, or values are invalid. Copies share it. A default-constructed one is
// empty and may only be assigned to, tested and destroyed.
class Failure {
 public:
  Failure() noexcept = default;
  // Takes over a reference that the caller owns.
  static Failure steal(tenon_failure* owned) {
    Failure failure;
    if (owned != nullptr) failure.handle_.reset(owned, tenon_failure_release);
    return failure;
  }

  tenon_failure* get() const noexcept { return handle_.get(); }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  const char* message() const noexcept { return tenon_failure_message(get()); }
  // The name of the op that failed first, and the line that pushed it.
  const char* op() const noexcept { return tenon_failure_op(get()); }
  const char* site() const noexcept { return tenon_failure_site(get()); }
  int32_t op_code() const noexcept { return tenon_failure_code(get()); }
  // The exception of the op's body; empty if it was not thrown by C++ code.
  std::exception_ptr cause() const noexcept {
    const void* const payload = tenon_failure_payload(get(), detail::drop<std::exception_ptr>);
    return payload != nullptr ? *static_cast<const std::exception_ptr*>(payload) : nullptr;
  }

 private:
  std::shared_ptr<tenon_failure> handle_;
};

// Thrown if a requested value does not exist, because the op that was to compute it has failed.
class OpError : public Error {
 public:
  OpError(const std::string& message, Failure failure)
      : Error(TENON_ERR_OP, message, failure.op_code()), failure_(std::move(failure)) {}

  const Failure& failure() const noexcept { return failure_; }
  // Throws the exception of the op's body; if it is not known, this error.
  [[noreturn]] void rethrow_cause() const {
    if (const std::exception_ptr cause = failure_.cause()) std::rethrow_exception(cause);
    throw *this;
  }

 private:
  Failure failure_;
};

namespace detail {

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_reported(tenon_status status,
                                                                  const tenon_error& error) {
  if (status == TENON_ERR_OP) {
    if (Failure failure = Failure::steal(tenon_failure_last()))
      throw OpError(error.message, std::move(failure));
  }
  throw Error(status, error.message, error.op_code);
}

}  // namespace detail

// Calls a function of tenon.h whose last parameter is the error. If it fails, throws OpError if an op has
// failed, else Error.
template <class Function, class... Arguments>
void call(Function* function, Arguments... arguments) {
  tenon_error error;  // only what is read below is set: clearing the text would cost more than the call
  error.struct_size = sizeof error;
  error.op_code = 0;
  error.message[0] = '\0';
  const tenon_status status = function(arguments..., &error);
  if (status != TENON_OK) detail::throw_reported(status, error);
}

namespace detail {

// The same for a function that writes a result, which is returned here, to its last parameter but one.
template <class Result, class Function, class... Arguments>
Result call_for(Function* function, Arguments... arguments) {
  Result result{};
  call(function, arguments..., &result);
  return result;
}

}  // namespace detail

// ------------------------------------------------------------------------------------- dtypes

// The dtype of a C++ type. Specialize it for your own 16-bit float.
template <class T>
struct DTypeOf;

template <class T>
  requires std::is_integral_v<T> && (!std::is_same_v<T, bool>)
struct DTypeOf<T> {
  static constexpr tenon_dtype value{std::is_signed_v<T> ? TENON_INT : TENON_UINT, 8 * sizeof(T), 1};
};
template <>
struct DTypeOf<bool> {
  static constexpr tenon_dtype value{TENON_BOOL, 8, 1};
};
template <class T>
  requires std::is_same_v<T, float> || std::is_same_v<T, double>
struct DTypeOf<T> {
  static constexpr tenon_dtype value{TENON_FLOAT, 8 * sizeof(T), 1};
};
template <class T>
  requires std::is_same_v<T, float> || std::is_same_v<T, double>
struct DTypeOf<std::complex<T>> {
  static constexpr tenon_dtype value{TENON_COMPLEX, 8 * sizeof(std::complex<T>), 1};
};

class DType {
 public:
  constexpr DType() noexcept = default;
  constexpr DType(tenon_dtype value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor)
  // "float32", "f4", "bfloat16", ...
  DType(const char* name) {
    call(tenon_dtype_from_name, name, &value_);
  }  // NOLINT(google-explicit-constructor)

  constexpr operator tenon_dtype() const noexcept { return value_; }  // NOLINT(google-explicit-constructor)
  constexpr uint8_t code() const noexcept { return value_.code; }
  constexpr uint8_t bits() const noexcept { return value_.bits; }
  constexpr uint16_t lanes() const noexcept { return value_.lanes; }

  std::string name() const {
    char buffer[64];
    tenon_dtype_name(value_, buffer, sizeof buffer);
    return buffer;
  }

  friend constexpr bool operator==(DType a, DType b) noexcept {
    return a.code() == b.code() && a.bits() == b.bits() && a.lanes() == b.lanes();
  }

 private:
  tenon_dtype value_{TENON_FLOAT, 32, 1};
};

template <class T>
constexpr DType dtype_of() noexcept {
  return DTypeOf<std::remove_cv_t<T>>::value;
}

// Where memory lies: the CPU by default. See tenon/device.h.
class Device {
 public:
  constexpr Device() noexcept = default;
  constexpr Device(tenon_device value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor)
  // "cpu", "cuda:0", "cuda", "cuda_host".
  Device(const char* name) {
    call(tenon_device_from_name, name, &value_);
  }  // NOLINT(google-explicit-constructor)

  constexpr operator tenon_device() const noexcept { return value_; }  // NOLINT(google-explicit-constructor)
  std::string name() const {
    char buffer[64];
    tenon_device_name(value_, buffer, sizeof buffer);
    return buffer;
  }

  friend constexpr bool operator==(Device a, Device b) noexcept {
    return a.value_.type == b.value_.type && a.value_.id == b.value_.id;
  }

 private:
  tenon_device value_{TENON_CPU, 0};
};

// ------------------------------------------------------------------- parameters of functions

// A shape as an argument: {2, 3}, a vector, a span. It refers to its source, so do not store it.
class Shape {
 public:
  Shape(std::initializer_list<int64_t> list) noexcept : entries_(list.begin(), list.size()) {}
  Shape(std::span<const int64_t> entries) noexcept
      : entries_(entries) {}  // NOLINT(google-explicit-constructor)
  Shape(const std::vector<int64_t>& entries) noexcept
      : entries_(entries) {}  // NOLINT(google-explicit-constructor)
  template <size_t N>
  Shape(const std::array<int64_t, N>& entries) noexcept
      : entries_(entries) {}  // NOLINT(google-explicit-constructor)

  int32_t ndim() const noexcept { return static_cast<int32_t>(entries_.size()); }
  const int64_t* data() const noexcept { return entries_.data(); }

 private:
  std::span<const int64_t> entries_;
};

// One item of Array::index: a position, slice(...), new_axis or ellipsis.
struct Index : tenon_index {
  Index(int64_t at) noexcept
      : tenon_index{TENON_INDEX_AT, 0, at, 0, 1} {}  // NOLINT(google-explicit-constructor)
  explicit constexpr Index(tenon_index item) noexcept : tenon_index(item) {}
};

// start:stop:step. Negative bounds have the same meaning as in Python. TENON_OMITTED omits a bound.
inline Index slice(int64_t start = TENON_OMITTED, int64_t stop = TENON_OMITTED, int64_t step = 1) noexcept {
  return Index(tenon_index{TENON_INDEX_SLICE, 0, start, stop, step});
}
inline constexpr Index new_axis{tenon_index{TENON_INDEX_NEW_AXIS, 0, 0, 0, 1}};
inline constexpr Index ellipsis{tenon_index{TENON_INDEX_ELLIPSIS, 0, 0, 0, 1}};

enum class Access : int32_t { kRead = TENON_READ, kWrite = TENON_WRITE };
enum class Copy : int32_t {
  kIfNeeded = TENON_COPY_IF_NEEDED,
  kNever = TENON_COPY_NEVER,
  kAlways = TENON_COPY_ALWAYS
};

// As a timeout: no limit. Any other negative timeout has already passed.
inline constexpr std::chrono::nanoseconds forever{-1};
// As the timeout of a lease: no limit for waits inside of this process; waits for another process end as
// set_lock_timeout (tenon/share.hpp) says.
inline constexpr std::chrono::nanoseconds default_timeout{TENON_DEFAULT_TIMEOUT};

namespace detail {

inline int64_t timeout_ns(std::chrono::nanoseconds timeout) noexcept {
  if (timeout == forever || timeout == default_timeout) return timeout.count();
  return std::max<int64_t>(timeout.count(), 0);
}

// A reference-counted handle of tenon.h. Empty after default construction and after a move.
template <class T, void (*Retain)(T*), void (*Release)(T*)>
class Handle {
 public:
  Handle() noexcept = default;
  explicit Handle(T* owned) noexcept : handle_(owned) {}
  Handle(const Handle& other) noexcept : handle_(other.handle_) {
    if (handle_ != nullptr) Retain(handle_);
  }
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Handle() {
    if (handle_ != nullptr) Release(handle_);
  }
  T* get() const noexcept { return handle_; }
  T* detach() noexcept { return std::exchange(handle_, nullptr); }

 private:
  T* handle_ = nullptr;
};

}  // namespace detail

template <class T, size_t N, bool Checked>
class View;
class Lease;  // tenon/engine.hpp

// ------------------------------------------------------------------------------------- arrays

// Memory that was moved out of an array. The destructor calls its deleter.
class Memory {
 public:
  explicit Memory(const tenon_memory& memory) noexcept : memory_(memory) {}
  Memory(Memory&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}
  Memory& operator=(Memory other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Memory() {
    if (memory_.deleter != nullptr) memory_.deleter(memory_.owner);
  }

  void* data() const noexcept { return memory_.data; }
  size_t nbytes() const noexcept { return memory_.nbytes; }
  bool is_readonly() const noexcept { return memory_.is_readonly != 0; }

 private:
  tenon_memory memory_;
};

// A reference-counted handle. A default-constructed Array is empty (get() == nullptr) and may only be
// assigned to, tested and destroyed. Threads: as for handles of tenon.h.
class Array {
 public:
  Array() noexcept = default;

  // Takes over a reference that the caller owns.
  static Array steal(tenon_array* handle) noexcept {
    Array array;
    array.handle_ = decltype(handle_)(handle);
    return array;
  }
  // Adds a reference.
  static Array share(tenon_array* handle) noexcept {
    if (handle != nullptr) tenon_array_retain(handle);
    return steal(handle);
  }
  tenon_array* get() const noexcept { return handle_.get(); }
  // Transfers the reference to the caller.
  [[nodiscard]] tenon_array* detach() noexcept { return handle_.detach(); }
  explicit operator bool() const noexcept { return get() != nullptr; }

  // New memory in C order, aligned to at least 64 bytes.
  static Array empty(Shape shape, DType dtype = {}, Device device = {}) {
    return create(shape, dtype, 0, device);
  }
  static Array zeros(Shape shape, DType dtype = {}, Device device = {}) {
    return create(shape, dtype, TENON_ZEROED, device);
  }
  template <class T>
  static Array empty(Shape shape, Device device = {}) {
    return create(shape, dtype_of<T>(), 0, device);
  }
  template <class T>
  static Array zeros(Shape shape, Device device = {}) {
    return create(shape, dtype_of<T>(), TENON_ZEROED, device);
  }

  // Existing memory in C order, which must outlive every array on it. const elements: read-only.
  template <class T>
  static Array borrow(T* data, Shape shape) {
    return adopt_described(describe_memory(data, shape));
  }
  // Existing memory that owner keeps alive: a shared_ptr, unique_ptr, container or another object whose
  // destructor frees the memory. owner is destroyed after the last array and view, on the thread that drops
  // it.
  template <class T, class Owner>
    requires(!std::is_lvalue_reference_v<Owner>)
  static Array adopt(T* data, Shape shape, Owner&& owner) {
    return adopt_described(describe_memory(data, shape), std::forward<Owner>(owner));
  }
  // The elements of a vector, which is moved into the array. shape defaults to its length.
  template <class T>
    requires(!std::is_same_v<T, bool>)
  static Array adopt(std::vector<T>&& elements) {
    const std::array<int64_t, 1> shape{static_cast<int64_t>(elements.size())};
    return adopt(std::move(elements), shape);
  }
  template <class T>
    requires(!std::is_same_v<T, bool>)
  static Array adopt(std::vector<T>&& elements, Shape shape) {
    auto owner = std::make_unique<std::vector<T>>(std::move(elements));
    tenon_adoption adoption = describe_memory(owner->data(), shape);
    adoption.extent = owner->data();
    adoption.extent_nbytes = owner->size() * sizeof(T);
    return adopt_described(adoption, std::move(owner));
  }
  // Memory with a full description (strides, dtype, flags). This function sets adoption.owner and .deleter.
  template <class Owner>
    requires(!std::is_lvalue_reference_v<Owner>)
  static Array adopt_described(tenon_adoption adoption, Owner&& owner) {
    auto holder = std::make_unique<Owner>(std::move(owner));
    adoption.owner = holder.get();
    adoption.deleter = [](void* held) { delete static_cast<Owner*>(held); };
    Array array = adopt_described(adoption);
    (void)holder.release();
    return array;
  }
  static Array adopt_described(const tenon_adoption& adoption) { return made(tenon_array_adopt, &adoption); }

  const tenon_array_desc& desc() const noexcept { return *tenon_array_describe(get()); }
  void* data() const noexcept { return desc().data; }
  DType dtype() const noexcept { return desc().dtype; }
  Device device() const noexcept { return desc().device; }
  int32_t ndim() const noexcept { return desc().ndim; }
  int64_t size() const noexcept { return desc().size; }
  uint64_t nbytes() const noexcept { return desc().nbytes; }
  uint64_t itemsize() const noexcept { return desc().itemsize; }
  std::span<const int64_t> shape() const noexcept { return {desc().shape, static_cast<size_t>(ndim())}; }
  // In elements.
  std::span<const int64_t> strides() const noexcept { return {desc().strides, static_cast<size_t>(ndim())}; }
  bool is_readonly() const noexcept { return (desc().flags & TENON_READONLY) != 0; }
  bool is_contiguous() const noexcept { return tenon_array_is_contiguous(get()) != 0; }
  uint64_t version() const noexcept { return tenon_array_version(get()); }
  tenon_view_count views() const noexcept { return tenon_array_views(get()); }

  // Arrays on the same memory.
  Array index(std::span<const tenon_index> items) const {
    return made(tenon_array_index, get(), static_cast<int32_t>(items.size()), items.data());
  }
  Array index(std::span<const Index> items) const {
    static_assert(sizeof(Index) == sizeof(tenon_index));
    return index(std::span(static_cast<const tenon_index*>(items.data()), items.size()));
  }
  Array index(std::initializer_list<Index> items) const {
    return index(std::span(items.begin(), items.size()));
  }
  // start:stop:step on one axis.
  Array slice(int32_t axis, int64_t start, int64_t stop, int64_t step = 1) const {
    if (axis < 0 || axis >= ndim()) {
      throw Error(TENON_ERR_INDEX,
                  "axis " + std::to_string(axis) + " of an array of " + std::to_string(ndim()) + " axes");
    }
    std::vector<Index> items(static_cast<size_t>(axis), tenon::slice());
    items.push_back(tenon::slice(start, stop, step));
    return index(items);
  }
  Array reshape(Shape shape, Copy copy = Copy::kNever) const {
    return made(tenon_array_reshape, get(), shape.ndim(), shape.data(), static_cast<int32_t>(copy));
  }
  Array transpose() const { return made(tenon_array_transpose, get(), nullptr); }
  Array transpose(std::span<const int32_t> axes) const {
    if (static_cast<int32_t>(axes.size()) != ndim()) {
      throw Error(TENON_ERR_VALUE, std::to_string(axes.size()) + " axes given for an array of " +
                                       std::to_string(ndim()) + ": name each once");
    }
    return made(tenon_array_transpose, get(), axes.data());
  }
  // The same bytes as elements of another dtype.
  Array reinterpret(DType dtype) const {
    return made(tenon_array_reinterpret, get(), dtype, 0, nullptr, uint64_t{0});
  }
  Array reinterpret(DType dtype, Shape shape, uint64_t byte_offset = 0) const {
    return made(tenon_array_reinterpret, get(), dtype, shape.ndim(), shape.data(), byte_offset);
  }
  Array broadcast(Shape shape) const {
    return made(tenon_array_broadcast, get(), shape.ndim(), shape.data());
  }
  Array readonly() const { return made(tenon_array_readonly, get()); }

  // An array on the same elements that does not take part in the queue; an array with the same shape and
  // dtype on new memory. See tenon.h.
  Array unchecked() const { return made(tenon_array_unchecked, get()); }
  Array renewed() const { return made(tenon_array_renew, get()); }
  // Moves the memory out of the array and of every other array on it. site: never freed; may be null.
  Memory move_out(const char* site = nullptr) const;
  // The site of the move; null if the memory was not moved.
  const char* moved_at() const noexcept { return tenon_array_moved_at(get()); }

  // Elements.
  Array copy() const { return copy(dtype()); }
  Array copy(DType dtype) const { return made(tenon_array_copy, get(), dtype); }
  // New memory on the device.
  Array to(Device device) const { return to(device, dtype()); }
  Array to(Device device, DType dtype) const {
    return made(tenon_array_copy_on, get(), dtype, tenon_device(device));
  }
  void copy_to(const Array& destination) const { call(tenon_array_copy_to, get(), destination.get()); }
  template <class T>
  void fill(const T& value) const {
    call(tenon_array_fill, get(), static_cast<const void*>(&value), dtype_of<T>());
  }

  // A typed, N-dimensional view, which is open until it is destroyed. Fails with TYPE (other dtype), VALUE
  // (other number of axes), BUFFER (the array is read-only and T is not const).
  template <class T, size_t N, bool Checked = TENON_CHECKED_VIEWS>
  View<T, N, Checked> as() const;

  // A lease; see Lease in tenon/engine.hpp. overwrite: every element is written before any element is read.
  Lease read(std::chrono::nanoseconds timeout = default_timeout,
             std::source_location where = std::source_location::current()) const;
  Lease write(std::chrono::nanoseconds timeout = default_timeout,
              std::source_location where = std::source_location::current()) const;
  Lease overwrite(std::chrono::nanoseconds timeout = default_timeout,
                  std::source_location where = std::source_location::current()) const;

  // Wait until the writes, or all uses, that were pushed before are done.
  void wait_to_read(std::chrono::nanoseconds timeout = forever) const { wait(Access::kRead, timeout); }
  void wait_to_write(std::chrono::nanoseconds timeout = forever) const { wait(Access::kWrite, timeout); }
  // The reason why the elements are invalid; empty if they are valid.
  Failure failure() const { return Failure::steal(tenon_array_failure(get())); }
  // Declares the elements valid again. Fails as tenon_array_make_consistent.
  void clear_error() const { call(tenon_array_make_consistent, get()); }

  // flags: TENON_EXPORT_FOR_READ, TENON_EXPORT_COPIED. The caller must call the tensor's deleter, or pass the
  // tensor to a consumer that calls it. site: the line of the program, for messages; must outlive the tensor.
  DLManagedTensorVersioned* to_dlpack(uint32_t flags = 0, const char* site = nullptr) const {
    return detail::call_for<DLManagedTensorVersioned*>(tenon_array_to_dlpack, get(), flags, site);
  }
  // The same for a consumer that uses memory on a device on a stream: 1, 2, a handle or TENON_STREAM_NONE.
  DLManagedTensorVersioned* to_dlpack_on(int64_t stream, uint32_t flags = 0,
                                         const char* site = nullptr) const {
    return detail::call_for<DLManagedTensorVersioned*>(tenon_array_to_dlpack_on, get(), flags, stream, site);
  }
  DLManagedTensor* to_dlpack_legacy(uint32_t flags = 0, const char* site = nullptr) const {
    return detail::call_for<DLManagedTensor*>(tenon_array_to_dlpack_legacy, get(), flags, site);
  }
  // Always consumes the tensor, also on failure. flags: TENON_READONLY.
  static Array from_dlpack(DLManagedTensorVersioned* tensor, uint32_t flags = 0) {
    return made(tenon_array_from_dlpack, tensor, flags);
  }
  static Array from_dlpack(DLManagedTensor* tensor, uint32_t flags = 0) {
    return made(tenon_array_from_dlpack_legacy, tensor, flags);
  }

 private:
  void wait(Access access, std::chrono::nanoseconds timeout) const {
    call(tenon_array_wait, get(), static_cast<int32_t>(access), detail::timeout_ns(timeout));
  }
  template <class... Arguments>
  static Array made(Arguments... arguments) {
    return steal(detail::call_for<tenon_array*>(arguments...));
  }
  static Array create(Shape shape, DType dtype, uint32_t flags, Device device) {
    return made(tenon_array_create, dtype, shape.ndim(), shape.data(), tenon_device(device), flags);
  }
  template <class T>
  static tenon_adoption describe_memory(T* data, Shape shape) noexcept {
    auto adoption = detail::sized<tenon_adoption>();
    adoption.flags = std::is_const_v<T> ? TENON_READONLY : 0;
    adoption.data = const_cast<std::remove_const_t<T>*>(data);
    adoption.device = {TENON_CPU, 0};
    adoption.dtype = dtype_of<T>();
    adoption.ndim = shape.ndim();
    adoption.shape = shape.data();
    return adoption;
  }

  detail::Handle<tenon_array, tenon_array_retain, tenon_array_release> handle_;
};

// -------------------------------------------------------------------------------------- views

// An open view: raw access to an array's memory until it is destroyed. Keeps the memory alive.
class HostView {
 public:
  // site: the line of the program, for messages; must exist as long as the view.
  HostView(const Array& array, Access access, const char* site = nullptr) {
    call(tenon_view_open, &view_, array.get(), static_cast<int32_t>(access), site);
  }
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;
  ~HostView() { close(); }

  // Idempotent. May be called from any thread.
  void close() noexcept { tenon_view_close(&view_); }

 private:
  tenon_view view_ = TENON_VIEW_INIT;
};

// Elements of type T (const T: read-only) with N axes. It holds the array and an open HostView. It cannot be
// copied or moved: `auto v = array.as<float, 2>();`. With Checked, v(i, j) throws Error with code
// TENON_ERR_INDEX if an index is out of range. Threads: as for a raw pointer.
template <class T, size_t N, bool Checked = TENON_CHECKED_VIEWS>
class View {
 public:
  explicit View(const Array& array) : array_(check(array)), view_(array, kAccess) {
    const tenon_array_desc& desc = array_.desc();
    data_ = static_cast<T*>(desc.data);
    for (size_t i = 0; i < N; ++i) {
      shape_[i] = desc.shape[i];
      strides_[i] = desc.strides[i];
    }
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  // Returns the array if it has this dtype and number of axes. Fails with TYPE, VALUE.
  static const Array& check(const Array& array) {
    if (array.dtype() != dtype_of<T>()) {
      throw Error(TENON_ERR_TYPE, "array of " + array.dtype().name() + " viewed as " + dtype_of<T>().name() +
                                      ": copy(dtype) casts, reinterpret(dtype) keeps the bytes");
    }
    if (array.ndim() != static_cast<int32_t>(N)) {
      throw Error(TENON_ERR_VALUE, "array of " + std::to_string(array.ndim()) + " axes viewed with " +
                                       std::to_string(N) + ": index or reshape it first");
    }
    return array;
  }

  template <class... I>
    requires(sizeof...(I) == N && (std::is_convertible_v<I, int64_t> && ...))
  T& operator()(I... indices) const noexcept(!Checked) {
    const std::array<int64_t, N> at{static_cast<int64_t>(indices)...};
    int64_t offset = 0;
    for (size_t i = 0; i < N; ++i) {
      if constexpr (Checked) check_index(i, at[i]);
      offset += at[i] * strides_[i];
    }
    return data_[offset];
  }

  const std::array<int64_t, N>& shape() const noexcept { return shape_; }
  int64_t shape(size_t axis) const { return shape_.at(axis); }
  // In elements.
  int64_t stride(size_t axis) const { return strides_.at(axis); }
  T* data() const noexcept { return data_; }
  int64_t size() const noexcept { return array_.size(); }
  bool is_contiguous() const noexcept { return array_.is_contiguous(); }
  const Array& array() const noexcept { return array_; }

  // All elements in C order. Fails with VALUE if the array is not C-contiguous.
  std::span<T> span() const {
    if (!is_contiguous()) {
      throw Error(TENON_ERR_VALUE,
                  "a view with gaps or another order of axes is no span: copy() the array first");
    }
    return {data_, static_cast<size_t>(size())};
  }

 private:
  static constexpr Access kAccess = std::is_const_v<T> ? Access::kRead : Access::kWrite;

  void check_index(size_t axis, int64_t at) const {
    if (at < 0 || at >= shape_[axis]) {
      throw Error(TENON_ERR_INDEX, "index " + std::to_string(at) + " is outside of axis " +
                                       std::to_string(axis) + " of " + std::to_string(shape_[axis]) +
                                       " elements");
    }
  }

  Array array_;
  HostView view_;
  T* data_ = nullptr;
  std::array<int64_t, N> shape_{};
  std::array<int64_t, N> strides_{};
};

inline Memory Array::move_out(const char* site) const {
  auto memory = detail::sized<tenon_memory>();
  call(tenon_array_move_out, get(), site, &memory);
  return Memory(memory);
}

template <class T, size_t N, bool Checked>
View<T, N, Checked> Array::as() const {
  return View<T, N, Checked>(*this);
}

}  // namespace api0
}  // namespace tenon

#endif  // TENON_TENON_HPP_
