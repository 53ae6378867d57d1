// SPDX-License-Identifier: Apache-2.0
#include "share/process_lock.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "engine/wait.h"
#include "share/porter.h"
#include "share/walk.h"

namespace tenon::share {
namespace {

using engine::Appended;
using engine::Mode;
using engine::Obstacle;
using engine::Refusal;
using Kind = RecordState::Kind;

constexpr int64_t kSliceNs = 50'000'000;
constexpr int64_t kWalkNs = 1'000'000;  // most waits are over before that
constexpr int64_t kReportNs = 5'000'000'000;
constexpr int kPolls = 200;

bool overlap(const Record& a, const Record& b) noexcept {
  return a.begin.load(std::memory_order_relaxed) < b.end.load(std::memory_order_relaxed) &&
         b.begin.load(std::memory_order_relaxed) < a.end.load(std::memory_order_relaxed);
}

void refuse(Refusal* refusal, Refusal::Reason reason) noexcept { refusal->reason = reason; }

// The dealings of a thread that sleeps with the hooks of its language.
class HookedSleep {
 public:
  HookedSleep() noexcept : hooks_(engine::wait_hooks()), began_ns_(now_ns()) {
    if (hooks_.begin != nullptr) token_ = hooks_.begin();
  }
  HookedSleep(const HookedSleep&) = delete;
  HookedSleep& operator=(const HookedSleep&) = delete;
  ~HookedSleep() {
    if (hooks_.end != nullptr) hooks_.end(token_);
  }
  bool is_interrupted() const noexcept { return hooks_.poll != nullptr && hooks_.poll(token_) != 0; }
  void report(const Obstacle& obstacle) noexcept {
    const int64_t waited = now_ns() - began_ns_;
    if (waited < reported_ns_ + kReportNs) return;
    reported_ns_ = waited / kReportNs * kReportNs;
    if (hooks_.report == nullptr) return;
    try {
      hooks_.report(concat("waiting for ", waited / 1'000'000'000, " s behind ", text_of(obstacle)).c_str());
    } catch (const std::bad_alloc&) {
      // The next one may say it.
    }
  }
  int64_t waited_ns() const noexcept { return now_ns() - began_ns_; }

 private:
  const engine::WaitHooks& hooks_;
  const int64_t began_ns_;
  int64_t reported_ns_ = 0;
  void* token_ = nullptr;
};

}  // namespace

Record& ProcessLock::record(const Attempt& attempt) const noexcept {
  return segment_.participant().record(attempt.record);
}

ProcessLock::Bytes ProcessLock::bytes_of(const engine::Extent& extent) const noexcept {
  const Block& b = block();
  const auto base = reinterpret_cast<uintptr_t>(segment_.data()) + b.begin.load(std::memory_order_relaxed);
  const uint64_t nbytes = b.nbytes.load(std::memory_order_relaxed);
  const auto offset = [&](uintptr_t address) {
    return address <= base ? 0 : std::min<uint64_t>(address - base, nbytes);
  };
  return {offset(extent.begin), offset(extent.end)};
}

// Enters the request: it waits from now on.
bool ProcessLock::begin(const engine::Claim& claim, const engine::Entry& entry, Attempt* attempt,
                        Refusal* refusal) noexcept {
  Participant& self = segment_.participant();
  if (self.index() != Participant::kNone) attempt->record = self.take_record();
  if (attempt->record == Participant::kNone) {
    refuse(refusal, Refusal::Reason::kTooMany);
    return false;
  }
  attempt->ignores_death = claim.ignores_dead_owner;
  const engine::Asked asked = engine::asked_of(claim, entry);
  attempt->overwrites = asked.overwrites;
  Block& b = block();
  Record& r = record(*attempt);
  const Bytes bytes = bytes_of(asked.extent);
  store(r.begin, bytes.begin);
  store(r.end, bytes.end);
  store(r.since_ns, now_ns());
  const bool has_owner =
      claim.kind != engine::Kind::kOp && !claim.is_detached.load(std::memory_order_relaxed);
  store(r.thread, has_owner ? claim.owner.thread : 0u);
  store(r.task, has_owner ? static_cast<uint32_t>(claim.owner.task) : 0u);
  const BlockLock lock(b);
  const uint64_t ticket = b.next_ticket.load(std::memory_order_relaxed);
  store(b.next_ticket, ticket + 1);
  store(r.ticket, ticket);
  set_bit(b.present, self.index());
  publish(r.state, RecordState::make(index_, Kind::kWaiting, asked.mode == Mode::kWrite));
  return true;
}

ProcessLock::Look ProcessLock::try_grant(const Attempt& attempt, Obstruction* obstruction,
                                         uint32_t* pid) noexcept {
  Participant& self = segment_.participant();
  const Control& control = segment_.control();
  Block& b = block();
  Record& own = record(attempt);
  const uint64_t state = own.state.load(std::memory_order_relaxed);
  const bool is_write = RecordState::is_write(state);
  const uint64_t ticket = own.ticket.load(std::memory_order_relaxed);
  obstruction->count = 0;
  bool has_obstacle = false, is_obstacle_granted = false;
  const BlockLock lock(b);
  visit_bits(b.present, [&](uint32_t p) {
    if (p == self.index() || !control.has_slot(p)) return;
    const Slot& slot = control.slot(p);
    const uint32_t used = std::min(look(slot.records_used), kRecords);
    bool is_in_way = false;
    for (uint32_t i = 0; i < used; ++i) {
      const Record& other = slot.records[i];
      const uint64_t word = look(other.state);
      const Kind kind = RecordState::kind(word);
      if (kind == Kind::kFree || RecordState::block(word) != index_) continue;
      if (!is_write && !RecordState::is_write(word)) continue;
      const bool is_granted = kind == Kind::kGranted;
      if (!is_granted && other.ticket.load(std::memory_order_relaxed) > ticket) continue;
      if (!overlap(own, other)) continue;
      is_in_way = true;
      if (has_obstacle && (is_obstacle_granted || !is_granted)) continue;
      has_obstacle = true;
      is_obstacle_granted = is_granted;
      describe(slot, other, &obstruction->obstacle);
    }
    if (!is_in_way || obstruction->count == std::size(obstruction->participants)) return;
    obstruction->participants[obstruction->count] = p;
    std::atomic<uint32_t>& life = life_word(control.life(p));
    obstruction->words[++obstruction->count] = {&life, note_sleeper(life)};
  });
  if (obstruction->count != 0) {
    store(b.is_awaited, 1u);
    obstruction->words[0] = {&b.turn, b.turn.load(std::memory_order_relaxed)};
    return Look::kBlocked;
  }
  const uint32_t died = b.died_pid.load(std::memory_order_relaxed);
  if (died != 0) {
    const uint64_t begin = b.died_begin.load(std::memory_order_relaxed);
    const uint64_t end = b.died_end.load(std::memory_order_relaxed);
    const uint64_t own_begin = own.begin.load(std::memory_order_relaxed);
    const uint64_t own_end = own.end.load(std::memory_order_relaxed);
    const bool is_whole = attempt.overwrites && own_begin <= begin && end <= own_end;
    const bool concerns = own_begin < end && begin < own_end;
    const bool is_told = concerns && !attempt.overwrites && !attempt.ignores_death;
    if (is_told || is_whole) store(b.died_pid, 0u);
    if (is_told) {
      *pid = died;
      publish(own.state, uint64_t{Kind::kFree});
      if (note_change(b)) wake(b);
      self.give_record(attempt.record);
      return Look::kDied;
    }
  }
  self.references(attempt.record).store(1, std::memory_order_relaxed);
  publish(own.state, RecordState::make(index_, Kind::kGranted, is_write));
  return Look::kGranted;
}

bool ProcessLock::reap_dead(const Obstruction& obstruction) noexcept {
  bool has_reaped = false;
  for (size_t i = 0; i < obstruction.count; ++i) {
    if (!is_dead(look(*obstruction.words[i + 1].word))) continue;
    (void)reap(segment_.control(), obstruction.participants[i]);
    has_reaped = true;
  }
  return has_reaped;
}

void ProcessLock::free_record(uint32_t record) noexcept {
  Block& b = block();
  bool has_waiters = false;
  {
    const BlockLock lock(b);
    publish(segment_.participant().record(record).state, uint64_t{Kind::kFree});
    has_waiters = note_change(b);
  }
  if (has_waiters) wake(b);
  segment_.participant().give_record(record);
}

void ProcessLock::withdraw(const Attempt& attempt) noexcept { free_record(attempt.record); }

void ProcessLock::describe_death(uint32_t pid, Refusal* refusal) noexcept {
  refusal->reason = Refusal::Reason::kOwnerDied;
  refusal->obstacle = Obstacle();
  refusal->obstacle.party = Obstacle::Party::kProcess;
  refusal->obstacle.mode = Mode::kWrite;
  refusal->obstacle.thread = pid;
}

bool ProcessLock::is_circle(const Attempt& attempt) noexcept {
  // Twice: a lease that was given back during the first walk may have closed a circle that never was.
  const uint32_t self = segment_.participant().index();
  return is_waiting_for_itself(segment_, self, attempt.record) &&
         is_waiting_for_itself(segment_, self, attempt.record);
}

bool ProcessLock::enter(const engine::Claim& claim, engine::Entry& entry, const Deadline& deadline,
                        Refusal* refusal) noexcept {
  Attempt attempt;
  if (!begin(claim, entry, &attempt, refusal)) return false;
  Obstruction obstruction;
  uint32_t pid = 0;
  const auto is_done = [&](Look seen) {
    if (seen == Look::kGranted) entry.pass = attempt.record + 1;
    if (seen == Look::kDied) describe_death(pid, refusal);
    return seen != Look::kBlocked;
  };
  Look seen = try_grant(attempt, &obstruction, &pid);
  for (int i = 0; seen == Look::kBlocked && i < kPolls; ++i) {
    relax_processor();
    const os::Sleep& turn = obstruction.words[0];
    if (look(*turn.word) != turn.value) seen = try_grant(attempt, &obstruction, &pid);
  }
  if (is_done(seen)) return seen == Look::kGranted;

  HookedSleep sleep;
  int64_t next_walk_ns = kWalkNs;
  while (true) {
    if (!reap_dead(obstruction)) {
      refusal->obstacle = obstruction.obstacle;
      const int64_t waited = sleep.waited_ns(), left = deadline.left_ns();
      if (waited >= next_walk_ns || left <= 0) {
        next_walk_ns = waited + kSliceNs;
        if (is_circle(attempt)) {
          refuse(refusal, Refusal::Reason::kDeadlock);
          break;
        }
      }
      if (left <= 0) {
        refuse(refusal, Refusal::Reason::kTimeout);
        break;
      }
      const int64_t slice = std::min({kSliceNs, left, std::max<int64_t>(next_walk_ns - waited, 0)});
      os::sleep_on(obstruction.words, obstruction.word_count(), slice);
      if (sleep.is_interrupted()) {
        refuse(refusal, Refusal::Reason::kInterrupted);
        break;
      }
      sleep.report(obstruction.obstacle);
    }
    seen = try_grant(attempt, &obstruction, &pid);
    if (is_done(seen)) return seen == Look::kGranted;
  }
  withdraw(attempt);
  return false;
}

Appended ProcessLock::request(engine::Claim& claim, engine::Entry& entry, Refusal* refusal) noexcept {
  Attempt attempt;
  if (!begin(claim, entry, &attempt, refusal)) return Appended::kRefused;
  Obstruction obstruction;
  uint32_t pid = 0;
  while (true) {
    switch (try_grant(attempt, &obstruction, &pid)) {
      case Look::kGranted: entry.pass = attempt.record + 1; return Appended::kGranted;
      case Look::kDied: describe_death(pid, refusal); return Appended::kRefused;
      case Look::kBlocked: break;
    }
    if (!reap_dead(obstruction)) break;
  }
  if (claim.kind != engine::Kind::kOp && is_circle(attempt)) {
    refusal->obstacle = obstruction.obstacle;
    refuse(refusal, Refusal::Reason::kDeadlock);
  } else if (Porter::instance().add(*this, claim, entry, attempt)) {
    return Appended::kWaiting;
  } else {
    refuse(refusal, Refusal::Reason::kTooMany);
  }
  withdraw(attempt);
  return Appended::kRefused;
}

bool ProcessLock::cancel(engine::Entry& entry) noexcept { return Porter::instance().cancel(entry); }

void ProcessLock::share(engine::Pass pass) noexcept {
  segment_.participant().references(pass - 1).fetch_add(1, std::memory_order_relaxed);
}

void ProcessLock::leave(engine::Pass pass, bool has_written) noexcept {
  if (has_written) note_write();
  if (add(segment_.participant().references(pass - 1), ~0u) != 1) return;
  free_record(pass - 1);
}

void ProcessLock::note_write() noexcept {
  note_store();
  block().version.fetch_add(1, std::memory_order_relaxed);
}

void ProcessLock::disown(engine::Pass pass) noexcept {
  store(segment_.participant().record(pass - 1).thread, 0u);
}

void ProcessLock::visit_others(const engine::Extent& extent,
                               void (*visit)(const engine::Obstacle&, void* context),
                               void* context) noexcept {
  const Control& control = segment_.control();
  const uint32_t self = segment_.participant().index();
  const Bytes bytes = bytes_of(extent);
  const BlockLock lock(block());
  visit_bits(block().present, [&](uint32_t p) {
    if (p == self || !control.has_slot(p) || is_dead(look(life_word(control.life(p))))) return;
    const Slot& slot = control.slot(p);
    const uint32_t used = std::min(look(slot.records_used), kRecords);
    for (uint32_t i = 0; i < used; ++i) {
      const Record& other = slot.records[i];
      const uint64_t word = look(other.state);
      if (RecordState::kind(word) == Kind::kFree || RecordState::block(word) != index_) continue;
      if (other.begin.load(std::memory_order_relaxed) >= bytes.end) continue;
      if (other.end.load(std::memory_order_relaxed) <= bytes.begin) continue;
      Obstacle obstacle;
      describe(slot, other, &obstacle);
      visit(obstacle, context);
    }
  });
}

bool ProcessLock::precedes(const engine::Gate& other) const noexcept {
  const auto& that = static_cast<const ProcessLock&>(other);
  const SegmentId& a = segment_.header().id;
  const SegmentId& b = that.segment_.header().id;
  if (a != b) return a < b;
  return index_ < that.index_;
}

}  // namespace tenon::share
