// SPDX-License-Identifier: Apache-2.0
//
// What the rest of Tenon needs from the driver of GPUs, in types of no vendor. cuda.cc implements it with the
// CUDA driver API; the driver of another vendor is a second implementation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tenon/core.h"

namespace tenon::impl::device {

// 0: it worked. Everything else is a code of the driver.
using Status = int32_t;
inline constexpr Status kOk = 0;

// Handles of the driver.
using Stream = void*;
using EventHandle = void*;
using Context = void*;

// depth planes of height rows of width bytes. The pitch is the number of bytes from row to row; the height of
// a side the number of rows from plane to plane.
struct StridedCopy {
  struct Side {
    void* address = nullptr;
    bool is_host = false;  // memory that the host can access
    size_t pitch = 0;
    size_t height = 0;
  };
  Side dst;
  Side src;
  size_t width = 0;
  size_t height = 1;
  size_t depth = 1;
};

// height rows of n values of unit bytes (1, 2 or 4).
struct StridedSet {
  void* address = nullptr;
  uint32_t value = 0;
  uint32_t unit = 1;
  size_t n = 0;
  size_t pitch = 0;  // in bytes
  size_t height = 1;
};

struct DeviceTraits {
  std::string name;        // "NVIDIA H100"
  bool has_pools = false;  // allocates in the order of a stream
  bool can_register = false;
  uint64_t total_nbytes = 0;
};

// Where memory lies, as the driver says.
struct PointerTraits {
  bool is_known = false;  // else it is plain host memory
  bool is_device = false;
  bool is_managed = false;
  int32_t ordinal = 0;
};

// Names a device in all processes of the machine.
struct DeviceUuid {
  std::array<uint8_t, 16> bytes{};
  friend bool operator==(const DeviceUuid&, const DeviceUuid&) = default;
};

// With which other processes open memory: as the driver makes it.
struct MemoryHandle {
  std::array<uint8_t, 64> bytes{};
};

// Threads: any. Functions without a Context parameter that allocate, submit or record need the context of
// their device to be current (enter). None throws.
class Driver {
 public:
  virtual const char* name() const noexcept = 0;  // "CUDA"
  // "CUDA_ERROR_INVALID_VALUE: invalid argument". Throws std::bad_alloc.
  virtual std::string text_of(Status status) const = 0;
  virtual bool is_pending(Status status) const noexcept = 0;    // of a query: the work is not done
  virtual bool is_no_memory(Status status) const noexcept = 0;  // it was short of memory
  // The driver works in this process: false in a forked child of the process that started it.
  virtual bool is_usable() const noexcept = 0;

  virtual Status count(int32_t* devices) noexcept = 0;
  // Needs no context.
  virtual Status uuid_of(int32_t ordinal, DeviceUuid* uuid) noexcept = 0;
  // This library or another one of the process has opened the device. Needs no context.
  virtual Status is_open(int32_t ordinal, bool* is_open) noexcept = 0;
  // Creates or retains what work on a device needs.
  virtual Status open(int32_t ordinal, Context* context, DeviceTraits* traits) noexcept = 0;
  // Makes the context that of this thread until leave(). Calls between them do not break the capture of a
  // graph by another library in this process.
  struct Entry {
    int capture_mode = 0;
  };
  virtual Status enter(Context context, Entry* entry) noexcept = 0;
  virtual void leave(const Entry& entry) noexcept = 0;

  // stream: of an allocation in its order; null where the device has no pools.
  virtual Status allocate(size_t nbytes, Stream stream, void** address) noexcept = 0;
  virtual Status free(void* address, Stream stream) noexcept = 0;
  virtual Status free_nbytes(uint64_t* nbytes) noexcept = 0;
  virtual Status allocate_host(size_t nbytes, void** address) noexcept = 0;  // pinned
  virtual Status free_host(void* address) noexcept = 0;
  virtual Status register_host(void* address, size_t nbytes, bool is_readonly) noexcept = 0;
  virtual Status unregister_host(void* address) noexcept = 0;
  // Of memory that was allocated without a stream.
  virtual Status export_memory(void* address, MemoryHandle* handle) noexcept = 0;
  // Maps memory of another process. Each call needs one of close_memory().
  virtual Status open_memory(const MemoryHandle& handle, void** address) noexcept = 0;
  virtual Status close_memory(void* address) noexcept = 0;
  virtual Status describe(const void* address, PointerTraits* traits) noexcept = 0;

  virtual Status create_stream(Stream* stream) noexcept = 0;
  virtual Status wait(Stream stream, EventHandle event) noexcept = 0;  // the stream waits, not the caller
  virtual Status synchronise_stream(Stream stream) noexcept = 0;       // the caller sleeps
  virtual Status is_capturing(Stream stream, bool* is_capturing) noexcept = 0;
  // The stream of a number of the DLPack protocol: 1 the legacy default stream, 2 that of the thread, else a
  // handle.
  virtual Stream stream_of(int64_t number) const noexcept = 0;

  virtual Status create_event(EventHandle* event) noexcept = 0;
  virtual Status destroy_event(EventHandle event) noexcept = 0;
  virtual Status record(EventHandle event, Stream stream) noexcept = 0;
  // The driver has record_context().
  virtual bool has_context_events() const noexcept = 0;
  // What all streams of the context have been given so far. If one of them is captured, this fails and makes
  // the capture invalid; so does synchronise_context().
  virtual Status record_context(EventHandle event, Context context) noexcept = 0;
  virtual Status synchronise_context() noexcept = 0;  // the current one; the caller sleeps
  virtual Status query(EventHandle event) noexcept = 0;
  virtual Status synchronise(EventHandle event) noexcept = 0;  // the caller sleeps

  virtual Status copy(const StridedCopy& copy, Stream stream) noexcept = 0;
  virtual Status set(const StridedSet& set, Stream stream) noexcept = 0;

 protected:
  ~Driver() = default;
};

// The driver of this type of device (TENON_CUDA). Loads it at the first call. Fails with kNotFound when there
// is none (the message says what was looked for, where, and what the loader said), kSystem when it does not
// start or the process was forked after it had started, kValue for other types.
Driver& driver_of(int32_t device_type);
// This library or another one of this process has opened a CUDA device. Loads no driver and starts none: a
// process that has started CUDA cannot fork children that use it.
bool is_cuda_in_use() noexcept;

// cuda.cc.
Driver& cuda_driver();

}  // namespace tenon::impl::device
