// SPDX-License-Identifier: Apache-2.0
// reduce.cc - c++ -std=c++20 reduce.cc -ltenon -o reduce
//
// Two generators fill arrays side by side, round after round; one op adds up what they made. No code names a
// thread or a lock: each op says what it reads and writes, and the order of the pushes does the rest.
#include <cstdint>
#include <cstdio>
#include <tenon/engine.hpp>

using tenon::View;

int main() {
  constexpr int64_t kRounds = 10, kSize = 1000;
  auto even = tenon::Array::empty<int64_t>({kSize});
  auto odd = tenon::Array::empty<int64_t>({kSize});
  auto sum = tenon::Array::zeros<int64_t>({});
  try {
    for (int64_t round = 0; round < kRounds; ++round) {
      const auto generate = [round](int64_t first) {
        return [=](View<int64_t, 1> out) {
          for (int64_t i = 0; i < out.size(); ++i) out(i) = 2 * (round * kSize + i) + first;
        };
      };
      tenon::push(generate(0), tenon::overwrite(even));
      tenon::push(generate(1), tenon::overwrite(odd));
      const auto reduce = [](View<const int64_t, 1> a, View<const int64_t, 1> b, View<int64_t, 0> total) {
        for (int64_t i = 0; i < a.size(); ++i) total() += a(i) + b(i);
      };
      tenon::push(reduce, tenon::read(even), tenon::read(odd), tenon::write(sum));
    }
    const auto lease = sum.read();  // waits for the last of them
    const int64_t total = lease.view<const int64_t, 0>()();
    constexpr int64_t kCount = 2 * kRounds * kSize;
    std::printf("the sum of 0 to %d is %lld\n", static_cast<int>(kCount - 1), static_cast<long long>(total));
    return total == kCount * (kCount - 1) / 2 ? 0 : 1;
  } catch (const tenon::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
