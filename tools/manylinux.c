/* SPDX-License-Identifier: Apache-2.0
 *
 * What newer versions of glibc and libstdc++ have, and those of manylinux_2_28 have not. Linked into each
 * library that tools/manylinux.py builds, with hidden names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Since glibc 2.32: 1 while the process has one thread. 0 is always right. */
char __libc_single_threaded = 0;

/* Functions since glibc 2.33. Until then, each program had its own. */
int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return (int)syscall(SYS_newfstatat, folder, path, out, flags);
}

int stat(const char* path, struct stat* out) { return fstatat(AT_FDCWD, path, out, 0); }

int lstat(const char* path, struct stat* out) { return fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW); }

int fstat(int file, struct stat* out) { return fstatat(file, "", out, AT_EMPTY_PATH); }

int fstat64(int file, struct stat64* out) {
  return (int)syscall(SYS_newfstatat, file, "", out, AT_EMPTY_PATH);
}

/* The time of another clock as one of CLOCK_REALTIME, as libstdc++ converts it for older glibc. */
static struct timespec on_realtime(clockid_t clock, const struct timespec* time) {
  struct timespec there, here;
  clock_gettime(clock, &there);
  clock_gettime(CLOCK_REALTIME, &here);
  long long seconds = (long long)time->tv_sec - there.tv_sec + here.tv_sec;
  long ns = time->tv_nsec - there.tv_nsec + here.tv_nsec; /* -10^9 < ns < 2 * 10^9 */
  if (ns < 0 || ns >= 1000000000) {
    seconds += ns < 0 ? -1 : 1;
    ns += ns < 0 ? 1000000000 : -1000000000;
  }
  here.tv_sec = (time_t)(seconds < 0 ? 0 : seconds);
  here.tv_nsec = ns;
  return here;
}

/* Since glibc 2.30. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* time) {
  const struct timespec until = on_realtime(clock, time);
  return pthread_cond_timedwait(condition, mutex, &until);
}

int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const struct timespec* time) {
  const struct timespec until = on_realtime(clock, time);
  return pthread_mutex_timedlock(mutex, &until);
}

/* The rest is of libstdc++, with the functions that do the same since GLIBCXX_3.4.25 or earlier. */

/* GLIBCXX_3.4.29: std::__throw_bad_array_new_length(). */
void __cxa_throw_bad_array_new_length(void);

void _ZSt28__throw_bad_array_new_lengthv(void) { __cxa_throw_bad_array_new_length(); }

/* GLIBCXX_3.4.30: std::condition_variable::wait(std::unique_lock<std::mutex>&). Both begin with what it
 * uses. */
void _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(pthread_cond_t* condition,
                                                               pthread_mutex_t** lock) {
  pthread_cond_wait(condition, *lock);
}

/* CXXABI_1.3.13: the count of a std::exception_ptr. Its constructor and destructor were functions of
 * libstdc++ before, and still are. They are looked up, because the code to link has its own ones, which call
 * these. */
void _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(void** self) {
  static void (*construct)(void**, void* const*);
  void* copy;
  if (construct == NULL) {
    *(void**)&construct = dlsym(RTLD_DEFAULT, "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
  }
  construct(&copy, self);
}

void _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(void** self) {
  static void (*destruct)(void**);
  void* copy = *self;
  if (destruct == NULL) {
    *(void**)&destruct = dlsym(RTLD_DEFAULT, "_ZNSt15__exception_ptr13exception_ptrD1Ev");
  }
  destruct(&copy);
}
