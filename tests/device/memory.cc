// SPDX-License-Identifier: Apache-2.0
//
// Memory: blocks of device memory, of pinned and of registered host memory, and what is known of an address.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "fake.h"

namespace tenon::fake {
namespace {

constexpr size_t kArenaFactor = 8;  // addresses per byte of memory: so late is an address used again
constexpr size_t kPinnedArena = size_t{16} << 30;
constexpr size_t kMostFilled = size_t{256} << 20;
// Blocks of devices do not begin at a page, which no driver promises.
constexpr size_t kMisalignment = 512;
constexpr char kNew = static_cast<char>(0xCD), kFreed = static_cast<char>(0xDD);

size_t whole_pages(size_t nbytes) { return (nbytes + kPage - 1) / kPage * kPage; }

const char* counter(Kind kind) {
  switch (kind) {
    case Kind::kDevice:
    case Kind::kPool: return "live.device";
    case Kind::kPinned: return "live.pinned";
    case Kind::kRegistered: return "live.registered";
    case Kind::kManaged: return "live.managed";
    case Kind::kIpc: return "live.ipc";
    case Kind::kMapped: return "live.mapped";
  }
  return "";
}

std::string memory_counter(int device) { return "live.bytes." + std::to_string(device); }

bool counts_as_memory(const Block& block) {
  return block.kind == Kind::kDevice || block.kind == Kind::kPool || block.kind == Kind::kManaged;
}

void reserve(Arena& arena, size_t nbytes) {
  void* begin = mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) std::perror("fake CUDA driver: mmap"), std::abort();
  arena.begin = reinterpret_cast<uintptr_t>(begin);
  arena.nbytes = nbytes;
}

CUresult allocate(Context& context, size_t nbytes, Kind kind, Block** block) {
  State& s = state();
  if (nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t& used = s.counts[memory_counter(context.device)];
  if (nbytes > s.settings.memory - used) return CUDA_ERROR_OUT_OF_MEMORY;
  Arena& arena = s.devices[static_cast<size_t>(context.device)];
  uintptr_t address = 0;
  CUresult error = take_addresses(arena, nbytes + kMisalignment, kPage, &address);
  if (error != CUDA_SUCCESS) return error;
  address += kMisalignment;
  *block = &add_block(kind, address, nbytes, arena.bytes + (address - arena.begin), context.device);
  std::memset((*block)->bytes, kNew, std::min(nbytes, kMostFilled));
  used += nbytes;
  return CUDA_SUCCESS;
}

}  // namespace

void make_arenas() {
  State& s = state();
  auto n_devices = static_cast<size_t>(s.settings.devices);
  size_t nbytes = whole_pages(s.settings.memory * kArenaFactor + (size_t{64} << 20));
  if (s.pinned.nbytes == 0) reserve(s.pinned, kPinnedArena);
  if (s.addresses.nbytes == 0) reserve(s.addresses, kPinnedArena);
  s.devices.reserve(64);
  for (size_t i = 0; i < n_devices; ++i) {
    if (i < s.devices.size() && s.devices[i].nbytes >= nbytes) continue;
    if (i == s.devices.size()) s.devices.emplace_back();  // a smaller one that a reset left is given up
    Arena& arena = s.devices[i];
    arena = {};
    reserve(arena, nbytes);
    arena.cookie = "tenon-fake-gpu-" + std::to_string(getpid()) + "-" + std::to_string(s.random());
    arena.fd = memfd_create(arena.cookie.c_str(), MFD_CLOEXEC);
    void* bytes = MAP_FAILED;
    if (arena.fd >= 0 && ftruncate(arena.fd, static_cast<off_t>(nbytes)) == 0) {
      bytes = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena.fd, 0);
    }
    if (bytes == MAP_FAILED) std::perror("fake CUDA driver: memory of a device"), std::abort();
    arena.bytes = static_cast<char*>(bytes);
  }
}

