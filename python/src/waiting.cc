// SPDX-License-Identifier: Apache-2.0
//
// What Python does while the C library waits: the GIL is given away, signals are heard, memory that other
// threads let go of is freed.
#include "waiting.h"

#include "fork_gate.h"
#include "names.h"
#include "owners.h"

namespace tenon::python {
namespace {

// One thread only.
struct Interrupt {
  bool is_noted = false;
  int bodies = 0;  // that run
  int waits = 0;   // that sleep
};
thread_local Interrupt interrupt;

bool set_interrupt() noexcept {
  if (!interrupt.is_noted || interrupt.bodies > 0) return false;
  interrupt.is_noted = false;
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  return true;
}

// Where no call of the bindings tells of it, the interpreter does, which runs this in the main thread.
void tell_later() noexcept {
  if (!interrupt.is_noted || interrupt.bodies > 0 || interrupt.waits > 0) return;
  const auto tell = [](void*) { return set_noted_interrupt() ? -1 : 0; };
  if (Py_AddPendingCall(tell, nullptr) != 0) PyErr_SetInterrupt();  // the queue is full
}

void* begin_wait() {
  ++interrupt.waits;
  return owners::holds_gil() ? PyEval_SaveThread() : nullptr;
}

void end_wait(void* token) {
  if (token != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(token));
  --interrupt.waits;
  tell_later();
}

// The GIL for a moment of a wait: of the thread that gave it away at the wait's begin, or (no token) before.
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
  // False: this is no thread of Python's.
  explicit operator bool() const noexcept { return state_ != nullptr || is_ensured_; }

 private:
  PyThreadState* const state_;
  PyGILState_STATE before_{};
  bool is_ensured_ = false;
};

int32_t poll_wait(void* token) {
  const Moment moment(token);
  if (!moment) return 0;
  if (PyErr_CheckSignals() != 0) {
    interrupt.is_noted = false;
    return -1;
  }
  if (set_interrupt()) return -1;
  owners::drain();
  try {
    settle_views();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("tenon");
  }
  return 0;
}

// After a collection: only this thread runs Python code.
int32_t is_alone(void* token) {
  const Moment moment(token);
  if (!moment) return 0;
  const KeepError keep_error;
  try {
    nb::module_::import_("gc").attr("collect")();  // that of the C API heeds gc.disable()
    owners::drain();
    settle_views();
    return nb::len(nb::module_::import_("sys").attr("_current_frames")()) == 1 ? 1 : 0;
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("tenon");
    return 0;
  }
}

void report_wait(const char* text) {
  const EngineThread gil;
  const KeepError keep_error;
  try {
    nb::module_::import_("logging").attr("getLogger")("tenon").attr("warning")("%s", text);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("tenon");
  }
}

}  // namespace

// The address of asyncio's current task. Asked only when memory is held by somebody.
uint64_t current_task() {
  if (!owners::holds_gil()) return 0;
  const KeepError keep_error;
  static Name asyncio("asyncio");
  const nb::object module = nb::steal(PyImport_GetModule(asyncio.get()));
  if (!module.is_valid()) return 0;
  const nb::object task = nb::steal(PyObject_CallMethod(module.ptr(), "current_task", nullptr));
  if (!task.is_valid()) PyErr_Clear();  // no loop runs in this thread
  return task.is_valid() && !task.is_none() ? reinterpret_cast<uint64_t>(task.ptr()) : 0;
}

InBody::InBody() noexcept { ++interrupt.bodies; }

InBody::~InBody() {
  --interrupt.bodies;
  tell_later();
}

void note_interrupt() {
  const nb::module_ threading = nb::module_::import_("threading");
  const nb::object main = threading.attr("main_thread")().attr("ident");
  interrupt.is_noted = main.equal(threading.attr("get_ident")());
}

bool set_noted_interrupt() noexcept { return interrupt.waits == 0 && set_interrupt(); }

void raise_noted_interrupt() {
  if (set_noted_interrupt()) nb::raise_python_error();
}

void add_waiting(nb::module_&) {
  tenon_wait_hooks hooks{};
  hooks.struct_size = sizeof hooks;
  hooks.begin = begin_wait;
  hooks.poll = poll_wait;
  hooks.end = end_wait;
  hooks.current_task = current_task;
  hooks.report = report_wait;
  hooks.is_alone = is_alone;
  tenon_set_wait_hooks(&hooks);
}

}  // namespace tenon::python
