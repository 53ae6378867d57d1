// SPDX-License-Identifier: Apache-2.0
#include "ipc/private_pages.h"

#include <algorithm>
#include <iterator>
#include <new>

#include "base/bytes.h"

namespace tenon::impl {

PrivatePages::~PrivatePages() {
  for (const Mapping& mapping : mappings_) os::unmap(mapping.base, nbytes_);
}

bool PrivatePages::is_free(const Mapping& mapping, uint64_t begin, uint64_t end) noexcept {
  const auto next = mapping.open.lower_bound(begin);
  if (next != mapping.open.end() && next->first < end) return false;
  return next == mapping.open.begin() || std::prev(next)->second.end <= begin;
}

std::byte* PrivatePages::take(uint64_t begin, uint64_t end) {
  const std::scoped_lock locked(lock_);
  auto found =
      std::ranges::find_if(mappings_, [&](const Mapping& mapping) { return is_free(mapping, begin, end); });
  if (found == mappings_.end()) {
    if (mappings_.size() == kMostMappings) return nullptr;
    mappings_.reserve(kMostMappings);
    std::byte* const base = os::map_private(file_, at_, nbytes_);
    if (base == nullptr) return nullptr;
    found = mappings_.insert(mappings_.end(), {base, {}});
  }
  found->open.emplace(begin, Pages{end, false});
  return found->base;
}

std::byte* PrivatePages::open(uint64_t begin, uint64_t nbytes) noexcept {
  const uint64_t page = os::page_nbytes();
  const uint64_t first = begin / page * page, end = round_up(begin + nbytes, page);
  if (nbytes == 0 || nbytes > nbytes_ || begin > nbytes_ - nbytes) return nullptr;
  std::byte* base = nullptr;
  try {
    base = take(first, end);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  if (base == nullptr) return nullptr;
  // end() leaves no written pages. But mlockall() copies all pages of a mapping, from the first one on.
  if (!os::is_written(base + first) || os::discard_written(base + first, end - first)) return base + begin;
  this->end(base + begin);
  return nullptr;
}

void PrivatePages::end(std::byte* address) noexcept {
  const uint64_t page = os::page_nbytes();
  const auto find = [&](uint64_t* first) -> Mapping* {
    for (Mapping& mapping : mappings_) {
      if (address < mapping.base || address >= mapping.base + nbytes_) continue;
      *first = static_cast<uint64_t>(address - mapping.base) / page * page;
      return &mapping;
    }
    return nullptr;
  };
  std::byte* base = nullptr;
  uint64_t first = 0, end = 0;
  {
    const std::scoped_lock locked(lock_);
    Mapping* const mapping = find(&first);
    Pages& pages = mapping->open.find(first)->second;
    pages.is_ending = true;
    base = mapping->base;
    end = pages.end;
  }
  // Without the lock, because it takes 0.2 ms for 23 MB. Pages that cannot be freed are not opened again.
  if (!os::discard_written(base + first, end - first)) return;
  const std::scoped_lock locked(lock_);
  find(&first)->open.erase(first);
}

void PrivatePages::copy_at_forks() noexcept {
  const std::scoped_lock locked(lock_);
  copies_at_forks_ = true;
}

void PrivatePages::before_fork(bool is_unkept) noexcept {
  lock_.lock();
  if (!is_unkept && !copies_at_forks_) return;
  for (const Mapping& mapping : mappings_) {
    for (const auto& [begin, pages] : mapping.open) {
      if (!pages.is_ending) os::write_pages(mapping.base + begin, pages.end - begin);
    }
  }
}

}  // namespace tenon::impl
