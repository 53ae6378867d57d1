// SPDX-License-Identifier: Apache-2.0
#include "ipc/awaited.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "ipc/deaths.h"
#include "ipc/mutex_owner.h"
#include "ipc/process_lock.h"
#include "ipc/proxy_waiter.h"
#include "ipc/segments.h"
#include "sync/report.h"

namespace tenon::impl {
namespace {

using detail::WatchState;

constexpr int64_t kAwaitedMs = 1'000;  // the time that another process has been waiting
constexpr int64_t kAgainMs = 2'000;    // the time between two reports
constexpr size_t kMostAwaited = 16;    // leases in one report

constinit std::atomic<int64_t> reported_ms{0};

// Identifies the lease of a note. The low bits are the number of the note: they show a reader that the text
// was replaced while it was read.
constexpr uint64_t kNumber = 0xffff;
uint64_t lease_of(uint32_t grant, uint64_t state, uint64_t ticket) noexcept {
  const uint64_t block = GrantState::block(state);
  return (ticket + 1) << 38 | (block & 0x3fff) << 24 | uint64_t{grant & 0xff} << 16;
}
static_assert(kGrants <= 0xff && kMostBlocks <= 0x4000);

void write_note(Place& place, uint64_t lease, const std::string& text) noexcept {
  Note& note = place.note;
  static std::atomic<uint64_t> numbers{0};
  publish(note.lease, uint64_t{0});
  const size_t n = std::min(text.size(), sizeof note.text - 1);
  for (size_t i = 0; i <= n / 8; ++i) {
    uint64_t word = 0;
    const size_t begin = i * 8;
    std::memcpy(&word, text.data() + begin, std::min<size_t>(8, n - std::min(n, begin)));
    publish(note.text[i], word);
  }
  publish(note.lease, lease | (numbers.fetch_add(1, std::memory_order_relaxed) & kNumber));
}

// Another process has been waiting for this lease for kAwaitedMs.
bool is_awaited(const Control& control, const Place& own, const Grant& grant, uint64_t state) noexcept {
  const uint32_t block = GrantState::block(state);
  if (block >= control.blocks || is_empty(control.block(block).waiting)) return false;
  const int64_t now_ms = coarse_now_ms();
  const ByteRange bytes = range_of(grant);
  bool is_found = false;
  visit_grants(control, block, [&](const Grant& other, uint64_t word) {
    const bool is_own = &other >= own.grants && &other < own.grants + kGrants;
    if (is_found || is_own || GrantState::kind(word) != GrantState::kWaiting) return;
    if (!in_conflict(GrantState::access(state), GrantState::access(word))) return;
    const int64_t since_ms = other.since_ns.load(std::memory_order_relaxed) / 1'000'000;
    is_found = now_ms - since_ms >= kAwaitedMs && range_of(other).overlaps(bytes);
  });
  return is_found;
}

// Calls visit(grant, its state) for each lease of this process. False: there is none.
template <class Visit>
bool visit_held(Segment& segment, Visit visit) {
  if (segment.participant().index() == Participant::kNone) return false;
  const auto used = used_grants(segment.participant().place());
  bool is_any = false;
  for (uint32_t i = 0; i < used.size(); ++i) {
    const uint64_t state = look(used[i].state);
    if (GrantState::kind(state) != GrantState::kGranted) continue;
    is_any = true;
    visit(i, state);
  }
  return is_any;
}

struct Awaited {
  SegmentId segment;
  const Gate* gate;  // only an address: never dereferenced
  uint32_t grant;
  uint64_t state;
  uint64_t ticket;
};

std::vector<Awaited> all_awaited() {
  std::vector<Awaited> found;
  Segments::instance().visit([&](Segment& segment) {
    (void)visit_held(segment, [&](uint32_t i, uint64_t state) {
      const Place& place = segment.participant().place();
      if (found.size() == kMostAwaited || !is_awaited(segment.control(), place, place.grants[i], state))
        return;
      found.push_back({segment.header().id, &segment.lock(GrantState::block(state)), i, state,
                       look(place.grants[i].ticket)});
    });
  });
  return found;
}

void report(const Awaited& awaited) {
  Holder holder;
  bool is_to_report = false;
  if (!describe_grant(*awaited.gate, awaited.grant + 1, &holder, &is_to_report)) return;
  if (is_to_report) report_outlived_view(holder);
  const std::string text = lasting_text_of(holder);
  Segments::instance().visit([&](Segment& segment) {
    if (segment.header().id != awaited.segment) return;
    Place& place = segment.participant().place();
    const Grant& grant = place.grants[awaited.grant];
    if (look(grant.state) != awaited.state || look(grant.ticket) != awaited.ticket) return;
    write_note(place, lease_of(awaited.grant, awaited.state, awaited.ticket), text);
  });
}

}  // namespace

void detail::begin_watch() noexcept {
  if (watch.exchange(WatchState::kUsed, std::memory_order_relaxed) == WatchState::kOff) Segments::nudge();
}

void note_outlived_view() noexcept {
  note_grant();
  try {
    MutexOwner::instance().begin();
  } catch (const std::exception&) {
    // The thread cannot be created: there is no report.
  }
}

void forget_watch() noexcept { detail::watch.store(WatchState::kOff, std::memory_order_relaxed); }

void AwaitedLook::look_at(Segment& segment) noexcept {
  const Control& control = segment.control();
  holds_any_ |= visit_held(segment, [&](uint32_t i, uint64_t state) {
    const Place& place = segment.participant().place();
    if (is_due_ || !is_awaited(control, place, place.grants[i], state)) return;
    const uint64_t lease = lease_of(i, state, look(place.grants[i].ticket));
    const bool is_said = (look(place.note.lease) & ~kNumber) == lease;
    const int64_t since_ms = coarse_now_ms() - reported_ms.load(std::memory_order_relaxed);
    is_due_ = !is_said || since_ms >= kAgainMs;
  });
}

bool AwaitedLook::end_look() noexcept {
  try {
    if (is_due_) ProxyWaiter::instance().call_to_report();
  } catch (const std::bad_alloc&) {
    // The next check calls it again.
  }
  WatchState seen = WatchState::kUsed;
  if (detail::watch.compare_exchange_strong(seen, WatchState::kIdle, std::memory_order_relaxed)) return true;
  if (seen == WatchState::kOff) return false;
  return holds_any_ ||
         !detail::watch.compare_exchange_strong(seen, WatchState::kOff, std::memory_order_relaxed);
}

void report_awaited() noexcept {
  static std::atomic<size_t> rounds{0};
  try {
    std::vector<Awaited> all = all_awaited();
    // A place has one note, which the last report of a round writes. So each lease is the last one in turn.
    const size_t round = rounds.fetch_add(1, std::memory_order_relaxed);
    if (!all.empty())
      std::rotate(all.begin(), all.begin() + static_cast<ptrdiff_t>(round % all.size()), all.end());
    for (const Awaited& awaited : all) report(awaited);
  } catch (const std::exception&) {
    // The next check reports it.
  }
  reported_ms.store(coarse_now_ms(), std::memory_order_relaxed);
}

void read_note(const Place& place, const Grant& grant, uint64_t state, char* text, size_t size) noexcept {
  text[0] = '\0';
  const Note& note = place.note;
  const auto i = static_cast<uint32_t>(&grant - place.grants);
  const uint64_t seen = look(note.lease);
  if (GrantState::kind(state) != GrantState::kGranted ||
      (seen & ~kNumber) != lease_of(i, state, look(grant.ticket)))
    return;
  uint64_t words[kNoteWords];
  for (size_t w = 0; w < kNoteWords; ++w) words[w] = look(note.text[w]);
  if (look(note.lease) != seen) return;
  const size_t n = strnlen(reinterpret_cast<const char*>(words), std::min(size, sizeof words) - 1);
  std::memcpy(text, words, n);
  text[n] = '\0';
}

}  // namespace tenon::impl
