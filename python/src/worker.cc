// SPDX-License-Identifier: Apache-2.0
//
// The native part of workers that are written in Python: a worker's end of a feed, and the functions by which
// a feed starts its workers. The loop that a worker runs is in tenon/_data/workers.py.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "dims.h"
#include "feed_parts.h"
#include "fields.h"
#include "fork_guard.h"
#include "ndarray.h"
#include "owners.h"
#include "waiting.h"

namespace tenon::python {
namespace {

constexpr int64_t kSliceNs = 100'000'000;  // between two looks for signals

class NativeWorker {
 public:
  NativeWorker(const std::string& link, const NamedSchema& schema) : schema_(schema) {
    tenon_worker* worker = nullptr;
    call(tenon_worker_join, link.c_str(), &worker);
    worker_.reset(worker);
  }

  // For the fills of a feed without workers, each between begin() and end().
  explicit NativeWorker(const NamedSchema& schema) : schema_(schema) {}
  void begin(const tenon_fill_request& request) {
    inline_request_ = &request;
    code_ = -1;
    text_.clear();
  }
  int32_t end(char* message, size_t size) {
    inline_request_ = nullptr;
    std::snprintf(message, size, "%s", text_.c_str());
    return code_;
  }

  // False: the feed is closed.
  bool next() {
    owners::drain();
    const Waiting waiting(is_waiting_);
    while (true) {
      tenon_error error;
      error.struct_size = sizeof error;
      tenon_status status = TENON_OK;
      {
        const nb::gil_scoped_release released;
        tenon_fill_request part;
        status = tenon_worker_next(worker_.get(), kSliceNs, &part, &error);
      }
      if (status == TENON_OK) return true;
      if (status == TENON_ERR_CLOSED) return !(is_over_ = true);
      if (status != TENON_ERR_TIMEOUT) throw Error(status, error.message);
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    }
  }

  // A thread is in next(), and runs no code of the generator.
  bool is_waiting() const noexcept { return is_waiting_; }
  // next() has returned false.
  bool is_over() const noexcept { return is_over_; }

  const tenon_fill_request& request() const {
    const tenon_fill_request* const request = worker_ ? tenon_worker_request(worker_.get()) : inline_request_;
    if (request == nullptr) raise(PyExc_ValueError, "the batch was passed on");
    return *request;
  }

  void commit(uint64_t nbytes) const { call(tenon_worker_commit, worker_.get(), nbytes); }

  // Field i as an array on the slot, in the shape that it has now.
  nb::object array(int32_t i) const {
    const tenon_field field = schema_.schema[i];
    auto adoption = detail::sized<tenon_adoption>();
    adoption.data = request().fields[i];
    adoption.device = {TENON_CPU, 0};
    adoption.ndim = field.ndim;
    adoption.dtype = field.dtype;
    adoption.shape = request().shapes[i];
    return nb::steal(wrap(Array::steal(detail::call_for<tenon_array*>(tenon_array_adopt, &adoption))));
  }

  void set_shape(int32_t i, const nb::object& shape) const {
    const tenon_field field = schema_.schema[i];
    const Dims given(shape, "shape");
    const bool fits = given.span().size() == static_cast<size_t>(field.ndim) &&
                      std::equal(given.span().begin(), given.span().end(), field.shape,
                                 [](int64_t length, int64_t most) { return length >= 0 && length <= most; });
    if (!fits) {
      raise(PyExc_ValueError, "field '%s' cannot have the shape %R: the schema says at most %R", field.name,
            shape.ptr(), shape_of(field).ptr());
    }
    std::copy(given.span().begin(), given.span().end(), request().shapes[i]);
  }

  void set_rows(int64_t rows) const {
    if (rows < 0 || rows > request().rows) {
      raise(PyExc_ValueError, "the batch cannot have %lld rows: it has 0 to %lld",
            static_cast<long long>(rows), static_cast<long long>(request().rows));
    }
    for (int32_t i = 0; i < schema_.schema.size(); ++i) request().shapes[i][0] = rows;
  }

  nb::bytes attachment() const {
    return nb::bytes(request().attachment, static_cast<size_t>(*request().attachment_nbytes));
  }
  void attach(const nb::bytes& bytes) const {
    if (bytes.size() > request().attachment_size) {
      raise(PyExc_ValueError, "%zu bytes are attached where there is room for %zu", bytes.size(),
            static_cast<size_t>(request().attachment_size));
    }
    std::memcpy(request().attachment, bytes.data(), bytes.size());
    *request().attachment_nbytes = bytes.size();
  }

