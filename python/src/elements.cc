// SPDX-License-Identifier: Apache-2.0
#include "elements.h"

#include <optional>

namespace tenon::python {
namespace {

// Below this many bytes giving the GIL away costs more than it gives.
constexpr uint64_t kWithoutGilFrom = 1 << 16;

template <class Body>
auto run(uint64_t nbytes, Body&& body) {
  std::optional<nb::gil_scoped_release> released;
  if (nbytes >= kWithoutGilFrom) released.emplace();
  return body();
}

}  // namespace

Array copied(const Array& source, DType dtype) {
  return run(source.nbytes(), [&] { return source.copy(dtype); });
}

void check_writable(const Array& array) {
  if (array.is_readonly()) raise(PyExc_ValueError, "the array is read-only: write to a.copy()");
}

void copy_elements(const Array& source, const Array& destination) {
  check_writable(destination);
  run(destination.nbytes(), [&] { source.copy_to(destination); });
}

void fill_elements(const Array& destination, const void* value, DType dtype) {
  check_writable(destination);
  run(destination.nbytes(),
      [&] { call(tenon_array_fill, destination.get(), value, static_cast<tenon_dtype>(dtype)); });
}

void check_device_name(nb::handle device) {
  if (PyUnicode_Check(device.ptr()) == 0 || PyUnicode_CompareWithASCIIString(device.ptr(), "cpu") != 0) {
    raise(PyExc_ValueError, "device is %R: arrays live on 'cpu'", device.ptr());
  }
}

}  // namespace tenon::python
