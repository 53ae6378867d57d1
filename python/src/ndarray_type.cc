// SPDX-License-Identifier: Apache-2.0
//
// Making and freeing NDArrays, and the type, which is assembled from the parts in the other files.
#include "ndarray.h"

#include <structmember.h>

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "free_list.h"
#include "ndarray_parts.h"
#include "owners.h"

namespace tenon::python {

PyTypeObject* ndarray_type = nullptr;

namespace {

constexpr const char* kDocumentation =
    "A typed, strided window on memory that C libraries, NumPy, PyTorch and JAX share.\n\n"
    "Indexing with ints, slices, ``...`` and None, ``reshape``, ``transpose``, ``view`` and ``readonly`` "
    "give other\n"
    "windows on the same memory; ``copy``, ``astype`` and indices that are lists or arrays give new memory. "
    "An index for\n"
    "every axis gives an NDArray of no axes, not a number: ``a[0, 0].item()`` is the number. Operators and "
    "ufuncs go\n"
    "through NumPy: in place they write to this memory, others return NumPy's results.\n\n"
    "Made by ``tenon.empty``, ``zeros``, ``from_numpy``, ``from_dlpack`` and their like.\n";

constinit FreeList<sizeof(NDArray)> spare;

void free_memory(NDArray* array) {
  spare.give(array);
  Py_DECREF(reinterpret_cast<PyObject*>(ndarray_type));
}

// An NDArray without references that waits to be freed. It uses the NDArray's own memory, from desc on,
// because freeing must not allocate.
struct Deferred : owners::Node {
  Deferred() : Node(finish_deferred) {}

  static void finish_deferred(Node* node) {
    auto* const array = reinterpret_cast<NDArray*>(reinterpret_cast<char*>(node) - offsetof(NDArray, desc));
    tenon_array* const handle = array->array;
    free_memory(array);
    const owners::Collector collector;
    tenon_array_release(handle);
  }
};
static_assert(sizeof(Deferred) <= sizeof(NDArray) - offsetof(NDArray, desc));

[[gnu::hot]] void free_ndarray(PyObject* self) {
  auto* const array = reinterpret_cast<NDArray*>(self);
  if (array->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  owners::Collector collector;
  if (collector.is_deep()) {
    collector.defer(new (reinterpret_cast<char*>(array) + offsetof(NDArray, desc)) Deferred);
    return;
  }
  tenon_array* const handle = array->array;
  free_memory(array);
  tenon_array_release(handle);
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError,
                  "tn.NDArray makes no arrays: use tn.zeros(shape), tn.array(data) or tn.asarray(x)");
  return nullptr;
}

PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(NDArray, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

}  // namespace

[[gnu::hot]] PyObject* wrap(Array array) {
  owners::drain();
  auto* const object = static_cast<NDArray*>(spare.take());
  PyObject_Init(reinterpret_cast<PyObject*>(object), ndarray_type);
  object->array = array.detach();
  object->desc = tenon_array_describe(object->array);
  object->weak_references = nullptr;
  return reinterpret_cast<PyObject*>(object);
}

void exchange(PyObject* a, PyObject* b) noexcept {
  std::swap(reinterpret_cast<NDArray*>(a)->array, reinterpret_cast<NDArray*>(b)->array);
  std::swap(reinterpret_cast<NDArray*>(a)->desc, reinterpret_cast<NDArray*>(b)->desc);
}

void add_ndarray(nb::module_& module) {
  Parts parts;
  parts.slots = {
      {Py_tp_dealloc, reinterpret_cast<void*>(free_ndarray)},
      {Py_tp_doc, const_cast<char*>(kDocumentation)},
      {Py_tp_members, members},
      {Py_tp_hash, reinterpret_cast<void*>(PyObject_HashNotImplemented)},
      {Py_tp_new, reinterpret_cast<void*>(refuse_new)},
  };
  add_attributes(parts);
  add_missing_attributes(parts);
  add_indexing(parts);
  add_operators(parts);
  add_conversions(parts);
  add_buffer_protocol(parts);
  add_dlpack_methods(parts);
  add_block_methods(parts);
  // The type keeps pointers to its tables: they live for ever.
  static auto* const methods = new std::vector<PyMethodDef>(std::move(parts.methods));
  static auto* const attributes = new std::vector<PyGetSetDef>(std::move(parts.attributes));
  methods->push_back({nullptr, nullptr, 0, nullptr});
  attributes->push_back({nullptr, nullptr, nullptr, nullptr, nullptr});
  parts.slots.push_back({Py_tp_methods, methods->data()});
  parts.slots.push_back({Py_tp_getset, attributes->data()});
  parts.slots.push_back({0, nullptr});
  PyType_Spec spec = {"tenon.NDArray", sizeof(NDArray), 0, Py_TPFLAGS_DEFAULT, parts.slots.data()};
  const nb::object type = owned(PyType_FromModuleAndSpec(module.ptr(), &spec, nullptr));
  ndarray_type = reinterpret_cast<PyTypeObject*>(nb::object(type).release().ptr());
  module.attr("NDArray") = type;
}

}  // namespace tenon::python
