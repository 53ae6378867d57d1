// SPDX-License-Identifier: Apache-2.0
//
// A segment in this process: its memory file, mapped, and this process as its participant.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/os.h"
#include "base/spin_lock.h"
#include "device/shared_memory.h"
#include "ipc/cleaner.h"
#include "ipc/layout.h"
#include "ipc/message_table.h"
#include "ipc/names.h"
#include "ipc/participant.h"
#include "ipc/pinned_pages.h"
#include "ipc/private_pages.h"

namespace tenon::impl {

class ProcessLock;

// How long a handle keeps its storage, at most, if no process opens it.
struct HandleLimits {
  os::Process receiver;  // until this process ends; pid 0: any process may receive it
  int64_t until_ns = 0;  // on the clock of now_ns(); 0: no limit
};

struct SegmentPlan {
  std::string name;  // "" for a pool
  uint64_t data_nbytes = 0;
  uint32_t blocks = 1;
  const NamedArray* array = nullptr;
  bool has_huge_pages = false;
  int node = -1;              // of NUMA; -1: any
  bool is_on_device = false;  // its one block gets the memory of lie_on()
  bool is_tensor_pool = false;
  uint32_t pinned_unit = 0;    // of a tensor pool: as PoolHead
  uint32_t channel_slots = 0;  // of a channel
  uint32_t feed_slots = 0;     // of a feed, as the next one
  uint32_t feed_pages = 0;     // of its control part
};

// Threads: any.
class Segment {
 public:
  // Creates a memory file, maps it and takes a place. Its data have no memory yet. Fails with kNoMemory,
  // kSystem, kValue.
  static std::unique_ptr<Segment> create(const SegmentPlan& plan, MutexOwner& mutex_owner);
  // Checks and maps the file of another process, and takes a place. pool: the tensor pool that it must be, or
  // null. Fails with kValue (it is not a segment, is another one, or is damaged), kNoMemory, kSystem.
  static std::unique_ptr<Segment> open(os::File file, bool is_writable, MutexOwner& mutex_owner,
                                       const SegmentId* pool = nullptr);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  // Frees the place. Requires: this process does not use a block.
  ~Segment();

  const Header& header() const noexcept { return header_; }
  const os::File& file() const noexcept { return file_; }
  const Control& control() const noexcept { return control_; }
  Block& block(uint32_t i) const noexcept { return control_.block(i); }
  std::byte* data() const noexcept { return data_; }
  // On a device: after lie_on() or keep_memory().
  std::byte* data_of(uint32_t block) const noexcept {
    std::byte* const base = memory_ != nullptr ? memory_->data() : data_;
    return base + control_.block(block).begin.load(std::memory_order_relaxed);
  }
  // The bytes of a used block on the host, as far as they lie inside of the data; none: there is no such
  // block.
  std::span<std::byte> bytes_of(uint32_t block) const noexcept;
  // The lock of the block from now on, unless the block has one. Fails with std::bad_alloc.
  ProcessLock& set_lock(uint32_t block, std::unique_ptr<ProcessLock>&& lock);
  uint64_t data_nbytes() const noexcept { return header_.total_nbytes - header_.data_at; }
  Participant& participant() noexcept { return *participant_; }
  // Fails with kSystem: this process is a forked child that has no place.
  [[noreturn]] void throw_no_place() const;
  ProcessLock& lock(uint32_t block);
  bool is_writable() const noexcept { return is_writable_; }
  // Fails with kSystem.
  void make_writable();

  // Of the data. Null: they lie on a device.
  PrivatePages* private_pages() noexcept { return private_pages_.get(); }
  // Of a tensor pool whose pages processes pin; null: of others.
  PinnedPages* pinned_pages() const noexcept { return pinned_pages_.get(); }
  bool is_pinned_here() const noexcept { return pinned_pages_ != nullptr && pinned_pages_->is_any(); }
  // Processes send its blocks by messages, and take no turns on them.
  bool is_tensor_pool() const noexcept { return header_.is_tensor_pool != 0; }
  // Most of its memory may have no pages: that of slots and of a pool which were never lent.
  bool is_sparse() const noexcept {
    return header_.channel_slots != 0 || header_.feed_slots != 0 || is_tensor_pool();
  }
  PoolHead& pool_head() const noexcept {
    return *reinterpret_cast<PoolHead*>(control_.base + pool_head_at(header_.blocks));
  }
  MessageRecord& message(uint32_t i) const noexcept { return control_.message(i); }
  // A record that was never used, whose memory is allocated; kNone: there is none. Fails with kNoMemory,
  // kSystem.
  uint32_t new_message();
  // This process, as the sender of messages (Sender); 0: it has no place.
  uint64_t sender() const noexcept;

