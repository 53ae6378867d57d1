// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver API that Tenon uses, declared by hand: types, constants and the type of each
// function. Nothing here links to CUDA; cuda.cc finds the functions at run time. Names, values and layouts
// are those of the driver's ABI ("CUDA Driver API", NVIDIA; 64-bit, LP64).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tenon::impl::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUarray = struct CUarray_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUmemGenericAllocationHandle = unsigned long long;

// Results. Others are passed on as the driver names them.
inline constexpr CUresult CUDA_SUCCESS = 0;
inline constexpr CUresult CUDA_ERROR_INVALID_VALUE = 1;
inline constexpr CUresult CUDA_ERROR_OUT_OF_MEMORY = 2;
inline constexpr CUresult CUDA_ERROR_NOT_INITIALIZED = 3;
inline constexpr CUresult CUDA_ERROR_DEINITIALIZED = 4;
inline constexpr CUresult CUDA_ERROR_STUB_LIBRARY = 34;
inline constexpr CUresult CUDA_ERROR_NO_DEVICE = 100;
inline constexpr CUresult CUDA_ERROR_INVALID_DEVICE = 101;
inline constexpr CUresult CUDA_ERROR_INVALID_CONTEXT = 201;
inline constexpr CUresult CUDA_ERROR_ALREADY_MAPPED = 208;
inline constexpr CUresult CUDA_ERROR_OPERATING_SYSTEM = 304;
inline constexpr CUresult CUDA_ERROR_INVALID_HANDLE = 400;
inline constexpr CUresult CUDA_ERROR_NOT_FOUND = 500;
inline constexpr CUresult CUDA_ERROR_NOT_READY = 600;
inline constexpr CUresult CUDA_ERROR_ILLEGAL_ADDRESS = 700;
inline constexpr CUresult CUDA_ERROR_CONTEXT_IS_DESTROYED = 709;
inline constexpr CUresult CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712;
inline constexpr CUresult CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713;
inline constexpr CUresult CUDA_ERROR_LAUNCH_FAILED = 719;
inline constexpr CUresult CUDA_ERROR_NOT_PERMITTED = 800;
inline constexpr CUresult CUDA_ERROR_NOT_SUPPORTED = 801;
inline constexpr CUresult CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901;
inline constexpr CUresult CUDA_ERROR_CAPTURED_EVENT = 907;
inline constexpr CUresult CUDA_ERROR_UNKNOWN = 999;

// Streams that exist without being created.
inline constexpr uintptr_t CU_STREAM_LEGACY = 1;
inline constexpr uintptr_t CU_STREAM_PER_THREAD = 2;

inline constexpr unsigned CU_STREAM_DEFAULT = 0;
inline constexpr unsigned CU_STREAM_NON_BLOCKING = 1;  // not ordered with the legacy stream
inline constexpr unsigned CU_EVENT_DEFAULT = 0;
inline constexpr unsigned CU_EVENT_BLOCKING_SYNC = 1;  // cuEventSynchronize sleeps
inline constexpr unsigned CU_EVENT_DISABLE_TIMING = 2;
inline constexpr unsigned CU_EVENT_INTERPROCESS = 4;
inline constexpr unsigned CU_EVENT_WAIT_DEFAULT = 0;

inline constexpr unsigned CU_MEMHOSTALLOC_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTALLOC_DEVICEMAP = 2;
inline constexpr unsigned CU_MEMHOSTREGISTER_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTREGISTER_DEVICEMAP = 2;
inline constexpr unsigned CU_MEMHOSTREGISTER_READ_ONLY = 8;

using CUmemorytype = int;
inline constexpr CUmemorytype CU_MEMORYTYPE_HOST = 1;
inline constexpr CUmemorytype CU_MEMORYTYPE_DEVICE = 2;
inline constexpr CUmemorytype CU_MEMORYTYPE_ARRAY = 3;
inline constexpr CUmemorytype CU_MEMORYTYPE_UNIFIED = 4;

using CUdevice_attribute = int;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125;

using CUpointer_attribute = int;
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_CONTEXT = 1;
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;     // CUmemorytype
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;  // CUdeviceptr
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_HOST_POINTER = 4;    // void*
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;       // unsigned long long
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;      // unsigned
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;  // int
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;  // unsigned
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;            // CUdeviceptr
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;                  // size_t

using CUmemPool_attribute = int;
inline constexpr CUmemPool_attribute CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4;  // uint64_t, bytes

using CUstreamCaptureStatus = int;
inline constexpr CUstreamCaptureStatus CU_STREAM_CAPTURE_STATUS_NONE = 0;
inline constexpr CUstreamCaptureStatus CU_STREAM_CAPTURE_STATUS_ACTIVE = 1;
inline constexpr CUstreamCaptureStatus CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;

// Calls of a thread in this mode do not break the capture of a graph on another stream.
inline constexpr int CU_STREAM_CAPTURE_MODE_RELAXED = 2;

// For cuGetProcAddress: the variants whose stream 0 is the legacy stream.
inline constexpr uint64_t CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1;
using CUdriverProcAddressQueryResult = int;  // 0: found

