// SPDX-License-Identifier: Apache-2.0
#include "memory/storage.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "base/error.h"
#include "device/submitted_work.h"
#include "memory/known_memory.h"

namespace tenon::impl {
namespace {

constexpr size_t kPageAlignedFrom = size_t{1} << 20;
// Large memory has huge pages, because page faults cost more than copies.
constexpr size_t kHugePagesFrom = size_t{4} << 20;

void advise_huge_pages(uintptr_t address, size_t nbytes) {
  const uintptr_t begin = round_up(address, kHugePage);
  const uintptr_t end = (address + nbytes) / kHugePage * kHugePage;
  // Only advice: the memory works without huge pages, too.
  if (end > begin) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// The owner of memory on a device.
struct DeviceBlock {
  device::Device& device;
  void* address;
  size_t nbytes;
  Ref<device::Event> born;

  static void release(void* owner) {
    const std::unique_ptr<DeviceBlock> self(static_cast<DeviceBlock*>(owner));
    if (self->address != nullptr) self->device.free(self->address, self->nbytes);
  }
};

// The owner of pinned memory. Another library may still copy from it or to it when the last view has gone.
struct PinnedBlock : device::AfterWork {
  void* address = nullptr;
  size_t nbytes = 0;

  static void free(AfterWork* after) noexcept {
    const std::unique_ptr<PinnedBlock> self(static_cast<PinnedBlock*>(after));
    device::free_pinned(self->address, self->nbytes);
  }
  static void release(void* owner) {
    std::unique_ptr<PinnedBlock> self(static_cast<PinnedBlock*>(owner));
    if (self->address == nullptr) return;
    self->call = free;
    PinnedBlock* const block = self.release();
    if (!device::SubmittedWork::instance().then(block)) free(block);
  }
};

Memory memory_on_device(size_t nbytes, bool is_zeroed, tenon_device id) {
  device::Device& device = device::Device::of(id);
  std::unique_ptr<DeviceBlock> block(new DeviceBlock{device, nullptr, nbytes, {}});
  if (nbytes != 0) block->address = device.allocate(nbytes, is_zeroed, &block->born);
  auto* const data = static_cast<std::byte*>(block->address);
  device::Event* const born = block->born.get();
  return {data, nbytes, data, nbytes, false, block.release(), DeviceBlock::release, nullptr, id, born};
}

Memory pinned_memory(size_t nbytes, bool is_zeroed, tenon_device id) {
  auto block = std::make_unique<PinnedBlock>();
  block->nbytes = nbytes;
  if (nbytes != 0) {
    device::SubmittedWork::instance().prepare();
    block->address = device::allocate_pinned(nbytes);
  }
  auto* const data = static_cast<std::byte*>(block->address);
  if (is_zeroed && nbytes != 0) std::memset(data, 0, nbytes);
  return {data, nbytes, data, nbytes, false, block.release(), PinnedBlock::release, nullptr, id};
}

Ref<Storage> allocate_elsewhere(size_t nbytes, bool is_zeroed, tenon_device id) {
  Memory memory;
  switch (id.type) {
    case TENON_CUDA: memory = memory_on_device(nbytes, is_zeroed, id); break;
    case TENON_CUDA_HOST: memory = pinned_memory(nbytes, is_zeroed, id); break;
    default:
      throw_error(Code::kValue, "arrays cannot be created on ", device::text_of(id),
                  ": use 'cpu', 'cuda:N' or 'cuda_host'");
  }
  try {
    return KnownMemory::instance().add(memory);
  } catch (...) {
    memory.deleter(memory.owner);
    throw;
  }
}

}  // namespace

// Calls malloc with some more bytes, because aligned_alloc is several times slower for small sizes. For
// zeroed memory it calls calloc, which gets large blocks from the system without writing to them.
Ref<Storage> Storage::allocate(size_t nbytes, bool is_zeroed, tenon_device device) {
  if (device.type != TENON_CPU || device.id != 0) [[unlikely]]
    return allocate_elsewhere(nbytes, is_zeroed, device);
  const size_t alignment = nbytes >= kPageAlignedFrom ? kPage : kAlignment;
  const size_t gap = alignment - alignof(std::max_align_t);  // at most; malloc aligns, too
  void* owner = nullptr;
  if (nbytes <= PTRDIFF_MAX - kPage) {
    owner = is_zeroed ? std::calloc(nbytes + gap, 1) : std::malloc(nbytes + gap);
  }
  if (owner == nullptr) throw_error(Code::kNoMemory, "cannot allocate ", nbytes, " bytes");
  const auto begin = reinterpret_cast<uintptr_t>(owner);
  const uintptr_t address = round_up(begin, alignment);
  if (nbytes >= kHugePagesFrom) advise_huge_pages(address, nbytes);
  std::byte* const data = static_cast<std::byte*>(owner) + (address - begin);
  Memory memory{data, nbytes, data, nbytes, false, owner, std::free};
  memory.is_heap = true;
  try {
    return KnownMemory::instance().add(memory);
  } catch (...) {
    std::free(owner);
    throw;
  }
}

Storage::Storage(const Memory& memory, Region& region) noexcept
    : home_(&region),
      data_(memory.data),
      nbytes_(memory.nbytes),
      owner_(memory.owner),
      deleter_(memory.deleter),
      device_(memory.device),
      is_readonly_(memory.is_readonly),
      is_shared_(memory.gate != nullptr),
      is_unchecked_(memory.is_unchecked),
      is_heap_(memory.is_heap),
      born_(memory.born) {}

Memory Storage::memory() const noexcept {
  return {data_, nbytes_, data_, nbytes_, is_readonly_, owner_, deleter_, nullptr, device_, born_};
}

Ref<Storage> Storage::adopt(const Memory& memory) { return KnownMemory::instance().add(memory); }

Ref<Storage> Storage::adopt_part(Storage& whole, const Memory& memory) {
  return KnownMemory::instance().add_part(whole, memory);
}

bool Storage::end_parts(Storage& whole, Deleter deleter, bool unless_used) noexcept {
  return KnownMemory::instance().end_parts(whole, deleter, unless_used);
}

Ref<Storage> Storage::lost(size_t nbytes, void* owner, Deleter deleter, tenon_device device) {
  // No address: it is aligned, and nothing reads it.
  auto* const nowhere = reinterpret_cast<std::byte*>(kNowhere);
  Memory memory{nowhere, nbytes, nowhere, nbytes, false, owner, deleter};
  memory.device = device;
  return KnownMemory::instance().add_lost(memory);
}

bool Storage::is_used() noexcept {
  Queue& queue = lock_home(home_);
  const bool is_used = queue.is_used(extent());
  queue.lock.unlock();
  return is_used;
}

Ref<Storage> Storage::find(const std::byte* data, size_t nbytes, Access access) {
  return KnownMemory::instance().find(data, nbytes, access);
}

bool Storage::is_known(const std::byte* data, size_t nbytes) {
  return KnownMemory::instance().is_known(data, nbytes);
}

[[gnu::hot]] void Storage::release() noexcept {
  if (!refs_.decrement()) return;
  void* const owner = owner_;
  const bool has_owner = moved_at() == nullptr || moved_at() == kLost;
  const Deleter deleter = has_owner ? deleter_ : nullptr;
  const bool has_failures = region().has_failures.load(std::memory_order_relaxed);
  KnownMemory::instance().retire(this);  // from here on the object may be destroyed
  if (deleter != nullptr) {
    try {
      deleter(owner);
    } catch (...) {
      KnownMemory::instance().note_failed_deleter();
    }
  }
  if (has_failures)
    KnownMemory::instance().forget_retired();  // so that failures that no caller has seen are reported
}

}  // namespace tenon::impl
