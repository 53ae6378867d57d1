// SPDX-License-Identifier: Apache-2.0
//
// Methods that separate an array from its memory or from the rules: the memory moves out to NumPy, stays with
// its readers, or is used outside of the contract.
#include <atomic>
#include <utility>

#include "callbacks.h"
#include "counts.h"
#include "methods.h"
#include "numpy_api.h"
#include "numpy_lend.h"
#include "numpy_view.h"
#include "ownership.h"
#include "sites.h"

namespace tenon::python {
namespace {

// The base of a NumPy array whose memory was an NDArray's. Gives the memory back when it dies.
struct MovedMemory {
  PyObject_HEAD void* owner;
  void (*deleter)(void* owner);
};

PyTypeObject* moved_memory_type = nullptr;

void free_moved_memory(PyObject* self) {
  {
    const owners::Collector collector;
    auto* const memory = reinterpret_cast<MovedMemory*>(self);
    if (memory->deleter != nullptr) memory->deleter(memory->owner);
  }
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyType_Slot moved_memory_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_moved_memory)},
    {Py_tp_doc, const_cast<char*>("Owns memory that has moved out of an NDArray.")},
    {0, nullptr},
};
PyType_Spec moved_memory_spec = {"tenon._core.MovedMemory", sizeof(MovedMemory), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, moved_memory_slots};

void check_original(const Array& array) {
  PyObject* const original = original_of(owner_of(array.get()));
  if (original == nullptr || !is_used_elsewhere(original, true)) return;
  throw Error(
      TENON_ERR_LEASE_CONFLICT,
      "cannot move memory of a NumPy array x that was given to from_numpy() and is still referred to, or "
      "a base of it: drop x and its views first, or go on with x");
}

// Other arrays would lose their memory: code with `with a:` means to hold the array.
nb::object enter(const Self& self) {
  const Array array = self.array();
  owners::Node* const owner = owner_of(array.get());
  const bool is_lent = is_lent_by_user(owner);
  if (!is_lent && tenon_array_moved_at(array.get()) == nullptr) {
    raise(PyExc_TypeError,
          "`with` on an array gives its memory back to NumPy, and this array has none that tn.from_numpy() "
          "borrowed: `with a.read() as v:` and `with a.write() as v:` hold an array");
  }
  if (is_lent) set_in_block(owner, true);
  return self.object;
}

nb::object move_to_numpy(const Array& array) {
  need_numpy();
  check_original(array);
  auto* const base = PyObject_New(MovedMemory, moved_memory_type);
  const nb::object keep = owned(reinterpret_cast<PyObject*>(base));
  base->owner = nullptr;
  base->deleter = nullptr;
  nb::object result = numpy_array_over(array, keep, array.is_readonly());
  tenon_memory memory{};
  memory.struct_size = sizeof memory;
  call(tenon_array_move_out, array.get(), current_site(), &memory);
  base->owner = memory.owner;
  base->deleter = memory.deleter;
  return result;
}

std::atomic<bool> may_have_second_queues{false};

}  // namespace

void note_second_queue() noexcept { may_have_second_queues.store(true, std::memory_order_relaxed); }

bool has_moved_memory(PyObject* numpy_array) noexcept {
  PyObject* const base = PyArray_BASE(as_numpy(numpy_array));
  return base != nullptr && Py_TYPE(base) == moved_memory_type && references_to(base) == 1;
}

