// SPDX-License-Identifier: Apache-2.0
//
// Schemas, batches and the native part of feeds; the classes that people use are in tenon/_data/feed.py.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "callbacks.h"
#include "devices.h"
#include "dims.h"
#include "dtype.h"
#include "exchange_table.h"
#include "feed_parts.h"
#include "fields.h"
#include "function.h"
#include "ndarray.h"
#include "owners.h"
#include "plugin.h"
#include "waiting.h"

namespace tenon::python {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSliceNs = 100'000'000;    // between two looks for Ctrl-C
constexpr std::chrono::seconds kStarved{5};  // without a timeout, a consumer that has every slot fails then

NamedSchema make_schema(const nb::dict& fields) {
  std::vector<Field> described;
  nb::list kept;
  for (const auto [name, field] : fields) {
    const size_t parts = nb::isinstance<nb::tuple>(field) ? nb::len(field) : 0;
    if (parts != 2 && (parts != 3 || !field[2].equal(nb::str("kept")))) {
      raise(PyExc_TypeError, "field %R is %R: it must be a tuple (dtype, shape) or (dtype, shape, 'kept')",
            name.ptr(), field.ptr());
    }
    if (parts == 3) kept.append(name);
    const Dims shape(nb::object(field[1]), "shape");
    described.push_back({nb::cast<std::string>(name),
                         dtype_from(nb::object(field[0])),
                         {shape.span().begin(), shape.span().end()}});
  }
  Schema schema{std::span<const Field>(described)};
  nb::tuple names = names_of(schema);
  return {std::move(schema), std::move(names), nb::tuple(kept)};
}

nb::tuple fields_of(const NamedSchema& self) {
  nb::list fields;
  for (int32_t i = 0; i < self.schema.size(); ++i) fields.append(describe_field(self.schema[i]));
  return nb::tuple(fields);
}

// A delivered batch with its arrays as NDArrays. Not known to Python's garbage collector: arrays refer to
// no Python objects.
struct NamedBatch {
  Batch batch;
  nb::tuple names;
  nb::tuple arrays;
};

NamedBatch make_batch(Batch batch, const nb::tuple& names) {
  const size_t n = names.size();
  nb::object arrays = owned(PyTuple_New(static_cast<Py_ssize_t>(n)));
  for (size_t i = 0; i < n; ++i) {
    PyTuple_SetItem(arrays.ptr(), static_cast<Py_ssize_t>(i), wrap(batch[static_cast<int32_t>(i)]));
  }
  return {std::move(batch), names, nb::tuple(std::move(arrays))};
}

// The array of a name, or null. Names are mostly the interned ones: their addresses tell.
PyObject* find_field(const NamedBatch& self, PyObject* name) {
  PyObject* const names = self.names.ptr();
  const Py_ssize_t n = PyTuple_Size(names);
  Py_ssize_t i = 0;
  while (i < n && PyTuple_GetItem(names, i) != name) ++i;
  if (i == n) {
    for (i = 0; i < n && PyUnicode_Compare(PyTuple_GetItem(names, i), name) != 0;) ++i;
  }
  return i < n ? PyTuple_GetItem(self.arrays.ptr(), i) : nullptr;
}

// Fields first: they are what a training loop asks for, and no field has the name of an attribute.
PyObject* batch_attribute(PyObject* self, PyObject* name) {
  const NamedBatch& batch = *nb::inst_ptr<NamedBatch>(self);
  if (PyObject* array = find_field(batch, name); array != nullptr) return Py_NewRef(array);
  PyObject* attribute = PyObject_GenericGetAttr(self, name);
  if (attribute == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError) != 0) {
    PyErr_Clear();
    PyErr_Format(PyExc_AttributeError, "the batch has no field '%U': its fields are %R", name,
                 batch.names.ptr());
  }
  return attribute;
}

// batch.name = value writes the field; value is null for del.
int set_batch_attribute(PyObject* self, PyObject* name, PyObject* value) {
  const NamedBatch& batch = *nb::inst_ptr<NamedBatch>(self);
  PyObject* const array = find_field(batch, name);
  if (array != nullptr && value != nullptr) {
    try {
      (void)callback(Callback::kWriteField)(nb::handle(name), nb::handle(array), nb::handle(value));
      return 0;
    } catch (nb::python_error& error) {
      error.restore();
      return -1;
    }
  }
  if (array == nullptr && PyObject_HasAttr(reinterpret_cast<PyObject*>(Py_TYPE(self)), name) != 0) {
    return PyObject_GenericSetAttr(self, name, value);
  }
  PyErr_Format(PyExc_AttributeError,
               array != nullptr ? "field '%U' of the batch cannot be deleted"
                                : "the batch has no field '%U': its fields are %R",
               name, batch.names.ptr());
  return -1;
}