struct CUDA_MEMCPY2D {
  size_t srcXInBytes;
  size_t srcY;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  size_t srcPitch;
  size_t dstXInBytes;
  size_t dstY;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  size_t dstPitch;
  size_t WidthInBytes;
  size_t Height;
};
static_assert(sizeof(CUDA_MEMCPY2D) == 128);

struct CUDA_MEMCPY3D {
  size_t srcXInBytes;
  size_t srcY;
  size_t srcZ;
  size_t srcLOD;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  void* reserved0;
  size_t srcPitch;
  size_t srcHeight;
  size_t dstXInBytes;
  size_t dstY;
  size_t dstZ;
  size_t dstLOD;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  void* reserved1;
  size_t dstPitch;
  size_t dstHeight;
  size_t WidthInBytes;
  size_t Height;
  size_t Depth;
};
static_assert(sizeof(CUDA_MEMCPY3D) == 200);

struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};
struct CUipcEventHandle {
  char reserved[64];
};
inline constexpr unsigned CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;

struct CUmemLocation {
  int type;
  int id;
};
inline constexpr int CU_MEM_LOCATION_TYPE_DEVICE = 1;
inline constexpr int CU_MEM_ALLOCATION_TYPE_PINNED = 1;
inline constexpr int CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1;
inline constexpr int CU_MEM_ACCESS_FLAGS_PROT_READ = 1;
inline constexpr int CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
inline constexpr int CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0;

struct CUmemAllocationProp {
  int type;
  int requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};
static_assert(sizeof(CUmemAllocationProp) == 32);

struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};
static_assert(sizeof(CUmemAccessDesc) == 12);

// The two forms of the function that finds the others. _v2 is asked for first.
using GetProcAddressV2 = CUresult(const char* symbol, void** function, int cuda_version, uint64_t flags,
                                  CUdriverProcAddressQueryResult* status);
using GetProcAddress = CUresult(const char* symbol, void** function, int cuda_version, uint64_t flags);

// The version of CUDA whose ABI these declarations follow, for cuGetProcAddress.
inline constexpr int kCudaAbi = 11020;

// X(name for cuGetProcAddress, exported name, type of the function). The functions that every supported
// driver has.
#define TENON_CUDA_FUNCTIONS(X)                                                                         \
  X(cuInit, cuInit, CUresult(unsigned flags))                                                           \
  X(cuDriverGetVersion, cuDriverGetVersion, CUresult(int* version))                                     \
  X(cuGetErrorName, cuGetErrorName, CUresult(CUresult result, const char** text))                       \
  X(cuGetErrorString, cuGetErrorString, CUresult(CUresult result, const char** text))                   \
  X(cuDeviceGetCount, cuDeviceGetCount, CUresult(int* count))                                           \
  X(cuDeviceGet, cuDeviceGet, CUresult(CUdevice* device, int ordinal))                                  \
  X(cuDeviceGetName, cuDeviceGetName, CUresult(char* name, int size, CUdevice device))                  \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute,                                                         \
    CUresult(int* value, CUdevice_attribute attribute, CUdevice device))                                \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, CUresult(CUcontext* context, CUdevice device))  \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, CUresult(CUdevice device))                 \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, CUresult(CUcontext context))                                 \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, CUresult(CUcontext* context))                                  \
  X(cuCtxGetCurrent, cuCtxGetCurrent, CUresult(CUcontext* context))                                     \
  X(cuCtxGetDevice, cuCtxGetDevice, CUresult(CUdevice* device))                                         \
  X(cuMemGetInfo, cuMemGetInfo_v2, CUresult(size_t* free_nbytes, size_t* total_nbytes))                 \
  X(cuMemAlloc, cuMemAlloc_v2, CUresult(CUdeviceptr* address, size_t nbytes))                           \
  X(cuMemFree, cuMemFree_v2, CUresult(CUdeviceptr address))                                             \
  X(cuMemHostAlloc, cuMemHostAlloc, CUresult(void** address, size_t nbytes, unsigned flags))            \
  X(cuMemFreeHost, cuMemFreeHost, CUresult(void* address))                                              \
  X(cuMemHostRegister, cuMemHostRegister_v2, CUresult(void* address, size_t nbytes, unsigned flags))    \
  X(cuMemHostUnregister, cuMemHostUnregister, CUresult(void* address))                                  \
  X(cuPointerGetAttribute, cuPointerGetAttribute,                                                       \
    CUresult(void* value, CUpointer_attribute attribute, CUdeviceptr address))                          \
  X(cuStreamCreate, cuStreamCreate, CUresult(CUstream* stream, unsigned flags))                         \
  X(cuStreamDestroy, cuStreamDestroy_v2, CUresult(CUstream stream))                                     \
  X(cuStreamSynchronize, cuStreamSynchronize, CUresult(CUstream stream))                                \
  X(cuStreamQuery, cuStreamQuery, CUresult(CUstream stream))                                            \
  X(cuStreamWaitEvent, cuStreamWaitEvent, CUresult(CUstream stream, CUevent event, unsigned flags))     \
  X(cuStreamIsCapturing, cuStreamIsCapturing, CUresult(CUstream stream, CUstreamCaptureStatus* status)) \
  X(cuEventCreate, cuEventCreate, CUresult(CUevent* event, unsigned flags))                             \
  X(cuEventDestroy, cuEventDestroy_v2, CUresult(CUevent event))                                         \
  X(cuEventRecord, cuEventRecord, CUresult(CUevent event, CUstream stream))                             \
  X(cuEventQuery, cuEventQuery, CUresult(CUevent event))                                                \
  X(cuEventSynchronize, cuEventSynchronize, CUresult(CUevent event))                                    \
  X(cuMemcpyAsync, cuMemcpyAsync,                                                                       \
    CUresult(CUdeviceptr dst, CUdeviceptr src, size_t nbytes, CUstream stream))                         \
  X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, CUresult(const CUDA_MEMCPY2D* copy, CUstream stream))          \
  X(cuMemcpy3DAsync, cuMemcpy3DAsync_v2, CUresult(const CUDA_MEMCPY3D* copy, CUstream stream))          \
  X(cuMemsetD8Async, cuMemsetD8Async,                                                                   \
    CUresult(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream))                          \
  X(cuMemsetD16Async, cuMemsetD16Async,                                                                 \
    CUresult(CUdeviceptr dst, unsigned short value, size_t n, CUstream stream))                         \
  X(cuMemsetD32Async, cuMemsetD32Async,                                                                 \
    CUresult(CUdeviceptr dst, unsigned value, size_t n, CUstream stream))                               \
  X(cuMemsetD2D8Async, cuMemsetD2D8Async,                                                               \
    CUresult(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,           \
             CUstream stream))                                                                          \
  X(cuMemsetD2D16Async, cuMemsetD2D16Async,                                                             \
    CUresult(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,          \
             CUstream stream))                                                                          \
  X(cuMemsetD2D32Async, cuMemsetD2D32Async,                                                             \
    CUresult(CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream))

