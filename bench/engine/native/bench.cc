// SPDX-License-Identifier: Apache-2.0
//
// The list of contenders and steps, for bench/engine/native.py, which calls this by ctypes.
#include "bench.h"

#include <exception>
#include <string>
#include <vector>

namespace {

std::vector<bench::Contender> all_contenders() {
  const auto ours = bench::tenon_contenders();
  std::vector<bench::Contender> all(ours.begin(), ours.end());
  all.push_back(bench::tenon_executor);
#ifdef TENON_BENCH_HAS_TBB
  all.push_back(bench::layer_on_tbb);
#endif
#ifdef TENON_BENCH_HAS_TASKFLOW
  all.push_back(bench::layer_on_taskflow);
#endif
#ifdef TENON_BENCH_HAS_STDEXEC
  all.push_back(bench::layer_on_stdexec);
#endif
#ifdef TENON_BENCH_HAS_OPENMP
  all.push_back(bench::openmp);
#endif
#ifdef TENON_BENCH_HAS_MXNET
  all.push_back(bench::mxnet);
#endif
  return all;
}

const std::vector<bench::Step>& steps() {
  static const std::vector<bench::Step> all = [] {
    const auto ours = bench::steps();
    std::vector<bench::Step> made(ours.begin(), ours.end());
#ifdef TENON_BENCH_HAS_MXNET
    made.push_back(bench::mxnet_step);
#endif
    return made;
  }();
  return all;
}

const std::vector<bench::Contender>& contenders() {
  static const std::vector<bench::Contender> all = all_contenders();
  return all;
}

std::string& last_error() {
  static std::string text;
  return text;
}

template <class F>
int64_t guarded(F f) {
  try {
    return f();
  } catch (const std::exception& e) {
    last_error() = e.what();
    return -1;
  }
}

}  // namespace

#define TENON_BENCH_API __attribute__((visibility("default")))

extern "C" {

// Null behind the last.
TENON_BENCH_API const char* bench_contender(size_t i) {
  return i < contenders().size() ? contenders()[i].name : nullptr;
}

TENON_BENCH_API const char* bench_step(size_t i) { return i < steps().size() ? steps()[i].name : nullptr; }

TENON_BENCH_API const char* bench_last_error() { return last_error().c_str(); }

// Nanoseconds for n ops; -1 on failure.
TENON_BENCH_API int64_t bench_elapsed_ns(size_t i, int which, int workers, int64_t n) {
  return guarded([&] { return contenders().at(i).elapsed_ns(static_cast<bench::Case>(which), workers, n); });
}

// 0, or -1 on failure.
TENON_BENCH_API int64_t bench_check(size_t i, int which, int workers, int64_t n, int64_t* bodies,
                                    int64_t* violations) {
  return guarded([&] {
    const bench::Found found = contenders().at(i).check(static_cast<bench::Case>(which), workers, n);
    *bodies = found.bodies;
    *violations = found.violations;
    return 0;
  });
}

// Nanoseconds for n steps; -1 on failure.
TENON_BENCH_API int64_t bench_step_ns(size_t i, int64_t n) {
  return guarded([&] { return i < steps().size() ? steps()[i].elapsed_ns(n) : -1; });
}

}  // extern "C"
