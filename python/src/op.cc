// SPDX-License-Identifier: Apache-2.0
//
// Ops as tenon/_sync/ops.py uses them, and the last step of all pushes.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <utility>

#include "buffer_calls.h"
#include "callbacks.h"
#include "devices.h"
#include "fork_guard.h"
#include "methods.h"
#include "numpy_lend.h"
#include "op.h"
#include "owners.h"
#include "sites.h"
#include "values.h"
#include "waiting.h"

namespace tenon::python {
namespace {

// A failure that no caller has seen, until it is reported under the GIL. Made by any thread.
struct UnseenFailure : owners::Node {
  explicit UnseenFailure(tenon_failure* owned) noexcept
      : Node([](Node* node) { static_cast<UnseenFailure*>(node)->report(); }), failure(owned) {}

  static void* operator new(size_t size, const std::nothrow_t&) noexcept {
    return ::operator new(size, std::nothrow);
  }
  static void operator delete(void* memory) noexcept { ::operator delete(memory); }
  static void operator delete(void* memory, const std::nothrow_t&) noexcept { ::operator delete(memory); }

  void report() noexcept {
    const KeepError keep_error;
    try {
      callback(Callback::kReportUnseen)(failure_tuple(failure));
    } catch (nb::python_error& error) {
      discard_as_unraisable(error, "the report of a failed op of tenon");
    } catch (...) {
      PyErr_Clear();  // there was no memory for the report
    }
    delete this;
  }

  tenon_failure* const failure;
};

void report_unseen(tenon_failure* failure) noexcept {
  auto* const node = new (std::nothrow) UnseenFailure(failure);
  node != nullptr ? owners::release(node) : tenon_failure_release(failure);
}

}  // namespace

NativeOp::NativeOp(tenon_op* op, ResultRef result) noexcept : op_(op), result_(std::move(result)) {}

NativeOp::NativeOp(NativeOp&& other) noexcept
    : op_(std::exchange(other.op_, nullptr)),
      result_(std::move(other.result_)),
      name_(std::move(other.name_)) {}

NativeOp::~NativeOp() {
  const owners::Collector collector;
  tenon_op_release(op_);
}

void NativeOp::wait(Seconds timeout) const {
  const int64_t timeout_ns = timeout.nanoseconds();
  owners::drain();
  tenon_error error = TENON_ERROR_INIT;
  const tenon_status status = tenon_op_wait(op_, timeout_ns, &error);
  owners::drain();
  if (status != TENON_OK && status != TENON_ERR_OP) throw Error(status, error.message);
  raise_noted_interrupt();
}

nb::object NativeOp::failure() const { return failure_tuple(tenon_op_failure(op_)); }

void NativeOp::on_done(nb::object function) const {
  auto* const node = new owners::Object(function);
  try {
    call(
        tenon_op_on_done, op_,
        +[](void* context) noexcept {
          const EngineThread gil;
          auto* const object = static_cast<owners::Object*>(context);
          PyObject* const result = PyObject_CallNoArgs(object->object);
          if (result == nullptr) write_unraisable(object->object);
          Py_XDECREF(result);
          owners::release(object);
        },
        static_cast<void*>(node));
  } catch (...) {
    owners::release(node);
    throw;
  }
}

NativeAwait::NativeAwait(tenon_op* op, uint64_t task) {
  call(tenon_await_begin, &await_, op, task);
  leave_calls_to_task();
}

void NativeAwait::end() noexcept {
  const owners::Collector collector;
  tenon_await_end(&await_);
}

std::string NativeAwait::report(bool is_in_words) {
  return report_of(is_in_words,
                   [&](char* text, size_t size) { return tenon_await_report(&await_, text, size); });
}

Renewals::Renewals(const nb::list& pairs) {
  for (nb::handle pair : pairs) pairs_.emplace_back(pair[0], pair[1]);
}

Array Renewals::memory_of(PyObject* array) const {
  for (const auto& [before, renewed] : pairs_) {
    if (before.ptr() == array) return share(renewed.ptr());
  }
  return share(array);
}

void Renewals::check() const {
  for (const auto& [array, renewed] : pairs_) {
    std::vector<tenon_holder> holders(
        static_cast<size_t>(tenon_array_holders(array_of(array.ptr()), 0, nullptr)));
    (void)tenon_array_holders(array_of(array.ptr()), static_cast<int32_t>(holders.size()), holders.data());
    for (const tenon_holder& holder : holders) {
      if (holder.kind != TENON_HOLDER_VIEW || holder.access != TENON_WRITE) continue;
      tenon_array* refused = nullptr;
      call(tenon_array_renew, array_of(array.ptr()), &refused);
      tenon_array_release(refused);
    }
  }
}

void Renewals::accept() {
  const auto pairs = std::exchange(pairs_, {});
  for (const auto& [array, renewed] : pairs) exchange(array.ptr(), renewed.ptr());
}

void Uses::add(Array array, Access access, uint32_t flags) {
  uses.push_back({array.get(), static_cast<int32_t>(access), flags});
  arrays.push_back(std::move(array));
}

namespace {

// Throws TypeError for arrays that the host cannot read.
void check_on_host(const std::vector<tenon_use>& uses, const char* name) {
  for (const tenon_use& use : uses) {
    const tenon_device device = tenon_array_describe(use.array)->device;
    if (!is_on_device(device)) continue;
    raise(PyExc_TypeError,
          "op '%s' uses an array on '%S', which the host cannot read: push tn.copy from it or to it, or use "
          "a.torch() in ordinary code",
          name, device_name(device).ptr());
  }
}

}  // namespace

NativeOp push(OwnedWork owned, const Push& push, ResultRef result) {
  tenon_work& work = owned.work;
  const std::vector<tenon_use>& uses = push.uses.uses;
  check_on_host(uses, push.name);
  work.struct_size = sizeof work;
  work.on_conflict = push.on_conflict;
  work.name = push.name;
  work.site = current_site();
  owners::drain();
  if (push.on_conflict != TENON_CONFLICT_IGNORE) {
    for (const tenon_use& use : uses) check_original(use, push.name);
  }
  if (push.renewals != nullptr) push.renewals->check();
  tenon_op* op = nullptr;
  call(tenon_push, &work, static_cast<int32_t>(uses.size()), uses.data(), &op);
  work.context = nullptr;
  if (push.renewals != nullptr) push.renewals->accept();
  return {op, std::move(result)};
}

void check_original(const tenon_use& use, const char* name) {
  const owners::Node* const node = owner_of(use.array);
  PyObject* const original = original_of(node);
  const bool writes = use.access == TENON_WRITE;
  if (original == nullptr || is_in_block(node) || !is_used_elsewhere(original, writes)) return;
  throw Error(
      TENON_ERR_LEASE_CONFLICT,
      std::string("op '") + name + "' " + (writes ? "writes" : "reads") +
          " memory of a NumPy array x that was given to from_numpy() and is still referred to, or a base of "
          "it");
}

nb::object describe_failure(const tenon_failure* failure) {
  auto* const payload = static_cast<owners::Object*>(tenon_failure_payload(failure, owners::release));
  nb::object exception = payload != nullptr ? nb::borrow(payload->object) : nb::none();
  return nb::make_tuple(tenon_failure_message(failure), tenon_failure_op(failure),
                        tenon_failure_site(failure), tenon_failure_code(failure), exception);
}

nb::object failure_tuple(tenon_failure* failure) {
  if (failure == nullptr) return nb::none();
  nb::object result = describe_failure(failure);
  const owners::Collector collector;
  tenon_failure_release(failure);
  return result;
}

namespace {

// The result of an op may refer to the op.
int traverse_op(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<NativeOp>(self)->kept_result());
  Py_VISIT(nb::inst_ptr<NativeOp>(self)->name().ptr());
  return 0;
}

int clear_op(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<NativeOp>(self)->drop_result();
  return 0;
}

PyType_Slot op_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_op)},
                          {Py_tp_clear, reinterpret_cast<void*>(clear_op)},
                          {0, nullptr}};

}  // namespace