PyType_Slot batch_slots[] = {{Py_tp_getattro, reinterpret_cast<void*>(batch_attribute)},
                             {Py_tp_setattro, reinterpret_cast<void*>(set_batch_attribute)},
                             {0, nullptr}};

nb::object batch_item(const NamedBatch& self, nb::handle key) {
  if (!nb::isinstance<nb::str>(key)) return owned(PyObject_GetItem(self.arrays.ptr(), key.ptr()));
  if (PyObject* array = find_field(self, key.ptr()); array != nullptr) return nb::borrow(array);
  raise(PyExc_KeyError, "the batch has no field %R: its fields are %R", key.ptr(), self.names.ptr());
}

// A generator that calls function with these constants, by parameter.
Generator bind(const Function& function, const Schema& schema, const nb::dict& constants) {
  std::vector<tenon_constant> described;
  std::vector<Array> arrays;
  for (const auto [name, value] : constants) {
    const char* const text = nb::cast<const char*>(name);
    int32_t i = 0;
    while (i < function.parameter_count() && std::strcmp(text, function.parameter(i).name) != 0) ++i;
    if (i == function.parameter_count()) {
      raise(PyExc_ValueError, "constant '%s' is no parameter of %s", text, function.prototype());
    }
    tenon_constant& constant = described.emplace_back(tenon_constant{text, nullptr, {}});
    if (function.parameter(i).is_pointer != 0 && !value.is_none()) {
      if (const std::optional<void*> address = address_for(function, i, value)) {
        constant.value.p = *address;
        continue;
      }
      constant.array = arrays.emplace_back(array_for(function, i, value)).get();
    } else if (function.parameter(i).is_pointer == 0) {
      constant.value = number_for(function, i, value);
    }
  }
  return Generator(detail::call_for<tenon_generator>(tenon_function_bind, function.get(), schema.get(),
                                                     static_cast<int32_t>(described.size()),
                                                     described.data()));
}

Generator generator_from(const nb::object& source, const NamedSchema& named, const nb::dict& constants,
                         const FeedOptions& options, const std::string& name, bool prepares, bool has_state) {
  const Schema& schema = named.schema;
  if (nb::isinstance<Function>(source)) return bind(nb::cast<const Function&>(source), schema, constants);
  if (nb::isinstance<NativePlugin>(source)) {
    return open_plugin(nb::cast<const NativePlugin&>(source), schema, options.seed);
  }
  if (options.workers == 0) return inline_generator_of(source, named, name, has_state);
  return generator_of(source, name, prepares, has_state, options.has_processes);
}

class NativeFeed {
 public:
  // source: a native function, whose parameters are bound, a plug-in, or an object that starts workers.
  NativeFeed(const nb::object& source, const NamedSchema& schema, const nb::dict& constants,
             const FeedOptions& options, const std::string& name, bool prepares, bool has_state)
      : names_(schema.names), is_inline_(options.workers == 0) {
    Generator generator = generator_from(source, schema, constants, options, name, prepares, has_state);
    flags_ = generator.get().flags;
    const nb::gil_scoped_release released;  // workers are started, in Python perhaps
    feed_ = std::make_unique<Feed>(std::move(generator), schema.schema, options);
  }
  ~NativeFeed() {
    const nb::gil_scoped_release released;  // a second at most, for a generator that is busy
    feed_.reset();
  }

  void begin() {
    const Released released(*this);
    feed_->begin();
  }
  void end() {
    const Released released(*this);
    feed_->end();
  }
  void use_device(const std::string& name, int32_t slots) {
    tenon_device device{};
    call(tenon_device_from_name, name.c_str(), &device);
    is_on_device_ = device.type == TENON_CUDA;
    const nb::gil_scoped_release released;
    feed_->use_device(device, slots);
  }

  // The next batch, or None at the end of the epoch. timeout: seconds; None waits for a generator as long as
  // it takes, but not for ever when the consumer itself holds every slot.
  nb::object next(std::optional<double> timeout, const nb::object& warn) {
    tenon_batch* batch = nullptr;
    tenon_error error;
    report(warn);
    tenon_status status = try_next(&batch, &error);
    if (status == TENON_ERR_TIMEOUT) status = wait(timeout, warn, &batch, &error);
    nb::object made = batch == nullptr ? nb::none() : object_of(Batch(batch, feed_->schema()));
    if (batch == nullptr || is_inline_) report(warn);  // of what the call has found
    if (status != TENON_OK) raise_failure(status, error);
    return made;
  }

