// SPDX-License-Identifier: Apache-2.0
#include "capi/boundary.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/foreign_call.h"

namespace tenon::impl::capi {

#ifdef TENON_FAULT_INJECTION
constinit thread_local Fault fault = nullptr;
#endif

tenon_status report(tenon_error* error, tenon_status status, const char* message, int32_t op_code) noexcept {
  if (error == nullptr || error->struct_size < offsetof(tenon_error, message) + 1) return status;
  const size_t room =
      std::min<size_t>(error->struct_size, offsetof(tenon_error, op_code)) - offsetof(tenon_error, message);
  size_t length = std::strlen(message);
  if (length >= room) {
    // Cuts between two characters of UTF-8.
    length = room - 1;
    while (length > 0 && (static_cast<unsigned char>(message[length]) & 0xC0) == 0x80) --length;
  }
  error->code = status;
  std::memcpy(error->message, message, length);
  error->message[length] = '\0';
  if (error->struct_size >= sizeof(tenon_error)) error->op_code = op_code;
  return status;
}

tenon_status report_unknown(tenon_error* error) {
  if (is_end_of_thread()) throw;
  return report(error, TENON_ERR_INTERNAL, "unknown exception");
}

void refuse::struct_size(uint32_t given, size_t least, const char* name) {
  throw_error(Code::kValue, name, ".struct_size is ", given, ": set it to sizeof(", name, "), at least ",
              least);
}

void refuse::flags(uint32_t unknown, const char* function) {
  throw_error(Code::kValue, function, ": unknown flags ", unknown);
}

void refuse::null(const char* name) { throw_error(Code::kValue, name, " must not be NULL"); }

void refuse::held_lease() { throw_error(Code::kValue, "the lease is held already: release it first"); }

void refuse::access(int32_t access) {
  throw_error(Code::kValue, "access is ", access, ": it must be TENON_READ (0) or TENON_WRITE (1)");
}

void check_stream(int64_t stream) {
  if (stream > 0 || stream == TENON_STREAM_NONE) return;
  throw_error(
      Code::kValue, "stream ", stream,
      " is none: DLPack has 1 (the legacy default stream), 2 (that of the thread), handles, and -1 for "
      "no order");
}

namespace {
thread_local Ref<Failure> last_failure;
}

void remember_failure(Ref<Failure> failure) noexcept { last_failure = std::move(failure); }

OnHost on_host_from(int32_t on_conflict) {
  switch (on_conflict) {
    case TENON_CONFLICT_RAISE: return OnHost::kRaise;
    case TENON_CONFLICT_WAIT: return OnHost::kWait;
    case TENON_CONFLICT_IGNORE: return OnHost::kIgnore;
    default: break;
  }
  throw_error(Code::kValue, "on_conflict is ", on_conflict, ": it must be one of TENON_CONFLICT_*");
}

}  // namespace tenon::impl::capi

extern "C" {

tenon_failure* tenon_failure_last(void) {
  return reinterpret_cast<tenon_failure*>(std::exchange(tenon::impl::capi::last_failure, {}).detach());
}

const char* tenon_status_name(tenon_status status) {
  switch (status) {
    case TENON_OK: return "TENON_OK";
    case TENON_ERR_VALUE: return "TENON_ERR_VALUE";
    case TENON_ERR_TYPE: return "TENON_ERR_TYPE";
    case TENON_ERR_BUFFER: return "TENON_ERR_BUFFER";
    case TENON_ERR_INDEX: return "TENON_ERR_INDEX";
    case TENON_ERR_NO_MEMORY: return "TENON_ERR_NO_MEMORY";
    case TENON_ERR_NOT_FOUND: return "TENON_ERR_NOT_FOUND";
    case TENON_ERR_TIMEOUT: return "TENON_ERR_TIMEOUT";
    case TENON_ERR_CLOSED: return "TENON_ERR_CLOSED";
    case TENON_ERR_OP: return "TENON_ERR_OP";
    case TENON_ERR_SYSTEM: return "TENON_ERR_SYSTEM";
    case TENON_ERR_INTERNAL: return "TENON_ERR_INTERNAL";
    case TENON_ERR_LEASE_CONFLICT: return "TENON_ERR_LEASE_CONFLICT";
    case TENON_ERR_LEASE_ESCAPED: return "TENON_ERR_LEASE_ESCAPED";
    case TENON_ERR_DEADLOCK: return "TENON_ERR_DEADLOCK";
    case TENON_ERR_MOVED: return "TENON_ERR_MOVED";
    case TENON_ERR_INTERRUPTED: return "TENON_ERR_INTERRUPTED";
    case TENON_ERR_OWNER_DIED: return "TENON_ERR_OWNER_DIED";
    case TENON_ERR_GONE: return "TENON_ERR_GONE";
    default: return "unknown status";
  }
}

void tenon_abi_version(uint32_t* major, uint32_t* minor) {
  *major = TENON_ABI_MAJOR;
  *minor = TENON_ABI_MINOR;
}

#define TENON_STRING_(x) #x
#define TENON_STRING(x) TENON_STRING_(x)
const char* tenon_version(void) {
  return TENON_STRING(TENON_VERSION_MAJOR) "." TENON_STRING(TENON_VERSION_MINOR) "." TENON_STRING(
      TENON_VERSION_PATCH);
}

}  // extern "C"
