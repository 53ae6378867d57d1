// SPDX-License-Identifier: Apache-2.0
//
// The locks of the places of a segment: byte locks of the memory file, held by one open file description. A
// process holds the lock of its place as long as it maps the memory. A process that frees the place of a dead
// process holds its lock meanwhile. The kernel releases the lock when no thread can write to the memory any
// more: after the end of the last thread of the process, for any reason, and after exec.
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
  // Instead of a place: the lock of the process that cleans up after the creator (cleaner.h).
  static constexpr uint32_t kCleaner = kParticipants;
  PlaceLocks(const PlaceLocks&) = delete;
  PlaceLocks& operator=(const PlaceLocks&) = delete;

  // False: another process holds it, or another thread of this process.
  bool try_lock(uint32_t place) noexcept;
  void unlock(uint32_t place) noexcept;
  // No process holds it: the process that had the place has ended. Makes a system call.
  bool is_free(uint32_t place) const noexcept;

  // In a forked child: the file has a new open file description, which holds no lock.
  void become_child() noexcept;

 private:
  const os::File& file_;
  // The locks that this process holds: for the kernel, all threads that share a description are one owner.
  std::atomic<uint64_t> held_[kParticipants / 64 + 1]{};
};

}  // namespace tenon::impl
