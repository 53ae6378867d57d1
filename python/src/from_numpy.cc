// SPDX-License-Identifier: Apache-2.0
//
// tenon.from_numpy: the memory of a NumPy array as an NDArray, and which code may write meanwhile.
#include "from_numpy.h"

#include <utility>

#include "addresses.h"
#include "arguments.h"
#include "callbacks.h"
#include "counts.h"
#include "dlpack_import.h"
#include "elements.h"
#include "ndarray.h"
#include "numpy_api.h"
#include "numpy_lend.h"
#include "numpy_view.h"
#include "ownership.h"
#include "sites.h"
#include "values.h"

namespace tenon::python {
namespace {

nb::handle base_class() { return reinterpret_cast<PyObject*>(&PyArray_Type); }

bool is_of_subclass(nb::handle x) { return Py_TYPE(x.ptr()) != &PyArray_Type; }

bool is_masked(nb::handle x) {
  return is_of_subclass(x) && nb::hasattr(x.type(), "filled") && nb::hasattr(x.type(), "mask");
}

// The class of x, or one of its bases before numpy.ndarray, defines an attribute of this name.
bool has_own(nb::handle x, const char* name) {
  return !nb::getattr(x.type(), name).is(nb::getattr(base_class(), name));
}

// A masked array hides some of its elements, those of numpy.ma and others.
[[noreturn]] void refuse_mask(nb::handle x) {
  raise(
      PyExc_TypeError,
      "x is a %S, and an array has no mask: pass x.filled(value), or np.asarray(x) for all of its elements, "
      "also those that the mask hides",
      nb::getattr(x.type(), "__name__").ptr());
}

// x is of a subclass of numpy.ndarray.
[[gnu::noinline]] void check_subclass(nb::handle x) {
  if (is_masked(x)) refuse_mask(x);
  if (has_own(x, "__array__")) {
    raise(PyExc_TypeError,
          "x is a %S, whose values are what its __array__() returns, not what its memory holds: pass "
          "x.__array__(), or np.asarray(x) for its memory",
          nb::getattr(x.type(), "__name__").ptr());
  }
}

constexpr const char* kDocumentation =
    "from_numpy(x, zero_copy=True, mode='readonly')\n--\n\n"
    "The memory of a NumPy array as an NDArray: both see each other's writes.\n\n"
    "Parameters\n----------\n"
    "x : numpy.ndarray\n"
    "    Of any strides. A read-only array, or one over ``bytes``, gives a read-only NDArray. If it is "
    "a view of an\n"
    "    lent array, the call makes another borrow of that array.\n"
    "zero_copy : bool\n"
    "    False copies the elements into new memory, and leaves ``x`` as it is.\n"
    "mode : {'readonly', 'writable', 'move'}\n"
    "    What ``x`` is while its memory is lent. 'readonly': its WRITEABLE flag is cleared, and set again "
    "when the last\n"
    "    array and view of the memory is gone; `borrowers` says which lines borrow it. 'writable': "
    "both sides\n"
    "    may write. 'move': only the call and one variable may refer to ``x``, which must own its memory; "
    "its "
    "flag is\n"
    "    cleared for good.\n\n"
    "Returns\n-------\n"
    "NDArray\n"
    "    Shares x's memory and keeps ``x`` alive. If ``x`` lies on a memory map or on the ``buf`` of a "
    "SharedMemory,\n"
    "    closing that raises BufferError meanwhile. When the memory is an NDArray's in the first place\n"
    "    (``np.asarray(a)``, ``a.numpy()``), another handle on that: nothing is lent.\n\n"
    "Raises\n------\n"
    "TypeError\n"
    "    ``x`` is no NumPy array, or its dtype is one that arrays cannot have: objects, text, structures, "
    "times,\n"
    "    byte-swapped numbers. Or ``x`` is of a subclass whose values are not those in its memory: a masked "
    "array,\n"
    "    or one with an ``__array__`` of its own. The message says what to do.\n"
    "ValueError\n"
    "    ``x`` lies unaligned in memory, or cannot be moved, or lies on memory that was closed.\n";

[[noreturn]] void refuse_unaligned(PyArrayObject* x) {
  raise(PyExc_ValueError,
        "x lies unaligned in memory, at %p for elements of %zd bytes: pass x.copy(), or to from_numpy "
        "zero_copy=False",
        PyArray_DATA(x), PyArray_ITEMSIZE(x));
}

[[noreturn]] void refuse_stride(npy_intp stride, npy_intp itemsize) {
  raise(PyExc_ValueError,
        "x has a stride of %zd bytes, which is no multiple of its itemsize %zd: "
        "pass x.copy(), or to from_numpy zero_copy=False",
        stride, itemsize);
}

// The C ABI counts strides in elements, so each has to be a multiple of the itemsize.
void check_strides(PyArrayObject* x) {
  const npy_intp itemsize = PyArray_ITEMSIZE(x);  // a power of two for every type taken
  for (int i = 0; i < PyArray_NDIM(x); ++i) {
    const npy_intp stride = PyArray_STRIDE(x, i);
    if ((stride & (itemsize - 1)) != 0 && PyArray_DIM(x, i) > 1) refuse_stride(stride, itemsize);
  }
}

// Describes x for the C ABI. strides has room for NPY_MAXDIMS entries.
void describe(PyArrayObject* x, tenon_adoption* out, int64_t* strides) {
  *out = {};
  out->struct_size = sizeof *out;
  if (const nb::handle object(reinterpret_cast<PyObject*>(x)); is_of_subclass(object)) check_subclass(object);
  PyArray_Descr* const descr = PyArray_DESCR(x);
  if (!dtype_of_numpy(descr, &out->dtype)) refuse_numpy_dtype(descr);
  const int flags = PyArray_FLAGS(x);
  if ((flags & NPY_ARRAY_ALIGNED) == 0) {
    // NumPy calls an array unaligned also for its strides alone.
    const auto address = reinterpret_cast<uintptr_t>(PyArray_DATA(x));
    if (address % static_cast<uintptr_t>(PyDataType_ALIGNMENT(descr)) == 0) check_strides(x);
    refuse_unaligned(x);
  }
  if (out->dtype.bits % 8 != 0) out->flags |= TENON_SUBBYTE_PADDED;
  out->data = PyArray_DATA(x);
  out->device = {TENON_CPU, 0};
  out->ndim = PyArray_NDIM(x);
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  out->shape = reinterpret_cast<const int64_t*>(PyArray_DIMS(x));
  if ((flags & NPY_ARRAY_C_CONTIGUOUS) != 0) return;
  check_strides(x);
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(PyArray_ITEMSIZE(x)));
  for (int i = 0; i < out->ndim; ++i) strides[i] = PyArray_STRIDE(x, i) >> shift;
  out->strides = strides;
}

// x is a view of root: the storage registers all of the memory of root.
void describe_extent(PyObject* root, tenon_adoption* out) noexcept {
  const Addresses extent = addresses_of(root);
  if (extent.begin == extent.end) return;
  out->extent = reinterpret_cast<void*>(extent.begin);
  out->extent_nbytes = extent.end - extent.begin;
}

// If the memory of x came from an NDArray: another array on the same storage; else empty.
Array find_known(const tenon_adoption& adoption) {
  tenon_array* handle = nullptr;
  call(tenon_array_alias, &adoption, &handle);
  return Array::steal(handle);
}

void check_movable(PyArrayObject* x) {
  if ((PyArray_FLAGS(x) & NPY_ARRAY_OWNDATA) == 0 && !has_moved_memory(reinterpret_cast<PyObject*>(x))) {
    raise(PyExc_ValueError,
          "mode='move' takes an array that owns its memory, but x is a view: pass x.copy()");
  }
  constexpr Py_ssize_t kCallAndOneName = 2;
  PyObject* const object = reinterpret_cast<PyObject*>(x);
  const Py_ssize_t n = references_to(object);
  if (n == 1 && counting() == Counting::kOwned) return;  // the call's
  nb::list holder;
  holder.append(nb::handle(object));
  if (n <= kCallAndOneName && nb::cast<bool>(callback(Callback::kIsOneName)(holder, n))) return;
  raise(
      PyExc_ValueError,
      "mode='move' takes an array to which only the call and one variable of its caller refer, but x has %zd "
      "references, and not all of them are known to be these: drop its views and other names and pass the "
      "variable itself, or use mode='writable'",
      n);
}

LendMode mode_from(PyObject* text) {
  static Name readonly("readonly"), writable("writable"), move("move");
  if (text == readonly.get()) return LendMode::kReadonly;
  if (text == writable.get()) return LendMode::kWritable;
  if (PyUnicode_Check(text)) {
    if (PyUnicode_Compare(text, readonly.get()) == 0) return LendMode::kReadonly;
    if (PyUnicode_Compare(text, writable.get()) == 0) return LendMode::kWritable;
    if (PyUnicode_Compare(text, move.get()) == 0) return LendMode::kMove;
  }
  raise(PyExc_ValueError, "mode is %R: it must be 'readonly', 'writable' or 'move'", text);
}

bool has_odd_stride(PyArrayObject* x) noexcept {
  for (int i = 0; i < PyArray_NDIM(x); ++i) {
    if (PyArray_STRIDE(x, i) % PyArray_ITEMSIZE(x) != 0) return true;
  }
  return false;
}

// x itself if it can be shared, else a copy in native byte order, aligned.
nb::object native(nb::handle x) {
  PyArray_Descr* const dtype = PyArray_DescrNewByteorder(PyArray_DESCR(as_numpy(x.ptr())), NPY_NATIVE);
  nb::object keep_dtype = owned(reinterpret_cast<PyObject*>(dtype));
  tenon_dtype taken;
  if (!dtype_of_numpy(dtype, &taken)) refuse_numpy_dtype(dtype);
  const int flags = NPY_ARRAY_ALIGNED | (has_odd_stride(as_numpy(x.ptr())) ? NPY_ARRAY_C_CONTIGUOUS : 0);
  (void)keep_dtype.release();  // the next call takes it over
  return owned(PyArray_FromArray(as_numpy(x.ptr()), dtype, flags));
}

// The node that owns the memory of x for an array, which may write it unless it is read-only.
OwnedNode lend_to_array(PyObject* x, LendMode mode, bool is_readonly, LentBy by) {
  const Lending how{current_site(), by};
  if (mode != LendMode::kReadonly) return lend(x, is_readonly ? Writers::kNone : Writers::kBoth, how);
  if (!is_readonly) return lend(x, Writers::kBorrower, how);
  // The borrow of a view of a lent array is a borrow of that array, which would become writable too early
  // otherwise.
  PyObject* const lent_base = lent_base_of(x);
  return lent_base != nullptr ? lend(lent_base, Writers::kBorrower, how) : lend(x, Writers::kNone, how);
}

bool is_numpy(nb::handle object) {
  if (PyArray_API == nullptr) {
    static Name numpy("numpy");
    const nb::object module = nb::steal(PyImport_GetModule(numpy.get()));
    if (!module.is_valid()) return false;  // it was not imported: object is none of its arrays
    import_numpy_api();
  }
  return is_numpy_array(object.ptr());
}

PyObject* from_numpy(PyObject*, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static FastParameters<3> parameters("from_numpy", {"x", "zero_copy", "mode"}, 2, 1);
  need_numpy();
  PyObject* x = nullptr;
  LendMode mode = LendMode::kReadonly;
  bool is_zero_copy = true;
  if (n == 1 && keywords == nullptr) {
    x = arguments[0];
  } else {
    const auto values = parameters.parse(arguments, n, keywords);
    x = values[0];
    if (values[1] != nullptr) is_zero_copy = flag_from(values[1], "zero_copy");
    if (values[2] != nullptr) mode = mode_from(values[2]);
  }
  if (!is_numpy_array(x)) {
    raise(PyExc_TypeError,
          "x is of %R: from_numpy() takes a numpy.ndarray; tn.asarray() and tn.array() take other data",
          reinterpret_cast<PyObject*>(Py_TYPE(x)));
  }
  return wrap(is_zero_copy ? lend_numpy(x, mode, LentBy::kFromNumpy)
                           : copied(lend_numpy(native(x), LendMode::kWritable)));
}

}  // namespace

