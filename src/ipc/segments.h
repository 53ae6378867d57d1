// SPDX-License-Identifier: Apache-2.0
//
// The arrays of this process in shared memory, by name and by handle, and the blocks that they use.
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
#include "ipc/handle.h"
#include "ipc/names.h"
#include "ipc/open_segments.h"
#include "ipc/segment_forks.h"

namespace tenon::impl {

struct SharedOptions {
  std::string name;  // "": the array goes to others by its handle alone
  bool has_huge_pages = false;
  bool is_populated = false;
  int node = -1;  // of NUMA; -1: any
  // Writes what the memory begins with, before another process finds it by its name.
  std::function<void(std::byte*)> prepare;
};

// Fails with kValue.
void check_name(const std::string& name);

// One for the process, never destroyed. Threads: any.
class Segments {
 public:
  static Segments& instance();

  // A new array in C order. flags: TENON_ZEROED, TENON_SUBBYTE_PADDED. Fails with kNoMemory, kSystem, kType,
  // kValue (shape, or the name is taken).
  Ref<Array> create(DType dtype, Dims shape, uint32_t flags, const SharedOptions& options);
  // A segment of its own with one block of bytes for each size: the first one. The others: sibling().
  Ref<Array> create_blocks(std::span<const uint64_t> sizes, const SharedOptions& options);
  // Another block of the segment of an array that is the first one. Fails with kValue (there is none).
  Ref<Array> sibling(const Array& first, uint32_t block);
  // The lock of the block on which a shared array lies.
  static ProcessLock& lock_of(const Array& array) noexcept;

  // The array that a process of this user has made under this name. Fails with kNotFound, kValue (damaged),
  // kSystem.
  Ref<Array> attach(const std::string& name, bool is_readonly);

  // What another process needs to open the array. Keeps the storage until one has. Fails with kType (the
  // memory is not shared).
  std::string handle_of(const Array& array);
  // The handles on the array's storage that this process has sent, and no process has opened, keep it no
  // longer: their number. Fails with kType (the memory is not shared).
  uint32_t revoke(const Array& array);
  // A handle of this process keeps the storage until then, at most. Fails with kValue (it is no handle that
  // this process has sent; or there were so many on the storage that this one has no number).
  void limit(std::span<const std::byte> handle, const HandleLimits& limits);
  // Fails with kNotFound (it is not there any more, or cannot be reached: the message says why), kValue
  // (no handle).
  Ref<Array> open(std::span<const std::byte> handle);

  static bool is_shared(const Array& array) noexcept;

  // A use has ended: what no process uses any more is given back soon, by the mutex owner.
  static void nudge() noexcept;

  // Calls visit with every segment that is open.
  template <class Visit>
  void visit(Visit visit) {
    const std::scoped_lock locked(lock_);
    open_.visit(visit);
  }

 private:
  friend std::vector<const Segment*> open_segments(const Segment& at_least);
  Segments();

  // A storage's use of a block. When it has ended it is a note for the sweep, which finds by it what can be
  // given back: the segment itself may be gone by then.
  struct BlockUse {
    Segment* segment;
    uint32_t block;
    SegmentId id;
    BlockUse* next = nullptr;
  };
  static void end_use(void* owner);
  static const BlockUse* use_of(const Array& array);
  static const BlockUse& checked_use_of(const Array& array);  // fails with kType
  template <class Run>
  Ref<Array> with_name(const std::string& name, NameLock::Make make, Run run);
  template <class Create>
  Ref<Array> create_named(const std::string& name, Create create);

  static std::chrono::milliseconds sweep_in_mutex_owner() noexcept;
  // These require lock_.
  void look_at_ended_uses();
  void sweep_some();
  bool sweep_all();
  Segment& make_alone(const NamedArray& array, std::span<const uint64_t> sizes, const SharedOptions& options);
  Ref<Array> take_over(Segment& segment, uint32_t block, DType dtype, Dims shape, uint32_t flags,
                       const SharedOptions& options);
  Ref<Storage> storage_of(Segment& segment, uint32_t block, uint32_t generation, bool is_readonly);
  bool request_name(const std::string& name, NameLock* lock);
  Segment* open_named(const std::string& name, const NameLock& lock, bool is_writable, Code unreachable);
  os::File find_file(const std::string& prefix, const os::Process& sender, int fd);
  Segment& reach(const SegmentId& id, const os::Process& sender, int fd);

  void before_fork() noexcept;
  void after_fork() noexcept;
  void become_child() noexcept;
  static void remove_names_at_exit();

  std::mutex lock_;
  std::atomic<BlockUse*> ended_uses_{nullptr};
  // Guarded by lock_.
  OpenSegments open_;
  SegmentForks forks_;
  bool has_cleaned_names_ = false;
};

// Those that are open here, the one given among them: all, unless a thread is just opening one.
std::vector<const Segment*> open_segments(const Segment& at_least);

}  // namespace tenon::impl
