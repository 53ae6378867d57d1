// SPDX-License-Identifier: Apache-2.0
//
// Leases as tenon/_sync/lease.py uses them, and the holders of an array.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "buffer_calls.h"
#include "callbacks.h"
#include "elements.h"
#include "errors.h"
#include "methods.h"
#include "op.h"
#include "owners.h"
#include "sites.h"
#include "tenon/arena.hpp"
#include "values.h"
#include "waiting.h"

namespace tenon::python {
namespace {

// A lease. acquire() waits for it; request() calls a function when it has been granted. task: as in
// tenon_lease_options.
class NativeLease {
 public:
  NativeLease(const Array& array, bool is_write, bool is_overwrite, bool ignores_owner_died) : array_(array) {
    options_.struct_size = sizeof options_;
    options_.access = is_write ? TENON_WRITE : TENON_READ;
    options_.flags = (is_overwrite ? uint32_t{TENON_OVERWRITE} : 0) |
                     (ignores_owner_died ? uint32_t{TENON_IGNORE_OWNER_DIED} : 0);
  }
  NativeLease(const NativeLease&) = delete;
  NativeLease& operator=(const NativeLease&) = delete;
  ~NativeLease() { release(); }

  // Null with a Python error: it was refused. Nothing is thrown then, because a program may poll, and because
  // recovery from a death has to be fast.
  nb::object acquire(Seconds timeout, uint64_t task) {
    prepare(task);
    options_.timeout_ns = timeout.is_none() ? TENON_DEFAULT_TIMEOUT : timeout.nanoseconds();
    const WaitLimit end = limit_of(options_.timeout_ns);
    tenon_error error;  // only what is read is set, as call() does
    error.struct_size = sizeof error;
    error.op_code = 0;
    error.message[0] = '\0';
    const tenon_status status = tenon_lease_acquire(&lease_, array_.get(), &options_, &error);
    if (status == TENON_ERR_OP) detail::throw_reported(status, error);
    if (status != TENON_OK) {
      set_error(Error(status, error.message, error.op_code));
      return {};
    }
    wait_for_calls(end);
    return nb::none();
  }

  // As acquire(), of the data of an arena. Makes the layout the active one.
  void use(const Arena& arena, const std::string& layout, Seconds timeout, uint64_t task) {
    prepare(task);
    options_.timeout_ns = timeout.is_none() ? TENON_DEFAULT_TIMEOUT : timeout.nanoseconds();
    const WaitLimit end = limit_of(options_.timeout_ns);
    call(tenon_arena_use, arena.get(), layout.c_str(), &options_, &lease_);
    wait_for_calls(end);
  }
  // After request() was granted.
  void enter(const Arena& arena, const std::string& layout) {
    call(tenon_arena_enter, arena.get(), layout.c_str(), &lease_);
  }

  // Returns whether the lease is held. If not, told() is called when it has been granted; the caller then
  // calls check() or cancel(). arena: the lease is of its data; then the caller calls enter() instead of
  // check().
  static bool request(nb::handle_t<NativeLease> self, nb::object told, uint64_t task, const Arena* arena) {
    NativeLease& lease = nb::cast<NativeLease&>(self);
    lease.prepare(task);
    auto* const notice = new Notice(lease, nb::borrow(self), std::move(told));
    int32_t is_granted = 0;
    try {
      if (arena != nullptr) {
        call(tenon_arena_request, arena->get(), &lease.options_, &lease.lease_, tell,
             static_cast<void*>(notice), &is_granted);
      } else {
        call(tenon_lease_request, &lease.lease_, lease.array_.get(), &lease.options_, tell,
             static_cast<void*>(notice), &is_granted);
      }
    } catch (...) {
      owners::release(notice);
      throw;
    }
    if (is_granted != 0) {
      owners::release(notice);
    } else {
      lease.notice_ = notice;
      leave_calls_to_task();
    }
    return is_granted != 0;
  }
  void check() { call(tenon_lease_check, &lease_); }
  std::string report(bool is_in_words) {
    return report_of(is_in_words,
                     [&](char* text, size_t size) { return tenon_lease_report(&lease_, text, size); });
  }

  // For a lease that was granted to a task: the call of another thread for which the task has to wait; empty:
  // none.
  std::string call_ahead() const { return buffer_call_ahead(array_.get(), Access{options_.access}); }

  // Withdraws the request, or releases the lease. False: another thread has granted it and is about to call
  // told(); the lease is released then.
  bool cancel() {
    const owners::Collector collector;
    if (tenon_lease_cancel(&lease_) != 0) {
      owners::release(std::exchange(notice_, nullptr));
    } else if (notice_ != nullptr) {
      notice_->is_abandoned = true;
      return false;
    } else {
      (void)tenon_lease_release(&lease_);
    }
    return true;
  }

