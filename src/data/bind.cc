// SPDX-License-Identifier: Apache-2.0
#include "data/bind.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "array/access.h"
#include "array/array.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

// A constant array and the view that announces the function's access to it.
struct HeldArray {
  HeldArray(std::string name, Ref<Array> held_array, Access held_access)
      : parameter(std::move(name)),
        access(held_access),
        array(std::move(held_array)),
        view(std::make_unique<HostView>(*array, access)) {}

  std::string parameter;
  Access access;
  Ref<Array> array;
  std::unique_ptr<HostView> view;
};

// Where the value of a parameter comes from.
enum class ArgumentSource : uint8_t { kConstant, kField, kRows, kIndex, kEpoch, kSeed, kEpochSeed, kWorker };

struct NamedSource {
  std::string_view name;
  ArgumentSource source;
};

constexpr std::array kBatchNumbers{NamedSource{"n", ArgumentSource::kRows},
                                   NamedSource{"index", ArgumentSource::kIndex},
                                   NamedSource{"epoch", ArgumentSource::kEpoch},
                                   NamedSource{"seed", ArgumentSource::kSeed},
                                   NamedSource{"epoch_seed", ArgumentSource::kEpochSeed},
                                   NamedSource{"worker", ArgumentSource::kWorker}};

struct Binding {
  ArgumentSource source;
  int32_t field = 0;       // kField
  tenon_value value = {};  // kConstant
  uint64_t mask = 0;       // of a batch number: the bits that its parameter can take
};

tenon_value value_of(const Binding& binding, const tenon_fill_request& request) {
  tenon_value value{};
  switch (binding.source) {
    case ArgumentSource::kConstant: return binding.value;
    case ArgumentSource::kField: value.p = request.fields[binding.field]; break;
    case ArgumentSource::kRows: value.i = request.rows; break;
    case ArgumentSource::kIndex: value.u = request.index & binding.mask; break;
    case ArgumentSource::kEpoch: value.u = request.epoch & binding.mask; break;
    case ArgumentSource::kSeed: value.u = request.seed & binding.mask; break;
    case ArgumentSource::kEpochSeed: value.u = request.epoch_seed & binding.mask; break;
    case ArgumentSource::kWorker: value.i = request.worker; break;
  }
  return value;
}

// The context of the generator. Immutable once bound: workers share it.
struct BoundFunction {
  Ref<NativeFunction> function;
  std::vector<Binding> bindings;  // one for each parameter
  std::vector<HeldArray> held;
};

// 8-bit integers of either sign are bytes: char * takes both.
bool is_byte(DType dtype) { return dtype == DType(TENON_INT, 8) || dtype == DType(TENON_UINT, 8); }

// How many bits of a non-negative number fit into an integer parameter.
int value_bits(DType dtype) {
  return dtype.code == TENON_BOOL ? 1 : dtype.code == TENON_INT ? dtype.bits - 1 : dtype.bits;
}

class Binder {
 public:
  Binder(Ref<NativeFunction> function, const Schema& schema, std::span<const tenon_constant> constants)
      : function_(std::move(function)), schema_(schema), constants_(constants) {}

  std::unique_ptr<BoundFunction> run() {
    check_result();
    for (const Parameter& parameter : function_->prototype().parameters) bind(parameter);
    check_all_fields_taken();
    for (const tenon_constant& constant : constants_) check_is_taken(constant);
    return std::unique_ptr<BoundFunction>(
        new BoundFunction{std::move(function_), std::move(bindings_), std::move(held_)});
  }

 private:
  const std::string& function_name() const { return function_->prototype().name; }

  void check_result() const {
    const Parameter& result = function_->prototype().result;
    if (result.is_void || result.is_status) return;
    throw_error(Code::kType, "'", function_name(), "' returns ", result.type_text(),
                ": a generator returns int (0 for success) or nothing");
  }

  void bind(const Parameter& parameter) {
    const int32_t field = schema_.find(parameter.name);
    if (field >= 0) return bind_field(parameter, field);
    for (const tenon_constant& constant : constants_) {
      if (parameter.name == constant.name) return bind_constant(parameter, constant);
    }
    const auto number = std::ranges::find(kBatchNumbers, parameter.name, &NamedSource::name);
    if (number != kBatchNumbers.end()) return bind_number(parameter, number->source);
    const bool is_named = !parameter.name.empty();
    throw_error(
        Code::kValue, is_named ? concat("parameter '", parameter.name, "'") : "an unnamed parameter", " of '",
        function_name(), "' is not bound: it is neither a field (", field_names(),
        "), nor a constant, nor one of n, index, epoch, seed, epoch_seed, worker",
        is_named ? concat("; in Python a constant is tn.c_function(..., ", parameter.name, "=value)") : "");
  }

