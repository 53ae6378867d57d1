// SPDX-License-Identifier: Apache-2.0
#include "ipc/cleaner.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "base/clock.h"
#include "ipc/segment.h"

namespace tenon::impl {
namespace {

constexpr std::chrono::milliseconds kLookAgain{500}, kContinue{1};
// Other threads may wait for the lock of Segments.
constexpr int64_t kLookNs = 5'000'000;
constexpr uint64_t kStepNbytes = uint64_t{16} << 20;

}  // namespace

std::chrono::milliseconds Cleaner::look(Segment& segment) noexcept {
  if (!segment.needs_cleaner()) return {};
  if (segment.is_creator_alive()) return kLookAgain;
  reap_marked(segment.control());
  const uint32_t blocks = segment.control().used_blocks();
  bool has_unused = false;
  for (uint32_t i = 0; i < blocks && !has_unused; ++i) has_unused = segment.is_unused(i);
  PlaceLocks& locks = *segment.control().places;
  if ((is_clean_ && !has_unused) || !locks.try_lock(PlaceLocks::kCleaner)) return kLookAgain;
  std::chrono::milliseconds again = kLookAgain;
  try {
    if (!clean(segment)) again = kContinue;
  } catch (const std::bad_alloc&) {
    // The next look tries again.
  }
  locks.unlock(PlaceLocks::kCleaner);
  return again;
}

// False: it must be called again soon.
bool Cleaner::clean(Segment& segment) {
  std::vector<uint32_t> closed;
  used_.clear();
  const uint32_t blocks = segment.control().used_blocks();
  closed.reserve(blocks);
  used_.reserve(blocks);
  for (uint32_t i = 0; i < blocks; ++i) {
    if (segment.close_if_unused(i)) {
      closed.push_back(i);
    } else if (const std::span<std::byte> bytes = segment.bytes_of(i); !bytes.empty()) {
      const auto begin = static_cast<uint64_t>(bytes.data() - segment.data());
      used_.push_back({begin, begin + bytes.size()});
    }
  }
  if (!std::ranges::includes(closed_, closed)) at_ = 0;
  closed_ = std::move(closed);
  std::ranges::sort(used_, {}, &ByteRange::begin);
  const uint64_t page = segment.header().page_nbytes, end = segment.data_nbytes();
  const int64_t until_ns = now_ns() + kLookNs;
  uint64_t begin = 0;
  for (const ByteRange& bytes : used_) {
    if (!return_memory(segment, round_up(begin, page), bytes.begin / page * page, until_ns)) return false;
    begin = std::max(begin, bytes.end);
  }
  if (!return_memory(segment, round_up(begin, page), end, until_ns)) return false;
  for (const uint32_t i : closed_) segment.free_closed(i);
  closed_.clear();
  at_ = 0;
  is_clean_ = true;
  return true;
}

// Returns the memory of these bytes from at_ on. False: the time was over before the end.
bool Cleaner::return_memory(const Segment& segment, uint64_t begin, uint64_t end, int64_t until_ns) noexcept {
  for (at_ = std::max(at_, std::min(begin, end)); at_ < end;) {
    const uint64_t nbytes = std::min(kStepNbytes, end - at_);
    note_store();
    (void)os::punch(segment.file(), segment.header().data_at + at_, nbytes);
    at_ += nbytes;
    if (now_ns() >= until_ns) return false;
  }
  return true;
}

}  // namespace tenon::impl
