// SPDX-License-Identifier: Apache-2.0
//
// Calls that work on views of arrays for as long as they run: operators, ufuncs, native functions. A view of
// an array that other processes use, too, needs a lease. Code that has one goes on under it; for other code
// the call takes a lease of its own, as every call does that needs no view.
#pragma once

#include "python.h"
#include "tenon/share.hpp"
#include "waiting.h"

namespace tenon::python {

// Outlives the views that are opened in it. Requires the GIL.
class Turn {
 public:
  Turn() = default;
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { (void)tenon_lease_release(&lease_); }

  // What open() returns, which opens views of the array for this access.
  template <class Open>
  auto view(const Array& array, Access access, Open open) {
    try {
      return open();
    } catch (const Error& e) {
      if (e.code() != TENON_ERR_LEASE_CONFLICT || !is_shared(array)) throw;
    }
    tenon_lease_options options{};
    options.struct_size = sizeof options;
    options.access = static_cast<int32_t>(access);
    options.task = current_task();
    options.timeout_ns = TENON_DEFAULT_TIMEOUT;
    array_ = array;
    call(tenon_lease_acquire, &lease_, array_.get(), &options);
    return open();
  }

 private:
  Array array_;
  tenon_lease lease_ = TENON_LEASE_INIT;
};

}  // namespace tenon::python
