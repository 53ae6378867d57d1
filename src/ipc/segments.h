// SPDX-License-Identifier: Apache-2.0
//
// The shared arrays of this process: creation, names, handles, and the blocks that the arrays use.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "array/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/spin_lock.h"
#include "device/submitted_work.h"
#include "ipc/handle.h"
#include "ipc/names.h"
#include "ipc/open_segments.h"
#include "ipc/segment_forks.h"

namespace tenon::impl {

class PoolLinks;
class PoolServers;
class TensorPools;

struct SharedOptions {
  std::string name;  // "": other processes open the array only by its handle
  bool has_huge_pages = false;
  bool is_populated = false;
  int node = -1;  // the NUMA node; -1: any
  tenon_device device{TENON_CPU, 0};
  bool opens_existing = false;  // of create_blocks(): memory that has the name, if there is some
  uint32_t channel_slots = 0;   // of a channel, whose state is the beginning of the memory
  // So many bytes of the memory get pages when it is made; all of them if it is populated.
  uint64_t committed_nbytes = UINT64_MAX;
  // Initializes the memory, before another process can find it by its name.
  std::function<void(std::byte*)> prepare;
};

// The memory of a feed that may be served.
struct FeedMemoryPlan {
  std::string name;
  uint32_t slots = 0;
  uint64_t control_nbytes = 0;  // from ServedState on
  uint64_t slots_nbytes = 0;    // of all
  // Initializes what lies behind the parts of served_state.h in the control part.
  std::function<void(std::byte*)> prepare;
};

// Fails with kValue.
void check_name(const std::string& name);

// One for each process, never destroyed. Threads: any.
class Segments {
 public:
  static Segments& instance();

  // A new array in C order. flags: TENON_ZEROED, TENON_SUBBYTE_PADDED. Fails with kNoMemory, kSystem, kType,
  // kValue (shape, options, or the name is taken), and on a device as Device::of.
  Ref<Array> create(DType dtype, Dims shape, uint32_t flags, const SharedOptions& options);
  // A new segment of the host with one block for each size. Returns the first block as an array of bytes. The
  // bytes of the others stay as long as this array. Or opens the memory that has the name, in one step with
  // the look for it: then options.prepare is not called. Fails as create().
  Ref<Array> create_blocks(std::span<const uint64_t> sizes, const SharedOptions& options);
  // A new segment with the control part of a feed and its slots, which have no memory. Nobody can attach to
  // it before take_name(). Returns the control part. Fails as create().
  Ref<Array> create_feed(const FeedMemoryPlan& plan);
  // The segment with this control part of a feed. Fails with kValue (it is none).
  static Segment& feed_segment_of(const Array& control);
  static bool is_feed(const Array& array) noexcept;
  // The segment of a feed gets its name. Fails as create().
  void take_name(const Array& control);
  // The segment keeps its name until each use of it in this process has ended, or the segment is closed.
  void begin_name_use(const Array& control);
  void end_name_use(const Array& control) noexcept;
  // The segment of an array that begins with the segment's first block. This process may write to it from now
  // on. Fails with kValue (the array is not shared, or lies on another block), kSystem.
  Segment& writable_segment_of(const Array& first);

  // The array that a process of this user has created with this name. Fails with kNotFound, kValue (damaged),
  // kSystem.
  Ref<Array> attach(const std::string& name, bool is_readonly);

  // A handle, with which another process can open the array. It keeps the storage until a process opens it.
  // Fails with kType (the memory is not shared).
  std::string handle_of(const Array& array);
  // The unopened handles of this process on the array's storage do not keep it any longer. Returns how many
  // there were. Fails with kType (the memory is not shared).
  uint32_t revoke(const Array& array);
  // Sets how long a handle keeps the storage at most. Fails with kValue (this process has not sent such a
  // handle), kNoMemory (there were too many handles when it was made).
  void limit(std::span<const std::byte> handle, const HandleLimits& limits);
  // Lets only so many processes open a handle, and notes that in its bytes. 0: any number. Fails with kValue
  // (this process has not sent such a handle, or it has ended).
  void set_opens(std::span<std::byte> handle, uint32_t opens);
  // Fails with kNotFound (the array does not exist any more, or cannot be reached: the message says why),
  // kValue (not a handle), kGone (only a number of processes may open it).
  Ref<Array> open(std::span<const std::byte> handle);
  // The same, but if the array cannot be opened, an array whose uses fail. Fails with kValue (not a handle),
  // std::bad_alloc.
  Ref<Array> open_or_lose(std::span<const std::byte> handle);
  // This process keeps the storage of a handle of another process, too, at most until then (0: no limit).
  // False: a process has opened it, or its sender has revoked it. Fails as open().
  bool take_over(std::span<const std::byte> handle, int64_t until_ns);
  // Whether no process has opened a handle that this process has sent.
  bool is_unopened(std::span<const std::byte> handle);

