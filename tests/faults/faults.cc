// SPDX-License-Identifier: Apache-2.0
#include "faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace tenon::faults {
namespace {

std::atomic<bool> is_armed{false};
std::atomic<Kind> armed_kind{Kind::kMemory};
std::atomic<long> countdown{0}, calls{0};
std::atomic<const char*> failed{nullptr};
void* frames[32];
int frame_count = 0;

// The number of calls from one line, with the same callers.
struct Place {
  std::atomic<uint64_t> key{0};  // 0: free
  std::atomic<int> calls{0};
};
constexpr size_t kPlaces = 1 << 14;
Place places[kPlaces];
std::atomic<int> calls_of_a_place{0};

bool is_of_interest() noexcept {
  const int most = calls_of_a_place.load(std::memory_order_relaxed);
  if (most == 0) return true;
  void* callers[24];  // a string takes ten of them where nothing is inlined
  const int n = backtrace(callers, 24);
  uint64_t key = 0xcbf29ce484222325;  // FNV-1a
  for (int i = 0; i < n; ++i) key = (key ^ reinterpret_cast<uintptr_t>(callers[i])) * 0x100000001b3;
  key |= 1;
  for (size_t i = key >> 50;; i = (i + 1) % kPlaces) {
    uint64_t found = 0;
    if (!places[i].key.compare_exchange_strong(found, key, std::memory_order_relaxed) && found != key)
      continue;
    return places[i].calls.fetch_add(1, std::memory_order_relaxed) < most;
  }
}

bool has_to_fail(Kind kind, const char* name) noexcept {
  if (!is_armed.load(std::memory_order_relaxed) || armed_kind.load(std::memory_order_relaxed) != kind) {
    return false;
  }
  if (!is_of_interest()) return false;
  (void)calls.fetch_add(1, std::memory_order_relaxed);
  if (countdown.fetch_sub(1, std::memory_order_relaxed) != 1) return false;
  frame_count = backtrace(frames, 32);
  failed.store(name, std::memory_order_relaxed);
  return true;
}

// The function of this name that this program has replaced.
template <class Function>
Function* original(const char* name) noexcept {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

void arm(Kind kind, long n, int most_of_a_place) noexcept {
  (void)backtrace(frames, 1);  // loads what it needs
  calls_of_a_place = most_of_a_place;
  armed_kind = kind;
  calls = 0;
  countdown = n;
  failed = nullptr;
  is_armed = true;
}

long disarm() noexcept {
  is_armed = false;
  return calls;
}

const char* failed_call() noexcept { return failed; }

void print_backtrace(int fd) noexcept { backtrace_symbols_fd(frames, frame_count, fd); }

}  // namespace tenon::faults

namespace {

using tenon::faults::has_to_fail;
using tenon::faults::Kind;
using tenon::faults::original;

void* allocate(size_t nbytes, size_t alignment) noexcept {
  if (has_to_fail(Kind::kMemory, "operator new")) return nullptr;
  void* memory = nullptr;
  return ::posix_memalign(&memory, alignment, nbytes != 0 ? nbytes : 1) == 0 ? memory : nullptr;
}
void* allocate_or_throw(size_t nbytes, size_t alignment = alignof(std::max_align_t)) {
  void* const memory = allocate(nbytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// ---------------------------------------------------------------------------------------- operator new

void* operator new(size_t n) { return allocate_or_throw(n); }
void* operator new[](size_t n) { return allocate_or_throw(n); }
void* operator new(size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<size_t>(a)); }
void* operator new[](size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<size_t>(a)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept {
  return allocate(n, alignof(std::max_align_t));
}
void* operator new[](size_t n, const std::nothrow_t&) noexcept {
  return allocate(n, alignof(std::max_align_t));
}
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, static_cast<size_t>(a));
}
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { ::free(p); }
void operator delete[](void* p) noexcept { ::free(p); }
void operator delete(void* p, size_t) noexcept { ::free(p); }
void operator delete[](void* p, size_t) noexcept { ::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { ::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { ::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { ::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { ::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { ::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { ::free(p); }

extern "C" {

// ------------------------------------------------------------------------- malloc, by the linker's --wrap
// Only of the library and of this program: allocations by the C library do not fail.

void* __real_malloc(size_t);
void* __real_calloc(size_t, size_t);
void* __real_realloc(void*, size_t);
void* __real_aligned_alloc(size_t, size_t);

void* __wrap_malloc(size_t n) { return has_to_fail(Kind::kMemory, "malloc") ? nullptr : __real_malloc(n); }
void* __wrap_calloc(size_t n, size_t size) {
  return has_to_fail(Kind::kMemory, "calloc") ? nullptr : __real_calloc(n, size);
}
void* __wrap_realloc(void* p, size_t n) {
  return has_to_fail(Kind::kMemory, "realloc") ? nullptr : __real_realloc(p, n);
}
void* __wrap_aligned_alloc(size_t alignment, size_t n) {
  return has_to_fail(Kind::kMemory, "aligned_alloc") ? nullptr : __real_aligned_alloc(alignment, n);
}

// ----------------------------------------------------------------- system calls, by a symbol of this program
// So calls of the C++ library can fail, too: streams and threads.

#define TENON_CALL(result, name, parameters, arguments, error, failure)         \
  __attribute__((visibility("default"))) result name parameters {               \
    static result(*const real) parameters = original<result parameters>(#name); \
    if (has_to_fail(Kind::kSystem, #name)) {                                    \
      errno = error;                                                            \
      return failure;                                                           \
    }                                                                           \
    return real arguments;                                                      \
  }

TENON_CALL(int, memfd_create, (const char* name, unsigned flags), (name, flags), EMFILE, -1)
TENON_CALL(int, fchmod, (int fd, mode_t mode), (fd, mode), EPERM, -1)
TENON_CALL(int, ftruncate, (int fd, off_t nbytes), (fd, nbytes), ENOSPC, -1)
TENON_CALL(int, fallocate, (int fd, int mode, off_t at, off_t nbytes), (fd, mode, at, nbytes), ENOSPC, -1)
TENON_CALL(int, fstat, (int fd, struct stat* out), (fd, out), ENOMEM, -1)
TENON_CALL(int, stat, (const char* path, struct stat* out), (path, out), ENOMEM, -1)
TENON_CALL(void*, mmap, (void* at, size_t nbytes, int protection, int flags, int fd, off_t offset),
           (at, nbytes, protection, flags, fd, offset), ENOMEM, reinterpret_cast<void*>(-1))
TENON_CALL(int, mprotect, (void* at, size_t nbytes, int protection), (at, nbytes, protection), ENOMEM, -1)
TENON_CALL(int, madvise, (void* at, size_t nbytes, int advice), (at, nbytes, advice), ENOMEM, -1)
TENON_CALL(FILE*, fopen64, (const char* path, const char* mode), (path, mode), EMFILE, nullptr)
TENON_CALL(DIR*, opendir, (const char* path), (path), EMFILE, nullptr)
TENON_CALL(ssize_t, readlink, (const char* path, char* out, size_t n), (path, out, n), ENOMEM, -1)
TENON_CALL(int, socket, (int domain, int type, int protocol), (domain, type, protocol), EMFILE, -1)
TENON_CALL(int, bind, (int fd, const sockaddr* address, unsigned n), (fd, address, n), ENOMEM, -1)
TENON_CALL(int, eventfd, (unsigned value, int flags), (value, flags), EMFILE, -1)
TENON_CALL(ssize_t, pread, (int fd, void* out, size_t n, off_t at), (fd, out, n, at), EIO, -1)
TENON_CALL(ssize_t, write, (int fd, const void* data, size_t n), (fd, data, n), ENOSPC, -1)
TENON_CALL(ssize_t, pwrite, (int fd, const void* data, size_t n, off_t at), (fd, data, n, at), ENOSPC, -1)
TENON_CALL(int, lstat, (const char* path, struct stat* out), (path, out), ENOMEM, -1)
TENON_CALL(int, fstatat, (int folder, const char* path, struct stat* out, int flags),
           (folder, path, out, flags), ENOMEM, -1)
TENON_CALL(DIR*, fdopendir, (int fd), (fd), ENOMEM, nullptr)
TENON_CALL(int, unlinkat, (int folder, const char* path, int flags), (folder, path, flags), EPERM, -1)
TENON_CALL(int, mkdir, (const char* path, mode_t mode), (path, mode), ENOSPC, -1)
TENON_CALL(int, rename, (const char* from, const char* to), (from, to), ENOSPC, -1)
TENON_CALL(int, flock, (int fd, int operation), (fd, operation), ENOLCK, -1)
TENON_CALL(int, poll, (pollfd * files, nfds_t n, int timeout_ms), (files, n, timeout_ms), ENOMEM, -1)

// Returns its error.
TENON_CALL(int, pthread_create,
           (pthread_t * thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument),
           (thread, attributes, run, argument), EAGAIN, EAGAIN)

// The argument mode exists only if a file may be created; otherwise its value is undefined and not used.
#define TENON_OPEN(name, parameters, arguments, last)                     \
  __attribute__((visibility("default"))) int name parameters {            \
    va_list rest;                                                         \
    va_start(rest, last);                                                 \
    const auto mode = static_cast<mode_t>(va_arg(rest, unsigned));        \
    va_end(rest);                                                         \
    static int(*const real) parameters = original<int parameters>(#name); \
    if (has_to_fail(Kind::kSystem, #name)) {                              \
      errno = EMFILE;                                                     \
      return -1;                                                          \
    }                                                                     \
    return real arguments;                                                \
  }

TENON_OPEN(open, (const char* path, int flags, ...), (path, flags, mode), flags)
TENON_OPEN(openat, (int folder, const char* path, int flags, ...), (folder, path, flags, mode), flags)

// Locks of files and seals; other commands are not failed.
__attribute__((visibility("default"))) int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  static auto* const real = original<int(int, int, ...)>("fcntl");
  const bool may_fail = command == F_ADD_SEALS || command == F_GET_SEALS || command == F_SETLK ||
                        command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW ||
                        command == F_DUPFD_CLOEXEC;
  if (may_fail && has_to_fail(Kind::kSystem, "fcntl")) {
    errno = ENOLCK;
    return -1;
  }
  return real(fd, command, argument);
}

// System calls without a function in older C libraries.
__attribute__((visibility("default"))) long syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  long words[6];
  for (long& word : words) word = va_arg(rest, long);
  va_end(rest);
  static auto* const real = original<long(long, ...)>("syscall");
  if (number == SYS_pidfd_open && has_to_fail(Kind::kSystem, "pidfd_open")) {
    errno = EMFILE;
    return -1;
  }
  return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

}  // extern "C"
