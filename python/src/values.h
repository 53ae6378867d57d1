// SPDX-License-Identifier: Apache-2.0
//
// Numbers, times, flags and texts from Python's arguments: the one place that checks them. Every error names
// the parameter, the value and what it may be, as python/tenon/_values.py does on the other side.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "python.h"

namespace tenon::python {

// An int from low to high, from anything with __index__ except bool. Throws TypeError, ValueError.
int64_t integer_from(nb::handle value, const char* name, int64_t low = INT64_MIN, int64_t high = INT64_MAX);

// An entry of a shape or of strides: as NumPy, a bool counts. Throws TypeError, OverflowError.
int64_t entry_from(nb::handle value, const char* name);

// An address. Throws TypeError, ValueError.
void* pointer_from(nb::handle value, const char* name);

// Nanoseconds of seconds, at least 0 and not NaN; 2**63 - 1 for more than that. Throws TypeError, ValueError.
int64_t nanoseconds_from(nb::handle seconds, const char* name, const char* or_none = "");

// True or False, also NumPy's. Throws TypeError.
bool flag_from(nb::handle value, const char* name, const char* or_none = "",
               PyObject* error = PyExc_TypeError);
// nullopt for None.
std::optional<bool> flag_or_none_from(nb::handle value, const char* name, PyObject* error = PyExc_TypeError);

// Without a zero byte. Throws TypeError, ValueError.
std::string text_from(nb::handle value, const char* name);

// Parameters of functions that nanobind binds: its own error for a value of another type names neither the
// parameter nor the value. The names are the types in the stub.
struct Seconds {
  nb::handle value;
  // None: -1.
  int64_t nanoseconds(const char* name = "timeout") const {
    return value.is_none() ? -1 : nanoseconds_from(value, name, ", or None");
  }
  bool is_none() const { return value.is_none(); }
};
struct Flag {
  nb::handle value;
  bool get(const char* name) const { return flag_from(value, name); }
};
struct Integer {
  nb::handle value;
  int64_t get(const char* name, int64_t low = INT64_MIN, int64_t high = INT64_MAX) const {
    return integer_from(value, name, low, high);
  }
};
struct Text {
  nb::handle value;
  std::string get(const char* name) const { return text_from(value, name); }
};

}  // namespace tenon::python

namespace nanobind::detail {

// The value is borrowed from the caller's arguments.
#define TENON_VALUE_CASTER(Type, name)                                 \
  template <>                                                          \
  struct type_caster<Type> {                                           \
    NB_TYPE_CASTER(Type, const_name(name))                             \
    bool from_python(handle source, uint8_t, cleanup_list*) noexcept { \
      value.value = source;                                            \
      return true;                                                     \
    }                                                                  \
  };
TENON_VALUE_CASTER(tenon::python::Seconds, "float | None")
TENON_VALUE_CASTER(tenon::python::Flag, "bool")
TENON_VALUE_CASTER(tenon::python::Integer, "int")
TENON_VALUE_CASTER(tenon::python::Text, "str")
#undef TENON_VALUE_CASTER

}  // namespace nanobind::detail
