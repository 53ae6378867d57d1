// SPDX-License-Identifier: Apache-2.0
//
// The module tenon._core: refuses interpreters that it is not made for, then adds its parts in order.
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "callbacks.h"
#include "counts.h"
#include "dlpack_import.h"
#include "dtype.h"
#include "errors.h"
#include "exchange_table.h"
#include "feed_parts.h"
#include "fork_guard.h"
#include "frames.h"
#include "from_numpy.h"
#include "function.h"
#include "message_format.h"
#include "names.h"
#include "ndarray.h"
#include "ndarray_parts.h"
#include "numpy_lend.h"
#include "numpy_view.h"
#include "owners.h"
#include "ownership.h"
#include "plugin.h"
#include "waiting.h"

namespace {

bool is_loaded = false;  // under the GIL

bool is_main_interpreter() { return PyInterpreterState_GetID(PyInterpreterState_Get()) == 0; }

// Fails unless the loaded library works with this module: an older one, or another copy of it, may have been
// in the process before.
void check_library() {
  uint32_t major = 0;
  uint32_t minor = 0;
  tenon_abi_version(&major, &minor);
  if (major != TENON_ABI_MAJOR || minor < TENON_ABI_MINOR) {
    Dl_info library{};
    const bool has_path = dladdr(reinterpret_cast<void*>(&tenon_abi_version), &library) != 0;
    throw std::runtime_error(std::string(has_path ? library.dli_fname : "libtenon") + " has the C ABI " +
                             std::to_string(major) + "." + std::to_string(minor) + ", and tenon needs " +
                             std::to_string(TENON_ABI_MAJOR) + "." + std::to_string(TENON_ABI_MINOR) +
                             ": import tenon before the module that loads it, or update it");
  }
  tenon_error error = TENON_ERROR_INIT;
  tenon_dtype dtype;
  if (tenon_dtype_from_name("u1", &dtype, &error) != TENON_OK) throw std::runtime_error(error.message);
}

}  // namespace

NB_MODULE(core, module) {
  using namespace tenon::python;  // NOLINT(google-build-using-namespace)
  if (is_loaded) {                // a second set of types would make two kinds of arrays
    throw std::runtime_error(     // nanobind makes it an ImportError
        "tenon was imported in this process before, and its native part cannot be loaded a second time: "
        "leave tenon in sys.modules");
  }
  check_library();
  module.doc() = "The native part of tenon. Use the package tenon, not this module.";
  module.attr("__version__") = tenon_version();
  nb::set_leak_warnings(false);  // dtypes and names are made once and live as long as the process
  add_callbacks(module);
  add_errors(module);
  add_counts(module);
  add_frames(module);
  owners::add_owners(module);
  add_dtype(module);
  add_ndarray(module);
  add_numpy_view(module);
  add_names(module);
  add_window_methods(module);
  add_element_methods(module);
  add_exchange_methods(module);
  add_exchange_table(module);
  add_memory(module);
  add_devices(module);
  add_share(module);
  add_trace(module);
  add_from_numpy(module);
  add_numpy_lend(module);
  add_function_type(module);
  add_plugin(module);
  add_feed(module);
  add_attached(module);
  add_worker(module);
  add_from_dlpack(module);
  add_waiting(module);
  add_fork_guard(module);
  add_arena(module);
  add_channel(module);
  add_message_format(module);
  add_tensor_pool(module);
  add_leases(module);
  add_ops(module);
  add_ownership(module);
  is_loaded = true;
}

// The function that CPython calls. From 3.13 on the main interpreter runs this also when another one imports,
// and an error raised here would be freed by the other. There the module's slot "multiple interpreters: not
// supported" refuses, and a repeated import is refused above, when the module is executed.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (!is_main_interpreter()) {
    PyErr_SetString(PyExc_ImportError, "tenon works in the main interpreter only, not in subinterpreters");
    return nullptr;
  }
  return PyInit_core();
}
