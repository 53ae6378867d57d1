// SPDX-License-Identifier: Apache-2.0
//
// The driver of CUDA devices: its library is opened at run time, once for each process.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/one_per_process.h"
#include "device/cuda_api.h"
#include "device/driver.h"

namespace tenon::impl::device {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace)

constexpr const char* kLibrary = "libcuda.so.1";
constexpr const char* kVariable = "TENON_CUDA_DRIVER";

const char* library_path() noexcept {
  const char* const given = std::getenv(kVariable);
  return given != nullptr && *given != '\0' ? given : kLibrary;
}

// The functions of the driver; those that it may lack are null then.
struct Functions {
#define TENON_CUDA_MEMBER(base, exported, ...) std::add_pointer_t<__VA_ARGS__> base = nullptr;
  TENON_CUDA_FUNCTIONS(TENON_CUDA_MEMBER)
  TENON_CUDA_OPTIONAL_FUNCTIONS(TENON_CUDA_MEMBER)
  TENON_CUDA_NEWER_FUNCTIONS(TENON_CUDA_MEMBER)
#undef TENON_CUDA_MEMBER
};

// Finds functions in the library: as the driver says, so that they are of the ABI that is declared here, or
// by their exported names.
class Finder {
 public:
  explicit Finder(void* library) noexcept
      : library_(library),
        find_v2_(reinterpret_cast<GetProcAddressV2*>(dlsym(library, "cuGetProcAddress_v2"))),
        find_(reinterpret_cast<GetProcAddress*>(dlsym(library, "cuGetProcAddress"))) {}

  void* find(const char* base, const char* exported) const noexcept {
    void* const found = ask(base, kCudaAbi);
    return found != nullptr ? found : dlsym(library_, exported);
  }
  // Null: the driver says that it does not have the function of this version, or cannot say it.
  void* ask(const char* base, int version) const noexcept {
    void* found = nullptr;
    CUdriverProcAddressQueryResult result = 0;
    if (find_v2_ != nullptr) {
      if (find_v2_(base, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &result) != CUDA_SUCCESS)
        found = nullptr;
    } else if (find_ != nullptr) {
      if (find_(base, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM) != CUDA_SUCCESS) found = nullptr;
    }
    return found;
  }

 private:
  void* library_;
  GetProcAddressV2* find_v2_;
  GetProcAddress* find_;
};

CUdeviceptr address_of(const void* address) noexcept { return reinterpret_cast<uintptr_t>(address); }
CUstream stream_of(Stream stream) noexcept { return static_cast<CUstream>(stream); }
CUevent event_of(EventHandle event) noexcept { return static_cast<CUevent>(event); }

// A process that has started CUDA: its forked children cannot use it.
constinit std::atomic<bool> has_started{false};

class CudaDriver final : public Driver {
 public:
  CudaDriver() noexcept {
    try {
      // pairs with: CudaDriver::load, "CUDA has started"
      if (has_started.load(std::memory_order_acquire)) {
        code_ = Code::kSystem;
        error_ =
            "CUDA does not work in a process that was forked after CUDA had started: start worker processes "
            "with the method 'spawn' or 'forkserver', or use CUDA in them alone";
        return;
      }
      load();
    } catch (const Error& e) {
      code_ = e.code();
      try {
        error_ = e.what();
      } catch (const std::bad_alloc&) {
        code_ = Code::kNoMemory;
      }
    } catch (const std::bad_alloc&) {
      code_ = Code::kNoMemory;
    }
  }

  Driver& checked() {
    if (code_ == Code::kNoMemory) throw std::bad_alloc();
    if (code_ != Code{}) throw_error(code_, error_);
    return *this;
  }

  const char* name() const noexcept override { return "CUDA"; }

