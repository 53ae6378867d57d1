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
#include "ipc/layout.h"

namespace tenon::impl {

constexpr size_t kMostHandleBytes = 96 + 2 * kMostAxes * sizeof(int64_t);

struct ArrayHandle {
  uint64_t boot = 0;
  uint64_t pid_namespace = 0;
  uint32_t user = 0;
  os::Process sender;
  int32_t fd = -1;  // of the sender
  SegmentId segment;
  uint32_t block = 0;
  uint32_t generation = 0;
  uint32_t number = 0;  // keeps the storage until the handle is opened: Segment::send
  int64_t offset = 0;   // of element 0 from the beginning of the block
  DType dtype;
  uint32_t flags = 0;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements

  std::string encode() const;
  // Fails with kValue.
  static ArrayHandle decode(std::span<const std::byte> bytes);
};

}  // namespace tenon::impl
