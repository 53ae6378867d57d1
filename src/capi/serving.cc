// SPDX-License-Identifier: Apache-2.0
//
// The section "serving" of feed.h.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "capi/boundary.h"
#include "capi/feed_position.h"
#include "data/attached_feed.h"
#include "data/feed.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

struct tenon_attached {
  explicit tenon_attached(const std::string& name) : feed(name), note(feed.note()) {}

  AttachedFeed feed;
  const std::string note;
};

namespace {

Feed* feed_of(tenon_feed* feed) { return reinterpret_cast<Feed*>(feed); }

}  // namespace

extern "C" {

tenon_status tenon_feed_serve(tenon_feed* feed, const tenon_serve_options* options, tenon_error* error) {
  return guarded(error, [&] {
    not_null(feed, "feed");
    not_null(options, "options");
    check_struct_size(options->struct_size, sizeof *options, "tenon_serve_options");
    if (options->mode != TENON_SERVE_QUEUE && options->mode != TENON_SERVE_BROADCAST)
      throw_error(Code::kValue, "mode is ", options->mode, ": it must be one of TENON_SERVE_*");
    if (options->consumers < 0) throw_error(Code::kValue, "consumers is ", options->consumers);
    if (options->note_nbytes != 0) not_null(options->note, "note");
    ServeOptions known;
    known.mode = options->mode == TENON_SERVE_QUEUE ? ServedMode::kQueue : ServedMode::kBroadcast;
    known.consumers = options->consumers;
    known.note = {static_cast<const char*>(options->note), options->note_nbytes};
    feed_of(feed)->serve(known);
  });
}

tenon_status tenon_feed_serve_wait(tenon_feed* feed, int64_t timeout_ns, tenon_serve_report* out,
                                   tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    const ServeReport report = feed_of(not_null(feed, "feed"))->serve_wait(timeout_ns);
    tenon_serve_report all{};
    all.what = static_cast<int32_t>(report.what);
    all.consumers = report.consumers;
    all.unread = report.unread;
    all.has_failure = report.has_failure ? 1 : 0;
    all.is_filled = report.is_filled ? 1 : 0;
    all.batches = report.batches;
    copy_out(all, out);
  });
}

tenon_status tenon_feed_serve_next(tenon_feed* feed, tenon_error* error) {
  return guarded(error, [&] { feed_of(not_null(feed, "feed"))->serve_next(); });
}

tenon_status tenon_feed_serve_wanted(tenon_feed* feed, int32_t i, tenon_feed_state** out, int32_t ranks[2],
                                     tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    not_null(ranks, "ranks");
    *out = nullptr;
    std::optional<ServeWanted> wanted = feed_of(not_null(feed, "feed"))->serve_wanted(i);
    if (!wanted) return;
    *out = reinterpret_cast<tenon_feed_state*>(new FeedPosition(std::move(wanted->position)));
    ranks[0] = wanted->rank;
    ranks[1] = wanted->world_size;
  });
}

void tenon_feed_serve_end(tenon_feed* feed) { feed_of(feed)->serve_end(); }

void tenon_feed_serve_counts_get(tenon_feed* feed, tenon_serve_counts* out) {
  const ServeCounts counts = feed_of(feed)->serve_counts();
  tenon_serve_counts all{};
  all.consumers = counts.consumers;
  all.held = counts.held;
  all.batches = counts.batches;
  all.nbytes = counts.nbytes;
  all.starved_ns = counts.starved_ns;
  copy_out(all, out);
}

tenon_status tenon_attach_feed(const char* name, tenon_attached** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(name, "name");
    *not_null(out, "out") = new tenon_attached(name);
  });
}

void tenon_attached_describe(tenon_attached* attached, tenon_attached_info* out) {
  const AttachedFeed::Info info = attached->feed.describe();
  tenon_attached_info all{};
  all.mode = info.mode == ServedMode::kBroadcast ? TENON_SERVE_BROADCAST : TENON_SERVE_QUEUE;
  all.pid = static_cast<int32_t>(info.pid);
  all.tokens = static_cast<int32_t>(info.tokens);
  all.held = static_cast<int32_t>(info.held);
  all.consumers = static_cast<int32_t>(info.consumers);
  all.is_serving = info.phase == ServedPhase::kServing ? 1 : 0;
  all.is_first = info.is_first ? 1 : 0;
  all.first_number = info.first_number;
  all.first_epoch = info.first_epoch;
  all.first_place = info.first_place;
  all.last_number = info.last_number;
  all.note = attached->note.data();
  all.note_nbytes = attached->note.size();
  all.memory = attached->feed.slots().data(0);
  copy_out(all, out);
}

tenon_schema* tenon_attached_schema(tenon_attached* attached) {
  return reinterpret_cast<tenon_schema*>(Ref<Schema>(attached->feed.slots().schema()).detach());
}

tenon_status tenon_attached_begin(tenon_attached* attached, tenon_error* error) {
  return guarded(error, [&] { not_null(attached, "attached")->feed.begin(); });
}

tenon_status tenon_attached_next(tenon_attached* attached, int64_t timeout_ns, tenon_batch** out,
                                 tenon_error* error) {
  bool is_late = false;
  const tenon_status status = guarded(error, [&] {
    not_null(out, "out");
    Ref<Batch> batch;
    is_late = !not_null(attached, "attached")->feed.next(timeout_ns, batch);
    if (is_late && timeout_ns != 0) throw_error(Code::kTimeout, attached->feed.waiting_text());
    if (!is_late) *out = reinterpret_cast<tenon_batch*>(batch.detach());
  });
  // A caller that polls does not read the text, so it gets a short one.
  if (status == TENON_OK && is_late) return report(error, TENON_ERR_TIMEOUT, "no batch is ready");
  return status;
}

void tenon_attached_failure_get(tenon_attached* attached, tenon_feed_failure* out) {
  copy_out(attached->feed.failure(), out);
}

tenon_status tenon_attached_resume(tenon_attached* attached, const tenon_feed_place* place,
                                   const tenon_worker_state* states, const int32_t ranks[2],
                                   tenon_error* error) {
  return guarded(error, [&] {
    not_null(ranks, "ranks");
    not_null(attached, "attached")->feed.resume(position_in(place, states), ranks[0], ranks[1]);
  });
}

tenon_status tenon_attached_state_take(tenon_attached* attached, tenon_feed_state** out, int32_t* is_gap,
                                       tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    not_null(is_gap, "is_gap");
    bool has_gap = false;
    auto state = std::make_unique<FeedPosition>(not_null(attached, "attached")->feed.state(&has_gap));
    *is_gap = has_gap ? 1 : 0;
    *out = reinterpret_cast<tenon_feed_state*>(state.release());
  });
}

void tenon_attached_close(tenon_attached* attached) { attached->feed.close(); }

void tenon_attached_release(tenon_attached* attached) { delete attached; }

}  // extern "C"