[[gnu::hot]] Array lend_numpy(nb::handle object, LendMode mode, LentBy by) {
  PyArrayObject* const x = as_numpy(object.ptr());
  int64_t strides[NPY_MAXDIMS];
  tenon_adoption adoption;
  describe(x, &adoption, strides);
  const Root root = root_of(object.ptr());
  if (root.array != object.ptr()) describe_extent(root.array, &adoption);
  const bool is_writable = (PyArray_FLAGS(x) & NPY_ARRAY_WRITEABLE) != 0;
  const bool is_readonly = !is_writable && !is_lent(object.ptr());
  if (is_readonly) adoption.flags |= TENON_READONLY;
  if (root.exporter != nullptr && may_view_ndarray(root.exporter)) {
    if (Array known = find_known(adoption)) return known;
  }
  if (mode == LendMode::kMove) check_movable(x);
  OwnedNode owner(mode == LendMode::kMove ? OwnedNode(new owners::Object(object))
                                          : lend_to_array(object.ptr(), mode, is_readonly, by));
  adoption.owner = owner.get();
  adoption.deleter = owners::release;
  Array array = Array::adopt_described(adoption);
  (void)owner.release();
  if (mode == LendMode::kMove) PyArray_CLEARFLAGS(x, NPY_ARRAY_WRITEABLE);
  return array;
}

