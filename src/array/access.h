// SPDX-License-Identifier: Apache-2.0
//
// How synchronous code accesses elements: with a view as long as it keeps a pointer, or with a call as long
// as the call runs. Both are in the queue of the memory, wait for work that was pushed before, and act under
// a lease of the caller if there is one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>

#include "array/array.h"
#include "base/error.h"
#include "sync/wait.h"

namespace tenon::impl {

// The error for a conflict. doing: what the caller wanted to do with array (may be null).
Error error_of(const Conflict& conflict, const char* doing, const Array* array);

// The way out for a caller that would write to a read-only array.
inline constexpr char kHowToWrite[] =
    "write to a copy, which is the only way for a frozen array; if the memory is another library's and may "
    "be written, import it as writable (tn.from_dlpack(x, writable=True))";

[[noreturn]] inline void throw_conflict(const Conflict& conflict, const char* doing, const Array* array) {
  throw error_of(conflict, doing, array);
}

// Fails with kOp if the bytes hold no value, because the op that should write them has failed.
void check_value(const Array& array);

// For a view whose owner keeps the array alive, and closes the view once, with close_view(). Fails as
// HostView::open, and leaves the view closed then.
void open_view_of(const Array& array, View& view, Access access, const char* site);

// A view of the ordinary code of the process. Never moves while it is open; keeps the storage alive.
// Threads: close() from any, any number of times.
class HostView {
 public:
  HostView() = default;
  HostView(const Array& array, Access access) { open(array, access, nullptr); }
  // All bytes of a storage.
  HostView(Storage& storage, Access access);
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;
  ~HostView() { close(); }

  // Waits for work that conflicts. site: the line that takes the view; lives as long as the view. may_weaken:
  // under a lease of the caller for reading, it becomes a view for reading. Fails with kLeaseConflict,
  // kDeadlock, kInterrupted, kOp.
  void open(const Array& array, Access access, const char* site, bool may_weaken = false);
  // The same, but a conflict is told by `conflict` and false, without an exception: NumPy asks each shared
  // array for a view that it will not get.
  bool try_open(const Array& array, Access access, const char* site, bool may_weaken, Conflict* conflict);
  // The same for another library, which will use the memory on a stream of a device. It does not wait for
  // what was submitted before: see add_events_in().
  // stream: may be null.
  void open_on(device::Device& device, device::Stream stream, const Array& array, Access access,
               const char* site);
  void close() noexcept;
  // The stream still uses the memory: rest stands in the place of the view until it is released. The storage
  // has to live until then. False: it was closed.
  bool close(Request& rest) noexcept;
  const View& view() const noexcept { return view_; }

  bool is_open() const noexcept { return storage_.load(std::memory_order_relaxed) != nullptr; }
  Access access() const noexcept { return view_.access; }

 private:
  void open(Storage& storage, Extent extent, Access access, const char* site, bool may_weaken,
            const Array* array);
  bool try_open(Storage& storage, Extent extent, Access access, const char* site, bool may_weaken,
                const Array* array, Conflict* conflict);

  std::atomic<Storage*> storage_{nullptr};  // a reference while open
  View view_;
};

// A call that uses some arrays while it lives. It gets all of them at once. Accesses of its thread to them,
// including views, act under the call.
class HostCall {
 public:
  struct Use {
    const Array& array;
    Access access;
    bool is_overwrite = false;  // every byte of the array's extent will be written
  };

  // Waits; fails as HostView::open. name and site live as long as the call; site may be null.
  HostCall(const char* name, std::initializer_list<Use> uses)
      : HostCall(name, nullptr, std::span(uses.begin(), uses.size())) {}
  HostCall(const char* name, const char* site, std::span<const Use> uses);
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;
  ~HostCall();

 private:
  static constexpr size_t kFew = 2;

  [[gnu::noinline]] void wait(std::span<const Use> uses);

  // Room for a few parts. Only those that are used are made, because clearing the rest takes as long as the
  // request.
  alignas(RequestPart) std::array<std::byte, kFew * sizeof(RequestPart)> few_;
  std::unique_ptr<RequestPart[]> many_;  // if there are more
  BlockingRequest request_;
  int exceptions_;
};

}  // namespace tenon::impl
