// SPDX-License-Identifier: Apache-2.0
//
// Requests as a feed makes them, for tests that call generators themselves.
#pragma once

#include <cstdint>

#include "tenon/tenon.h"

namespace tenon::impl {

// Of 4 rows.
inline tenon_fill_request request_of(int32_t worker, void* const* fields, uint64_t index, uint64_t epoch,
                                     uint64_t seed) {
  tenon_fill_request request{};
  request.struct_size = sizeof request;
  request.worker = worker;
  request.fields = fields;
  request.rows = 4;
  request.index = index;
  request.epoch = epoch;
  request.seed = seed;
  return request;
}

}  // namespace tenon::impl
