// SPDX-License-Identifier: Apache-2.0
//
// Memory and events of several processes, by memory files. An importer opens the exporter's file at
// /proc/PID/fd/N; what it has mapped outlives the exporter.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "fake.h"

namespace tenon::fake {

// Memory of cuMemCreate, or imported. Its file has a page more, which says what it is.
struct Physical {
  int fd;
  size_t nbytes;
  int device;
  bool is_exportable, is_own;

  Physical(int file, size_t size, int ordinal, bool exportable, bool own)
      : fd(file), nbytes(size), device(ordinal), is_exportable(exportable), is_own(own) {
    ++state().counts["live.physical"];
    if (is_own) state().counts["live.bytes." + std::to_string(device)] += nbytes;
  }
  ~Physical() {
    close(fd);
    --state().counts["live.physical"];
    if (is_own) state().counts["live.bytes." + std::to_string(device)] -= nbytes;
  }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
};

namespace {

constexpr size_t kGranularity = size_t{2} << 20;
constexpr uint32_t kMemoryMagic = 0x54464d31, kEventMagic = 0x54464531, kPhysicalMagic = 0x54465031;

struct Handle {
  uint32_t magic;
  int pid, fd, device;
  uint64_t offset, nbytes, file;  // file: tells memory files apart when a pid or fd is used again
};
static_assert(sizeof(Handle) <= sizeof(CUipcMemHandle));

struct Trailer {
  uint32_t magic;
  int device;
};

uint64_t file_number(int fd) {
  struct stat status = {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

// Of a mapping that the block or event which owns it may outlive.
std::shared_ptr<char> map_file(int fd, size_t offset, size_t nbytes, std::shared_ptr<void> owner = {}) {
  void* bytes = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (bytes == MAP_FAILED) return {};
  return {static_cast<char*>(bytes), [nbytes, owner](char* mapped) { munmap(mapped, nbytes); }};
}

int open_file(const Handle& handle) {
  std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0 && file_number(fd) == handle.file) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

Physical* find_physical(CUmemGenericAllocationHandle handle) {
  auto found = state().physicals.find(handle);
  return found == state().physicals.end() ? nullptr : found->second.get();
}

// The mappings that lie in [address, address + nbytes) and fill it; empty if they do not.
std::vector<Block*> mappings_in(uintptr_t address, size_t nbytes) {
  std::vector<Block*> found;
  uintptr_t end = address + nbytes;
  while (address < end) {
    Block* block = find_block(address);
    bool fits = block != nullptr && block->kind == Kind::kMapped && block->base == address &&
                block->nbytes <= end - address;
    if (!fits) return {};
    found.push_back(block);
    address += block->nbytes;
  }
  return found;
}

}  // namespace

CUresult share_event(Event& event) {
  int fd = memfd_create("tenon-fake-event", MFD_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::shared_ptr<void> file(nullptr, [fd](void*) { close(fd); });
  if (ftruncate(fd, kPage) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::shared_ptr<char> bytes = map_file(fd, 0, kPage, file);
  if (bytes == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  event.shared = {bytes, new (bytes.get()) SharedRecords};
  event.fd = fd;
  return CUDA_SUCCESS;
}

// The functions of the driver.

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  TENON_FAKE_CALL(kUnsafe);
  if (!s.settings.ipc) return CUDA_ERROR_NOT_SUPPORTED;
  Block* block = find_block(address);
  if (block == nullptr || block->kind != Kind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  const Arena& arena = s.devices[static_cast<size_t>(block->device)];
  Handle made = {
      kMemoryMagic,         getpid(), arena.fd, block->device, block->base - arena.begin, block->nbytes,
      file_number(arena.fd)};
  *handle = {};
  std::memcpy(handle, &made, sizeof made);
  block->is_exported = true;
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  TENON_FAKE_CALL(kUnsafe);
  Handle given;
  std::memcpy(&given, &handle, sizeof given);
  if (given.magic != kMemoryMagic || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  if (!s.settings.ipc) return CUDA_ERROR_NOT_SUPPORTED;
  if (given.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  std::string key(reinterpret_cast<const char*>(&given), sizeof given);
  for (auto& [base, block] : s.blocks) {
    if (block.kind != Kind::kIpc || block.handle != key) continue;
    ++block.n_opened;
    *address = base;
    return CUDA_SUCCESS;
  }
  int fd = open_file(given);
  if (fd < 0) return kMapFailed;
  size_t within = given.offset % kPage;
  std::shared_ptr<char> bytes = map_file(fd, given.offset - within, within + given.nbytes);
  close(fd);
  uintptr_t base = 0;
  if (bytes == nullptr) return kMapFailed;
  CUresult error = take_addresses(s.addresses, within + given.nbytes, kPage, &base);
  if (error != CUDA_SUCCESS) return error;
  int device = call.context->device;  // its number may be another one in the other process
  Block& block = add_block(Kind::kIpc, base + within, given.nbytes, bytes.get() + within, device);
  block.n_opened = 1;
  block.handle = key;
  block.owner = bytes;
  *address = block.base;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  TENON_FAKE_CALL(kUnsafe);
  Block* block = find_block(address);
  if (block == nullptr || block->kind != Kind::kIpc || block->base != address)
    return CUDA_ERROR_INVALID_VALUE;
  if (--block->n_opened == 0) drop_block(address);
  return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  TENON_FAKE_CALL(kContext);
  if (!s.settings.ipc) return CUDA_ERROR_NOT_SUPPORTED;
  if (!s.events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->fd < 0) return CUDA_ERROR_INVALID_VALUE;
  Handle made = {kEventMagic, getpid(), event->fd, event->context->device, 0, kPage, file_number(event->fd)};
  *handle = {};
  std::memcpy(handle, &made, sizeof made);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  TENON_FAKE_CALL(kContext);
  Handle given;
  std::memcpy(&given, &handle, sizeof given);
  if (given.magic != kEventMagic) return CUDA_ERROR_INVALID_VALUE;
  if (!s.settings.ipc) return CUDA_ERROR_NOT_SUPPORTED;
  if (given.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  int fd = open_file(given);
  if (fd < 0) return kMapFailed;
  std::shared_ptr<char> bytes = map_file(fd, 0, kPage);
  close(fd);
  if (bytes == nullptr) return kMapFailed;
  auto made = std::make_unique<Event>(
      Event{.context = call.context, .flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING});
  made->shared = {bytes, std::launder(reinterpret_cast<SharedRecords*>(bytes.get()))};
  *event = made.get();
  s.events[made.get()] = std::move(made);
  ++s.counts["live.events"];
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop, int /*option*/) {
  TENON_FAKE_CALL(kInit);
  if (!s.settings.vmm) return CUDA_ERROR_NOT_SUPPORTED;
  if (granularity == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t nbytes, size_t alignment, CUdeviceptr /*wanted*/,
                             unsigned long long flags) {
  TENON_FAKE_CALL(kInit);
  bool is_good = nbytes > 0 && nbytes % kGranularity == 0 && (alignment & (alignment - 1)) == 0 && flags == 0;
  if (!is_good) return CUDA_ERROR_INVALID_VALUE;
  uintptr_t base = 0;
  CUresult error = take_addresses(s.addresses, nbytes, std::max(alignment, kGranularity), &base);
  if (error != CUDA_SUCCESS) return error;
  s.reserved[base] = nbytes;
  ++s.counts["live.reserved"];
  *address = base;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t nbytes) {
  TENON_FAKE_CALL(kInit);
  auto found = s.reserved.find(address);
  if (found == s.reserved.end() || found->second != nbytes) return CUDA_ERROR_INVALID_VALUE;
  auto mapped = s.blocks.lower_bound(address);
  if (mapped != s.blocks.end() && mapped->first < address + nbytes) return CUDA_ERROR_INVALID_VALUE;
  s.reserved.erase(found);
  --s.counts["live.reserved"];
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t nbytes, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  TENON_FAKE_CALL(kInit);
  if (!s.settings.vmm) return CUDA_ERROR_NOT_SUPPORTED;
  bool is_good = nbytes > 0 && nbytes % kGranularity == 0 && flags == 0 &&
                 prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                 prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!is_good) return CUDA_ERROR_INVALID_VALUE;
  int device = prop->location.id;
  if (device < 0 || device >= s.n_devices) return CUDA_ERROR_INVALID_DEVICE;
  if (nbytes > s.settings.memory - s.counts["live.bytes." + std::to_string(device)])
    return CUDA_ERROR_OUT_OF_MEMORY;
  int fd = memfd_create("tenon-fake-physical", MFD_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  bool is_exportable = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  auto made = std::make_shared<Physical>(fd, nbytes, device, is_exportable, true);
  Trailer trailer = {kPhysicalMagic, device};
  bool is_written = ftruncate(fd, static_cast<off_t>(nbytes + kPage)) == 0 &&
                    pwrite(fd, &trailer, sizeof trailer, static_cast<off_t>(nbytes)) == sizeof trailer;
  if (!is_written) return CUDA_ERROR_OPERATING_SYSTEM;
  *handle = ++s.n_ids;
  s.physicals[*handle] = made;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  TENON_FAKE_CALL(kInit);
  return s.physicals.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, size_t nbytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  TENON_FAKE_CALL(kInit);
  Physical* physical = find_physical(handle);
  bool is_good = physical != nullptr && flags == 0 && offset == 0 && nbytes == physical->nbytes &&
                 address % kGranularity == 0;
  auto range = s.reserved.upper_bound(address);
  is_good = is_good && range != s.reserved.begin();
  if (!is_good) return CUDA_ERROR_INVALID_VALUE;
  --range;
  if (address + nbytes > range->first + range->second) return CUDA_ERROR_INVALID_VALUE;
  auto next = s.blocks.lower_bound(address);
  bool is_taken =
      find_block(address) != nullptr || (next != s.blocks.end() && next->first < address + nbytes);
  if (is_taken) return CUDA_ERROR_ALREADY_MAPPED;
  std::shared_ptr<char> bytes = map_file(physical->fd, 0, nbytes, s.physicals.at(handle));
  if (bytes == nullptr) return kMapFailed;
  Block& block = add_block(Kind::kMapped, address, nbytes, bytes.get(), physical->device);
  block.is_live = false;
  block.owner = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t nbytes) {
  TENON_FAKE_CALL(kInit);
  std::vector<Block*> blocks = mappings_in(address, nbytes);
  if (blocks.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (Block* block : blocks) drop_block(block->base);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t nbytes, const CUmemAccessDesc* access, size_t count) {
  TENON_FAKE_CALL(kInit);
  std::vector<Block*> blocks = mappings_in(address, nbytes);
  if (blocks.empty() || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (Block* block : blocks) block->is_live = access[0].flags != 0;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags) {
  TENON_FAKE_CALL(kInit);
  Physical* physical = find_physical(handle);
  bool is_good = physical != nullptr && physical->is_exportable && flags == 0 &&
                 type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (!is_good) return CUDA_ERROR_INVALID_VALUE;
  int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(shareable, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable, int type) {
  TENON_FAKE_CALL(kInit);
  if (!s.settings.vmm) return CUDA_ERROR_NOT_SUPPORTED;
  auto fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  struct stat status = {};
  Trailer trailer = {};
  bool is_good = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && fstat(fd, &status) == 0 &&
                 status.st_size > off_t{kPage} &&
                 pread(fd, &trailer, sizeof trailer, status.st_size - off_t{kPage}) == sizeof trailer &&
                 trailer.magic == kPhysicalMagic && trailer.device < s.n_devices;
  if (!is_good) return CUDA_ERROR_INVALID_VALUE;
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *handle = ++s.n_ids;
  s.physicals[*handle] = std::make_shared<Physical>(own, static_cast<size_t>(status.st_size) - kPage,
                                                    trailer.device, true, false);
  return CUDA_SUCCESS;
}

}  // namespace tenon::fake
