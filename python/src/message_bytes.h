// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a message of tenon.TensorPool: a head, five parts, and a code over all of these that only a
// process with the key of the sender's pool can compute (siphash.h). The key lies in the memory of the pool,
// which only processes of this user can open.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "python.h"
#include "siphash.h"

namespace tenon::python {

enum Part : size_t {
  kCore,    // what the C library has made: where the arrays are (tenon_tensor_pool_send)
  kTree,    // the object without its leaves (message_format.h)
  kArrays,  // what the leaves are, and how arrays are made of memory (tenon/_ipc/packing.py); "": no leaves
  kPickle,  // of leaves that are no arrays; "": there are none
  kSmall,   // the memory of small arrays
  kParts
};
using MessageParts = std::array<std::string_view, kParts>;

struct Message {
  MessageParts parts;
  uint32_t n_arrays = 0;  // of the core
};

nb::object join_message(const Message& message, const SipKey& key);

// The parts are views of the bytes. Throws ValueError if the bytes are no message. Does not check the code.
Message split_message(std::string_view bytes);

// Throws ValueError if the code is not that of the bytes. Requires: split_message() has accepted them.
void check_code(std::string_view bytes, const SipKey& key);

}  // namespace tenon::python
