// SPDX-License-Identifier: Apache-2.0
//
// Native functions as Python sees them: what binds an argument to a parameter, and the class Function.
#pragma once

#include <optional>

#include "from_numpy.h"
#include "python.h"
#include "tenon/feed.hpp"

namespace tenon::python {

// The name of a parameter for messages: "parameter 'data' (float32 *) of 'fill'".
std::string parameter_text(const Function& function, int32_t i);

// A number for a parameter that is no pointer. Throws TypeError, OverflowError.
tenon_value number_for(const Function& function, int32_t i, nb::handle value);

// An array for a pointer, sharing memory: any NDArray, NumPy array, buffer or DLPack tensor. mode: of a NumPy
// array. Its dtype and layout are not checked. Throws TypeError.
Array array_for(const Function& function, int32_t i, nb::handle value, LendMode mode = LendMode::kWritable);

// The same, of the dtype and layout that the function takes. Throws TypeError, BufferError.
Array pointer_array(const Function& function, int32_t i, nb::handle value, LendMode mode);

// The address that an int or an object of ctypes holds, for a pointer to void or to an unknown type. Empty:
// value is none of these. Throws TypeError if it is an array and the type is unknown.
std::optional<void*> address_for(const Function& function, int32_t i, nb::handle value);

// Throws TypeError.
void check_argument_count(const Function& function, size_t n);

// None for a status and where there is no result.
nb::object result_object(const tenon_parameter& result, const tenon_value& value);

void add_function_type(nb::module_& module);

}  // namespace tenon::python
