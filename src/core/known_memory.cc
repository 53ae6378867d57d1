// SPDX-License-Identifier: Apache-2.0
#include "core/known_memory.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace tenon {
namespace {

// How many unused control blocks are kept for the next imports.
constexpr size_t kSpare = 256;

uintptr_t address(const std::byte* p) { return reinterpret_cast<uintptr_t>(p); }

template <class T>
void recycle(std::vector<T>& spare, T item) noexcept {
  spare.push_back(std::move(item));  // capacity is reserved: cannot throw below kSpare
}

}  // namespace

KnownMemory& KnownMemory::instance() noexcept {
  static KnownMemory* const instance = [] {
    auto* memory = new KnownMemory;
    memory->spare_storages_.reserve(kSpare);
    memory->spare_regions_.reserve(kSpare);
    memory->spare_nodes_.reserve(kSpare);
    // A fork waits for the short sections below, so that the child finds the map whole and unlocked.
    pthread_atfork([] { KnownMemory::instance().lock_.lock(); },
                   [] { KnownMemory::instance().lock_.unlock(); },
                   [] { KnownMemory::instance().lock_.unlock(); });
    return memory;
  }();
  return *instance;
}

Ref<Storage> KnownMemory::add(const Memory& memory, size_t heap_nbytes) {
  const uintptr_t begin = address(memory.extent);
  const std::scoped_lock lock(lock_);
  sweep();
  Storage* storage = new_storage();
  Region* region = nullptr;
  try {
    region = region_for(begin, begin + memory.extent_nbytes);
  } catch (...) {
    spare_storages_.size() < kSpare ? recycle(spare_storages_, storage) : delete storage;
    throw;
  }
  storage->memory_ = memory;
  storage->heap_nbytes_ = heap_nbytes;
  storage->region_.store(region, std::memory_order_relaxed);
  storage->previous_on_region_ = nullptr;
  storage->next_on_region_ = region->storages_;
  if (region->storages_ != nullptr) region->storages_->previous_on_region_ = storage;
  region->storages_ = storage;
  ++storages_;
  heap_nbytes_ += heap_nbytes;
  return Ref<Storage>::adopt(storage);
}

Ref<Storage> KnownMemory::find(const std::byte* data, size_t nbytes, Access access) {
  const uintptr_t begin = address(data);
  const std::scoped_lock lock(lock_);
  sweep();
  const auto region = first_overlap(begin, begin + nbytes);
  if (region == map_.end()) return {};
  for (Storage* s = region->second->storages_; s != nullptr; s = s->next_on_region_) {
    if (s->can_lend(data, nbytes, access) && s->refs_.increment_if_alive()) return Ref<Storage>::adopt(s);
  }
  return {};
}

void KnownMemory::retire(Storage* storage) noexcept {
  Storage* head = dead_.load(std::memory_order_relaxed);
  do {
    storage->next_dead_ = head;
    // pairs with: KnownMemory::sweep, "dead before its memory is reused"
  } while (!dead_.compare_exchange_weak(head, storage, std::memory_order_release, std::memory_order_relaxed));
}

void KnownMemory::sweep() noexcept {
  if (dead_.load(std::memory_order_relaxed) == nullptr) return;
  // pairs with: KnownMemory::retire, "dead before its memory is reused"
  Storage* storage = dead_.exchange(nullptr, std::memory_order_acquire);
  while (storage != nullptr) {
    Storage* const next = storage->next_dead_;
    Region* const region = storage->region_.load(std::memory_order_relaxed);
    Storage* const previous = storage->previous_on_region_;
    (previous != nullptr ? previous->next_on_region_ : region->storages_) = storage->next_on_region_;
    if (storage->next_on_region_ != nullptr) storage->next_on_region_->previous_on_region_ = previous;
    if (region->storages_ == nullptr) make_idle(region);
    --storages_;
    heap_nbytes_ -= storage->heap_nbytes_;
    spare_storages_.size() < kSpare ? recycle(spare_storages_, storage) : delete storage;
    storage = next;
  }
}

KnownMemory::Map::iterator KnownMemory::first_overlap(uintptr_t begin, uintptr_t end) {
  auto next = map_.upper_bound(begin);
  if (next != map_.begin()) {
    const auto before = std::prev(next);
    if (before->second->end_ > begin) return before;
  }
  return next != map_.end() && next->first < end ? next : map_.end();
}

Region* KnownMemory::region_for(uintptr_t begin, uintptr_t end) {
  if (Region* const region = idle_[idle_slot(begin)];
      region != nullptr && region->begin_ == begin && region->end_ == end) {
    drop_idle(region);
    ++regions_;
    return region;
  }
  while (begin != end) {
    const auto overlap = first_overlap(begin, end);
    if (overlap == map_.end()) break;
    Region* const region = overlap->second;
    if (region->storages_ == nullptr) {
      drop_idle(region);
      unmap_region(region);
      continue;
    }
    if (region->begin_ <= begin && end <= region->end_) return region;
    return merge(overlap, begin, end);
  }
  Region* const region = new_region();
  if (begin != end) {
    try {
      map_region(region, begin, end);
    } catch (...) {
      unmap_region(region);
      throw;
    }
  }
  ++regions_;
  return region;
}

