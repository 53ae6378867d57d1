// SPDX-License-Identifier: Apache-2.0
//
// Writable memory with the bytes of shared pages, of which no other process sees a write: a page is copied
// when this process writes to it. Until then it is the shared page itself, so what another process writes
// there would show: open a range only while nobody writes its bytes, and keep them so until its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/os.h"

namespace tenon::impl {

// Private mappings of a range of a memory file in this process. They are made when they are needed, and kept,
// because the pages of a new mapping are entered one after the other at their first use. A mapping covers
// the whole range and commits nothing. Ranges that are open at the same time and share a page lie in
// different mappings.
//
// Threads: any. Requires that the file lives as long as this.
class PrivatePages {
 public:
  // The bytes of the file from at on; at is a multiple of a page.
  PrivatePages(const os::File& file, uint64_t at, uint64_t nbytes) noexcept
      : file_(file), at_(at), nbytes_(nbytes) {}
  PrivatePages(const PrivatePages&) = delete;
  PrivatePages& operator=(const PrivatePages&) = delete;
  // Requires that no range is open.
  ~PrivatePages();

  // The bytes from begin on, as they are in the shared pages now. The addresses are those of whole pages
  // around them, which no other caller gets until end(). Costs some system calls, and no look at the bytes.
  // Null: the caller makes a copy, because the system refuses the mapping (ulimit -v, overcommit), or
  // kMostMappings private uses of these pages are open.
  std::byte* open(uint64_t begin, uint64_t nbytes) noexcept;
  // Frees the pages that were written there. address: from open().
  void end(std::byte* address) noexcept;

  // From now on, forks copy the pages of open ranges, because a child does not keep others from writing to
  // the bytes, as its parent does.
  void copy_at_forks() noexcept;
  // Before a fork. The child inherits the open ranges, with what was written there. is_unkept: as
  // copy_at_forks(), for this fork.
  void before_fork(bool is_unkept) noexcept;
  // In both processes.
  void after_fork() noexcept { lock_.unlock(); }

  static constexpr size_t kMostMappings = 4;

 private:
  struct Pages {
    uint64_t end;
    bool is_ending;
  };
  struct Mapping {
    std::byte* base;
    std::map<uint64_t, Pages> open;  // by the first byte; disjoint
  };
  static bool is_free(const Mapping& mapping, uint64_t begin, uint64_t end) noexcept;
  std::byte* take(uint64_t begin, uint64_t end);

  const os::File& file_;
  const uint64_t at_;
  const uint64_t nbytes_;

  std::mutex lock_;
  // Guarded by lock_.
  std::vector<Mapping> mappings_;
  bool copies_at_forks_ = false;
};

}  // namespace tenon::impl