  bool is_on_device() const noexcept { return (header_.required & kOnDevice) != 0; }
  // Where the bytes of the blocks are. On a device: after lie_on() or keep_memory().
  tenon_device device() const noexcept {
    return memory_ != nullptr ? memory_->device() : tenon_device{TENON_CPU, 0};
  }
  // The memory on a device is gone with the process that had allocated it.
  bool has_lost_memory() const noexcept { return is_on_device() && !is_creator_alive(); }
  // Gives a new segment on a device its memory, unless it fails. Fails with kNoMemory.
  void lie_on(std::unique_ptr<device::SharedMemory>&& memory);
  // Fails with kNotFound: has_lost_memory().
  void check_memory() const;
  // Maps the memory of a segment on a device into this process. Calls the driver, which may take long.
  // Requires a use of the block, which keeps the memory. Fails with kNotFound (the creator has ended; this
  // process does not see the device), kValue, kSystem.
  std::unique_ptr<device::SharedMemory> open_memory() const;
  // The memory may be given back: this process has not allocated it, or no other process uses it. Requires:
  // this process does not use a block.
  bool may_end_memory() noexcept;
  // This process does not use its memory on the device. Other processes do, or have a moment ago.
  bool is_left_to_others(tenon_device device) const noexcept;

  // Guarded by the lock of Segments. If several threads have called open_memory(), the segment keeps the
  // first mapping.
  bool has_memory() const noexcept { return memory_ != nullptr; }
  void keep_memory(std::unique_ptr<device::SharedMemory>&& memory) noexcept;
  // Its end calls the driver: it frees, unmaps or unpins memory.
  bool must_end_memory() const noexcept {
    return is_pinned_here() || (memory_ != nullptr && memory_->is_usable());
  }
  std::unique_ptr<device::SharedMemory> take_memory() noexcept { return std::move(memory_); }

  // Allocates the memory for the state of a block, unless it has some. Creator only, one thread at a time.
  // Fails with kNoMemory, kSystem.
  void commit_block(uint32_t block);
  // Gives a free block, whose state has memory, to a storage of this process. Creator only.
  void take_block(uint32_t block, uint64_t begin, uint64_t nbytes) noexcept;
  // Begins a use of a block by a storage of this process. kNo: the block does not have this generation any
  // more. kIsClosing: some process looks whether it is unused. If another process uses it, it is soon as
  // before; else it is freed.
  enum class Used { kYes, kNo, kIsClosing };
  Used try_use(uint32_t block, uint32_t generation) noexcept;
  bool use(uint32_t block, uint32_t generation) noexcept { return try_use(block, generation) == Used::kYes; }
  // Ends a use. True: it was the last one of the block in this process.
  bool leave(uint32_t block) noexcept;
  // Counts among users(): the segment stays open, as for a block, until the second call.
  void begin_stay() noexcept { users_.fetch_add(1, std::memory_order_relaxed); }
  void end_stay() noexcept {
    // pairs with: Segment::users, "a use that has ended"
    users_.fetch_sub(1, std::memory_order_release);
  }
  // Frees the block if no process uses it and no handle on it is unopened. Creator only.
  bool free_if_unused(uint32_t block) noexcept;
  // The same in two steps, between which no process can use the block. The first one may be repeated, if
  // another process has ended after it. Creator, or cleaner.
  bool close_if_unused(uint32_t block) noexcept;
  void free_closed(uint32_t block) noexcept;
  // The block is not free, no process uses it, and no handle on it is unopened.
  bool is_unused(uint32_t block) const noexcept;
  bool is_used_here(uint32_t block) noexcept;
  // The creator's process lives, and has the segment open.
  bool is_creator_alive() const noexcept;
  // Its blocks are those of an allocator in another process, so they need a cleaner after the end of that
  // process.
  bool needs_cleaner() const noexcept;
  Cleaner& cleaner() noexcept { return cleaner_; }
  bool is_creator() const noexcept { return is_creator_; }
  // The number of uses of all blocks by this process, and of stays.
  uint32_t users() const noexcept {
    // pairs with: Segment::leave, "a use that has ended"
    return users_.load(std::memory_order_acquire);
  }

  // A new handle on a block that this process uses. It keeps the block until a process opens it, or this one
  // ends. Fails with kNoMemory (there are too many handles), kSystem.
  MessageId send(uint32_t block);
  // Counts an open, by a process that uses the block. kLive: the handle may be opened; else why it has ended.
  MessageStatus receive(const MessageId& handle) noexcept;
  // This process keeps the block of a handle of another one, too, at most until then (0: no limit). Fails
  // with std::bad_alloc.
  Kept take_over(const MessageId& handle, int64_t until_ns);
  // kLive, or why it has ended.
  MessageStatus status_of(const MessageId& handle) const noexcept;
  // This process keeps an unopened handle.
  bool has_sent() noexcept;
  // Ends the unopened handles on a block that this process keeps. Returns how many there were.
  uint32_t revoke(uint32_t block) noexcept;
  // Sets how long a handle of this process keeps the block at most, instead of earlier limits. Fails with
  // kNoMemory (the handle has no record of its own).
  void limit(const MessageId& handle, const HandleLimits& limits);
  // Only so many processes may open a handle of this process, as MessageWord. False: it has ended. Fails as
  // limit().
  bool set_opens(const MessageId& handle, uint32_t opens);
  // So many records were used that other processes may need those of ended handles.
  bool has_many_messages() const noexcept {
    return control_.used_messages() > kPage / sizeof(MessageRecord) && !is_tensor_pool();
  }
  // Ends the handles whose receivers have ended, and what has reached its limit here. True: it must be called
  // again later.
  bool end_limited() noexcept;

