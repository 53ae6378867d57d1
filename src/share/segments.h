// SPDX-License-Identifier: Apache-2.0
//
// The segments that are open in this process, and the arrays on them.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/array.h"
#include "share/handle.h"
#include "share/pool.h"
#include "share/segment.h"

namespace tenon::share {

struct SharedOptions {
  std::string name;  // "": the array goes to others by its handle alone
  bool has_huge_pages = false;
  bool is_populated = false;
  int node = -1;  // of NUMA; -1: any
  // Writes what the memory begins with, before anybody finds it by its name.
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
  // Fails with kNotFound (it is not there any more, or cannot be reached: the message says why), kValue
  // (no handle).
  Ref<Array> open(std::span<const std::byte> handle);

  static bool is_shared(const Array& array) noexcept;

  // A use has ended: what nobody uses any more is given back soon, by the keeper.
  static void nudge() noexcept;

  // Calls visit with every segment that is open.
  template <class Visit>
  void visit(Visit visit) {
    const std::scoped_lock locked(lock_);
    for (const auto& [id, segment] : open_) visit(*segment);
  }

 private:
  friend std::vector<const Segment*> open_segments(const Segment& at_least);
  Segments();

  static std::chrono::milliseconds sweep_in_keeper() noexcept;
  // These require lock_.
  bool sweep();
  bool is_pool(const Segment& segment) const noexcept;
  Pool& new_pool(uint64_t nbytes);
  Segment& add(std::unique_ptr<Segment> segment);
  Segment* find(const SegmentId& id) noexcept;
  Segment& make_alone(const NamedArray& array, std::span<const uint64_t> sizes, const SharedOptions& options);
  Ref<Array> take_over(Segment& segment, uint32_t block, DType dtype, Dims shape, uint32_t flags,
                       const SharedOptions& options);
  Ref<Storage> storage_of(Segment& segment, uint32_t block, uint32_t generation, bool is_readonly);
  Segment* open_named(const std::string& name, bool is_writable, bool* is_taken);
  Segment& reach(const SegmentId& id, const os::Process& sender, int fd);

  void before_fork() noexcept;
  void after_fork() noexcept;
  void become_child() noexcept;

  std::mutex lock_;
  // Guarded by lock_.
  std::map<SegmentId, std::unique_ptr<Segment>> open_;
  std::vector<std::unique_ptr<Pool>> pools_;  // each on a segment of open_ that this process has made
};

// Those that are open here, the one given among them: all, unless somebody is just opening one.
std::vector<const Segment*> open_segments(const Segment& at_least);

}  // namespace tenon::share
