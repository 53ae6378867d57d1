/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes tensors from one library and gives them back, or to another, in loops that never return to Python:
 * what the exchange costs two libraries that are both written in C, and what Tenon's steps of it cost. Each
 * function does its work n times and returns the nanoseconds that all of them took.
 *
 * It checks a result once, before the clock starts, and inside the loop only whether a call failed.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <time.h>

#include "tenon/dlpack.h"
#include "tenon/tenon.h"

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static const DLPackExchangeAPI* table_of(PyObject* type) {
  PyObject* capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  if (capsule == NULL) return NULL;
  const DLPackExchangeAPI* table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_DECREF(capsule);
  return table;
}

static void give_back(DLManagedTensorVersioned* tensor) {
  if (tensor->deleter != NULL) tensor->deleter(tensor);
}

/* take(tensor, n): take it through the table of its type, give it back. */
static PyObject* take(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* object;
  Py_ssize_t n;
  if (!PyArg_ParseTuple(arguments, "On", &object, &n)) return NULL;
  const DLPackExchangeAPI* table = table_of((PyObject*)Py_TYPE(object));
  if (table == NULL) return NULL;
  const int64_t start = now_ns();
  for (Py_ssize_t i = 0; i < n; ++i) {
    DLManagedTensorVersioned* tensor;
    if (table->managed_tensor_from_py_object_no_sync(object, &tensor) != 0) return NULL;
    give_back(tensor);
  }
  return PyLong_FromLongLong(now_ns() - start);
}

/* hand_over(tensor, receiver, n): take it through the table of its type, let the table of the type `receiver`
 * make a Python object of it, drop that. */
static PyObject* hand_over(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject *object, *receiver;
  Py_ssize_t n;
  if (!PyArg_ParseTuple(arguments, "OOn", &object, &receiver, &n)) return NULL;
  const DLPackExchangeAPI* from = table_of((PyObject*)Py_TYPE(object));
  const DLPackExchangeAPI* to = from == NULL ? NULL : table_of(receiver);
  if (to == NULL) return NULL;
  const int64_t start = now_ns();
  for (Py_ssize_t i = 0; i < n; ++i) {
    DLManagedTensorVersioned* tensor;
    void* result;
    if (from->managed_tensor_from_py_object_no_sync(object, &tensor) != 0) return NULL;
    if (to->managed_tensor_to_py_object_no_sync(tensor, &result) != 0) return NULL;
    Py_DECREF((PyObject*)result);
  }
  return PyLong_FromLongLong(now_ns() - start);
}

/* The tensor of an object whose type has a table, or NULL with an error. */
static DLManagedTensorVersioned* tensor_of(PyObject* object) {
  const DLPackExchangeAPI* table = table_of((PyObject*)Py_TYPE(object));
  DLManagedTensorVersioned* tensor = NULL;
  if (table != NULL) table->managed_tensor_from_py_object_no_sync(object, &tensor);
  return tensor;
}

static PyObject* fail(const tenon_error* error) {
  PyErr_SetString(PyExc_RuntimeError, error->message);
  return NULL;
}

/* take_from_tenon(tensor, n): tenon_array_to_dlpack and the deleter, on an array over the memory of tensor.
 */
static PyObject* take_from_tenon(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* object;
  Py_ssize_t n;
  if (!PyArg_ParseTuple(arguments, "On", &object, &n)) return NULL;
  DLManagedTensorVersioned* source = tensor_of(object);
  if (source == NULL) return NULL;
  tenon_error error = TENON_ERROR_INIT;
  tenon_array* array;
  if (tenon_array_from_dlpack(source, 0, &array, &error) != TENON_OK) return fail(&error);
  tenon_status status = TENON_OK;
  const int64_t start = now_ns();
  for (Py_ssize_t i = 0; i < n && status == TENON_OK; ++i) {
    DLManagedTensorVersioned* tensor;
    status = tenon_array_to_dlpack(array, 0, NULL, &tensor, &error);
    if (status == TENON_OK) give_back(tensor);
  }
  const int64_t elapsed = now_ns() - start;
  tenon_array_release(array);
  return status == TENON_OK ? PyLong_FromLongLong(elapsed) : fail(&error);
}

/* give_to_tenon(tensor, n): take it through the table of its type, tenon_array_from_dlpack,
 * tenon_array_release. */
static PyObject* give_to_tenon(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* object;
  Py_ssize_t n;
  if (!PyArg_ParseTuple(arguments, "On", &object, &n)) return NULL;
  const DLPackExchangeAPI* table = table_of((PyObject*)Py_TYPE(object));
  if (table == NULL) return NULL;
  tenon_error error = TENON_ERROR_INIT;
  const int64_t start = now_ns();
  for (Py_ssize_t i = 0; i < n; ++i) {
    DLManagedTensorVersioned* tensor;
    tenon_array* array;
    if (table->managed_tensor_from_py_object_no_sync(object, &tensor) != 0) return NULL;
    if (tenon_array_from_dlpack(tensor, 0, &array, &error) != TENON_OK) return fail(&error);
    tenon_array_release(array);
  }
  return PyLong_FromLongLong(now_ns() - start);
}

/* adopt(n): tenon_array_adopt of 4 x 8 floats and tenon_array_release. */
static PyObject* adopt(PyObject* module, PyObject* count) {
  (void)module;
  static float memory[32];
  static const int64_t shape[] = {4, 8};
  const Py_ssize_t n = PyLong_AsSsize_t(count);
  if (n == -1 && PyErr_Occurred()) return NULL;
  tenon_adoption adoption = {.struct_size = sizeof adoption, .data = memory, .device = {TENON_CPU, 0}};
  adoption.dtype = (tenon_dtype){TENON_FLOAT, 32, 1};
  adoption.ndim = 2;
  adoption.shape = shape;
  tenon_error error = TENON_ERROR_INIT;
  const int64_t start = now_ns();
  for (Py_ssize_t i = 0; i < n; ++i) {
    tenon_array* array;
    if (tenon_array_adopt(&adoption, &array, &error) != TENON_OK) return fail(&error);
    tenon_array_release(array);
  }
  return PyLong_FromLongLong(now_ns() - start);
}