  void bind_field(const Parameter& parameter, int32_t i) {
    const SchemaField& field = schema_.fields()[static_cast<size_t>(i)];
    if (!parameter.is_pointer) {
      throw_error(Code::kType, "parameter '", parameter.name, "' of '", function_name(), "' is ",
                  parameter.type_text(), ", but a field of the batch has that name: make it a pointer");
    }
    check_pointee(parameter, field.dtype, "field");
    if (parameter.is_const) {
      throw_error(Code::kType, "parameter '", parameter.name, "' of '", function_name(), "' is ",
                  parameter.type_text(), ": the function could not fill the field");
    }
    bindings_.push_back({.source = ArgumentSource::kField, .field = i});
  }

  void check_pointee(const Parameter& parameter, DType dtype, std::string_view what) const {
    if (!parameter.opaque.empty()) {
      throw_error(Code::kType, what, " '", parameter.name, "' is an array, but the parameter of '",
                  function_name(), "' is ", parameter.type_text(), ", which takes an address");
    }
    if (parameter.is_void || parameter.dtype == dtype || (is_byte(parameter.dtype) && is_byte(dtype))) return;
    throw_error(Code::kType, what, " '", parameter.name, "' is ", dtype.name(), ", but the parameter of '",
                function_name(), "' is ", parameter.type_text());
  }

  void bind_constant(const Parameter& parameter, const tenon_constant& constant) {
    Binding binding{.source = ArgumentSource::kConstant, .value = constant.value};
    if (parameter.is_pointer) {
      binding.value = {};
      if (constant.array != nullptr) {
        binding.value.p = hold(parameter, constant.array);
      } else if (parameter.is_void) {
        binding.value.p = constant.value.p;
      }
    } else if (constant.array != nullptr) {
      throw_error(Code::kType, "constant '", parameter.name, "' is an array, but the parameter of '",
                  function_name(), "' is ", parameter.type_text());
    } else if (parameter.is_integer()) {
      check_range(parameter, constant.value.i);
    }
    bindings_.push_back(binding);
  }

  void check_range(const Parameter& parameter, int64_t value) const {
    const DType dtype = parameter.dtype;
    if (dtype.bits == 64) return;
    const int64_t high = (int64_t{1} << value_bits(dtype)) - 1;
    const int64_t low = dtype.code == TENON_INT ? -high - 1 : 0;
    if (value < low || value > high) {
      throw_error(Code::kValue, "constant '", parameter.name, "' of '", function_name(), "' is ", value,
                  ", but ", dtype.name(), " holds ", low, " to ", high);
    }
  }

  void* hold(const Parameter& parameter, tenon_array* handle) {
    Ref<Array> array = Ref<Array>::share(reinterpret_cast<Array*>(handle));
    check_pointee(parameter, array->dtype(), "constant");
    if (!array->is_contiguous()) {
      throw_error(Code::kBuffer, "constant '", parameter.name, "' of shape ", shape_text(array->shape()),
                  " and strides ", shape_text(array->strides()), " is not C-contiguous: ",
                  parameter.is_const ? "pass a copy" : "pass an array that was made in C order");
    }
    if (array->is_readonly() && !parameter.is_const) {
      throw_error(Code::kBuffer, "constant '", parameter.name, "' is read-only, but '", function_name(),
                  "' takes it as ", parameter.type_text(),
                  ": declare the parameter const or pass a writable array");
    }
    void* const data = array->data();
    try {
      held_.emplace_back(parameter.name, std::move(array),
                         parameter.is_const ? Access::kRead : Access::kWrite);
    } catch (const Error& e) {
      if (e.code() != Code::kLeaseConflict) throw;
      throw_error(Code::kLeaseConflict, "constant '", parameter.name, "' of '", function_name(),
                  "' cannot be held for all calls of a feed: ", e.what(),
                  ". Pass a copy as the constant, and results on in a field of the batch");
    }
    return data;
  }