CUresult take_addresses(Arena& arena, size_t nbytes, size_t alignment, uintptr_t* address) {
  State& s = state();
  nbytes = whole_pages(nbytes) + kPage;  // a page between blocks, so that each overrun is seen
  for (int round = 0; round < 2; ++round) {
    uintptr_t from = arena.begin + arena.next;
    for (;;) {
      from = (from + alignment - 1) / alignment * alignment;
      if (from + nbytes > arena.begin + arena.nbytes) break;
      uintptr_t in_the_way = 0;  // the end of the last block or reservation in [from, from + nbytes)
      auto block = s.blocks.lower_bound(from + nbytes);
      if (block != s.blocks.begin()) {
        --block;
        uintptr_t end = block->second.base + block->second.nbytes;
        if (arena.contains(block->first) && end > from) in_the_way = end;
      }
      auto range = s.reserved.lower_bound(from + nbytes);
      if (range != s.reserved.begin()) {
        --range;
        if (arena.contains(range->first)) in_the_way = std::max(in_the_way, range->first + range->second);
      }
      if (in_the_way <= from) {
        arena.next = from + nbytes - arena.begin;
        *address = from;
        return CUDA_SUCCESS;
      }
      from = whole_pages(in_the_way) + kPage;
    }
    arena.next = 0;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

Block& add_block(Kind kind, uintptr_t base, size_t nbytes, char* bytes, int device) {
  State& s = state();
  ++s.counts[counter(kind)];
  return s.blocks[base] = {
             .kind = kind, .base = base, .nbytes = nbytes, .bytes = bytes, .device = device, .id = ++s.n_ids};
}

void drop_block(uintptr_t base) {
  State& s = state();
  auto found = s.blocks.find(base);
  Block& block = found->second;
  --s.counts[counter(block.kind)];
  if (counts_as_memory(block) && !block.is_being_freed)
    s.counts[memory_counter(block.device)] -= block.nbytes;
  if (block.kind == Kind::kDevice || block.kind == Kind::kPool) {
    const Arena& arena = s.devices[static_cast<size_t>(block.device)];
    if (block.is_exported) {
      std::memset(block.bytes, kFreed, block.nbytes);
    } else {
      fallocate(arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(block.base - kMisalignment - arena.begin),
                static_cast<off_t>(whole_pages(block.nbytes + kMisalignment)));
    }
  } else if (block.kind == Kind::kPinned || block.kind == Kind::kManaged) {
    void* begin = reinterpret_cast<void*>(block.base);
    mmap(begin, whole_pages(block.nbytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
  }
  s.blocks.erase(found);
}

Block* find_block(uintptr_t address) {
  auto& blocks = state().blocks;
  auto found = blocks.upper_bound(address);
  if (found == blocks.begin()) return nullptr;
  --found;
  return address - found->first < found->second.nbytes ? &found->second : nullptr;
}

bool is_device(const Block& block) {
  return block.kind == Kind::kDevice || block.kind == Kind::kPool || block.kind == Kind::kIpc ||
         block.kind == Kind::kMapped;
}

bool is_driver_address(uintptr_t address) {
  State& s = state();
  return s.pinned.contains(address) || s.addresses.contains(address) ||
         std::any_of(s.devices.begin(), s.devices.end(),
                     [&](const Arena& arena) { return arena.contains(address); });
}

bool is_pageable(uintptr_t address) { return find_block(address) == nullptr && !is_driver_address(address); }

bool is_valid(uintptr_t address, size_t nbytes) {
  if (Block* block = find_block(address)) return nbytes <= block->nbytes - (address - block->base);
  if (address == 0 || is_driver_address(address)) return false;
  return nbytes == 0 || find_block(address + nbytes - 1) == nullptr;  // not half of it registered
}

char* reach(uintptr_t address, size_t nbytes) {
  if (!is_valid(address, nbytes)) return nullptr;
  Block* block = find_block(address);
  if (block == nullptr) return reinterpret_cast<char*>(address);
  return block->is_live ? block->bytes + (address - block->base) : nullptr;
}

std::string text_of(uintptr_t address, size_t nbytes) {
  char text[128];
  Block* block = find_block(address);
  const char* what = block == nullptr ? "is not allocated"
                     : block->is_live ? "is too short"
                                      : "is not allocated yet";
  std::snprintf(text, sizeof text, "%zu bytes at 0x%zx, which %s", nbytes, static_cast<size_t>(address),
                what);
  return text;
}

// The functions of the driver.

CUresult cuMemGetInfo_v2(size_t* free_nbytes, size_t* total_nbytes) {
  TENON_FAKE_CALL(kContext);
  *total_nbytes = s.settings.memory;
  *free_nbytes = s.settings.memory - s.counts[memory_counter(call.context->device)];
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t nbytes) {
  TENON_FAKE_CALL(kUnsafe);
  Block* block = nullptr;
  CUresult error = allocate(*call.context, nbytes, Kind::kDevice, &block);
  if (error == CUDA_SUCCESS) *address = block->base;
  return error;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  TENON_FAKE_CALL(kUnsafe);
  if (address == 0) return CUDA_SUCCESS;
  Block* block = find_block(address);
  bool is_freeable =
      block != nullptr && block->base == address && counts_as_memory(*block) && !block->is_being_freed;
  if (!is_freeable) {
    note_problem("cuMemFree of " + text_of(address, 1));
    return CUDA_ERROR_INVALID_VALUE;
  }
  drop_block(address);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t nbytes, CUstream handle) {
  TENON_FAKE_CALL(kContext);
  if (!s.settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  Stream* stream = find_stream(call.context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Block* block = nullptr;
  CUresult error = allocate(*stream->context, nbytes, Kind::kPool, &block);
  if (error != CUDA_SUCCESS) return error;
  block->is_live = false;
  uintptr_t base = block->base;
  error = submit(*stream, {"cuMemAllocAsync", [base, id = block->id](auto&) {
                             Block* allocated = find_block(base);
                             if (allocated != nullptr && allocated->id == id) allocated->is_live = true;
                             return CUDA_SUCCESS;
                           }});
  if (error != CUDA_SUCCESS)
    drop_block(base);
  else
    *address = base;
  return error;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  TENON_FAKE_CALL(kContext);
  if (!s.settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  Stream* stream = find_stream(call.context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (address == 0) return CUDA_SUCCESS;
  Block* block = find_block(address);
  bool is_freeable =
      block != nullptr && block->base == address && block->kind == Kind::kPool && !block->is_being_freed;
  if (!is_freeable) {
    note_problem("cuMemFreeAsync of " + text_of(address, 1));
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult error = submit(*stream, {"cuMemFreeAsync", [address, id = block->id](auto&) {
                                      Block* freed = find_block(address);
                                      if (freed != nullptr && freed->id == id) drop_block(address);
                                      return CUDA_SUCCESS;
                                    }});
  if (error != CUDA_SUCCESS) return error;
  block->is_being_freed = true;
  s.counts[memory_counter(block->device)] -= block->nbytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  TENON_FAKE_CALL(kInit);
  if (device < 0 || device >= static_cast<CUdevice>(s.devices.size())) return CUDA_ERROR_INVALID_DEVICE;
  if (!s.settings.pools) return CUDA_ERROR_NOT_SUPPORTED;
  *pool = reinterpret_cast<CUmemoryPool>(&s.devices[static_cast<size_t>(device)]);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  TENON_FAKE_CALL(kInit);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostAlloc(void** address, size_t nbytes, unsigned flags) {
  TENON_FAKE_CALL(kUnsafe);
  if (nbytes == 0 || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  uintptr_t base = 0;
  CUresult error = take_addresses(s.pinned, nbytes, kPage, &base);
  if (error != CUDA_SUCCESS) return error;
  auto* bytes = reinterpret_cast<char*>(base);
  if (mprotect(bytes, whole_pages(nbytes), PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(bytes, kNew, std::min(nbytes, kMostFilled));
  add_block(Kind::kPinned, base, nbytes, bytes, call.context->device);
  *address = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* address) {
  TENON_FAKE_CALL(kUnsafe);
  Block* block = find_block(reinterpret_cast<uintptr_t>(address));
  if (block == nullptr || block->kind != Kind::kPinned || reinterpret_cast<void*>(block->base) != address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  drop_block(block->base);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* address, size_t nbytes, unsigned flags) {
  TENON_FAKE_CALL(kUnsafe);
  if (address == nullptr || nbytes == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
  if (!s.settings.registers) return CUDA_ERROR_NOT_SUPPORTED;
  auto base = reinterpret_cast<uintptr_t>(address);
  auto next = s.blocks.lower_bound(base);
  bool overlaps = find_block(base) != nullptr || (next != s.blocks.end() && next->first < base + nbytes);
  if (overlaps) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (is_driver_address(base)) return CUDA_ERROR_INVALID_VALUE;
  add_block(Kind::kRegistered, base, nbytes, static_cast<char*>(address), call.context->device);
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* address) {
  TENON_FAKE_CALL(kUnsafe);
  Block* block = find_block(reinterpret_cast<uintptr_t>(address));
  if (block == nullptr || block->kind != Kind::kRegistered ||
      reinterpret_cast<void*>(block->base) != address) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  drop_block(block->base);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  TENON_FAKE_CALL(kInit);
  Block* block = find_block(address);
  if (value == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto write = [&](auto result) {
    std::memcpy(value, &result, sizeof result);
    return CUDA_SUCCESS;
  };
  bool is_on_device = is_device(*block) || block->kind == Kind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return write(s.contexts[static_cast<size_t>(block->device)].get());
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return write(is_on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return write(address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return is_device(*block) ? CUDA_ERROR_INVALID_VALUE : write(reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return write(static_cast<unsigned long long>(block->id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return write(static_cast<unsigned>(block->kind == Kind::kManaged));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return write(block->device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return write(static_cast<unsigned>(s.settings.ipc && block->kind == Kind::kDevice));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return write(static_cast<CUdeviceptr>(block->base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return write(block->nbytes);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace tenon::fake

int fake_cuda_alloc_managed(uint64_t* address, size_t nbytes) {
  using namespace tenon::fake;
  TENON_FAKE_CALL(kUnsafe);
  uintptr_t base = 0;
  CUresult error = take_addresses(s.addresses, nbytes, kPage, &base);
  if (error != CUDA_SUCCESS) return error;
  mprotect(reinterpret_cast<void*>(base), whole_pages(nbytes), PROT_READ | PROT_WRITE);
  add_block(Kind::kManaged, base, nbytes, reinterpret_cast<char*>(base), call.context->device);
  s.counts[memory_counter(call.context->device)] += nbytes;
  *address = base;
  return CUDA_SUCCESS;
}

int fake_cuda_read(void* to, uint64_t from, size_t nbytes) {
  std::unique_lock<std::mutex> lock(tenon::fake::state().lock);
  const char* bytes = tenon::fake::reach(from, nbytes);
  if (bytes == nullptr) return tenon::fake::CUDA_ERROR_ILLEGAL_ADDRESS;
  std::memcpy(to, bytes, nbytes);
  return 0;
}

int fake_cuda_write(uint64_t to, const void* from, size_t nbytes) {
  std::unique_lock<std::mutex> lock(tenon::fake::state().lock);
  char* bytes = tenon::fake::reach(to, nbytes);
  if (bytes == nullptr) return tenon::fake::CUDA_ERROR_ILLEGAL_ADDRESS;
  std::memcpy(bytes, from, nbytes);
  return 0;
}
