// SPDX-License-Identifier: Apache-2.0
#include "data/packed_states.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/error.h"

namespace tenon::impl {
namespace {

WorkerState state_of(size_t nbytes) {
  return {std::make_shared<const std::vector<std::byte>>(nbytes, std::byte{7}), 0};
}

TEST(PackedStates, AreUnpackedAsTheyWere) {
  const std::vector<WorkerState> states = {state_of(0), {}, state_of(3), state_of(16), state_of(17)};
  const std::vector<std::byte> packed = pack_states(states);
  const std::vector<WorkerState> found = unpack_states(packed, states.size());
  for (size_t i = 0; i < states.size(); ++i) {
    ASSERT_EQ(found[i].bytes == nullptr, states[i].bytes == nullptr) << i;
    if (states[i].bytes) {
      EXPECT_EQ(*found[i].bytes, *states[i].bytes);
    }
  }
}

// What another process has written.
TEST(PackedStates, DamagedOnesAreRefused) {
  const std::vector<std::byte> packed = pack_states({state_of(20), state_of(4)});
  for (size_t n = 0; n < packed.size(); n += 8) {
    const std::vector<std::byte> cut(packed.begin(), packed.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_THROW((void)unpack_states(cut, 2), Error) << n;
  }
  EXPECT_THROW((void)unpack_states(packed, SIZE_MAX), Error);
  std::vector<std::byte> large = packed;
  large[7] = std::byte{0x7F};
  EXPECT_THROW((void)unpack_states(large, 2), Error);
}

}  // namespace
}  // namespace tenon::impl
