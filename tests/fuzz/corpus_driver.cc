// SPDX-License-Identifier: Apache-2.0
//
// Calls a target with the files of a folder, and then with random mutations of them. It is not guided by
// coverage.
//
//     prototype_fuzz FOLDER EXECUTIONS [SEED]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> seeds_in(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::ranges::sort(paths);  // so that a seed of the mutations gives the same inputs everywhere
  std::vector<Bytes> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

void mutate(Bytes& bytes, const std::vector<Bytes>& seeds, std::mt19937_64& random) {
  const auto place = [&](size_t size) { return static_cast<ptrdiff_t>(random() % (size + 1)); };
  constexpr uint8_t kLiked[] = {0xff, 0x80, 0x7f, 0x01, 0x00, ' ', '"', '*', '(', ','};
  switch (random() % 5) {
    case 0:  // another byte
      if (!bytes.empty()) bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
      break;
    case 1: {  // up to eight other bytes, as of a number
      const size_t from = bytes.empty() ? 0 : random() % bytes.size();
      const size_t to = std::min(bytes.size(), from + (size_t{1} << random() % 4));
      for (size_t i = from; i < to; ++i) {
        bytes[i] = random() % 2 == 0 ? kLiked[random() % sizeof kLiked] : static_cast<uint8_t>(random());
      }
      break;
    }
    case 2: bytes.insert(bytes.begin() + place(bytes.size()), kLiked[random() % sizeof kLiked]); break;
    case 3: {  // without a part
      const ptrdiff_t from = place(bytes.size());
      const ptrdiff_t to = std::min<ptrdiff_t>(from + place(8), static_cast<ptrdiff_t>(bytes.size()));
      bytes.erase(bytes.begin() + from, bytes.begin() + to);
      break;
    }
    default: {  // with a part of another one
      const Bytes& other = seeds[random() % seeds.size()];
      const ptrdiff_t from = place(other.size());
      const ptrdiff_t to = std::min<ptrdiff_t>(from + place(16), static_cast<ptrdiff_t>(other.size()));
      bytes.insert(bytes.begin() + place(bytes.size()), other.begin() + from, other.begin() + to);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  const std::vector<Bytes> seeds = count > 2 ? seeds_in(words[1]) : std::vector<Bytes>();
  if (seeds.empty()) {
    std::fprintf(stderr, "usage: %s FOLDER EXECUTIONS [SEED]; the folder has at least one file\n", words[0]);
    return 2;
  }
  const long executions = std::strtol(words[2], nullptr, 10);
  const uint64_t seed = count > 3 ? std::strtoull(words[3], nullptr, 10) : std::random_device()();
  std::printf("%ld executions, seed %llu\n", executions, static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  for (const Bytes& bytes : seeds) (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  std::mt19937_64 random(seed);
  Bytes bytes;
  const auto began = std::chrono::steady_clock::now();
  for (long i = 0; i < executions; ++i) {
    bytes = seeds[random() % seeds.size()];
    for (uint64_t n = 1 + random() % 4; n > 0; --n) mutate(bytes, seeds, random);
    (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%.1f s, %.0f executions a second\n", took.count(),
              static_cast<double>(executions) / took.count());
  return 0;
}
