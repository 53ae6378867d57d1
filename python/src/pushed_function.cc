// SPDX-License-Identifier: Apache-2.0
//
// Native functions as the bodies of ops: a worker calls them without ever touching Python.
#include <nanobind/stl/string.h>

#include "fork_gate.h"
#include "function.h"
#include "ndarray.h"
#include "op.h"
#include "owners.h"

namespace tenon::python {
namespace {

// A call to be made by an op. The arrays behind its pointers are kept by the op.
class PushedCall final : public Result {
 public:
  PushedCall(const Function& function, std::vector<tenon_value> arguments)
      : function_(function), arguments_(std::move(arguments)) {}

  // Any thread. A thread that waits for the op with the GIL, and so runs it, releases the GIL.
  void run(tenon_op* op) {
    PyThreadState* const state = owners::holds_gil() ? PyEval_SaveThread() : nullptr;
    tenon_error error = TENON_ERROR_INIT;
    tenon_status status = TENON_OK;
    {
      const GatePass pass;
      status = tenon_function_call(function_.get(), static_cast<int32_t>(arguments_.size()),
                                   arguments_.data(), &result_, &error);
    }
    if (state != nullptr) PyEval_RestoreThread(state);
    if (status == TENON_OK) {
      tenon_op_complete(op);
    } else {
      tenon_op_fail(op, error.op_code, error.message, nullptr, nullptr);
    }
  }

  nb::object get() const override { return result_object(function_.result(), result_); }

 private:
  const Function function_;
  const std::vector<tenon_value> arguments_;
  tenon_value result_{};
};

bool is_written(const Uses& uses, const tenon_array* array) {
  for (const tenon_use& use : uses.uses) {
    if (use.array == array && use.access == TENON_WRITE) return true;
  }
  return false;
}

NativeOp push_function(const Function& function, const nb::list& arguments, const nb::list& rows,
                       const char* name, int32_t on_conflict, const nb::list& renewed) {
  Renewals renewals(renewed);
  check_argument_count(function, arguments.size());
  Uses uses = uses_from(rows);
  // All at one moment: the code below may run Python, and an NDArray may get other memory.
  std::vector<Array> taken(arguments.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    const nb::object argument = arguments[i];
    if (is_ndarray(argument.ptr())) taken[i] = share(argument.ptr());
  }
  std::vector<tenon_value> values(arguments.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    const nb::object argument = taken[i] ? owned(wrap(std::move(taken[i]))) : nb::object(arguments[i]);
    const tenon_parameter parameter = function.parameter(at);
    if (parameter.is_pointer == 0) {
      values[i] = number_for(function, at, argument);
    } else if (!argument.is_none()) {
      const bool is_read = parameter.is_const != 0;
      Array array =
          pointer_array(function, at, argument, is_read ? LendMode::kReadonly : LendMode::kWritable);
      values[i].p = array.data();
      if (is_read || !is_written(uses, array.get())) {
        uses.add(std::move(array), is_read ? Access::kRead : Access::kWrite);
      }
    }
  }
  auto* const call = new PushedCall(function, std::move(values));
  OwnedWork owned_work;
  owned_work.work.struct_size = sizeof owned_work.work;
  owned_work.work.context = call;
  // Not noexcept: the function may end its thread.
  owned_work.work.run = [](void* c, tenon_op* op) { static_cast<PushedCall*>(c)->run(op); };
  owned_work.work.drop = [](void* c) noexcept { static_cast<PushedCall*>(c)->release(); };
  owned_work.work.name = name;
  call->retain();
  return push(std::move(owned_work), on_conflict, uses.uses, ResultRef(call), &renewals);
}

}  // namespace

void add_pushed_functions(nb::module_& module) {
  module.def(
      "push_function", push_function, nb::arg("function"), nb::arg("arguments"), nb::arg("uses"),
      nb::arg("name"), nb::arg("on_conflict"), nb::arg("renewed") = nb::list(),
      nb::sig("def push_function(function: Function, arguments: list[Any], uses: list[tuple[NDArray, "
              "bool, bool]], name: str, on_conflict: int, renewed: list[tuple[NDArray, NDArray]] = []) -> "
              "NativeOp"),
      "An op whose body calls a native function. Raises what a call with these arguments would raise.");
}

}  // namespace tenon::python
