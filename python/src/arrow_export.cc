// SPDX-License-Identifier: Apache-2.0
//
// NDArray as a producer of Arrow arrays: __arrow_c_array__. An array of one axis is a primitive array; each
// further axis is a list of fixed size around it. Nothing is null. Source of the rules:
// https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html
#include <cstdint>
#include <memory>
#include <string>

#include "devices.h"
#include "elements.h"
#include "methods.h"
#include "ndarray_parts.h"
#include "sites.h"

// As the specification of the C data interface gives them.
extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};
}

namespace tenon::python {
namespace {

// What a struct points to. A child that no consumer has moved out is released with its parent.
template <class Struct>
struct Held {
  Struct child{};
  Struct* children[1] = {&child};

  ~Held() {
    if (child.release != nullptr) child.release(&child);
  }
};

struct SchemaParts : Held<ArrowSchema> {
  std::string format;
};

struct ArrayParts : Held<ArrowArray> {
  const void* buffers[2] = {nullptr, nullptr};  // no bits of validity; the elements
  DLManagedTensorVersioned* tensor = nullptr;   // of the innermost array: it holds the memory

  ~ArrayParts() {
    if (tensor != nullptr) tensor->deleter(tensor);
  }
};

// Consumers call it on any thread, without the GIL.
template <class Struct, class Kept>
void release(Struct* self) noexcept {
  delete static_cast<Kept*>(self->private_data);
  self->release = nullptr;
}

template <class Struct>
void free_capsule(PyObject* capsule, const char* name) noexcept {
  auto* const self = static_cast<Struct*>(PyCapsule_GetPointer(capsule, name));
  if (self->release != nullptr) self->release(self);
  delete self;
}

template <class Struct>
nb::object capsule_of(Struct value, const char* name, PyCapsule_Destructor destructor) {
  auto* const self = new Struct(value);
  PyObject* const capsule = PyCapsule_New(self, name, destructor);
  if (capsule == nullptr) {
    self->release(self);
    delete self;
  }
  return owned(capsule);
}

// Arrow's name of the element type; nullptr: it has none.
const char* format_of(const DType& dtype) {
  if (dtype.lanes() != 1) return nullptr;
  const bool is_signed = dtype.code() == kDLInt;
  if (is_signed || dtype.code() == kDLUInt) {
    switch (dtype.bits()) {
      case 8: return is_signed ? "c" : "C";
      case 16: return is_signed ? "s" : "S";
      case 32: return is_signed ? "i" : "I";
      case 64: return is_signed ? "l" : "L";
      default: return nullptr;
    }
  }
  if (dtype.code() != kDLFloat) return nullptr;
  switch (dtype.bits()) {
    case 16: return "e";
    case 32: return "f";
    case 64: return "g";
    default: return nullptr;
  }
}

ArrowSchema schema_of(const char* format, const Array& array, size_t axis, const char* name) {
  auto parts = std::make_unique<SchemaParts>();
  const bool is_list = axis + 1 < array.shape().size();
  if (is_list) {
    parts->format = "+w:" + std::to_string(array.shape()[axis + 1]);
    parts->child = schema_of(format, array, axis + 1, "item");
  } else {
    parts->format = format;
  }
  ArrowSchema schema{};
  schema.format = parts->format.c_str();
  schema.name = name;
  schema.n_children = is_list ? 1 : 0;
  schema.children = is_list ? parts->children : nullptr;
  schema.release = release<ArrowSchema, SchemaParts>;
  schema.private_data = parts.release();
  return schema;
}

// The memory is exported when the innermost array is made, last, so that a failure leaves nothing behind.
ArrowArray array_of_axis(const Array& array, size_t axis, int64_t length) {
  auto parts = std::make_unique<ArrayParts>();
  const bool is_list = axis + 1 < array.shape().size();
  if (is_list) {
    parts->child = array_of_axis(array, axis + 1, length * array.shape()[axis + 1]);
  } else {
    parts->tensor = array.to_dlpack(TENON_EXPORT_FOR_READ, current_site());
    const DLTensor& tensor = parts->tensor->dl_tensor;
    parts->buffers[1] = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  }
  ArrowArray result{};
  result.length = length;
  result.n_buffers = is_list ? 1 : 2;
  result.buffers = parts->buffers;
  result.n_children = is_list ? 1 : 0;
  result.children = is_list ? parts->children : nullptr;
  result.release = release<ArrowArray, ArrayParts>;
  result.private_data = parts.release();
  return result;
}

// Consumers may ask for another type, and producers may ignore that.
nb::tuple arrow_c_array(const Array& self, nb::handle) {
  if (is_on_device(self)) {
    raise(PyExc_BufferError,
          "Arrow's array would be in host memory, and this one is on '%S': pass a.to('cpu')",
          device_name(self.desc().device).ptr());
  }
  if (self.shape().empty()) {
    raise(PyExc_BufferError, "an array without axes is no Arrow array: pass a.reshape(1)");
  }
  const char* const format = format_of(self.dtype());
  if (format == nullptr) {
    const std::string name = self.dtype().name();
    const char* const use = self.dtype().code() == kDLBool ? "np.asarray(a)" : "a.astype('float32')";
    raise(PyExc_BufferError, "Arrow cannot share elements of dtype %s: pass %s, which is copied",
          name.c_str(), use);
  }
  const Array array = self.is_contiguous() ? self : copied(self);
  nb::object schema =
      capsule_of(schema_of(format, array, 0, ""), "arrow_schema",
                 [](PyObject* capsule) noexcept { free_capsule<ArrowSchema>(capsule, "arrow_schema"); });
  nb::object elements =
      capsule_of(array_of_axis(array, 0, array.shape()[0]), "arrow_array",
                 [](PyObject* capsule) noexcept { free_capsule<ArrowArray>(capsule, "arrow_array"); });
  return nb::make_tuple(schema, elements);
}

}  // namespace

void add_arrow_export() {
  def_method("__arrow_c_array__", arrow_c_array, nb::arg("requested_schema").none() = nb::none(),
             nb::sig("def __arrow_c_array__(self, requested_schema: object = None) -> tuple[CapsuleType, "
                     "CapsuleType]"),
             "The memory for pyarrow, polars and others, which only read it. Writes to this array show in "
             "theirs. An array with\ngaps or another order of axes is copied.\n\n"
             "Raises\n------\nBufferError\n    Arrow has no such elements (bool, complex, bfloat16 and "
             "smaller), the array has no axis, or it is on a device.\n");
}

}  // namespace tenon::python
