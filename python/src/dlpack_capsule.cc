// SPDX-License-Identifier: Apache-2.0
#include "dlpack_capsule.h"

#include <unordered_map>

#include "elements.h"
#include "owners.h"

namespace tenon::python {
namespace {

// The contexts of Tenon's legacy capsules. Their addresses tell the allowed access.
char for_read;
char for_write;

template <class Tensor>
void free_capsule(PyObject* capsule, const char* name) noexcept {
  if (PyCapsule_IsValid(capsule, name) == 0) return;  // consumed: it has another name now
  const owners::Collector collector;
  auto* const tensor = static_cast<Tensor*>(PyCapsule_GetPointer(capsule, name));
  if (tensor->deleter != nullptr) tensor->deleter(tensor);
}

void free_versioned(PyObject* capsule) noexcept {
  free_capsule<DLManagedTensorVersioned>(capsule, kVersionedName);
}
void free_legacy(PyObject* capsule) noexcept { free_capsule<DLManagedTensor>(capsule, kLegacyName); }

template <class Tensor>
nb::object capsule_of(Tensor* tensor, const char* name, PyCapsule_Destructor destructor) {
  PyObject* const capsule = PyCapsule_New(tensor, name, destructor);
  if (capsule == nullptr) tensor->deleter(tensor);
  return owned(capsule);
}

// The own destructors of capsules that have call_destructor. Under the GIL.
std::unordered_map<PyObject*, PyCapsule_Destructor>& destructors() {
  static auto* const table = new std::unordered_map<PyObject*, PyCapsule_Destructor>;
  return *table;
}

void call_destructor(PyObject* capsule) noexcept {
  const KeepError keep_error;
  const auto own = destructors().extract(capsule);
  own.mapped()(capsule);
}

}  // namespace

void keep_error_from_destructor(nb::handle object) {
  PyObject* const capsule = object.ptr();
  if (PyCapsule_IsValid(capsule, kLegacyName) == 0 && PyCapsule_IsValid(capsule, kVersionedName) == 0) return;
  const PyCapsule_Destructor own = PyCapsule_GetDestructor(capsule);
  if (own == nullptr || own == call_destructor) return;
  destructors().insert_or_assign(capsule, own);
  check_python(PyCapsule_SetDestructor(capsule, call_destructor));
}

[[gnu::hot]] nb::object versioned_capsule(tenon_array* array, uint32_t flags, const char* site,
                                          int64_t stream) {
  DLManagedTensorVersioned* tensor = nullptr;
  call(tenon_array_to_dlpack_on, array, flags, stream, site, &tensor);
  return capsule_of(tensor, kVersionedName, free_versioned);
}

nb::object legacy_capsule(tenon_array* array, uint32_t flags, const char* site, int64_t stream) {
  if (has_negative_stride(*tenon_array_describe(array))) {
    raise(PyExc_BufferError,
          "an array with negative strides is not exported in the legacy DLPack struct, because MXNet and "
          "PyTorch do not have them: pass a.copy(), or ask for version 1.0 or later (max_version=(1, 0))");
  }
  DLManagedTensor* tensor = nullptr;
  call(tenon_array_to_dlpack_legacy_on, array, flags, stream, site, &tensor);
  nb::object capsule = capsule_of(tensor, kLegacyName, free_legacy);
  const bool is_for_read = (flags & TENON_EXPORT_FOR_READ) != 0;
  check_python(PyCapsule_SetContext(capsule.ptr(), is_for_read ? &for_read : &for_write));
  return capsule;
}

std::optional<Access> access_of_legacy(nb::handle capsule) {
  const void* const context = PyCapsule_GetContext(capsule.ptr());
  if (context == &for_read) return Access::kRead;
  if (context == &for_write) return Access::kWrite;
  PyErr_Clear();
  return std::nullopt;
}

[[gnu::hot]] Pair pair_from(PyObject* object, const char* what) {
  Pair pair{};
  bool is_pair = PyTuple_Check(object) && PyTuple_Size(object) == 2;
  for (Py_ssize_t i = 0; is_pair && i < 2; ++i) {
    PyObject* const item = PyTuple_GetItem(object, i);
    int overflow = 0;
    int64_t number = 0;
    if (PyLong_CheckExact(item)) [[likely]] {
      number = PyLong_AsLongLongAndOverflow(item, &overflow);
    } else {
      is_pair = PyIndex_Check(item) != 0;
      if (!is_pair) break;
      const nb::object integer = owned(PyNumber_Index(item));
      number = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
    }
    (i == 0 ? pair.first : pair.second) = overflow == 0 ? number : overflow > 0 ? INT64_MAX : INT64_MIN;
    is_pair = i == 0 || overflow == 0;  // a first one out of range is an unknown device or version
  }
  if (!is_pair) raise(PyExc_TypeError, "%s must be a tuple of two ints, not %R", what, object);
  return pair;
}

}  // namespace tenon::python
