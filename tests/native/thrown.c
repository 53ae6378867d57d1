/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the exceptions of C++ that a process throws, if it is loaded before the C++ library (LD_PRELOAD). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static int64_t count;

int64_t thrown(void) { return count; }

void __cxa_throw(void* exception, void* type, void (*destroy)(void*)) {
  typedef void throw_function(void*, void*, void (*)(void*));
  throw_function* const next = (throw_function*)(uintptr_t)dlsym(RTLD_NEXT, "__cxa_throw");
  __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
  next(exception, type, destroy);
  abort();
}
