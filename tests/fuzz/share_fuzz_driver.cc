// SPDX-License-Identifier: Apache-2.0
//
// Calls the target of share_fuzz.cc with random mutations: a few bytes of zeros are changed, with a liking
// for values at limits. No guidance by coverage.
//
//     share_fuzz_driver EXECUTIONS [SEED]
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int count, char** words) {
  const long executions = count > 1 ? std::strtol(words[1], nullptr, 10) : 100'000;
  const uint64_t seed = count > 2 ? std::strtoull(words[2], nullptr, 10) : std::random_device()();
  std::printf("%ld executions, seed %llu\n", executions, static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes;
  const auto began = std::chrono::steady_clock::now();
  for (long i = 0; i < executions; ++i) {
    bytes.assign(1 + random() % 900, 0);
    bytes[0] = static_cast<uint8_t>(random());
    for (uint64_t n = random() % 5; n > 0; --n) {
      const size_t at = random() % bytes.size();
      constexpr uint8_t kLiked[] = {0xff, 0x80, 0x7f, 0x01};
      for (size_t k = at; k < bytes.size() && k < at + (size_t{1} << random() % 4); ++k) {
        bytes[k] = random() % 2 == 0 ? kLiked[random() % 4] : static_cast<uint8_t>(random());
      }
    }
    (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%.1f s\n", took.count());
  return 0;
}
