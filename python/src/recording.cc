// SPDX-License-Identifier: Apache-2.0
//
// Recordings as tenon/_sync/recordings.py uses them.
#include <nanobind/stl/string.h>

#include <memory>
#include <set>
#include <utility>

#include "fork_gate.h"
#include "op.h"
#include "owners.h"
#include "sites.h"

namespace tenon::python {
namespace {

// A list of bodies in Python, which belongs to the Recording, so that the garbage collector sees the
// bodies, and to each replay until it is done. Borrowed; set by each replay.
struct Bodies {
  PyObject* list = nullptr;
};

struct RecordedBody {
  std::shared_ptr<const Bodies> bodies;
  Py_ssize_t place;

  static void run(void* context, tenon_op* op) noexcept {
    const EngineThread gil;
    const auto& [bodies, place] = *static_cast<const RecordedBody*>(context);
    run_python_body(nb::borrow(PyList_GetItem(bodies->list, place)), op);
  }
  static void drop(void* context) noexcept { delete static_cast<RecordedBody*>(context); }
};

class NativeRecording {
 public:
  NativeRecording() { call(tenon_recording_create, &recording_); }
  NativeRecording(const NativeRecording&) = delete;
  NativeRecording& operator=(const NativeRecording&) = delete;
  ~NativeRecording() {
    const owners::Collector collector;
    tenon_recording_release(recording_);
  }

  // place: of the body in the list that replay() gets.
  void push(Py_ssize_t place, const nb::list& rows, const char* name) {
    OwnedWork owned;
    owned.work.struct_size = sizeof owned.work;
    owned.work.context = new RecordedBody{bodies_, place};
    owned.work.run = RecordedBody::run;
    owned.work.drop = RecordedBody::drop;
    owned.work.name = name;
    owned.work.flags = TENON_NEEDS_LOCK;
    add(std::move(owned), uses_from(rows));
  }

  void push_function(const Function& function, const nb::list& arguments, const nb::list& rows,
                     const char* name) {
    Uses uses;
    OwnedWork work = work_of_function(function, arguments, rows, name, &uses, nullptr);
    add(std::move(work), std::move(uses));
  }

  NativeOp replay(const nb::list& bodies, const char* name, int32_t on_conflict) {
    owners::drain();
    if (on_conflict != TENON_CONFLICT_IGNORE) {
      for (const tenon_use& use : lent_.uses) check_original(use, name);
    }
    bodies_->list = bodies.ptr();
    auto* const kept = new owners::Object(bodies);
    tenon_op* op = nullptr;
    try {
      call(tenon_recording_replay, recording_, on_conflict, name, current_site(), &op);
    } catch (...) {
      owners::release(kept);
      throw;
    }
    NativeOp result(op, nullptr);
    // Without memory for this, the list is kept for ever.
    const auto release = [](void* object) noexcept { owners::release(static_cast<owners::Object*>(object)); };
    (void)tenon_op_on_done(op, release, kept, nullptr);
    return result;
  }

 private:
  void add(OwnedWork owned, Uses uses) {
    tenon_work& work = owned.work;
    check_on_host(uses.uses, work.name);
    work.site = current_site();
    call(tenon_recording_push, recording_, &work, static_cast<int32_t>(uses.uses.size()), uses.uses.data());
    work.context = nullptr;
    for (size_t i = 0; i < uses.uses.size(); ++i) {
      const tenon_use& use = uses.uses[i];
      PyObject* const original = original_of_use(use);
      if (original == nullptr || !originals_.emplace(original, use.access).second) continue;
      lent_.add(std::move(uses.arrays[i]), static_cast<Access>(use.access), use.flags);
    }
  }

  tenon_recording* recording_ = nullptr;
  const std::shared_ptr<Bodies> bodies_ = std::make_shared<Bodies>();
  Uses lent_;  // of memory that NumPy arrays have lent, each array and access once
  std::set<std::pair<PyObject*, int32_t>> originals_;
};

}  // namespace

void add_recordings(nb::module_& module) {
  nb::class_<NativeRecording>(module, "NativeRecording", "The native part of tenon.Recording.")
      .def(nb::init<>())
      .def("push", &NativeRecording::push, nb::arg("place"), nb::arg("uses"), nb::arg("name"),
           nb::sig("def push(self, place: int, uses: list[tuple[NDArray, bool, bool]], name: str) -> None"))
      .def("push_function", &NativeRecording::push_function, nb::arg("function"), nb::arg("arguments"),
           nb::arg("uses"), nb::arg("name"),
           nb::sig("def push_function(self, function: Function, arguments: list[Any], "
                   "uses: list[tuple[NDArray, bool, bool]], name: str) -> None"))
      .def("replay", &NativeRecording::replay, nb::arg("bodies"), nb::arg("name"), nb::arg("on_conflict"),
           nb::sig(
               "def replay(self, bodies: list[Callable[[], Any]], name: str, on_conflict: int) -> NativeOp"));
}

}  // namespace tenon::python