// One region for everything that overlaps begin..end. It keeps the region that is in use: its views go
// on counting where they were opened. Two regions in use cannot become one.
Region* KnownMemory::merge(Map::iterator first, uintptr_t begin, uintptr_t end) {
  std::vector<Region*> others;
  while (first != map_.end() && first->first < end) {
    Region* const region = (first++)->second;
    if (region->storages_ != nullptr) {
      others.push_back(region);
    } else {
      drop_idle(region);
      unmap_region(region);
    }
  }
  spare_regions_.reserve(spare_regions_.size() + others.size());  // nothing may fail after the first move
  const auto is_used = [](const Region* r) {
    const tenon_view_count views = r->views();
    return views.readers + views.writers != 0;
  };
  const auto used = std::find_if(others.begin(), others.end(), is_used);
  Region* const kept = used == others.end() ? others.front() : *used;
  std::erase(others, kept);

  const auto move_storages = [](Region* from, Region* to) {
    for (Storage* s = from->storages_; s != nullptr; s = s->next_on_region_) {
      // pairs with: Storage::open_view, "a view is counted on the region that the merge saw"
      // pairs with: Storage::region, "the region merged into is complete"
      s->region_.store(to, std::memory_order_seq_cst);
    }
  };
  for (size_t i = 0; i < others.size(); ++i) {
    move_storages(others[i], kept);
    if (!is_used(others[i])) continue;
    for (size_t k = 0; k <= i; ++k) move_storages(others[k], others[k]);
    throw_error(Code::kBuffer, "the bytes ", address_text(reinterpret_cast<void*>(begin)), "..",
                address_text(reinterpret_cast<void*>(end)),
                " bridge two memories that both have open views: close the views of one of them first");
  }
  for (Region* region : others) {
    Storage* last = region->storages_;
    while (last->next_on_region_ != nullptr) last = last->next_on_region_;
    last->next_on_region_ = kept->storages_;
    kept->storages_->previous_on_region_ = last;
    kept->storages_ = std::exchange(region->storages_, nullptr);
    kept->version_.fetch_add(region->version_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    begin = std::min(begin, region->begin_);
    end = std::max(end, region->end_);
    map_.erase(region->begin_);
    region->is_mapped_ = false;
    --regions_;
    // Never deleted: a thread in Storage::open_view may still count on it for a moment.
    spare_regions_.push_back(region);
  }
  auto node = map_.extract(kept->begin_);
  kept->begin_ = std::min(begin, kept->begin_);
  kept->end_ = std::max(end, kept->end_);
  node.key() = kept->begin_;
  map_.insert(std::move(node));
  return kept;
}

void KnownMemory::map_region(Region* region, uintptr_t begin, uintptr_t end) {
  if (spare_nodes_.empty()) {
    map_.emplace(begin, region);
  } else {
    auto node = std::move(spare_nodes_.back());
    spare_nodes_.pop_back();
    node.key() = begin;
    node.mapped() = region;
    map_.insert(std::move(node));
  }
  region->begin_ = begin;
  region->end_ = end;
  region->is_mapped_ = true;
}

void KnownMemory::make_idle(Region* region) noexcept {
  --regions_;
  if (!region->is_mapped_) return unmap_region(region);
  if (Region* const other = std::exchange(idle_[idle_slot(region->begin_)], region)) unmap_region(other);
}

void KnownMemory::drop_idle(Region* region) noexcept { idle_[idle_slot(region->begin_)] = nullptr; }

void KnownMemory::unmap_region(Region* region) noexcept {
  if (region->is_mapped_) {
    auto node = map_.extract(region->begin_);
    if (spare_nodes_.size() < kSpare) recycle(spare_nodes_, std::move(node));
  }
  region->is_mapped_ = false;
  spare_regions_.size() < kSpare ? recycle(spare_regions_, region) : delete region;
}

Storage* KnownMemory::new_storage() {
  if (spare_storages_.empty()) return new Storage;
  Storage* const storage = spare_storages_.back();
  spare_storages_.pop_back();
  storage->refs_.reset();
  return storage;
}

Region* KnownMemory::new_region() {
  Region* region = nullptr;
  if (spare_regions_.empty()) {
    region = new Region;
  } else {
    region = spare_regions_.back();
    spare_regions_.pop_back();
  }
  return region;
}

void KnownMemory::statistics(tenon_statistics* out) {
  const std::scoped_lock lock(lock_);
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

}  // namespace tenon