  // Keeps the segment's name until this process leaves the segment.
  void keep_name(NameHold hold) noexcept { name_ = std::move(hold); }
  bool keeps_name() const noexcept { return static_cast<bool>(name_); }
  // Users of the name in this process, guarded by the lock of Segments. After the last one has ended, the
  // segment gives up the name, though it may stay open.
  void begin_name_use() noexcept { ++name_uses_; }
  bool end_name_use() noexcept { return --name_uses_ == 0; }
  void drop_name() noexcept { name_ = NameHold(); }

  // How many deaths in the segment's channel were counted while this process took its place, and how many
  // before: it may have reaped the process that had the place. None from the second call on.
  struct DeathsWhileJoining {
    uint64_t before, count;
  };
  DeathsWhileJoining take_deaths_while_joining() noexcept {
    return {deaths_before_joining_, deaths_while_joining_.exchange(0, std::memory_order_relaxed)};
  }

  // A thread of this process sleeps on an event of the segment's channel, so a signal must wake it.
  void begin_wait(SharedEvent& event) noexcept;
  void end_wait(SharedEvent& event) noexcept;

  // For forks. The first one may wait for a thread that uses the messages. Then before_fork() returns the
  // child's place.
  void lock_messages() noexcept { messages_lock_.lock(); }
  Participant::Reserved before_fork() noexcept;
  void after_fork() noexcept;
  void become_child() noexcept;
  // Before a fork in a process without /proc: another open file description, which the child takes.
  void give_child(os::File file) noexcept { child_file_ = std::move(file); }

  static constexpr uint32_t kNone = UINT32_MAX;

 private:
  Segment() = default;
  void map(bool is_writable, int node);
  void make_pinned_pages();
  void read_record();
  void join(MutexOwner& mutex_owner);
  bool keeps(uint32_t record, uint32_t block) const noexcept;
  bool has_handles(uint32_t block) const noexcept;
  bool take_message(uint32_t i, uint64_t self) noexcept;
  uint32_t take_message(uint64_t self);
  bool give_messages() noexcept;
  bool is_own(const MessageId& handle) const noexcept;
  bool keeps_message(const MessageRecord& record, uint64_t word) const noexcept;
  static void check_alone(const MessageRecord& record);
  void drop_kept() noexcept;
  void end_for_receiver(const MessageId& handle) noexcept;

  Header header_{};
  os::File file_;
  os::File child_file_;  // only during a fork
  PlaceLocks places_{file_};
  Control control_;
  std::byte* data_ = nullptr;
  std::unique_ptr<PrivatePages> private_pages_;  // constant from map() on
  std::unique_ptr<PinnedPages> pinned_pages_;    // constant from map() on
  bool is_writable_ = false;
  bool is_creator_ = false;
  // On a device. Constant from keep_memory() to the end of the last use; null: not mapped here.
  std::unique_ptr<device::SharedMemory> memory_;
  device::SharedMemoryRecord record_;  // of a segment on a device
  std::unique_ptr<Participant> participant_;
  NameHold name_;
  uint32_t name_uses_ = 0;
  Cleaner cleaner_;
  uint32_t committed_blocks_ = 0;  // whose states have memory

  SpinLock uses_lock_;
  // Guarded by uses_lock_.
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<uint32_t[], Free>
      uses_;                 // of each block, by this process; has no memory until it is written
  bool has_mapped_ = false;  // memory of another process, perhaps until the end
  std::vector<std::unique_ptr<ProcessLock>> locks_;  // of blocks that were used here
  struct Waits {
    const SharedEvent* event = nullptr;
    uint32_t threads = 0;
  };
  static constexpr size_t kMostEvents = 2;  // of one channel
  Waits waits_[kMostEvents];

  // Held for as long as a search of all records, an allocation of memory for them, or a call of reap().
  std::mutex messages_lock_;
  // Guarded by messages_lock_.
  struct Limited {
    MessageId handle;
    os::Process receiver;  // of a handle of this process
    int64_t until_ns;      // of one that this process keeps for another
    bool is_kept;
  };
  std::vector<Limited> limited_;
  uint32_t next_message_ = 0;  // where the search for a record begins

  std::atomic<uint32_t> users_{0};
  uint64_t deaths_before_joining_ = 0;
  std::atomic<uint64_t> deaths_while_joining_{0};
};

}  // namespace tenon::impl
