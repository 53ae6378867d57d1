// SPDX-License-Identifier: Apache-2.0
//
// Attributes that NDArrays do not have, and arrays of NumPy, tensors of PyTorch and other objects with memory
// have: the AttributeError names an expression that works. Each is a descriptor that raises. A hook of the
// type for missing attributes would slow down every call of a method that exists. hasattr(a, name) is False,
// and dir(a) does not list them.
#include <algorithm>
#include <span>
#include <string_view>

#include "ndarray_parts.h"

namespace tenon::python {
namespace {

constexpr const char* kFunctions[] = {
    "abs",    "all",      "any", "argmax", "argmin",  "argsort", "conj", "conjugate", "cos",     "cumprod",
    "cumsum", "diagonal", "exp", "flip",   "imag",    "isnan",   "log",  "median",    "nonzero", "prod",
    "real",   "round",    "sin", "sqrt",   "squeeze", "std",     "tanh", "trace",     "unique",  "var"};
constexpr const char* kFunctionsOfMore[] = {
    "allclose", "append", "argpartition", "clip",         "dot",   "matmul",   "maximum", "minimum", "put",
    "repeat",   "resize", "roll",         "searchsorted", "split", "swapaxes", "take",    "tile"};
constexpr const char* kMembers[] = {"flat", "mT"};
// An array that is made from an address would not hold the memory (docs/numpy.md).
constexpr const char* kInterfaces[] = {"__array_interface__"};
constexpr const char* kMethods[] = {"byteswap", "flatten", "sort"};
constexpr const char* kMethodsOfMore[] = {"partition", "tofile"};

constexpr const char* kViews[] = {"array",     "as_array", "as_numpy", "get_obj",
                                  "get_array", "to_numpy", "tonumpy",  "values"};
constexpr const char* kTensors[] = {"as_tensor", "as_torch", "tensor", "to_tensor", "to_torch"};
constexpr const char* kGradients[] = {"backward", "detach", "grad", "requires_grad", "requires_grad_"};
constexpr const char* kDtype[] = {"data_type", "dtypes", "type"};
constexpr const char* kJax[] = {"to_jax"};
constexpr const char* kCopies[] = {"clone", "contiguous"};
constexpr const char* kDevice[] = {"cuda", "gpu"};
constexpr const char* kHost[] = {"cpu"};
constexpr const char* kPinned[] = {"pin_memory"};
constexpr const char* kDeviceName[] = {"get_device", "is_cpu", "is_cuda", "is_pinned"};
constexpr const char* kFloat[] = {"float"};
constexpr const char* kDouble[] = {"double"};
constexpr const char* kHalf[] = {"half"};
constexpr const char* kInt[] = {"int"};
constexpr const char* kLong[] = {"long"};
constexpr const char* kByte[] = {"byte"};
constexpr const char* kCast[] = {"asdtype", "cast", "type_as"};
constexpr const char* kShared[] = {"is_share_memory", "is_shared"};
constexpr const char* kShare[] = {"share", "share_memory", "share_memory_", "to_shared"};
constexpr const char* kPermute[] = {"permute"};
constexpr const char* kNewAxis[] = {"expand_dims", "unsqueeze"};
constexpr const char* kExpand[] = {"broadcast_to", "expand"};
constexpr const char* kSize[] = {"count", "num_elements", "numel"};
constexpr const char* kLength[] = {"length", "rows"};
constexpr const char* kAxes[] = {"dim", "rank"};
constexpr const char* kStrides[] = {"stride"};
constexpr const char* kItemsize[] = {"element_size"};
constexpr const char* kZero[] = {"clear", "zero", "zero_", "zeros"};
constexpr const char* kFill[] = {"fill_", "full_"};
constexpr const char* kAssign[] = {"assign", "copy_", "set", "set_value", "update"};
constexpr const char* kInPlace[] = {"add_", "div_", "mul_", "sub_"};
constexpr const char* kFlags[] = {"flags", "is_writable", "readable", "writeable"};
constexpr const char* kSetFlags[] = {"freeze", "setflags"};
constexpr const char* kMemory[] = {"buf", "buffer", "data", "memory"};
constexpr const char* kAddress[] = {"addr", "address", "pointer", "ptr"};
constexpr const char* kOwner[] = {"base", "owner"};
constexpr const char* kNorm[] = {"norm"};
constexpr const char* kJoin[] = {"cat", "concat", "concatenate"};
constexpr const char* kName[] = {"name", "names"};
constexpr const char* kEnd[] = {"close", "delete", "destroy", "free", "unlink"};
constexpr const char* kFlush[] = {"flush", "sync"};
constexpr const char* kWait[] = {"block_until_ready", "synchronize", "wait"};
constexpr const char* kLock[] = {"acquire", "get_lock", "lock", "release", "writelock"};
constexpr const char* kReadLock[] = {"rlock", "readlock"};
constexpr const char* kHolders[] = {"borrowers", "holders", "refcount", "users"};
constexpr const char* kPush[] = {"apply", "map", "push", "submit"};
constexpr const char* kValue[] = {"get", "value"};
constexpr const char* kSave[] = {"dump", "save"};
constexpr const char* kPickle[] = {"dumps"};
constexpr const char* kAttach[] = {"attach", "connect", "open"};

struct Missing {
  const char* use;  // a format with the name
  std::span<const char* const> names;
};
constexpr Missing kMissing[] = {
    {"np.%s(a)", kFunctions},
    {"np.%s(a, ...)", kFunctionsOfMore},
    {"np.asarray(a).%s", kMembers},
    {"np.asarray(a) in place of a, as in PIL.Image.fromarray(np.asarray(a))", kInterfaces},
    {"np.asarray(a).%s()", kMethods},
    {"np.asarray(a).%s(...)", kMethodsOfMore},
    {"a.numpy(), or np.asarray(a)", kViews},
    {"a.torch()", kTensors},
    {"t = a.torch(), and t.%s", kGradients},
    {"a.dtype", kDtype},
    {"a.jax()", kJax},
    {"a.copy()", kCopies},
    {"a.to('cuda')", kDevice},
    {"a.to('cpu')", kHost},
    {"a.to('cuda_host')", kPinned},
    {"a.device", kDeviceName},
    {"a.astype('float32')", kFloat},
    {"a.astype('float64')", kDouble},
    {"a.astype('float16')", kHalf},
    {"a.astype('int32')", kInt},
    {"a.astype('int64')", kLong},
    {"a.astype('uint8')", kByte},
    {"a.astype(dtype)", kCast},
    {"a.shared", kShared},
    {"tn.asarray(a, shared=True), or tn.array(a, shared='name')", kShare},
    {"a.transpose(...)", kPermute},
    {"a[None], or a.reshape(...)", kNewAxis},
    {"np.broadcast_to(a, shape)", kExpand},
    {"a.size", kSize},
    {"len(a)", kLength},
    {"a.ndim", kAxes},
    {"a.strides, which are in bytes", kStrides},
    {"a.itemsize", kItemsize},
    {"a.fill(0)", kZero},
    {"a.fill(value)", kFill},
    {"a[...] = value", kAssign},
    {"a += value and the other operators", kInPlace},
    {"a.writable and a.is_contiguous()", kFlags},
    {"a.readonly(), a read-only array on the same memory", kSetFlags},
    {"memoryview(a), or a.data_ptr for the address", kMemory},
    {"a.data_ptr", kAddress},
    {"tn.borrowers() for the arrays of NumPy that are lent", kOwner},
    {"np.linalg.norm(a)", kNorm},
    {"tn.concatenate([a, b])", kJoin},
    {"what was given as shared='name': an array does not know it", kName},
    {"del a: the memory ends with its last user, in all processes", kEnd},
    {"`with a.write() as v`: what it writes is in memory at the end of the block", kFlush},
    {"a.wait_to_read()", kWait},
    {"`with a.write() as v`, `with a.read() as v`, or l = a.lease('w') and l.release()", kLock},
    {"`with a.read() as v`, or l = a.lease('r') and l.release()", kReadLock},
    {"a.leases(), or `tenon ls` in a shell", kHolders},
    {"tn.push(f, a)", kPush},
    {"a.item(), or a[...]", kValue},
    {"tn.save(file, a)", kSave},
    {"pickle.dumps(a)", kPickle},
    {"tn.attach(name)", kAttach}};

// Null for the name of another attribute.
const char* use_of(std::string_view name) noexcept {
  for (const Missing& missing : kMissing) {
    if (std::ranges::find(missing.names, name) != missing.names.end()) return missing.use;
  }
  return nullptr;
}

// Without an exception of C++: NumPy asks each array for its __array_interface__.
void set_missing_error(const char* name) {
  const nb::object use = owned(PyUnicode_FromFormat(use_of(name), name));
  const nb::object text =
      owned(PyUnicode_FromFormat("'tenon.NDArray' object has no attribute '%s': use %U", name, use.ptr()));
  const nb::object error = owned(PyObject_CallFunctionObjArgs(PyExc_AttributeError, text.ptr(), nullptr));
  // Without the object, which Python would search for similar names.
  const nb::str attribute(name);
  check_python(PyObject_SetAttrString(error.ptr(), "name", attribute.ptr()));
  PyErr_SetObject(PyExc_AttributeError, error.ptr());
}

PyObject* get_missing(PyObject*, void* name) noexcept {
  return guarded([&]() -> PyObject* {
    set_missing_error(static_cast<const char*>(name));
    return nullptr;
  });
}

int set_missing(PyObject*, PyObject*, void* name) noexcept {
  return guarded([&]() -> int {
    set_missing_error(static_cast<const char*>(name));
    return -1;
  });
}

PyObject* list_attributes(PyObject* self, PyObject*) noexcept {
  return guarded([self] {
    const nb::handle object(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
    nb::list names;
    for (nb::handle name : nb::object(object.attr("__dir__")(nb::handle(self)))) {
      if (use_of(text_of(name)) == nullptr) names.append(name);
    }
    return names.release().ptr();
  });
}

}  // namespace

void add_missing_attributes(Parts& parts) {
  for (const Missing& missing : kMissing) {
    for (const char* const name : missing.names) {
      parts.attributes.push_back(
          {name, get_missing, set_missing, "Not an attribute of NDArrays.", const_cast<char*>(name)});
    }
  }
  parts.methods.push_back({"__dir__", list_attributes, METH_NOARGS, nullptr});
}

}  // namespace tenon::python