  // Returns memory that arrays of this process do not use any more to the system, when there was none for
  // others. False: there was none.
  bool trim() {
    const std::scoped_lock locked(lock_);
    look_at_ended_uses();
    return open_.trim_blocks();
  }

  // Another process can open it by a handle or a name.
  static bool is_shared(const Array& array) noexcept;

  // The mutex owner soon frees the blocks and segments that no process uses any more.
  static void nudge() noexcept;

  // Calls visit(segment) for every open segment.
  template <class Visit>
  void visit(Visit visit) {
    const std::scoped_lock locked(lock_);
    open_.visit(visit);
  }

 private:
  friend class PoolLinks;
  friend class PoolServers;
  friend class TensorPools;
  friend std::unique_lock<std::mutex> lock_open(const Segment& at_least, std::vector<const Segment*>* open);
  Segments();

  // The use of a block by a storage. If the block is pinned here, it ends after the work that was submitted
  // to GPUs before its last view went. After its end, it is in the list ended_uses_ until the next sweep,
  // which frees the block or closes the segment. The segment may be closed before that.
  struct BlockUse : device::AfterWork {
    BlockUse(Segment* in, uint32_t number) noexcept : segment(in), block(number), id(in->header().id) {}
    Segment* segment;
    uint32_t block;
    SegmentId id;
    BlockUse* next_use = nullptr;      // in ended_uses_ or late_uses_
    BlockUse* previous_use = nullptr;  // in late_uses_
  };
  static void end_use(void* owner);
  void note_end(BlockUse* use, bool is_of_pool) noexcept;
  bool end_later(BlockUse* use) noexcept;
  void drop_late(const BlockUse* use) noexcept;
  struct EndUse {
    void operator()(BlockUse* use) const noexcept { end_use(use); }
  };
  using Use = std::unique_ptr<BlockUse, EndUse>;
  static const BlockUse* use_of(const Array& array);
  static const BlockUse& checked_use_of(const Array& array);  // fails with kType
  // Thrown if a block cannot be used because some process looks whether it is unused (Segment::try_use).
  struct BlockIsClosing {};
  static constexpr int64_t kClosingNs = 1'000'000'000, kDyingNs = 100'000'000;
  // Thrown if a segment cannot be opened here, and a process to which this one is linked may give it.
  struct Unreached {
    SegmentId segment;
    Error why;
  };
  // Asks them. False: none has given it. Fails with kInterrupted.
  static bool ask_links(const SegmentId& segment);
  // Returns open(false). Calls it again while it throws BlockIsClosing: the process that looks may be
  // stopped, or wait long for a processor. After 1 s, open(true), which fails instead. If it throws
  // Unreached, asks the links before the next call, and does not count the time that this takes. If no link
  // gives the memory, the sender or its message may have ended since the call began. So it is called again
  // for a moment, in which the system ends a killed process, and says so. Requires that the caller does not
  // hold lock_.
  template <class Open>
  static auto open_patiently(Open open) {
    constexpr int kMostAsked = 256;  // a segment whose creator has ended may be closed again at once
    int64_t until_ns = now_ns() + kClosingNs;
    int asked = 0;
    int64_t refused_until_ns = 0;  // 0: a link may give it
    while (true) {
      const bool is_last = now_ns() >= until_ns;
      try {
        return open(is_last);
      } catch (const BlockIsClosing&) {
        sleep_for_a_moment();
      } catch (const Unreached& unreached) {
        const int64_t since_ns = now_ns();
        if (refused_until_ns != 0 && since_ns >= refused_until_ns) throw Error(unreached.why);
        if (refused_until_ns != 0) {
          sleep_for_a_moment();
        } else if (asked++ < kMostAsked && ask_links(unreached.segment)) {
          until_ns += now_ns() - since_ns;
        } else {
          refused_until_ns = now_ns() + kDyingNs;
        }
      }
    }
  }
  static void sleep_for_a_moment() noexcept;
  template <class Run>
  auto with_name(const std::string& name, NameLock::Make make, Run run);
  bool free_name(const std::string& name, NameLock& lock);
  template <class Create>
  Ref<Array> create_with(const std::string& name, Create create, bool opens_existing = false);
  Use begin_named_use(Segment& segment, NameLock& lock, bool is_readonly, bool is_last);
  Ref<Array> named_array_on(Use use, bool is_readonly);

