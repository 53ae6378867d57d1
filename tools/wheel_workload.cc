// SPDX-License-Identifier: Apache-2.0
//
// The calls of C programs for whose counts the wheel is optimized (wheel_profile.py): leases, ops and
// items of a channel.
#include <tenon/channel.hpp>
#include <tenon/engine.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace {

constexpr int kOps = 100'000;
constexpr int kArrays = 1'000;

std::mt19937 random_numbers(1);

// Uses of one op: two arrays to read and one to write, or one to write.
using Uses = std::vector<tenon_use>;

Uses write_one(const tenon::Array& array) { return {{array.get(), TENON_WRITE, 0}}; }

Uses read_two_write_one(const std::vector<tenon::Array>& arrays) {
  std::array<std::size_t, 3> chosen{};
  for (std::size_t n = 0; n < chosen.size();) {
    chosen[n] = random_numbers() % arrays.size();
    bool is_new = true;
    for (std::size_t k = 0; k < n; ++k) is_new = is_new && chosen[k] != chosen[n];
    n += is_new ? 1 : 0;
  }
  return {{arrays[chosen[0]].get(), TENON_READ, 0},
          {arrays[chosen[1]].get(), TENON_READ, 0},
          {arrays[chosen[2]].get(), TENON_WRITE, 0}};
}

tenon_work body() {
  tenon_work work{};
  work.struct_size = sizeof work;
  work.run = [](void*, tenon_op* op) { tenon_op_complete(op); };
  return work;
}

void push(const std::vector<Uses>& bodies) {
  const tenon_work work = body();
  for (int i = 0; i < kOps; ++i) {
    const Uses& uses = bodies[static_cast<std::size_t>(i) % bodies.size()];
    tenon::call(tenon_push, &work, static_cast<int32_t>(uses.size()), uses.data(), nullptr);
  }
  tenon::call(tenon_wait_all, -1);
}

void run_ops() {
  std::vector<tenon::Array> arrays;
  for (int i = 0; i < kArrays; ++i) arrays.push_back(tenon::Array::zeros({8}, tenon::dtype_of<float>()));
  const std::vector<tenon::Array> some(arrays.begin(), arrays.begin() + 64);
  std::array<std::vector<Uses>, 3> kinds;  // independent, a chain, reads and writes at random
  for (const tenon::Array& array : arrays) {
    kinds[0].push_back(write_one(array));
    kinds[1].push_back(write_one(arrays[0]));
    kinds[2].push_back(read_two_write_one(some));
  }
  for (std::vector<Uses>& bodies : kinds) {
    push(bodies);
    for (Uses& uses : bodies) {
      for (tenon_use& use : uses) use.flags = TENON_BORROWED;
    }
    push(bodies);
  }
}

void lease() {
  const tenon::Array array = tenon::Array::zeros({8}, tenon::dtype_of<float>());
  for (int i = 0; i < kOps; ++i) {
    const tenon::Lease lease(array, i % 2 == 0 ? tenon::Access::kWrite : tenon::Access::kRead);
  }
}

void pass_items() {
  const std::vector<std::int64_t> shape{8};
  const tenon::Field field{"x", tenon::dtype_of<float>(), shape};
  const tenon::Channel channel = tenon::Channel::create(std::span(&field, 1), 4);
  for (int i = 0; i < kOps; ++i) {
    tenon::Item item = channel.loan();
    *static_cast<float*>(item.array(0).data()) = 1;
    item.send();
    const std::optional<tenon::Item> received = channel.receive();
    (void)received->array(0).data();
  }
}

}  // namespace

int main() {
  run_ops();
  lease();
  pass_items();
}
