// SPDX-License-Identifier: Apache-2.0
//
// Bodies of ops in Python: their calls, and what they leave behind. tenon/_sync/bodies.py and results.py have
// the messages.
#include <algorithm>
#include <string>
#include <utility>

#include "callbacks.h"
#include "counts.h"
#include "fork_guard.h"
#include "ndarray.h"
#include "numpy_view.h"
#include "op.h"
#include "owners.h"
#include "sites.h"
#include "waiting.h"

namespace tenon::python {
namespace {

// The exception in flight, as an object. In a catch block.
nb::object caught_exception() {
  set_error_from_exception();
  const nb::python_error error;  // takes it
  if (error.matches(PyExc_KeyboardInterrupt)) note_interrupt();
  return nb::borrow(error.value());
}

// The arguments of a call: the NumPy arrays among them belong to the body until the function has ended, and
// have no elements from then on.
using Given = std::vector<nb::object>;

// The body of an op and its result. Under the GIL, but for the release of the node.
class Body final : public owners::Node, public Result {
 public:
  explicit Body(PythonCall call)
      : Node([](Node* node) { static_cast<Body*>(node)->drop(); }), call_(std::move(call)) {}

  nb::object get() const override { return result_; }
  PyObject* kept() const noexcept override { return result_.ptr(); }

  static void run(void* context, tenon_op* op) noexcept;

 private:
  // Handles of the op may ask for the result later, and the push may not have ended yet.
  void drop() noexcept {
    {
      PythonCall dropped = std::move(call_);
      call_.renewals = std::move(dropped.renewals);
    }
    release();
  }

  void run(tenon_op* op);
  Given make_arguments() const;
  nb::object call_function(const Given& given) const;
  nb::object result_for_caller(const nb::object& result, const Given& given) const;
  nb::object own(nb::handle value, const Given& given) const;
  void end_views(Given& given);
  bool has_outlived(const tenon_op* op) const;
  nb::object where_views_are_kept() const;
  void fail(tenon_op* op, const nb::object& exception, Given& given) const;

