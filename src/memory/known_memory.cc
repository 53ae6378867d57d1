// SPDX-License-Identifier: Apache-2.0
#include "memory/known_memory.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "memory/fork.h"

namespace tenon::impl {
namespace {

uintptr_t address(const std::byte* p) { return reinterpret_cast<uintptr_t>(p); }

void forget_gate(Region* region) noexcept {
  if (region->gate() == nullptr) return;
  const std::scoped_lock lock(region->lock);
  region->set_gate(nullptr);
}

}  // namespace

KnownMemory& KnownMemory::instance() noexcept {
  static KnownMemory* const instance = [] {
    auto* memory = new KnownMemory;
    handle_forks();
    return memory;
  }();
  return *instance;
}

Ref<Storage> KnownMemory::add(const Memory& memory) {
  const uintptr_t begin = address(memory.extent);
  const Section section(*this);
  sweep();
  return add_to(memory, [&] { return region_for(begin, begin + memory.extent_nbytes, memory.gate); });
}

template <class MakeRegion>
Ref<Storage> KnownMemory::add_to(const Memory& memory, MakeRegion make_region) {
  ControlAllocator<Storage> blocks;
  Storage* const block = blocks.allocate(1);
  Region* region = nullptr;
  try {
    region = make_region();
  } catch (...) {
    blocks.deallocate(block, 1);
    throw;
  }
  set_kind(*region, memory);
  auto* const storage = new (block) Storage(memory, *region);
  link(storage, region);
  ++storages_;
  if (memory.is_heap) heap_nbytes_ += memory.nbytes;
  return Ref<Storage>::adopt(storage);
}

Ref<Storage> KnownMemory::add_part(Storage& whole, const Memory& memory) {
  const Section section(*this);
  sweep();
  return add_to(memory, [&] { return &whole.region(); });
}

Ref<Storage> KnownMemory::add_lost(const Memory& memory) {
  const Section section(*this);
  sweep();
  Ref<Storage> storage = add_to(memory, [&] { return &gone_; });
  storage->moved_at_.store(Storage::kLost, std::memory_order_relaxed);
  return storage;
}

bool KnownMemory::end_parts(Storage& whole, Deleter deleter, bool unless_used) noexcept {
  const Section section(*this);
  sweep();
  Region* const region = &whole.region();
  const std::scoped_lock queue(region->lock);
  if (unless_used && region->is_used(whole.extent())) return false;
  Storage* next = nullptr;
  for (Storage* s = region->storages_; s != nullptr; s = next) {
    next = s->next_on_region_;
    if (s->deleter_ != deleter || !whole.extent().contains(s->extent())) continue;
    // pairs with: lock_home, "a home and its queue"
    s->home_.store(&sent_, std::memory_order_release);
    unlink_from(s, region);
    link(s, &sent_);
  }
  return true;
}

Ref<Storage> KnownMemory::add_unchecked(Storage& of) {
  const uintptr_t begin = address(of.data());
  const Section section(*this);
  sweep();
  if (of.moved_at() != nullptr || &of.region() == &sent_) return {};
  const auto let_go = [](void* owner) {
    auto* const kept = static_cast<Storage*>(owner);
    kept->unchecked_.fetch_sub(1, std::memory_order_relaxed);
    kept->release();
  };
  Memory memory{of.data(), of.nbytes(), of.data(), of.nbytes(), of.is_readonly(), &of, let_go};
  memory.device = of.device();
  memory.born = of.born();
  memory.is_unchecked = true;
  return add_to(memory, [&] {
    Region* const region = new_region();
    region->set_bounds({begin, begin + of.nbytes()});
    region->set_birth(Queue::kAnyOp);
    ++regions_;
    of.retain();
    of.unchecked_.fetch_add(1, std::memory_order_relaxed);
    return region;
  });
}

namespace {

bool is_free_but_for(const Request& request, Queue& queue, const Extent& extent,
                     Conflict* conflict) noexcept {
  conflict->reason = Conflict::Reason::kHeld;
  for (const RequestPart* e = queue.first(); e != nullptr; e = e->next) {
    if (e->request == &request || !e->extent.overlaps(extent)) continue;
    conflict->holder = Holder::of(*e);
    return false;
  }
  const View* const view = queue.host_conflict(Access::kWrite, extent);
  if (view == nullptr && queue.has_lost_views()) {
    conflict->reason = Conflict::Reason::kInherited;
    return false;
  }
  if (view == nullptr) return true;
  conflict->holder = Holder::of(*view);
  return false;
}

}  // namespace

// Requires lock_.
bool KnownMemory::can_take_out(const Storage& storage, const Request& request, Conflict* conflict) noexcept {
  Region& region = storage.region();
  const Extent extent{address(storage.data()), address(storage.data()) + storage.nbytes()};
  conflict->reason = Conflict::Reason::kShared;
  if (storage.is_unchecked_ || storage.unchecked_.load(std::memory_order_relaxed) != 0) return false;
  if (region.gate() != nullptr) return false;
  for (const Storage* s = region.storages_; s != nullptr; s = s->next_on_region_) {
    const Extent other{address(s->data()), address(s->data()) + s->nbytes()};
    if (s != &storage && other.overlaps(extent)) return false;
  }
  const std::scoped_lock queue(region.lock);
  return is_free_but_for(request, region, extent, conflict);
}

const Storage* KnownMemory::take_out(std::span<Storage* const> storages, const Request& request,
                                     const char* at, Conflict* conflict) {
  const Section section(*this);
  sweep();
  // No other use begins meanwhile: the request is in its way.
  for (const Storage* storage : storages) {
    if (!can_take_out(*storage, request, conflict)) return storage;
  }
  for (Storage* storage : storages) {
    Region* const region = &storage->region();
    {
      const std::scoped_lock queue(region->lock);
      // pairs with: Storage::moved_at, "moved"
      storage->moved_at_.store(at != nullptr ? at : "", std::memory_order_release);
      // pairs with: lock_home, "a home and its queue"
      storage->home_.store(&gone_, std::memory_order_release);
    }
    unlink_from(storage, region);
    link(storage, &gone_);
    if (std::exchange(storage->is_heap_, false)) heap_nbytes_ -= storage->nbytes();
  }
  return nullptr;
}

// One address belongs to the host or to a device, whatever is made of it.
void KnownMemory::set_kind(Region& region, const Memory& memory) noexcept {
  const bool is_on_device = device::is_device_memory(memory.device);
  if (region.is_plain() != is_on_device || region.is_gone()) return;
  const std::scoped_lock lock(region.lock);
  region.set_memory(is_on_device ? Queue::Memory::kDevice : Queue::Memory::kHost);
}

KnownMemory::StorageIndex* KnownMemory::index_of(const Region& region) noexcept {
  const auto indexed = indexes_.find(&region);
  return indexed != indexes_.end() ? &indexed->second : nullptr;
}

void KnownMemory::add_to(StorageIndex& index, Storage* storage) {
  index.by_begin.emplace(address(storage->data()), storage);
  index.longest = std::max(index.longest, storage->nbytes());
}

void KnownMemory::index_storages(const Region& region) noexcept {
  try {
    StorageIndex index;
    for (Storage* s = region.storages_; s != nullptr; s = s->next_on_region_) add_to(index, s);
    indexes_.emplace(&region, std::move(index));
  } catch (const std::bad_alloc&) {
    // The next search visits all storages, too.
  }
}

void KnownMemory::index_storage(const Region& region, Storage* storage) noexcept {
  StorageIndex* const index = index_of(region);
  if (index == nullptr) return;
  try {
    add_to(*index, storage);
  } catch (const std::bad_alloc&) {
    indexes_.erase(&region);  // the next search visits all storages
  }
}

void KnownMemory::unindex_storage(const Region& region, Storage* storage) noexcept {
  StorageIndex* const index = index_of(region);
  if (index == nullptr) return;
  index->by_begin.erase({address(storage->data()), storage});
  if (region.storages_ == nullptr) indexes_.erase(&region);
}

void KnownMemory::link(Storage* storage, Region* region) noexcept {
  if (!indexes_.empty()) [[unlikely]]
    index_storage(*region, storage);
  storage->previous_on_region_ = nullptr;
  storage->next_on_region_ = region->storages_;
  if (region->storages_ != nullptr) region->storages_->previous_on_region_ = storage;
  region->storages_ = storage;
}

void KnownMemory::unlink_from(Storage* storage, Region* region) noexcept {
  Storage* const previous = storage->previous_on_region_;
  (previous != nullptr ? previous->next_on_region_ : region->storages_) = storage->next_on_region_;
  if (storage->next_on_region_ != nullptr) storage->next_on_region_->previous_on_region_ = previous;
  if (!indexes_.empty()) [[unlikely]]
    unindex_storage(*region, storage);
  if (region->storages_ == nullptr && region != &gone_ && region != &sent_) make_idle(region);
}

Ref<Storage> KnownMemory::find(const std::byte* data, size_t nbytes, Access access) {
  const uintptr_t begin = address(data);
  const Section section(*this);
  sweep();
  const Region* const idle = idle_[idle_slot(begin)];
  if (idle != nullptr && idle->begin() == begin) return {};  // no storages, and the bytes begin in no other
  const auto overlap = first_overlap(begin, begin + nbytes);
  if (overlap == map_.end()) return {};
  const auto lends = [&](Storage* s) {
    return s->can_lend(data, nbytes, access) && s->refs_.increment_if_alive();
  };
  const Region& region = *overlap->second;
  if (const StorageIndex* const index = index_of(region)) [[unlikely]] {
    const auto& [by_begin, longest] = *index;
    for (auto next = by_begin.lower_bound({begin + 1, nullptr}); next != by_begin.begin();) {
      --next;
      if (begin + nbytes - next->first > longest) break;  // those before end too early
      if (lends(next->second)) return Ref<Storage>::adopt(next->second);
    }
    return {};
  }
  size_t visited = 0;
  for (Storage* s = region.storages_; s != nullptr; s = s->next_on_region_, ++visited) {
    if (lends(s)) return Ref<Storage>::adopt(s);
  }
  if (visited > kUnindexed) index_storages(region);
  return {};
}

void KnownMemory::retire(Storage* storage) noexcept {
  Storage* head = dead_.load(std::memory_order_relaxed);
  do {
    storage->next_dead_ = head;
    // pairs with: KnownMemory::sweep, "dead before its memory is reused"
  } while (!dead_.compare_exchange_weak(head, storage, std::memory_order_release, std::memory_order_relaxed));
}

void KnownMemory::delete_failures(FailedRange* first) noexcept {
  while (first != nullptr) delete std::exchange(first, first->next);
}

void KnownMemory::forget_retired() noexcept {
  if (!lock_.try_lock()) return;
  const Section section(*this, std::adopt_lock);
  sweep();
}

void KnownMemory::sweep() noexcept {
  if (dead_.load(std::memory_order_relaxed) == nullptr) return;
  // pairs with: KnownMemory::retire, "dead before its memory is reused"
  Storage* storage = dead_.exchange(nullptr, std::memory_order_acquire);
  while (storage != nullptr) {
    Storage* const next = storage->next_dead_;
    unlink_from(storage, &storage->region());
    --storages_;
    if (storage->is_heap_) heap_nbytes_ -= storage->nbytes();
    storage->~Storage();
    ControlAllocator<Storage>().deallocate(storage, 1);
    storage = next;
  }
}

bool KnownMemory::is_known(const std::byte* data, size_t nbytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const Section section(*this);
  sweep();
  for (auto next = first_overlap(begin, begin + nbytes); next != map_.end(); ++next) {
    if (next->first >= begin + nbytes) break;
    if (next->second->storages_ != nullptr) return true;
  }
  return false;
}

KnownMemory::Map::iterator KnownMemory::first_overlap(uintptr_t begin, uintptr_t end) {
  auto next = map_.upper_bound(begin);
  if (next != map_.begin()) {
    const auto before = std::prev(next);
    if (before->second->end() > begin) return before;
  }
  return next != map_.end() && next->first < end ? next : map_.end();
}

namespace {

bool is_in_use(const Region& region) noexcept { return region.has_parts() || region.has_views(); }

void set_gate(Region& region, Gate* gate) noexcept {
  if (gate == nullptr) return;
  const std::scoped_lock lock(region.lock);
  region.set_gate(gate);
}

// The common gate of bytes that have one gate and get another; either may be null. is_used: there are parts
// or views.
Gate* common_gate(Gate* one, bool is_used, Gate* other) {
  if (one != nullptr && other != nullptr && one != other) {
    throw_error(Code::kLeaseConflict, "the bytes bridge two memories that are shared with other processes");
  }
  if (one == nullptr && other != nullptr && is_used) {
    throw_error(Code::kLeaseConflict,
                "the bytes are in use as memory of this process alone: end the views, leases and ops there "
                "before they are shared with others");
  }
  return one != nullptr ? one : other;
}

}  // namespace

Region* KnownMemory::region_for(uintptr_t begin, uintptr_t end, Gate* gate) {
  Region* region = idle_[idle_slot(begin)];
  if (region != nullptr && region->begin() == begin && region->end() == end) {
    drop_idle(region);
    ++regions_;
    region->set_birth(this_thread.running);
    set_gate(*region, gate);
    return region;
  }
  while (begin != end) {
    const auto overlap = first_overlap(begin, end);
    if (overlap == map_.end()) break;
    region = overlap->second;
    if (region->storages_ == nullptr) {
      drop_idle(region);
      unmap_region(region);
      continue;
    }
    if (region->begin() > begin || end > region->end()) return merge(overlap, begin, end, gate);
    if (gate != nullptr) {
      const std::scoped_lock lock(region->lock);
      region->set_gate(common_gate(region->gate(), is_in_use(*region), gate));
    }
    return region;
  }
  region = new_region();
  try {
    if (begin != end) map_region(region, begin, end);
  } catch (...) {
    unmap_region(region);
    throw;
  }
  ++regions_;
  region->set_birth(this_thread.running);
  set_gate(*region, gate);
  return region;
}

namespace {

// The locks of the queues of several regions.
class QueueLocks {
 public:
  explicit QueueLocks(std::vector<Region*> regions) : regions_(std::move(regions)) {
    std::sort(regions_.begin(), regions_.end(), [](const Queue* a, const Queue* b) { return a < b; });
    lock_together(regions_.size(), [this](size_t i) { return &regions_[i]->lock; });
  }
  QueueLocks(const QueueLocks&) = delete;
  QueueLocks& operator=(const QueueLocks&) = delete;
  ~QueueLocks() {
    for (Region* region : regions_) region->lock.unlock();
  }

