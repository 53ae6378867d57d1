// SPDX-License-Identifier: Apache-2.0
//
// Arrays that several processes use, as tenon/_array/share.py offers them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "devices.h"
#include "dims.h"
#include "dtype.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "op.h"
#include "owners.h"
#include "tenon/share.hpp"
#include "values.h"
#include "waiting.h"

namespace tenon::python {
namespace {

Array create_shared(nb::object shape, const DTypeLike& dtype, bool is_zeroed, const std::string& name,
                    bool has_huge_pages, bool is_populated, int numa_node, nb::handle device) {
  const Dims dims(shape, "shape");
  const SharedOptions options{name, has_huge_pages, is_populated, numa_node, device_from(device)};
  const DType known = dtype.get();  // with the GIL: it may ask Python
  const nb::gil_scoped_release release;
  return is_zeroed ? zeros_shared(dims.shape(), known, options) : empty_shared(dims.shape(), known, options);
}

nb::bytes send_array(const Array& array) {
  const std::vector<std::byte> handle = send(array);
  return nb::bytes(reinterpret_cast<const char*>(handle.data()), handle.size());
}

Array open_array(nb::bytes handle) {
  const std::span<const std::byte> bytes{static_cast<const std::byte*>(handle.data()), handle.size()};
  const nb::gil_scoped_release release;
  return open(bytes);
}

Array receive_array(nb::bytes handle) {
  const std::span<const std::byte> bytes{static_cast<const std::byte*>(handle.data()), handle.size()};
  const nb::gil_scoped_release release;
  return receive(bytes);
}

bool take_over(nb::bytes handle, Seconds timeout) {
  const std::chrono::nanoseconds after(timeout.nanoseconds());  // with the GIL
  const std::span<const std::byte> bytes{static_cast<const std::byte*>(handle.data()), handle.size()};
  const nb::gil_scoped_release release;
  return take_over_handle(bytes, after);
}

bool is_handle_unopened(nb::bytes handle) {
  const std::span<const std::byte> bytes{static_cast<const std::byte*>(handle.data()), handle.size()};
  const nb::gil_scoped_release release;
  return is_unopened(bytes);
}

void limit_sent(nb::bytes handle, uint32_t receiver, Seconds timeout) {
  const std::chrono::nanoseconds after(timeout.nanoseconds());  // with the GIL
  const std::span<const std::byte> bytes{static_cast<const std::byte*>(handle.data()), handle.size()};
  const nb::gil_scoped_release release;
  limit_handle(bytes, receiver, after);
}

nb::bytes set_handle_opens(nb::bytes handle, uint32_t opens) {
  const auto* const begin = static_cast<const std::byte*>(handle.data());
  std::vector<std::byte> bytes(begin, begin + handle.size());
  set_opens(bytes, opens);
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::optional<double> set_timeout(Seconds seconds) {
  const int64_t before = tenon_set_lock_timeout(seconds.nanoseconds("seconds"));
  if (before < 0) return std::nullopt;
  return static_cast<double>(before) * 1e-9;
}

}  // namespace

void add_share(nb::module_& module) {
  module.def(
      "create_shared", create_shared, nb::arg("shape"), nb::arg("dtype"), nb::arg("zeroed"), nb::arg("name"),
      nb::arg("huge_pages"), nb::arg("populate"), nb::arg("numa_node"), nb::arg("device"),
      nb::sig("def create_shared(shape: int | Sequence[int], dtype: DTypeLike, zeroed: bool, name: str, "
              "huge_pages: bool, populate: bool, numa_node: int, device: str) -> NDArray"));
  module.def(
      "attach",
      [](Text given_name, Flag readonly) {
        const std::string name = given_name.get("name");
        const bool is_readonly = readonly.get("readonly");
        const nb::gil_scoped_release release;
        return attach(name, is_readonly);
      },
      nb::arg("name"), nb::arg("readonly") = false);
  module.def("send_array", send_array, nb::arg("array"), nb::sig("def send_array(array: NDArray) -> bytes"));
  module.def("open_array", open_array, nb::arg("handle"),
             nb::sig("def open_array(handle: bytes) -> NDArray"));
  module.def("receive_array", receive_array, nb::arg("handle"),
             nb::sig("def receive_array(handle: bytes) -> NDArray"));
  module.def("take_over_handle", take_over, nb::arg("handle"), nb::arg("timeout"),
             nb::sig("def take_over_handle(handle: bytes, timeout: float) -> bool"));
  module.def("is_handle_unopened", is_handle_unopened, nb::arg("handle"),
             nb::sig("def is_handle_unopened(handle: bytes) -> bool"));
  module.def("limit_handle", limit_sent, nb::arg("handle"), nb::arg("receiver"), nb::arg("timeout").none(),
             nb::sig("def limit_handle(handle: bytes, receiver: int, timeout: float | None) -> None"));
  module.def("set_handle_opens", set_handle_opens, nb::arg("handle"), nb::arg("opens"),
             nb::sig("def set_handle_opens(handle: bytes, opens: int) -> bytes"));
  module.def(
      "revoke_handles", [](const Array& array) { return revoke_handles(array); }, nb::arg("array"),
      "What tenon.revoke_handles does.", nb::sig("def revoke_handles(array: NDArray) -> int"));
  module.def("describe_shared", [] {
    const nb::gil_scoped_release release;
    return describe_shared();
  });
  module.def("collect_shared", [] {
    const nb::gil_scoped_release release;
    return collect_shared();
  });
  module.def("set_lock_timeout", set_timeout, nb::arg("seconds").none(),
             nb::sig("def set_lock_timeout(seconds: float | None) -> float | None"),
             "What tenon.set_lock_timeout does.");
}

}  // namespace tenon::python
