// SPDX-License-Identifier: Apache-2.0
//
// The bytes that processes send to each other instead of a shared array: the place of its memory, its shape
// and its dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "array/dtype.h"
#include "base/os.h"
#include "ipc/segment.h"

namespace tenon::impl {

constexpr uint32_t kCountedOpens = 1u << 30;  // only so many processes may open it

// The part of fixed size, in the byte order of this machine: handles do not go to other machines.
struct HandleHead {
  char mark[8] = {'T', 'N', 'H', 'A', 'N', 'D', 'L', '1'};
  uint64_t boot = 0;
  uint64_t pid_namespace = 0;
  uint64_t start = 0;  // of the sender
  SegmentId segment;
  int64_t offset = 0;  // of element 0 from the beginning of the block
  uint32_t user = 0;
  uint32_t pid = 0;  // of the sender
  int32_t fd = -1;   // of the sender
  uint32_t block = 0;
  uint32_t generation = 0;
  uint32_t record = 0;  // of the message that keeps the storage: Segment::send
  DType dtype;
  uint32_t flags = 0;  // TENON_READONLY, TENON_SUBBYTE_PADDED, kCountedOpens
  int32_t ndim = 0;
  uint32_t message = 0;  // the generation of the record
};
static_assert(sizeof(HandleHead) == 96);

constexpr size_t kMostHandleBytes = sizeof(HandleHead) + 2 * kMostAxes * sizeof(int64_t);

struct ArrayHandle : HandleHead {
  std::vector<int64_t> shape;    // ndim entries
  std::vector<int64_t> strides;  // in elements

  os::Process sender() const { return {pid, start}; }
  MessageId sent() const noexcept { return {record, message}; }
  bool has_counted_opens() const noexcept { return (flags & kCountedOpens) != 0; }

  std::string encode() const;
  // Fails with kValue.
  static ArrayHandle decode(std::span<const std::byte> bytes);
};

// Of the bytes of a handle or a message, which name the boot of their sender's machine. Fails with kNotFound:
// it is not that of this process, or one of the two is not known.
void check_machine(const char* cannot, uint64_t boot);

}  // namespace tenon::impl
