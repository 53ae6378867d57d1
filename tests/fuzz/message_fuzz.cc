// SPDX-License-Identifier: Apache-2.0
//
// Messages of tensor pools, which come from other processes, so they may be any bytes. The first byte of the
// input chooses what is done with a message. Each following pair of bytes is a place in a valid message and
// a mask that is combined with the byte there (exclusive or). Bit 7 of the first byte leaves bytes out at
// the end: as many as the second byte says.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "array/array.h"
#include "array/dtype.h"
#include "base/error.h"
#include "ipc/tensor_pool.h"

namespace tenon::impl {
namespace {

// A message that any number of processes may open, of two arrays that this process has kept.
struct Good {
  Ref<TensorPool> pool;
  std::vector<Ref<Array>> arrays;
  std::vector<std::byte> bytes;

  Good() {
    TensorPoolOptions options;
    options.budget_nbytes = 1 << 20;
    pool = TensorPool::create(options);
    constexpr std::array<int64_t, 2> kShape = {7, 5};
    for (const uint8_t bits : {uint8_t{32}, uint8_t{8}}) {
      const Ref<Array> array = pool->empty(DType(TENON_UINT, bits, 1), kShape, 0);
      arrays.push_back(pool->freeze(*array));
    }
    send();
  }

  void send() {
    const std::array<Array*, 2> sent = {arrays[0].get(), arrays[1].get()};
    bytes.resize(most_nbytes_of_message(sent));
    SendOptions options;
    options.opens = 0;
    bytes.resize(pool->send(sent, options, bytes));
  }
};

void touch(const Array& array) {
  const Extent extent = array.extent();
  if (extent.begin == extent.end) return;
  (void)*reinterpret_cast<const volatile char*>(extent.begin);
  (void)*reinterpret_cast<const volatile char*>(extent.end - 1);
}

void use(uint8_t how, std::span<const std::byte> message) {
  std::byte key[32];
  switch (how % 8) {
    case 0: (void)is_unopened_message(message); break;
    case 1: key_of_message(message, key); break;
    case 2: revoke_message(message); break;
    case 3: (void)take_over_message(message, 0); break;
    default:
      for (const Ref<Array>& array : open_message(message, how % 8 < 6)) touch(*array);
      break;
  }
}

void try_message(std::span<const uint8_t> input) {
  static auto* const good = new Good;
  if (input.empty()) return;
  std::vector<std::byte> message = good->bytes;
  for (size_t i = 1; i + 1 < input.size(); i += 2)
    message[input[i] % message.size()] ^= static_cast<std::byte>(input[i + 1]);
  if (input[0] >= 128 && input.size() > 1)
    message.resize(message.size() - std::min<size_t>(message.size(), input[1]));
  try {
    use(input[0], message);
  } catch (const Error&) {
  }
  // What was done with other bytes has not changed the message.
  try {
    if (open_message(good->bytes, true).size() != 2) std::abort();
  } catch (const Error& error) {
    if (error.code() != Code::kGone || input[0] % 8 != 2) std::abort();
    good->send();
  }
}

}  // namespace
}  // namespace tenon::impl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tenon::impl::try_message({data, size});
  return 0;
}
