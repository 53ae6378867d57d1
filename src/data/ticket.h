// SPDX-License-Identifier: Apache-2.0
//
// What a worker fills: a number, and what it stands for.
#pragma once

#include <cstdint>

namespace tenon::impl {

// One batch of one epoch, and the request to fill it.
struct Ticket {
  int32_t slot = -1;
  uint64_t epoch = 0;
  uint64_t index = 0;                 // which batch it is: what it is filled from
  uint64_t place = 0;                 // of this rank, in the order of the epoch: data/order.h
  uint64_t number = 0;                // of the ticket: ipc/slot_table.h
  uint64_t round = 0;                 // the first number of its round: an epoch can begin several times
  uint64_t seed = 0, epoch_seed = 0;  // these and the rest: of tenon_fill_request, set with the request
  uint64_t flags = 0, restore_nbytes = 0;
};

}  // namespace tenon::impl
