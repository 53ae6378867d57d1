// SPDX-License-Identifier: Apache-2.0
//
// The format of what a message holds besides arrays: None, bool, int, float, complex, str, bytes, bytearray,
// list, tuple, dict, set and frozenset, of exactly these classes. Any other object is a *leaf*: its place in
// the bytes has a number, and the caller carries the object. To read the bytes runs no code that they name.
//
// An object that occurs twice is one object afterwards, and containers may contain themselves. Numbers are in
// the byte order of this machine: messages do not go to other machines.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "python.h"

namespace tenon::python {

// The bytes of an object of Python with a buffer, in one piece. Other threads and processes may write to the
// buffer, so they are a copy, unless it is of class bytes. Throws what its class raises, BufferError.
class BytesOf {
 public:
  explicit BytesOf(nb::handle object) {
    if (PyBytes_CheckExact(object.ptr()) != 0) {
      bytes_ = nb::borrow(object);
      return;
    }
    Py_buffer buffer{};
    check_python(PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_SIMPLE));
    bytes_ = nb::steal(PyBytes_FromStringAndSize(static_cast<const char*>(buffer.buf), buffer.len));
    PyBuffer_Release(&buffer);
    if (!bytes_.is_valid()) nb::raise_python_error();
  }

  std::string_view view() const noexcept {
    return {PyBytes_AsString(bytes_.ptr()), static_cast<size_t>(PyBytes_Size(bytes_.ptr()))};
  }

 private:
  nb::object bytes_;
};

struct PlainObject {
  nb::bytes bytes;
  nb::object leaves;  // a list: each leaf once
};

// The number of an array that the caller carries, another for each call; -1: it does not carry the object.
using TakeArray = std::function<int64_t(PyObject* object)>;

// A cycle that goes through a tuple or a frozenset makes the whole object a leaf. Arrays of NumPy of fewer
// than `most_inline` bytes are written, too, if describe_inline() takes them. Throws RecursionError (nested
// too deeply), RuntimeError (another thread changes it).
PlainObject encode_plain(nb::handle object, size_t most_inline);

// Calls use(bytes) if the object has no leaves but those that take() takes. The bytes are valid during the
// call. Throws as encode_plain().
bool encode_if_plain(nb::handle object, size_t most_inline, const TakeArray& take,
                     const std::function<void(std::string_view)>& use);

// The object of such bytes. leaves, arrays: lists, by number; null: there are none. Throws ValueError if they
// are no such bytes, whatever they are.
nb::object decode_plain(std::string_view data, nb::handle leaves, nb::handle arrays = {},
                        bool is_writable = true);

void add_message_format(nb::module_& module);

}  // namespace tenon::python
