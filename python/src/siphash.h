// SPDX-License-Identifier: Apache-2.0
//
// SipHash-2-4 with 128 bits, a code of bytes that only who has the key can compute. By J.-P. Aumasson and
// D. J. Bernstein, "SipHash: a fast short-input PRF", 2012.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tenon::python {

using SipKey = std::array<uint64_t, 2>;
using SipCode = std::array<uint64_t, 2>;

inline SipCode siphash(const SipKey& key, std::string_view bytes) noexcept {
  static_assert(std::endian::native == std::endian::little);
  uint64_t v0 = key[0] ^ 0x736f6d6570736575, v1 = key[1] ^ 0x646f72616e646f6d ^ 0xee;
  uint64_t v2 = key[0] ^ 0x6c7967656e657261, v3 = key[1] ^ 0x7465646279746573;
  const auto mix = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      v0 += v1, v1 = std::rotl(v1, 13), v1 ^= v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16), v3 ^= v2;
      v0 += v3, v3 = std::rotl(v3, 21), v3 ^= v0;
      v2 += v1, v1 = std::rotl(v1, 17), v1 ^= v2, v2 = std::rotl(v2, 32);
    }
  };
  const auto take = [&](uint64_t word) {
    v3 ^= word;
    mix(2);
    v0 ^= word;
  };
  const size_t n = bytes.size(), whole = n / sizeof(uint64_t) * sizeof(uint64_t);
  for (size_t at = 0; at < whole; at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    take(word);
  }
  uint64_t last = 0;
  if (n != whole) std::memcpy(&last, bytes.data() + whole, n - whole);
  take(last | uint64_t{n} << 56);
  v2 ^= 0xee;
  mix(4);
  const uint64_t first = v0 ^ v1 ^ v2 ^ v3;
  v1 ^= 0xdd;
  mix(4);
  return {first, v0 ^ v1 ^ v2 ^ v3};
}

}  // namespace tenon::python
