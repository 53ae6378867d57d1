// SPDX-License-Identifier: Apache-2.0
//
// A segment as this process sees it: its memory file, mapped, and this process' part in it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/os.h"
#include "base/spin_lock.h"
#include "ipc/layout.h"
#include "ipc/names.h"
#include "ipc/participant.h"

namespace tenon::impl {

class ProcessLock;

// Until when a handle that no process has opened keeps its storage, at most.
struct HandleLimits {
  os::Process receiver;  // as long as it lives; pid 0: any process may receive it
  int64_t until_ns = 0;  // of now_ns(); 0: without an end
  bool has_any() const noexcept { return receiver.pid != 0 || until_ns != 0; }
};

struct SegmentPlan {
  std::string name;  // "" for a pool
  uint64_t data_nbytes = 0;
  uint32_t blocks = 1;
  const NamedArray* array = nullptr;
  bool has_huge_pages = false;
  int node = -1;  // of NUMA; -1: any
};

// Threads: any.
class Segment {
 public:
  // Made, mapped and joined; its data have no memory yet. Fails with kNoMemory, kSystem, kValue.
  static std::unique_ptr<Segment> create(const SegmentPlan& plan, MutexOwner& mutex_owner);
  // Of a file that some process has made: checked, mapped and joined. Fails with kValue (it is none, or is
  // damaged), kNoMemory, kSystem.
  static std::unique_ptr<Segment> open(os::File file, bool is_writable, MutexOwner& mutex_owner);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  // Leaves it. Requires: nothing here uses it.
  ~Segment();

  const Header& header() const noexcept { return header_; }
  const os::File& file() const noexcept { return file_; }
  const Control& control() const noexcept { return control_; }
  Block& block(uint32_t i) const noexcept { return control_.block(i); }
  std::byte* data() const noexcept { return data_; }
  std::byte* data_of(uint32_t block) const noexcept {
    return data_ + control_.block(block).begin.load(std::memory_order_relaxed);
  }
  uint64_t data_nbytes() const noexcept { return header_.total_nbytes - header_.data_at; }
  Participant& participant() noexcept { return *participant_; }
  ProcessLock& lock(uint32_t block);
  bool is_creator() const noexcept { return is_creator_; }
  bool is_writable() const noexcept { return is_writable_; }
  // Fails with kSystem.
  void make_writable();

  // Gives a block that is free to a storage of this process. Creator only.
  void take_block(uint32_t block, uint64_t begin, uint64_t nbytes) noexcept;
  // Another use of a block in this process, which was handed on as of this generation. False: it is gone.
  bool use(uint32_t block, uint32_t generation) noexcept;
  // Ends a use. True: it was this process' last of that block.
  bool leave(uint32_t block) noexcept;
  // If no process uses the block and no handle to it is under way: frees it. Creator only.
  bool free_if_unused(uint32_t block) noexcept;
  bool is_used_here(uint32_t block) noexcept;
  // The process that made it lives.
  bool is_creator_alive() const noexcept;
  // Uses of all blocks by this process.
  uint32_t users() const noexcept {
    // pairs with: Segment::leave, "a use that has ended"
    return users_.load(std::memory_order_acquire);
  }

  // What this process has lent by pickling: the number that use of the handle takes back; 0: it is one of
  // those that are counted without a number, because there was no place for one.
  uint32_t send(uint32_t block) noexcept;
  void receive(uint32_t block, uint32_t number) noexcept;
  // Something that it has lent so is still under way.
  bool has_sent() const noexcept;
  // Takes back what it has lent so of a block: how many.
  uint32_t revoke(uint32_t block) noexcept;
  // A handle that was sent keeps the block until then, at most, instead of what was said of it before. False:
  // it has no number. Requires: this process has sent it.
  bool limit(uint32_t block, uint32_t number, const HandleLimits& limits);
  bool has_limited() const noexcept { return limited_count_.load(std::memory_order_relaxed) != 0; }
  // Takes back what has reached its limit. True: something is left that has limits.
  bool end_limited() noexcept;

  // Keeps the segment's name for this process, until it leaves the segment.
  void keep_name(NameHold hold) noexcept { name_ = std::move(hold); }
  bool keeps_name() const noexcept { return static_cast<bool>(name_); }

  // A thread of this process sleeps on an event of the segment's channel, so a signal has to wake it.
  void begin_wait(SharedEvent& event) noexcept;
  void end_wait(SharedEvent& event) noexcept;

  // For forks. The result: the child's place.
  Participant::Reserved before_fork() noexcept;
  void after_fork() noexcept;
  void become_child() noexcept;

  static constexpr uint32_t kNone = UINT32_MAX;

 private:
  Segment() = default;
  void map(bool is_writable, int node);
  void join(MutexOwner& mutex_owner);

  Header header_{};
  os::File file_;
  PlaceLocks places_{file_};
  Control control_;
  std::byte* data_ = nullptr;
  bool is_writable_ = false;
  bool is_creator_ = false;
  std::unique_ptr<Participant> participant_;
  NameHold name_;

  SpinLock uses_lock_;
  // Guarded by uses_lock_.
  std::vector<uint32_t> uses_;                       // of each block, by this process
  std::vector<std::unique_ptr<ProcessLock>> locks_;  // of those that were used here
  struct Waits {
    const SharedEvent* event = nullptr;
    uint32_t threads = 0;
  };
  static constexpr size_t kMostEvents = 2;  // of one channel
  Waits waits_[kMostEvents];
  struct Limited {
    uint32_t block;
    uint32_t number;
    HandleLimits limits;
  };
  std::vector<Limited> limited_;  // handles that were sent
  std::atomic<size_t> limited_count_{0};
  std::atomic<uint32_t> users_{0};
};

}  // namespace tenon::impl
