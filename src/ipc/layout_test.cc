// SPDX-License-Identifier: Apache-2.0
//
// Headers of segments: every fault is found before the segment is used; a memory file that is not a segment,
// or a damaged one, gives an Error.
#include "ipc/layout.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "array/dtype.h"
#include "base/error.h"
#include "device/shared_memory.h"
#include "ipc/segment.h"
#include "ipc/served_state.h"

namespace tenon::impl {
namespace {

// The text of the Error; "": success.
template <class Attempt>
std::string error_of(Attempt&& attempt, Code code = Code::kValue) {
  try {
    attempt();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  return {};
}

NamedArray small_array() {
  NamedArray array{};
  array.code = TENON_FLOAT;
  array.bits = 32;
  array.lanes = 1;
  array.ndim = 2;
  array.shape[0] = 3;
  array.shape[1] = 5;
  return array;
}

class Layout : public testing::Test {
 protected:
  void SetUp() override {
    const NamedArray array = small_array();
    SegmentPlan plan;
    plan.name = "layout_test";
    plan.data_nbytes = 60;
    plan.array = &array;
    segment_ = Segment::create(plan, mutex_owner_);
    header_ = segment_->header();
    file_nbytes_ = os::size_of(segment_->file());
  }
  std::string refused(const std::function<void(Header&)>& damage, bool has_sum = true) {
    Header damaged = header_;
    damage(damaged);
    if (has_sum) damaged.checksum = checksum_of(damaged);
    return error_of([&] { check(damaged, file_nbytes_); });
  }

  MutexOwner mutex_owner_;
  std::unique_ptr<Segment> segment_;
  Header header_{};
  size_t file_nbytes_ = 0;
};

TEST_F(Layout, AHeaderAsItWasMadeIsGood) {
  EXPECT_NO_THROW(check(header_, file_nbytes_));
  Header read{};
  ASSERT_TRUE(os::read_at(segment_->file(), 0, &read, sizeof read));
  EXPECT_EQ(std::memcmp(&read, &header_, sizeof read), 0);
}

TEST_F(Layout, NoBitCanChangeUnseen) {
  for (size_t i = 0; i < sizeof(Header); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Header damaged = header_;
      reinterpret_cast<unsigned char*>(&damaged)[i] ^= static_cast<unsigned char>(1 << bit);
      EXPECT_NE(error_of([&] { check(damaged, file_nbytes_); }), "") << "byte " << i << ", bit " << bit;
    }
  }
}

// With a valid checksum, any other change is either refused or harmless: check() returns in both cases.
TEST_F(Layout, NoBitChangedWithItsSumBreaksTheCheck) {
  size_t refused_bits = 0;
  for (size_t i = 0; i < offsetof(Header, checksum); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      const auto flip = [&](Header& h) {
        reinterpret_cast<unsigned char*>(&h)[i] ^= static_cast<unsigned char>(1 << bit);
      };
      refused_bits += refused(flip) != "" ? 1 : 0;
    }
  }
  EXPECT_GT(refused_bits, 8 * offsetof(Header, id)) << "at least what identifies the layout";
}

TEST_F(Layout, WhatIsWrongIsSaid) {
  const auto says = [&](const char* what, const std::function<void(Header&)>& damage) {
    const std::string text = refused(damage);
    EXPECT_NE(text.find(what), std::string::npos) << "'" << text << "' says nothing of '" << what << "'";
  };
  says("begin as a segment", [](Header& h) { h.magic[0] = 'X'; });
  says("byte order", [](Header& h) { h.byte_order = 0x04030201; });
  says("pointer", [](Header& h) { h.pointer_nbytes = 4; });
  says("mutex", [](Header& h) { h.mutex_nbytes = 24; });
  says("the same version of Tenon", [](Header& h) { h.major = kMajor + 1; });
  says("features", [](Header& h) { h.required = 2; });
  says("size of its header", [](Header& h) { h.header_nbytes += 8; });
  says("its header has", [](Header& h) {
    h.minor = kMinor + 1;
    h.header_nbytes = 8;
  });
  says("its size", [](Header& h) { h.total_nbytes += kPage; });
  says("its size", [](Header& h) { h.total_nbytes = UINT64_MAX; });
  says("its lives", [](Header& h) { h.lives_at += 64; });
  says("its places", [](Header& h) { h.places_at = 0; });
  says("its blocks", [](Header& h) { h.blocks_at = UINT64_MAX; });
  says("participants", [](Header& h) { h.participants = kParticipants + 1; });
  says("grants", [](Header& h) { h.grants = 0; });
  says("blocks", [](Header& h) { h.blocks = 0; });
  says("blocks", [](Header& h) { h.blocks = UINT32_MAX; });
  says("data begin", [](Header& h) { h.data_at = kPage; });
  says("data begin", [](Header& h) { h.data_at += 1; });
  says("data begin", [](Header& h) { h.data_at = h.total_nbytes; });
  says("data begin", [](Header& h) { h.data_at = UINT64_MAX - kPage + 1; });
  says("pages", [](Header& h) { h.page_nbytes = 0; });
  says("pages", [](Header& h) { h.page_nbytes = 3 * kPage; });
  says("pages", [](Header& h) { h.page_nbytes = uint64_t{1} << 63; });
  says("name has no end", [](Header& h) { std::memset(h.name, 'n', sizeof h.name); });
  says("unclear", [](Header& h) { h.has_named_array = 2; });
  says("axes", [](Header& h) { h.array.ndim = -1; });
  says("axes", [](Header& h) { h.array.ndim = kMostAxes + 1; });
  says("flags", [](Header& h) { h.array.flags = ~uint64_t{0}; });
  says("shape", [](Header& h) { h.array.shape[0] = -3; });
  says("shape", [](Header& h) { h.array.shape[0] = h.array.shape[1] = INT64_MAX; });
  says("dtype", [](Header& h) { h.array.bits = 7; });
  says("does not fit", [](Header& h) { h.array.shape[0] = 1 << 20; });
}

TEST_F(Layout, ALaterMinorVersionCanBeRead) {
  EXPECT_EQ(refused([](Header& h) {
              h.minor = kMinor + 1;
              h.header_nbytes += 64;
              h.optional = 1;
            }),
            "");
}

// -------------------------------------------------------------------------------------- files of all kinds

class Files : public Layout {
 protected:
  // A memory file that begins with these bytes.
  static os::File file(std::span<const char> bytes, size_t nbytes, bool is_sealed = true) {
    os::File made = os::create_memory("layout_test", nbytes, false);
    EXPECT_EQ(pwrite(made.fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(ftruncate(made.fd(), static_cast<off_t>(nbytes)), 0);
    if (is_sealed) os::seal(made);
    return made;
  }
  std::span<const char> header_bytes() const {
    return {reinterpret_cast<const char*>(&header_), sizeof header_};
  }
  std::string opened(os::File given) {
    return error_of([&] { (void)Segment::open(std::move(given), true, mutex_owner_); });
  }
};

TEST_F(Files, AnUnsealedFileIsRefused) {
  EXPECT_NE(opened(file(header_bytes(), file_nbytes_, false)).find("not sealed"), std::string::npos);
}

TEST_F(Files, ATruncatedFileIsRefused) {
  for (size_t nbytes : {size_t{0}, size_t{1}, sizeof(Header) - 1, sizeof(Header), size_t{kBlocksAt} - 1,
                        size_t{kBlocksAt}, size_t{places_at(1)}, file_nbytes_ - kPage, file_nbytes_ - 1}) {
    EXPECT_NE(opened(file(header_bytes(), nbytes)), "") << nbytes;
  }
}

TEST_F(Files, WhatIsNoSegmentIsRefused) {
  EXPECT_NE(opened(file(std::string(4096, '\0'), file_nbytes_)), "") << "zeros";
  EXPECT_NE(opened(file(std::string(4096, 'x'), file_nbytes_)), "") << "text";
  EXPECT_NE(opened(os::File(open("/dev/null", O_RDWR | O_CLOEXEC))), "") << "a device";
  EXPECT_NE(opened(os::File(open("/proc/self/exe", O_RDONLY | O_CLOEXEC))), "") << "a program";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const os::File other(ends[1]);
  EXPECT_NE(opened(os::File(ends[0])), "") << "a pipe";
  EXPECT_NE(opened(os::File()), "") << "nothing";
}

// Instead of mutexes there are holes, then random bytes: opening succeeds or fails, without a hang or crash.
TEST_F(Files, AControlPartThatWasNeverWrittenHarmsNobody) {
  (void)error_of([&] { (void)Segment::open(file(header_bytes(), file_nbytes_), true, mutex_owner_); },
                 Code::kSystem);
}

TEST_F(Files, OpenedTwiceItHasTwoParticipantsAndOneContent) {
  MutexOwner other;
  const os::File& mine = segment_->file();
  const std::string path = concat("/proc/self/fd/", mine.fd());
  const auto second = Segment::open(os::File(open(path.c_str(), O_RDWR | O_CLOEXEC)), true, other);
  EXPECT_NE(second->participant().index(), segment_->participant().index());
  segment_->data()[7] = std::byte{42};
  EXPECT_EQ(second->data()[7], std::byte{42});
}

// What the header, the block and the record of the memory say must fit together.
class FilesOnDevice : public Files {
 protected:
  void SetUp() override {
    Layout::SetUp();
    const NamedArray array = small_array();  // of 60 bytes
    SegmentPlan plan;
    plan.data_nbytes = sizeof(device::SharedMemoryRecord);
    plan.array = &array;
    plan.is_on_device = true;
    segment_ = Segment::create(plan, mutex_owner_);
    header_ = segment_->header();
    file_nbytes_ = os::size_of(segment_->file());
    segment_->take_block(0, 0, 60);
    allocate(uint64_t{2} << 20);
  }
  void TearDown() override { (void)segment_->leave(0); }
  void allocate(uint64_t nbytes) {
    device::SharedMemoryRecord record;
    record.type = TENON_CUDA;
    record.nbytes = nbytes;
    std::memcpy(segment_->data(), &record, sizeof record);
  }
  std::string opened() {
    MutexOwner other;
    const std::string path = concat("/proc/self/fd/", segment_->file().fd());
    return error_of(
        [&] { (void)Segment::open(os::File(open(path.c_str(), O_RDWR | O_CLOEXEC)), true, other); });
  }
};

TEST_F(FilesOnDevice, WhatDoesNotFitIsRefusedWithTheNumbers) {
  EXPECT_EQ("", opened());
  const auto says = [&](const char* what) {
    const std::string text = opened();
    EXPECT_NE(text.find(what), std::string::npos) << "'" << text << "' says nothing of '" << what << "'";
  };
  allocate(59);
  says("its block has the bytes 0 to 60 of 59 on a device");
  allocate(uint64_t{2} << 20);
  segment_->block(0).begin = 1;
  says("its block has the bytes 1 to 61 of 2097152 on a device");
  segment_->block(0).begin = UINT64_MAX - 30;
  says("of 2097152 on a device");
  segment_->block(0).begin = 0;
  segment_->block(0).nbytes = 59;
  says("its array of 60 bytes does not fit into 59");
}

TEST_F(FilesOnDevice, ItHasOneBlockAndOneArray) {
  EXPECT_NE(refused([](Header& h) { h.blocks = 2; }).find("2 blocks"), std::string::npos);
  EXPECT_NE(refused([](Header& h) { h.has_named_array = 0; }).find("no array"), std::string::npos);
}

// Any process reads and changes the control part of a feed where the number of slots says.
class FilesOfFeeds : public Files {
 protected:
  static constexpr uint32_t kSlots = 3;
  void SetUp() override {
    NamedArray bytes{};
    bytes.code = TENON_UINT;
    bytes.bits = 8;
    bytes.lanes = 1;
    bytes.ndim = 1;
    bytes.shape[0] = 60;
    SegmentPlan plan;
    plan.blocks = 2;
    plan.array = &bytes;
    plan.feed_slots = kSlots;
    plan.feed_pages = static_cast<uint32_t>(round_up(ServedState::end_at(kSlots), kPage) / kPage);
    plan.data_nbytes = (plan.feed_pages + 2) * kPage;
    segment_ = Segment::create(plan, mutex_owner_);
    header_ = segment_->header();
    file_nbytes_ = os::size_of(segment_->file());
  }
};

TEST_F(FilesOfFeeds, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(refused([](Header&) {}), "");
  EXPECT_EQ(refused([](Header& h) { h.feed_pages += 2; }), "");
  const auto says_feed = [&](const char* which, const std::function<void(Header&)>& damage) {
    const std::string text = refused(damage);
    EXPECT_NE(text.find("it cannot hold a feed of "), std::string::npos) << which << ": '" << text << "'";
  };
  says_feed("no slots", [](Header& h) { h.feed_slots = 0; });
  says_feed("too many slots", [](Header& h) { h.feed_slots = SlotTable::kMostSlots + 1; });
  says_feed("all slots", [](Header& h) { h.feed_slots = UINT32_MAX; });
  says_feed("more than fit", [](Header& h) { h.feed_slots = 1000; });
  says_feed("no pages", [](Header& h) { h.feed_pages = 0; });
  says_feed("a page less", [](Header& h) { --h.feed_pages; });
  says_feed("more than the file has", [](Header& h) { h.feed_pages += 3; });
  says_feed("all pages", [](Header& h) { h.feed_pages = UINT32_MAX; });
  says_feed("no array", [](Header& h) { h.has_named_array = 0; });
  says_feed("a channel", [](Header& h) { h.channel_slots = 1; });
  says_feed("a tensor pool", [](Header& h) {
    h.is_tensor_pool = 1;
    h.has_named_array = 0;
  });
  says_feed("one block", [](Header& h) { h.blocks = 1; });
  says_feed("three blocks", [](Header& h) { h.blocks = 3; });
}

TEST_F(FilesOfFeeds, AControlPartThatWasNeverWrittenIsOfNoFeed) {
  MutexOwner other;
  const std::string path = concat("/proc/self/fd/", segment_->file().fd());
  const auto second = Segment::open(os::File(open(path.c_str(), O_RDWR | O_CLOEXEC)), false, other);
  EXPECT_EQ(second->control().served(), nullptr);
  reap_all(second->control());
  publish(segment_->control().has_state(), 1u);
  ASSERT_NE(second->control().served(), nullptr);
  EXPECT_EQ(second->control().feed_slots, kSlots);
  store(segment_->control().served()->told, uint64_t{7});
  EXPECT_EQ(look(second->control().served()->told), 7U);
}

// Lives, places, and the states of the blocks of an allocator have memory only if they were used.
TEST_F(Layout, WhatWasNeverUsedHasNoMemory) {
  const auto committed = [](const Segment& segment) {
    os::FileFacts facts;
    EXPECT_TRUE(os::facts_of(segment.file(), &facts));
    return facts.committed_nbytes;
  };
  EXPECT_EQ(committed(*segment_), 3 * kPage + kPlaceStride) << "the header, 64 lives, the block, a place";
  SegmentPlan plan;
  plan.data_nbytes = 1 << 20;
  plan.blocks = kMostBlocks;
  const std::unique_ptr<Segment> many = Segment::create(plan, mutex_owner_);
  const uint64_t step = kBlockStep * kBlockStride;
  EXPECT_EQ(committed(*many), 2 * kPage + step + kPlaceStride);
  // No look at the blocks and places, here or in another process, changes that.
  MutexOwner other;
  const std::string path = concat("/proc/self/fd/", many->file().fd());
  {
    const auto second = Segment::open(os::File(open(path.c_str(), O_RDWR | O_CLOEXEC)), true, other);
    EXPECT_FALSE(second->use(kMostBlocks - 1, 0));
    EXPECT_EQ(second->status_of({kMostMessages - 1, 7}), MessageStatus::kUnknown);
    EXPECT_FALSE(second->has_sent());
    EXPECT_TRUE(second->bytes_of(kMostBlocks - 1).empty());
    reap_all(second->control());
  }
  EXPECT_EQ(committed(*many), 2 * kPage + step + 2 * kPlaceStride);
  for (uint32_t i = 0; i <= kBlockStep; ++i) {
    many->commit_block(i);
    many->take_block(i, 0, 1);
  }
  EXPECT_EQ(committed(*many), 2 * kPage + 2 * step + 2 * kPlaceStride);
  for (uint32_t i = 0; i <= kBlockStep; ++i) (void)many->leave(i);
}

TEST_F(Files, ThereIsRoomForAllParticipantsAndNoMore) {
  const std::string path = concat("/proc/self/fd/", segment_->file().fd());
  struct Other {
    std::unique_ptr<MutexOwner> mutex_owner = std::make_unique<MutexOwner>();
    std::unique_ptr<Segment> segment;
  };
  const auto one_more = [&] {
    Other other;
    other.segment = Segment::open(os::File(open(path.c_str(), O_RDWR | O_CLOEXEC)), true, *other.mutex_owner);
    return other;
  };
  std::vector<Other> all;
  while (all.size() + 1 < kParticipants) all.push_back(one_more());
  const std::string text = error_of([&] { (void)one_more(); }, Code::kSystem);
  EXPECT_NE(text.find(concat("all ", kParticipants)), std::string::npos) << text;
  all.pop_back();
  EXPECT_NO_THROW(all.push_back(one_more())) << "a place that was left is free";
}

}  // namespace
}  // namespace tenon::impl