  // A batch that is ready. None: there is no batch yet, the epoch has ended, or the consumer holds all slots;
  // next() tells which. Failures are thrown, as by next(), which would not repeat them.
  std::optional<Batch> take_ready(const nb::object& warn) {
    tenon_batch* batch = nullptr;
    tenon_error error;
    report(warn);  // before the batch is taken: it may raise
    const tenon_status status = try_next(&batch, &error);
    if (batch != nullptr) return Batch(batch, feed_->schema());
    report(warn);
    const bool stays =
        status == TENON_OK || status == TENON_ERR_TIMEOUT || status == TENON_ERR_LEASE_CONFLICT;
    if (!stays) raise_failure(status, error);
    return {};
  }

  nb::object object_of(Batch batch) const { return object_of_batch(std::move(batch), names_); }

  // In slices, so that Ctrl-C is heard.
  void close(double timeout) {
    const auto limit = static_cast<int64_t>(std::min(timeout * 1e9, 9e18));
    const Clock::time_point start = Clock::now();
    while (true) {
      const int64_t left = limit - (Clock::now() - start) / std::chrono::nanoseconds(1);
      tenon_error error;
      error.struct_size = sizeof error;
      tenon_status status = TENON_OK;
      {
        const nb::gil_scoped_release released;
        status = tenon_feed_close(feed_->get(), std::clamp<int64_t>(left, 0, kSliceNs), &error);
      }
      if (status == TENON_OK) return;
      if (status != TENON_ERR_TIMEOUT || left <= kSliceNs) throw Error(status, error.message);
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    }
  }

  tenon_feed_statistics statistics() const {
    const Released released(*this);
    return feed_->statistics();
  }
  const Feed& feed() const noexcept { return *feed_; }
  void seek(uint64_t epoch, uint64_t index) { tenon_feed_seek(feed_->get(), epoch, index); }
  nb::tuple position() const {
    uint64_t epoch = 0, index = 0;
    {
      const Released released(*this);
      tenon_feed_position(feed_->get(), &epoch, &index);
    }
    return nb::make_tuple(epoch, index);
  }
  bool has_state() const noexcept { return (flags_ & TENON_HAS_STATE) != 0; }
  bool is_indexed() const noexcept { return (flags_ & TENON_IS_INDEXED) != 0; }

  // (epoch, place, the worker of the next batch, whether a batch ignored its index, states by worker)
  nb::tuple state() const {
    tenon_feed_state* taken = nullptr;
    {
      const Released released(*this);
      call(tenon_feed_state_take, feed_->get(), &taken);
    }
    const std::unique_ptr<tenon_feed_state, ReleaseState> state(taken);
    auto place = detail::sized<tenon_feed_place>();
    tenon_feed_state_describe(state.get(), &place);
    const nb::list states = states_of(state.get(), place.workers);
    return nb::make_tuple(place.epoch, place.place, place.worker, place.ignored_index != 0, states);
  }
  void resume(uint64_t epoch, uint64_t index, int32_t worker, const nb::list& states) {
    auto place = detail::sized<tenon_feed_place>();
    place.workers = static_cast<int32_t>(states.size());
    place.epoch = epoch;
    place.place = index;
    place.worker = worker;
    const std::vector<tenon_worker_state> described = worker_states(states);
    call(tenon_feed_resume, feed_->get(), &place, described.data());
  }

 private:
  // Around calls that wait for other consumers, if these may need the GIL: they fill, or push copies to a
  // device.
  struct Released {
    std::optional<nb::gil_scoped_release> released;
    explicit Released(const NativeFeed& feed) {
      if (feed.is_inline_ || feed.is_on_device_) released.emplace();
    }
  };
  struct ReleaseState {
    void operator()(tenon_feed_state* state) const noexcept { tenon_feed_state_release(state); }
  };

  tenon_status try_next(tenon_batch** batch, tenon_error* error) {
    owners::drain();
    error->struct_size = sizeof *error;
    const Released released(*this);
    return tenon_feed_next(feed_->get(), 0, batch, error);
  }

  [[noreturn]] static void raise_failure(tenon_status status, const tenon_error& error) {
    throw Error(status, error.message, status == TENON_ERR_OP ? error.op_code : 0);
  }