  std::string text_of(Status status) const override {
    const char* name = nullptr;
    const char* text = nullptr;
    if (!is_usable()) return "CUDA does not work in a forked process";
    if (cu_.cuGetErrorName(status, &name) != CUDA_SUCCESS || name == nullptr)
      return concat("CUDA error ", status);
    if (cu_.cuGetErrorString(status, &text) != CUDA_SUCCESS || text == nullptr) return name;
    return concat(name, ": ", text);
  }
  bool is_pending(Status status) const noexcept override { return status == CUDA_ERROR_NOT_READY; }
  bool is_no_memory(Status status) const noexcept override { return status == CUDA_ERROR_OUT_OF_MEMORY; }
  bool is_usable() const noexcept override {
    // In a child another object may have been made in the place of this one.
    return code_ == Code{} && !process_.is_child();
  }

  Status count(int32_t* devices) noexcept override { return cu_.cuDeviceGetCount(devices); }

  Status uuid_of(int32_t ordinal, DeviceUuid* uuid) noexcept override {
    // The second one names the instance of a GPU that is divided (MIG), the first one the whole GPU.
    const auto ask = cu_.cuDeviceGetUuid_v2 != nullptr ? cu_.cuDeviceGetUuid_v2 : cu_.cuDeviceGetUuid;
    if (ask == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    CUdevice device = 0;
    if (const Status s = cu_.cuDeviceGet(&device, ordinal)) return s;
    CUuuid found{};
    if (const Status s = ask(&found, device)) return s;
    static_assert(sizeof found == sizeof uuid->bytes);
    std::memcpy(uuid->bytes.data(), &found, sizeof found);
    return kOk;
  }

  Status is_open(int32_t ordinal, bool* is_open) noexcept override {
    CUdevice device = 0;
    unsigned flags = 0;
    int is_active = 0;
    if (const Status s = cu_.cuDeviceGet(&device, ordinal)) return s;
    if (const Status s = cu_.cuDevicePrimaryCtxGetState(device, &flags, &is_active)) return s;
    *is_open = is_active != 0;
    return kOk;
  }

  Status open(int32_t ordinal, Context* context, DeviceTraits* traits) noexcept override {
    CUdevice device = 0;
    char name[256] = "";
    if (const Status s = cu_.cuDeviceGet(&device, ordinal)) return s;
    if (const Status s = cu_.cuDeviceGetName(name, sizeof name - 1, device)) return s;
    try {
      traits->name = name;
    } catch (const std::bad_alloc&) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const auto attribute = [&](CUdevice_attribute which) {
      int value = 0;
      return cu_.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS && value != 0;
    };
    if (!attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)) return CUDA_ERROR_NOT_SUPPORTED;
    traits->can_register = attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
    traits->has_pools = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) && has_pool_functions() &&
                        keep_pool_memory(device);
    CUcontext made = nullptr;
    if (const Status s = cu_.cuDevicePrimaryCtxRetain(&made, device)) return s;
    *context = made;
    Entry entry;
    if (const Status s = enter(made, &entry)) return s;
    size_t free = 0;
    size_t total = 0;
    const Status s = cu_.cuMemGetInfo(&free, &total);
    leave(entry);
    traits->total_nbytes = total;
    return s;
  }

  Status enter(Context context, Entry* entry) noexcept override {
    if (!is_usable()) return CUDA_ERROR_NOT_INITIALIZED;
    if (const Status s = cu_.cuCtxPushCurrent(static_cast<CUcontext>(context))) return s;
    entry->capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (cu_.cuThreadExchangeStreamCaptureMode != nullptr)
      (void)cu_.cuThreadExchangeStreamCaptureMode(&entry->capture_mode);
    return kOk;
  }
  void leave(const Entry& entry) noexcept override {
    int mode = entry.capture_mode;
    if (cu_.cuThreadExchangeStreamCaptureMode != nullptr) (void)cu_.cuThreadExchangeStreamCaptureMode(&mode);
    CUcontext context = nullptr;
    (void)cu_.cuCtxPopCurrent(&context);
  }

  Status allocate(size_t nbytes, Stream stream, void** address) noexcept override {
    CUdeviceptr made = 0;
    const Status s = stream != nullptr ? cu_.cuMemAllocAsync(&made, nbytes, device::stream_of(stream))
                                       : cu_.cuMemAlloc(&made, nbytes);
    if (s == kOk) *address = reinterpret_cast<void*>(static_cast<uintptr_t>(made));
    return s;
  }
  Status free(void* address, Stream stream) noexcept override {
    return stream != nullptr ? cu_.cuMemFreeAsync(address_of(address), device::stream_of(stream))
                             : cu_.cuMemFree(address_of(address));
  }
  Status free_nbytes(uint64_t* nbytes) noexcept override {
    size_t free = 0;
    size_t total = 0;
    const Status s = cu_.cuMemGetInfo(&free, &total);
    *nbytes = free;
    return s;
  }
  Status allocate_host(size_t nbytes, void** address) noexcept override {
    return cu_.cuMemHostAlloc(address, nbytes, CU_MEMHOSTALLOC_PORTABLE);
  }
  Status free_host(void* address) noexcept override { return cu_.cuMemFreeHost(address); }
  Status register_host(void* address, size_t nbytes, bool is_readonly) noexcept override {
    const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | (is_readonly ? CU_MEMHOSTREGISTER_READ_ONLY : 0u);
    return cu_.cuMemHostRegister(address, nbytes, flags);
  }
  Status unregister_host(void* address) noexcept override { return cu_.cuMemHostUnregister(address); }

  Status export_memory(void* address, MemoryHandle* handle) noexcept override {
    if (!has_ipc_functions()) return CUDA_ERROR_NOT_SUPPORTED;
    CUipcMemHandle made{};
    static_assert(sizeof made == sizeof handle->bytes);
    if (const Status s = cu_.cuIpcGetMemHandle(&made, address_of(address))) return s;
    std::memcpy(handle->bytes.data(), &made, sizeof made);
    return kOk;
  }
  Status open_memory(const MemoryHandle& handle, void** address) noexcept override {
    if (!has_ipc_functions()) return CUDA_ERROR_NOT_SUPPORTED;
    CUipcMemHandle given{};
    std::memcpy(&given, handle.bytes.data(), sizeof given);
    CUdeviceptr mapped = 0;
    const Status s = cu_.cuIpcOpenMemHandle(&mapped, given, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (s == kOk) *address = reinterpret_cast<void*>(static_cast<uintptr_t>(mapped));
    return s;
  }
  Status close_memory(void* address) noexcept override {
    return cu_.cuIpcCloseMemHandle(address_of(address));
  }

  Status describe(const void* address, PointerTraits* traits) noexcept override {
    *traits = {};
    CUmemorytype type = 0;
    const Status s = cu_.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(address));
    if (s == CUDA_ERROR_INVALID_VALUE) return kOk;  // the driver does not know it
    if (s != kOk) return s;
    unsigned is_managed = 0;
    (void)cu_.cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address_of(address));
    if (const Status failed = cu_.cuPointerGetAttribute(&traits->ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                        address_of(address)))
      return failed;
    traits->is_known = true;
    traits->is_managed = is_managed != 0;
    traits->is_device = type == CU_MEMORYTYPE_DEVICE && is_managed == 0;
    return kOk;
  }

  Status create_stream(Stream* stream) noexcept override {
    CUstream made = nullptr;
    const Status s = cu_.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    *stream = made;
    return s;
  }
  Status wait(Stream stream, EventHandle event) noexcept override {
    return cu_.cuStreamWaitEvent(device::stream_of(stream), event_of(event), CU_EVENT_WAIT_DEFAULT);
  }
  Status synchronise_stream(Stream stream) noexcept override {
    return cu_.cuStreamSynchronize(device::stream_of(stream));
  }
  Status is_capturing(Stream stream, bool* is_capturing) noexcept override {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const Status s = cu_.cuStreamIsCapturing(device::stream_of(stream), &status);
    *is_capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return s;
  }
  Stream stream_of(int64_t number) const noexcept override {
    return reinterpret_cast<Stream>(static_cast<uintptr_t>(number));  // CU_STREAM_LEGACY is 1, too
  }

  Status create_event(EventHandle* event) noexcept override {
    CUevent made = nullptr;
    const Status s = cu_.cuEventCreate(&made, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    *event = made;
    return s;
  }
  Status destroy_event(EventHandle event) noexcept override { return cu_.cuEventDestroy(event_of(event)); }
  Status record(EventHandle event, Stream stream) noexcept override {
    return cu_.cuEventRecord(event_of(event), device::stream_of(stream));
  }
  bool has_context_events() const noexcept override { return cu_.cuCtxRecordEvent != nullptr; }
  Status record_context(EventHandle event, Context context) noexcept override {
    return cu_.cuCtxRecordEvent(static_cast<CUcontext>(context), event_of(event));
  }
  Status synchronise_context() noexcept override { return cu_.cuCtxSynchronize(); }
  Status query(EventHandle event) noexcept override { return cu_.cuEventQuery(event_of(event)); }
  Status synchronise(EventHandle event) noexcept override { return cu_.cuEventSynchronize(event_of(event)); }

  Status copy(const StridedCopy& c, Stream stream) noexcept override {
    if (c.depth > 1) return copy_3d(c, stream);
    if (c.height > 1) return copy_2d(c, stream);
    return cu_.cuMemcpyAsync(address_of(c.dst.address), address_of(c.src.address), c.width,
                             device::stream_of(stream));
  }

  Status set(const StridedSet& s, Stream stream) noexcept override {
    const CUdeviceptr address = address_of(s.address);
    const CUstream on = device::stream_of(stream);
    if (s.height > 1) {
      switch (s.unit) {
        case 1:
          return cu_.cuMemsetD2D8Async(address, s.pitch, static_cast<unsigned char>(s.value), s.n, s.height,
                                       on);
        case 2:
          return cu_.cuMemsetD2D16Async(address, s.pitch, static_cast<unsigned short>(s.value), s.n, s.height,
                                        on);
        default: return cu_.cuMemsetD2D32Async(address, s.pitch, s.value, s.n, s.height, on);
      }
    }
    switch (s.unit) {
      case 1: return cu_.cuMemsetD8Async(address, static_cast<unsigned char>(s.value), s.n, on);
      case 2: return cu_.cuMemsetD16Async(address, static_cast<unsigned short>(s.value), s.n, on);
      default: return cu_.cuMemsetD32Async(address, s.value, s.n, on);
    }
  }

 private:
  void load() {
    const char* const path = library_path();
    const bool is_given = path != kLibrary;
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const reason = dlerror();
      throw_error(Code::kNotFound, "there is no CUDA driver: ",
                  is_given ? concat("the library '", path, "', which ", kVariable, " names, cannot be opened")
                           : concat("'", path, "' is not in the search path of the loader"),
                  " (", reason != nullptr ? reason : "no reason given",
                  "); install NVIDIA's driver, or use device 'cpu'");
    }
    const Finder finder(library);
#define TENON_CUDA_FIND(base, exported, ...)                                                   \
  cu_.base = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(finder.find(#base, #exported)); \
  if (cu_.base == nullptr) throw_too_old(path, #exported);
    TENON_CUDA_FUNCTIONS(TENON_CUDA_FIND)
#undef TENON_CUDA_FIND
#define TENON_CUDA_FIND(base, exported, ...) \
  cu_.base = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(finder.find(#base, #exported));
    TENON_CUDA_OPTIONAL_FUNCTIONS(TENON_CUDA_FIND)
#undef TENON_CUDA_FIND
#define TENON_CUDA_FIND(base, version, ...) \
  cu_.base = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(finder.ask(#base, version));
    TENON_CUDA_NEWER_FUNCTIONS(TENON_CUDA_FIND)
#undef TENON_CUDA_FIND
    if (const Status s = cu_.cuInit(0)) {
      throw_error(s == CUDA_ERROR_NO_DEVICE ? Code::kNotFound : Code::kSystem, "the CUDA driver '", path,
                  "' does not start: ", text_of(s));
    }
    // pairs with: CudaDriver::CudaDriver, "CUDA has started"
    has_started.store(true, std::memory_order_release);
  }

  [[noreturn]] static void throw_too_old(const char* path, const char* function) {
    throw_error(Code::kNotFound, "the CUDA driver '", path, "' has no function ", function,
                ": a driver of CUDA 11.2 or newer is needed");
  }

  bool has_pool_functions() const noexcept {
    return cu_.cuMemAllocAsync != nullptr && cu_.cuMemFreeAsync != nullptr &&
           cu_.cuDeviceGetDefaultMemPool != nullptr && cu_.cuMemPoolSetAttribute != nullptr;
  }

  bool has_ipc_functions() const noexcept {
    return cu_.cuIpcGetMemHandle != nullptr && cu_.cuIpcOpenMemHandle != nullptr &&
           cu_.cuIpcCloseMemHandle != nullptr;
  }

  // Without a threshold the pool gives its memory back to the system whenever a stream is waited for.
  bool keep_pool_memory(CUdevice device) noexcept {
    CUmemoryPool pool = nullptr;
    if (cu_.cuDeviceGetDefaultMemPool(&pool, device) != CUDA_SUCCESS) return false;
    uint64_t all = UINT64_MAX;
    return cu_.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all) == CUDA_SUCCESS;
  }

  static CUmemorytype type_of(const StridedCopy::Side& side) noexcept {
    return side.is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  }
  template <class Copy>
  static void describe_sides(const StridedCopy& c, Copy* to) noexcept {
    to->srcMemoryType = type_of(c.src);
    to->dstMemoryType = type_of(c.dst);
    c.src.is_host ? void(to->srcHost = c.src.address) : void(to->srcDevice = address_of(c.src.address));
    c.dst.is_host ? void(to->dstHost = c.dst.address) : void(to->dstDevice = address_of(c.dst.address));
    to->srcPitch = c.src.pitch;
    to->dstPitch = c.dst.pitch;
    to->WidthInBytes = c.width;
    to->Height = c.height;
  }
  Status copy_2d(const StridedCopy& c, Stream stream) noexcept {
    CUDA_MEMCPY2D copy{};
    describe_sides(c, &copy);
    return cu_.cuMemcpy2DAsync(&copy, device::stream_of(stream));
  }
  Status copy_3d(const StridedCopy& c, Stream stream) noexcept {
    CUDA_MEMCPY3D copy{};
    describe_sides(c, &copy);
    copy.srcHeight = c.src.height;
    copy.dstHeight = c.dst.height;
    copy.Depth = c.depth;
    return cu_.cuMemcpy3DAsync(&copy, device::stream_of(stream));
  }

  Functions cu_;
  Code code_{};  // Code{}: it works
  std::string error_;
  const ForkMark process_;
};

}  // namespace

Driver& cuda_driver() { return one_per_process<CudaDriver>().checked(); }

bool is_cuda_in_use() noexcept {
  void* const library = dlopen(library_path(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return false;
  using GetState = CUresult(CUdevice, unsigned*, int*);
  auto* const get_state = reinterpret_cast<GetState*>(dlsym(library, "cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int is_active = 0;
  // Fails after the last device, and where the driver has not been started in this process.
  for (CUdevice i = 0; get_state != nullptr && is_active == 0; ++i) {
    if (get_state(i, &flags, &is_active) != CUDA_SUCCESS) break;
  }
  (void)dlclose(library);
  return is_active != 0;
}

Driver& driver_of(int32_t device_type) {
  if (device_type == TENON_CUDA) return cuda_driver();
  throw_error(Code::kValue, "no driver is known for devices of type ", device_type, ": known is CUDA (type ",
              int{TENON_CUDA}, ")");
}

}  // namespace tenon::impl::device
