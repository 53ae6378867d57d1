// SPDX-License-Identifier: Apache-2.0
//
// Writable arrays with the elements of read-only ones that other processes read, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "array/array.h"
#include "ipc/private_pages.h"

namespace tenon::impl {

// Shared mappings of this process where nobody writes to the bytes of a read-only storage as long as it
// exists: the slots of channels and of attached feeds. One for each process, never destroyed. Threads: any.
class LentMappings {
 public:
  static LentMappings& instance();

  struct Place {
    PrivatePages* pages = nullptr;
    uint64_t at = 0;          // the first byte, in the pages
    bool forks_here = false;  // before_fork() and after_fork() call those of the pages
  };
  // The mapped bytes are those of the place, until remove(). False: they were added before. Fails with
  // std::bad_alloc.
  bool add(const std::byte* data, uint64_t nbytes, const Place& place);
  // Requires that no storage is left on these pages.
  void remove(const PrivatePages& pages) noexcept;
  // Without pages: the bytes do not lie in one of the mappings.
  Place find(const Extent& extent) noexcept;

  void before_fork() noexcept;
  void after_fork() noexcept;

 private:
  struct Mapping {
    uintptr_t end;
    Place place;
  };
  std::mutex lock_;
  std::map<uintptr_t, Mapping> mappings_;  // by the first address; guarded by lock_
};

// From here on a receiver that only reads takes two thirds of the time of a copy, or less. One that writes
// everything takes five to seven times as long: the system copies each page when it is first written.
constexpr uint64_t kLeastPrivateNbytes = uint64_t{4} << 20;

// A writable storage on private pages with the bytes of a read-only storage, or of a part of it. They begin
// at `begin` in the pages. It keeps the read-only one. Null: the system refuses the pages. Fails with
// std::bad_alloc. Requires that nobody writes the bytes as long as the read-only storage exists.
Ref<Storage> on_private_pages(Storage& source, PrivatePages& pages, uint64_t begin, uint64_t nbytes);

// A writable array with the elements of a read-only array in a lent mapping. Nobody else sees what is written
// to it. A large one keeps the storage of the array and lies in private pages; else it is a copy. Null: the
// array does not lie so. Fails as copy(), and with kBuffer (it would be a copy, and may_copy is false).
Ref<Array> lazy_copy(const Array& array, bool may_copy);

}  // namespace tenon::impl