  tenon_status wait(std::optional<double> timeout, const nb::object& warn, tenon_batch** batch,
                    tenon_error* error) {
    ReportTimer timer;
    const int64_t limit = timeout ? static_cast<int64_t>(std::min(*timeout * 1e9, 9e18)) : INT64_MAX;
    int collected = 0;  // the oldest generation that was: the young ones first, they take little time
    while (true) {
      const int64_t slice = std::clamp<int64_t>(limit - timer.waited().count(), 1, kSliceNs);
      tenon_status status = TENON_OK;
      {
        const nb::gil_scoped_release released;
        status = tenon_feed_wait(feed_->get(), slice, error);
      }
      report(warn);
      // Before the batch is taken: else the exception of a signal handler would lose it.
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
      if (status == TENON_OK) status = try_next(batch, error);
      if (status != TENON_ERR_TIMEOUT) return status;
      owners::drain();
      if (collected < 2 && is_starved()) {
        // Batches in dead cycles (a traceback, an autograd graph) are not what the consumer wants to keep.
        nb::module_::import_("gc").attr("collect")(++collected);
        continue;
      }
      const auto now = timer.waited();
      if (now.count() >= limit || (!timeout && now >= kStarved && is_starved())) return status;
      if (timer.is_due()) warn(error->message);
    }
  }

  // What there is to say beside batches and failures.
  void report(const nb::object& warn) const {
    char text[1024];
    while (tenon_feed_report_take(feed_->get(), text, sizeof text) != 0)
      warn(nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "replace")));
  }

  // Every slot is in the consumer's hands: no generator, and no work on streams, can end the wait.
  bool is_starved() const {
    const tenon_feed_statistics now = statistics();
    if (now.device_slots == 0) return now.slots_held == now.slots;
    auto devices = detail::sized<tenon_device_statistics>();
    tenon_device_statistics_get(&devices);
    if (devices.submitted != 0) return false;
    return now.device_slots_held == now.device_slots || now.slots_held == now.slots;
  }

  nb::tuple names_;
  const bool is_inline_;
  bool is_on_device_ = false;
  uint32_t flags_ = 0;  // of the generator
  std::unique_ptr<Feed> feed_;
};

// The native part of an iterator over a feed. A step that finds a ready batch runs no Python code of the
// package; the method `_step` of the subclass does all other steps. Not known to Python's garbage collector:
// neither a NativeFeed nor what converts batches refers to iterators.
class NativeEpoch {
 public:
  // convert: gets a Batch, and makes what the iterator returns. trust: it makes torch tensors of the fields,
  // which are then made here without a Batch. warn: gets messages about threads that do not return.
  void attach(nb::object feed, nb::object convert, nb::object warn, std::optional<bool> trust) {
    native_ = &nb::cast<NativeFeed&>(feed);
    feed_ = std::move(feed);
    convert_ = std::move(convert);
    warn_ = std::move(warn);
    trust_ = trust;
  }
  // From now on `_step` does each step.
  void detach() {
    native_ = nullptr;
    feed_ = {};
  }

  static PyObject* next(PyObject* self) {
    return guarded([self] { return nb::inst_ptr<NativeEpoch>(self)->step(self).release().ptr(); });
  }

  bool is_in_next = false;  // another thread may not begin an epoch of the feed now

 private:
  nb::object step(nb::handle self) {
    nb::object error = nb::none();
    bool is_delivered = false;  // the error is that of the conversion
    if (native_ != nullptr) {
      NativeFeed& native = *native_;
      const nb::object kept = feed_;  // code that runs meanwhile may detach it
      is_in_next = true;
      try {
        const nb::object warn = warn_;
        if (std::optional<Batch> batch = native.take_ready(warn)) {
          is_delivered = true;
          nb::object converted = converted_of(*std::move(batch), native);
          is_in_next = false;
          return converted;
        }
      } catch (...) {
        set_error_from_exception();
        error = nb::borrow(nb::python_error().value());
      }
      is_in_next = false;
    }
    return self.attr("_step")(error, is_delivered);
  }

  nb::object converted_of(Batch batch, const NativeFeed& native) const {
    if (trust_) return tensors_of_batch(batch, *trust_);
    const nb::object convert = convert_;
    return convert(native.object_of(std::move(batch)));
  }

  NativeFeed* native_ = nullptr;  // null: it is detached
  nb::object feed_;               // of native_
  nb::object convert_;
  nb::object warn_;
  std::optional<bool> trust_;
};

