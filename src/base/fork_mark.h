// SPDX-License-Identifier: Apache-2.0
//
// Tells a process from its forked child without a system call: a page that the kernel clears in the
// child (madvise MADV_WIPEONFORK, Linux 4.14). Threads do not survive a fork, so an object that runs
// threads must not wait for them, or for their locks, in the child.
#pragma once

#include <cstdint>

namespace tenon::impl {

// Remembers the process in which it was created. Threads: any.
class ForkMark {
 public:
  ForkMark() noexcept : mark_(current()) {}
  // This process is a forked child of the process in which the mark was created.
  bool is_child() const noexcept { return current() != mark_; }
  // The mark of this process: never 0, and different from those of its parent and the parent's parents.
  static uint64_t current() noexcept;

 private:
  uint64_t mark_;
};

}  // namespace tenon::impl