/* create(n): tenon_array_create of 4 x 8 floats and tenon_array_release. */
static PyObject* create(PyObject* module, PyObject* count) {
  (void)module;
  static const int64_t shape[] = {4, 8};
  const Py_ssize_t n = PyLong_AsSsize_t(count);
  if (n == -1 && PyErr_Occurred()) return NULL;
  const tenon_dtype dtype = {TENON_FLOAT, 32, 1};
  const tenon_device device = {TENON_CPU, 0};
  tenon_error error = TENON_ERROR_INIT;
  const int64_t start = now_ns();
  for (Py_ssize_t i = 0; i < n; ++i) {
    tenon_array* array;
    if (tenon_array_create(dtype, 2, shape, device, 0, &array, &error) != TENON_OK) return fail(&error);
    tenon_array_release(array);
  }
  return PyLong_FromLongLong(now_ns() - start);
}

/* view(tensor, n): tenon_view_open for writing and tenon_view_close, on an array over the memory of tensor.
 */
static PyObject* view(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* object;
  Py_ssize_t n;
  if (!PyArg_ParseTuple(arguments, "On", &object, &n)) return NULL;
  DLManagedTensorVersioned* source = tensor_of(object);
  if (source == NULL) return NULL;
  tenon_error error = TENON_ERROR_INIT;
  tenon_array* array;
  if (tenon_array_from_dlpack(source, 0, &array, &error) != TENON_OK) return fail(&error);
  tenon_view opened = TENON_VIEW_INIT;
  tenon_status status = TENON_OK;
  const int64_t start = now_ns();
  for (Py_ssize_t i = 0; i < n && status == TENON_OK; ++i) {
    status = tenon_view_open(&opened, array, TENON_WRITE, NULL, &error);
    tenon_view_close(&opened);
  }
  const int64_t elapsed = now_ns() - start;
  tenon_array_release(array);
  return status == TENON_OK ? PyLong_FromLongLong(elapsed) : fail(&error);
}

/* The three functions of tvm_ffi's C API that a consumer needs (tvm/ffi/c_api.h). */
typedef int (*TvmTensorFrom)(DLManagedTensorVersioned* tensor, int32_t alignment, int32_t contiguous,
                             void** out);
typedef int (*TvmTensorTo)(void* tensor, DLManagedTensorVersioned** out);
typedef int (*TvmRelease)(void* tensor);

/* take_from_tvm(tensor, (from, to, release), n): TVMFFITensorToDLPackVersioned and the deleter, on a tensor
 * of tvm_ffi over the memory of tensor. The functions are given by their addresses. */
static PyObject* take_from_tvm(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* object;
  Py_ssize_t from, to, release, n;
  if (!PyArg_ParseTuple(arguments, "O(nnn)n", &object, &from, &to, &release, &n)) return NULL;
  DLManagedTensorVersioned* source = tensor_of(object);
  if (source == NULL) return NULL;
  void* array;
  int failed = ((TvmTensorFrom)from)(source, 0, 0, &array);
  if (failed) return PyErr_Format(PyExc_RuntimeError, "TVMFFITensorFromDLPackVersioned failed");
  const int64_t start = now_ns();
  for (Py_ssize_t i = 0; i < n && !failed; ++i) {
    DLManagedTensorVersioned* tensor;
    failed = ((TvmTensorTo)to)(array, &tensor);
    if (!failed) give_back(tensor);
  }
  const int64_t elapsed = now_ns() - start;
  ((TvmRelease)release)(array);
  if (failed) return PyErr_Format(PyExc_RuntimeError, "TVMFFITensorToDLPackVersioned failed");
  return PyLong_FromLongLong(elapsed);
}

/* address(tensor): of element 0, as the table of its type says. */
static PyObject* address(PyObject* module, PyObject* object) {
  (void)module;
  DLManagedTensorVersioned* tensor = tensor_of(object);
  if (tensor == NULL) return NULL;
  const char* data = (const char*)tensor->dl_tensor.data + tensor->dl_tensor.byte_offset;
  give_back(tensor);
  return PyLong_FromVoidPtr((void*)data);
}

/* nop(x): what a call of a C function costs. */
static PyObject* nop(PyObject* module, PyObject* object) {
  (void)module;
  (void)object;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"take", take, METH_VARARGS, "take(tensor, n): through the table of its type, and back"},
    {"hand_over", hand_over, METH_VARARGS, "hand_over(tensor, receiver, n): from table to table"},
    {"take_from_tenon", take_from_tenon, METH_VARARGS, "take_from_tenon(tensor, n): through tenon's C ABI"},
    {"give_to_tenon", give_to_tenon, METH_VARARGS, "give_to_tenon(tensor, n): from a table to tenon's C ABI"},
    {"adopt", adopt, METH_O, "adopt(n): memory of someone else, and its release"},
    {"create", create, METH_O, "create(n): new memory, and its release"},
    {"view", view, METH_VARARGS, "view(tensor, n): opened for writing and closed"},
    {"take_from_tvm", take_from_tvm, METH_VARARGS,
     "take_from_tvm(tensor, addresses, n): through tvm_ffi's C API"},
    {"address", address, METH_O, "address(tensor): of element 0"},
    {"nop", nop, METH_O, "nop(x): does nothing"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "c_to_c",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_c_to_c(void) { return PyModule_Create(&module); }