Array share_if_numpy(nb::handle object, LendMode mode) {
  return is_numpy(object) ? lend_numpy(object, mode) : Array();
}

Array read_if_numpy(nb::handle object) {
  return is_numpy(object) ? lend_numpy(native(object), LendMode::kWritable) : Array();
}

bool overrides_dlpack(nb::handle object) {
  if (!is_numpy(object) || !is_of_subclass(object)) return false;
  return has_own(object, "__dlpack__") || has_own(object, "__dlpack_device__");
}

void check_values(nb::handle value, int depth) {
  PyObject* const x = value.ptr();
  if (PyFloat_CheckExact(x) || PyLong_CheckExact(x) || depth > TENON_MAX_NDIM) return;
  const bool is_list = PyList_CheckExact(x);
  if (!is_list && !PyTuple_CheckExact(x)) {
    if (is_numpy(value) && is_of_subclass(value)) check_subclass(value);
    return;
  }
  for (Py_ssize_t i = 0; i < PySequence_Size(x); ++i) {
    check_values(is_list ? PyList_GetItem(x, i) : PyTuple_GetItem(x, i), depth + 1);
  }
}

void add_from_numpy(nb::module_& module) {
  static PyMethodDef method = fast_method<from_numpy>("from_numpy", kDocumentation);
  add_function(module, &method);
  module.def(
      "checked_values",
      [](nb::handle value) {
        check_values(value);
        return without_verbs(value, Access::kRead);
      },
      nb::arg("value").none(), nb::sig("def checked_values(value: Any) -> Any"),
      "Raises TypeError if the values of a NumPy array are not in its memory. An array of MXNet as an "
      "NDArray on its\nmemory; other objects unchanged.");
}

}  // namespace tenon::python