  // The state to which the generator has to return before it fills the batch: None, or its bytes, which are
  // empty for the state of the beginning.
  nb::object restored() const {
    if ((request().flags & TENON_RESTORE_START) != 0) return nb::bytes("", 0);
    if ((request().flags & TENON_RESTORE_STATE) == 0) return nb::none();
    return nb::bytes(request().state, static_cast<size_t>(request().restore_nbytes));
  }
  void set_state(const nb::bytes& state) const {
    if (state.size() > request().state_size) {
      raise(PyExc_ValueError,
            "the state of the generator has %zu bytes where there is room for %zu: make the "
            "feed with state_nbytes=%zu",
            state.size(), static_cast<size_t>(request().state_size), state.size());
    }
    std::memcpy(request().state, state.data(), state.size());
    *request().state_nbytes = state.size();
  }
  void ignore_index() const { *request().notes |= TENON_IGNORED_INDEX; }

  void answer(int32_t code, const std::string& text) {
    (void)request();
    if (worker_) {
      tenon_worker_answer(worker_.get(), code, text.c_str());
    } else {
      inline_request_ = nullptr;
      code_ = code;
      text_ = text;
    }
  }

 private:
  struct Leave {
    void operator()(tenon_worker* worker) const noexcept { tenon_worker_leave(worker); }
  };

  struct Waiting {
    explicit Waiting(bool& flag) noexcept : is_waiting(flag) { is_waiting = true; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { is_waiting = false; }
    bool& is_waiting;
  };

