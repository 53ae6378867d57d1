// SPDX-License-Identifier: Apache-2.0
//
// Names of shared memory: files in a directory that only this user can write. A file says which segment has
// the name, and which processes had it open when they took the name. Two locks of open file descriptions
// stand on it, which the kernel drops with the processes that have them:
//
//   byte 0   written to: the section in which a process makes, finds or removes the name
//   byte 1   read: a process keeps the name, because it has the segment
//
// So a file that no process keeps is what dead processes have left, whatever it says, and each process that
// finds it removes it. Only the process that has byte 0 of the file that the directory names removes that
// file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/os.h"
#include "ipc/layout.h"

namespace tenon::impl {

// A process that has the segment open as this descriptor.
struct NameUser {
  uint32_t pid = 0;  // 0: none
  int32_t fd = -1;
  uint64_t start = 0;
  uint64_t pid_namespace = 0;
};

// What a name's file says.
struct NameRecord {
  static constexpr size_t kHolders = 16;
  char mark[8] = {};
  SegmentId segment;
  NameUser holders[kHolders];
};

// Keeps a name for this process and its forked children as long as it lives.
using NameHold = os::File;

// The section of one name. At most one process and thread is in it.
class NameLock {
 public:
  enum class Make : bool { kNo, kYes };

  // Does not wait: state() says what came of it. make: the file where there is none. Fails with kSystem (the
  // directory cannot be used, no descriptor is left).
  NameLock(const std::string& name, Make make);
  NameLock(const NameLock&) = delete;
  NameLock& operator=(const NameLock&) = delete;
  // Removes the file if no process keeps the name.
  ~NameLock();

  // A process that is in the section, as os::holder_of_byte() finds it; 0: none is found.
  static uint32_t holder(const std::string& name);

  enum class NameState : uint8_t { kLocked, kBusy, kAbsent };
  NameState state() const noexcept { return state_; }

  // These require kLocked.

  // Some process keeps the name: in any PID or network namespace that has this directory.
  bool is_kept() const noexcept;
  // Nothing: the file is damaged, or of another version.
  std::optional<NameRecord> record() const noexcept;
  // Keeps the name, for a segment that this process has open: as one more holder, where the segment had the
  // name. Fails with kSystem.
  NameHold keep(const SegmentId& segment, int fd);
  // The name is free from then on, also where processes keep it.
  void remove() noexcept;
  // The same, and this is the lock of a new file from then on. False: another process has locked that one.
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

// Keeps the name of a segment that this process has opened in another way. Empty: the segment has the name no
// more. Does not wait.
NameHold keep_name(const std::string& name, const SegmentId& segment) noexcept;

// Removes the name if the segment has it. Best effort, does not wait: what is left is removed by the next
// process that comes.
void remove_name(const char* name, const SegmentId& segment) noexcept;

// Removes what dead processes have left in the directory: the number of files. Best effort.
size_t remove_names_of_the_dead() noexcept;

}  // namespace tenon::impl
