// SPDX-License-Identifier: Apache-2.0
//
// Bytes from others: the header of a segment, the memory file of one, and handles. Whatever they are, they
// are used or refused with an Error. The first byte chooses what the others are.
//
// A target as libFuzzer wants it; share_fuzz_driver.cc calls it with mutations of its own. TENON_FUZZ_ONLY=0,
// 1 or 2 keeps to one of the three.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "core/dtype.h"
#include "share/segments.h"

namespace tenon::share {
namespace {

// A good one, which mutations begin with.
struct Seeds {
  Keeper keeper;
  std::unique_ptr<Segment> segment;
  Ref<Array> array;
  std::string handle;

  Seeds() {
    NamedArray named{};
    named.code = TENON_FLOAT;
    named.bits = 32;
    named.lanes = 1;
    named.ndim = 2;
    named.shape[0] = named.shape[1] = 3;
    SegmentPlan plan;
    plan.name = "fuzz";
    plan.data_nbytes = 36;
    plan.array = &named;
    segment = Segment::create(plan, keeper);
    const int64_t shape[2] = {7, 5};
    array = Segments::instance().create(DType(TENON_FLOAT, 32, 1), shape, 0, {});
    handle = Segments::instance().handle_of(*array);
  }
};
Seeds& seeds() {
  static auto* const all = new Seeds;
  return *all;
}

int only() {
  static const int chosen = [] {
    const char* const text = std::getenv("TENON_FUZZ_ONLY");
    return text != nullptr ? std::atoi(text) : -1;
  }();
  return chosen;
}

// What is given is laid over the good bytes (exclusive or): so zeros are the good ones, and a mutation
// changes a few fields.
template <class T>
void lay_over(T* good, std::span<const uint8_t> bytes) {
  auto* const to = reinterpret_cast<uint8_t*>(good);
  for (size_t i = 0; i < std::min(bytes.size(), sizeof *good); ++i) to[i] ^= bytes[i];
}

Header header_of(std::span<const uint8_t> bytes) {
  Header header = seeds().segment->header();
  lay_over(&header, bytes);
  header.checksum = checksum_of(header);  // else nothing behind the sum would be reached
  return header;
}

void try_header(std::span<const uint8_t> bytes) {
  const Header header = header_of(bytes);
  const uint64_t sizes[] = {header.total_nbytes, seeds().segment->header().total_nbytes};
  for (const uint64_t nbytes : sizes) {
    try {
      check(header, nbytes);
    } catch (const Error&) {
      continue;
    }
    // What is passed keeps what is used within the file.
    const bool is_within = header.data_at < nbytes && control_end(header.blocks) <= header.data_at &&
                           header.blocks <= kMostBlocks &&
                           std::memchr(header.name, '\0', sizeof header.name) != nullptr;
    if (!is_within) std::abort();
  }
}

void try_file(std::span<const uint8_t> bytes) {
  const Header header = header_of(bytes);
  const uint64_t nbytes = std::min<uint64_t>(header.total_nbytes, seeds().segment->header().total_nbytes * 2);
  try {
    os::File file = os::create_memory("fuzz", nbytes, false);
    if (pwrite(file.fd(), &header, std::min<size_t>(sizeof header, nbytes), 0) < 0) return;
    os::seal(file);
    const auto segment = Segment::open(std::move(file), true, seeds().keeper);
    (void)segment->use(0, 0);
  } catch (const Error&) {
    return;
  }
}

void try_handle(std::span<const uint8_t> bytes) {
  std::string handle = seeds().handle;
  if (!bytes.empty() && bytes[0] % 4 == 0) {
    handle.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } else {
    for (size_t i = 1; i < bytes.size() && i <= handle.size(); ++i)
      handle[i - 1] ^= static_cast<char>(bytes[i]);
  }
  try {
    const Ref<Array> array = Segments::instance().open(std::as_bytes(std::span(handle)));
    // Its bytes are there.
    const auto* const p = reinterpret_cast<const volatile char*>(array->data());
    if (array->size() > 0) (void)*p;
  } catch (const Error&) {
    return;
  }
}

}  // namespace

void fuzz_one(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const std::span<const uint8_t> rest(data + 1, size - 1);
  switch (only() >= 0 ? only() : data[0] % 3) {
    case 0: return try_header(rest);
    case 1: return try_file(rest);
    default: return try_handle(rest);
  }
}

}  // namespace tenon::share

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tenon::share::fuzz_one(data, size);
  return 0;
}
