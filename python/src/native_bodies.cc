// SPDX-License-Identifier: Apache-2.0
//
// Bodies of ops without Python: native functions, and what the library does with elements as NumPy would. A
// worker runs them without ever touching Python.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "assignment.h"
#include "devices.h"
#include "fork_guard.h"
#include "function.h"
#include "ndarray.h"
#include "op.h"
#include "owners.h"

namespace tenon::python {
namespace {

// The work of an op that calls Call::call(error), a function without Python. The op keeps the arrays.
template <class Call>
class NativeBody final : public Result {
 public:
  explicit NativeBody(Call call) : call_(std::move(call)) {}

  nb::object get() const override { return call_.result(); }

  static NativeOp push(Call call, const Push& push) {
    auto* const body = new NativeBody(std::move(call));
    OwnedWork owned;
    owned.work.context = body;
    // Not noexcept: the function may end its thread.
    owned.work.run = [](void* context, tenon_op* op) { static_cast<NativeBody*>(context)->run(op); };
    owned.work.drop = [](void* context) noexcept { static_cast<NativeBody*>(context)->release(); };
    body->retain();
    return tenon::python::push(std::move(owned), push, ResultRef(body));
  }

 private:
  // Any thread. A thread that waits for the op with the GIL, and so runs it, releases the GIL.
  void run(tenon_op* op) {
    PyThreadState* const state = owners::holds_gil() ? PyEval_SaveThread() : nullptr;
    tenon_error error = TENON_ERROR_INIT;
    tenon_status status = TENON_OK;
    {
      const ForkGuard guard;
      status = call_.call(&error);
    }
    if (state != nullptr) PyEval_RestoreThread(state);
    if (status == TENON_OK) {
      tenon_op_complete(op);
    } else {
      tenon_op_fail(op, error.op_code, error.message, nullptr, nullptr);
    }
  }

  Call call_;
};

struct FunctionCall {
  tenon_status call(tenon_error* error) {
    return tenon_function_call(function.get(), static_cast<int32_t>(arguments.size()), arguments.data(),
                               &value, error);
  }
  nb::object result() const { return result_object(function.result(), value); }

  Function function;
  std::vector<tenon_value> arguments;
  tenon_value value{};
};

// One element of a dtype that holds it.
struct Element {
  Element(int64_t number) : dtype(dtype_of<int64_t>()) { std::memcpy(bytes, &number, sizeof number); }
  Element(double number) : dtype(dtype_of<double>()) { std::memcpy(bytes, &number, sizeof number); }

  tenon_dtype dtype;
  alignas(8) unsigned char bytes[8];
};

struct FillCall {
  tenon_status call(tenon_error* error) const {
    return tenon_array_fill(destination, element.bytes, element.dtype, error);
  }
  nb::object result() const { return nb::none(); }

  tenon_array* destination;
  Element element;
};

struct CopyCall {
  tenon_status call(tenon_error* error) const { return tenon_array_copy_to(source, destination, error); }
  nb::object result() const { return nb::none(); }

  tenon_array* source;
  tenon_array* destination;
};

bool is_written(const Uses& uses, const tenon_array* array) {
  for (const tenon_use& use : uses.uses) {
    if (use.array == array && use.access == TENON_WRITE) return true;
  }
  return false;
}

// A dtype of the host that NumPy has, too.
bool is_plain(const Array& array) {
  const DType dtype = array.dtype();
  const bool is_number = is_integer(dtype) || dtype.code() == TENON_FLOAT || dtype.code() == TENON_COMPLEX ||
                         dtype.code() == TENON_BOOL;
  return is_number && dtype.lanes() == 1 && dtype.bits() % 8 == 0 && !is_on_device(array);
}

// The bits of a float's significand.
int digits_of(DType dtype) { return dtype.bits() == 64 ? DBL_MANT_DIG : FLT_MANT_DIG; }

// Value as an element that dtype holds, or, if it is a float, rounds in one way only and without a flag of
// the processor. nullopt: it is something else.
std::optional<Element> element_of(nb::handle value, DType dtype) {
  const bool is_float = dtype.code() == TENON_FLOAT && dtype.bits() >= 32;
  if (!is_float && !is_integer(dtype) && dtype.code() != TENON_BOOL) return std::nullopt;
  if (PyBool_Check(value.ptr())) return Element(int64_t{value.ptr() == Py_True});
  if (PyLong_CheckExact(value.ptr())) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    const bool holds = is_float ? std::abs(static_cast<double>(number)) <= std::ldexp(1, digits_of(dtype))
                       : is_integer(dtype) ? fits(number, dtype)
                                           : true;
    if (overflow != 0 || !holds) return std::nullopt;
    return Element(number);
  }
  if (!is_float || !PyFloat_CheckExact(value.ptr())) return std::nullopt;
  const double number = PyFloat_AsDouble(value.ptr());
  const double size = std::abs(number);
  const bool is_normal = size >= FLT_MIN && size <= FLT_MAX;
  if (dtype.bits() == 32 && std::isfinite(number) && number != 0 && !is_normal) return std::nullopt;
  return Element(number);
}

}  // namespace

NativeOp push_function(const Function& function, const std::vector<nb::object>& arguments, Push push) {
  check_argument_count(function, arguments.size());
  // All at one moment: the code below may run Python, and an NDArray may get other memory.
  std::vector<Array> taken(arguments.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    if (is_ndarray(arguments[i].ptr())) taken[i] = push.memory_of(arguments[i]);
  }
  FunctionCall call{function, std::vector<tenon_value>(arguments.size())};
  for (size_t i = 0; i < taken.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    const nb::object argument = taken[i] ? owned(wrap(std::move(taken[i]))) : arguments[i];
    const tenon_parameter parameter = function.parameter(at);
    if (parameter.is_pointer == 0) {
      call.arguments[i] = number_for(function, at, argument);
    } else if (argument.is_none()) {
      continue;
    } else if (const std::optional<void*> address = address_for(function, at, argument)) {
      call.arguments[i].p = *address;
    } else {
      const bool is_read = parameter.is_const != 0;
      Array array =
          pointer_array(function, at, argument, is_read ? LendMode::kReadonly : LendMode::kWritable);
      call.arguments[i].p = array.data();
      if (is_read || !is_written(push.uses, array.get())) {
        push.uses.add(std::move(array), is_read ? Access::kRead : Access::kWrite);
      }
    }
  }
  return NativeBody<FunctionCall>::push(std::move(call), push);
}

std::optional<NativeOp> push_fill(const Array& destination, nb::handle value, const Push& push) {
  if (!is_plain(destination)) return std::nullopt;
  const std::optional<Element> element = element_of(value, destination.dtype());
  if (!element) return std::nullopt;
  return NativeBody<FillCall>::push({destination.get(), *element}, push);
}

std::optional<NativeOp> push_plain_copy(const Array& source, const Array& destination, const Push& push) {
  const bool is_alike =
      source.dtype() == destination.dtype() && std::ranges::equal(source.shape(), destination.shape());
  if (!is_alike || !is_plain(source) || !is_plain(destination)) return std::nullopt;
  return NativeBody<CopyCall>::push({source.get(), destination.get()}, push);
}

}  // namespace tenon::python
