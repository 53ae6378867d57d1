// SPDX-License-Identifier: Apache-2.0
//
// C prototypes, as users write them. Whatever the text is, it is read or refused with an Error; what was read
// is read again from its own text, with the same result.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/native_call.h"
#include "data/prototype.h"

namespace tenon::impl {
namespace {

bool are_equal(const Parameter& a, const Parameter& b) {
  return a.name == b.name && a.dtype == b.dtype && a.is_pointer == b.is_pointer && a.is_const == b.is_const &&
         a.is_void == b.is_void && a.is_status == b.is_status;
}

void fuzz_one(std::string_view text) {
  Prototype read;
  try {
    read = parse_prototype(text);
  } catch (const Error&) {
    return;
  }
  if (read.name.empty() || read.parameters.size() > static_cast<size_t>(kMaxParameters)) std::abort();
  const NativeCall call(reinterpret_cast<void*>(&are_equal), read);  // made, and not called
  const Prototype again = parse_prototype(read.text);
  if (again.name != read.name || again.text != read.text || !are_equal(again.result, read.result) ||
      again.parameters.size() != read.parameters.size()) {
    std::abort();
  }
  for (size_t i = 0; i < read.parameters.size(); ++i) {
    if (!are_equal(again.parameters[i], read.parameters[i])) std::abort();
  }
}

}  // namespace
}  // namespace tenon::impl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tenon::impl::fuzz_one({reinterpret_cast<const char*>(data), size});
  return 0;
}