void add_ops(nb::module_& module) {
  nb::class_<NativeAwait>(module, "NativeAwait", "That a task waits for an op.")
      .def("end", &NativeAwait::end)
      .def("report", &NativeAwait::report, nb::arg("is_in_words"));
  nb::class_<NativeOp>(module, "NativeOp", nb::type_slots(op_slots), nb::is_generic(),
                       nb::sig("class NativeOp(Generic[_T_co])"), "The native part of tenon.Op.")
      .def_prop_ro("name", &NativeOp::name, nb::sig("def name(self) -> str"))
      .def("done", &NativeOp::is_done, "Whether the op has ended, successfully or not. Does not wait.")
      .def("_wait", &NativeOp::wait, nb::arg("timeout").none())
      .def("_result", &NativeOp::result, nb::sig("def _result(self) -> _T_co"))
      .def("_failure", &NativeOp::failure,
           nb::sig("def _failure(self) -> tuple[str, str, str, int, BaseException | None] | None"))
      .def("_begin_await", &NativeOp::begin_await, nb::arg("task"))
      .def("_on_done", &NativeOp::on_done, nb::arg("function"),
           nb::sig("def _on_done(self, function: Callable[[], object]) -> None"));
  module.def(
      "take_failure", [] { return failure_tuple(tenon_failures_take()); },
      nb::sig("def take_failure() -> tuple[str, str, str, int, BaseException | None] | None"));
  module.def("report_failures", tenon_failures_report, nb::call_guard<nb::gil_scoped_release>(),
             "Logs the failures that no call has raised.");
  module.def(
      "wait_all",
      [](Seconds timeout) {
        const int64_t timeout_ns = timeout.nanoseconds();
        owners::drain();
        call(tenon_wait_all, timeout_ns);
        owners::drain();
        raise_noted_interrupt();
      },
      nb::arg("timeout").none());
  module.def(
      "set_engine",
      [](const char* name, int32_t workers) {
        const nb::gil_scoped_release released;
        call(tenon_engine_set, name, workers);
      },
      nb::arg("name"), nb::arg("workers"));
  module.def("engine_name", [] {
    char name[64];
    tenon_engine_name(name, sizeof name);
    return std::string(name);
  });
  module.def("help", tenon_engine_help, nb::call_guard<nb::gil_scoped_release>(),
             "Runs an op that is ready, where the engine has no threads that would.\n\n"
             "Returns\n-------\nint\n    1: it has run one; 0: none is ready; -1: the engine has its own "
             "threads.\n");
  module.def("set_engine_limits", tenon_engine_set_limits, nb::arg("ops"), nb::arg("nbytes"));
  module.def(
      "shut_down_engine",
      [](double timeout) {
        const owners::Collector reported;  // what the threads of the engine have released, too
        const nb::gil_scoped_release released;
        call(tenon_engine_shut_down, static_cast<int64_t>(timeout * 1e9));
      },
      nb::arg("timeout"));
  module.def("set_package_folder", set_package_folder, nb::arg("folder"),
             "Lines of files below it are none of the user's program.");
  tenon_set_failure_hook(report_unseen);
  add_pushes(module);
}

}  // namespace tenon::python