 private:
  std::vector<Region*> regions_;
};

}  // namespace

// Merges all regions that overlap begin..end into one, which keeps the queue that is in use. Two queues in
// use cannot be merged.
Region* KnownMemory::merge(Map::iterator first, uintptr_t begin, uintptr_t end, Gate* gate) {
  std::vector<Region*> regions;
  while (first != map_.end() && first->first < end) {
    Region* const region = (first++)->second;
    if (region->storages_ != nullptr) {
      regions.push_back(region);
    } else {
      drop_idle(region);
      unmap_region(region);
    }
  }
  const QueueLocks locks(regions);
  const auto used = std::find_if(regions.begin(), regions.end(), [](Region* r) { return is_in_use(*r); });
  if (used != regions.end() &&
      std::find_if(used + 1, regions.end(), [](Region* r) { return is_in_use(*r); }) != regions.end()) {
    throw_error(
        Code::kLeaseConflict, "the bytes ", address_text(reinterpret_cast<void*>(begin)), "..",
        address_text(reinterpret_cast<void*>(end)),
        " bridge two memories that are both in use: end the views, leases and ops of one of them first");
  }
  for (Region* region : regions) gate = common_gate(region->gate(), false, gate);
  if (used != regions.end()) (void)common_gate((*used)->gate(), true, gate);
  Region* const kept = used == regions.end() ? regions.front() : *used;
  if (gate != nullptr) {
    for (Region* region : regions) region->set_gate(region == kept ? gate : nullptr);
  }
  for (const Region* region : regions) indexes_.erase(region);
  for (Region* region : regions) {
    if (region == kept) continue;
    Storage* last = region->storages_;
    while (true) {
      // pairs with: lock_home, "a home and its queue"
      last->home_.store(kept, std::memory_order_release);
      if (last->next_on_region_ == nullptr) break;
      last = last->next_on_region_;
    }
    last->next_on_region_ = kept->storages_;
    kept->storages_->previous_on_region_ = last;
    kept->storages_ = std::exchange(region->storages_, nullptr);
    kept->take_over(*region);
    begin = std::min(begin, region->begin());
    end = std::max(end, region->end());
    map_.erase(region->begin());
    region->is_mapped_ = false;
    --regions_;
    keep_spare(region);
  }
  auto node = map_.extract(kept->begin());
  kept->set_bounds({std::min(begin, kept->begin()), std::max(end, kept->end())});
  node.key() = kept->begin();
  map_.insert(std::move(node));
  return kept;
}

void KnownMemory::keep_spare(Region* region) noexcept {
  region->next_spare_ = std::exchange(spare_regions_, region);
}

void KnownMemory::map_region(Region* region, uintptr_t begin, uintptr_t end) {
  map_.emplace(begin, region);
  region->set_bounds({begin, end});
  region->is_mapped_ = true;
}

// The memory no longer exists, so its failures are removed.
void KnownMemory::forget_failures(Region* region) noexcept {
  if (!region->has_failures.load(std::memory_order_relaxed)) return;
  FailedRange** end = &forgotten_;
  while (*end != nullptr) end = &(*end)->next;
  const std::scoped_lock lock(region->lock);
  *end = region->heal(Extent{});
}

void KnownMemory::make_idle(Region* region) noexcept {
  --regions_;
  forget_failures(region);
  forget_gate(region);
  if (!region->is_mapped_) return unmap_region(region);
  if (Region* const other = std::exchange(idle_[idle_slot(region->begin())], region)) unmap_region(other);
}

void KnownMemory::drop_idle(Region* region) noexcept { idle_[idle_slot(region->begin())] = nullptr; }

void KnownMemory::unmap_region(Region* region) noexcept {
  if (std::exchange(region->is_mapped_, false)) map_.erase(region->begin());
  keep_spare(region);
}

Region* KnownMemory::new_region() {
  if (spare_regions_ == nullptr) return new (ControlAllocator<Region>().allocate(1)) Region;
  Region* const region = std::exchange(spare_regions_, spare_regions_->next_spare_);
  region->storages_ = nullptr;
  return region;
}

tenon_view_count Region::views() noexcept {
  const std::scoped_lock hold(lock);
  return {readers(), writers()};
}

uint64_t Region::version() noexcept {
  bool has_writers = false;
  Gate* gate = nullptr;
  {
    const std::scoped_lock hold(lock);
    gate = this->gate();
    if (gate == nullptr) return Queue::version();
    has_writers = writers() != 0;
  }
  if (has_writers) gate->note_write();
  return gate->version();
}

void KnownMemory::statistics(tenon_statistics* out) {
  const Section section(*this);
  sweep();
  out->storages = storages_;
  out->regions = regions_;
  out->heap_nbytes = heap_nbytes_;
  out->views = 0;
  for (const auto& [begin, region] : map_) {
    const tenon_view_count views = region->views();
    out->views += views.readers + views.writers;
  }
  out->failed_deleters = failed_deleters_.load(std::memory_order_relaxed);
}

}  // namespace tenon::impl
