// SPDX-License-Identifier: Apache-2.0
//
// The lock of each place of a segment, as one open file description has them. A process holds that of
// its place as long as it maps the memory; a process that gives a dead one's place back holds it meanwhile.
// The kernel releases it when no thread can write through that any more: after the last thread of the
// process has ended, however it ends, and after exec.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/os.h"
#include "ipc/layout.h"

namespace tenon::impl {

// Threads: any.
class PlaceLocks {
 public:
  // The file must outlive the object.
  explicit PlaceLocks(const os::File& file) noexcept : file_(file) {}
  PlaceLocks(const PlaceLocks&) = delete;
  PlaceLocks& operator=(const PlaceLocks&) = delete;

  // False: another process has it, or another thread of this one.
  bool try_lock(uint32_t place) noexcept;
  void unlock(uint32_t place) noexcept;
  // No process has it: the one that had the place has ended. A system call.
  bool is_free(uint32_t place) const noexcept;

  // The file has a new description, which holds no lock.
  void become_child() noexcept;

 private:
  const os::File& file_;
  // Those that are held here: the kernel does not tell threads apart that share a description.
  std::atomic<uint64_t> held_[kParticipants / 64]{};
};

}  // namespace tenon::impl
