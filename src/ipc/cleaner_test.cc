// SPDX-License-Identifier: Apache-2.0
//
// After the end of a creator, any process that has its segment open frees what no process uses. Oracle: all
// blocks but those of the survivors are free, and the memory file has their pages only, whichever step of the
// creator or of an earlier cleaner was the last one. The bytes of the survivors never change.
//
// The creator or cleaner is another process that stops at one of its stores (stop_at_store). The test looks
// at the segment meanwhile, then kills it there, or lets it go on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/block_allocator.h"
#include "ipc/segments.h"
#include "ipc/stand_in_testing.h"
#include "tenon/share.hpp"

namespace tenon::impl {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kData = uint64_t{64} << 20;
constexpr uint64_t kArray = 40'000;  // ends inside of a page
constexpr uint32_t kKept = 3;        // the block that a survivor uses

std::byte mark_of(uint32_t block) { return std::byte(block + 1); }

uint64_t committed_nbytes(const os::File& file) {
  os::FileFacts facts;
  EXPECT_TRUE(os::facts_of(file, &facts));
  return facts.committed_nbytes;
}

// Returns all memory of the data to the system. Returns how much that was.
uint64_t take_data(const Segment& segment) {
  const uint64_t before = committed_nbytes(segment.file());
  EXPECT_TRUE(os::punch(segment.file(), segment.header().data_at, segment.data_nbytes()));
  return before - committed_nbytes(segment.file());
}
uint64_t pages_of(uint64_t begin, uint64_t nbytes) {
  return round_up(begin + nbytes, kPage) - begin / kPage * kPage;
}

std::string path_of(const Segment& segment) {
  return concat("/proc/", getpid(), "/fd/", segment.file().fd());
}
std::unique_ptr<Segment> open_path(const std::string& path, MutexOwner& mutex_owner) {
  return Segment::open(os::File(::open(path.c_str(), O_RDWR | O_CLOEXEC)), true, mutex_owner);
}

// Fills new blocks of an allocator, from this one on.
void fill_blocks(BlockAllocator& allocator, uint32_t begin, uint32_t end) {
  for (uint32_t i = begin; i < end; ++i) {
    const AllocatedBlock made = allocator.allocate(kArray);
    std::memset(allocator.segment().data() + made.begin, static_cast<int>(mark_of(made.block)), kArray);
  }
}

// --------------------------------------------------------------------------------------------- the peers

void clean_up(Segment& segment) {
  while (segment.cleaner().look(segment) < 100ms) {
  }
}

// It says its path, and waits. Then it stops at the store with the number that it reads.
int be_creator() {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  MutexOwner mutex_owner;
  SegmentPlan plan;
  plan.data_nbytes = kData;
  plan.blocks = 64;
  const std::unique_ptr<Segment> segment = Segment::create(plan, mutex_owner);
  BlockAllocator allocator(*segment);
  fill_blocks(allocator, 0, 8);
  lines.say(path_of(*segment));
  std::string line;
  if (!lines.hear(&line)) return 1;
  const auto leave = [&](uint32_t block) {
    (void)segment->leave(block);
    allocator.note_left(block);
  };
  (void)stop_at_store(std::stol(line));
  leave(0);
  leave(5);
  leave(kKept);
  (void)allocator.reclaim();
  fill_blocks(allocator, 8, 11);
  leave(6);
  (void)segment->send(7);
  (void)allocator.reclaim();
  (void)stop_at_store(0);
  return 0;
}

int be_cleaner(const std::vector<std::string>& words) {
  MutexOwner mutex_owner;
  const std::unique_ptr<Segment> segment = open_path(words[1], mutex_owner);
  (void)stop_at_store(std::stol(words[2]));
  clean_up(*segment);
  (void)stop_at_store(0);
  return 0;
}

// Creates arrays of this size, says their handles, and waits until it is killed. If it forks, the child gives
// up all but the first, and is killed with this process' parent.
int be_owner(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  const bool forks = words[3] == "forks";
  std::vector<api::Array> arrays;
  for (long i = 0, n = std::stol(words[1]); i < n; ++i) {
    arrays.push_back(api::zeros_shared({std::stol(words[2])}, api::dtype_of<uint8_t>()));
    std::memset(arrays.back().data(), static_cast<int>(i + 1), arrays.back().nbytes());
    lines.say(hex(api::send(arrays.back())));
  }
  if (forks) {
    const pid_t child = fork();
    if (child == 0) {
      arrays.resize(1);
      while (true) pause();
    }
    lines.say(concat(child));
  }
  std::string line;
  (void)lines.hear(&line);
  return 0;
}

// ------------------------------------------------------------------------------------------- the stores

// True: it has stopped at a store. False: it has ended.
bool is_stopped(Peer& peer) {
  int status = 0;
  EXPECT_EQ(waitpid(peer.pid(), &status, WUNTRACED), peer.pid());
  if (WIFSTOPPED(status)) return true;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  (void)peer.release();
  return false;
}

// A process that uses one block.
struct Survivor {
  explicit Survivor(const std::string& path) : segment(open_path(path, *mutex_owner)) {
    is_user = segment->use(kKept, segment->block(kKept).generation);
    EXPECT_TRUE(is_user);
  }
  ~Survivor() {
    if (is_user) (void)segment->leave(kKept);
  }
  void expect_bytes() const {
    const std::span<const std::byte> bytes = segment->bytes_of(kKept);
    EXPECT_EQ(bytes.size(), kArray);
    size_t same = 0;
    for (const std::byte b : bytes) same += b == mark_of(kKept) ? 1 : 0;
    EXPECT_EQ(same, kArray) << "the bytes under a view have changed";
  }
  // Last: it returns all memory of the data.
  void expect_only_this_left() const {
    expect_bytes();
    const uint64_t begin = segment->block(kKept).begin;
    EXPECT_EQ(take_data(*segment), pages_of(begin, kArray)) << "bytes of the data are left";
    for (uint32_t i = 0; i < segment->control().used_blocks(); ++i) {
      EXPECT_EQ(look(segment->block(i).state), i == kKept ? BlockState::kUsed : BlockState::kFree) << i;
    }
  }