void add_ownership(nb::module_& module) {
  moved_memory_type = reinterpret_cast<PyTypeObject*>(
      owned(PyType_FromModuleAndSpec(module.ptr(), &moved_memory_spec, nullptr)).release().ptr());
  def_method("move_to_numpy", move_to_numpy, nb::sig("def move_to_numpy(self) -> Any"),
             "The elements as a NumPy array that owns the memory from then on: this array, and every other "
             "on the same\n"
             "memory, raises MovedError. Nothing is copied. Waits for ops that were pushed before.\n\n"
             "Returns\n-------\nnumpy.ndarray\n    Read-only if this array is. ``tn.from_numpy(x, "
             "mode='move')`` takes "
             "it back.\n\n"
             "Raises\n------\nLeaseConflict\n    A view, lease or op holds the memory, or another array was "
             "imported "
             "over the same\n    bytes, or the NumPy array that it was imported from is still referred to.\n"
             "MovedError\n    It was moved before; the message says where.\n");
  def_method(
      "unchecked",
      [](const Array& self) {
        tenon_array* handle = nullptr;
        call(tenon_array_unchecked, self.get(), &handle);
        note_second_queue();
        return Array::steal(handle);
      },
      "The same memory, shape and dtype outside of the contract: its accesses wait for no other access, and "
      "no other\n"
      "access waits for them. The caller orders them. Shares the memory and keeps it alive.\n");
  def_method(
      "__enter__", enter, nb::sig("def __enter__(self) -> NDArray"),
      "``with tn.from_numpy(x) as a:`` states that ``x`` is not used before the end of the block: ops may be "
      "pushed\nbeside it. The end waits for them, and gives the memory back to its owner:\n``x`` is writable "
      "again, and ``a`` raises MovedError. "
      "``with a.read()`` and\n``with a.write()`` hold an array.\n\nRaises\n------\nTypeError\n"
      "    At the beginning: the array has no memory that `from_numpy` borrowed.\nLeaseConflict\n"
      "    At the end: a view, lease or another import still holds the memory; it stays lent.\nOpError\n"
      "    At the end: an op that was to write it has failed.\n");
  def_method(
      "__exit__",
      [](const Self& self, const nb::object& kind, const nb::object& error, const nb::object& trace) {
        owners::Node* const owner = owner_of(self.array().get());
        if (is_lent_by_user(owner)) set_in_block(owner, false);  // it may stay lent
        callback(Callback::kGiveBack)(self.object, error);
        (void)kind;
        (void)trace;
      },
      nb::arg("kind").none(), nb::arg("error").none(), nb::arg("trace").none(),
      nb::sig("def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, "
              "trace: types.TracebackType | None) -> None"));
  module.def(
      "give_back",
      [](const Array& array) {
        tenon_memory memory{};
        memory.struct_size = sizeof memory;
        call(tenon_array_move_out, array.get(), current_site(), &memory);
        const owners::Collector collector;
        if (memory.deleter != nullptr) memory.deleter(memory.owner);
      },
      nb::arg("array"), "Waits for ops, and gives the memory of the array back to its owner.");
  module.def(
      "renewed",
      [](const Array& array) {
        const auto* const node = owner_of(array.get());
        if (is_in_block(node)) {
          throw Error(TENON_ERR_LEASE_CONFLICT,
                      "cannot give new memory to the array of `with tn.from_numpy(x) as a:`, because x would "
                      "not get its elements: drop the views of it first");
        }
        PyObject* const original = original_of(node);
        if (original != nullptr && is_used_elsewhere(original, false)) check_original(array);
        tenon_array* handle = nullptr;
        call(tenon_array_renew, array.get(), &handle);
        return Array::steal(handle);
      },
      nb::arg("array"),
      "An array as this one on new memory, for a whole overwrite that leaves the old to its readers.");
  module.def(
      "may_have_second_queues", [] { return may_have_second_queues.load(std::memory_order_relaxed); },
      "Whether bytes may have several queues: unchecked() was called in this process, or "
      "from_pointer() without an owner.");
  module.def(
      "moved_at",
      [](const Array& array) -> nb::object {
        const char* const at = tenon_array_moved_at(array.get());
        return at == nullptr ? nb::none() : nb::object(nb::str(at));
      },
      nb::arg("array"), nb::sig("def moved_at(array: NDArray) -> str | None"),
      "Where the memory was moved out, or None.");
}

}  // namespace tenon::python
