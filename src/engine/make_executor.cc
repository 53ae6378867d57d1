// SPDX-License-Identifier: Apache-2.0
//
// Executors by name, and the way to the one that lies in a library of its own.
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <string>

#include "base/error.h"
#include "engine/executor.h"
#include "engine/inline_executor.h"
#include "engine/pool.h"
#include "engine/seeded_executor.h"
#include "engine/tbb_executor.h"

namespace tenon::engine {
namespace {

constexpr std::string_view kSeeded = "seeded:";

int usable_processors() noexcept {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) == 0) return CPU_COUNT(&usable);
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));  // more than fit into the set
}

int checked_workers(int workers) {
  if (workers < 0 || workers > Pool::kMostWorkers) {
    throw_error(Code::kValue, "executor: workers is ", workers, "; it is 1 to ", Pool::kMostWorkers,
                ", or 0 for one for each processor");
  }
  return workers == 0 ? std::clamp(usable_processors(), 2, Pool::kMostWorkers) : workers;
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

// The file that code stands in, as the kernel knows it (proc(5), "/proc/pid/maps"): a path from the root,
// also where it was loaded by another one and the process has changed its folder since.
std::string file_of(const void* code) {
  std::ifstream maps("/proc/self/maps");
  const auto address = reinterpret_cast<uintptr_t>(code);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx", &begin, &end) != 2 || address < begin || address >= end)
      continue;
    const size_t path = line.find('/');
    return path == std::string::npos ? "" : line.substr(path);
  }
  return "";
}

// Beside the library, or the program, that this code stands in.
std::string tbb_library_path() {
  const std::string file = file_of(reinterpret_cast<const void*>(&make_tbb_executor));
  return file.substr(0, file.rfind('/') + 1) + "libtenon_tbb.so";
}

}  // namespace

std::unique_ptr<Executor> make_tbb_executor(const std::string& path, int workers) {
  if (access(path.c_str(), F_OK) != 0) {
    throw_error(Code::kNotFound, "executor 'tbb': there is no ", path,
                ": this build of Tenon has no oneTBB; install it (Debian: libtbb-dev) and build Tenon again, "
                "or use 'pool'");
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library != nullptr ? dlsym(library, kTbbExecutorFactory) : nullptr;
  if (symbol == nullptr) {
    const char* const reason = dlerror();
    throw_error(Code::kNotFound, "executor 'tbb': ", reason != nullptr ? reason : path,
                "; install oneTBB (Debian: libtbb12), or use 'pool'");
  }
  char message[256] = "";
  const auto factory = reinterpret_cast<TbbExecutorFactory>(symbol);
  std::unique_ptr<Executor> executor(factory(workers, message, sizeof message));
  if (executor == nullptr) throw_error(Code::kSystem, "executor 'tbb': oneTBB does not start: ", message);
  return executor;
}

std::unique_ptr<Executor> make_executor(std::string_view name, int workers) {
  const int count = checked_workers(workers);
  if (name == "pool") return std::make_unique<Pool>(count);
  if (name == "tbb") return make_tbb_executor(tbb_library_path(), count);
  if (name == "inline") return std::make_unique<InlineExecutor>();
  if (name.starts_with(kSeeded)) return std::make_unique<SeededExecutor>(parsed_seed(name));
  throw_error(Code::kValue, "there is no executor '", name,
              "'; there are 'pool', 'tbb', 'inline' and 'seeded:N' with a number N");
}

}  // namespace tenon::engine
