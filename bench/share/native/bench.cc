// SPDX-License-Identifier: Apache-2.0
//
// The list of contenders, for bench/share/native.py, which calls this by ctypes.
#include "party.h"

#include <exception>
#include <vector>

#ifndef TENON_BENCH_HAS_BOOST
const char* bench::boost_version() { return ""; }
#endif

namespace {

std::vector<bench::Contender> all_contenders() {
  std::vector<bench::Contender> all;
  const auto add = [&](std::span<const bench::Contender> some) {
    all.insert(all.end(), some.begin(), some.end());
  };
#ifdef TENON_BENCH_IS_TENON
  add(bench::tenon_contenders());
#else
  add(bench::raw_contenders());
  add(bench::recovery_contenders());
#endif
#ifdef TENON_BENCH_HAS_BOOST
  add(bench::boost_contenders());
#endif
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
auto guarded(F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& e) {
    last_error() = e.what();
    return {};
  }
}

}  // namespace

#define TENON_BENCH_API __attribute__((visibility("default")))

extern "C" {

// Null behind the last.
TENON_BENCH_API const char* share_contender(std::size_t i) {
  return i < contenders().size() ? contenders()[i].name : nullptr;
}

TENON_BENCH_API const char* share_group(std::size_t i) { return contenders().at(i).group; }

TENON_BENCH_API const char* share_versions() { return bench::boost_version(); }

TENON_BENCH_API std::size_t share_memory_bytes() { return bench::kMemoryBytes; }

TENON_BENCH_API const char* share_last_error() { return last_error().c_str(); }

// Null on failure.
TENON_BENCH_API void* share_open(std::size_t i, void* memory, const char* name, int is_producer) {
  return guarded([&]() -> void* {
    const bench::Side side{static_cast<char*>(memory), name, is_producer != 0};
    return contenders().at(i).open(side).release();
  });
}

TENON_BENCH_API void share_set_up(void* party) { static_cast<bench::Party*>(party)->set_up(); }

// Not 0 on success.
TENON_BENCH_API int share_turn(void* party, int64_t n, int64_t* stamps) {
  return guarded([&] {
    static_cast<bench::Party*>(party)->turn(n, stamps);
    return 1;
  });
}

TENON_BENCH_API void share_close(void* party) { delete static_cast<bench::Party*>(party); }

}  // extern "C"
