// SPDX-License-Identifier: Apache-2.0
//
// The interval map of known memory: which region a byte belongs to. It owns all regions and storages.
//
// A release must never wait for an import, so releasing takes no lock: a dead storage is put on a
// lock-free list before its deleter runs. The next thread that takes the lock sweeps that list first. So
// memory that is used again after its deleter has run is always unknown to the map by the time it is
// imported.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "base/ref.h"
#include "base/spin_lock.h"
#include "memory/storage.h"
#include "sync/requests.h"

namespace tenon::impl {

// One for the process, never destroyed: late deleters meet a valid object.
// Threads: all functions may be called from any thread; retire() takes no lock and allocates nothing.
// No user code runs while the lock is held.
class KnownMemory {
 public:
  static KnownMemory& instance() noexcept;

  // A storage with one reference over memory, on the region of its extent.
  Ref<Storage> add(const Memory& memory, size_t heap_nbytes);

  // A storage over the memory of another one, which it keeps, on a region of its own that is not in the map.
  // Null: the memory was moved out.
  Ref<Storage> add_unchecked(Storage& storage);

  // The storage leaves its region, and later uses of it are refused. Requires that the request holds it for
  // writing. False: something else uses its bytes, as the conflict says, and nothing has happened. at:
  // where; lives for ever.
  bool take_out(Storage& storage, const Request& request, const char* at, Conflict* conflict);

  // A living storage that contains the bytes and keeps them alive, or null. Looks through the storages of
  // their region: with thousands of imports of parts of one memory that is what an import costs.
  Ref<Storage> find(const std::byte* data, size_t nbytes, Access access);

  // The storage's count has reached zero: it will be unlinked by the next caller of add or find.
  void retire(Storage* storage) noexcept;
  // Unlinks the storages that were retired, unless another thread has the lock, and then does it later.
  void forget_retired() noexcept;

  void note_failed_deleter() noexcept { failed_deleters_.fetch_add(1, std::memory_order_relaxed); }

  void statistics(tenon_statistics* out);

  // For memory/fork.cc: the map's lock, and every queue that there is, to be used until it is unlocked. Needs
  // no memory: a fork that meets a shortage goes on.
  std::span<Queue*> lock_for_fork() noexcept;
  void unlock_after_fork() noexcept { lock_.unlock(); }

  // Calls visit with the queue of every region that has bytes, and with that of ops that use no memory. Holds
  // the map's lock meanwhile.
  void visit_queues(void (*visit)(Queue& queue, void* context), void* context);

 private:
  using Map = std::map<uintptr_t, Region*>;

  KnownMemory() noexcept { gone_.set_memory(Queue::Memory::kGone); }

  // The lock, held. Its end deletes the failures of memory that is gone, because that may run user code.
  class Section {
   public:
    explicit Section(KnownMemory& memory) noexcept : memory_(memory) { memory.lock_.lock(); }
    Section(KnownMemory& memory, std::adopt_lock_t) noexcept : memory_(memory) {}
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;
    ~Section();

   private:
    KnownMemory& memory_;
  };

  // All of these require lock_.
  void sweep() noexcept;
  void link(Storage* storage, Region* region) noexcept;
  void unlink_from(Storage* storage, Region* region) noexcept;
  Region* region_for(uintptr_t begin, uintptr_t end, Gate* gate);
  static void set_kind(Region& region, const Memory& memory) noexcept;
  static size_t idle_slot(uintptr_t begin) noexcept { return begin * 0x9E3779B97F4A7C15u >> 58; }
  void make_idle(Region* region) noexcept;
  void forget_failures(Region* region) noexcept;
  void drop_idle(Region* region) noexcept;
  Region* merge(Map::iterator first, uintptr_t begin, uintptr_t end, Gate* gate);
  void set_extent(Region* region, uintptr_t begin, uintptr_t end) noexcept;
  void keep_spare(Region* region) noexcept;
  Map::iterator first_overlap(uintptr_t begin, uintptr_t end);
  void map_region(Region* region, uintptr_t begin, uintptr_t end);
  void unmap_region(Region* region) noexcept;
  Storage* new_storage();
  Region* new_region();

  // Shared. Dead storages, linked by next_dead_.
  std::atomic<Storage*> dead_{nullptr};
  std::atomic<uint64_t> failed_deleters_{0};

  SpinLock lock_;
  // Guarded by lock_.
  Map map_;
  // Regions without storages that stay in the map for a while, each in the slot of its first byte: importing
  // the same memory again and again, as a loop or a feed does, finds its region there.
  static constexpr size_t kIdle = 64;
  std::array<Region*, kIdle> idle_{};
  std::vector<Storage*> spare_storages_;
  // Regions are used again but never freed: a thread may still lock one that its memory was merged out of.
  Region* spare_regions_ = nullptr;
  Region* unlisted_ = nullptr;          // those of unchecked storages
  Region gone_;                         // of storages whose memory was moved out; in no map
  size_t all_regions_ = 0;              // that were ever made
  std::vector<Queue*> queues_of_fork_;  // with room for the queues of all of them
  std::vector<Map::node_type> spare_nodes_;
  FailedRange* forgotten_ = nullptr;  // to be deleted by the Section
  uint64_t storages_ = 0;
  uint64_t regions_ = 0;  // with storages
  uint64_t heap_nbytes_ = 0;
};

}  // namespace tenon::impl
