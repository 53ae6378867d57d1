// SPDX-License-Identifier: Apache-2.0
//
// Devices as Python names them, and the streams of DLPack.
#pragma once

#include "python.h"

namespace tenon::python {

// "cpu", "cuda", "cuda:1", "cuda_host". Throws TypeError, ValueError.
tenon_device device_from(nb::handle name);

// A new reference to the name.
nb::object device_name(tenon_device device);

// The host cannot read or write the memory.
inline bool is_on_device(tenon_device device) noexcept { return device.type == TENON_CUDA; }
// Work on streams may use the memory. Managed memory is memory of the host, too.
inline bool has_streams(tenon_device device) noexcept {
  return is_on_device(device) || device.type == TENON_CUDA_MANAGED;
}
inline bool is_on_device(const Array& array) noexcept { return is_on_device(array.desc().device); }
inline bool are_equal(tenon_device a, tenon_device b) noexcept { return a.type == b.type && a.id == b.id; }

// The stream argument of __dlpack__ for memory on a device: None means the legacy default stream. Throws
// TypeError, ValueError.
int64_t stream_from(PyObject* stream);

// The stream that producers order their work with, so that Tenon may use their memory on the device.
int64_t own_stream(tenon_device device);

// New memory on the device in C order, with the elements cast to dtype.
Array copied_on(const Array& source, DType dtype, tenon_device device);

// The array itself; of memory on a device a copy on the host.
inline Array on_host(const Array& array) {
  return is_on_device(array) ? copied_on(array, array.dtype(), {TENON_CPU, 0}) : array;
}

// The description of memory on a device by NumPy's convention for CUDA, version 3, as a dict.
nb::object cuda_array_interface(const Array& array);

// The __cuda_array_interface__ of an object, or None. Throws what the object raises, but AttributeError.
nb::object cuda_array_interface_of(nb::handle object);
// The memory that it describes, on a device. The array keeps the object. Throws TypeError, BufferError,
// ValueError, and Error as tenon_array_adopt_on.
Array import_cuda_array_interface(nb::handle object, const nb::object& interface);

void add_devices(nb::module_& module);

}  // namespace tenon::python
