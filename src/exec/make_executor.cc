// SPDX-License-Identifier: Apache-2.0
//
// Executors by name.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "base/error.h"
#include "exec/executor.h"
#include "exec/inline_executor.h"
#include "exec/seeded_executor.h"
#include "exec/thread_pool.h"

namespace tenon::impl {
namespace {

constexpr std::string_view kSeeded = "seeded:";

int usable_processors() noexcept {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) == 0) return CPU_COUNT(&usable);
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));  // more than fit into the set
}

int checked_workers(int workers) {
  if (workers < 0 || workers > ThreadPool::kMostWorkers) {
    throw_error(Code::kValue, "executor: workers is ", workers, "; it is 1 to ", ThreadPool::kMostWorkers,
                ", or 0 for one for each processor");
  }
  return workers == 0 ? std::clamp(usable_processors(), 2, ThreadPool::kMostWorkers) : workers;
}

uint64_t parsed_seed(std::string_view name) {
  const std::string_view digits = name.substr(kSeeded.size());
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw_error(Code::kValue, "executor '", name, "': '", digits,
                "' is no seed; it is a number from 0 to 18446744073709551615, as in 'seeded:1'");
  }
  return seed;
}

}  // namespace

std::unique_ptr<Executor> make_executor(std::string_view name, int workers) {
  const int count = checked_workers(workers);
  if (name == "pool") return std::make_unique<ThreadPool>(count);
  if (name == "inline") return std::make_unique<InlineExecutor>();
  if (name.starts_with(kSeeded)) return std::make_unique<SeededExecutor>(parsed_seed(name));
  throw_error(Code::kValue, "there is no executor '", name,
              "'; there are 'pool', 'inline' and 'seeded:N' with a number N");
}

}  // namespace tenon::impl
