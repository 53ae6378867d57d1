// SPDX-License-Identifier: Apache-2.0
//
// Waits of the C library in a process with Python: they release the GIL, handle signals, and free memory that
// other threads have released.
#include "waiting.h"

#include <nanobind/stl/string.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "buffer_calls.h"
#include "callbacks.h"
#include "fork_guard.h"
#include "names.h"
#include "owners.h"

namespace tenon::python {
namespace {

// One thread only.
struct Interrupt {
  PyObject* noted = nullptr;  // an exception, owned
  int bodies = 0;             // that run
  int waits = 0;              // that sleep
};
thread_local Interrupt interrupt;
thread_local int reports = 0;  // of tasks, whose words this thread asks for

bool is_main_thread() noexcept {
  try {
    const nb::module_ threading = nb::module_::import_("threading");
    const nb::object main = threading.attr("main_thread")().attr("ident");
    return main.equal(threading.attr("get_ident")());
  } catch (nb::python_error& error) {
    return !error.matches(PyExc_Exception);  // another Ctrl-C, of which only the main thread hears
  }
}

void note(nb::handle exception) {
  const nb::object before = nb::steal(std::exchange(interrupt.noted, exception.inc_ref().ptr()));
}

bool set_interrupt() noexcept {
  if (interrupt.noted == nullptr || interrupt.bodies > 0) return false;
  const nb::object noted = nb::steal(std::exchange(interrupt.noted, nullptr));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(noted.ptr())), noted.ptr());
  return true;
}

// If no call of the bindings raises the interrupt, the interpreter does: it calls this in the main thread.
void tell_later() noexcept {
  if (interrupt.noted == nullptr || interrupt.bodies > 0 || interrupt.waits > 0) return;
  const auto tell = [](void*) { return set_noted_interrupt() ? -1 : 0; };
  if (Py_AddPendingCall(tell, nullptr) != 0) PyErr_SetInterrupt();  // the queue is full
}

// For an error of code that a wait or a report has run. Ctrl-C, and others that are no Exception, are for the
// program and end the wait. Other errors have no handler. Under the GIL.
void note_or_discard(nb::python_error& error) {
  if (!error.matches(PyExc_Exception) && (interrupt.waits > 0 || is_main_thread())) {
    note(error.value());
    tell_later();
  } else {
    error.discard_as_unraisable("tenon");
  }
}

void* begin_wait() noexcept {
  ++interrupt.waits;
  if (!owners::holds_gil()) return nullptr;
  begin_waiting();
  return PyEval_SaveThread();
}

void end_wait(void* token) noexcept {
  if (token != nullptr) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(token));
    end_waiting();
  }
  --interrupt.waits;
  tell_later();
}

// The GIL for a moment of a wait, in a thread that released it at the beginning of the wait, or (no token)
// before.
class Moment {
 public:
  explicit Moment(void* token) : state_(static_cast<PyThreadState*>(token)) {
    if (state_ != nullptr) {
      PyEval_RestoreThread(state_);
    } else if (PyGILState_GetThisThreadState() != nullptr) {
      before_ = PyGILState_Ensure();
      is_ensured_ = true;
    }
  }
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;
  ~Moment() {
    if (state_ != nullptr) {
      (void)PyEval_SaveThread();
    } else if (is_ensured_) {
      PyGILState_Release(before_);
    }
  }
  // False: Python does not know this thread.
  explicit operator bool() const noexcept { return state_ != nullptr || is_ensured_; }

 private:
  PyThreadState* const state_;
  PyGILState_STATE before_{};
  bool is_ensured_ = false;
};

int32_t poll_wait(void* token) noexcept {
  const Moment moment(token);
  if (!moment) return 0;
  if (PyErr_CheckSignals() != 0) {
    Py_CLEAR(interrupt.noted);
    return -1;
  }
  if (set_interrupt()) return -1;
  owners::drain();
  try {
    release_retained();
  } catch (nb::python_error& error) {
    note_or_discard(error);
  }
  return set_interrupt() ? -1 : 0;
}

// After a collection: only this thread runs Python code.
int32_t is_alone(void* token) noexcept {
  const Moment moment(token);
  if (!moment) return 0;
  const KeepError keep_error;
  try {
    nb::module_::import_("gc").attr("collect")();  // that of the C API heeds gc.disable()
    owners::drain();
    release_retained();
    return nb::len(nb::module_::import_("sys").attr("_current_frames")()) == 1 ? 1 : 0;
  } catch (nb::python_error& error) {
    note_or_discard(error);
    return 0;
  }
}

// The GIL around bodies of ops that this thread of the engine runs.
struct Entered {
  Entered() noexcept {
    if (visit) gil.emplace();
  }

  const Visit visit;
  std::optional<EngineThread> gil;
};

thread_local std::optional<Entered> entered;

// Null: Python is ending. A body inside of another one acquires the GIL itself, if that has released it.
void* enter_body() noexcept {
  static char nested;
  if (entered) return &nested;
  if (entered.emplace().gil) return &entered;
  entered.reset();
  return nullptr;
}

void leave_body(void* token) noexcept {
  if (token == &entered) entered.reset();
}

// Runs Python code in the thread that reports.
template <class Body>
void report_with(Body body) {
  const Visit visit;
  if (!visit) return;
  const EngineThread gil;
  const KeepError keep_error;
  try {
    body();
  } catch (nb::python_error& error) {
    note_or_discard(error);
  }
}