PyType_Slot epoch_slots[] = {{Py_tp_iternext, reinterpret_cast<void*>(NativeEpoch::next)}, {0, nullptr}};

nb::dict statistics_dict(const NativeFeed& self) {
  const tenon_feed_statistics s = self.statistics();
  nb::dict d;
  d["workers"] = s.workers;
  d["slots"] = s.slots;
  d["slots_free"] = s.slots_free;
  d["slots_filling"] = s.slots_filling;
  d["slots_ready"] = s.slots_ready;
  d["slots_held"] = s.slots_held;
  d["batches"] = s.batches;
  d["nbytes"] = s.nbytes;
  d["fill_ns"] = s.fill_ns;
  d["starved_ns"] = s.starved_ns;
  d["blocked_ns"] = s.blocked_ns;
  d["slot_nbytes"] = s.slot_nbytes;
  d["memory"] = reinterpret_cast<uintptr_t>(s.memory);
  d["blocked_by_consumer_ns"] = s.blocked_by_consumer_ns;
  d["skipped"] = s.skipped;
  d["retried"] = s.retried;
  d["restarted"] = s.restarted;
  d["copied"] = s.copied;
  d["unwritten"] = s.unwritten;
  d["abandoned"] = s.abandoned;
  d["oldest_epoch"] = s.oldest_epoch;
  d["oldest_index"] = s.oldest_index;
  d["oldest_ns"] = s.oldest_ns;
  d["device"] = device_name(s.device);
  d["device_slots"] = s.device_slots;
  d["device_slots_held"] = s.device_slots_held;
  d["host_memory"] = s.host_memory == TENON_HOST_REGISTERED ? "registered"
                     : s.host_memory == TENON_HOST_STAGED   ? "staged"
                                                            : "pageable";
  return d;
}

// The descriptor of the slots' file (-1: they lie in none), where in it they begin, the address of the first
// one, and the bytes up to the end of the file, where slots lie that stand in for others.
nb::tuple memory_place(const NativeFeed& self) {
  const tenon_feed_statistics s = self.statistics();
  struct stat file{};
  if (s.memory_file >= 0) (void)fstat(s.memory_file, &file);
  const uint64_t nbytes = s.memory_file >= 0 ? static_cast<uint64_t>(file.st_size) - s.memory_at
                                             : static_cast<uint64_t>(s.slots) * s.slot_nbytes;
  return nb::make_tuple(s.memory_file, s.memory_at, reinterpret_cast<uintptr_t>(s.memory), nbytes);
}

nb::dict worker_dict(const NativeFeed& self, int32_t worker) {
  auto s = detail::sized<tenon_worker_statistics>();
  tenon_worker_statistics_get(self.feed().get(), worker, &s);
  nb::dict d;
  d["worker"] = s.worker;
  d["pid"] = s.pid;
  d["fills"] = s.fills;
  d["fill_ns"] = s.fill_ns;
  d["fill_p50_ns"] = s.fill_p50_ns;
  d["fill_p99_ns"] = s.fill_p99_ns;
  d["failures"] = s.failures;
  return d;
}

nb::dict failure_of_feed(const NativeFeed& self) {
  auto f = detail::sized<tenon_feed_failure>();
  tenon_feed_failure_get(self.feed().get(), &f);
  return failure_dict(f);
}

// As the call that makes it.
nb::object text_of_schema(const NamedSchema& schema) {
  nb::list parts;
  for (const nb::handle field : fields_of(schema)) {
    const nb::object name = field[0];
    const int is_kept = PySequence_Contains(schema.kept.ptr(), name.ptr());
    check_python(is_kept);
    const nb::object dtype = nb::str(nb::object(field[1]));
    parts.append(owned(PyUnicode_FromFormat("%U=(%R, %R%s)", name.ptr(), dtype.ptr(),
                                            nb::object(field[2]).ptr(), is_kept != 0 ? ", 'kept'" : "")));
  }
  return owned(PyUnicode_FromFormat("tenon.schema(%U)", nb::str(", ").attr("join")(parts).ptr()));
}