  void bind_number(const Parameter& parameter, ArgumentSource source) {
    if (!parameter.is_integer()) {
      throw_error(Code::kType, "parameter '", parameter.name, "' of '", function_name(), "' is ",
                  parameter.type_text(), ", but the ", parameter.name, " of a batch is an integer");
    }
    const DType dtype = parameter.dtype;
    if (source == ArgumentSource::kRows) {
      check_range(parameter, schema_.rows());
    } else if (source != ArgumentSource::kSeed && source != ArgumentSource::kEpochSeed && dtype.bits < 32) {
      throw_error(Code::kType, "parameter '", parameter.name, "' of '", function_name(), "' is ",
                  dtype.name(), ": the ", parameter.name, " of a batch needs at least 32 bits");
    }
    bindings_.push_back({.source = source, .mask = ~uint64_t{0} >> (64 - value_bits(dtype))});
  }

  void check_all_fields_taken() const {
    for (size_t i = 0; i < schema_.fields().size(); ++i) {
      const auto takes = [i](const Binding& b) {
        return b.source == ArgumentSource::kField && b.field == static_cast<int32_t>(i);
      };
      if (std::ranges::any_of(bindings_, takes)) continue;
      throw_error(Code::kValue, "no parameter of '", function_name(), "' takes the field '",
                  schema_.fields()[i].name, "': ", function_->prototype().text);
    }
  }

  void check_is_taken(const tenon_constant& constant) const {
    const std::string_view name = constant.name;
    const auto& parameters = function_->prototype().parameters;
    if (std::ranges::find(parameters, name, &Parameter::name) == parameters.end()) {
      throw_error(Code::kValue, "no parameter of '", function_name(), "' takes the constant '", name,
                  "': ", function_->prototype().text);
    }
    if (schema_.find(name) >= 0) {
      throw_error(Code::kValue, "'", name,
                  "' is a field of the batch and a constant: leave out the constant");
    }
  }

  std::string field_names() const {
    std::string names;
    for (const SchemaField& field : schema_.fields()) names += concat(names.empty() ? "" : ", ", field.name);
    return names;
  }

  Ref<NativeFunction> function_;
  const Schema& schema_;
  const std::span<const tenon_constant> constants_;
  std::vector<Binding> bindings_;
  std::vector<HeldArray> held_;
};

int32_t fill_bound(void* context, const tenon_fill_request* request, char* message, size_t message_size) {
  const auto& bound = *static_cast<const BoundFunction*>(context);
  std::array<tenon_value, kMaxParameters> arguments;
  for (size_t i = 0; i < bound.bindings.size(); ++i) arguments[i] = value_of(bound.bindings[i], *request);
  try {
    return static_cast<int32_t>(bound.function->call(arguments.data()).i);
  } catch (const Error& e) {
    std::snprintf(message, message_size, "%s", e.what());
    return -1;
  }
}

void drop_bound(void* context) { delete static_cast<BoundFunction*>(context); }

}  // namespace

tenon_generator bind_function(Ref<NativeFunction> function, const Schema& schema,
                              std::span<const tenon_constant> constants) {
  for (const tenon_constant& constant : constants) {
    if (constant.name == nullptr) throw_error(Code::kValue, "a constant has no name");
    const auto has_name = [&](const tenon_constant& other) {
      return other.name != nullptr && std::string_view(other.name) == constant.name;
    };
    if (std::ranges::count_if(constants, has_name) > 1) {
      throw_error(Code::kValue, "two constants are named '", constant.name, "'");
    }
  }
  tenon_generator generator{};
  generator.struct_size = sizeof generator;
  generator.flags = function->is_threadsafe() ? TENON_THREADSAFE : 0;
  generator.name = function->prototype().name.c_str();
  generator.fill = fill_bound;
  generator.drop = drop_bound;
  std::unique_ptr<BoundFunction> bound = Binder(std::move(function), schema, constants).run();
  const auto tells_batches_apart = [](const Binding& b) {
    return b.source == ArgumentSource::kIndex || b.source == ArgumentSource::kSeed;
  };
  if (std::ranges::any_of(bound->bindings, tells_batches_apart)) generator.flags |= TENON_IS_INDEXED;
  generator.context = bound.release();
  return generator;
}

void refuse_written_constants(const tenon_generator& generator) {
  if (generator.fill != fill_bound) return;
  const auto& bound = *static_cast<const BoundFunction*>(generator.context);
  const auto written = std::ranges::find(bound.held, Access::kWrite, &HeldArray::access);
  if (written == bound.held.end()) return;
  throw_error(Code::kValue, "constant '", written->parameter, "' of '", bound.function->prototype().name,
              "' is an array that is not const, and the workers are processes: each of them would write to a "
              "copy of its own. Declare the parameter const if the function only reads it; or let threads "
              "call the function, without processes; or pass results on in a field of the batch");
}

}  // namespace tenon::impl