  const NamedSchema schema_;
  std::unique_ptr<tenon_worker, Leave> worker_;
  bool is_waiting_ = false, is_over_ = false;  // guarded by the GIL
  // Without worker_: the open request, and the answer to it.
  const tenon_fill_request* inline_request_ = nullptr;
  int32_t code_ = -1;
  std::string text_;
};

// What a Python object gives a feed: start(worker, link) -> pid, reap(worker, pid) -> status,
// prepare(epoch, index) -> bytes or None.
struct Hooks {
  nb::object object;
  std::string name;
  nb::object native;  // a NativeWorker, for a feed without workers: fill(native)
};

// Runs body with the GIL; what it raises becomes a text.
template <class Body>
int32_t guarded_hook(char* message, size_t size, Body&& body) noexcept {
  const nb::gil_scoped_acquire acquired;
  try {
    return body();
  } catch (nb::python_error& e) {
    try {
      const nb::object text = nb::str("{}: {}").attr("format")(e.type().attr("__name__"), e.value());
      std::snprintf(message, size, "%s", nb::cast<std::string>(text).c_str());
    } catch (const std::exception&) {  // its __str__ has raised, too
      std::snprintf(message, size, "an exception that cannot be described");
    }
  } catch (const std::exception& e) {
    std::snprintf(message, size, "%s", e.what());
  }
  return -1;
}

int32_t start_worker(void* context, int32_t worker, const char* link, int64_t* pid, char* message,
                     size_t size) noexcept {
  return guarded_hook(message, size, [&] {
    *pid = nb::cast<int64_t>(static_cast<Hooks*>(context)->object.attr("start")(worker, link));
    return 0;
  });
}

void reap_worker(void* context, int32_t worker, int64_t pid, int32_t* status) noexcept {
  char message[1];
  (void)guarded_hook(message, sizeof message, [&] {
    *status = nb::cast<int32_t>(static_cast<Hooks*>(context)->object.attr("reap")(worker, pid));
    return 0;
  });
}

int32_t prepare_batch(void* context, const tenon_fill_request* request, char* message, size_t size) noexcept {
  return guarded_hook(message, size, [&]() -> int32_t {
    const nb::object bytes =
        static_cast<Hooks*>(context)->object.attr("prepare")(request->epoch, request->index);
    if (bytes.is_none()) return TENON_END_OF_EPOCH;
    const auto attached = nb::cast<nb::bytes>(bytes);
    if (attached.size() > request->attachment_size) {
      raise(PyExc_ValueError, "%zu bytes for a batch, where there is room for %zu", attached.size(),
            static_cast<size_t>(request->attachment_size));
    }
    std::memcpy(request->attachment, attached.data(), attached.size());
    *request->attachment_nbytes = attached.size();
    return 0;
  });
}

int32_t fill_inline(void* context, const tenon_fill_request* request, char* message, size_t size) noexcept {
  return guarded_hook(message, size, [&] {
    const Hooks& hooks = *static_cast<Hooks*>(context);
    NativeWorker& native = nb::cast<NativeWorker&>(hooks.native);
    native.begin(*request);
    try {
      hooks.object.attr("fill")(hooks.native);
    } catch (nb::python_error& e) {  // a signal that came before fill could catch it
      hooks.object.attr("interrupt")(e.value());
      throw;
    }
    return native.end(message, size);
  });
}

int32_t fill_nothing(void*, const tenon_fill_request*, char*, size_t) noexcept { return -1; }

// In a thread of the feed, also while Python ends: then the objects stay. EngineThread has a frame that
// ending_threads.cc finds. nb::gil_scoped_acquire has none where nothing beside it can throw.
void drop_hooks(void* context) noexcept {
  const Visit visit;
  if (!visit) return;
  const EngineThread gil;
  delete static_cast<Hooks*>(context);
}

// A generator that owns the hooks. It has no fill function yet.
tenon_generator with_hooks(Hooks hooks, bool has_state) {
  auto* const context = new Hooks(std::move(hooks));
  auto generator = detail::sized<tenon_generator>();
  generator.flags = has_state ? uint32_t{TENON_HAS_STATE} : 0;
  generator.context = context;
  generator.drop = drop_hooks;
  generator.name = context->name.c_str();
  return generator;
}

}  // namespace

Generator generator_of(const nb::object& object, const std::string& name, bool prepares, bool has_state,
                       bool has_processes) {
  tenon_generator generator = with_hooks(Hooks{object, name, {}}, has_state);
  generator.flags |= TENON_THREADSAFE;
  if (!has_processes) generator.flags |= TENON_STARTS_THREADS;
  generator.fill = fill_nothing;
  generator.start = start_worker;
  generator.reap = reap_worker;
  if (prepares) generator.prepare = prepare_batch;
  return Generator(generator);
}

Generator inline_generator_of(const nb::object& object, const NamedSchema& schema, const std::string& name,
                              bool has_state) {
  tenon_generator generator = with_hooks(Hooks{object, name, nb::cast(NativeWorker(schema))}, has_state);
  generator.fill = fill_inline;
  return Generator(generator);
}

void add_worker(nb::module_& module) {
  module.attr("NO_BATCH") = static_cast<int32_t>(TENON_NO_BATCH);
  module.attr("END_OF_EPOCH") = static_cast<int32_t>(TENON_END_OF_EPOCH);
  module.attr("UNWRITTEN") = static_cast<int32_t>(TENON_UNWRITTEN);
  nb::class_<NativeWorker>(module, "NativeWorker", nb::is_weak_referenceable(),
                           "The native part of a worker's end of a feed.")
      .def(nb::init<const std::string&, const NamedSchema&>(), nb::arg("link"), nb::arg("schema"))
      .def("next", &NativeWorker::next)
      .def_prop_ro("is_waiting", &NativeWorker::is_waiting)
      .def_prop_ro("is_over", &NativeWorker::is_over)
      .def_prop_ro("index", [](const NativeWorker& w) { return w.request().index; })
      .def_prop_ro("epoch", [](const NativeWorker& w) { return w.request().epoch; })
      .def_prop_ro("seed", [](const NativeWorker& w) { return w.request().seed; })
      .def_prop_ro("epoch_seed", [](const NativeWorker& w) { return w.request().epoch_seed; })
      .def_prop_ro("is_resumed",
                   [](const NativeWorker& w) { return (w.request().flags & TENON_RESUMED) != 0; })
      .def("restored", &NativeWorker::restored, nb::sig("def restored(self) -> bytes | None"))
      .def("set_state", &NativeWorker::set_state, nb::arg("state"))
      .def("ignore_index", &NativeWorker::ignore_index)
      .def_prop_ro("worker", [](const NativeWorker& w) { return w.request().worker; })
      .def("commit", &NativeWorker::commit, nb::arg("nbytes"))
      .def("array", &NativeWorker::array, nb::arg("field"), nb::sig("def array(self, field: int) -> NDArray"))
      .def("set_shape", &NativeWorker::set_shape, nb::arg("field"), nb::arg("shape"),
           nb::sig("def set_shape(self, field: int, shape: tuple[int, ...]) -> None"))
      .def("set_rows", &NativeWorker::set_rows, nb::arg("rows"))
      .def("attachment", &NativeWorker::attachment)
      .def("attach", &NativeWorker::attach, nb::arg("data"))
      .def("answer", &NativeWorker::answer, nb::arg("code"), nb::arg("text"));
}

}  // namespace tenon::python
