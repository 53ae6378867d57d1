// SPDX-License-Identifier: Apache-2.0
#include "ipc/lazy_copy.h"

#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "array/access.h"
#include "base/error.h"

namespace tenon::impl {
namespace {

// The owner of the memory of a lazy copy.
struct PrivateUse {
  const Ref<Storage> source;
  PrivatePages& pages;
  std::byte* const bytes;

  PrivateUse(Ref<Storage> from, PrivatePages& in, std::byte* at) noexcept
      : source(std::move(from)), pages(in), bytes(at) {}
  PrivateUse(const PrivateUse&) = delete;
  PrivateUse& operator=(const PrivateUse&) = delete;
  ~PrivateUse() { pages.end(bytes); }
};

}  // namespace

Ref<Storage> on_private_pages(Storage& source, PrivatePages& pages, uint64_t begin, uint64_t nbytes) {
  std::byte* const bytes = pages.open(begin, nbytes);
  if (bytes == nullptr) return {};
  std::unique_ptr<PrivateUse> use;
  try {
    use = std::make_unique<PrivateUse>(Ref<Storage>::share(&source), pages, bytes);
  } catch (const std::bad_alloc&) {
    pages.end(bytes);
    throw;
  }
  Memory memory;
  memory.data = memory.extent = bytes;
  memory.nbytes = memory.extent_nbytes = nbytes;
  memory.owner = use.get();
  memory.deleter = [](void* owner) { delete static_cast<PrivateUse*>(owner); };
  Ref<Storage> storage = Storage::adopt(memory);
  (void)use.release();
  return storage;
}

LentMappings& LentMappings::instance() {
  static auto* const mappings = new LentMappings;
  return *mappings;
}

bool LentMappings::add(const std::byte* data, uint64_t nbytes, const Place& place) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const std::scoped_lock locked(lock_);
  return mappings_.try_emplace(begin, Mapping{begin + nbytes, place}).second;
}

void LentMappings::remove(const PrivatePages& pages) noexcept {
  const std::scoped_lock locked(lock_);
  std::erase_if(mappings_, [&pages](const auto& entry) { return entry.second.place.pages == &pages; });
}

LentMappings::Place LentMappings::find(const Extent& extent) noexcept {
  const std::scoped_lock locked(lock_);
  const auto next = mappings_.upper_bound(extent.begin);
  if (next == mappings_.begin()) return {};
  const auto& [begin, mapping] = *std::prev(next);
  if (extent.end > mapping.end) return {};
  Place place = mapping.place;
  place.at += extent.begin - begin;
  return place;
}

void LentMappings::before_fork() noexcept {
  lock_.lock();
  for (const auto& [begin, mapping] : mappings_) {
    if (mapping.place.forks_here) mapping.place.pages->before_fork(true);
  }
}

void LentMappings::after_fork() noexcept {
  for (const auto& [begin, mapping] : mappings_) {
    if (mapping.place.forks_here) mapping.place.pages->after_fork();
  }
  lock_.unlock();
}

Ref<Array> lazy_copy(const Array& array, bool may_copy) {
  if (!array.storage().is_readonly()) return {};
  const Extent extent = array.extent();
  const auto [pages, at, forks_here] = LentMappings::instance().find(array.storage().extent());
  if (pages == nullptr) return {};
  const HostCall call("copy", {{array, Access::kRead}});
  const uint64_t nbytes = extent.end - extent.begin;
  const bool shares_elements = array.desc().nbytes > nbytes;
  Ref<Storage> storage;
  if (!shares_elements && nbytes != 0 && (nbytes >= kLeastPrivateNbytes || !may_copy)) {
    const uint64_t begin = at + (extent.begin - array.storage().extent().begin);
    storage = on_private_pages(array.storage(), *pages, begin, nbytes);
  }
  if (!storage) {
    if (may_copy) return copy(array, array.dtype());
    throw_error(Code::kBuffer, "the read-only array of shape ", shape_text(array.shape()),
                " has no writable memory without a copy of its elements");
  }
  Layout layout = array.layout();
  layout.data = storage->data() + (reinterpret_cast<uintptr_t>(array.data()) - extent.begin);
  layout.flags &= ~uint32_t{TENON_READONLY};
  return Array::make(std::move(storage), layout);
}

}  // namespace tenon::impl
