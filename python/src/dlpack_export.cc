// SPDX-License-Identifier: Apache-2.0
//
// NDArray as a producer of DLPack: __dlpack__, __dlpack_device__ and MXNet's verbs. Source of the rules:
// https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html
#include "arguments.h"
#include "devices.h"
#include "dlpack_capsule.h"
#include "elements.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "sites.h"
#include "values.h"

namespace tenon::python {
namespace {

bool is_given(PyObject* argument) { return argument != nullptr && argument != Py_None; }

// True: the consumer asks for a copy on the host of memory on a device.
bool wants_host(PyObject* wanted, tenon_device own) {
  const Pair device = pair_from(wanted, "dl_device");
  if (device.first == own.type && device.second == own.id) return false;
  if (device.first == TENON_CPU && device.second == 0) return is_on_device(own);
  raise(PyExc_BufferError, "the array is on '%S' and cannot be exported to device (%lld, %lld)",
        device_name(own).ptr(), static_cast<long long>(device.first), static_cast<long long>(device.second));
}

bool is_readonly(const tenon_array_desc& array) noexcept { return (array.flags & TENON_READONLY) != 0; }

// PyTorch ignores READ_ONLY, so it gets a writable array in place of a read-only one, as a.torch() gives it:
// then this is true. At a negative stride it throws a C++ exception through its importer, which ends the
// process. Not seen: a capsule that the program makes and passes to PyTorch.
bool heed_torch(const tenon_array_desc& array) {
  if (!(is_readonly(array) || has_negative_stride(array)) || !is_called_by_torch()) return false;
  if (!is_readonly(array)) raise(PyExc_BufferError, "PyTorch has no negative strides: pass a.copy()");
  return true;
}

// For a consumer that may write. Empty: the array itself.
Array writable_in_place_of(PyObject* self, bool is_for_torch, bool may_copy) {
  Array writable = lazy_copy_of_item(share(self), may_copy);
  if (writable.get() != nullptr || !is_for_torch) return writable;
  if (may_copy) return copied(share(self));
  raise(PyExc_BufferError,
        "copy=False was asked for, but the array is read-only, and PyTorch has no read-only tensors: "
        "leave out copy=, or call a.torch(trust=True), which promises that the tensor is not written to");
}

PyObject* dlpack(PyObject* self, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static FastParameters<4> parameters("__dlpack__", {"stream", "max_version", "dl_device", "copy"}, 0, 0);
  const auto [stream, max_version, dl_device, copy] = parameters.parse(arguments, n, keywords);
  const tenon_device device = desc_of(self).device;
  const bool to_host = is_given(dl_device) && wants_host(dl_device, device);
  if (is_given(stream) && (to_host || !has_streams(device)))
    raise(PyExc_ValueError, "stream is %R: memory of the CPU has no streams, pass None", stream);
  const bool is_versioned = is_given(max_version) && pair_from(max_version, "max_version").first >= 1;
  const std::optional<bool> wanted =
      copy != nullptr ? flag_or_none_from(copy, "copy", PyExc_ValueError) : std::nullopt;  // as NumPy
  const bool may_copy = wanted.value_or(true);
  if (to_host && !may_copy) {
    raise(PyExc_BufferError, "the array is on '%S': without a copy it cannot be exported to the CPU",
          device_name(device).ptr());
  }
  const bool is_copy = to_host || wanted.value_or(false);
  // Without a stream, the consumer of managed memory is the host.
  const bool is_ordered = !to_host && (is_on_device(device) || (is_given(stream) && has_streams(device)));
  const int64_t order = is_ordered ? stream_from(stream) : TENON_STREAM_NONE;
  const char* const site = current_site();
  Array copy_of_self;
  if (is_copy) {
    copy_of_self = to_host ? on_host(share(self)) : copied(share(self));
  } else if (const bool is_for_torch = heed_torch(desc_of(self)); is_for_torch || !is_versioned) {
    copy_of_self = writable_in_place_of(self, is_for_torch, may_copy);
  }
  // Read last, because code of other threads may exchange the arrays of NDArrays. The C library takes a
  // reference before it waits.
  tenon_array* const array = copy_of_self.get() != nullptr ? copy_of_self.get() : array_of(self);
  const uint32_t flags = array == copy_of_self.get() ? TENON_EXPORT_COPIED : 0;
  return (is_versioned ? versioned_capsule(array, flags, site, order)
                       : legacy_capsule(array, flags, site, order))
      .release()
      .ptr();
}

PyObject* dlpack_device(PyObject* self, PyObject* const*, Py_ssize_t n, PyObject* keywords) {
  if (n != 0 || keywords != nullptr) raise(PyExc_TypeError, "__dlpack_device__() takes no arguments");
  static PyObject* const cpu = owned(Py_BuildValue("(ii)", TENON_CPU, 0)).release().ptr();
  const tenon_device device = desc_of(self).device;
  if (device.type == TENON_CPU && device.id == 0) return Py_NewRef(cpu);
  return Py_BuildValue("(ii)", device.type, device.id);
}

PyObject* to_dlpack_for_read(PyObject* self, PyObject* const*, Py_ssize_t n, PyObject* keywords) {
  if (n != 0 || keywords != nullptr) raise(PyExc_TypeError, "to_dlpack_for_read() takes no arguments");
  const char* const site = current_site();
  return legacy_capsule(array_of(self), TENON_EXPORT_FOR_READ, site, stream_from(nullptr)).release().ptr();
}

PyObject* to_dlpack_for_write(PyObject* self, PyObject* const*, Py_ssize_t n, PyObject* keywords) {
  if (n != 0 || keywords != nullptr) raise(PyExc_TypeError, "to_dlpack_for_write() takes no arguments");
  const char* const site = current_site();
  const Array writable = writable_in_place_of(self, false, true);
  tenon_array* const array = writable.get() != nullptr ? writable.get() : array_of(self);
  return legacy_capsule(array, 0, site, stream_from(nullptr)).release().ptr();
}

}  // namespace

void add_dlpack_methods(Parts& parts) {
  parts.methods.insert(
      parts.methods.end(),
      {
          fast_method<dlpack>(
              "__dlpack__",
              "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
              "A DLPack capsule of the memory, for another library's from_dlpack.\n\n"
              "Versioned (DLPack 1.3) when ``max_version`` allows it, else the legacy struct, which cannot "
              "say that an\n"
              "array is read-only: for such an array that is a BufferError, unless ``copy=True``. So it is "
              "for "
              "an array\n"
              "with negative strides, which consumers of that struct do not have. PyTorch gets a "
              "`lazy_copy` of a read-only array,\n"
              "because it ignores the flag of the versioned struct, too. So does the legacy struct of a "
              "received item.\n\n"
              "For memory on a device and managed memory, ``stream`` is the consumer's: work on it that "
              "follows runs\n"
              "after what was submitted to the array before. None (on a device) and 1: the legacy default "
              "stream; 2: that\n"
              "of the thread; -1: no order; else a handle.\n\n"
              "Raises\n------\n"
              "BufferError\n    The array cannot be exported as asked.\nValueError\n    ``stream`` is 0, or "
              "is "
              "given for memory of the host; ``copy`` is not None and no bool.\n"),
          fast_method<dlpack_device>(
              "__dlpack_device__",
              "__dlpack_device__($self)\n--\n\n"
              "Device type and number as DLPack counts them: (1, 0) is 'cpu', (2, 1) is "
              "'cuda:1'.\n"),
          fast_method<to_dlpack_for_read>(
              "to_dlpack_for_read",
              "to_dlpack_for_read($self)\n--\n\n"
              "A legacy DLPack capsule for a consumer that only reads, by the caller's promise: the legacy "
              "struct cannot\n"
              "say it. MXNet and PyTorch take its memory for writable, also that of a read-only array. "
              "`tenon.from_dlpack`\n"
              "makes a read-only array of it.\n\n"
              "Raises\n------\nBufferError\n    The array has negative strides.\n"),
          fast_method<to_dlpack_for_write>("to_dlpack_for_write",
                                           "to_dlpack_for_write($self)\n--\n\n"
                                           "A legacy DLPack capsule for a consumer that may write. Of a "
                                           "received item that others read, too, it\n"
                                           "has a `lazy_copy`.\n\n"
                                           "Raises\n------\nBufferError\n    The array is read-only in "
                                           "another way, or has negative strides.\n"),
      });
}

}  // namespace tenon::python