void add_schema(nb::module_& module) {
  nb::class_<NamedSchema>(module, "Schema", "The fields of a batch; tenon.schema makes them.")
      .def(
          "__init__",
          [](NamedSchema* self, const nb::args& given, const nb::kwargs& named) {
            const bool is_named = named.size() == 1 && named.contains("fields");
            const nb::object fields = given.size() == 1 ? nb::object(given[0])
                                      : is_named        ? nb::object(named["fields"])
                                                        : nb::object(named);
            if (given.size() + named.size() != 1 || !(is_named || named.size() == 0) ||
                !nb::isinstance<nb::dict>(fields)) {
              raise(PyExc_TypeError,
                    "tn.Schema() takes one dict of names to (dtype, shape), and not %R: use tn.schema() for "
                    "keywords and other mappings, as in tn.schema(x=('f4', (64, 3)))",
                    fields.ptr());
            }
            new (self) NamedSchema(make_schema(nb::cast<nb::dict>(fields)));
          },
          nb::sig("def __init__(self, fields: dict[str, tuple[Any, ...]]) -> None"))
      .def_ro("names", &NamedSchema::names, nb::sig("def names(self) -> tuple[str, ...]"),
              "The fields' names, in order.")
      .def_ro("kept", &NamedSchema::kept, nb::sig("def kept(self) -> tuple[str, ...]"),
              "The names of the fields that a generator need not write.")
      .def_prop_ro("fields", fields_of,
                   nb::sig("def fields(self) -> tuple[tuple[str, dtype, tuple[int, ...]], ...]"),
                   "(name, dtype, shape) of each field.")
      .def_prop_ro(
          "rows", [](const NamedSchema& s) { return s.schema.rows(); }, "Rows of a batch.")
      .def_prop_ro(
          "nbytes", [](const NamedSchema& s) { return s.schema.nbytes(); },
          "Bytes of a batch, without padding.")
      .def("__len__", [](const NamedSchema& s) { return s.schema.size(); })
      .def("__repr__", text_of_schema, nb::sig("def __repr__(self) -> str"))
      .def(
          "__reduce__",
          [](nb::handle_t<NamedSchema> self) {
            const NamedSchema& schema = nb::cast<const NamedSchema&>(self);
            nb::dict fields = fields_dict(schema.schema);
            for (const nb::handle name : schema.kept) {
              fields[name] = fields[name] + nb::make_tuple("kept");
            }
            return nb::make_tuple(self.type(), nb::make_tuple(fields));
          },
          nb::sig("def __reduce__(self) -> tuple[Any, ...]"));
}

void add_batch(nb::module_& module) {
  nb::class_<NamedBatch>(
      module, "Batch", nb::type_slots(batch_slots),
      "A filled slot of a feed.\n\n"
      "Its fields are NDArrays on the slot's memory: attributes by name, items by name or place, and "
      "what iteration\n"
      "gives, in the order of the schema. ``batch.x = value`` writes the elements of field x. The slot is "
      "filled again\n"
      "when the batch, its arrays and all views of them are gone.\n")
      .def_prop_ro(
          "index", [](const NamedBatch& b) { return b.batch.index(); }, "Its place in the epoch, from 0.")
      .def_prop_ro(
          "epoch", [](const NamedBatch& b) { return b.batch.epoch(); }, "The number of the epoch, from 0.")
      .def_prop_ro(
          "rows", [](const NamedBatch& b) { return b.batch[0].shape()[0]; },
          "The length of axis 0 of its fields.")
      .def_prop_ro(
          "attachment",
          [](const NamedBatch& b) {
            const auto bytes = b.batch.attachment();
            return nb::bytes(bytes.data(), bytes.size());
          },
          "The bytes that its worker has attached; a copy.")
      .def_ro("arrays", &NamedBatch::arrays, nb::sig("def arrays(self) -> tuple[NDArray, ...]"),
              "The fields, in the order of the schema.")
      .def("__getitem__", batch_item, nb::arg("key"),
           nb::sig("def __getitem__(self, key: str | int, /) -> NDArray"))
      .def(
          "__setitem__",
          [](const NamedBatch& b, nb::object key, nb::object value) {
            (void)callback(Callback::kWriteField)(key, batch_item(b, key), value);
          },
          nb::arg("key"), nb::arg("value"),
          nb::sig("def __setitem__(self, key: str | int, value: Any, /) -> None"))
      .def("__len__", [](const NamedBatch& b) { return b.arrays.size(); })
      .def(
          "__iter__", [](const NamedBatch& b) { return nb::iter(b.arrays); },
          nb::sig("def __iter__(self) -> Iterator[NDArray]"))
      .def(
          "__contains__",
          [](const NamedBatch& b, nb::handle key) {
            return nb::isinstance<nb::str>(key) && find_field(b, key.ptr()) != nullptr;
          },
          nb::arg("key"), nb::sig("def __contains__(self, key: object, /) -> bool"))
      .def(
          "keys", [](const NamedBatch& b) { return b.names; }, nb::sig("def keys(self) -> tuple[str, ...]"),
          "The fields' names.")
      .def(
          "__repr__",
          [](const NamedBatch& b) {
            return nb::str("<tenon.Batch {} of epoch {}: {}>")
                .attr("format")(b.batch.index(), b.batch.epoch(), nb::str(", ").attr("join")(b.names));
          },
          nb::sig("def __repr__(self) -> str"));
}

}  // namespace

