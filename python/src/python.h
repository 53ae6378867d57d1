// SPDX-License-Identifier: Apache-2.0
//
// What every file of the extension includes: nanobind, the C++ layer of Tenon and the two ways from a C++
// exception to a Python one. Functions that nanobind calls just throw; functions that CPython calls
// directly (slots, fast methods) run their body in guarded().
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <type_traits>

#include "tenon/tenon.hpp"

namespace nb = nanobind;

namespace tenon::python {

// Sets type with a message as printf would write it (PyErr_FormatV) and throws.
[[noreturn]] void raise(PyObject* type, const char* format, ...);

// Turns the exception in flight into a Python error. Call it inside of a catch block.
void set_error_from_exception() noexcept;

// The body's result; when it throws, the Python error is set and the result is nullptr or -1.
template <class Body>
auto guarded(Body&& body) noexcept -> decltype(body()) {
  using Result = decltype(body());
  try {
    return body();
  } catch (...) {
    set_error_from_exception();
  }
  if constexpr (std::is_pointer_v<Result>) {
    return nullptr;
  } else {
    return static_cast<Result>(-1);
  }
}

// A new reference, or the Python error that is set, as an exception.
inline nb::object owned(PyObject* object) {
  if (object == nullptr) nb::raise_python_error();
  return nb::steal(object);
}
inline void check_python(int result) {
  if (result < 0) nb::raise_python_error();
}

// Keeps the exception in flight, if there is one, over code that may run Python: for deallocation.
class KeepError {
 public:
  KeepError() noexcept {
    if (PyErr_Occurred() != nullptr) PyErr_Fetch(&type_, &value_, &traceback_);
  }
  KeepError(const KeepError&) = delete;
  KeepError& operator=(const KeepError&) = delete;
  ~KeepError() {
    if (type_ != nullptr) PyErr_Restore(type_, value_, traceback_);
  }

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

// Clears an error that cannot reach a caller. A KeyboardInterrupt is not lost: the main thread raises it at
// its next check of signals. (A signal handler may run in any Python code, also where errors are dropped.)
inline void forget_error() noexcept {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0)
    PyErr_SetInterrupt();
  PyErr_Clear();
}
// In a catch block.
inline void forget_exception() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (...) {
    // It cannot be reported.
  }
  forget_error();
}
// Passes such an error to sys.unraisablehook.
inline void write_unraisable(PyObject* where) noexcept {
  if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) return forget_error();
  PyErr_WriteUnraisable(where);
}
inline void discard_as_unraisable(nb::python_error& error, const char* where) noexcept {
  if (!error.matches(PyExc_KeyboardInterrupt)) return error.discard_as_unraisable(where);
  error.restore();
  forget_error();
}

// The text of a str, which owns it. Throws TypeError for other objects.
inline std::string_view text_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) nb::raise_python_error();
  return {data, static_cast<size_t>(size)};
}

// An interned name. Made once, kept for ever.
class Name {
 public:
  explicit Name(const char* text) noexcept : text_(text) {}
  PyObject* get() {
    if (object_ == nullptr) object_ = owned(PyUnicode_InternFromString(text_)).release().ptr();
    return object_;
  }

 private:
  const char* text_;
  PyObject* object_ = nullptr;
};

}  // namespace tenon::python
