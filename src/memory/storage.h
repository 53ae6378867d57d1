// SPDX-License-Identifier: Apache-2.0
//
// A storage is one allocation with its owner: heap memory of Tenon, or memory of another owner that was
// adopted with a deleter. It does not know shapes and dtypes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/ref.h"
#include "device/device.h"
#include "memory/region.h"

namespace tenon::impl {

using Deleter = void (*)(void* owner);

// Memory to adopt. data..data+nbytes are the bytes of the storage. They lie inside of the extent, the
// allocation that the region registers (for a NumPy view, the memory of its root array).
struct Memory {
  std::byte* data = nullptr;
  size_t nbytes = 0;
  std::byte* extent = nullptr;
  size_t extent_nbytes = 0;
  bool is_readonly = false;
  void* owner = nullptr;
  Deleter deleter = nullptr;
  Gate* gate = nullptr;  // of memory that is shared with other processes
  tenon_device device{TENON_CPU, 0};
  // Of device memory: the moment from which on streams may use it; null: at once. It belongs to the owner.
  device::Event* born = nullptr;
  bool is_heap = false;  // heap memory of Tenon
  bool is_unchecked = false;
};

// Counted. Created and destroyed by KnownMemory.
// Threads: any.
// Invariants: the deleter runs exactly once, after the last reference was released, on the thread that
// released it, unless the memory has been moved out. A storage with count zero gets no new references.
class Storage {
 public:
  // New memory, aligned to 64 bytes, to pages from 1 MiB on (device memory: to 256 bytes). Fails with
  // kNoMemory, and on a device as Device::of. kValue: no memory can be made there.
  static Ref<Storage> allocate(size_t nbytes, bool is_zeroed, tenon_device device = {TENON_CPU, 0});

  // Takes ownership of the memory. On failure the deleter does not run. Fails with std::bad_alloc, and with
  // kLeaseConflict if the extent bridges regions that are in use.
  static Ref<Storage> adopt(const Memory& memory);

  // Takes ownership of some of the bytes of a living storage. Requires that both have the same extent, device
  // and gate, so that the new storage is on the same region. On failure the deleter does not run. Fails with
  // std::bad_alloc.
  static Ref<Storage> adopt_part(Storage& whole, const Memory& memory);
  // A storage of so many bytes that has no memory. Each use is refused (Reason::kMoved). moved_at() is "".
  static Ref<Storage> lost(size_t nbytes, void* owner, Deleter deleter, tenon_device device);
  // Refuses all later uses of the parts of these bytes that have this deleter (Reason::kNotHeld).
  // unless_used: false, and nothing has changed, if a request or a view uses them.
  static bool end_parts(Storage& whole, Deleter deleter, bool unless_used = false) noexcept;
  // Whether a request or a view uses its bytes.
  bool is_used() noexcept;

  // A living storage that can lend the bytes, or null.
  static Ref<Storage> find(const std::byte* data, size_t nbytes, Access access);

  // Whether a living storage has some of the bytes.
  static bool is_known(const std::byte* data, size_t nbytes);

  std::byte* data() const noexcept { return data_; }
  size_t nbytes() const noexcept { return nbytes_; }
  Extent extent() const noexcept {
    const auto begin = reinterpret_cast<uintptr_t>(data_);
    return {begin, begin + nbytes_};
  }
  bool is_readonly() const noexcept { return is_readonly_; }
  tenon_device device() const noexcept { return device_; }
  device::Event* born() const noexcept { return born_; }
  // Other processes share the memory.
  bool is_shared() const noexcept { return is_shared_; }
  // The line that moved the memory out, so that this storage does not own it any more; null: it was not
  // moved. pairs with: KnownMemory::take_out, "moved"
  const char* moved_at() const noexcept { return moved_at_.load(std::memory_order_acquire); }
  // May change at any time, if an import bridges two regions.
  // pairs with: KnownMemory::merge, "a home and its queue"
  Region& region() const noexcept { return static_cast<Region&>(*home_.load(std::memory_order_acquire)); }
  Home& home() noexcept { return home_; }

  // True if it contains the bytes, keeps them alive (memory without a deleter may end before the storage),
  // and allows the access.
  bool can_lend(const std::byte* data, size_t nbytes, Access access) const noexcept {
    return data >= data_ && data + nbytes <= data_ + nbytes_ && deleter_ != nullptr &&
           (access == Access::kRead || !is_readonly_);
  }

  // Its bytes, its owner and its device.
  Memory memory() const noexcept;
  // The owner, if it was given with this deleter; else null.
  void* owner_with(Deleter deleter) const noexcept { return deleter_ == deleter ? owner_ : nullptr; }

  void retain() noexcept { refs_.increment(); }
  void release() noexcept;

 private:
  friend class KnownMemory;
  static constexpr char kLost[] = "";  // moved_at_ of a storage without memory
  static constexpr uintptr_t kNowhere = 4096;
  Storage(const Memory& memory, Region& region) noexcept;

  RefCount refs_;
  // Shared; written with KnownMemory::lock_ and the lock of the queue that it leaves; in a merge with those
  // of both queues.
  Home home_;

  // Constant.
  std::byte* const data_;
  const size_t nbytes_;
  void* const owner_;
  const Deleter deleter_;
  const tenon_device device_;
  const bool is_readonly_;
  const bool is_shared_;
  const bool is_unchecked_;

  // Guarded by KnownMemory::lock_.
  bool is_heap_;  // it owns heap memory of Tenon
  // Shared: the number of unchecked storages for its memory. Incremented with KnownMemory::lock_.
  std::atomic<uint32_t> unchecked_{0};
  // Shared; written with KnownMemory::lock_ and the lock of the queue that it leaves.
  std::atomic<const char*> moved_at_{nullptr};
  // Guarded by KnownMemory::lock_.
  Storage* next_on_region_ = nullptr;
  Storage* previous_on_region_ = nullptr;
  union {
    device::Event* born_;  // constant until the last reference is released
    Storage* next_dead_;   // then; written once by the releasing thread, and read by the sweep
  };
};

}  // namespace tenon::impl
