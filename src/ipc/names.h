// SPDX-License-Identifier: Apache-2.0
//
// Names of shared memory: files in a directory that only this user can write. A file contains the id of the
// segment that has the name, and the processes that had the segment open when they took the name. Processes
// hold locks of open file descriptions on two bytes of the file. The kernel releases them when the process
// ends.
//
//   byte 0   write lock: held while a process creates, finds or removes the name
//   byte 1   read lock: a process keeps the name, because it has the segment
//
// If no process keeps the name, dead processes have left the file. The next process that finds it removes it.
// A file is removed only by a process that holds byte 0 of the file that the directory has under this name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/os.h"
#include "ipc/layout.h"

namespace tenon::impl {

// A process that has the segment open, with its descriptor.
struct NameUser {
  uint32_t pid = 0;  // 0: none
  int32_t fd = -1;
  uint64_t start = 0;
  uint64_t pid_namespace = 0;
};

// The contents of the file of a name.
struct NameRecord {
  static constexpr size_t kHolders = 16;
  char mark[8] = {};
  SegmentId segment;
  NameUser holders[kHolders];
};

// Keeps a name for this process and its forked children until it is closed.
using NameHold = os::File;

// The write lock of one name. At most one thread of one process has it.
class NameLock {
 public:
  enum class Make : bool { kNo, kYes };

  // Tries to lock it, without waiting: state() is the result. make: creates the file if there is none. Fails
  // with kSystem (the directory cannot be used, no descriptor is left).
  NameLock(const std::string& name, Make make);
  NameLock(const NameLock&) = delete;
  NameLock& operator=(const NameLock&) = delete;
  // Removes the file if no process keeps the name.
  ~NameLock();

  // A process that has the lock, as os::holder_of_byte() finds it; 0: none is found.
  static uint32_t holder(const std::string& name);

  enum class NameState : uint8_t { kLocked, kBusy, kAbsent };
  NameState state() const noexcept { return state_; }

  // The following functions require kLocked.

  // Some process keeps the name, in any PID or network namespace that has this directory.
  bool is_kept() const noexcept;
  // nullopt: the file is damaged, or of another version.
  std::optional<NameRecord> record() const noexcept;
  // Keeps the name for a segment that this process has open. If the segment has the name already, this
  // process becomes one more holder. Fails with kSystem.
  NameHold keep(const SegmentId& segment, int fd);
  // Removes the file: the name is free, even if processes keep it.
  void remove() noexcept;
  // The same, then creates and locks a new file. False: another process has locked the new file.
  bool renew();
  const std::string& path() const noexcept { return path_; }

 private:
  void lock_entry(Make make);

  std::string path_;
  std::string entry_;
  os::File folder_;
  os::File file_;
  NameState state_ = NameState::kAbsent;
};

// Keeps the name of a segment that this process has opened by a handle. Empty: the segment does not have the
// name any more. Does not wait.
NameHold keep_name(const std::string& name, const SegmentId& segment) noexcept;

// Removes the name if the segment has it. Best effort, does not wait. If it fails, the next process that uses
// names removes the file.
void remove_name(const char* name, const SegmentId& segment) noexcept;

// Removes the files that dead processes have left in the directory. Returns their number. Best effort.
size_t remove_names_of_the_dead() noexcept;

}  // namespace tenon::impl