  bool release() {
    const owners::Collector collector;
    return tenon_lease_release(&lease_) != 0;
  }
  bool fail(const char* message) {
    const owners::Collector collector;
    return tenon_lease_fail(&lease_, message) != 0;
  }
  void detach() { tenon_lease_detach(&lease_); }

  static nb::object open_block(nb::handle_t<NativeLease> self, nb::handle block) {
    return python::open_block(block, nb::cast<NativeLease&>(self).lease_, nb::borrow(self));
  }

 private:
  // Keeps the lease until told() was called.
  struct Notice : owners::Node {
    Notice(NativeLease& requested, nb::object requested_object, nb::object told_function)
        : Node([](Node* node) { delete static_cast<Notice*>(node); }),
          lease(requested),
          object(std::move(requested_object)),
          told(std::move(told_function)) {}
    NativeLease& lease;
    nb::object object;
    nb::object told;
    bool is_abandoned = false;
  };

  static void tell(void* context) noexcept {
    const PyGILState_STATE state = PyGILState_Ensure();
    {
      const KeepError keep_error;
      auto* const notice = static_cast<Notice*>(context);
      notice->lease.notice_ = nullptr;
      if (notice->is_abandoned) {
        notice->lease.release();
      } else {
        PyObject* const result = PyObject_CallNoArgs(notice->told.ptr());
        if (result == nullptr) write_unraisable(notice->told.ptr());
        Py_XDECREF(result);
      }
      owners::release(notice);
    }
    PyGILState_Release(state);
  }

  void wait_for_calls(WaitLimit end) {
    if (!may_have_buffer_calls()) return;
    try {
      wait_for_buffer_calls(array_.get(), Access{options_.access}, end);
    } catch (...) {
      const KeepError keep_error;
      cancel();
      throw;
    }
  }

  void prepare(uint64_t task) {
    options_.task = task;
    options_.site = current_site();
    owners::drain();
  }

