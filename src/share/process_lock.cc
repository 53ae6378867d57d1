// SPDX-License-Identifier: Apache-2.0
#include "share/process_lock.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "engine/wait.h"
#include "share/hooked_sleep.h"
#include "share/patience.h"
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
constexpr int kPolls = 200;
// For the text that is added to the name of an obstacle.
constexpr size_t kEndingRoom = sizeof Obstacle().name - sizeof Slot().command - 1;

bool overlap(const Record& a, const Record& b) noexcept {
  return a.begin.load(std::memory_order_relaxed) < b.end.load(std::memory_order_relaxed) &&
         b.begin.load(std::memory_order_relaxed) < a.end.load(std::memory_order_relaxed);
}

void refuse(Refusal* refusal, Refusal::Reason reason) noexcept { refusal->reason = reason; }

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
  store(r.since_ns, engine::coarse_now_ms() * 1'000'000);  // for messages
  const bool has_owner =
      claim.kind != engine::Kind::kOp && !claim.is_detached.load(std::memory_order_relaxed);
  store(r.thread, has_owner ? claim.owner.thread : 0u);
  store(r.task, has_owner ? static_cast<uint32_t>(claim.owner.task) : 0u);
  const BlockLock lock(b);
  const uint64_t ticket = b.next_ticket.load(std::memory_order_relaxed);
  store(b.next_ticket, ticket + 1);
  store(r.ticket, ticket);
  set_bit(b.present, self.index());
  set_bit(b.waiting, self.index());
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
    obstruction->words[0] = {&b.turn, b.turn.load(std::memory_order_relaxed)};
    return Look::kBlocked;
  }
  if (const uint32_t died = death_of_interest(b, attempt, own)) {
    *pid = died;
    end_wait(b, attempt.record, uint64_t{Kind::kFree});
    clear_deaths(b, attempt, own);
    if (note_change(b)) wake(b);
    self.give_record(attempt.record);
    return Look::kDied;
  }
  self.references(attempt.record).store(1, std::memory_order_relaxed);
  end_wait(b, attempt.record, RecordState::make(index_, Kind::kGranted, is_write));
  // Only now, when its own death would be noted.
  if (attempt.overwrites) clear_deaths(b, attempt, own);
  return Look::kGranted;
}

// The record waits no more. Requires the block's lock.
void ProcessLock::end_wait(Block& block, uint32_t ended, uint64_t state) noexcept {
  Participant& self = segment_.participant();
  publish(self.record(ended).state, state);
  const uint32_t used = std::min(look(self.slot().records_used), kRecords);
  for (uint32_t i = 0; i < used; ++i) {
    const uint64_t word = look(self.record(i).state);
    if (RecordState::kind(word) == Kind::kWaiting && RecordState::block(word) == index_) return;
  }
  clear_bit(block.waiting, self.index());
}

// Calls visit with the deaths over bytes of this request that concern it. Who overwrites all that a dead
// process was writing, heals that, and needs not know.
template <class Visit>
void ProcessLock::visit_deaths(Block& block, const Attempt& attempt, const Record& own, Visit visit) {
  const uint64_t own_begin = own.begin.load(std::memory_order_relaxed);
  const uint64_t own_end = own.end.load(std::memory_order_relaxed);
  for (Death& death : block.deaths) {
    const uint64_t begin = death.begin.load(std::memory_order_relaxed);
    const uint64_t end = death.end.load(std::memory_order_relaxed);
    if (death.pid.load(std::memory_order_relaxed) == 0 || own_begin >= end || begin >= own_end) continue;
    const bool covers = own_begin <= begin && end <= own_end;
    if (attempt.overwrites ? covers : !attempt.ignores_death) visit(death, covers);
  }
}

// The process of whose death it is to be told; 0: of none. Requires the block's lock.
uint32_t ProcessLock::death_of_interest(Block& block, const Attempt& attempt, const Record& own) noexcept {
  uint32_t pid = 0;
  if (attempt.overwrites) return pid;
  visit_deaths(block, attempt, own,
               [&](const Death& death, bool) { pid = death.pid.load(std::memory_order_relaxed); });
  return pid;
}

// They are told, or healed. Requires the block's lock.
void ProcessLock::clear_deaths(Block& block, const Attempt& attempt, const Record& own) noexcept {
  const uint64_t own_begin = own.begin.load(std::memory_order_relaxed);
  const uint64_t own_end = own.end.load(std::memory_order_relaxed);
  visit_deaths(block, attempt, own, [&](Death& death, bool covers) {
    // Of several deaths in one note those elsewhere are to be told to others: twice rather than never.
    if (death.is_joined.load(std::memory_order_relaxed) == 0 || covers) return store(death.pid, 0u);
    if (own_begin <= death.begin.load(std::memory_order_relaxed)) store(death.begin, own_end);
    if (own_end >= death.end.load(std::memory_order_relaxed)) store(death.end, own_begin);
  });
}

