// SPDX-License-Identifier: Apache-2.0
//
// Bytes from other processes: the header of a segment, the memory file of a segment, and the beginning of a
// channel's and of an arena's memory. The library uses any such bytes, or refuses them with an Error. The
// first byte of the input chooses one of these. TENON_FUZZ_ONLY=0 to 3 chooses one of them for all inputs.
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
#include "ipc/arena.h"
#include "ipc/channel.h"
#include "ipc/segments.h"

namespace tenon::impl {
namespace {

// The valid objects that are mutated.
struct Seeds {
  MutexOwner mutex_owner;
  std::unique_ptr<Segment> segment;
  Ref<Array> channel;
  Ref<Array> arena;

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
    segment = Segment::create(plan, mutex_owner);
    const int64_t shape[2] = {7, 5};
    const int64_t rows[1] = {4};
    const tenon_field fields[] = {{"x", {TENON_FLOAT, 32, 1}, 2, shape},
                                  {"label", {TENON_INT, 64, 1}, 1, rows}};
    channel =
        Ref<Array>::share(&Channel::create(fields, {2, ChannelMode::kQueue, WhenFull::kWait}, {})->memory());
    const tenon_layout layouts[] = {{"features", 2, 0, fields}, {"counts", 1, 0, fields + 1}};
    const SharedOptions shared;
    arena = Ref<Array>::share(Arena::create(layouts, &shared)->memory());
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

// Combines the input with the valid bytes (exclusive or): so zeros give the valid bytes, and a mutation
// changes a few fields.
template <class T>
void lay_over(T* good, std::span<const uint8_t> bytes) {
  auto* const to = reinterpret_cast<uint8_t*>(good);
  for (size_t i = 0; i < std::min(bytes.size(), sizeof *good); ++i) to[i] ^= bytes[i];
}

Header header_of(std::span<const uint8_t> bytes) {
  Header header = seeds().segment->header();
  lay_over(&header, bytes);
  header.checksum = checksum_of(header);  // else the checks after that of the checksum would not be reached
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
    // A header that passes the checks names only bytes of the file.
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
    const auto segment = Segment::open(std::move(file), true, seeds().mutex_owner);
    (void)segment->use(0, 0);
  } catch (const Error&) {
    return;
  }
}

// Combines the input with the beginning of shared memory, and restores the memory at its end.
class Overlay {
 public:
  // Does not change the bytes skip .. skip + skip_nbytes.
  Overlay(Array& memory, std::span<const uint8_t> bytes, size_t skip, size_t skip_nbytes)
      : at_(reinterpret_cast<uint8_t*>(memory.data())), was_(at_, at_ + memory.desc().nbytes) {
    size_t to = 0;
    for (const uint8_t byte : bytes) {
      if (to == skip) to += skip_nbytes;
      if (to >= was_.size()) return;
      at_[to++] ^= byte;
    }
  }
  Overlay(const Overlay&) = delete;
  Overlay& operator=(const Overlay&) = delete;
  ~Overlay() { std::memcpy(at_, was_.data(), was_.size()); }

 private:
  uint8_t* const at_;
  const std::vector<uint8_t> was_;
};

// The counters and the ends are not changed: a process that can write them can break the others in any case.
void try_channel(std::span<const uint8_t> bytes) {
  Array& memory = *seeds().channel;
  constexpr size_t kPlainNbytes = offsetof(ChannelState, deaths);
  const Overlay overlay(memory, bytes, kPlainNbytes, sizeof(ChannelState) - kPlainNbytes);
  try {
    const Ref<Channel> channel = Channel::of(Ref<Array>::share(&memory));
    const Ref<Item> item = channel->loan(Deadline(0), nullptr);
    if (!item) return;
    for (size_t i = 0; i < channel->schema().fields().size(); ++i) {
      const Ref<Array> array = item->array(static_cast<int32_t>(i));
      if (array->size() > 0) std::memset(array->data(), 0, array->desc().nbytes);
    }
  } catch (const Error&) {
    return;
  }
}

void try_arena(std::span<const uint8_t> bytes) {
  Array& memory = *seeds().arena;
  const Overlay overlay(memory, bytes, SIZE_MAX, 0);
  try {
    const Ref<Arena> arena = Arena::of(Ref<Array>::share(&memory));
    (void)arena->active();
    if (arena->data().desc().nbytes < arena->nbytes()) std::abort();
  } catch (const Error&) {
    return;
  }
}

}  // namespace

void fuzz_one(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const std::span<const uint8_t> rest(data + 1, size - 1);
  switch (only() >= 0 ? only() : data[0] % 4) {
    case 0: return try_header(rest);
    case 1: return try_file(rest);
    case 2: return try_channel(rest);
    default: return try_arena(rest);
  }
}

}  // namespace tenon::impl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tenon::impl::fuzz_one(data, size);
  return 0;
}
