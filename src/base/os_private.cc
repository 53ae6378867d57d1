// SPDX-License-Identifier: Apache-2.0
//
// Private mappings of memory files. Which pages were written is read from /proc/self/pagemap
// (https://www.kernel.org/doc/html/latest/admin-guide/mm/pagemap.html). Its flags need no privilege; only the
// frame numbers do.
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/os.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace tenon::impl::os {
namespace {

// A page that this process has written is memory of its own, in a frame or in the swap space. A page of the
// file is either not entered, or marked as one.
bool is_own(uint64_t entry) noexcept {
  constexpr uint64_t kIsOfFile = uint64_t{1} << 61, kIsSwapped = uint64_t{1} << 62,
                     kIsPresent = uint64_t{1} << 63;
  return (entry & (kIsPresent | kIsSwapped)) != 0 && (entry & kIsOfFile) == 0;
}

// The entries of pages of this process. Opened each time: a descriptor shows the process that has opened it.
class PageMap {
 public:
  PageMap() noexcept : file_(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}
  // False: it cannot be read.
  bool read(const std::byte* address, uint64_t* entries, size_t n) const noexcept {
    const auto at =
        static_cast<off_t>(reinterpret_cast<uintptr_t>(address) / page_nbytes() * sizeof *entries);
    const auto nbytes = static_cast<ssize_t>(n * sizeof *entries);
    return file_ && pread(file_.fd(), entries, static_cast<size_t>(nbytes), at) == nbytes;
  }

 private:
  const File file_;
};

bool drop(std::byte* address, size_t nbytes) noexcept {
  if (madvise(address, nbytes, MADV_DONTNEED) == 0) return true;
  // Locked pages (mlock, mlockall) are not dropped.
  return munlock(address, nbytes) == 0 && madvise(address, nbytes, MADV_DONTNEED) == 0;
}

}  // namespace

File copy_of(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy >= 0) return File(copy).keep();
  const int error = errno;
  check_descriptors(error);
  throw_error(Code::kSystem, "the file descriptor ", fd, " cannot be copied: ", std::strerror(error));
}

bool has_huge_pages(const File& file) noexcept {
  struct statfs about{};
  return fstatfs(file.fd(), &about) != 0 || about.f_type == HUGETLBFS_MAGIC;
}

std::byte* map_private(const File& file, size_t offset, size_t nbytes) noexcept {
  const File own = open_again(file, false);
  if (!own || has_huge_pages(own)) return nullptr;
  // After mlockall(MCL_FUTURE), the system would copy all pages of a writable mapping at once.
  void* const mapped =
      mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, own.fd(), static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return nullptr;
  (void)madvise(mapped, nbytes, MADV_DONTDUMP);  // a dump would commit the pages that have no memory
  if (munlock(mapped, nbytes) == 0 && mprotect(mapped, nbytes, PROT_READ | PROT_WRITE) == 0)
    return static_cast<std::byte*>(mapped);
  munmap(mapped, nbytes);
  return nullptr;
}

bool is_written(const std::byte* address) noexcept {
  uint64_t entry = 0;
  return !PageMap().read(address, &entry, 1) || is_own(entry);
}

bool discard_written(std::byte* address, size_t nbytes) noexcept {
  constexpr size_t kAtOnce = 512;
  constexpr size_t kGap = 16;  // as many pages are entered again by one fault
  const size_t page = page_nbytes(), n = (nbytes + page - 1) / page;
  const PageMap map;
  uint64_t entries[kAtOnce];
  size_t begin = 0, end = 0;  // of pages to drop
  for (size_t at = 0; at < n; at += kAtOnce) {
    const size_t count = std::min(kAtOnce, n - at);
    if (!map.read(address + at * page, entries, count)) return drop(address, nbytes);
    for (size_t i = 0; i < count; ++i) {
      if (!is_own(entries[i])) continue;
      if (end == begin || at + i >= end + kGap) {
        if (end != begin && !drop(address + begin * page, (end - begin) * page)) return false;
        begin = at + i;
      }
      end = at + i + 1;
    }
  }
  return end == begin || drop(address + begin * page, (end - begin) * page);
}

void write_pages(std::byte* address, size_t nbytes) noexcept {
  if (madvise(address, nbytes, MADV_POPULATE_WRITE) == 0 || errno != EINVAL) return;
  for (size_t i = 0; i < nbytes; i += page_nbytes()) {  // before Linux 5.14
    const std::atomic_ref byte(reinterpret_cast<unsigned char&>(address[i]));
    unsigned char value = byte.load(std::memory_order_relaxed);
    (void)byte.compare_exchange_strong(value, value, std::memory_order_relaxed);  // else it was just written
  }
}

}  // namespace tenon::impl::os
