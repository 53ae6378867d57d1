// SPDX-License-Identifier: Apache-2.0
//
// The section "native functions" of tenon.h.
#include "capi/boundary.h"
#include "data/bind.h"
#include "data/native_function.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

namespace {

NativeFunction* unwrap(tenon_function* function) { return reinterpret_cast<NativeFunction*>(function); }
const NativeFunction* unwrap(const tenon_function* function) {
  return reinterpret_cast<const NativeFunction*>(function);
}
tenon_function* wrap(Ref<NativeFunction> function) {
  return reinterpret_cast<tenon_function*>(function.detach());
}

bool is_threadsafe(uint32_t flags, const char* function) {
  check_flags(flags, TENON_THREADSAFE, function);
  return (flags & TENON_THREADSAFE) != 0;
}

tenon_parameter described(const Parameter& parameter) {
  return {parameter.name.c_str(), parameter.is_pointer,
          parameter.is_const,     parameter.opaque.empty() ? int32_t{parameter.is_void} : 2,
          parameter.is_status,    parameter.dtype};
}

void check_count(const Prototype& prototype, int32_t n) {
  const size_t expected = prototype.parameters.size();
  if (n < 0 || static_cast<size_t>(n) != expected) {
    throw_error(Code::kValue, "'", prototype.name, "' takes ", expected, " arguments, ", n, " given");
  }
}

}  // namespace

extern "C" {

tenon_status tenon_function_load(const char* path, const char* prototype, uint32_t flags,
                                 tenon_function** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    *out = wrap(NativeFunction::load(path, not_null(prototype, "prototype"),
                                     is_threadsafe(flags, "tenon_function_load")));
  });
}

tenon_status tenon_function_create(void* address, const char* prototype, uint32_t flags, tenon_function** out,
                                   tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    *out = wrap(NativeFunction::create(address, not_null(prototype, "prototype"),
                                       is_threadsafe(flags, "tenon_function_create")));
  });
}

void tenon_function_retain(tenon_function* function) { unwrap(function)->retain(); }

void tenon_function_release(tenon_function* function) {
  if (function != nullptr) unwrap(function)->release();
}

const char* tenon_function_name(const tenon_function* function) {
  return unwrap(function)->prototype().name.c_str();
}

const char* tenon_function_prototype(const tenon_function* function) {
  return unwrap(function)->prototype().text.c_str();
}

int32_t tenon_function_parameter_count(const tenon_function* function) {
  return static_cast<int32_t>(unwrap(function)->prototype().parameters.size());
}

tenon_parameter tenon_function_parameter(const tenon_function* function, int32_t i) {
  const Prototype& prototype = unwrap(function)->prototype();
  if (i == -1) return described(prototype.result);
  if (i < 0 || static_cast<size_t>(i) >= prototype.parameters.size()) return {"", 0, 0, 1, 0, {0, 0, 0}};
  return described(prototype.parameters[static_cast<size_t>(i)]);
}

tenon_status tenon_function_call(tenon_function* function, int32_t n, const tenon_value* arguments,
                                 tenon_value* result, tenon_error* error) {
  return guarded(error, [&] {
    NativeFunction& native = *unwrap(not_null(function, "function"));
    check_count(native.prototype(), n);
    if (n > 0) not_null(arguments, "arguments");
    const tenon_value value = native.call(arguments);
    if (native.prototype().result.is_status && value.i != 0) {
      throw Error(Code::kOp, concat("'", native.prototype().name, "' returned ", value.i),
                  static_cast<int32_t>(value.i));
    }
    if (result != nullptr) *result = value;
  });
}

tenon_status tenon_function_bind(tenon_function* function, const tenon_schema* schema, int32_t n,
                                 const tenon_constant* constants, tenon_generator* out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(function, "function");
    not_null(schema, "schema");
    not_null(out, "out");
    *out = bind_function(Ref<NativeFunction>::share(unwrap(function)),
                         *reinterpret_cast<const Schema*>(schema), list_of(n, constants, "constants"));
  });
}

}  // extern "C"
