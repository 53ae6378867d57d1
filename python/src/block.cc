// SPDX-License-Identifier: Apache-2.0
#include "block.h"

#include <string>
#include <utility>

#include "arguments.h"
#include "buffer_calls.h"
#include "callbacks.h"
#include "devices.h"
#include "ending_threads.h"
#include "errors.h"
#include "frames.h"
#include "names.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "numpy_view.h"
#include "owners.h"
#include "sites.h"
#include "values.h"

namespace tenon::python {
namespace {

// Accessed under the GIL, except for the lease during a wait. The garbage collector tracks it only if it
// refers to an object that may refer back to it: a function that repairs, or a task.
struct WithBlock {
  PyObject_HEAD PyObject* array;  // an NDArray
  PyObject* on_owner_died;        // "raise" or "ignore", interned, or a function
  int64_t timeout_ns;             // as tenon_lease_options
  bool is_write;
  bool is_overwrite;
  // The members above are constant. Those below are set by __enter__.
  bool is_entered;
  PyObject* taken;  // null, or what owns a lease that Python code took for the block
  PyObject* root;   // null, or the base of the view, and of all arrays made from the view
  PyObject* view;
  const char* site;    // of __enter__, a text that lives for ever
  tenon_lease* lease;  // own, or that of taken
  tenon_lease own;
};

PyTypeObject* block_type = nullptr;

WithBlock* block_of(PyObject* object) noexcept { return reinterpret_cast<WithBlock*>(object); }

// A free list. Objects that the garbage collector may track cannot come from an FreeList.
class Spare {
 public:
  PyObject* take() {
    if (n_ == 0)
      return owned(reinterpret_cast<PyObject*>(PyObject_GC_New(WithBlock, block_type))).release().ptr();
    return PyObject_Init(blocks_[--n_], block_type);
  }
  void give(PyObject* block) noexcept {
    if (n_ == kMax) {
      PyObject_GC_Del(block);
    } else {
      blocks_[n_++] = block;
    }
    Py_DECREF(reinterpret_cast<PyObject*>(block_type));
  }

