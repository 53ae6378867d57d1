// SPDX-License-Identifier: Apache-2.0
//
// Configurations of plug-ins: JSON that others have made. The library says whether a text is an object; what
// plug-ins read values with stays within the text, also of texts that are none. The first byte is the length
// of the key that is looked for, which follows; the rest is the text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/json.h"
#include "tenon/plugin.hpp"

namespace tenon::impl {
namespace {

template <class T>
void look_for(const plugin::Config& config, const std::string& key) {
  try {
    const auto value = config.find<T>(key);
    if (value.has_value() && !config.has(key)) std::abort();
  } catch (const std::runtime_error&) {
    if (!config.has(key)) std::abort();
  }
}

void fuzz_one(std::string_view bytes) {
  if (bytes.empty()) return;
  const size_t key_size = std::min<size_t>(static_cast<unsigned char>(bytes[0]) % 32, bytes.size() - 1);
  const std::string key(bytes.substr(1, key_size));
  const std::string_view text = bytes.substr(1 + key_size);
  (void)is_json_object(text);
  const plugin::Config config{std::string(text)};
  look_for<int8_t>(config, key);
  look_for<uint64_t>(config, key);
  look_for<double>(config, key);
  look_for<bool>(config, key);
  look_for<std::string>(config, key);
}

}  // namespace
}  // namespace tenon::impl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tenon::impl::fuzz_one({reinterpret_cast<const char*>(data), size});
  return 0;
}
