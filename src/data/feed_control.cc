// SPDX-License-Identifier: Apache-2.0
#include "data/feed_control.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

// A file that says more is damaged. Else a large sparse file would keep its readers busy.
constexpr int32_t kMostLoops = 4096;

// Gives out places one after the other, each at a line of the cache.
class Places {
 public:
  explicit Places(uint64_t begin) noexcept : end_(begin) {}
  uint64_t take(uint64_t count, uint64_t nbytes) {
    const uint64_t at = end_;
    uint64_t size = 0;
    if (__builtin_mul_overflow(count, nbytes, &size) || __builtin_add_overflow(end_, size, &end_) ||
        end_ > static_cast<uint64_t>(PTRDIFF_MAX) - kPage) {
      throw_error(Code::kValue, count, " parts of ", nbytes,
                  " bytes in the control part of a feed do not fit into 63 bits");
    }
    end_ = round_up(end_, kAlignment);
    return at;
  }

 private:
  uint64_t end_;
};

}  // namespace

FeedLayout FeedLayout::of(int32_t most, int32_t loops, int32_t workers, uint64_t state_nbytes,
                          uint64_t schema_nbytes, bool is_served) {
  const auto slots = static_cast<uint64_t>(most);
  FeedLayout layout;
  Places places(is_served ? ServedState::end_at(slots) : 0);
  layout.head_at = places.take(1, sizeof(FeedHead));
  if (is_served) {
    layout.shared_at = ServedState::pool_at();
    layout.states_at = ServedState::states_at();
    layout.entries_at = ServedState::entries_at(slots);
  } else {
    layout.shared_at = places.take(1, sizeof(FeedShared));
    layout.states_at = places.take(slots, sizeof(SlotState));
    layout.entries_at = places.take(entries_of_pool(slots), sizeof(SlotEntry));
  }
  layout.records_at = places.take(slots, sizeof(SlotRecord));
  layout.loops_at = places.take(static_cast<uint64_t>(loops) + 1, sizeof(LoopRecord));
  layout.starts_at = places.take(static_cast<uint64_t>(workers), state_nbytes);
  layout.schema_at = places.take(1, schema_nbytes);
  layout.schema_nbytes = schema_nbytes;
  if (is_served) {
    layout.noted_at = places.take(static_cast<uint64_t>(workers), state_nbytes);
    layout.again_at = places.take(static_cast<uint64_t>(workers), state_nbytes);
    layout.note_at = places.take(1, kNoteNbytes);
  }
  layout.nbytes = round_up(places.take(0, 0), kPage);
  return layout;
}

uint64_t FeedHead::entries() const noexcept { return entries_of_pool(static_cast<uint64_t>(most)); }

FeedControl FeedControl::make(std::byte* zeros, const FeedHead& head, std::string_view schema) {
  FeedControl control(zeros, head);
  if (!schema.empty()) std::memcpy(zeros + head.parts.schema_at, schema.data(), schema.size());
  std::byte* const head_bytes = zeros + head.parts.head_at;
  FeedHead unnamed = head;  // until it is complete
  unnamed.magic = 0;
  std::memcpy(head_bytes, &unnamed, sizeof unnamed);
  reinterpret_cast<FeedHead*>(head_bytes)->magic = head.magic;
  return control;
}

SlotTable FeedControl::table() const noexcept {
  return {shared().counters,
          {at<SlotState>(head_->parts.states_at), static_cast<size_t>(head_->most)},
          {at<SlotEntry>(head_->parts.entries_at), head_->entries()}};
}

void check_head(const FeedHead& head, uint64_t file_nbytes) {
  if (head.magic == 0) throw_error(Code::kValue, "it is being made");
  if (head.magic != kFeedMagic) {
    throw_error(Code::kValue, "it begins with ", head.magic, " and not with ", kFeedMagic,
                ": it is not the memory of a feed");
  }
  if (head.version != kFeedVersion) {
    throw_error(Code::kValue, "its layout has version ", head.version, ", this library reads version ",
                kFeedVersion);
  }
  if (head.workers < 1 || head.loops < head.workers || head.loops > kMostLoops || head.slots < 1 ||
      head.most < head.slots || static_cast<uint32_t>(head.most) > SlotTable::kMostSlots || head.fields < 1) {
    throw_error(Code::kValue, "it has ", head.workers, " workers with ", head.loops, " loops, ", head.slots,
                " slots of ", head.most, " and ", head.fields, " fields");
  }
  if (head.ranks < 1 || head.rank >= head.ranks)
    throw_error(Code::kValue, "it has rank ", head.rank, " of ", head.ranks);
  const FeedLayout parts = FeedLayout::of(head.most, head.loops, head.workers, head.layout.state_nbytes,
                                          head.parts.schema_nbytes, head.parts.is_served());
  if (head.parts != parts)
    throw_error(Code::kValue, "its parts do not lie where those of ", head.loops, " loops and ", head.most,
                " slots do");
  if (parts.nbytes > std::min(head.slots_at, file_nbytes)) {
    throw_error(Code::kValue, head.loops, " loops do not fit into ", file_nbytes, " bytes with slots at ",
                head.slots_at);
  }
}

// As the feed's process has it: one that is decoded has its fields closer together.
Ref<Schema> read_schema(const FeedControl& control) {
  const std::span<const std::byte> shared = control.schema();
  // A copy: a process may write to the memory meanwhile.
  const std::vector<std::byte> bytes(shared.begin(), shared.end());
  std::span<const std::byte> rest = bytes;
  const Ref<Schema> decoded = Schema::decode(&rest);
  std::vector<tenon_field> fields;
  for (const SchemaField& field : decoded->fields()) fields.push_back(field.described());
  return Schema::make(fields);
}

void check_slots(const FeedHead& head, const Schema& schema) {
  uint64_t nbytes = 0;
  const bool are_its =
      head.fields == static_cast<int32_t>(schema.fields().size()) && head.rows == schema.rows() &&
      head.layout == SlotLayout::of(schema, head.layout.attachment_nbytes, head.layout.state_nbytes) &&
      !__builtin_mul_overflow(static_cast<uint64_t>(head.most), head.layout.slot_nbytes, &nbytes) &&
      head.slots_at <= head.nbytes && nbytes <= head.nbytes - head.slots_at;
  if (!are_its) throw_error(Code::kValue, "its slots are not those of its schema");
}

}  // namespace tenon::impl
