// SPDX-License-Identifier: Apache-2.0
//
// What a process says of the leases for which others have been waiting for a second: in its log, of views
// that outlived their block, and in a note in its place, for the reports and errors of those that wait.
//
// While a process holds something its mutex owner looks at it once a second. The mutex owner may not wait for
// the lock of a language, so the proxy waiter does the rest. Where there is no mutex owner, as in a forked
// child, there is no note; a view that outlives its block starts a mutex owner there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "ipc/layout.h"
#include "ipc/segment.h"

namespace tenon::impl {

namespace detail {
// Whether the mutex owner looks. kUsed: something was granted since it has looked last.
enum class WatchState : uint32_t { kOff, kIdle, kUsed };
inline constinit std::atomic<WatchState> watch{WatchState::kOff};
void begin_watch() noexcept;
}  // namespace detail

// This process has got a lease.
inline void note_grant() noexcept {
  if (detail::watch.load(std::memory_order_relaxed) != detail::WatchState::kUsed) [[unlikely]]
    detail::begin_watch();
}
// A view has outlived its lease: from now on there is a mutex owner.
void note_kept_view() noexcept;
// In a forked child.
void forget_watch() noexcept;

// For the mutex owner, with each segment that is open; then end_look() says whether it is to look again.
class AwaitedLook {
 public:
  void look_at(Segment& segment) noexcept;
  bool end_look() noexcept;

 private:
  bool holds_any_ = false;
  bool is_due_ = false;
};

// For the proxy waiter: says what is to be said. No lock is held: this calls the hooks of waits.
void report_awaited() noexcept;

// What the process of the place says of this grant, while it is granted; else "".
void read_note(const Place& place, const Grant& grant, uint64_t state, char* text, size_t size) noexcept;

}  // namespace tenon::impl
