// SPDX-License-Identifier: Apache-2.0
//
// Memory and events of several processes. The other process is this program, started anew: it exports, then
// does what single letters ask it for.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "fake_cuda_test.h"

namespace tenon::fake {
namespace {

constexpr int kOut = 10, kIn = 11;  // files of the other process
constexpr size_t kPhysicalNbytes = size_t{2} << 20;

struct Exports {
  CUipcMemHandle memory;
  CUipcEventHandle event;
  int n_devices, physical_fd;
  CUresult pool_result;
};

CUmemAllocationProp exportable() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return prop;
}

// Maps the memory at an address of its own.
CUdeviceptr map_physical(CUmemGenericAllocationHandle handle) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, kPhysicalNbytes, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(address, kPhysicalNbytes, 0, handle, 0), CUDA_SUCCESS);
  return address;
}

CUresult allow(CUdeviceptr address) {
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return cuMemSetAccess(address, kPhysicalNbytes, &access, 1);
}

int export_and_serve() {
  CUcontext context = nullptr;
  CUdeviceptr memory = 0, pool_memory = 0;
  CUevent event = nullptr;
  CUstream work = nullptr;
  CUmemGenericAllocationHandle physical = 0;
  CUmemAllocationProp prop = exportable();
  Exports exports = {};
  cuInit(0);
  cuDeviceGetCount(&exports.n_devices);
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxPushCurrent_v2(context);
  cuMemAlloc_v2(&memory, 100);
  cuStreamCreate(&work, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  fake_cuda_hold(work);
  cuMemsetD8Async(memory, 'e', 100, work);
  cuEventRecord(event, work);
  cuMemCreate(&physical, kPhysicalNbytes, &prop, 0);
  CUdeviceptr mapped = map_physical(physical);
  allow(mapped);
  fake_cuda_write(mapped, "vmm", 3);
  cuMemAllocAsync(&pool_memory, 100, work);
  exports.pool_result = cuIpcGetMemHandle(&exports.memory, pool_memory);
  cuIpcGetMemHandle(&exports.memory, memory);
  cuIpcGetEventHandle(&exports.event, event);
  cuMemExportToShareableHandle(&exports.physical_fd, physical, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (write(kOut, &exports, sizeof exports) != sizeof exports) return 1;
  for (char letter = 0; read(kIn, &letter, 1) == 1;) {
    if (letter == 'r') fake_cuda_resume(work), cuStreamSynchronize(work);
    if (letter == 'f') cuMemFree_v2(memory);
    if (write(kOut, &letter, 1) != 1) return 1;
  }
  return 0;
}

class FakeCudaSharing : public FakeCuda {
 protected:
  void SetUp() override {
    FakeCuda::SetUp();
    int out[2], in[2];
    ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(in, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], kOut);
    posix_spawn_file_actions_adddup2(&actions, in[0], kIn);
    char program[] = "/proc/self/exe", argument[] = "--export";
    char* arguments[] = {program, argument, nullptr};
    setenv("TENON_FAKE_CUDA", "devices=3,delay_us=10", 1);
    ASSERT_EQ(posix_spawn(&exporter, program, &actions, nullptr, arguments, environ), 0);
    unsetenv("TENON_FAKE_CUDA");
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]), close(in[0]);
    from_exporter = out[0], to_exporter = in[1];
    ASSERT_EQ(read(from_exporter, &exports, sizeof exports), static_cast<ssize_t>(sizeof exports));
  }
  void TearDown() override {
    end_exporter();
    close(from_exporter), close(to_exporter);
    FakeCuda::TearDown();
  }
  void end_exporter() {
    if (exporter == 0) return;
    kill(exporter, SIGKILL);
    waitpid(exporter, nullptr, 0);
    exporter = 0;
  }
  void ask(char letter) {
    ASSERT_EQ(write(to_exporter, &letter, 1), 1);
    ASSERT_EQ(read(from_exporter, &letter, 1), 1);
  }
  CUmemGenericAllocationHandle import_physical() {
    std::string path = "/proc/" + std::to_string(exporter) + "/fd/" + std::to_string(exports.physical_fd);
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    CUmemGenericAllocationHandle handle = 0;
    void* shareable = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    EXPECT_EQ(cuMemImportFromShareableHandle(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_SUCCESS);
    close(fd);
    return handle;
  }

  pid_t exporter = 0;
  int from_exporter = -1, to_exporter = -1;
  Exports exports = {};
};

