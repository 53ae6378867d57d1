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

// Results. Others are passed on as the driver names them.
inline constexpr CUresult CUDA_SUCCESS = 0;
inline constexpr CUresult CUDA_ERROR_INVALID_VALUE = 1;
inline constexpr CUresult CUDA_ERROR_OUT_OF_MEMORY = 2;
inline constexpr CUresult CUDA_ERROR_NOT_INITIALIZED = 3;
inline constexpr CUresult CUDA_ERROR_NO_DEVICE = 100;
inline constexpr CUresult CUDA_ERROR_NOT_READY = 600;
inline constexpr CUresult CUDA_ERROR_NOT_SUPPORTED = 801;

// Streams that exist without being created.
inline constexpr uintptr_t CU_STREAM_LEGACY = 1;

inline constexpr unsigned CU_STREAM_NON_BLOCKING = 1;  // not ordered with the legacy stream
inline constexpr unsigned CU_EVENT_BLOCKING_SYNC = 1;  // cuEventSynchronize sleeps
inline constexpr unsigned CU_EVENT_DISABLE_TIMING = 2;
inline constexpr unsigned CU_EVENT_WAIT_DEFAULT = 0;

inline constexpr unsigned CU_MEMHOSTALLOC_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTREGISTER_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTREGISTER_READ_ONLY = 8;

using CUmemorytype = int;
inline constexpr CUmemorytype CU_MEMORYTYPE_HOST = 1;
inline constexpr CUmemorytype CU_MEMORYTYPE_DEVICE = 2;

using CUdevice_attribute = int;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115;

using CUpointer_attribute = int;
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;     // CUmemorytype
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;      // unsigned
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;  // int

using CUmemPool_attribute = int;
inline constexpr CUmemPool_attribute CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4;  // uint64_t, bytes

using CUstreamCaptureStatus = int;
inline constexpr CUstreamCaptureStatus CU_STREAM_CAPTURE_STATUS_NONE = 0;

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
inline constexpr unsigned CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;

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
  X(cuGetErrorName, cuGetErrorName, CUresult(CUresult result, const char** text))                       \
  X(cuGetErrorString, cuGetErrorString, CUresult(CUresult result, const char** text))                   \
  X(cuDeviceGetCount, cuDeviceGetCount, CUresult(int* count))                                           \
  X(cuDeviceGet, cuDeviceGet, CUresult(CUdevice* device, int ordinal))                                  \
  X(cuDeviceGetName, cuDeviceGetName, CUresult(char* name, int size, CUdevice device))                  \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute,                                                         \
    CUresult(int* value, CUdevice_attribute attribute, CUdevice device))                                \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, CUresult(CUcontext* context, CUdevice device))  \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState,                                             \
    CUresult(CUdevice device, unsigned* flags, int* is_active))                                         \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, CUresult(CUcontext context))                                 \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, CUresult(CUcontext* context))                                  \
  X(cuCtxSynchronize, cuCtxSynchronize, CUresult())                                                     \
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
  X(cuStreamSynchronize, cuStreamSynchronize, CUresult(CUstream stream))                                \
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
  X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, CUresult(CUdeviceptr address))

// The same of functions that are newer than kCudaAbi: X(name, version of CUDA, type). Only cuGetProcAddress
// finds them.
#define TENON_CUDA_NEWER_FUNCTIONS(X) X(cuCtxRecordEvent, 12050, CUresult(CUcontext context, CUevent event))

}  // namespace tenon::impl::cuda
