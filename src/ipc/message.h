// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a message of a tensor pool: its record, and where its arrays lie. They follow each other:
//
//   MessageHead
//   MessageSegment[segments]   the segments of arrays that lie in pools of other processes
//   for each array: MessageArray, its shape, its strides
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "array/array.h"
#include "base/os.h"
#include "ipc/layout.h"
#include "ipc/message_table.h"
#include "tenon/pool.h"

namespace tenon::impl {

// In the byte order of this machine: messages do not go to other machines.
struct MessageHead {
  char mark[8] = {'T', 'N', 'M', 'S', 'G', '0', '0', '1'};
  uint64_t boot = 0;
  uint64_t pid_namespace = 0;
  uint64_t start = 0;  // of the sender
  SegmentId segment;   // of its pool
  uint32_t user = 0;
  uint32_t pid = 0;  // of the sender
  int32_t fd = -1;   // of the pool, in the sender
  uint32_t record = 0;
  uint32_t generation = 0;
  uint32_t segments = 0;  // besides that of the pool
  uint32_t arrays = 0;
  uint32_t reserved = 0;

  MessageId id() const noexcept { return {record, generation}; }
};
static_assert(sizeof(MessageHead) == 80);

// Fails with kGone. what: "message", "handle".
[[noreturn]] void throw_gone(MessageStatus why, const char* what, uint32_t sender);

struct MessageSegment {
  SegmentId id;
  int32_t fd = -1;  // in the sender
  uint32_t reserved = 0;
};

constexpr uint32_t kHandedOver = 1u << 31;  // of MessageArray::flags: the sender has kept nothing of it

struct MessageArray {
  int64_t offset = 0;    // of element 0 from the beginning of the block
  uint32_t segment = 0;  // 0: of the pool; else one more than the index in the list
  uint32_t block = 0;
  uint32_t generation = 0;
  DType dtype;
  uint32_t flags = 0;  // TENON_SUBBYTE_PADDED, kHandedOver
  int32_t ndim = 0;
};
static_assert(sizeof(MessageArray) == 32 && sizeof(MessageArray) >= TENON_MESSAGE_NBYTES_PER_ARRAY);

struct ReadArray : MessageArray {
  Dims shape, strides;  // in the bytes of the message
};

constexpr size_t message_nbytes(const MessageArray& array) noexcept {
  return sizeof(MessageArray) + 2 * static_cast<size_t>(array.ndim) * sizeof(int64_t);
}

// A message whose bytes were checked: every number of the bytes is inside of them.
struct ReadMessage : MessageHead {
  std::vector<int64_t> numbers;  // of the shapes and strides, as the bytes may not be aligned
  std::vector<MessageSegment> list;
  std::vector<ReadArray> all;

  os::Process sender() const noexcept { return {pid, start}; }
  // Fails with kValue.
  static ReadMessage read(std::span<const std::byte> bytes);
  // Only the head.
  static MessageHead head_of(std::span<const std::byte> bytes);
};

}  // namespace tenon::impl