// Functions that a driver may lack: null in the table then.
#define TENON_CUDA_OPTIONAL_FUNCTIONS(X)                                                                 \
  X(cuDeviceGetUuid, cuDeviceGetUuid, CUresult(CUuuid* uuid, CUdevice device))                           \
  X(cuDeviceGetUuid_v2, cuDeviceGetUuid_v2, CUresult(CUuuid* uuid, CUdevice device))                     \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, CUresult(int* mode))           \
  X(cuMemAllocAsync, cuMemAllocAsync, CUresult(CUdeviceptr* address, size_t nbytes, CUstream stream))    \
  X(cuMemFreeAsync, cuMemFreeAsync, CUresult(CUdeviceptr address, CUstream stream))                      \
  X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, CUresult(CUmemoryPool* pool, CUdevice device)) \
  X(cuMemPoolSetAttribute, cuMemPoolSetAttribute,                                                        \
    CUresult(CUmemoryPool pool, CUmemPool_attribute attribute, void* value))                             \
  X(cuIpcGetMemHandle, cuIpcGetMemHandle, CUresult(CUipcMemHandle* handle, CUdeviceptr address))         \
  X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2,                                                           \
    CUresult(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags))                               \
  X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, CUresult(CUdeviceptr address))                             \
  X(cuIpcGetEventHandle, cuIpcGetEventHandle, CUresult(CUipcEventHandle* handle, CUevent event))         \
  X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, CUresult(CUevent* event, CUipcEventHandle handle))       \
  X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity,                                        \
    CUresult(size_t* granularity, const CUmemAllocationProp* prop, int option))                          \
  X(cuMemAddressReserve, cuMemAddressReserve,                                                            \
    CUresult(CUdeviceptr* address, size_t nbytes, size_t alignment, CUdeviceptr wanted,                  \
             unsigned long long flags))                                                                  \
  X(cuMemAddressFree, cuMemAddressFree, CUresult(CUdeviceptr address, size_t nbytes))                    \
  X(cuMemCreate, cuMemCreate,                                                                            \
    CUresult(CUmemGenericAllocationHandle* handle, size_t nbytes, const CUmemAllocationProp* prop,       \
             unsigned long long flags))                                                                  \
  X(cuMemRelease, cuMemRelease, CUresult(CUmemGenericAllocationHandle handle))                           \
  X(cuMemMap, cuMemMap,                                                                                  \
    CUresult(CUdeviceptr address, size_t nbytes, size_t offset, CUmemGenericAllocationHandle handle,     \
             unsigned long long flags))                                                                  \
  X(cuMemUnmap, cuMemUnmap, CUresult(CUdeviceptr address, size_t nbytes))                                \
  X(cuMemSetAccess, cuMemSetAccess,                                                                      \
    CUresult(CUdeviceptr address, size_t nbytes, const CUmemAccessDesc* access, size_t count))           \
  X(cuMemExportToShareableHandle, cuMemExportToShareableHandle,                                          \
    CUresult(void* shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))  \
  X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle,                                      \
    CUresult(CUmemGenericAllocationHandle* handle, void* shareable, int type))

}  // namespace tenon::impl::cuda
