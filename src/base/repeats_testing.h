// SPDX-License-Identifier: Apache-2.0
//
// How often the repeated tests repeat: moderate counts, and full ones with TENON_SOAK=1 (make soak). And the
// seed of random ones, which TENON_SEED sets.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <type_traits>

namespace tenon::impl {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kHasSanitizer = true;
#else
constexpr bool kHasSanitizer = false;
#endif

inline bool is_soak() { return std::getenv("TENON_SOAK") != nullptr; }

// A program under a sanitizer is 5 to 20 times slower, so it has a tenth of the full count.
template <class T>
T repeats(T full, std::type_identity_t<T> moderate, std::type_identity_t<T> sanitized) {
  if (is_soak()) return kHasSanitizer ? full / 10 : full;
  return kHasSanitizer ? sanitized : moderate;
}
template <class T>
T repeats(T full, std::type_identity_t<T> moderate) {
  return repeats(full, moderate, moderate);
}

inline uint64_t new_seed() {
  const char* const given = std::getenv("TENON_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
}

}  // namespace tenon::impl