  Array array_;
  tenon_lease_options options_{};
  tenon_lease lease_ = TENON_LEASE_INIT;
  Notice* notice_ = nullptr;  // while told() is still to be called
};

nb::list holders(const Array& array) {
  std::vector<tenon_holder> found(16);
  int32_t n = 0;
  while ((n = tenon_array_holders(array.get(), static_cast<int32_t>(found.size()), found.data())) >
         static_cast<int32_t>(found.size())) {
    found.resize(static_cast<size_t>(n));
  }
  found.resize(static_cast<size_t>(n));
  static constexpr const char* kKinds[] = {"view", "op", "lease", "call", "process"};
  // Most rows have the same texts as the row before.
  struct Column {
    const char* text = nullptr;
    nb::object value;
    const nb::object& of(const char* next) {
      if (text == nullptr || std::strcmp(text, next) != 0) value = nb::str(next);
      text = next;
      return value;
    }
  } kind, mode, name, site;
  nb::list result;
  for (const tenon_holder& h : found) {
    result.append(nb::make_tuple(kind.of(kKinds[h.kind]), mode.of(h.access == TENON_WRITE ? "w" : "r"),
                                 h.is_granted != 0, h.thread, static_cast<double>(h.age_ns) * 1e-9,
                                 name.of(h.name), site.of(h.site)));
  }
  return result;
}

void wait_for(const Array& array, int32_t access, Seconds timeout) {
  const int64_t timeout_ns = timeout.nanoseconds();
  owners::drain();
  call(tenon_array_wait, array.get(), access, timeout_ns);
}

}  // namespace

void add_leases(nb::module_& module) {
  add_block(module);
  nb::class_<NativeLease>(module, "NativeLease", "The native part of tenon.Lease.")
      .def(nb::init<const Array&, bool, bool, bool>(), nb::arg("array"), nb::arg("is_write"),
           nb::arg("is_overwrite") = false, nb::arg("ignores_owner_died") = false)
      .def("acquire", &NativeLease::acquire, nb::arg("timeout").none() = nb::none(), nb::arg("task") = 0,
           nb::sig("def acquire(self, timeout: float | None = None, task: int = 0) -> None"))
      .def("use", &NativeLease::use, nb::arg("arena"), nb::arg("layout"), nb::arg("timeout").none(),
           nb::arg("task"))
      .def("enter", &NativeLease::enter, nb::arg("arena"), nb::arg("layout"))
      .def("request", &NativeLease::request, nb::arg("told"), nb::arg("task"),
           nb::arg("arena").none() = nb::none(),
           nb::sig("def request(self, told: Callable[[], object], task: int, arena: NativeArena | None = "
                   "None) -> bool"))
      .def("check", &NativeLease::check)
      .def("report", &NativeLease::report, nb::arg("is_in_words"),
           "What a request waits for, in words; empty if nothing is in its way. Logs views that outlived "
           "their\n"
           "block and are in its way; with False only that.\n")
      .def("call_ahead", &NativeLease::call_ahead,
           "Of a lease that was granted to a task: the call that uses a buffer, for which it has to wait.")
      .def("cancel", &NativeLease::cancel,
           "Takes a request back, or releases the lease. False: it was granted, and is released as soon as "
           "that has been\ntold.")
      .def("release", &NativeLease::release)
      .def("fail", &NativeLease::fail, nb::arg("message"))
      .def("detach", &NativeLease::detach)
      .def("open_block", &NativeLease::open_block, nb::arg("block"),
           nb::sig("def open_block(self, block: object) -> Any"),
           "The view of a block that is being entered, under this lease. The block keeps it until its end.");
  module.def("holders", holders, nb::arg("array"),
             nb::sig("def holders(array: NDArray) -> list[tuple[str, str, bool, int, float, str, str]]"),
             "(kind, mode, is granted, thread, age in seconds, name, site) of what holds the memory or waits "
             "for it.");
  def_method(
      "lease",
      [](const Self& self, nb::object mode, nb::object timeout, nb::object on_owner_died) {
        // Null with a Python error if it is refused, as NativeLease::acquire().
        return nb::steal(PyObject_CallFunctionObjArgs(callback(Callback::kLease).ptr(), self.object.ptr(),
                                                      mode.ptr(), timeout.ptr(), on_owner_died.ptr(),
                                                      nullptr));
      },
      nb::arg("mode").none(), nb::arg("timeout").none() = nb::none(),
      nb::arg("on_owner_died").none() = "raise",
      nb::sig(
          "def lease(self, mode: str, timeout: float | None = None, on_owner_died: OnOwnerDied = 'raise') "
          "-> Any"),
      "A `Lease`, held from this call on. ``timeout`` in seconds; None: as `read`. Raises TimeoutError, "
      "DeadlockError,\nOpError, OwnerDied.\n");
  def_method(
      "leases", [](const Self& self) { return callback(Callback::kLeases)(self.object); },
      nb::sig("def leases(self) -> list[Any]"),
      "What holds the memory or waits for it: a list of `Holder`, in the order of the queue, views last.\n");
  def_method(
      "drop_views", [](const Self& self) { return callback(Callback::kDropViews)(self.object); },
      nb::sig("def drop_views(self) -> list[Any]"),
      "Drops views that are kept by accident: those in a notebook's ``Out``, in ``sys.last_value``, and in "
      "variables of "
      "finished\n"
      "functions that the traceback of a caught exception keeps. Variables of running code stay as they "
      "are.\n\n"
      "Returns\n-------\nlist of Holder\n    The remaining views. ``where`` names what refers to them, "
      "if that is found.\n");
  def_method(
      "snapshot", [](const Array& self) { return copied(self); },
      "A copy of all elements at one moment: waits for ops that write and were pushed before.\n");
  def_method(
      "wait_to_read", [](const Array& self, Seconds timeout) { wait_for(self, TENON_READ, timeout); },
      nb::arg("timeout").none() = nb::none(),
      "Waits until the ops that write this memory and were pushed before are done.\n\n"
      "Parameters\n----------\ntimeout : float, optional\n    Seconds; None waits as long as it takes.\n\n"
      "Raises\n------\nOpError\n    One of them has failed.\nDeadlockError\n    The wait would not end.\n"
      "TimeoutError\n    The time has passed.\n");
  def_method(
      "wait_to_write", [](const Array& self, Seconds timeout) { wait_for(self, TENON_WRITE, timeout); },
      nb::arg("timeout").none() = nb::none(),
      "Waits until all ops that use this memory and were pushed before are done. As `wait_to_read`.\n");
  def_method(
      "clear_error", [](const Array& self) { call(tenon_array_make_consistent, self.get()); },
      "Says that the values are valid although an op that was to write it has failed, or a process has\n"
      "died while it was writing there.\n\n"
      "Raises\n------\nTimeoutError\n    Another process has kept the shared memory for longer than\n"
      "    `tenon.set_lock_timeout` says: the error is not cleared.\n");
}

}  // namespace tenon::python
