// SPDX-License-Identifier: Apache-2.0
//
// From statuses of the C ABI to the exceptions that Python users expect. The classes of Tenon's own are
// defined in tenon/_errors.py.
#include "errors.h"

#include <cstdarg>
#include <new>

#include "callbacks.h"
#include "waiting.h"

namespace tenon::python {
namespace {

nb::object own_class(Callback which) { return nb::borrow(callback(which)); }

nb::object class_of(tenon_status status) {
  switch (status) {
    case TENON_ERR_VALUE:
    case TENON_ERR_CLOSED: return nb::borrow(PyExc_ValueError);
    case TENON_ERR_TYPE: return nb::borrow(PyExc_TypeError);
    case TENON_ERR_BUFFER: return nb::borrow(PyExc_BufferError);
    case TENON_ERR_INDEX: return nb::borrow(PyExc_IndexError);
    case TENON_ERR_NO_MEMORY: return nb::borrow(PyExc_MemoryError);
    case TENON_ERR_NOT_FOUND: return nb::borrow(PyExc_FileNotFoundError);
    case TENON_ERR_TIMEOUT: return nb::borrow(PyExc_TimeoutError);
    case TENON_ERR_SYSTEM: return nb::borrow(PyExc_OSError);
    case TENON_ERR_INTERNAL: return nb::borrow(PyExc_RuntimeError);
    case TENON_ERR_LEASE_CONFLICT: return own_class(Callback::kLeaseConflict);
    case TENON_ERR_LEASE_ESCAPED: return own_class(Callback::kLeaseEscaped);
    case TENON_ERR_DEADLOCK: return own_class(Callback::kDeadlockError);
    case TENON_ERR_MOVED: return own_class(Callback::kMovedError);
    default: return own_class(Callback::kTenonError);
  }
}

}  // namespace

void set_error(const Error& error) noexcept {
  // A wait that a signal's handler has ended: its exception is set.
  if (error.code() == TENON_ERR_INTERRUPTED && PyErr_Occurred() != nullptr) return;
  if (set_noted_interrupt()) return;
  try {
    if (error.code() == TENON_ERR_OP) {
      const auto* const failed = dynamic_cast<const OpError*>(&error);
      const nb::object failure =
          failed != nullptr ? describe_failure(failed->failure().get()) : failure_tuple(tenon_failure_last());
      if (!failure.is_none()) {
        const nb::object reason = callback(Callback::kOpErrorOf)(failure);
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(reason.ptr())), reason.ptr());
        return;
      }
      const nb::object type = own_class(Callback::kOpError);
      const nb::object value = type(error.what(), error.op_code());
      PyErr_SetObject(type.ptr(), value.ptr());
    } else if (error.code() == TENON_ERR_OWNER_DIED || error.code() == TENON_ERR_GONE) {
      const bool is_message = error.code() == TENON_ERR_GONE;
      const nb::object type = own_class(is_message ? Callback::kMessageGone : Callback::kOwnerDied);
      const nb::object value = type(error.what(), error.op_code());
      PyErr_SetObject(type.ptr(), value.ptr());
    } else {
      PyErr_SetString(class_of(error.code()).ptr(), error.what());
    }
  } catch (nb::python_error& failure) {
    failure.restore();
  }
}

void set_error_from_exception() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const Error& error) {
    set_error(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception");
  }
}

void raise(PyObject* type, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyErr_FormatV(type, format, arguments);
  va_end(arguments);
  nb::raise_python_error();
}

void add_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& exception, void*) {
    try {
      std::rethrow_exception(exception);
    } catch (const Error& error) {
      set_error(error);
    }
  });
}

}  // namespace tenon::python
