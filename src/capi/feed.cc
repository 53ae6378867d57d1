// SPDX-License-Identifier: Apache-2.0
//
// The sections "schemas", "feeds" and "batches" of feed.h.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "capi/boundary.h"
#include "capi/feed_position.h"
#include "data/feed.h"
#include "data/worker.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

namespace {

Schema* unwrap(tenon_schema* schema) { return reinterpret_cast<Schema*>(schema); }
const Schema* unwrap(const tenon_schema* schema) { return reinterpret_cast<const Schema*>(schema); }
Feed* unwrap(tenon_feed* feed) { return reinterpret_cast<Feed*>(feed); }
Batch* unwrap(tenon_batch* batch) { return reinterpret_cast<Batch*>(batch); }
const Batch* unwrap(const tenon_batch* batch) { return reinterpret_cast<const Batch*>(batch); }
FeedPosition* unwrap(tenon_feed_state* state) { return reinterpret_cast<FeedPosition*>(state); }
const FeedPosition* unwrap(const tenon_feed_state* state) {
  return reinterpret_cast<const FeedPosition*>(state);
}
Worker* unwrap(tenon_worker* worker) { return reinterpret_cast<Worker*>(worker); }

// wait() returns whether the time has passed without a batch.
template <class Wait>
tenon_status guarded_wait(tenon_feed* feed, int64_t timeout_ns, tenon_error* error, Wait wait) noexcept {
  bool is_late = false;
  const tenon_status status = guarded(error, [&] {
    is_late = wait();
    if (is_late && timeout_ns != 0) throw_error(Code::kTimeout, unwrap(feed)->waiting_text());
  });
  // A caller that polls does not read the text, so it gets a short one.
  if (status == TENON_OK && is_late) return report(error, TENON_ERR_TIMEOUT, "no batch is ready");
  return status;
}

}  // namespace

extern "C" {

tenon_status tenon_schema_create(int32_t n, const tenon_field* fields, tenon_schema** out,
                                 tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    *out = reinterpret_cast<tenon_schema*>(Schema::make(list_of(n, fields, "fields")).detach());
  });
}

void tenon_schema_retain(tenon_schema* schema) { unwrap(schema)->retain(); }

void tenon_schema_release(tenon_schema* schema) {
  if (schema != nullptr) unwrap(schema)->release();
}

int32_t tenon_schema_field_count(const tenon_schema* schema) {
  return static_cast<int32_t>(unwrap(schema)->fields().size());
}

tenon_field tenon_schema_field(const tenon_schema* schema, int32_t i) {
  if (i < 0 || i >= tenon_schema_field_count(schema)) return {};
  return unwrap(schema)->fields()[static_cast<size_t>(i)].described();
}

int64_t tenon_schema_rows(const tenon_schema* schema) { return unwrap(schema)->rows(); }

uint64_t tenon_schema_nbytes(const tenon_schema* schema) { return unwrap(schema)->nbytes(); }

tenon_status tenon_feed_create(const tenon_generator* generator, tenon_schema* schema,
                               const tenon_feed_options* options, tenon_feed** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(generator, "generator");
    not_null(schema, "schema");
    not_null(options, "options");
    not_null(out, "out");
    check_struct_size(generator->struct_size, sizeof(tenon_generator), "tenon_generator");
    check_struct_size(options->struct_size, offsetof(tenon_feed_options, rank), "tenon_feed_options");
    check_flags(generator->flags,
                uint32_t{TENON_THREADSAFE} | TENON_IS_INDEXED | TENON_HAS_STATE | TENON_STARTS_THREADS,
                "tenon_feed_create");
    check_flags(options->flags,
                TENON_PROCESSES | TENON_ROUND_ROBIN | TENON_SHARED_SLOTS | TENON_SPARSE_SLOTS | TENON_SHUFFLE,
                "tenon_feed_create");
    tenon_feed_options known{};
    std::memcpy(&known, options, std::min<size_t>(options->struct_size, sizeof known));
    *out = reinterpret_cast<tenon_feed*>(new Feed(*generator, Ref<Schema>::share(unwrap(schema)), known));
  });
}

tenon_status tenon_feed_use_device(tenon_feed* feed, tenon_device device, int32_t slots, tenon_error* error) {
  return guarded(error, [&] { unwrap(not_null(feed, "feed"))->use_device(device, slots); });
}

tenon_status tenon_feed_begin(tenon_feed* feed, tenon_error* error) {
  return guarded(error, [&] { unwrap(not_null(feed, "feed"))->begin(); });
}

tenon_status tenon_feed_next(tenon_feed* feed, int64_t timeout_ns, tenon_batch** out, tenon_error* error) {
  return guarded_wait(feed, timeout_ns, error, [&] {
    not_null(out, "out");
    Ref<Batch> batch;
    const bool is_late = !unwrap(not_null(feed, "feed"))->next(timeout_ns, batch);
    if (!is_late) *out = reinterpret_cast<tenon_batch*>(batch.detach());
    return is_late;
  });
}

tenon_status tenon_feed_wait(tenon_feed* feed, int64_t timeout_ns, tenon_error* error) {
  return guarded_wait(feed, timeout_ns, error,
                      [&] { return !unwrap(not_null(feed, "feed"))->await(timeout_ns); });
}

void tenon_feed_seek(tenon_feed* feed, uint64_t epoch, uint64_t place) { unwrap(feed)->seek(epoch, place); }