bool ProcessLock::reap_dead(const Obstruction& obstruction, bool only_marked) noexcept {
  bool has_reaped = false;
  for (size_t i = 0; i < obstruction.count; ++i) {
    if (only_marked && !is_dead(look(*obstruction.words[i + 1].word))) continue;
    has_reaped |= reap(segment_.control(), obstruction.participants[i]);
  }
  return has_reaped;
}

bool ProcessLock::is_ending(const Obstruction& obstruction) noexcept {
  const os::Sleep* const lives = obstruction.words + 1;
  return std::any_of(lives, lives + obstruction.count,
                     [](const os::Sleep& life) { return is_dead(look(*life.word)); });
}

// So that they look themselves at what this one alone has seen.
void ProcessLock::wake_others() noexcept {
  Block& b = block();
  bool has_waiters = false;
  {
    const BlockLock lock(b);
    has_waiters = note_change(b);
  }
  if (has_waiters) wake(b);
}

void ProcessLock::free_record(uint32_t record) noexcept {
  Block& b = block();
  bool has_waiters = false;
  {
    const BlockLock lock(b);
    end_wait(b, record, uint64_t{Kind::kFree});
    has_waiters = note_change(b);
  }
  if (has_waiters) wake(b);
  segment_.participant().give_record(record);
  if (bell_ != nullptr) ring(*bell_);
}

bool ProcessLock::is_idle() noexcept {
  const Control& control = segment_.control();
  Block& b = block();
  if (is_empty(b.present)) return true;
  bool is_idle = true;
  visit_bits(b.present, [&](uint32_t p) {
    if (!control.has_slot(p)) return;
    if (p != segment_.participant().index() && is_dead(look(life_word(control.life(p)))))
      (void)reap(control, p);
    const Slot& slot = control.slot(p);
    const uint32_t used = std::min(look(slot.records_used), kRecords);
    for (uint32_t i = 0; i < used; ++i) {
      const uint64_t word = look(slot.records[i].state);
      is_idle &= RecordState::kind(word) == Kind::kFree || RecordState::block(word) != index_;
    }
  });
  return is_idle;
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
  const uint32_t self = segment_.participant().index();
  return is_waiting_for_itself(segment_, self, attempt.record);
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
  // Who has died already will not end its turn while this one looks.
  if (seen == Look::kBlocked && reap_dead(obstruction, true)) seen = try_grant(attempt, &obstruction, &pid);
  for (int i = 0; seen == Look::kBlocked && i < kPolls; ++i) {
    relax_processor();
    const os::Sleep& turn = obstruction.words[0];
    if (look(*turn.word) != turn.value) seen = try_grant(attempt, &obstruction, &pid);
  }
  if (is_done(seen)) return seen == Look::kGranted;

  HookedSleep sleep;
  EndingPace pace;
  int64_t next_walk_ns = kWalkNs;
  while (true) {
    const bool is_obstacle_ending = is_ending(obstruction);
    if (!reap_dead(obstruction)) {
      refusal->obstacle = obstruction.obstacle;
      if (is_obstacle_ending) std::strncat(refusal->obstacle.name, ", which is ending", kEndingRoom);
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
      int64_t slice = std::min({kSliceNs, left, std::max<int64_t>(next_walk_ns - waited, 0)});
      if (is_obstacle_ending) {
        slice = pace.next_ns(slice);
      } else {
        pace.restart();
      }
      os::sleep_on(obstruction.words, obstruction.word_count(), slice);
    }
    // First: the kernel has told nobody else.
    if (!reap_dead(obstruction, true) && !is_obstacle_ending && is_ending(obstruction)) wake_others();
    seen = try_grant(attempt, &obstruction, &pid);
    if (is_done(seen)) return seen == Look::kGranted;
    if (sleep.is_interrupted()) {
      refuse(refusal, Refusal::Reason::kInterrupted);
      break;
    }
    sleep.report([&] { return concat("behind ", text_of(refusal->obstacle)); });
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

void ProcessLock::note_write() noexcept { (void)add(block().version, uint64_t{1}); }

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
    if (p == self || !control.has_slot(p) || !is_alive(control, p)) return;
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
