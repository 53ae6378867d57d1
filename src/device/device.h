// SPDX-License-Identifier: Apache-2.0
//
// A GPU of this process: its context, its streams, its memory, and events that say how far a stream has come.
// Knows no arrays and no queues.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ref.h"
#include "base/spin_lock.h"
#include "device/driver.h"
#include "tenon/core.h"

namespace tenon::impl::device {

class Device;

// The host cannot read or write memory there.
constexpr bool is_device_memory(tenon_device device) noexcept { return device.type == TENON_CUDA; }
// Work on streams may use memory there. Managed memory is memory of the host, too.
constexpr bool has_streams(tenon_device device) noexcept {
  return is_device_memory(device) || device.type == TENON_CUDA_MANAGED;
}

// "cpu", "cuda:0", "cuda_host", "cuda_managed", "rocm_host"; "device type 8, id 0" for others.
std::string text_of(tenon_device device);
// "cuda" is "cuda:0". Fails with kValue.
tenon_device device_from_text(std::string_view text);

// The error of a call of the driver: kNoMemory or kSystem. doing: "copy to cuda:0".
[[nodiscard]] Error error_of(const Driver& driver, Status status, std::string_view doing);

// A moment of a stream: all that was submitted before. Recorded once. Counted; the handle goes back to the
// device's pool with the last reference. Threads: any.
class Event {
 public:
  Device& device() const noexcept { return device_; }
  // On which it was recorded.
  Stream stream() const noexcept { return stream_; }

  // Done, failed, or still pending (Driver::is_pending).
  Status query() noexcept;
  // Sleeps until it is done or has failed.
  Status synchronise() noexcept;
  // A query or synchronise() has found it done. A hint for callers that would wait for it.
  // pairs with: Event::note, "a moment of a stream has come"
  bool is_done() const noexcept { return result_.load(std::memory_order_acquire) == kOk; }

  void retain() noexcept { refs_.increment(); }
  void release() noexcept;

 private:
  friend class Device;
  Event(Device& device, EventHandle handle, Stream stream) noexcept
      : device_(device), handle_(handle), stream_(stream) {}
  ~Event() = default;
  Status note(Status status) noexcept;
  Status ask(Status (Driver::*question)(EventHandle) noexcept) noexcept;

  static constexpr Status kUnknown = -1;  // no code of a driver is negative

  Device& device_;
  const EventHandle handle_;
  const Stream stream_;
  std::atomic<Status> result_{kUnknown};
  RefCount refs_;
};

// The streams of a device. Work on different ones runs side by side.
enum class StreamKind : uint8_t { kToDevice, kToHost, kOnDevice, kMemory };
inline constexpr size_t kStreamKinds = 4;

// One for each device that is used, never destroyed. Threads: any.
class Device {
 public:
  // Opens it at the first call. Fails as driver_of, with kValue when there is no such device.
  static Device& of(tenon_device device);
  static int32_t count(int32_t device_type);
  // The devices on which work of this process may run: those that Tenon or another library has opened. Fails
  // as driver_of and of().
  static std::vector<Device*> all_open(int32_t device_type);
  // The first one of them, for memory of the host that belongs to no device; if there is none, the first
  // device. Fails as of().
  static Device& for_host(int32_t device_type);
  // That which holds the byte, as the driver says. Fails as driver_of and of(), and with kBuffer if no device
  // holds it. is_empty: the address needs no memory; the first device if none holds it.
  static tenon_device holding(int32_t device_type, const void* address, bool is_empty);

  tenon_device id() const noexcept { return id_; }
  const DeviceTraits& traits() const noexcept { return traits_; }
  Driver& driver() const noexcept { return driver_; }
  Stream stream(StreamKind kind) const noexcept { return streams_[static_cast<size_t>(kind)]; }
  uint64_t free_nbytes();
  // False in a forked child: nothing may be called then.
  bool is_usable() const noexcept { return driver_.is_usable(); }

  // The device is that of this thread while this lives. Fails with kSystem; with a status it does not throw.
  class Current {
   public:
    explicit Current(Device& device);
    Current(Device& device, Status* status) noexcept;
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current() {
      if (driver_ != nullptr) driver_->leave(entry_);
    }

   private:
    Driver* driver_ = nullptr;
    Driver::Entry entry_;
  };