  PythonCall call_;
  nb::object where_kept_;  // what refers to an array that outlives the function; null: nothing
  nb::object result_;
};

Given Body::make_arguments() const {
  const char* const site = site_of_function(call_.function);
  Given given;
  given.reserve(call_.arguments.size());
  for (const BodyArgument& argument : call_.arguments) {
    given.push_back(argument.memory ? numpy_view_taken_at(argument.memory, !argument.output.is_valid(), site)
                                    : argument.value);
  }
  return given;
}

nb::object Body::call_function(const Given& given) const {
  const Py_ssize_t n_named = PyTuple_Size(call_.keywords.ptr());
  const Py_ssize_t n = static_cast<Py_ssize_t>(given.size()) - n_named;
  const nb::object positional = owned(PyTuple_New(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    check_python(PyTuple_SetItem(positional.ptr(), i, given[static_cast<size_t>(i)].inc_ref().ptr()));
  }
  nb::dict named;
  for (Py_ssize_t i = 0; i < n_named; ++i) {
    named[nb::handle(PyTuple_GetItem(call_.keywords.ptr(), i))] = given[static_cast<size_t>(n + i)];
  }
  return callback(Callback::kCallBody)(call_.function, positional, named);
}

// The NDArray of the caller, if the value is an array that the function got to write; else the value.
nb::object Body::own(nb::handle value, const Given& given) const {
  for (size_t i = 0; i < given.size(); ++i) {
    if (call_.arguments[i].output.is_valid() && value.is(given[i])) return call_.arguments[i].output;
  }
  return nb::borrow(value);
}

nb::object Body::result_for_caller(const nb::object& result, const Given& given) const {
  if (result.is_none()) return result;
  std::string are_overwritten;
  nb::list arguments;
  for (size_t i = 0; i < given.size(); ++i) {
    are_overwritten += static_cast<char>(call_.arguments[i].is_overwritten);
    arguments.append(given[i]);
  }
  callback(Callback::kCheckResult)(call_.function, arguments, call_.keywords,
                                   nb::bytes(are_overwritten.data(), are_overwritten.size()), result);
  if (PyTuple_CheckExact(result.ptr()) == 0) return own(result, given);
  const Py_ssize_t n = PyTuple_Size(result.ptr());
  nb::object items = owned(PyTuple_New(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    nb::object item = own(PyTuple_GetItem(result.ptr(), i), given);
    check_python(PyTuple_SetItem(items.ptr(), i, item.release().ptr()));
  }
  return items;
}

void Body::end_views(Given& given) {
  while (!given.empty()) {
    const bool is_view = static_cast<bool>(call_.arguments[given.size() - 1].memory);
    if (is_view && references_to(given.back().ptr()) > 1) {               // it is kept
      if (!where_kept_.is_valid()) where_kept_ = where_views_are_kept();  // while it shows the memory
      empty_numpy_view(given.back(), false, site_of_function(call_.function));
    }
    given.pop_back();
  }
}

nb::object Body::where_views_are_kept() const {
  nb::list arrays;
  for (const BodyArgument& argument : call_.arguments) {
    if (argument.memory) arrays.append(argument.memory);
  }
  return callback(Callback::kWhereViewsAreKept)(arrays);
}

// A search for views in another thread may refer for a moment to what the body has dropped.
bool Body::has_outlived(const tenon_op* op) const {
  if (tenon_op_has_views(op) == 0) return false;
  callback(Callback::kWaitForSearches)();
  if (tenon_op_has_views(op) == 0) return false;
  nb::module_::import_("gc").attr("collect")();  // a view in a dead cycle does not live on
  owners::drain();
  return tenon_op_has_views(op) != 0;
}

// Neither the body nor the exception keeps memory of the arrays.
void Body::fail(tenon_op* op, const nb::object& exception, Given& given) const {
  nb::list views;
  std::string are_read;
  for (size_t i = 0; i < call_.arguments.size(); ++i) {
    const BodyArgument& argument = call_.arguments[i];
    are_read += static_cast<char>(argument.memory && !argument.output.is_valid());
    if (argument.memory && i < given.size()) views.append(given[i]);
  }
  given.clear();
  const nb::object text = callback(Callback::kEndFailedBody)(
      exception, views, call_.function, nb::bytes(are_read.data(), are_read.size()), call_.keywords);
  tenon_op_fail(op, 0, nb::cast<const char*>(text), new owners::Object(exception), owners::release);
}

void Body::run(tenon_op* op) {
  Given given;
  nb::object result;
  nb::object exception;
  try {
    if (call_.check.is_valid()) call_.check();
    given = make_arguments();
    result = result_for_caller(call_function(given), given);
    end_views(given);
  } catch (...) {
    exception = caught_exception();
  }
  if (!exception.is_valid() && has_outlived(op)) {
    if (!where_kept_.is_valid()) where_kept_ = where_views_are_kept();
    exception = callback(Callback::kLeaseEscaped)(callback(Callback::kDescribeOutlived)(where_kept_));
    result.reset();
  }
  if (exception.is_valid()) return fail(op, exception, given);
  result_ = std::move(result);
  tenon_op_complete(op);
}

// Calls function, which ends the op. If it throws instead, the op fails.
template <class Function>
void end_op_by(Function function, tenon_op* op) noexcept {
  constexpr const char* kUntold = "its failure could not be described";
  try {
    function();
  } catch (nb::python_error& error) {
    discard_as_unraisable(error, "an op of tenon");
    tenon_op_fail(op, 0, kUntold, nullptr, nullptr);
  } catch (...) {
    tenon_op_fail(op, 0, kUntold, nullptr, nullptr);
  }
}

void Body::run(void* context, tenon_op* op) noexcept {
  const EngineThread gil;
  const InBody in_body;
  auto& self = *static_cast<Body*>(static_cast<owners::Node*>(context));
  const auto end_op = [&] {
    if (self.call_.renewals != nullptr) self.call_.renewals->accept();
    self.run(op);
  };
  end_op_by(end_op, op);
}

}  // namespace

NativeOp push_python(PythonCall call, Push push) {
  push.renewals = call.renewals.get();
  auto* const self = new Body(std::move(call));
  self->retain();
  ResultRef result(self);
  OwnedWork owned;
  owned.work.context = static_cast<owners::Node*>(self);
  owned.work.run = Body::run;
  owned.work.drop = owners::release;
  owned.work.flags = TENON_NEEDS_LOCK;
  return tenon::python::push(std::move(owned), push, std::move(result));
}

}  // namespace tenon::python
