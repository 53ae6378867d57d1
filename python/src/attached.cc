// SPDX-License-Identifier: Apache-2.0
//
// The native part of served feeds: of the process that serves, and of those that consume. The classes that
// people use are in tenon/_data/serving.py and attached.py.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "feed_parts.h"
#include "owners.h"
#include "waiting.h"

namespace tenon::python {
namespace {

constexpr int64_t kAttachedSliceNs = 100'000'000;  // between two looks for Ctrl-C

struct ReleaseState {
  void operator()(tenon_feed_state* state) const noexcept { tenon_feed_state_release(state); }
};

// (epoch, place, the worker of the next batch, whether a batch ignored its index, states by worker, last)
nb::tuple position_of(tenon_feed_state* owned, const nb::object& last) {
  const std::unique_ptr<tenon_feed_state, ReleaseState> state(owned);
  auto place = detail::sized<tenon_feed_place>();
  tenon_feed_state_describe(state.get(), &place);
  return nb::make_tuple(place.epoch, place.place, place.worker, place.ignored_index != 0,
                        states_of(state.get(), place.workers), last);
}

class NativeAttached {
 public:
  explicit NativeAttached(const std::string& name)
      : handle_(detail::call_for<tenon_attached*>(tenon_attach_feed, name.c_str())) {
    Schema schema = Schema::steal(tenon_attached_schema(handle_.get()));
    nb::tuple names = names_of(schema);
    schema_ = std::make_unique<NamedSchema>(NamedSchema{std::move(schema), std::move(names), nb::tuple()});
  }

  const NamedSchema& schema() const noexcept { return *schema_; }

  nb::dict describe() const {
    const tenon_attached_info info = look();
    nb::dict d;
    d["mode"] = info.mode == TENON_SERVE_BROADCAST ? "broadcast" : "queue";
    d["pid"] = info.pid;
    d["tokens"] = info.tokens;
    d["held"] = info.held;
    d["consumers"] = info.consumers;
    d["is_serving"] = info.is_serving != 0;
    d["is_first"] = info.is_first != 0;
    d["first_number"] = info.first_number;
    d["first_epoch"] = info.first_epoch;
    d["first_place"] = info.first_place;
    d["last_number"] = info.last_number;
    d["memory"] = reinterpret_cast<uintptr_t>(info.memory);
    return d;
  }
  nb::bytes note() const {
    const tenon_attached_info info = look();
    return nb::bytes(info.note, static_cast<size_t>(info.note_nbytes));
  }

  void begin() {
    const nb::gil_scoped_release released;
    call(tenon_attached_begin, handle_.get());
  }

  // The next batch, or None at the end of the loop. timeout: seconds.
  nb::object next(std::optional<double> timeout, const nb::object& warn) {
    tenon_batch* batch = nullptr;
    tenon_error error;
    tenon_status status = try_next(0, &batch, &error);
    if (status == TENON_ERR_TIMEOUT) status = wait(timeout, warn, &batch, &error);
    if (status != TENON_OK) throw Error(status, error.message, error.op_code);
    if (batch == nullptr) return nb::none();
    return object_of_batch(Batch(batch, schema_->schema), schema_->names);
  }

  // states: as of state().
  void resume(uint64_t epoch, uint64_t index, int32_t worker, bool ignored_index, const nb::list& states,
              std::pair<int32_t, int32_t> ranks) {
    auto place = detail::sized<tenon_feed_place>();
    place.workers = static_cast<int32_t>(states.size());
    place.epoch = epoch;
    place.place = index;
    place.worker = worker;
    place.ignored_index = ignored_index ? 1 : 0;
    const std::vector<tenon_worker_state> described = worker_states(states);
    const int32_t both[2] = {ranks.first, ranks.second};
    const nb::gil_scoped_release released;
    call(tenon_attached_resume, handle_.get(), &place, described.data(), both);
  }

  // (epoch, place, the worker of the next batch, whether a batch ignored its index, states by worker, whether
  // other consumers have got batches in between); None: no batch was delivered here
  nb::object state() const {
    tenon_feed_state* taken = nullptr;
    int32_t is_gap = 0;
    tenon_error error;
    error.struct_size = sizeof error;
    const tenon_status status = tenon_attached_state_take(handle_.get(), &taken, &is_gap, &error);
    if (status == TENON_ERR_NOT_FOUND) return nb::none();
    if (status != TENON_OK) throw Error(status, error.message);
    return position_of(taken, nb::bool_(is_gap != 0));
  }

  nb::dict failure() const {
    auto f = detail::sized<tenon_feed_failure>();
    tenon_attached_failure_get(handle_.get(), &f);
    return failure_dict(f);
  }

  void close() {
    const nb::gil_scoped_release released;  // a thread in next() may have to end its wait
    tenon_attached_close(handle_.get());
  }

 private:
  struct Release {
    void operator()(tenon_attached* attached) const noexcept { tenon_attached_release(attached); }
  };

