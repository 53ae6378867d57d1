// SPDX-License-Identifier: Apache-2.0
//
// What the fake driver has of the CUDA driver API beyond cuda_api.h: other libraries call it, and Tenon does
// not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda_api.h"

namespace tenon::impl::cuda {

inline constexpr CUresult CUDA_ERROR_INVALID_DEVICE = 101;
inline constexpr CUresult CUDA_ERROR_INVALID_CONTEXT = 201;
inline constexpr CUresult CUDA_ERROR_ALREADY_MAPPED = 208;
inline constexpr CUresult CUDA_ERROR_OPERATING_SYSTEM = 304;
inline constexpr CUresult CUDA_ERROR_INVALID_HANDLE = 400;
inline constexpr CUresult CUDA_ERROR_NOT_FOUND = 500;
inline constexpr CUresult CUDA_ERROR_ILLEGAL_ADDRESS = 700;
inline constexpr CUresult CUDA_ERROR_CONTEXT_IS_DESTROYED = 709;
inline constexpr CUresult CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712;
inline constexpr CUresult CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713;
inline constexpr CUresult CUDA_ERROR_LAUNCH_FAILED = 719;
inline constexpr CUresult CUDA_ERROR_NOT_PERMITTED = 800;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901;
inline constexpr CUresult CUDA_ERROR_CAPTURED_EVENT = 907;
inline constexpr CUresult CUDA_ERROR_UNKNOWN = 999;
inline constexpr uintptr_t CU_STREAM_PER_THREAD = 2;
inline constexpr unsigned CU_STREAM_DEFAULT = 0;
inline constexpr unsigned CU_EVENT_INTERPROCESS = 4;
inline constexpr CUmemorytype CU_MEMORYTYPE_UNIFIED = 4;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103;
inline constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125;
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_CONTEXT = 1;
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;  // CUdeviceptr
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_HOST_POINTER = 4;    // void*
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;       // unsigned long long
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;  // unsigned
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;            // CUdeviceptr
inline constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;                  // size_t
inline constexpr CUstreamCaptureStatus CU_STREAM_CAPTURE_STATUS_ACTIVE = 1;
inline constexpr CUstreamCaptureStatus CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;
inline constexpr int CU_MEM_LOCATION_TYPE_DEVICE = 1;
inline constexpr int CU_MEM_ALLOCATION_TYPE_PINNED = 1;
inline constexpr int CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1;
inline constexpr int CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
inline constexpr int CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0;

using CUmemGenericAllocationHandle = unsigned long long;

struct CUipcEventHandle {
  char reserved[64];
};
struct CUmemLocation {
  int type;
  int id;
};

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

#define TENON_CUDA_FURTHER_FUNCTIONS(X)                                                                 \
  X(cuDriverGetVersion, cuDriverGetVersion, CUresult(int* version))                                     \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, CUresult(CUdevice device))                 \
  X(cuCtxGetCurrent, cuCtxGetCurrent, CUresult(CUcontext* context))                                     \
  X(cuCtxGetDevice, cuCtxGetDevice, CUresult(CUdevice* device))                                         \
  X(cuStreamDestroy, cuStreamDestroy_v2, CUresult(CUstream stream))                                     \
  X(cuStreamQuery, cuStreamQuery, CUresult(CUstream stream))                                            \
  X(cuIpcGetEventHandle, cuIpcGetEventHandle, CUresult(CUipcEventHandle* handle, CUevent event))        \
  X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, CUresult(CUevent* event, CUipcEventHandle handle))      \
  X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity,                                       \
    CUresult(size_t* granularity, const CUmemAllocationProp* prop, int option))                         \
  X(cuMemAddressReserve, cuMemAddressReserve,                                                           \
    CUresult(CUdeviceptr* address, size_t nbytes, size_t alignment, CUdeviceptr wanted,                 \
             unsigned long long flags))                                                                 \
  X(cuMemAddressFree, cuMemAddressFree, CUresult(CUdeviceptr address, size_t nbytes))                   \
  X(cuMemCreate, cuMemCreate,                                                                           \
    CUresult(CUmemGenericAllocationHandle* handle, size_t nbytes, const CUmemAllocationProp* prop,      \
             unsigned long long flags))                                                                 \
  X(cuMemRelease, cuMemRelease, CUresult(CUmemGenericAllocationHandle handle))                          \
  X(cuMemMap, cuMemMap,                                                                                 \
    CUresult(CUdeviceptr address, size_t nbytes, size_t offset, CUmemGenericAllocationHandle handle,    \
             unsigned long long flags))                                                                 \
  X(cuMemUnmap, cuMemUnmap, CUresult(CUdeviceptr address, size_t nbytes))                               \
  X(cuMemSetAccess, cuMemSetAccess,                                                                     \
    CUresult(CUdeviceptr address, size_t nbytes, const CUmemAccessDesc* access, size_t count))          \
  X(cuMemExportToShareableHandle, cuMemExportToShareableHandle,                                         \
    CUresult(void* shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)) \
  X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle,                                     \
    CUresult(CUmemGenericAllocationHandle* handle, void* shareable, int type))

}  // namespace tenon::impl::cuda