  static std::chrono::milliseconds sweep_in_mutex_owner() noexcept;
  static bool begin_sweep() noexcept;
  void begin_sweeps() noexcept;
  void schedule_sweep() noexcept;  // requires lock_
  void end_memory_beside() noexcept;
  // These require lock_. With a lock as an argument, they unlock it during calls of the driver.
  void open_memory(const BlockUse& use, std::unique_lock<std::mutex>& locked);
  void end_memory(std::unique_lock<std::mutex>& locked) noexcept;
  void look_at_ended_uses();
  void sweep_some();
  bool sweep_all();
  void commit_data(Segment& segment, uint64_t nbytes, const std::string& what);
  Segment& make_alone(const NamedArray& array, std::span<const uint64_t> sizes, const SharedOptions& options);
  Ref<Array> create_on_device(DType dtype, Dims shape, uint32_t flags, const SharedOptions& options);
  Ref<Array> take_over(Segment& segment, uint32_t block, DType dtype, Dims shape, uint32_t flags,
                       const SharedOptions& options);
  Use begin_use(Segment& segment, uint32_t block, uint32_t generation, bool is_readonly, bool is_last = true);
  Ref<Storage> storage_of(Use use, bool is_readonly);
  static Ref<Storage> adopt(Use use, bool is_readonly);
  static Ref<Array> array_on(const Ref<Storage>& storage, int64_t offset, DType dtype, uint32_t flags,
                             Dims shape, Dims strides);
  Segment* open_named(const std::string& name, const NameLock& lock, bool is_writable, Code unreachable,
                      OpenSegments::CloseUnused& opened);
  Ref<Array> open(const ArrayHandle& handle, const std::function<void(Segment&)>& then);
  Ref<Array> try_open(const ArrayHandle& handle, const std::function<void(Segment&)>& then, bool is_last);
  Segment* own_segment_of(const ArrayHandle& handle);
  Segment& reach(const SegmentId& id, const os::Process& sender, int fd, OpenSegments::CloseUnused& opened);

  // Opens the memory of a tensor pool whose file another process has given, and whose owner was checked.
  // Fails as Segment::open, and with kValue (it is another segment, or no tensor pool).
  Segment& add_pool(os::File file, const SegmentId& expected);

  bool end_unused_memory(tenon_device device);

  void before_fork() noexcept;
  void after_fork() noexcept;
  void become_child() noexcept;
  static void remove_names_at_exit();

  std::mutex lock_;
  std::atomic<BlockUse*> ended_uses_{nullptr};
  SpinLock late_lock_;
  BlockUse* late_uses_ = nullptr;          // wait for work on GPUs; guarded by late_lock_
  std::atomic<bool> needs_sweeps_{false};  // this is a forked child without a thread for them
  std::atomic<bool> is_sweep_due_{false};  // the mutex owner sweeps again in any case; set under lock_
  // Guarded by lock_.
  OpenSegments open_;
  SegmentForks forks_;
  std::unique_ptr<TensorPools> tensor_pools_;
  std::unique_ptr<PoolServers> pool_servers_;
  std::unique_ptr<PoolLinks> pool_links_;
  bool has_cleaned_names_ = false;
  bool ends_memory_beside_ = false;  // a thread does
};

// The open segments of this process, with at_least among them. No thread closes one while the result exists.
// Other segments than at_least, which the caller uses, are missing if another thread holds the lock.
std::unique_lock<std::mutex> lock_open(const Segment& at_least, std::vector<const Segment*>* open);

}  // namespace tenon::impl
