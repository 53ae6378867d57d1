// SPDX-License-Identifier: Apache-2.0
#include "elements.h"

#include <optional>

#include "buffer_calls.h"
#include "sites.h"
#include "tenon/share.h"

namespace tenon::python {
namespace {

// Below this many bytes giving the GIL away costs more than it gives.
constexpr uint64_t kWithoutGilFrom = 1 << 16;

// Leases of arrays that calls of other threads use. Under them a call waits for the end of those: it stands
// in the queue before calls that come later.
class Behind {
 public:
  Behind() = default;
  Behind(const Behind&) = delete;
  Behind& operator=(const Behind&) = delete;
  ~Behind() {
    const KeepError keep_error;
    for (tenon_lease& lease : leases_) {
      (void)tenon_lease_cancel(&lease);  // nothing counts as written by it
      (void)tenon_lease_release(&lease);
    }
  }

  void wait(const Array& array, int32_t access) {
    if (!is_behind_buffer_call(array.get(), access)) return;
    tenon_lease_options options{};
    options.struct_size = sizeof options;
    options.access = access;
    if (access == TENON_WRITE) options.flags = TENON_OVERWRITE;
    options.timeout_ns = TENON_DEFAULT_TIMEOUT;
    options.site = current_site();
    call(tenon_lease_acquire, &leases_[n_++], array.get(), &options);
    wait_for_buffer_calls(array.get(), access, std::nullopt);
  }

 private:
  int n_ = 0;
  tenon_lease leases_[2] = {TENON_LEASE_INIT, TENON_LEASE_INIT};
};

template <class Body>
auto run(uint64_t nbytes, Body&& body) {
  std::optional<nb::gil_scoped_release> released;
  if (nbytes >= kWithoutGilFrom) released.emplace();
  return body();
}

template <class Body>
[[gnu::noinline, gnu::cold]] auto run_behind(const Array* source, const Array* destination, uint64_t nbytes,
                                             Body&& body) {
  Behind behind;
  if (source != nullptr) behind.wait(*source, TENON_READ);
  if (destination != nullptr) behind.wait(*destination, TENON_WRITE);
  return run(nbytes, body);
}

// source, destination: null: none.
template <class Body>
auto run(const Array* source, const Array* destination, uint64_t nbytes, Body&& body) {
  if (may_have_buffer_calls()) [[unlikely]]
    return run_behind(source, destination, nbytes, body);
  return run(nbytes, body);
}

}  // namespace

Array copied(const Array& source, DType dtype) {
  return run(&source, nullptr, source.nbytes(), [&] { return source.copy(dtype); });
}

void check_writable(const Array& array) {
  if (array.is_readonly()) raise(PyExc_ValueError, "the array is read-only: write to a.copy()");
}

void copy_elements(const Array& source, const Array& destination) {
  check_writable(destination);
  run(&source, &destination, destination.nbytes(), [&] { source.copy_to(destination); });
}

void fill_elements(const Array& destination, const void* value, DType dtype) {
  check_writable(destination);
  run(nullptr, &destination, destination.nbytes(),
      [&] { call(tenon_array_fill, destination.get(), value, static_cast<tenon_dtype>(dtype)); });
}

void check_device_name(nb::handle device) {
  if (PyUnicode_Check(device.ptr()) == 0 || PyUnicode_CompareWithASCIIString(device.ptr(), "cpu") != 0) {
    raise(PyExc_ValueError, "device is %R: arrays live on 'cpu'", device.ptr());
  }
}

}  // namespace tenon::python