void tenon_feed_position(tenon_feed* feed, uint64_t* epoch, uint64_t* place) {
  std::tie(*epoch, *place) = unwrap(feed)->position();
}

tenon_status tenon_feed_state_take(tenon_feed* feed, tenon_feed_state** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    *out = reinterpret_cast<tenon_feed_state*>(new FeedPosition(unwrap(not_null(feed, "feed"))->state()));
  });
}

void tenon_feed_state_describe(const tenon_feed_state* state, tenon_feed_place* out) {
  const FeedPosition& position = *unwrap(state);
  tenon_feed_place place{};
  place.workers = static_cast<int32_t>(position.states.size());
  place.epoch = position.epoch;
  place.place = position.place;
  place.worker = position.worker;
  place.ignored_index = position.ignored_index ? 1 : 0;
  copy_out(place, out);
}

tenon_worker_state tenon_feed_state_get(const tenon_feed_state* state, int32_t worker) {
  const std::vector<WorkerState>& states = unwrap(state)->states;
  if (worker < 0 || static_cast<size_t>(worker) >= states.size()) return {};
  const StateRef& bytes = states[static_cast<size_t>(worker)].bytes;
  if (!bytes) return {};
  return {bytes->empty() ? static_cast<const void*>("") : bytes->data(), bytes->size()};
}

void tenon_feed_state_release(tenon_feed_state* state) { delete unwrap(state); }

tenon_status tenon_feed_resume(tenon_feed* feed, const tenon_feed_place* place,
                               const tenon_worker_state* states, tenon_error* error) {
  return guarded(error, [&] {
    FeedPosition position = position_in(place, states);
    position.ignored_index = false;  // of what this feed delivers
    unwrap(not_null(feed, "feed"))->resume(std::move(position));
  });
}

void tenon_feed_failure_get(tenon_feed* feed, tenon_feed_failure* out) {
  copy_out(unwrap(feed)->failure(), out);
}

void tenon_feed_end(tenon_feed* feed) { unwrap(feed)->end(); }

tenon_status tenon_feed_close(tenon_feed* feed, int64_t timeout_ns, tenon_error* error) {
  return guarded(error, [&] { unwrap(not_null(feed, "feed"))->close(timeout_ns); });
}

void tenon_feed_release(tenon_feed* feed) { delete unwrap(feed); }

void tenon_feed_statistics_get(tenon_feed* feed, tenon_feed_statistics* out) {
  copy_out(unwrap(feed)->statistics(), out);
}

int32_t tenon_feed_report_take(tenon_feed* feed, char* text, size_t text_size) {
  const std::string report = unwrap(feed)->take_report();
  copy_text(report, text, text_size);
  return report.empty() ? 0 : 1;
}

void tenon_worker_statistics_get(tenon_feed* feed, int32_t worker, tenon_worker_statistics* out) {
  copy_out(unwrap(feed)->worker_statistics(worker), out);
}

tenon_status tenon_worker_join(const char* link, tenon_worker** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(link, "link");
    not_null(out, "out");
    *out = reinterpret_cast<tenon_worker*>(Worker::join(link).release());
  });
}

tenon_status tenon_worker_next(tenon_worker* worker, int64_t timeout_ns, tenon_fill_request* request,
                               tenon_error* error) {
  return guarded(error, [&] {
    not_null(request, "request");
    switch (unwrap(not_null(worker, "worker"))->next(timeout_ns)) {
      case Worker::Received::kRequest:
        // Callers of every version have room for these fields.
        std::memcpy(request, unwrap(worker)->request(), offsetof(tenon_fill_request, epoch_seed));
        request->struct_size = offsetof(tenon_fill_request, epoch_seed);
        return;
      case Worker::Received::kLate: throw_error(Code::kTimeout, "there is nothing to be filled");
      case Worker::Received::kOver: throw_error(Code::kClosed, "the feed is closed");
    }
  });
}

const tenon_fill_request* tenon_worker_request(const tenon_worker* worker) {
  return reinterpret_cast<const Worker*>(worker)->request();
}

tenon_status tenon_worker_commit(tenon_worker* worker, uint64_t nbytes, tenon_error* error) {
  return guarded(error, [&] { unwrap(not_null(worker, "worker"))->commit(nbytes); });
}

void tenon_worker_answer(tenon_worker* worker, int32_t code, const char* message) {
  unwrap(worker)->answer(code, message);
}

void tenon_worker_leave(tenon_worker* worker) { delete unwrap(worker); }

uint64_t tenon_batch_index(const tenon_batch* batch) { return unwrap(batch)->ticket().index; }

uint64_t tenon_batch_epoch(const tenon_batch* batch) { return unwrap(batch)->ticket().epoch; }

const void* tenon_batch_attachment(const tenon_batch* batch, uint64_t* nbytes) {
  const std::span<const std::byte> bytes = unwrap(batch)->attachment();
  *nbytes = bytes.size();
  return bytes.data();
}

tenon_array* tenon_batch_array(tenon_batch* batch, int32_t i) { return wrap(unwrap(batch)->array(i)); }

void tenon_batch_retain(tenon_batch* batch) { unwrap(batch)->retain(); }

void tenon_batch_release(tenon_batch* batch) {
  if (batch != nullptr) unwrap(batch)->release();
}

}  // extern "C"
