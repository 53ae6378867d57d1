// SPDX-License-Identifier: Apache-2.0
#include "ipc/handle.h"

#include <cstring>

#include "base/error.h"

namespace tenon::impl {

std::string ArrayHandle::encode() const {
  std::string text(reinterpret_cast<const char*>(static_cast<const HandleHead*>(this)), sizeof(HandleHead));
  text.append(reinterpret_cast<const char*>(shape.data()), shape.size() * sizeof(int64_t));
  text.append(reinterpret_cast<const char*>(strides.data()), strides.size() * sizeof(int64_t));
  return text;
}

ArrayHandle ArrayHandle::decode(std::span<const std::byte> bytes) {
  ArrayHandle handle;
  HandleHead& head = handle;
  if (bytes.size() >= sizeof head) std::memcpy(&head, bytes.data(), sizeof head);
  const auto n = static_cast<size_t>(head.ndim);
  if (std::memcmp(head.mark, HandleHead{}.mark, sizeof head.mark) != 0 || head.ndim < 0 || n > kMostAxes ||
      bytes.size() != sizeof head + 2 * n * sizeof(int64_t)) {
    throw_error(Code::kValue, "these ", bytes.size(), " bytes are not a handle of a shared array");
  }
  handle.shape.resize(n);
  handle.strides.resize(n);
  if (n != 0) {
    const std::byte* const entries = bytes.data() + sizeof head;
    std::memcpy(handle.shape.data(), entries, n * sizeof(int64_t));
    std::memcpy(handle.strides.data(), entries + n * sizeof(int64_t), n * sizeof(int64_t));
  }
  return handle;
}

void check_machine(const char* cannot, uint64_t boot) {
  const uint64_t here = os::boot();
  if (boot == here) return;
  if (boot != 0 && here != 0) {
    throw_error(
        Code::kNotFound, cannot,
        "it lies in the memory of another machine, or was lost at a restart of this one; send a copy of "
        "it");
  }
  throw_error(Code::kNotFound, cannot, "there is no /proc ", here == 0 ? "here" : "where it comes from",
              ", through which a process opens the memory of another one");
}

}  // namespace tenon::impl
