// SPDX-License-Identifier: Apache-2.0
#include "data/slot_layout.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <thread>

#include "base/bytes.h"
#include "base/os.h"
#include "data/pages_testing.h"

namespace tenon::impl {
namespace {

// A slot of four parts, the last of which is not whole, in the place of two processes.
class MapSlot : public testing::Test {
 protected:
  static constexpr size_t kParts = 4;

  static SlotLayout make_layout() {
    const int64_t shape[]{(kParts - 1) * kMapPart + 5};
    const tenon_field field{"bytes", DType(TENON_UINT, 8), 1, shape};
    return SlotLayout::of(*Schema::make({&field, 1}), 0);
  }

  void SetUp() override { os::commit(file_, 0, layout_.slot_nbytes, "a slot"); }
  void TearDown() override {
    for (std::byte* memory : {worker_, feed_}) os::unmap(memory, layout_.slot_nbytes);
  }
  size_t count_mapped(const std::byte* memory) const {
    return count_mapped_pages(memory, layout_.slot_nbytes);
  }

  const SlotLayout layout_ = make_layout();
  const size_t pages_ = layout_.slot_nbytes / kPage;
  const os::File file_ = os::create_memory("tenon-slots", layout_.slot_nbytes, false);
  std::byte* const worker_ = os::map(file_, 0, layout_.slot_nbytes, true, kPage);
  std::byte* const feed_ = os::map(file_, 0, layout_.slot_nbytes, true, kPage);
};

constexpr auto kNever = [] { return false; };

TEST_F(MapSlot, WhatFollowsTheFieldsIsAligned) { EXPECT_EQ(layout_.shapes_at % kFieldAlignment, 0u); }

TEST_F(MapSlot, TwoProcessesDivideThePartsAndHaveAllPages) {
  std::thread worker([this] { map_slot(layout_, worker_, false, kNever); });
  map_slot(layout_, feed_, true, kNever);
  worker.join();
  EXPECT_EQ(count_mapped(worker_), pages_);
  EXPECT_EQ(count_mapped(feed_), pages_);
  EXPECT_LE(layout_.mapped(feed_), kParts + 2) << "each part is begun once, then each process finds none";
}

TEST_F(MapSlot, OneProcessMapsAllWhereTheOtherHasStopped) {
  size_t parts = 0;
  map_slot(layout_, worker_, false, [&] { return parts++ == 2; });
  EXPECT_EQ(count_mapped(worker_), 2 * kMapPart / kPage + 1) << "and the page of the counter";
  map_slot(layout_, feed_, true, kNever);
  EXPECT_EQ(count_mapped(feed_), pages_);
}

TEST_F(MapSlot, TheProcessOfTheFeedBeginsAtTheEnd) {
  size_t parts = 0;
  map_slot(layout_, feed_, true, [&] { return parts++ == 2; });
  constexpr size_t kBefore = (kParts - 2) * kMapPart;
  EXPECT_EQ(count_mapped_pages(feed_, kBefore), 0u);
  EXPECT_EQ(count_mapped_pages(feed_ + kBefore, kMapPart), kMapPart / kPage);
}

TEST_F(MapSlot, APredecessorsPartsAreMappedToo) {
  map_slot(layout_, feed_, false, kNever);
  map_slot(layout_, worker_, false, kNever);
  EXPECT_EQ(count_mapped(worker_), pages_);
}

}  // namespace
}  // namespace tenon::impl