void find_views(const tenon_holder* holder, const void* begin, const void* end, char* text,
                size_t size) noexcept {
  report_with([&] {
    const nb::object found = callback(Callback::kFindViews)(
        reinterpret_cast<uintptr_t>(begin), reinterpret_cast<uintptr_t>(end), holder->access == TENON_WRITE,
        holder->thread, interrupt.waits > 0 || reports > 0);
    const std::string_view words = text_of(found);
    text[words.copy(text, size - 1)] = '\0';
  });
}

}  // namespace

// It is an attribute of the task, because a later task may have the same address. A task without attributes
// gets a new number at each call: it waits for its own leases.
uint64_t number_of_task(PyObject* task) noexcept {
  static Name name("_tenon_number");
  static uint64_t last = 0;
  const KeepError keep_error;
  if (const nb::object kept = nb::steal(PyObject_GenericGetAttr(task, name.get())); kept.is_valid()) {
    const uint64_t number = PyLong_AsUnsignedLongLong(kept.ptr());
    if (number != 0 && PyErr_Occurred() == nullptr) return number;
  }
  forget_error();
  const uint64_t number = ++last;
  const nb::object value = nb::steal(PyLong_FromUnsignedLongLong(number));
  const int collects =
      PyGC_Disable();  // before CPython 3.12, the dict of the attribute may begin a collection
  if (!value.is_valid() || PyObject_GenericSetAttr(task, name.get(), value.ptr()) != 0) forget_error();
  if (collects != 0) PyGC_Enable();
  return number;
}

// Asked only when memory is held, perhaps under the lock of a queue.
// So no Python code may run: it could give up the GIL, and other threads wait for that lock with the GIL.
uint64_t current_task() noexcept {
  if (!owners::holds_gil()) return 0;
  const KeepError keep_error;
  static Name asyncio("_asyncio");  // the part of asyncio that is written in C
  const nb::object module = nb::steal(PyImport_GetModule(asyncio.get()));
  if (!module.is_valid()) return 0;
  const nb::object loop = nb::steal(PyObject_CallMethod(module.ptr(), "_get_running_loop", nullptr));
  if (!loop.is_valid() || loop.is_none()) {
    forget_error();  // while asyncio is being imported
    return 0;
  }
  constexpr unsigned long k312 = 0x030C;
  nb::object task;
  if (Py_Version >> 16 >= k312) {
    task = nb::steal(PyObject_CallMethod(module.ptr(), "current_task", "O", loop.ptr()));
  } else {  // before, current_task() is written in Python
    const nb::object tasks = nb::steal(PyObject_GetAttrString(module.ptr(), "_current_tasks"));
    if (tasks.is_valid()) task = nb::borrow(PyDict_GetItemWithError(tasks.ptr(), loop.ptr()));
  }
  if (!task.is_valid()) forget_error();
  return task.is_valid() && !task.is_none() ? number_of_task(task.ptr()) : 0;
}

std::string ReportTimer::waited_text() const {
  const int64_t ms = waited().count() / 1'000'000;
  return ms < 1000 ? std::to_string(ms) + " ms" : std::to_string(ms / 1000) + " s";
}

void report_wait(const char* text) noexcept {
  report_with([&] {
    if (std::string_view(text).starts_with("waiting for ")) {
      callback(Callback::kReport)(text);
    } else {
      nb::module_::import_("logging").attr("getLogger")("tenon").attr("warning")("%s", text);
    }
  });
}

InReport::InReport() noexcept { ++reports; }

InReport::~InReport() { --reports; }

InBody::InBody() noexcept { ++interrupt.bodies; }

bool is_in_body() noexcept { return interrupt.bodies > 0; }

InBody::~InBody() {
  --interrupt.bodies;
  tell_later();
}

void note_interrupt() {
  if (is_main_thread()) note(owned(PyObject_CallNoArgs(PyExc_KeyboardInterrupt)));
}

bool set_noted_interrupt() noexcept { return interrupt.waits == 0 && set_interrupt(); }

void raise_noted_interrupt() {
  if (set_noted_interrupt()) nb::raise_python_error();
}

void forget_other_visitors() noexcept { Visit::forget_others(entered && entered->visit.is_counted()); }

void add_waiting(nb::module_& module) {
  auto hooks = detail::sized<tenon_wait_hooks>();
  hooks.begin = begin_wait;
  hooks.poll = poll_wait;
  hooks.end = end_wait;
  hooks.current_task = current_task;
  hooks.report = report_wait;
  hooks.is_alone = is_alone;
  hooks.enter = enter_body;
  hooks.leave = leave_body;
  tenon_set_wait_hooks(&hooks);
  tenon_set_view_finder(find_views);
  using Seconds = std::chrono::duration<double>;
  nb::class_<ReportTimer>(module, "ReportTimer", "When a wait that begins now is reported.")
      .def(nb::init<>())
      .def("seconds", [](const ReportTimer& t) { return Seconds(t.waited()).count(); })
      .def("text", &ReportTimer::waited_text, "The duration of the wait, as in reports.")
      .def(
          "left", [](const ReportTimer& t) { return Seconds(t.left()).count(); },
          "The seconds until the next report.")
      .def("is_due", &ReportTimer::is_due, "True once in each period of reports.");
  module.def(
      "set_report_seconds",
      [](double seconds) {
        return static_cast<double>(tenon_set_report_period(std::llround(seconds * 1e9))) / 1e9;
      },
      nb::arg("seconds"), "Returns the previous period of reports. 0: does not change.");
  module.def(
      "number_of_task", [](nb::handle task) { return number_of_task(task.ptr()); }, nb::arg("task"),
      "A number of a task of asyncio that no other one ever gets.");
  module.def("end_reports", Visit::end_all, "Threads of the library run no Python code from now on.");
}

}  // namespace tenon::python