nb::tuple names_of(const Schema& schema) {
  nb::list names;
  for (int32_t i = 0; i < schema.size(); ++i) {
    names.append(owned(PyUnicode_InternFromString(schema[i].name)));
  }
  return nb::tuple(names);
}

nb::object object_of_batch(Batch batch, const nb::tuple& names) {
  return nb::cast(make_batch(std::move(batch), names));
}

std::vector<tenon_worker_state> worker_states(const nb::list& states) {
  std::vector<tenon_worker_state> described;
  for (const nb::handle state : states) {
    if (state.is_none()) {
      described.push_back({nullptr, 0});
      continue;
    }
    const auto bytes = nb::cast<nb::bytes>(state);
    described.push_back({bytes.data(), bytes.size()});
  }
  return described;
}

nb::list states_of(const tenon_feed_state* state, int32_t workers) {
  nb::list states;
  for (int32_t worker = 0; worker < workers; ++worker) {
    const tenon_worker_state bytes = tenon_feed_state_get(state, worker);
    states.append(bytes.data == nullptr
                      ? nb::none()
                      : nb::object(nb::bytes(bytes.data, static_cast<size_t>(bytes.nbytes))));
  }
  return states;
}

nb::dict failure_dict(const tenon_feed_failure& f) {
  nb::dict d;
  d["kind"] = f.kind == TENON_DIED         ? "died"
              : f.kind == TENON_HUNG       ? "hung"
              : f.kind == TENON_NOT_COPIED ? "not copied"
                                           : "failed";
  d["worker"] = f.worker < 0 ? nb::none() : nb::object(nb::int_(f.worker));
  d["pid"] = f.pid == 0 ? nb::none() : nb::object(nb::int_(f.pid));
  d["exit_signal"] = f.exit_signal == 0 ? nb::none() : nb::object(nb::int_(f.exit_signal));
  d["exit_code"] = f.exit_code < 0 ? nb::none() : nb::object(nb::int_(f.exit_code));
  d["epoch"] = f.epoch;
  d["index"] = f.index;
  d["text"] = nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(f.text, static_cast<Py_ssize_t>(std::strlen(f.text)), "replace"));
  return d;
}

