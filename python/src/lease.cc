// SPDX-License-Identifier: Apache-2.0
//
// Leases as tenon/lease.py uses them, and who holds an array.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <vector>

#include "elements.h"
#include "methods.h"
#include "op.h"
#include "owners.h"
#include "sites.h"
#include "waiting.h"

namespace tenon::python {
namespace {

class NativeLease {
 public:
  // owner: (thread, task) of the kernel and of asyncio; None: the calling thread. site: None: this line.
  NativeLease(const Array& array, bool is_write, bool is_overwrite, std::optional<double> timeout,
              std::optional<std::pair<uint32_t, uint64_t>> owner, std::optional<std::string> site)
      : array_(array) {
    tenon_lease_options options{};
    options.struct_size = sizeof options;
    options.access = is_write ? TENON_WRITE : TENON_READ;
    options.flags = is_overwrite ? TENON_OVERWRITE : 0;
    options.timeout_ns = nanoseconds(timeout);
    options.site = site ? kept_site(*site) : current_site();
    if (owner) {
      options.thread = owner->first;
      options.task = owner->second;
    }
    owners::drain();
    call(tenon_lease_acquire, &lease_, array.get(), &options);
  }
  NativeLease(const NativeLease&) = delete;
  NativeLease& operator=(const NativeLease&) = delete;
  ~NativeLease() { release(); }

  bool release() {
    const owners::Collector collector;
    return tenon_lease_release(&lease_) != 0;
  }
  bool fail(const char* message) {
    const owners::Collector collector;
    return tenon_lease_fail(&lease_, message) != 0;
  }
  void detach() { tenon_lease_detach(&lease_); }

 private:
  Array array_;
  tenon_lease lease_ = TENON_LEASE_INIT;
};

nb::list holders(const Array& array) {
  std::vector<tenon_holder> found(16);
  int32_t n = 0;
  while ((n = tenon_array_holders(array.get(), static_cast<int32_t>(found.size()), found.data())) >
         static_cast<int32_t>(found.size())) {
    found.resize(static_cast<size_t>(n));
  }
  found.resize(static_cast<size_t>(n));
  static constexpr const char* kKinds[] = {"view", "op", "lease", "call"};
  nb::list result;
  for (const tenon_holder& h : found) {
    result.append(nb::make_tuple(kKinds[h.kind], h.access == TENON_WRITE ? "w" : "r", h.is_granted != 0,
                                 h.thread, static_cast<double>(h.age_ns) * 1e-9, h.name, h.site));
  }
  return result;
}

nb::object python_function(const char* name) { return nb::module_::import_("tenon.lease").attr(name); }

void wait_for(const Array& array, int32_t access, std::optional<double> timeout) {
  owners::drain();
  call(tenon_array_wait, array.get(), access, nanoseconds(timeout));
}

}  // namespace

void add_leases(nb::module_& module) {
  nb::class_<NativeLease>(module, "NativeLease", "The native part of tenon.Lease.")
      .def(nb::init<const Array&, bool, bool, std::optional<double>,
                    std::optional<std::pair<uint32_t, uint64_t>>, std::optional<std::string>>(),
           nb::arg("array"), nb::arg("is_write"), nb::arg("is_overwrite") = false,
           nb::arg("timeout").none() = nb::none(), nb::arg("owner").none() = nb::none(),
           nb::arg("site").none() = nb::none())
      .def("release", &NativeLease::release)
      .def("fail", &NativeLease::fail, nb::arg("message"))
      .def("detach", &NativeLease::detach);
  module.def(
      "site",
      []() -> nb::object {
        const char* const site = current_site();
        return site != nullptr ? nb::object(nb::str(site)) : nb::none();
      },
      nb::sig("def site() -> str | None"), "The line of the user's program that runs, as 'train.py:12'.");
  module.def(
      "holders", holders, nb::arg("array"),
      nb::sig("def holders(array: NDArray) -> list[tuple[str, str, bool, int, float, str, str]]"),
      "(kind, mode, is granted, thread, age in seconds, name, site) of who holds or awaits the memory.");
  def_method(
      "read", [](const Self& self) { return python_function("Block")(self.object, false, false); },
      nb::sig("def read(self) -> Any"),
      "``with a.read() as v:`` reads the array while nobody writes it; ``v`` is a read-only NumPy array, "
      "empty "
      "after the\n"
      "block. Also ``async with``.\n\n"
      "Raises\n------\nDeadlockError\n    The wait would not end.\nOpError\n    The op that was to write it "
      "has "
      "failed.\nLeaseEscaped\n    At the end: a view lives on, and work waits behind the block.\n");
  def_method(
      "write",
      [](const Self& self, bool overwrite) { return python_function("Block")(self.object, true, overwrite); },
      nb::arg("overwrite") = false, nb::sig("def write(self, overwrite: bool = False) -> Any"),
      "``with a.write() as v:`` writes the array while nobody else uses it. As `read`; an exception that "
      "leaves "
      "the block\n"
      "means that the array holds no value, until all of it is written.\n\n"
      "Parameters\n----------\noverwrite : bool\n    Every element is written before any is read: works also "
      "where the array holds no value.\n");
  def_method(
      "lease",
      [](const Self& self, const char* mode, nb::object timeout) {
        return python_function("Lease")(self.object, mode, timeout);
      },
      nb::arg("mode"), nb::arg("timeout").none() = nb::none(),
      nb::sig("def lease(self, mode: str, timeout: float | None = None) -> Any"),
      "A `Lease`, held from this call on. Raises TimeoutError, DeadlockError, OpError.\n");
  def_method(
      "leases", [](const Self& self) { return python_function("leases")(self.object); },
      nb::sig("def leases(self) -> list[Any]"),
      "Who holds the memory or waits for it: a list of `Holder`, in the order of the queue, views last.\n");
  def_method(
      "drop_views",
      [](const Self& self) { return nb::module_::import_("tenon._views").attr("drop_views")(self.object); },
      nb::sig("def drop_views(self) -> list[Any]"),
      "Lets go of views that nobody holds on purpose: a notebook's ``Out``, ``sys.last_value``, the "
      "variables of "
      "finished\n"
      "functions that the traceback of a caught exception keeps. Variables of running code stay as they "
      "are.\n\n"
      "Returns\n-------\nlist of Holder\n    The views that are left; ``where`` says on what they hang, if "
      "that "
      "is found.\n");
  def_method(
      "snapshot", [](const Array& self) { return copied(self); },
      "A copy of all elements at one moment: waits for ops that write and were pushed before.\n");
  def_method(
      "wait_to_read",
      [](const Array& self, std::optional<double> timeout) { wait_for(self, TENON_READ, timeout); },
      nb::arg("timeout").none() = nb::none(),
      "Waits until the ops that write this memory and were pushed before are done.\n\n"
      "Parameters\n----------\ntimeout : float, optional\n    Seconds; None waits as long as it takes.\n\n"
      "Raises\n------\nOpError\n    One of them has failed.\nDeadlockError\n    The wait would not end.\n"
      "TimeoutError\n    The time has passed.\n");
  def_method(
      "wait_to_write",
      [](const Array& self, std::optional<double> timeout) { wait_for(self, TENON_WRITE, timeout); },
      nb::arg("timeout").none() = nb::none(),
      "Waits until all ops that use this memory and were pushed before are done. As `wait_to_read`.\n");
  def_method(
      "clear_error", [](const Array& self) { tenon_array_clear_error(self.get()); },
      "Says that the memory holds a value although an op that was to write it has failed.\n");
}

}  // namespace tenon::python
