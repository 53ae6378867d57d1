// SPDX-License-Identifier: Apache-2.0
//
// A feed whose batches say their numbers, for tests that serve it.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "array/dtype.h"
#include "base/error.h"
#include "data/feed.h"
#include "tenon/tenon.h"

namespace tenon::impl {
namespace serving {

inline constexpr int64_t kRows = 4;

// A pipe, if not -1: a fill of batch 2 or a later one takes a byte of it.
inline int gate = -1;

inline int32_t fill(void* context, const tenon_fill_request* request, char* message, size_t message_size) {
  const auto fails_at = static_cast<int64_t>(reinterpret_cast<intptr_t>(context));
  if (static_cast<int64_t>(request->index) == fails_at) {
    std::snprintf(message, message_size, "no batch %ld", static_cast<long>(fails_at));
    return 7;
  }
  char byte = 0;
  if (gate != -1 && request->index >= 2) (void)!read(gate, &byte, 1);
  const uint64_t content = request->epoch << 32 | request->index;
  for (int64_t i = 0; i < kRows; ++i) static_cast<uint64_t*>(request->fields[0])[i] = content;
  if (request->state_size >= sizeof content) {
    std::memcpy(request->state, &content, sizeof content);
    *request->state_nbytes = sizeof content;
  }
  return 0;
}

inline Ref<Schema> schema() {
  const tenon_field field{"words", DType(TENON_UINT, 64), 1, &kRows};
  return Schema::make({&field, 1});
}

inline std::string unique_name() {
  static int n = 0;
  return concat("served-", getpid(), "-", ++n);
}

struct Served {
  explicit Served(int64_t batches, int64_t fails_at = -1, uint32_t flags = 0,
                  const std::string& of_name = unique_name(), bool has_state = false, int32_t workers = 2)
      : name(of_name) {
    tenon_generator g{};
    g.struct_size = sizeof g;
    g.fill = fill;
    g.context = reinterpret_cast<void*>(static_cast<intptr_t>(fails_at));
    g.name = "source";
    g.flags = TENON_THREADSAFE;
    if (has_state) g.flags |= TENON_HAS_STATE;
    tenon_feed_options o{};
    o.struct_size = sizeof o;
    o.workers = workers;
    o.slots = 5;
    o.batches = batches;
    o.flags = TENON_SHARED_SLOTS | flags;
    o.shared_name = name.c_str();
    feed.emplace(g, schema(), o);
  }
  ServeWhat wait() { return feed->serve_wait(10 * kSecond).what; }

  std::string name;
  std::optional<Feed> feed;
};

}  // namespace serving

}  // namespace tenon::impl
