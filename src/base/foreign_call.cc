// SPDX-License-Identifier: Apache-2.0
#include "base/foreign_call.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tenon::impl {

void sleep_for_ever() noexcept {
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  while (true) (void)pause();
}

void end_process(const char* kind, const char* name) noexcept {
  char text[512];
  const int n = std::snprintf(text, sizeof text,
                              "tenon: the process ends here: %s '%.200s' did not return, because %s. Only "
                              "threads of Tenon that run no "
                              "code of their caller can be replaced\n",
                              kind, name, kEndedThread);
  (void)!write(STDERR_FILENO, text, std::min(static_cast<size_t>(std::max(n, 0)), sizeof text - 1));
  std::abort();
}

}  // namespace tenon::impl