  std::unique_ptr<MutexOwner> mutex_owner = std::make_unique<MutexOwner>();
  std::unique_ptr<Segment> segment;
  bool is_user = false;
};

class AtEveryStore : public testing::Test {
 protected:
  // While a process is stopped.
  static void expect_no_harm(Survivor& survivor, const std::string& path) {
    (void)survivor.segment->cleaner().look(*survivor.segment);
    survivor.expect_bytes();
    const Survivor newcomer(path);
    newcomer.expect_bytes();
  }
};

TEST_F(AtEveryStore, OfAKilledCreatorAllIsFreedButTheBlocksOfSurvivors) {
  int kills = 0;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    SCOPED_TRACE(concat("store ", kills + 1));
    Peer creator({"creator"});
    std::string path;
    ASSERT_TRUE(creator.hear(&path));
    Survivor survivor(path);
    creator.say(concat(kills + 1));
    is_inside = is_stopped(creator);
    if (is_inside) {
      EXPECT_EQ(survivor.segment->cleaner().look(*survivor.segment), 500ms) << "the creator lives";
      expect_no_harm(survivor, path);
      ++kills;
      creator.kill();
    }
    clean_up(*survivor.segment);
    survivor.expect_only_this_left();
  }
  EXPECT_GT(kills, 20);
  std::cout << kills << " kills\n";
}

// goes_on: the cleaner is not killed. is_second: the survivor has cleaned up before, and a user has left
// since.
struct Stop {
  bool goes_on, is_second;
};
class AtEveryStoreOfACleaner : public AtEveryStore, public testing::WithParamInterface<Stop> {};

TEST_P(AtEveryStoreOfACleaner, AnotherOneEndsItsWorkAndNobodyLosesBytes) {
  int stops = 0, waits = 0;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    SCOPED_TRACE(concat("store ", stops + 1));
    StandIn owner{64, kData};
    BlockAllocator allocator(owner.segment());
    fill_blocks(allocator, 0, 8);
    const std::string path = path_of(owner.segment());
    Survivor survivor(path);
    StandIn other{owner};
    ASSERT_TRUE(other.use(5));
    owner.die();
    if (GetParam().is_second) clean_up(*survivor.segment);
    other.leave(5);
    Peer cleaner({"cleaner", path, concat(stops + 1)});
    is_inside = is_stopped(cleaner);
    if (is_inside) {
      ++stops;
      expect_no_harm(survivor, path);
      waits += survivor.segment->is_unused(5) ? 1 : 0;
      if (GetParam().goes_on) {
        (void)kill(cleaner.pid(), SIGCONT);
        EXPECT_FALSE(is_stopped(cleaner));
      } else {
        cleaner.kill();
      }
    }
    clean_up(*survivor.segment);
    survivor.expect_only_this_left();
  }
  EXPECT_GT(waits, 5) << "a stopped cleaner keeps its lock";
  std::cout << stops << " stops, " << waits << " with the lock\n";
}

INSTANTIATE_TEST_SUITE_P(Cleaner, AtEveryStoreOfACleaner,
                         testing::Values(Stop{false, false}, Stop{false, true}, Stop{true, false},
                                         Stop{true, true}),
                         [](const auto& tested) {
                           return concat(tested.param.goes_on ? "ThatGoesOn" : "ThatIsKilled",
                                         tested.param.is_second ? "AfterAnother" : "");
                         });

TEST(Cleaner, OfAClosedBlockTakesAUserIntoAccount) {
  StandIn owner{64, kData};
  BlockAllocator allocator(owner.segment());
  fill_blocks(allocator, 0, 8);
  Survivor survivor(path_of(owner.segment()));
  owner.segment().block(kKept).state = BlockState::kClosing;  // the creator was killed in the next moment
  owner.die();
  clean_up(*survivor.segment);
  survivor.expect_only_this_left();
}