 private:
  static constexpr int kMax = 16;
  PyObject* blocks_[kMax] = {};
  int n_ = 0;
};
constinit Spare spare;

PyObject* raise_name() {
  static Name name("raise");
  return name.get();
}
PyObject* ignore_name() {
  static Name name("ignore");
  return name.get();
}

bool release(WithBlock& block) noexcept {
  const owners::Collector collector;
  return tenon_lease_release(block.lease) != 0;
}

void forget_taken(WithBlock& block) noexcept {
  block.lease = &block.own;
  Py_CLEAR(block.taken);  // its lease is released with it
}

// Releases a lease that was not used.
void take_back(WithBlock& block) noexcept {
  const KeepError keep_error;
  const owners::Collector collector;
  (void)tenon_lease_cancel(&block.own);
  (void)tenon_lease_release(&block.own);
}

void free_block(PyObject* self) {
  PyObject_GC_UnTrack(self);
  WithBlock& block = *block_of(self);
  {
    const KeepError keep_error;
    release(block);
    Py_CLEAR(block.view);
    Py_CLEAR(block.root);
    forget_taken(block);
    Py_CLEAR(block.on_owner_died);
    Py_CLEAR(block.array);
  }
  spare.give(self);
}

int traverse_block(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  Py_VISIT(block_of(self)->taken);
  Py_VISIT(block_of(self)->on_owner_died);
  return 0;
}

int clear_block(PyObject* self) {
  WithBlock& block = *block_of(self);
  forget_taken(block);
  const nb::object function = nb::steal(std::exchange(block.on_owner_died, Py_NewRef(raise_name())));
  return 0;
}

// asyncio's _get_running_loop, a new reference. Null: nothing has imported asyncio, or an import has begun.
PyObject* running_loop_function() {
  static Name events("asyncio.events");
  PyObject* const module = PyDict_GetItemWithError(PyImport_GetModuleDict(), events.get());
  if (module == nullptr) return nullptr;
  const nb::object function = nb::getattr(nb::handle(module), "_get_running_loop", nb::none());
  return function.is_none() ? nullptr : Py_NewRef(function.ptr());
}

// asyncio runs an event loop in this thread.
bool is_in_event_loop() {
  static PyObject* function = nullptr;
  static PyCFunction direct = nullptr;  // what it calls, if it is a function in C
  if (function == nullptr) {
    function = running_loop_function();
    if (function == nullptr) return false;
    if (Py_IS_TYPE(function, &PyCFunction_Type) && PyCFunction_GetFlags(function) == METH_NOARGS) {
      direct = PyCFunction_GetFunction(function);
    }
  }
  return !owned(direct != nullptr ? direct(PyCFunction_GetSelf(function), nullptr)
                                  : PyObject_CallNoArgs(function))
              .is_none();
}

void begin(WithBlock& block) {
  if (block.is_entered) {
    raise(PyExc_RuntimeError, "a block cannot be entered a second time: call read() or write() again");
  }
  if (block.is_write && has_outlived_views(block.array)) [[unlikely]]
    callback(Callback::kWarnOfOutlived)(nb::handle(block.array));
  block.is_entered = true;
  prepare_numpy_views();
}

// Python code takes the lease, and calls open_block().
PyObject* enter_in_python(PyObject* self, Callback how) {
  const WithBlock& block = *block_of(self);
  const bool has_timeout = block.timeout_ns != TENON_DEFAULT_TIMEOUT;
  nb::object timeout = nb::none();
  if (has_timeout) timeout = nb::float_(static_cast<double>(block.timeout_ns) * 1e-9);
  return nb::object(callback(how)(nb::handle(self), nb::handle(block.array), block.is_write,
                                  block.is_overwrite, timeout, nb::handle(block.on_owner_died)))
      .release()
      .ptr();
}

void take_lease(WithBlock& block, const Array& array, const char* site) {
  auto options = detail::sized<tenon_lease_options>();
  options.access = block.is_write ? TENON_WRITE : TENON_READ;
  if (block.is_overwrite) options.flags |= TENON_OVERWRITE;
  if (block.on_owner_died == ignore_name()) options.flags |= TENON_IGNORE_OWNER_DIED;
  options.timeout_ns = block.timeout_ns;
  options.site = site;
  const WaitLimit end = limit_of(block.timeout_ns);
  call(tenon_lease_acquire, &block.own, array.get(), &options);
  if (!may_have_buffer_calls()) return;
  try {
    wait_for_buffer_calls(array.get(), Access{options.access}, end);
  } catch (...) {
    take_back(block);
    throw;
  }
}

// Opens the view under the lease. Returns a new reference. On a device the view is an array, for from_dlpack
// of a framework.
PyObject* open(WithBlock& block, const Array& array) {
  try {
    if (is_on_device(array)) return wrap(block.is_write ? array : array.readonly());
    RootedView views = rooted_numpy_view(array, !block.is_write, block.site);
    block.root = views.root.release().ptr();
    block.view = views.view.release().ptr();
  } catch (...) {
    const KeepError keep_error;
    release(block);
    throw;
  }
  return Py_NewRef(block.view);
}

PyObject* enter(PyObject* self, PyObject*) noexcept {
  return guarded([self]() -> PyObject* {
    WithBlock& block = *block_of(self);
    begin(block);
    if (!PyUnicode_Check(block.on_owner_died) || is_in_event_loop()) {
      return enter_in_python(self, Callback::kEnterBlock);
    }
    block.site = current_site();
    owners::drain();
    Array array = share(block.array);
    take_lease(block, array, block.site);
    // While it waited, the NDArray may have got new memory.
    if (array.get() != array_of(block.array)) array = share(block.array);
    return open(block, array);
  });
}

// Empties a lone view and releases the lease. Returns whether a view continues the lease.
bool end_quickly(WithBlock& block) noexcept {
  const owners::Collector collector;
  end_lone_view(
      {nb::steal(std::exchange(block.root, nullptr)), nb::steal(std::exchange(block.view, nullptr))},
      block.site);
  return tenon_lease_release(block.lease) != 0;
}

// Ends the views of the block. Returns whether nothing refers to the memory any more.
bool end_views(WithBlock& block, nb::handle error) {
  if (block.root == nullptr) return true;
  if (is_python_ending()) {  // it has no modules any more
    empty_numpy_view(block.view, false, block.site);
    return false;
  }
  nb::list views;  // the only references besides the user's: these are counted
  views.append(nb::steal(std::exchange(block.view, nullptr)));
  views.append(nb::steal(std::exchange(block.root, nullptr)));
  const nb::object frame = innermost_frame();
  return nb::cast<bool>(callback(Callback::kEndViews)(views, frame.is_valid() ? frame : nb::none(), error));
}

void fail(WithBlock& block, nb::handle error) {
  std::string message = "the block that wrote it ended with ";
  message += is_python_ending() ? "Python" : text_of(nb::object(callback(Callback::kTextOf)(error)));
  if (!is_python_ending() && PyErr_GivenExceptionMatches(error.ptr(), PyExc_GeneratorExit) != 0)
    message += " (the generator that has this block was left early)";
  message += "; write all of it (`a[...] = x`), or keep what it holds (`a.clear_error()`)";
  const owners::Collector collector;
  tenon_lease_fail(block.lease, message.c_str());
}

// error: None, or the exception that ended the block.
void end(WithBlock& block, nb::handle error) {
  bool lives_on = false;
  if (error.is_none() && block.root != nullptr && is_lone_view(block.view, block.root)) {
    lives_on = end_quickly(block);
  } else {
    lives_on = !end_views(block, error);
    if (error.is_none() || !block.is_write) {
      lives_on |= release(block);
    } else {
      fail(block, error);
    }
  }
  if (block.taken != nullptr) forget_taken(block);
  if (lives_on && error.is_none() && !is_python_ending())
    callback(Callback::kCheckOutlived)(nb::handle(block.array), "array");
}

PyObject* exit(PyObject* self, PyObject* const* arguments, Py_ssize_t n) noexcept {
  return guarded([=]() -> PyObject* {
    if (n != 3) raise(PyExc_TypeError, "__exit__() takes 3 arguments, and got %zd", n);
    end(*block_of(self), arguments[1]);
    return Py_NewRef(Py_None);
  });
}

PyObject* enter_later(PyObject* self, PyObject*) noexcept {
  return guarded([self] {
    begin(*block_of(self));
    return enter_in_python(self, Callback::kEnterLater);
  });
}

// Ends the block in this call and not when the result is awaited: now the innermost frame is that of the
// block.
PyObject* exit_later(PyObject* self, PyObject* const* arguments, Py_ssize_t n) noexcept {
  PyObject* const none = exit(self, arguments, n);
  if (none == nullptr) return nullptr;
  Py_DECREF(none);
  return guarded([] { return nb::object(callback(Callback::kNothingLater)()).release().ptr(); });
}

// Sets the error of code that uses the block as if it were the array.
void refuse_use(PyObject* self, PyObject* type) noexcept {
  const char* const method = block_of(self)->is_write ? "write" : "read";
  PyErr_Format(type,
               "a.%s() has no elements, it begins a block: `with a.%s() as v:`, and use v in it (`v[0]`, "
               "`v.sum()`)",
               method, method);
}

PyObject* get_item(PyObject* self, PyObject*) noexcept {
  refuse_use(self, PyExc_TypeError);
  return nullptr;
}

int set_item(PyObject* self, PyObject*, PyObject*) noexcept {
  refuse_use(self, PyExc_TypeError);
  return -1;
}

PyObject* get_attribute(PyObject* self, PyObject* name) noexcept {
  PyObject* const found = PyObject_GenericGetAttr(self, name);
  if (found != nullptr || PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return found;
  // Libraries ask for names of protocols, which begin with '_'.
  const Py_UCS4 first = PyUnicode_GetLength(name) > 0 ? PyUnicode_ReadChar(name, 0) : '_';
  if (first == '_') return nullptr;
  PyErr_Clear();
  refuse_use(self, PyExc_AttributeError);
  return nullptr;
}

// Without it, NumPy would make an array of one object.
PyObject* refuse_array(PyObject* self, PyObject*, PyObject*) noexcept { return get_item(self, nullptr); }

PyMethodDef methods[] = {
    {"__array__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(refuse_array)),
     METH_VARARGS | METH_KEYWORDS, nullptr},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(exit)), METH_FASTCALL, nullptr},
    {"__aenter__", enter_later, METH_NOARGS, nullptr},
    {"__aexit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(exit_later)), METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_block)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_block)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_block)},
    {Py_tp_methods, methods},
    {Py_tp_getattro, reinterpret_cast<void*>(get_attribute)},
    {Py_mp_subscript, reinterpret_cast<void*>(get_item)},
    {Py_mp_ass_subscript, reinterpret_cast<void*>(set_item)},
    {Py_tp_doc, const_cast<char*>("What `with a.read() as v` and `with a.write() as v` enter.")},
    {0, nullptr},
};
PyType_Spec spec = {"tenon._core.Block", sizeof(WithBlock), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

// on_owner_died, timeout: null, or as NDArray.read takes them.
PyObject* make_block(PyObject* array, bool is_write, bool is_overwrite, PyObject* on_owner_died,
                     PyObject* timeout) {
  const bool has_timeout = timeout != nullptr && timeout != Py_None;
  const int64_t timeout_ns = has_timeout ? Seconds{timeout}.nanoseconds() : TENON_DEFAULT_TIMEOUT;
  if (on_owner_died == nullptr) on_owner_died = raise_name();
  if (on_owner_died != raise_name() && on_owner_died != ignore_name()) {
    callback(Callback::kCheckOnDied)(nb::handle(on_owner_died));
    if (PyUnicode_Check(on_owner_died)) {
      const bool ignores = PyUnicode_CompareWithASCIIString(on_owner_died, "ignore") == 0;
      on_owner_died = ignores ? ignore_name() : raise_name();
    }
  }
  PyObject* const object = spare.take();
  WithBlock& block = *block_of(object);
  block.array = Py_NewRef(array);
  block.on_owner_died = Py_NewRef(on_owner_died);
  block.timeout_ns = timeout_ns;
  block.is_write = is_write;
  block.is_overwrite = is_overwrite;
  block.is_entered = false;
  block.taken = block.root = block.view = nullptr;
  block.site = nullptr;
  block.lease = &block.own;
  block.own = TENON_LEASE_INIT;
  if (!PyUnicode_Check(on_owner_died)) PyObject_GC_Track(object);
  return object;
}

PyObject* read(PyObject* self, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static constinit FastParameters<2> parameters("read", {"on_owner_died", "timeout"}, 1, 0);
  const auto [on_owner_died, timeout] = parameters.parse(arguments, n, keywords);
  return make_block(self, false, false, on_owner_died, timeout);
}

PyObject* write(PyObject* self, PyObject* const* arguments, Py_ssize_t n, PyObject* keywords) {
  static constinit FastParameters<3> parameters("write", {"overwrite", "on_owner_died", "timeout"}, 2, 0);
  const auto [overwrite, on_owner_died, timeout] = parameters.parse(arguments, n, keywords);
  if (overwrite != nullptr && overwrite != Py_True && overwrite != Py_False) {
    raise(PyExc_TypeError, "overwrite is %R: it must be True or False", overwrite);
  }
  return make_block(self, true, overwrite == Py_True, on_owner_died, timeout);
}

}  // namespace

void add_block_methods(Parts& parts) {
  parts.methods.push_back(fast_method<read>(
      "read",
      "read($self, on_owner_died='raise', *, timeout=None)\n--\n\n"
      "``with a.read() as v:`` reads the array, which is not written meanwhile. ``v`` is a read-only NumPy "
      "array. It has\n"
      "no elements after the block. Also ``async with``.\n\n"
      "Parameters\n----------\non_owner_died : {'raise', 'ignore'} or callable\n"
      "    For a shared array that a process was writing when it died. 'raise': OwnerDied, until it is "
      "overwritten.\n    'ignore': the block uses the values that are left. A function is called as\n"
      "    ``on_owner_died(values, error)`` with a writable NumPy array, before the block.\n"
      "timeout : float, optional\n"
      "    Seconds. None: no limit inside of this process; `set_lock_timeout` applies to other processes.\n\n"
      "Raises\n------\nDeadlockError\n    The wait would not end.\nTimeoutError\n    The time has passed. "
      "The "
      "message names it, and what holds the memory.\nOwnerDied\n    See above.\nOpError\n    The op that was "
      "to "
      "write it has failed.\nLeaseEscaped\n    At the end, with ``TENON_DEBUG=leases`` in the environment: a "
      "view still exists.\n"));
  parts.methods.push_back(fast_method<write>(
      "write",
      "write($self, overwrite=False, on_owner_died='raise', *, timeout=None)\n--\n\n"
      "``with a.write() as v:`` writes the array, which is not used elsewhere meanwhile. As `read`. If an "
      "exception leaves\n"
      "the block, the elements are invalid until all of them are written.\n\n"
      "Parameters\n----------\noverwrite : bool\n    The block writes every element before it reads any. "
      "This "
      "works also if the elements are invalid.\n"));
}

nb::object open_block(nb::handle object, tenon_lease& lease, nb::object keeper) {
  if (!Py_IS_TYPE(object.ptr(), block_type)) raise(PyExc_TypeError, "open_block() takes a block");
  WithBlock& block = *block_of(object.ptr());
  if (!block.is_entered || block.taken != nullptr) {
    raise(PyExc_RuntimeError, "open_block() takes a block that is being entered");
  }
  block.taken = keeper.release().ptr();
  block.lease = &lease;
  if (PyObject_GC_IsTracked(object.ptr()) == 0) PyObject_GC_Track(object.ptr());
  block.site = current_site();
  return owned(open(block, share(block.array)));
}

void add_block(nb::module_& module) {
  block_type = reinterpret_cast<PyTypeObject*>(
      owned(PyType_FromModuleAndSpec(module.ptr(), &spec, nullptr)).release().ptr());
}

}  // namespace tenon::python
