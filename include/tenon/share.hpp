// SPDX-License-Identifier: Apache-2.0
//
// C++ wrapper of shared arrays. tenon/share.h has the rules.
#ifndef TENON_SHARE_HPP_
#define TENON_SHARE_HPP_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tenon/tenon.hpp"

namespace tenon {
inline namespace api0 {

// Options of a shared array.
struct SharedOptions {
  std::string name{};  // for attach() in other processes; "": no name, only handles
  bool has_huge_pages = false;
  bool is_populated = false;
  int numa_node = -1;           // -1: any
  Device device{};              // a GPU: the memory ends with this process, see tenon_shared_options
  bool opens_existing = false;  // of a channel: TENON_OPEN_EXISTING
};

namespace detail {
inline const char* name_text(const std::string& name) {
  if (name.find('\0') != std::string::npos) {
    throw Error(TENON_ERR_VALUE, "the name of a shared array has no zero byte");
  }
  return name.c_str();
}

// Valid as long as the options.
inline tenon_shared_options raw_options(const SharedOptions& options) {
  auto raw = sized<tenon_shared_options>();
  raw.flags = (options.has_huge_pages ? uint32_t{TENON_HUGE_PAGES} : 0) |
              (options.is_populated ? uint32_t{TENON_POPULATED} : 0) |
              (options.opens_existing ? uint32_t{TENON_OPEN_EXISTING} : 0);
  raw.numa_node = options.numa_node;
  raw.device = options.device;
  raw.name = options.name.empty() ? nullptr : name_text(options.name);
  return raw;
}
inline Array create_shared(Shape shape, DType dtype, uint32_t flags, const SharedOptions& options) {
  const tenon_shared_options raw = raw_options(options);
  return Array::steal(
      call_for<tenon_array*>(tenon_shared_create, dtype, shape.ndim(), shape.data(), flags, &raw));
}
}  // namespace detail

// New shared memory in C order. Fails as tenon_shared_create.
inline Array empty_shared(Shape shape, DType dtype = {}, const SharedOptions& options = {}) {
  return detail::create_shared(shape, dtype, 0, options);
}
inline Array zeros_shared(Shape shape, DType dtype = {}, const SharedOptions& options = {}) {
  return detail::create_shared(shape, dtype, TENON_ZEROED, options);
}

// The array that a process of this user shares under a name.
inline Array attach(const std::string& name, bool is_readonly = false) {
  return Array::steal(detail::call_for<tenon_array*>(tenon_shared_attach, detail::name_text(name),
                                                     is_readonly ? uint32_t{TENON_READONLY} : 0U));
}

inline bool is_shared(const Array& array) noexcept { return tenon_array_is_shared(array.get()) != 0; }

// The data with which another process opens the array. It can be sent over any connection.
inline std::vector<std::byte> send(const Array& array) {
  tenon_handle handle;
  call(tenon_shared_send, array.get(), &handle);
  const auto* const bytes = reinterpret_cast<const std::byte*>(handle.data);
  return {bytes, bytes + handle.nbytes};
}

// Limits how long a handle of this process keeps its array: while the process receiver runs (0: any process
// may receive it), and at most for the timeout (< 0: no limit; 0: not any more). Fails with NOT_FOUND, VALUE.
inline void limit_handle(std::span<const std::byte> handle, uint32_t receiver,
                         std::chrono::nanoseconds timeout = std::chrono::nanoseconds(-1)) {
  tenon_handle given{};
  given.nbytes = static_cast<uint32_t>(std::min(handle.size(), sizeof given.data));
  std::memcpy(given.data, handle.data(), given.nbytes);
  call(tenon_handle_limit, &given, receiver, timeout.count());
}
// Lets so many processes open a handle of this process (0: any number), and writes that into the handle. A
// further process gets GONE. Fails with VALUE.
inline void set_opens(std::span<std::byte> handle, uint32_t opens) {
  tenon_handle given{};
  given.nbytes = static_cast<uint32_t>(std::min(handle.size(), sizeof given.data));
  std::memcpy(given.data, handle.data(), given.nbytes);
  call(tenon_handle_set_opens, &given, opens);
  std::memcpy(handle.data(), given.data, given.nbytes);
}
// Ends the effect of all unopened handles of the array that this process has sent. Returns their number.
inline uint32_t revoke_handles(const Array& array) {
  return detail::call_for<uint32_t>(tenon_shared_revoke, array.get());
}
inline Array open(std::span<const std::byte> handle) {
  return Array::steal(detail::call_for<tenon_array*>(
      tenon_shared_open, static_cast<const void*>(handle.data()), static_cast<uint64_t>(handle.size())));
}
// The same, but if the array cannot be opened, an array whose uses fail.
inline Array receive(std::span<const std::byte> handle) {
  return Array::steal(detail::call_for<tenon_array*>(
      tenon_shared_receive, static_cast<const void*>(handle.data()), static_cast<uint64_t>(handle.size())));
}
// Keeps the memory of a handle of another process in its place, for the timeout at most. False: it was
// opened.
inline bool take_over_handle(std::span<const std::byte> handle, std::chrono::nanoseconds timeout) {
  return detail::call_for<int32_t>(tenon_handle_take_over, static_cast<const void*>(handle.data()),
                                   static_cast<uint64_t>(handle.size()),
                                   static_cast<int64_t>(timeout.count())) != 0;
}
inline bool is_unopened(std::span<const std::byte> handle) noexcept {
  return tenon_handle_is_unopened(handle.data(), handle.size()) != 0;
}

namespace detail {
struct TextFree {
  void operator()(char* text) const noexcept { tenon_text_free(text); }
};
inline std::string take_text(char* text) { return std::unique_ptr<char, TextFree>(text).get(); }
}  // namespace detail

// Describes the shared memory and the feeds of this user as a JSON document. Fails as tenon_shared_describe.
inline std::string describe_shared() {
  return detail::take_text(detail::call_for<char*>(tenon_shared_describe));
}
// Releases what dead processes held. Returns a JSON document that lists what was released.
inline std::string collect_shared() {
  return detail::take_text(detail::call_for<char*>(tenon_shared_collect));
}

// Sets how long calls, and leases without their own timeout, wait for other processes; negative: no limit.
// Returns the previous value.
inline std::chrono::nanoseconds set_lock_timeout(std::chrono::nanoseconds timeout) noexcept {
  return std::chrono::nanoseconds(tenon_set_lock_timeout(timeout.count()));
}

}  // namespace api0
}  // namespace tenon

#endif  // TENON_SHARE_HPP_