TEST(Cleaner, FreesWhatALaterDeathGivesUp) {
  StandIn owner{64, kData};
  BlockAllocator allocator(owner.segment());
  fill_blocks(allocator, 0, 8);
  Survivor survivor(path_of(owner.segment()));
  StandIn other{owner};
  ASSERT_TRUE(other.use(5));
  ASSERT_NE(other.segment().send(6).record, Segment::kNone);
  owner.die();
  clean_up(*survivor.segment);
  EXPECT_EQ(look(survivor.segment->block(5).state), BlockState::kUsed);
  EXPECT_EQ(look(survivor.segment->block(6).state), BlockState::kUsed)
      << "a handle of a living process keeps it";
  other.die();
  clean_up(*survivor.segment);
  survivor.expect_only_this_left();
}

TEST(Cleaner, DoesNotTakeAStrangerForTheCreator) {
  StandIn owner{64, kData};
  BlockAllocator allocator(owner.segment());
  fill_blocks(allocator, 0, 8);
  Survivor survivor(path_of(owner.segment()));
  StandIn other{owner};
  owner.die();
  reap_all(survivor.segment->control());
  // It has the number and the start of the creator, as the first processes of two containers without /proc.
  const StandIn stranger{other};
  const Place& place = survivor.segment->control().place(0);
  ASSERT_EQ(look(place.state), PlaceState::kLive);
  ASSERT_EQ(place.pid, survivor.segment->header().creator_pid);
  ASSERT_EQ(place.start, survivor.segment->header().creator_start);
  EXPECT_FALSE(survivor.segment->is_creator_alive());
  clean_up(*survivor.segment);
  survivor.expect_only_this_left();
}

// ------------------------------------------------------------------------------------------- the sweeps

struct Owned {
  const char* name;
  long arrays, nbytes;
  bool forks;
};
class Survivors : public testing::TestWithParam<Owned> {};

// The survivor is this process, or the forked child of the creator.
TEST_P(Survivors, HaveNothingButTheirArraysLeft) {
  const auto [name, n, nbytes, forks] = GetParam();
#if defined(__SANITIZE_THREAD__)
  if (forks) GTEST_SKIP() << "ThreadSanitizer's forked children can have no threads";
#endif
  Peer owner({"owner", concat(n), concat(nbytes), forks ? "forks" : "alone"});
  std::vector<std::string> handles(static_cast<size_t>(n));
  for (std::string& handle : handles) ASSERT_TRUE(owner.hear(&handle));
  pid_t child = 0;
  api::Array kept;
  if (std::string line; forks) {
    ASSERT_TRUE(owner.hear(&line));
    child = static_cast<pid_t>(std::stol(line));
  } else {
    kept = api::open(bytes_of(handles[0]));
  }
  const ArrayHandle handle = ArrayHandle::decode(bytes_of(handles[0]));
  MutexOwner mutex_owner;
  const auto observer = open_path(concat("/proc/", handle.pid, "/fd/", handle.fd), mutex_owner);
  const uint64_t before = committed_nbytes(observer->file());
  owner.kill();
  const auto killed = Clock::now();
  const Block& block = observer->block(handle.block);
  const uint64_t rest = pages_of(block.begin, block.nbytes);
  const uint64_t all = static_cast<uint64_t>(n) * round_up(static_cast<uint64_t>(nbytes), kAlignment);
  EXPECT_TRUE(comes_true([&] { return before - committed_nbytes(observer->file()) + rest >= all; }))
      << before << " bytes before, " << committed_nbytes(observer->file()) << " after";
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - killed).count();
  size_t same = 0;
  for (const std::byte b : observer->bytes_of(handle.block)) same += b == std::byte{1} ? 1 : 0;
  EXPECT_EQ(same, static_cast<size_t>(nbytes));
  EXPECT_TRUE(comes_true([&] { return look(observer->block(handle.block + 1).state) == BlockState::kFree; }));
  EXPECT_EQ(look(block.state), BlockState::kUsed);
  EXPECT_EQ(take_data(*observer), rest);
  if (child != 0) (void)kill(child, SIGKILL);
  std::cout << "the memory was free after " << ms << " ms\n";
}

INSTANTIATE_TEST_SUITE_P(Cleaner, Survivors,
                         testing::Values(Owned{"OfLargeArrays", 100, 1 << 20, false},
                                         Owned{"OfSmallArrays", 1000, 100, false},
                                         Owned{"InAForkedChild", 100, 1 << 20, true}),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace

int be_peer(const std::vector<std::string>& words) {
  if (words[0] == "creator") return be_creator();
  if (words[0] == "cleaner") return be_cleaner(words);
  return be_owner(words);
}

}  // namespace tenon::impl

int main(int count, char** words) {
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_peer);
}
