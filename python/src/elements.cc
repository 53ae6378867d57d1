// SPDX-License-Identifier: Apache-2.0
#include "elements.h"

#include <complex>
#include <optional>

#include "array_call.h"
#include "buffer_calls.h"
#include "devices.h"

namespace tenon::python {
namespace {

// Below this number of bytes, releasing the GIL costs more than it saves.
constexpr uint64_t kWithoutGilFrom = 1 << 16;

// name: of the call, as body() makes it. source, destination: null: none.
template <class Body>
auto run(const char* name, const Array* source, const Array* destination, Body&& body) {
  const uint64_t nbytes = (destination != nullptr ? destination : source)->nbytes();
  const bool gives_gil = nbytes >= kWithoutGilFrom;
  if (!gives_gil && !may_have_buffer_calls()) [[likely]]
    return body();
  // The call begins before the GIL is released: buffers that are taken later wait for it, and a thread that
  // waits is registered as waiting. A call that takes a buffer may be ahead in the queue, so only then is it
  // known which calls run.
  ArrayCall call;
  if (source != nullptr) call.uses(*source, Access::kRead);
  if (destination != nullptr) call.uses(*destination, Access::kWrite, TENON_OVERWRITE);
  call.begin(name);
  std::optional<nb::gil_scoped_release> released;
  if (gives_gil) released.emplace();
  return body();
}

void warn_of_dropped_parts(DType from, DType to) {
  const nb::object warning = nb::module_::import_("numpy.exceptions").attr("ComplexWarning");
  check_python(PyErr_WarnFormat(warning.ptr(), 1,
                                "Casting complex values to real discards the imaginary part (%s to %s): take "
                                "np.real(x)",
                                from.name().c_str(), to.name().c_str()));
}

}  // namespace

DType wide_type_of(DType dtype) {
  if (dtype.lanes() != 1) {
    raise(PyExc_TypeError, "elements of %s are vectors, which have no Python counterpart",
          dtype.name().c_str());
  }
  switch (dtype.code()) {
    case TENON_BOOL: return dtype_of<bool>();
    case TENON_INT: return dtype_of<int64_t>();
    case TENON_UINT: return dtype_of<uint64_t>();
    case TENON_COMPLEX: return dtype_of<std::complex<double>>();
    default: return dtype_of<double>();
  }
}

void check_cast(DType from, DType to) {
  if (from.code() != TENON_COMPLEX || to.code() == TENON_COMPLEX || to.code() == TENON_BOOL) [[likely]]
    return;
  warn_of_dropped_parts(from, to);
}

Array copied(const Array& source, DType dtype) {
  check_cast(source.dtype(), dtype);
  if (is_on_device(source)) return copied_on(source, dtype, source.desc().device);
  return run("copyto", &source, nullptr, [&] { return source.copy(dtype); });
}

Array lazy_copy_of_item(const Array& source, bool may_copy) {
  if (!source.is_readonly()) return {};
  return run("copyto", &source, nullptr, [&] {
    const int32_t mode = may_copy ? TENON_COPY_IF_NEEDED : TENON_COPY_NEVER;
    return Array::steal(detail::call_for<tenon_array*>(tenon_array_lazy_copy, source.get(), mode));
  });
}

Array lazily_copied(const Array& source) {
  Array copy = lazy_copy_of_item(source);
  return copy.get() != nullptr ? copy : copied(source);
}

void check_writable(const Array& array) {
  if (!array.is_readonly()) return;
  raise(PyExc_ValueError, "the array is read-only: %s", kHowToWrite);
}

void copy_elements(const Array& source, const Array& destination) {
  check_writable(destination);
  check_cast(source.dtype(), destination.dtype());
  run("copyto", &source, &destination, [&] { source.copy_to(destination); });
}

void fill_elements(const Array& destination, const void* value, DType dtype) {
  check_writable(destination);
  run("fill", nullptr, &destination,
      [&] { call(tenon_array_fill, destination.get(), value, static_cast<tenon_dtype>(dtype)); });
}

}  // namespace tenon::python
