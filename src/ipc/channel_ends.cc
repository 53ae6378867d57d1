// SPDX-License-Identifier: Apache-2.0
#include "ipc/channel_ends.h"

#include <sched.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"

namespace tenon::impl {
namespace {

// For memory that another process damages all the time.
constexpr int kMostTries = 10'000;

// How long to wait for another reaper. It may be stopped.
constexpr int64_t kReaperNs = 1'000'000;
// So long a process is there after the kernel has released its lock, almost always.
constexpr int64_t kVanishNs = 50'000;

constexpr uint32_t kCountedRoles = kProducer | kMember;

}  // namespace

bool ChannelEnds::is_alive(uint32_t p) const noexcept { return has_living(control_, p); }

uint32_t ChannelEnds::count(uint32_t roles) const noexcept {
  uint32_t n = 0;
  visit_ends([&](uint32_t, const ChannelEnd& end) { n += (observe(end.word) & roles) != 0 ? 1 : 0; });
  return n;
}

// A look at all ends is no snapshot: while it goes on, a producer may come behind it, and then the last one
// before it may end. So it looks twice. A producer that was there at the end of the first look, and is not
// seen, has come during that look. If the second one does not see it, it has ended meanwhile, and was counted
// after the first look had begun.
uint64_t ChannelEnds::ended_after(uint64_t known, bool awaits_crashed) const noexcept {
  const uint64_t closings = observe(state_->closings);
  if (ClosingsWord::count(closings) <= known || (awaits_crashed && ClosingsWord::has_died(closings)))
    return 0;
  const bool has_producer = count(kProducer) != 0 || count(kProducer) != 0;
  return has_producer || observe(state_->closings) != closings ? 0 : ClosingsWord::count(closings);
}

// A reaper may repeat it after the death of another one.
void ChannelEnds::note_closing(bool has_died) noexcept {
  uint64_t now = observe(state_->closings);
  while (!exchange(state_->closings, now, ClosingsWord::make(ClosingsWord::count(now) + 1, has_died))) {
  }
}

uint64_t ChannelEnds::received_by_all() const noexcept {
  uint64_t least = observe(state_->last_received);
  visit_ends([&](uint32_t, const ChannelEnd& end) {
    if ((observe(end.word) & kConsumer) != 0) least = std::min(least, observe(end.cursor));
  });
  return least;
}

std::string ChannelEnds::stopped_text(const os::File& file) const {
  std::string text;
  visit_ends([&](uint32_t p, const ChannelEnd& end) {
    if (EndWord::roles(look(end.word)) == 0 || !is_alive(p)) return;
    const Place& place = control_.place(p);
    const uint32_t pid = look(place.pid);
    // Only then another process may hold the lock. The search looks at the files of all processes.
    const bool is_dead = is_marked(p) && os::has_ended({pid, look(place.start)});
    const uint32_t holder = is_dead ? os::holder_of_byte(file, p) : 0;
    const auto add_text = [&](const std::string& what) { text += (text.empty() ? ": " : ", ") + what; };
    if (holder != 0 && holder != pid && os::is_stopped(holder)) {
      add_text(concat(os::process_text(holder), " while it cleaned up after process ", pid));
    } else if (os::is_stopped(pid)) {
      add_text(concat("process ", pid, " (", command_of(place), "), which is stopped"));
    }
  });
  return text.empty() ? text : text + ", uses it";
}

void ChannelEnds::set_roles(uint32_t p, uint32_t roles) noexcept {
  if (!has_bit(state_->users, p)) set_bit(state_->users, p);
  std::atomic<uint64_t>& word = state_->ends[p].word;
  const uint64_t before = observe(word);
  if (before == roles) return;
  if ((before & kProducer) != 0 && (roles & kProducer) == 0) note_closing(false);
  announce(word, EndWord::make(roles, EndWord::kAlive, 0));
}

uint32_t ChannelEnds::pid_of_death(uint64_t number) const noexcept {
  const uint64_t found = observe(entry(number));
  return DeathEntry::number(found) == number ? DeathEntry::pid(found) : 0;
}

bool ChannelEnds::reap_dead(std::atomic<uint64_t>& waited_for) const noexcept {
  bool has_found = false;
  visit_ends([&](uint32_t p, const ChannelEnd&) {
    if (is_marked(p) && (reap(control_, p) || await_reaper(p, waited_for))) has_found = true;
  });
  return has_found;
}

// False: the process lives, or is ending, or its reaper is stopped. A reaper gives the slots back first, so
// that some microseconds do, unless it does not run.
bool ChannelEnds::await_reaper(uint32_t p, std::atomic<uint64_t>& waited_for) const noexcept {
  const Place& place = control_.place(p);
  const uint64_t dead = uint64_t{p} << 32 | look(place.generation);
  const auto is_there = [&] { return look(place.state) == PlaceState::kLive && is_marked(p); };
  const int64_t began = now_ns();
  while (is_there() && !os::has_ended({look(place.pid), look(place.start)})) {
    if (now_ns() - began >= kVanishNs) return false;
    sched_yield();
  }
  while (is_there()) {
    if (waited_for.load(std::memory_order_relaxed) == dead) return false;
    if (now_ns() - began >= kReaperNs) {
      waited_for.store(dead, std::memory_order_relaxed);
      break;
    }
    sched_yield();
  }
  return true;
}

void ChannelEnds::wake_all() noexcept {
  signal_event(state_->items);
  signal_event(state_->room);
}

// The slots come first: what the process had sent is there before its death is told. The bit of the user
// comes last: without it, no process would wake the others in place of a reaper that was killed.
void ChannelEnds::clear(uint32_t p, uint32_t slots) noexcept {
  if (!has_bit(state_->users, p)) return;
  (void)state_->table(slots).reclaim(p);
  const uint32_t roles = EndWord::roles(observe(state_->ends[p].word));
  if ((roles & kCountedRoles) != 0) count_death(p);
  if ((roles & kProducer) != 0) note_closing(true);
  announce(state_->ends[p].word, uint64_t{0});
  wake_all();
  clear_bit(state_->users, p);
}

// The end says which number it asks for before the entry gives it. So if a reaper is killed, the next one
// sees in the entry whether the death has the number. The entry stays until the end says that it was counted:
// only then is the next number given.
void ChannelEnds::count_death(uint32_t p) noexcept {
  std::atomic<uint64_t>& word = state_->ends[p].word;
  const uint32_t roles = EndWord::roles(observe(word)), pid = look(control_.place(p).pid);
  for (int i = 0; i < kMostTries; ++i) {
    const uint64_t asked = observe(word);
    if (EndWord::death(asked) != EndWord::kAlive) help(EndWord::number(asked));
    if (EndWord::death(observe(word)) == EndWord::kCounted) return;
    const uint64_t n = observe(state_->deaths) + 1;
    uint64_t before = observe(entry(n));
    // An entry of a later number: this one was given meanwhile, or the memory is damaged.
    const uint64_t named = DeathEntry::number(before);
    if (named == n || (named > n && observe(state_->deaths) >= n)) {
      help(n);
      continue;
    }
    announce(word, EndWord::make(roles, EndWord::kAsks, n));
    if (exchange(entry(n), before, DeathEntry::make(n, p, pid))) help(n);
  }
}

// If the number was given: says so in the end of the process, and then moves the last number on.
void ChannelEnds::help(uint64_t n) noexcept {
  const uint64_t named = observe(entry(n));
  if (DeathEntry::number(named) != n) return;
  std::atomic<uint64_t>& word = state_->ends[DeathEntry::place(named)].word;
  uint64_t asked = observe(word);
  if (EndWord::death(asked) == EndWord::kAsks && EndWord::number(asked) == n)
    (void)exchange(word, asked, EndWord::make(EndWord::roles(asked), EndWord::kCounted, n));
  uint64_t last = n - 1;
  (void)exchange(state_->deaths, last, n);
}

}  // namespace tenon::impl
