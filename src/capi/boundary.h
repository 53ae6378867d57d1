// SPDX-License-Identifier: Apache-2.0
//
// The C boundary: guarded() runs the body of an entry point and converts each exception to a status and a
// message. Casts of handles are here too, so that the entry points hold no logic.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>

#include "array/array.h"
#include "base/error.h"
#include "capi/second_copy.h"
#include "sync/failure.h"
#include "sync/requests.h"
#include "tenon/tenon.h"

namespace tenon::impl::capi {

// Fills error (may be null; may be shorter than this library's struct) and returns the status.
tenon_status report(tenon_error* error, tenon_status status, const char* message,
                    int32_t op_code = 0) noexcept;
// In a catch (...). The end of a thread passes.
[[gnu::cold]] tenon_status report_unknown(tenon_error* error);
inline tenon_status report(tenon_error* error, const Error& e) noexcept {
  return report(error, static_cast<tenon_status>(e.code()), e.what(), e.op_code());
}

// The errors of the checks below. Out of line, so that what they need is not prepared by each entry point.
namespace refuse {
[[noreturn, gnu::cold]] void struct_size(uint32_t given, size_t least, const char* name);
[[noreturn, gnu::cold]] void flags(uint32_t unknown, const char* function);
[[noreturn, gnu::cold]] void null(const char* name);
[[noreturn, gnu::cold]] void access(int32_t access);
[[noreturn, gnu::cold]] void held_lease();
}  // namespace refuse

// Fails with kValue if a struct of the caller is shorter than least.
inline void check_struct_size(uint32_t given, size_t least, const char* name) {
  if (given < least) [[unlikely]]
    refuse::struct_size(given, least, name);
}

// Fails with kValue for bits outside of known.
inline void check_flags(uint32_t flags, uint32_t known, const char* function) {
  if ((flags & ~known) != 0) [[unlikely]]
    refuse::flags(flags & ~known, function);
}

// Fails with kValue for numbers that are no stream of DLPack.
void check_stream(int64_t stream);

// Copies as much as the struct of the caller has room for.
template <class Struct>
void copy_out(const Struct& from, Struct* out) {
  const uint32_t size = out->struct_size;
  std::memcpy(out, &from, std::min<size_t>(size, sizeof from));
  out->struct_size = size;
}

// Fails with kValue for null.
template <class T>
T* not_null(T* pointer, const char* name) {
  if (pointer == nullptr) [[unlikely]]
    refuse::null(name);
  return pointer;
}

// The n items of an array argument. Fails with kValue if n is negative or the items are missing.
template <class T>
std::span<const T> list_of(int32_t n, const T* items, const char* name) {
  if (n < 0 || (n > 0 && items == nullptr)) throw_error(Code::kValue, n, " ", name, ", but no list of them");
  return {items, static_cast<size_t>(n)};
}

// Copies a text to a buffer of the caller, cut to its size.
inline void copy_text(std::string_view text, char* buffer, size_t size) {
  if (size != 0) buffer[text.copy(buffer, size - 1)] = '\0';
}

#ifdef TENON_FAULT_INJECTION
// Called at the start of every guarded body; tests make it throw.
using Fault = void (*)();
extern constinit thread_local Fault fault;  // constinit: UBSan of g++ 12 misreads the wrapper of others
#endif

// Fails with kValue for anything but TENON_READ and TENON_WRITE.
inline Access checked_access(int32_t access) {
  if (access != TENON_READ && access != TENON_WRITE) [[unlikely]]
    refuse::access(access);
  return static_cast<Access>(access);
}

// Fails with kValue for anything but TENON_CONFLICT_*.
OnHost on_host_from(int32_t on_conflict);

// Sets the next result of tenon_failure_last() in this thread; null: none.
void remember_failure(Ref<Failure> failure) noexcept;

// body: returns nothing, or a status. Throws nothing, but a function of the user may end the thread
// (base/foreign_call.h).
template <class Body>
tenon_status guarded(tenon_error* error, Body&& body) {
  try {
#ifdef TENON_FAULT_INJECTION
    if (fault != nullptr) fault();
#endif
    if (is_second_copy) [[unlikely]]
      refuse_second_copy();
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return TENON_OK;
    } else {
      return body();
    }
  } catch (const OpFailure& e) {
    remember_failure(e.failure());
    return report(error, TENON_ERR_OP, e.what(), e.op_code());
  } catch (const Error& e) {
    if (e.code() == Code::kOp) remember_failure({});
    return report(error, e);
  } catch (const std::bad_alloc&) {
    return report(error, TENON_ERR_NO_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return report(error, TENON_ERR_INTERNAL, e.what());
  } catch (...) {
    return report_unknown(error);
  }
}

inline Array* unwrap(tenon_array* array) { return reinterpret_cast<Array*>(array); }
inline const Array* unwrap(const tenon_array* array) { return reinterpret_cast<const Array*>(array); }
inline tenon_array* wrap(Ref<Array> array) noexcept { return reinterpret_cast<tenon_array*>(array.detach()); }

}  // namespace tenon::impl::capi
