// SPDX-License-Identifier: Apache-2.0
//
// Segments of feeds, which other processes find by a name when they are served.
#include <algorithm>
#include <memory>
#include <utility>

#include "array/shape.h"
#include "base/bytes.h"
#include "base/error.h"
#include "ipc/segments.h"
#include "ipc/served_state.h"

namespace tenon::impl {
namespace {

constexpr DType kControlBytes(TENON_UINT, 8);

}  // namespace

// Its slots begin on a huge page, if the system has any.
Ref<Array> Segments::create_feed(const FeedMemoryPlan& given) {
  check_name(given.name);
  const uint64_t pages = given.control_nbytes / kPage + (given.control_nbytes % kPage != 0 ? 1 : 0);
  const uint64_t slots_at = round_up(pages * kPage, uint64_t{2} << 20);
  uint64_t nbytes = 0;
  if (given.slots == 0 || given.slots > SlotTable::kMostSlots ||
      given.control_nbytes < ServedState::end_at(given.slots) || pages > UINT32_MAX ||
      __builtin_add_overflow(slots_at, given.slots_nbytes, &nbytes) || nbytes > PTRDIFF_MAX) {
    throw_error(Code::kValue, given.slots, " slots of a feed, of ", given.slots_nbytes,
                " bytes together, cannot be shared with a control part of ", given.control_nbytes, " bytes");
  }
  const auto n = static_cast<int64_t>(given.control_nbytes);
  NamedArray array{};
  array.code = kControlBytes.code;
  array.bits = kControlBytes.bits;
  array.lanes = kControlBytes.lanes;
  array.ndim = 1;
  array.shape[0] = n;
  SegmentPlan plan;
  plan.name = given.name;
  plan.data_nbytes = nbytes;
  plan.blocks = 2;
  plan.array = &array;
  plan.feed_slots = given.slots;
  plan.feed_pages = static_cast<uint32_t>(pages);
  const std::scoped_lock locked(lock_);
  sweep_some();
  std::unique_ptr<Segment> made = Segment::create(plan, MutexOwner::instance());
  commit_data(*made, pages * kPage, "the control part of a feed");
  made->take_block(0, 0, given.control_nbytes);
  made->take_block(1, slots_at, std::max<uint64_t>(given.slots_nbytes, 1));
  Segment& segment = open_.add(std::move(made));
  (void)segment.leave(1);
  SharedOptions options;
  options.prepare = [&](std::byte* base) {
    auto* const state = reinterpret_cast<ServedState*>(base);
    state->server.store(ServedState::kNone, std::memory_order_relaxed);
    if (given.prepare) given.prepare(base);
    publish(segment.control().has_state(), 1u);
  };
  return take_over(segment, 0, kControlBytes, {&n, 1}, 0, options);
}

bool Segments::is_feed(const Array& array) noexcept {
  const BlockUse* const use = use_of(array);
  return use != nullptr && use->segment->header().feed_slots != 0;
}

Segment& Segments::feed_segment_of(const Array& control) {
  const BlockUse* const use = use_of(control);
  if (use == nullptr || use->block != 0 || control.data() != use->segment->data_of(0) ||
      use->segment->control().served() == nullptr) {
    throw_error(Code::kValue, "this shared memory of shape ", shape_text(control.shape()), " holds no feed");
  }
  return *use->segment;
}

void Segments::begin_name_use(const Array& control) {
  Segment& segment = feed_segment_of(control);
  const std::scoped_lock locked(lock_);
  segment.begin_name_use();
}

void Segments::end_name_use(const Array& control) noexcept {
  Segment& segment = *use_of(control)->segment;
  const std::scoped_lock locked(lock_);
  if (!segment.end_name_use() || !segment.keeps_name()) return;
  segment.drop_name();
  try {
    const NameLock lock(segment.header().name,
                        NameLock::Make::kNo);  // removes the file if no process keeps it
  } catch (const std::exception&) {
    // The next process that uses names removes it.
  }
}

}  // namespace tenon::impl
