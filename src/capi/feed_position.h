// SPDX-License-Identifier: Apache-2.0
//
// Positions of feeds at the C boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "capi/boundary.h"
#include "data/ticket_ring.h"

namespace tenon::impl::capi {

inline FeedPosition position_in(const tenon_feed_place* place, const tenon_worker_state* states) {
  not_null(place, "place");
  check_struct_size(place->struct_size, sizeof(tenon_feed_place), "tenon_feed_place");
  if (place->workers > 0) not_null(states, "states");
  FeedPosition position{.epoch = place->epoch,
                        .place = place->place,
                        .worker = place->worker,
                        .ignored_index = place->ignored_index != 0,
                        .states = {}};
  for (int32_t worker = 0; worker < place->workers; ++worker) {
    const auto* const data = static_cast<const std::byte*>(states[worker].data);
    WorkerState state;
    if (data != nullptr)
      state.bytes = std::make_shared<const std::vector<std::byte>>(data, data + states[worker].nbytes);
    position.states.push_back(std::move(state));
  }
  return position;
}

}  // namespace tenon::impl::capi