TEST_F(FakeCudaSharing, AnImporterWaitsForTheExportersEvent) {
  EXPECT_EQ(exports.n_devices, 3) << "from the environment";
  EXPECT_EQ(exports.pool_result, CUDA_ERROR_INVALID_VALUE) << "pool memory has no handle";
  CUdeviceptr a = 0, again = 0, copy = device(100);
  CUevent ready = nullptr;
  CUstream work = stream();
  OK(cuIpcOpenMemHandle_v2(&a, exports.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenMemHandle_v2(&again, exports.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_EQ(again, a);
  OK(cuIpcOpenEventHandle(&ready, exports.event));
  EXPECT_EQ(cuEventQuery(ready), CUDA_ERROR_NOT_READY);
  OK(cuStreamWaitEvent(work, ready, 0));
  OK(cuMemcpyAsync(copy, a, 100, work));
  EXPECT_EQ(cuStreamQuery(work), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(bytes_at(a, 1), "\xCD");
  ask('r');
  OK(cuStreamSynchronize(work));
  OK(cuEventSynchronize(ready));
  EXPECT_EQ(bytes_at(copy, 2), "ee");
  OK(cuIpcCloseMemHandle(again));
  ask('f');
  EXPECT_EQ(bytes_at(a, 2), "\xDD\xDD") << "the exporter has freed it";
  OK(cuIpcCloseMemHandle(a));
  EXPECT_EQ(cuIpcCloseMemHandle(a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyAsync(copy, a, 100, work), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fake_cuda_count("live.ipc"), 0U);
}

TEST_F(FakeCudaSharing, MappingsOutliveTheExporter) {
  CUdeviceptr a = 0, mapped = 0;
  CUevent ready = nullptr;
  OK(cuIpcOpenMemHandle_v2(&a, exports.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenEventHandle(&ready, exports.event));
  CUmemGenericAllocationHandle physical = import_physical();
  mapped = map_physical(physical);
  OK(allow(mapped));
  end_exporter();
  OK(cuEventSynchronize(ready)) << "which the dead process has not come to";
  OK(cuMemsetD8Async(a, 'i', 100, kLegacy));
  OK(cuStreamSynchronize(kLegacy));
  EXPECT_EQ(bytes_at(a, 2), "ii");
  EXPECT_EQ(bytes_at(mapped, 3), "vmm");
  EXPECT_EQ(bytes_at(mapped + kPhysicalNbytes - 1, 1), std::string(1, '\0'));
  CUipcMemHandle other = exports.memory;
  other.reserved[20] ^= 1;  // not the handle that is open already
  EXPECT_NE(cuIpcOpenMemHandle_v2(&a, other, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcOpenEventHandle(&ready, exports.event), kMapFailed);
}

TEST_F(FakeCudaSharing, TheExporterCannotImportFromItself) {
  CUipcMemHandle handle;
  CUdeviceptr a = device(100);
  OK(cuIpcGetMemHandle(&handle, a));
  EXPECT_EQ(cuIpcOpenMemHandle_v2(&a, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
            CUDA_ERROR_INVALID_CONTEXT);
  CUipcEventHandle event_handle;
  EXPECT_EQ(cuIpcGetEventHandle(&event_handle, event()), CUDA_ERROR_INVALID_VALUE) << "not made for it";
  CUevent made = nullptr;
  EXPECT_EQ(cuEventCreate(&made, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE) << "with timing";
}

TEST_F(FakeCudaSharing, MappedMemoryNeedsAccessAndLivesUntilItIsUnmapped) {
  CUmemAllocationProp prop = exportable();
  CUmemGenericAllocationHandle handle = 0;
  size_t granularity = 0;
  OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(granularity, kPhysicalNbytes);
  EXPECT_EQ(cuMemCreate(&handle, 100, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemCreate(&handle, kPhysicalNbytes, &prop, 0));
  CUdeviceptr address = map_physical(handle);
  EXPECT_EQ(cuMemMap(address, kPhysicalNbytes, 0, handle, 0), CUDA_ERROR_ALREADY_MAPPED);
  EXPECT_EQ(fake_cuda_write(address, "x", 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  OK(allow(address));
  OK(cuMemRelease(handle));
  OK(cuMemsetD8Async(address, 'x', kPhysicalNbytes, kLegacy));
  OK(cuStreamSynchronize(kLegacy));
  EXPECT_EQ(bytes_at(address + kPhysicalNbytes - 2, 2), "xx");
  EXPECT_EQ(fake_cuda_count("live.physical"), 1U);
  EXPECT_EQ(cuMemAddressFree(address, kPhysicalNbytes), CUDA_ERROR_INVALID_VALUE) << "still mapped";
  EXPECT_EQ(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemUnmap(address, kPhysicalNbytes));
  OK(cuMemAddressFree(address, kPhysicalNbytes));
  for (const char* live : {"live.physical", "live.mapped", "live.reserved"})
    EXPECT_EQ(fake_cuda_count(live), 0U) << live;
}

}  // namespace
}  // namespace tenon::fake

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--export") return tenon::fake::export_and_serve();
  testing::InitGoogleTest(&argc, argv);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  return RUN_ALL_TESTS();
}
