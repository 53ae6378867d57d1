// SPDX-License-Identifier: Apache-2.0
//
// Handles, which the pickle of a shared array contains, and links, with which a worker process finds its
// feed. They come from other processes, so they may be any bytes. If the first byte of the input is odd, the
// rest is combined with a valid handle (exclusive or). Otherwise the input is the handle. And the input is a
// link.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "array/dtype.h"
#include "base/error.h"
#include "data/worker.h"
#include "ipc/segments.h"

namespace tenon::impl {
namespace {

struct Good {
  Ref<Array> array;
  std::string handle;

  Good() {
    const int64_t shape[2] = {7, 5};
    array = Segments::instance().create(DType(TENON_FLOAT, 32, 1), shape, 0, {});
    handle = Segments::instance().handle_of(*array);
  }
};

void try_handle(std::span<const uint8_t> bytes) {
  static auto* const good = new Good;
  std::string handle(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!bytes.empty() && bytes[0] % 2 != 0) {
    handle = good->handle;
    for (size_t i = 1; i < bytes.size() && i <= handle.size(); ++i)
      handle[i - 1] ^= static_cast<char>(bytes[i]);
  }
  try {
    const Ref<Array> array = Segments::instance().open(std::as_bytes(std::span(handle)));
    // Its bytes can be read.
    const auto* const p = reinterpret_cast<const volatile char*>(array->data());
    if (array->size() > 0) (void)*p;
  } catch (const Error&) {
    return;
  }
}

void try_link(std::span<const uint8_t> bytes) {
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  try {
    const WorkerLink link = WorkerLink::parse(text);
    const WorkerLink again = WorkerLink::parse(link.text());
    if (again.process != link.process || again.feed != link.feed || again.fd != link.fd ||
        again.loop != link.loop) {
      std::abort();
    }
  } catch (const Error&) {
    return;
  }
}

}  // namespace
}  // namespace tenon::impl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tenon::impl::try_link({data, size});
  tenon::impl::try_handle({data, size});
  return 0;
}
