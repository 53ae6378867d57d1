// SPDX-License-Identifier: Apache-2.0
//
// Reports about leases of this process for which other processes have been waiting for 1 s. If a view that
// outlived its block holds the lease, the process logs it. And it writes a note into its place, which the
// reports and errors of the waiting processes contain.
//
// While the process has leases, its mutex owner checks them once a second. The mutex owner must not wait for
// the GIL, so the proxy waiter makes the report. Without a mutex owner, as in a forked child, there is no
// note. A view that outlives its block starts a mutex owner there.
#pragma once

#include <atomic>
#include <cstdint>

#include "ipc/layout.h"
#include "ipc/segment.h"

namespace tenon::impl {

namespace detail {
// Whether the mutex owner checks the leases. kUsed: a lease was granted since its last check.
enum class WatchState : uint32_t { kOff, kIdle, kUsed };
inline constinit std::atomic<WatchState> watch{WatchState::kOff};
void begin_watch() noexcept;
}  // namespace detail

// This process has been granted a lease.
inline void note_grant() noexcept {
  if (detail::watch.load(std::memory_order_relaxed) != detail::WatchState::kUsed) [[unlikely]]
    detail::begin_watch();
}
// A view has outlived its lease. Starts the mutex owner if there is none.
void note_outlived_view() noexcept;
// In a forked child.
void forget_watch() noexcept;

// One check by the mutex owner: look_at() for each open segment, then end_look(). True: it must check again
// later.
class AwaitedLook {
 public:
  void look_at(Segment& segment) noexcept;
  bool end_look() noexcept;

 private:
  bool holds_any_ = false;
  bool is_due_ = false;
};

// For the proxy waiter: makes the reports. Requires that no lock is held, as it calls the hooks of waits.
void report_awaited() noexcept;

// The note of the place about this grant; "": there is none, or the grant is not granted.
void read_note(const Place& place, const Grant& grant, uint64_t state, char* text, size_t size) noexcept;

}  // namespace tenon::impl
