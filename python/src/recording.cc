// SPDX-License-Identifier: Apache-2.0
//
// Recordings as tenon/_sync/recordings.py uses them.
#include <nanobind/stl/string.h>

#include <utility>
#include <vector>

#include "op.h"
#include "owners.h"
#include "sites.h"

namespace tenon::python {
namespace {

class NoResult final : public Result {
 public:
  nb::object get() const override { return nb::none(); }
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

  void push(nb::object body, const nb::list& rows, const char* name) {
    add(work_of_body(std::move(body), name), uses_from(rows));
  }

  void push_function(const Function& function, const nb::list& arguments, const nb::list& rows,
                     const char* name) {
    Uses uses;
    OwnedWork work = work_of_function(function, arguments, rows, name, &uses, nullptr);
    add(std::move(work), std::move(uses));
  }

  NativeOp replay(const char* name, int32_t on_conflict) const {
    owners::drain();
    if (on_conflict != TENON_CONFLICT_IGNORE) {
      for (const tenon_use& use : uses_.uses) check_original(use, name);
    }
    tenon_op* op = nullptr;
    call(tenon_recording_replay, recording_, on_conflict, name, current_site(), &op);
    return {op, std::make_shared<NoResult>()};
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
      if (has_original(use)) uses_.add(std::move(uses.arrays[i]), static_cast<Access>(use.access), use.flags);
    }
  }

  tenon_recording* recording_ = nullptr;
  Uses uses_;  // of memory that NumPy arrays have lent
};

}  // namespace

void add_recordings(nb::module_& module) {
  nb::class_<NativeRecording>(module, "NativeRecording", "The native part of tenon.Recording.")
      .def(nb::init<>())
      .def("push", &NativeRecording::push, nb::arg("body"), nb::arg("uses"), nb::arg("name"),
           nb::sig(
               "def push(self, body: Callable[[], Any], uses: list[tuple[NDArray, bool, bool]], name: str) "
               "-> None"))
      .def("push_function", &NativeRecording::push_function, nb::arg("function"), nb::arg("arguments"),
           nb::arg("uses"), nb::arg("name"),
           nb::sig("def push_function(self, function: Function, arguments: list[Any], "
                   "uses: list[tuple[NDArray, bool, bool]], name: str) -> None"))
      .def("replay", &NativeRecording::replay, nb::arg("name"), nb::arg("on_conflict"));
}

}  // namespace tenon::python