void add_feed(nb::module_& module) {
  add_schema(module);
  add_batch(module);
  nb::class_<NativeFeed>(module, "NativeFeed", "The native part of tenon.Feed.")
      .def(
          "__init__",
          [](NativeFeed* self, const nb::object& source, const NamedSchema& schema, const nb::dict& constants,
             int32_t workers, int32_t slots, int64_t batches, uint64_t seed, bool processes, bool round_robin,
             int32_t on_error, int32_t retries, int32_t on_starved, int64_t fill_timeout_ns,
             uint64_t attachment_nbytes, const std::string& name, bool prepares, bool shared_slots,
             bool sparse_slots, bool shuffle, int32_t rank, int32_t world_size, bool has_state,
             uint64_t state_nbytes, const std::string& shared_name) {
            FeedOptions options;
            options.workers = workers;
            options.slots = slots;
            options.batches = batches;
            options.seed = seed;
            options.has_processes = processes;
            options.is_round_robin = round_robin;
            options.on_error = static_cast<OnError>(on_error);
            options.retries = retries;
            options.on_starved = static_cast<OnStarved>(on_starved);
            options.fill_timeout = std::chrono::nanoseconds(fill_timeout_ns);
            options.attachment_nbytes = attachment_nbytes;
            options.has_shared_slots = shared_slots;
            options.has_sparse_slots = sparse_slots;
            options.is_shuffled = shuffle;
            options.rank = rank;
            options.world_size = world_size;
            options.state_nbytes = state_nbytes;
            options.shared_name = shared_name;
            new (self) NativeFeed(source, schema, constants, options, name, prepares, has_state);
          },
          nb::kw_only(), nb::arg("source"), nb::arg("schema"), nb::arg("constants"), nb::arg("workers"),
          nb::arg("slots"), nb::arg("batches"), nb::arg("seed"), nb::arg("processes"), nb::arg("round_robin"),
          nb::arg("on_error"), nb::arg("retries"), nb::arg("on_starved"), nb::arg("fill_timeout_ns"),
          nb::arg("attachment_nbytes"), nb::arg("name"), nb::arg("prepares"), nb::arg("shared_slots") = false,
          nb::arg("sparse_slots") = false, nb::arg("shuffle") = false, nb::arg("rank") = 0,
          nb::arg("world_size") = 1, nb::arg("has_state") = false, nb::arg("state_nbytes") = 0,
          nb::arg("shared_name") = "")
      .def("use_device", &NativeFeed::use_device, nb::arg("device"), nb::arg("slots"))
      .def("begin", &NativeFeed::begin)
      .def("end", &NativeFeed::end)
      .def("next", &NativeFeed::next, nb::arg("timeout").none(), nb::arg("warn"),
           nb::sig("def next(self, timeout: float | None, warn: Callable[[str], object]) -> Batch | None"))
      .def("close", &NativeFeed::close, nb::arg("timeout"))
      .def("seek", &NativeFeed::seek, nb::arg("epoch"), nb::arg("index"))
      .def("position", &NativeFeed::position, nb::sig("def position(self) -> tuple[int, int]"))
      .def_prop_ro("has_state", &NativeFeed::has_state)
      .def_prop_ro("is_indexed", &NativeFeed::is_indexed)
      .def("state", &NativeFeed::state,
           nb::sig("def state(self) -> tuple[int, int, int, bool, list[bytes | None]]"))
      .def("resume", &NativeFeed::resume, nb::arg("epoch"), nb::arg("index"), nb::arg("worker"),
           nb::arg("states"),
           nb::sig(
               "def resume(self, epoch: int, index: int, worker: int, states: list[bytes | None]) -> None"))
      .def(
          "serve",
          [](const NativeFeed& self, bool broadcast, int32_t consumers, const nb::bytes& note) {
            auto options = detail::sized<tenon_serve_options>();
            options.mode = broadcast ? TENON_SERVE_BROADCAST : TENON_SERVE_QUEUE;
            options.consumers = consumers;
            options.note = note.data();
            options.note_nbytes = note.size();
            call(tenon_feed_serve, self.feed().get(), &options);
          },
          nb::arg("broadcast"), nb::arg("consumers"), nb::arg("note"))
      .def(
          "serve_wait",
          [](const NativeFeed& self, double timeout) { return serve_wait(self.feed(), timeout); },
          nb::arg("timeout"),
          nb::sig("def serve_wait(self, timeout: float) -> tuple[int, int, int, _bool, _bool, int]"))
      .def("serve_next",
           [](const NativeFeed& self) {
             const nb::gil_scoped_release released;
             call(tenon_feed_serve_next, self.feed().get());
           })
      .def(
          "serve_wanted", [](const NativeFeed& self) { return serve_wanted(self.feed()); },
          nb::sig("def serve_wanted(self) -> list[tuple[int, int, int, _bool, list[bytes | None], tuple[int, "
                  "int]]]"))
      .def("serve_end",
           [](const NativeFeed& self) {
             const nb::gil_scoped_release released;
             tenon_feed_serve_end(self.feed().get());
           })
      .def(
          "serve_counts", [](const NativeFeed& self) { return serve_counts(self.feed()); },
          nb::sig("def serve_counts(self) -> dict[str, int]"))
      .def("place", memory_place, nb::sig("def place(self) -> tuple[int, int, int, int]"))
      .def("failure", failure_of_feed, nb::sig("def failure(self) -> dict[str, Any]"))
      .def("worker", worker_dict, nb::arg("worker"),
           nb::sig("def worker(self, worker: int) -> dict[str, int]"))
      .def("statistics", statistics_dict, nb::sig("def statistics(self) -> dict[str, Any]"));
  nb::class_<NativeEpoch>(module, "NativeEpoch", nb::type_slots(epoch_slots),
                          "The native part of an iterator over a feed.")
      .def(nb::init<>())
      .def("_attach", &NativeEpoch::attach, nb::arg("feed"), nb::arg("convert"), nb::arg("warn"),
           nb::arg("trust").none(),
           nb::sig("def _attach(self, feed: NativeFeed, convert: Callable[[Any], Any], "
                   "warn: Callable[[str], object], trust: _bool | None) -> None"))
      .def("_detach", &NativeEpoch::detach)
      .def_rw("_is_in_next", &NativeEpoch::is_in_next);
}

}  // namespace tenon::python