  tenon_attached_info look() const {
    auto info = detail::sized<tenon_attached_info>();
    tenon_attached_describe(handle_.get(), &info);
    return info;
  }

  tenon_status try_next(int64_t timeout_ns, tenon_batch** batch, tenon_error* error) {
    owners::drain();
    error->struct_size = sizeof *error;
    if (timeout_ns == 0) return tenon_attached_next(handle_.get(), 0, batch, error);
    const nb::gil_scoped_release released;
    return tenon_attached_next(handle_.get(), timeout_ns, batch, error);
  }

  // A batch that has come is not lost to the exception of a signal handler: it is looked for before.
  tenon_status wait(std::optional<double> timeout, const nb::object& warn, tenon_batch** batch,
                    tenon_error* error) {
    ReportTimer timer;
    const int64_t limit = timeout ? static_cast<int64_t>(std::min(*timeout * 1e9, 9e18)) : INT64_MAX;
    int collected = 0;  // the oldest generation that was: the young ones first, they take little time
    while (true) {
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
      const int64_t slice = std::clamp<int64_t>(limit - timer.waited().count(), 1, kAttachedSliceNs);
      const tenon_status status = try_next(slice, batch, error);
      if (status != TENON_ERR_TIMEOUT) return status;
      const tenon_attached_info info = look();
      if (collected < 2 && info.held >= info.tokens) {
        // Batches in dead cycles are not what the consumer wants to keep.
        nb::module_::import_("gc").attr("collect")(++collected);
        continue;
      }
      if (timer.waited().count() >= limit) return status;
      if (timer.is_due()) warn(error->message);
    }
  }

  std::unique_ptr<tenon_attached, Release> handle_;
  std::unique_ptr<NamedSchema> schema_;
};

}  // namespace

// (what, consumers, unread, whether a failure has ended the epoch, whether the unread ones are its last,
// batches). Signals are heard afterwards.
nb::tuple serve_wait(const Feed& feed, double timeout) {
  auto report = detail::sized<tenon_serve_report>();
  {
    const nb::gil_scoped_release released;
    call(tenon_feed_serve_wait, feed.get(), static_cast<int64_t>(timeout * 1e9), &report);
  }
  owners::drain();
  if (PyErr_CheckSignals() != 0) nb::raise_python_error();
  return nb::make_tuple(report.what, report.consumers, report.unread, report.has_failure != 0,
                        report.is_filled != 0, report.batches);
}

// Of each consumer that wants to begin elsewhere: as NativeAttached.state(), with its ranks at the end.
nb::list serve_wanted(const Feed& feed) {
  nb::list all;
  for (int32_t i = 0;; ++i) {
    tenon_feed_state* state = nullptr;
    int32_t ranks[2] = {0, 1};
    call(tenon_feed_serve_wanted, feed.get(), i, &state, ranks);
    if (state == nullptr) return all;
    all.append(position_of(state, nb::make_tuple(ranks[0], ranks[1])));
  }
}

nb::dict serve_counts(const Feed& feed) {
  auto counts = detail::sized<tenon_serve_counts>();
  tenon_feed_serve_counts_get(feed.get(), &counts);
  nb::dict d;
  d["consumers"] = counts.consumers;
  d["held"] = counts.held;
  d["batches"] = counts.batches;
  d["nbytes"] = counts.nbytes;
  d["starved_ns"] = counts.starved_ns;
  return d;
}

void add_attached(nb::module_& module) {
  nb::class_<NativeAttached>(module, "NativeAttached", "The native part of tenon.AttachedFeed.")
      .def(nb::init<const std::string&>(), nb::arg("name"))
      .def_prop_ro("schema", &NativeAttached::schema, nb::rv_policy::copy)
      .def("describe", &NativeAttached::describe, nb::sig("def describe(self) -> dict[str, Any]"))
      .def("note", &NativeAttached::note)
      .def("begin", &NativeAttached::begin)
      .def("next", &NativeAttached::next, nb::arg("timeout").none(), nb::arg("warn"),
           nb::sig("def next(self, timeout: float | None, warn: Callable[[str], object]) -> Batch | None"))
      .def(
          "resume",
          [](NativeAttached& self, uint64_t epoch, uint64_t index, int32_t worker, bool ignored_index,
             const nb::list& states, int32_t rank, int32_t world_size) {
            self.resume(epoch, index, worker, ignored_index, states, {rank, world_size});
          },
          nb::arg("epoch"), nb::arg("index"), nb::arg("worker"), nb::arg("ignored_index"), nb::arg("states"),
          nb::arg("rank"), nb::arg("world_size"),
          nb::sig("def resume(self, epoch: int, index: int, worker: int, ignored_index: bool, "
                  "states: list[bytes | None], rank: int, world_size: int) -> None"))
      .def("state", &NativeAttached::state,
           nb::sig("def state(self) -> tuple[int, int, int, bool, list[bytes | None], bool] | None"))
      .def("failure", &NativeAttached::failure, nb::sig("def failure(self) -> dict[str, Any]"))
      .def("close", &NativeAttached::close);
}

}  // namespace tenon::python
