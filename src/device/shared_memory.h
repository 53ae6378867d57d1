// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU that several processes use: one of them allocates it, the others map it. Knows nothing of
// their turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/device.h"

namespace tenon::impl::device {

// What another process needs to map the memory. Lies in memory of several processes.
struct SharedMemoryRecord {
  int32_t type = 0;  // of the device
  uint32_t reserved = 0;
  uint64_t nbytes = 0;
  DeviceUuid device;
  MemoryHandle handle;
};
static_assert(sizeof(SharedMemoryRecord) == 96);

// In one process. The destructor gives the memory back, or the mapping of it; in a forked child it does
// nothing, because both are the parent's.
class SharedMemory {
 public:
  // New memory. When this returns, it is there for all streams of all processes. Other processes may map it
  // until its destructor, which requires that none has it mapped. Fails as Device::of, kNoMemory, kSystem
  // (the driver cannot share memory of the device).
  static std::unique_ptr<SharedMemory> create(tenon_device device, uint64_t nbytes, bool is_zeroed);
  // Maps memory of another process. Fails with kNotFound (this process does not see the device), kSystem.
  static std::unique_ptr<SharedMemory> open(const SharedMemoryRecord& record);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  tenon_device device() const noexcept { return device_.id(); }
  // False in a forked child.
  bool is_usable() const noexcept { return device_.is_usable(); }
  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  const SharedMemoryRecord& record() const noexcept { return record_; }

 private:
  SharedMemory(Device& device, bool is_own) noexcept : device_(device), is_own_(is_own) {}

  Device& device_;
  const bool is_own_;
  void* data_ = nullptr;
  SharedMemoryRecord record_;
};

}  // namespace tenon::impl::device
