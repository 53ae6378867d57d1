// SPDX-License-Identifier: Apache-2.0
//
// The map from addresses to regions of known memory. It owns all regions and storages.
//
// A release must never wait for an import, so it takes no lock: a dead storage is pushed to a lock-free list
// before its deleter runs. The next thread that takes the lock sweeps that list first. So memory that is
// reused after its deleter has run is no longer in the map when it is imported.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/ref.h"
#include "base/spin_lock.h"
#include "memory/control_blocks.h"
#include "memory/storage.h"
#include "sync/requests.h"

namespace tenon::impl {

// One for the process. Never destroyed, because deleters may use it after static destructors.
// Threads: all functions may be called from any thread; retire() takes no lock and allocates nothing.
// No user code runs while the lock is held.
class KnownMemory {
 public:
  static KnownMemory& instance() noexcept;

  // A new storage for memory, on the region of its extent.
  Ref<Storage> add(const Memory& memory);

  // See Storage::adopt_part and end_parts.
  Ref<Storage> add_part(Storage& whole, const Memory& memory);
  bool end_parts(Storage& whole, Deleter deleter, bool unless_used) noexcept;
  // See Storage::lost.
  Ref<Storage> add_lost(const Memory& memory);

  // A new storage for the memory of another one, which it keeps alive, on a region of its own that is not in
  // the map. Null: the memory was moved out.
  Ref<Storage> add_unchecked(Storage& storage);

  // Removes storages from their regions; later uses of them are refused. Requires that the request holds them
  // for writing, and that they are different ones. Else than null: something else uses the bytes of this one,
  // as the conflict says, and nothing has changed. at: the line; lives forever.
  const Storage* take_out(std::span<Storage* const> storages, const Request& request, const char* at,
                          Conflict* conflict);

  // A living storage that contains the bytes and keeps them alive, or null.
  Ref<Storage> find(const std::byte* data, size_t nbytes, Access access);

  // Whether a storage has some of the bytes.
  bool is_known(const std::byte* data, size_t nbytes);

  // The count of the storage has reached zero: the next caller of add or find will unlink it.
  void retire(Storage* storage) noexcept;
  // Unlinks the retired storages, unless another thread has the lock; then that happens later.
  void forget_retired() noexcept;

  void note_failed_deleter() noexcept { failed_deleters_.fetch_add(1, std::memory_order_relaxed); }

  void statistics(tenon_statistics* out);

  void lock_for_fork() noexcept { lock_.lock(); }
  void unlock_after_fork() noexcept { lock_.unlock(); }

 private:
  using Map =
      std::map<uintptr_t, Region*, std::less<>, ControlAllocator<std::pair<const uintptr_t, Region*>>>;
  // The storages of a region with many of them, by their first byte.
  struct StorageIndex {
    std::set<std::pair<uintptr_t, Storage*>> by_begin;
    size_t longest = 0;  // no storage in it has more bytes
  };

  KnownMemory() noexcept {
    gone_.set_memory(Queue::Memory::kGone);
    sent_.set_memory(Queue::Memory::kSent);
  }

  // Holds the lock. After unlocking, its destructor deletes the failures of memory that no longer exists,
  // because that may run code of users.
  class Section {
   public:
    explicit Section(KnownMemory& memory) noexcept : memory_(memory) { memory.lock_.lock(); }
    Section(KnownMemory& memory, std::adopt_lock_t) noexcept : memory_(memory) {}
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;
    ~Section() {
      FailedRange* const forgotten = std::exchange(memory_.forgotten_, nullptr);
      memory_.lock_.unlock();
      if (forgotten != nullptr) [[unlikely]]
        delete_failures(forgotten);
    }

   private:
    KnownMemory& memory_;
  };

  static void delete_failures(FailedRange* first) noexcept;
  bool can_take_out(const Storage& storage, const Request& request, Conflict* conflict) noexcept;

  // All of these require lock_.
  void sweep() noexcept;
  template <class MakeRegion>
  Ref<Storage> add_to(const Memory& memory, MakeRegion make_region);
  StorageIndex* index_of(const Region& region) noexcept;  // null: it has none
  static void add_to(StorageIndex& index, Storage* storage);
  void index_storages(const Region& region) noexcept;
  // For a region with an index; else without effect.
  [[gnu::cold]] void index_storage(const Region& region, Storage* storage) noexcept;
  [[gnu::cold]] void unindex_storage(const Region& region, Storage* storage) noexcept;
  void link(Storage* storage, Region* region) noexcept;
  void unlink_from(Storage* storage, Region* region) noexcept;
  Region* region_for(uintptr_t begin, uintptr_t end, Gate* gate);
  static void set_kind(Region& region, const Memory& memory) noexcept;
  static size_t idle_slot(uintptr_t begin) noexcept { return begin * 0x9E3779B97F4A7C15u >> 58; }
  void make_idle(Region* region) noexcept;
  void forget_failures(Region* region) noexcept;
  void drop_idle(Region* region) noexcept;
  Region* merge(Map::iterator first, uintptr_t begin, uintptr_t end, Gate* gate);
  void keep_spare(Region* region) noexcept;
  Map::iterator first_overlap(uintptr_t begin, uintptr_t end);
  void map_region(Region* region, uintptr_t begin, uintptr_t end);
  void unmap_region(Region* region) noexcept;
  Region* new_region();

  // Shared. Dead storages, linked by next_dead_.
  std::atomic<Storage*> dead_{nullptr};
  std::atomic<uint64_t> failed_deleters_{0};

  SpinLock lock_;
  // Guarded by lock_.
  Map map_;
  // Of regions in which a search has visited more than kUnindexed storages. Usually empty.
  static constexpr size_t kUnindexed = 64;
  std::map<const Region*, StorageIndex> indexes_;
  // Regions without storages that stay in the map for a while, each in the slot of its first byte. If a loop
  // or a feed imports the same memory repeatedly, it finds the region here.
  static constexpr size_t kIdle = 64;
  std::array<Region*, kIdle> idle_{};
  // Regions are reused but never freed: a thread may still lock one whose memory was merged with another.
  Region* spare_regions_ = nullptr;
  // Not in the map: of storages whose memory was moved out, and of the arrays of items that were sent.
  Region gone_;
  Region sent_;
  FailedRange* forgotten_ = nullptr;  // to be deleted by the Section
  uint64_t storages_ = 0;
  uint64_t regions_ = 0;  // with storages
  uint64_t heap_nbytes_ = 0;
};

}  // namespace tenon::impl
