// SPDX-License-Identifier: Apache-2.0
#include "ipc/handle.h"

#include <cstring>

#include "base/error.h"

namespace tenon::impl {
namespace {

constexpr char kHandleMark[8] = {'T', 'N', 'H', 'A', 'N', 'D', 'L', '1'};

// The part of fixed size, in the byte order of this machine: handles do not go to other machines.
struct Packed {
  char mark[8];
  uint64_t boot;
  uint64_t pid_namespace;
  uint64_t start;
  SegmentId segment;
  int64_t offset;
  uint32_t user;
  uint32_t pid;
  int32_t fd;
  uint32_t block;
  uint32_t generation;
  uint32_t number;
  tenon_dtype dtype;
  uint32_t flags;
  int32_t ndim;
  uint32_t reserved;
};
static_assert(sizeof(Packed) == 96);

}  // namespace

std::string ArrayHandle::encode() const {
  Packed packed{};
  std::memcpy(packed.mark, kHandleMark, sizeof kHandleMark);
  packed.boot = boot;
  packed.pid_namespace = pid_namespace;
  packed.start = sender.start;
  packed.segment = segment;
  packed.offset = offset;
  packed.user = user;
  packed.pid = sender.pid;
  packed.fd = fd;
  packed.block = block;
  packed.generation = generation;
  packed.number = number;
  packed.dtype = dtype;
  packed.flags = flags;
  packed.ndim = static_cast<int32_t>(shape.size());
  std::string text(reinterpret_cast<const char*>(&packed), sizeof packed);
  text.append(reinterpret_cast<const char*>(shape.data()), shape.size() * sizeof(int64_t));
  text.append(reinterpret_cast<const char*>(strides.data()), strides.size() * sizeof(int64_t));
  return text;
}

ArrayHandle ArrayHandle::decode(std::span<const std::byte> bytes) {
  Packed packed{};
  if (bytes.size() >= sizeof packed) std::memcpy(&packed, bytes.data(), sizeof packed);
  const auto n = static_cast<size_t>(packed.ndim);
  if (std::memcmp(packed.mark, kHandleMark, sizeof kHandleMark) != 0 || packed.ndim < 0 || n > kMostAxes ||
      bytes.size() != sizeof packed + 2 * n * sizeof(int64_t)) {
    throw_error(Code::kValue, "these ", bytes.size(), " bytes are not a handle of a shared array");
  }
  ArrayHandle handle;
  handle.boot = packed.boot;
  handle.pid_namespace = packed.pid_namespace;
  handle.sender = {packed.pid, packed.start};
  handle.segment = packed.segment;
  handle.offset = packed.offset;
  handle.user = packed.user;
  handle.fd = packed.fd;
  handle.block = packed.block;
  handle.generation = packed.generation;
  handle.number = packed.number;
  handle.dtype = packed.dtype;
  handle.flags = packed.flags;
  handle.shape.resize(n);
  handle.strides.resize(n);
  if (n != 0) {
    std::memcpy(handle.shape.data(), bytes.data() + sizeof packed, n * sizeof(int64_t));
    std::memcpy(handle.strides.data(), bytes.data() + sizeof packed + n * sizeof(int64_t),
                n * sizeof(int64_t));
  }
  return handle;
}

}  // namespace tenon::impl