  // Memory, aligned to 256 bytes. born: the moment from which on streams other than
  // StreamKind::kMemory may use it; null: at once. Fails with kNoMemory, kSystem.
  void* allocate(size_t nbytes, bool is_zeroed, Ref<Event>* born) {
    return allocate_in(traits_.has_pools ? stream(StreamKind::kMemory) : nullptr, nbytes, is_zeroed, born);
  }
  // Requires that all work on the memory is done.
  void free(void* address, size_t nbytes) noexcept {
    free_in(traits_.has_pools ? stream(StreamKind::kMemory) : nullptr, address, nbytes);
  }
  // The same outside of the pools of the driver, whose memory cannot be given to other processes.
  void* allocate_alone(size_t nbytes, bool is_zeroed, Ref<Event>* born) {
    return allocate_in(nullptr, nbytes, is_zeroed, born);
  }
  void free_alone(void* address, size_t nbytes) noexcept { free_in(nullptr, address, nbytes); }

  // The moment of a stream that has come so far. Fails with kSystem, kNoMemory.
  Ref<Event> record(Stream stream);
  // The same in two steps, so that no work is submitted without an event: an event that is not recorded may
  // only be recorded or released. Fails as record. The device must be current for the second.
  Ref<Event> make_event(Stream stream);
  // When it fails, all work that was submitted before is done.
  Status record(Event& event) noexcept;
  // What a stream of another library has been given so far, unless it is being captured: then null. The
  // stream of a thread (number 2) is the caller's, or (is_of_other_thread) another one's. Fails as record.
  Ref<Event> record_foreign(Stream stream, bool is_of_other_thread);
  bool is_capturing(Stream stream);
  // An event of make_event(nullptr) becomes the moment of all streams of this process on the device. The same
  // without an event, where the driver has none for it: sleeps until their work is done. If a stream is
  // captured to a graph, both fail, and unless that stream is ordered with the legacy
  // stream they make the capture invalid.
  Status record_all(Event& event) noexcept;
  Status synchronise_all() noexcept;

  // The stream waits for the event, unless that is done or of the same stream. The device must be current.
  Status wait(Stream stream, Event& event) noexcept;

  // The codes of a failed call in an error, which names this device.
  Error error_of(Status status, std::string_view doing) const {
    return device::error_of(driver_, status, doing);
  }

 private:
  friend class Event;
  Device(tenon_device id, Driver& driver);
  // pool: the stream in whose order a pool allocates; null: no pool.
  void* allocate_in(Stream pool, size_t nbytes, bool is_zeroed, Ref<Event>* born);
  Status look_for_capture() noexcept;
  void free_in(Stream pool, void* address, size_t nbytes) noexcept;
  EventHandle take_event();
  void give_event(EventHandle handle) noexcept;

  const tenon_device id_;
  Driver& driver_;
  Context context_ = nullptr;
  DeviceTraits traits_;
  std::array<Stream, kStreamKinds> streams_{};

  SpinLock lock_;
  std::vector<EventHandle> spare_events_;  // guarded by lock_; has room for all that were made
  size_t all_events_ = 0;                  // guarded by lock_
};

// While one lives, exit() of the process does not come to the end of the driver, but waits at most a second.
// For calls of the driver that may come while another thread is in exit(). Requires that a
// device is open. Threads: any.
class BeforeExit {
 public:
  BeforeExit() noexcept;
  BeforeExit(const BeforeExit&) = delete;
  BeforeExit& operator=(const BeforeExit&) = delete;
  ~BeforeExit();
  // False: exit() has begun, so this thread must not call the driver any more.
  explicit operator bool() const noexcept { return is_before_; }

 private:
  bool is_before_ = false;
};

// Pinned host memory, aligned to 64 bytes at least. Fails as Device::of({TENON_CUDA, 0}), kNoMemory.
void* allocate_pinned(size_t nbytes);
void free_pinned(void* address, size_t nbytes) noexcept;

// Bytes of this process.
struct Statistics {
  uint64_t device_nbytes = 0;
  uint64_t pinned_nbytes = 0;
  uint64_t registered_nbytes = 0;
  uint64_t events = 0;  // alive
};
Statistics statistics() noexcept;

// Host memory that a driver has pinned where it lies. Ranges that lie inside of one that is registered share
// it.
class Registration {
 public:
  // Fails with kSystem when the driver refuses (the message says why), and as Device::of({TENON_CUDA, 0}).
  Registration(void* address, size_t nbytes, bool is_readonly);
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration();

 private:
  uintptr_t begin_ = 0;
};

}  // namespace tenon::impl::device
