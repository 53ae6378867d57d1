// SPDX-License-Identifier: Apache-2.0
#include "ipc/layout.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "array/array.h"
#include "base/bytes.h"
#include "base/error.h"
#include "ipc/channel_state.h"
#include "ipc/message_table.h"
#include "ipc/served_state.h"

namespace tenon::impl {
static_assert(kGrants == 160, "the message in array/access.cc names it");

namespace {

constexpr uint64_t kMostPage = uint64_t{16} << 30;

[[noreturn]] void throw_damaged(const std::string& what) {
  throw_error(Code::kValue, "this is no shared memory that Tenon can use: ", what);
}

template <class T>
void check_is(T given, T wanted, const char* what) {
  if (given != wanted) throw_damaged(concat(what, " is ", given, " where ", wanted, " is needed"));
}

void check_array(const Header& header) {
  const NamedArray& array = header.array;
  if (array.ndim < 0 || array.ndim > static_cast<int32_t>(kMostAxes)) {
    throw_damaged(concat("its array has ", array.ndim, " axes"));
  }
  const DType dtype(array.code, array.bits, array.lanes);
  if ((array.flags & ~uint64_t{TENON_SUBBYTE_PADDED}) != 0) throw_damaged("its array has unknown flags");
  const Dims shape{array.shape, static_cast<size_t>(array.ndim)};
  for (const int64_t n : shape) {
    if (n < 0) throw_damaged(concat("its array has the shape ", shape_text(shape)));
  }
  uint64_t nbytes = 0;
  try {
    check_dtype(dtype);
    nbytes = nbytes_of(dtype, shape, static_cast<uint32_t>(array.flags));
  } catch (const Error&) {
    throw_damaged(concat("it has no array of shape ", shape_text(shape), " and dtype code ", int{array.code},
                         " of ", int{array.bits}, " bits"));
  }
  if ((header.required & kOnDevice) == 0 && nbytes > header.total_nbytes - header.data_at) {
    throw_damaged(
        concat("its array of ", nbytes, " bytes does not fit into ", header.total_nbytes - header.data_at));
  }
}

}  // namespace

std::string text_of(const SegmentId& id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint64_t word : id.words) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[word >> shift & 15];
  }
  return text;
}

uint64_t checksum_of(const Header& header) noexcept {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&header);
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (size_t i = 0; i < offsetof(Header, checksum); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

void check(const Header& header, size_t file_nbytes) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) throw_damaged("it does not begin as a segment");
  check_is(header.byte_order, kByteOrder, "the mark of its byte order");
  check_is<uint64_t>(header.pointer_nbytes, sizeof(void*), "its size of a pointer");
  check_is<uint64_t>(header.mutex_nbytes, sizeof(pthread_mutex_t), "its size of a mutex");
  if (header.major != kMajor) {
    throw_damaged(concat("its layout has version ", header.major, ".", header.minor, ", this library knows ",
                         kMajor, ".x; use the same version of Tenon in both processes"));
  }
  if ((header.required & ~kOnDevice) != 0) {
    throw_damaged(concat("it needs features (bits ", header.required,
                         ") that this library does not know: use a later version"));
  }
  if (header.minor == kMinor)
    check_is<uint64_t>(header.header_nbytes, sizeof(Header), "the size of its header");
  if (header.header_nbytes < sizeof(Header))
    throw_damaged(concat("its header has ", header.header_nbytes, " bytes"));
  // A later minor version may have more fields; the checksum covers those that this version knows.
  check_is(header.checksum, checksum_of(header), "the sum over its header");
  check_is<uint64_t>(header.total_nbytes, file_nbytes, "its size");
  check_is(header.lives_at, kLivesAt, "the offset of its lives");
  check_is(header.blocks_at, kBlocksAt, "the offset of its blocks");
  check_is(header.participants, kParticipants, "its number of participants");
  check_is(header.grants, kGrants, "its number of grants");
  if (header.blocks == 0 || header.blocks > kMostBlocks) {
    throw_damaged(concat("it has ", header.blocks, " blocks"));
  }
  check_is(header.places_at, places_at(header.blocks), "the offset of its places");
  if ((header.required & kOnDevice) != 0) {
    if (header.blocks != 1)
      throw_damaged(concat("it has ", header.blocks, " blocks on a device: it may have 1"));
    if (header.has_named_array == 0) throw_damaged("it lies on a device and has no array");
  }
  const uint64_t page = header.page_nbytes;
  if (page < kPage || page > kMostPage || (page & (page - 1)) != 0 || file_nbytes % page != 0) {
    throw_damaged(concat("its pages have ", page, " bytes, of ", file_nbytes));
  }
  if (header.is_tensor_pool > 1 || (header.is_tensor_pool == 1 && header.has_named_array != 0)) {
    throw_damaged("it is unclear whether it is a tensor pool");
  }
  if (header.data_at < round_up(control_end(header.blocks), page) || header.data_at >= file_nbytes ||
      header.data_at % page != 0) {
    throw_damaged(concat("its data begin at ", header.data_at, " of ", file_nbytes, " bytes"));
  }
  if (const uint64_t slots = header.channel_slots; slots != 0) {
    const uint64_t room = file_nbytes - header.data_at;
    const bool is_channel = header.blocks == 2 && header.has_named_array == 1 && header.required == 0;
    if (!is_channel || slots > SlotTable::kMostSlots ||
        ChannelState::nbytes_before_description(slots) > room) {
      throw_damaged(concat("it cannot hold a channel of ", slots, " slots"));
    }
  }
  if (header.feed_slots != 0 || header.feed_pages != 0) {
    const uint64_t slots = header.feed_slots, nbytes = header.feed_pages * kPage;
    const bool is_feed = header.blocks == 2 && header.has_named_array == 1 && header.required == 0 &&
                         header.channel_slots == 0 && header.is_tensor_pool == 0;
    if (!is_feed || slots == 0 || slots > SlotTable::kMostSlots || ServedState::end_at(slots) > nbytes ||
        nbytes > file_nbytes - header.data_at) {
      throw_damaged(
          concat("it cannot hold a feed of ", slots, " slots with a control part of ", nbytes, " bytes"));
    }
  }
  if (std::memchr(header.name, '\0', sizeof header.name) == nullptr) throw_damaged("its name has no end");
  if (header.has_named_array > 1) throw_damaged("it is unclear whether it holds a named array");
  if (header.has_named_array == 1) check_array(header);
}

#ifdef TENON_FAULT_INJECTION
namespace {
std::atomic<long> stores_to_stop{0};
}

void note_store() noexcept {
  // TENON_CRASH_AT=N: the process is killed at its N-th store.
  static const long crash_at = [] {
    const char* const text = std::getenv("TENON_CRASH_AT");
    return text != nullptr ? std::strtol(text, nullptr, 10) : 0L;
  }();
  if (stores_to_stop.load(std::memory_order_relaxed) > 0 &&
      stores_to_stop.fetch_sub(1, std::memory_order_relaxed) == 1) {
    kill(getpid(), SIGSTOP);
  }
  if (crash_at == 0) return;
  static std::atomic<long> stores{0};
  if (stores.fetch_add(1, std::memory_order_relaxed) + 1 == crash_at) kill(getpid(), SIGKILL);
}

bool stop_at_store(long number) noexcept {
  return stores_to_stop.exchange(number, std::memory_order_relaxed) > 0;
}
#endif

}  // namespace tenon::impl
