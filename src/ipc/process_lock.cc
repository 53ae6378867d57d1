// SPDX-License-Identifier: Apache-2.0
#include "ipc/process_lock.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/one_per_process.h"
#include "base/spin_budget.h"
#include "ipc/awaited.h"
#include "ipc/ending_pace.h"
#include "ipc/porter.h"
#include "ipc/walk.h"
#include "sync/wait.h"

namespace tenon::impl {
namespace {

using RecordKind = RecordState::Kind;

constexpr int64_t kWalkNs = 1'000'000;                                   // most waits are over before that
constexpr size_t kCommandRoom = sizeof Slot().command;                   // of the name of an holder;
constexpr size_t kEndingRoom = sizeof Holder().name - kCommandRoom - 1;  // and for what is added to it

// Ops take a record for each memory that they use, one after the other. So that none of them keeps some while
// it waits for others that wait for these, only as many begin as all their records are there for.
class Shares {
 public:
  static Shares& instance() { return one_per_process<Shares>(); }

  // Of all records of an op, once. False: it is to be tried again after a call of the porter.
  bool take(Request& request) noexcept {
    if (request.gate_share != 0) return true;
    const uint32_t wanted = std::min(count_memories(request), kAll);
    for (const bool is_announced : {false, true}) {
      // pairs with: Shares::give, "shares that are free"
      uint32_t free = free_.load(std::memory_order_seq_cst);
      while (free >= wanted) {
        // pairs with: Shares::give, "shares that are free"
        if (!free_.compare_exchange_weak(free, free - wanted, std::memory_order_seq_cst)) continue;
        request.gate_share = wanted;
        return true;
      }
      // pairs with: Shares::give, "an op that waits for shares"
      if (!is_announced) is_awaited_.store(true, std::memory_order_seq_cst);
    }
    return false;
  }
  void give(Request& request) noexcept {
    // pairs with: Shares::take, "shares that are free"
    free_.fetch_add(std::exchange(request.gate_share, 0), std::memory_order_seq_cst);
    // pairs with: Shares::take, "an op that waits for shares"
    if (is_awaited_.exchange(false, std::memory_order_seq_cst)) Porter::instance().call();
  }

 private:
  static constexpr uint32_t kAll = kRecords * 3 / 5;  // the rest is for leases and calls, and for deaths

  static uint32_t count_memories(const Request& request) noexcept {
    uint32_t n = 0;
    for (size_t i = 0; i < request.parts.size(); ++i) {
      const Queue* const queue = request.parts[i].queue;
      const auto before = request.parts.first(i);
      const auto is_same = [queue](const RequestPart& e) { return e.queue == queue; };
      n += queue->gate() != nullptr && std::ranges::none_of(before, is_same) ? 1 : 0;
    }
    return std::max(n, 1u);
  }

  std::atomic<uint32_t> free_{kAll};
  std::atomic<bool> is_awaited_{false};
};

// A number for a record and its last ticket.
uint64_t mix(uint64_t record, uint64_t ticket) noexcept {
  uint64_t x = (record + 1) * 0x9E3779B97F4A7C15 ^ (ticket + 1) * 0xC2B2AE3D27D4EB4F;
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9 | 1;
}

void refuse(Conflict* conflict, Conflict::Reason reason) noexcept { conflict->reason = reason; }

void copy_command(uint32_t pid, Holder* holder) noexcept {
  size_t length = 0;
  try {
    length = os::command_of(pid).copy(holder->name, kCommandRoom);
  } catch (const std::exception&) {
    // Its number says enough.
  }
  holder->name[length] = '\0';
}

void note_holder(uint32_t pid, Holder* holder) noexcept {
  size_t length = 0;
  try {
    const std::string text = concat(os::process_text(pid), " has the lock of its place");
    length = text.copy(holder->note, sizeof holder->note - 1);
  } catch (const std::exception&) {
    // It is named without that.
  }
  holder->note[length] = '\0';
}

}  // namespace

Record& ProcessLock::record(const Attempt& attempt) const noexcept {
  return segment_.participant().record(attempt.record);
}

Span ProcessLock::bytes_of(const Extent& extent) const noexcept {
  const Block& b = block();
  const auto base = reinterpret_cast<uintptr_t>(segment_.data()) + b.begin.load(std::memory_order_relaxed);
  const uint64_t nbytes = b.nbytes.load(std::memory_order_relaxed);
  const auto offset = [&](uintptr_t address) {
    return address <= base ? 0 : std::min<uint64_t>(address - base, nbytes);
  };
  return {offset(extent.begin), offset(extent.end)};
}

ProcessLock::ProcessLock(Segment& segment, uint32_t block) : segment_(segment), index_(block) {
  (void)Shares::instance();  // made here, where it may fail
}

ProcessLock::Wanted ProcessLock::wanted_of(const ProcessLock& lock, const Request& request,
                                           const RequestPart& part) noexcept {
  const Asked asked = asked_of(request, part);
  Wanted wanted;
  wanted.bytes = lock.bytes_of(asked.extent);
  wanted.access = asked.access;
  wanted.ignores_death = request.ignores_dead_owner || asked.overwrites;
  const bool has_owner =
      request.kind != HolderKind::kOp && !request.is_detached.load(std::memory_order_relaxed);
  if (has_owner) wanted.owner = request.owner;
  return wanted;
}

// Waits for a record, where this process has none left.
bool ProcessLock::take_record(Attempt* attempt, const Deadline& deadline, Conflict* conflict) noexcept {
  Participant& self = segment_.participant();
  refuse(conflict, Conflict::Reason::kTooMany);
  if (self.index() == Participant::kNone) return false;
  attempt->record = self.take_record();
  if (attempt->record != Participant::kNone || deadline.has_passed()) {
    return attempt->record != Participant::kNone;
  }
  Waiter waiter(deadline);
  self.begin_record_wait();
  WaitEnd end = WaitEnd::kOver;
  while (end == WaitEnd::kOver) {
    const os::Sleep given = self.records_given();
    attempt->record = self.take_record();
    if (attempt->record != Participant::kNone) break;
    end = waiter.sleep_on(&given, 1, Waiter::kSliceNs, [] {
      return std::string("for this process to hold fewer leases of shared memory");
    });
  }
  if (end == WaitEnd::kInterrupted) refuse(conflict, Conflict::Reason::kInterrupted);
  self.end_record_wait();
  return attempt->record != Participant::kNone;
}

// Requires that it has a record. It waits from now on.
void ProcessLock::write_request(const Wanted& wanted, Attempt* attempt) noexcept {
  const uint32_t self = segment_.participant().index();
  attempt->ignores_death = wanted.ignores_death;
  Block& b = block();
  Record& r = record(*attempt);
  // Whoever sees the bytes of this request in the place of those of an earlier one, sees that as ended.
  publish(r.begin, wanted.bytes.begin);
  publish(r.end, wanted.bytes.end);
  store(r.since_ns, coarse_now_ms() * 1'000'000);  // for messages
  store(r.thread, wanted.owner.thread);
  store(r.task, static_cast<uint32_t>(wanted.owner.task));
  set_bit(b.present, self);
  const uint32_t seen = observe(b.arrivals_seen);
  announce(r.state, RecordState::make(index_, RecordKind::kArriving, wanted.access));
  set_bit(b.waiting, self);
  publish(r.ticket, add(b.next_ticket, uint64_t{1}));
  announce(r.state, RecordState::make(index_, RecordKind::kWaiting, wanted.access));
  // Others wait for it that came first, perhaps, and do not know that yet.
  if (observe(b.arrivals_seen) != seen) note_change(b);
}

bool ProcessLock::begin(Request& request, const RequestPart& part, Attempt* attempt) noexcept {
  if (request.kind == HolderKind::kOp && !Shares::instance().take(request)) return false;
  attempt->record = segment_.participant().take_record();
  if (attempt->record == Participant::kNone) return false;
  write_request(wanted_of(*this, request, part), attempt);
  return true;
}

ProcessLock::Look ProcessLock::try_grant(const Attempt& attempt, Obstruction* obstruction,
                                         uint32_t* pid) noexcept {
  Participant& self = segment_.participant();
  const Control& control = segment_.control();
  Block& b = block();
  Record& own = record(attempt);
  const Access access = RecordState::access(own.state.load(std::memory_order_relaxed));
  const uint64_t ticket = own.ticket.load(std::memory_order_relaxed);
  const Span bytes = span_of(own);
  uint32_t died = 0, death_moves = 0;
  uint64_t arrivals = 0, told = 0;  // sums over those that arrive
  while (true) {
    told = std::exchange(arrivals, 0);
    // Before the records: what ends after it was looked at, moves the turn.
    obstruction->words[0] = {&b.turn, observe(b.turn)};
    obstruction->count = 0;
    death_moves = observe(b.death_moves);
    died = 0;
    bool has_holder = false, is_holder_granted = false;
    visit_bits(b.present, [&](uint32_t p) {
      if (!control.has_slot(p)) return;
      const Slot& slot = control.slot(p);
      const uint32_t used = std::min(look(slot.records_used), kRecords);
      bool is_in_way = false;
      for (uint32_t i = 0; i < used; ++i) {
        const Record& other = slot.records[i];
        const uint64_t word = observe(other.state);
        const RecordKind kind = RecordState::kind(word);
        if (kind == RecordKind::kFree || RecordState::block(word) != index_) continue;
        if (kind == RecordKind::kDied) {
          if (span_of(other).overlaps(bytes)) died = other.task.load(std::memory_order_relaxed);
          continue;
        }
        if (p == self.index() || !in_conflict(access, RecordState::access(word))) continue;
        const bool is_granted = kind == RecordKind::kGranted;
        if (kind == RecordKind::kWaiting && look(other.ticket) > ticket) continue;
        if (!span_of(other).overlaps(bytes)) continue;
        is_in_way = true;
        if (kind == RecordKind::kArriving) {
          // A new process in the slot may still have the ticket of the one before.
          const uint64_t process = uint64_t{look(slot.generation)} << 32 | uint64_t{p} << 8;
          arrivals += mix(process | i, look(other.ticket));
        }
        if (has_holder && (is_holder_granted || !is_granted)) continue;
        has_holder = true;
        is_holder_granted = is_granted;
        describe(slot, other, &obstruction->holder);
        obstruction->holder_participant = p;
      }
      if (!is_in_way || obstruction->count == std::size(obstruction->participants)) return;
      obstruction->participants[obstruction->count] = p;
      std::atomic<uint32_t>& life = life_word(control.life(p));
      obstruction->words[++obstruction->count] = {&life, note_sleeper(life)};
    });
    // They move the turn when they have their tickets, or have them by now.
    const bool has_news = arrivals != 0 && arrivals != told;
    if (has_news) (void)add(b.arrivals_seen, 1u);
    if (!has_news && (obstruction->count != 0 || observe(b.death_moves) == death_moves)) break;
  }
  if (obstruction->count != 0) return Look::kBlocked;
  if (died != 0 && !attempt.ignores_death) {
    *pid = died;
    withdraw(attempt);
    return Look::kDied;
  }
  self.references(attempt.record).store(1, std::memory_order_relaxed);
  end_wait(attempt.record, RecordState::make(index_, RecordKind::kGranted, access));
  note_grant();
  return Look::kGranted;
}

// The record waits no more.
void ProcessLock::end_wait(uint32_t ended, uint64_t state) noexcept {
  Participant& self = segment_.participant();
  Block& b = block();
  const auto has_waiting = [&] {
    const uint32_t used = std::min(look(self.slot().records_used), kRecords);
    for (uint32_t i = 0; i < used; ++i) {
      const uint64_t word = observe(self.record(i).state);
      const bool is_waiting =
          RecordState::kind(word) == RecordKind::kArriving || RecordState::kind(word) == RecordKind::kWaiting;
      if (is_waiting && RecordState::block(word) == index_) return true;
    }
    return false;
  };
  publish(self.record(ended).state, state);
  if (has_waiting()) return;
  clear_bit(b.waiting, self.index());
  // Another thread may have begun to wait, and may sleep unannounced.
  if (!has_waiting()) return;
  set_bit(b.waiting, self.index());
  os::wake_all(b.turn);
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
void ProcessLock::wake_others() noexcept { note_change(block()); }

void ProcessLock::free_record(uint32_t record) noexcept {
  const uint64_t state = segment_.participant().record(record).state.load(std::memory_order_relaxed);
  if (RecordState::kind(state) == RecordKind::kGranted) {
    publish(segment_.participant().record(record).state, uint64_t{RecordKind::kFree});
  } else {
    end_wait(record, uint64_t{RecordKind::kFree});
  }
  note_change(block());
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
      is_idle &= !RecordState::is_lease(word) || RecordState::block(word) != index_;
    }
  });
  return is_idle;
}

void ProcessLock::withdraw(const Attempt& attempt) noexcept {
  if (attempt.record != Participant::kNone) free_record(attempt.record);
}

// Whether a process has a place in the segment, other than this one.
bool ProcessLock::has_other_place(uint32_t pid, uint32_t participant) const noexcept {
  const Control& control = segment_.control();
  for (uint32_t p = 0; p < kParticipants; ++p) {
    if (p == participant || !control.has_slot(p)) continue;
    const Slot& slot = control.slot(p);
    if (look(slot.state) == SlotState::kLive && slot.pid.load(std::memory_order_relaxed) == pid) return true;
  }
  return false;
}

// Of a process that is in the way: that it is stopped or ending, or that another one has begun to clean up
// after it, which is the one in the way then. Numbers mean something in their own PID namespace alone.
void ProcessLock::describe_state(uint32_t participant, Holder* holder) const noexcept {
  const Control& control = segment_.control();
  if (participant >= kParticipants || !control.has_slot(participant)) return;
  const Slot& slot = control.slot(participant);
  const bool is_marked = is_dead(look(life_word(control.life(participant))));
  if (slot.pid_namespace.load(std::memory_order_relaxed) == os::pid_namespace_if_known()) {
    const uint32_t locker = is_marked ? os::holder_of_byte(segment_.file(), participant) : 0;
    const bool is_other =
        locker != 0 && locker != holder->thread && locker != static_cast<uint32_t>(getpid());
    if (is_other && has_other_place(locker, participant)) {
      holder->dead_pid = std::exchange(holder->thread, locker);
      copy_command(locker, holder);
    } else if (is_other) {  // a child that has its files, or a program that cleans up without a place
      note_holder(locker, holder);
    }
    holder->is_stopped = os::is_stopped(holder->thread);
  }
  if (is_marked && holder->dead_pid == 0) std::strncat(holder->name, ", which is ending", kEndingRoom);
}

void ProcessLock::describe_death(uint32_t pid, Conflict* conflict) noexcept {
  conflict->reason = Conflict::Reason::kOwnerDied;
  conflict->holder = Holder();
  conflict->holder.kind = HolderKind::kProcess;
  conflict->holder.access = Access::kWrite;
  conflict->holder.thread = pid;
}

bool ProcessLock::is_circle(const Attempt& attempt) noexcept {
  const uint32_t self = segment_.participant().index();
  return is_waiting_for_itself(segment_, self, attempt.record);
}

bool ProcessLock::enter(const Request& request, RequestPart& part, const Deadline& deadline,
                        Conflict* conflict) noexcept {
  Attempt attempt;
  if (!enter(wanted_of(*this, request, part), &attempt, deadline, conflict)) return false;
  part.pass = attempt.record + 1;
  return true;
}

bool ProcessLock::enter(const Wanted& wanted, Attempt* wanted_attempt, const Deadline& deadline,
                        Conflict* conflict) noexcept {
  if (!take_record(wanted_attempt, deadline, conflict)) return false;
  write_request(wanted, wanted_attempt);
  const Attempt& attempt = *wanted_attempt;
  Obstruction obstruction;
  uint32_t pid = 0;
  const auto is_done = [&](Look seen) {
    if (seen == Look::kDied) describe_death(pid, conflict);
    return seen != Look::kBlocked;
  };
  Look seen = try_grant(attempt, &obstruction, &pid);
  // Who has died already will not end its turn while this one looks.
  if (seen == Look::kBlocked && reap_dead(obstruction, true)) seen = try_grant(attempt, &obstruction, &pid);
  const auto is_over = [&] {
    const os::Sleep& turn = obstruction.words[0];
    if (look(*turn.word) != turn.value) seen = try_grant(attempt, &obstruction, &pid);
    return seen != Look::kBlocked;
  };
  if (seen == Look::kBlocked) (void)spin(kBriefLooks, is_over);
  if (is_done(seen)) return seen == Look::kGranted;

  Waiter waiter(deadline);
  EndingPace pace;
  int64_t next_walk_ns = kWalkNs;
  WaitEnd end = WaitEnd::kOver;
  while (true) {
    const bool is_holder_ending = is_ending(obstruction);
    if (!reap_dead(obstruction)) {
      conflict->holder = obstruction.holder;
      const int64_t waited = waiter.waited_ns();
      if (waited >= next_walk_ns || deadline.has_passed()) {
        next_walk_ns = waited + Waiter::kSliceNs;
        if (is_circle(attempt)) {
          end = WaitEnd::kDeadlock;
          break;
        }
      }
      int64_t slice = next_walk_ns - waited;
      if (is_holder_ending) {
        slice = pace.next_ns(slice);
      } else {
        pace.restart();
      }
      end = waiter.sleep_on(obstruction.words, obstruction.word_count(), slice, [&] {
        Holder holder = obstruction.holder;
        describe_state(obstruction.holder_participant, &holder);
        return concat("behind ", text_of(holder));
      });
      if (end != WaitEnd::kOver) break;
    }
    // First: the kernel has told nobody else.
    if (!reap_dead(obstruction, true) && !is_holder_ending && is_ending(obstruction)) wake_others();
    seen = try_grant(attempt, &obstruction, &pid);
    if (is_done(seen)) return seen == Look::kGranted;
  }
  if (end == WaitEnd::kTimeout) describe_state(obstruction.holder_participant, &conflict->holder);
  (void)impl::is_over(end, conflict);
  withdraw(attempt);
  return false;
}

Appended ProcessLock::submit(Request& request, RequestPart& part, Conflict* conflict) noexcept {
  Attempt attempt;
  Participant& self = segment_.participant();
  const bool has_place = self.index() != Participant::kNone;
  if (!has_place || self.has_record_waits() || !begin(request, part, &attempt)) {
    // Behind those that wait for a record already.
    if (has_place && Porter::instance().add(*this, request, part, {})) return Appended::kWaiting;
    refuse(conflict, Conflict::Reason::kTooMany);
    return Appended::kRefused;
  }
  Obstruction obstruction;
  uint32_t pid = 0;
  while (true) {
    switch (try_grant(attempt, &obstruction, &pid)) {
      case Look::kGranted: part.pass = attempt.record + 1; return Appended::kGranted;
      case Look::kDied: describe_death(pid, conflict); return Appended::kRefused;
      case Look::kBlocked: break;
    }
    if (!reap_dead(obstruction)) break;
  }
  if (request.kind != HolderKind::kOp && is_circle(attempt)) {
    conflict->holder = obstruction.holder;
    refuse(conflict, Conflict::Reason::kDeadlock);
  } else if (Porter::instance().add(*this, request, part, attempt)) {
    return Appended::kWaiting;
  } else {
    refuse(conflict, Conflict::Reason::kTooMany);
  }
  withdraw(attempt);
  return Appended::kRefused;
}

bool ProcessLock::cancel(RequestPart& part) noexcept { return Porter::instance().cancel(part); }

void ProcessLock::share(Pass pass) noexcept {
  segment_.participant().references(pass - 1).fetch_add(1, std::memory_order_relaxed);
}

void ProcessLock::leave(Pass pass, bool has_written) noexcept {
  if (has_written) note_write();
  if (add(segment_.participant().references(pass - 1), ~0u) != 1) return;
  free_record(pass - 1);
}

void ProcessLock::note_write() noexcept { (void)add(block().version, uint64_t{1}); }

void ProcessLock::note_kept_view() noexcept { impl::note_kept_view(); }

void ProcessLock::dismiss(Request& request) noexcept { Shares::instance().give(request); }

void ProcessLock::heal(const Extent& extent) noexcept {
  if (segment_.participant().index() == Participant::kNone) return;
  impl::heal(segment_.control(), segment_.participant(), index_, bytes_of(extent));
}

bool ProcessLock::clear_deaths(const Extent& extent, const Deadline& deadline, Conflict* conflict) noexcept {
  const Wanted wanted{bytes_of(extent), Access::kWrite, true, current_actor()};
  bool has_any = false;
  visit_records(segment_.control(), index_, [&](const Record& record, uint64_t word) {
    const bool may_die =
        RecordState::kind(word) == RecordKind::kDied || RecordState::access(word) == Access::kWrite;
    has_any |= may_die && span_of(record).overlaps(wanted.bytes);
  });
  if (!has_any) return true;
  Attempt attempt;
  if (!enter(wanted, &attempt, deadline, conflict)) return false;
  impl::heal(segment_.control(), segment_.participant(), index_, wanted.bytes);
  free_record(attempt.record);
  return true;
}

void ProcessLock::disown(Pass pass) noexcept { store(segment_.participant().record(pass - 1).thread, 0u); }

template <class Visit>
void ProcessLock::visit_leases_of_others(const Span& bytes, Visit visit) const noexcept {
  const Control& control = segment_.control();
  const uint32_t self = segment_.participant().index();
  visit_bits(block().present, [&](uint32_t p) {
    if (p == self || !control.has_slot(p) || !is_alive(control, p)) return;
    const Slot& slot = control.slot(p);
    const uint32_t used = std::min(look(slot.records_used), kRecords);
    for (uint32_t i = 0; i < used; ++i) {
      const Record& other = slot.records[i];
      const uint64_t word = look(other.state);
      if (!RecordState::is_lease(word) || RecordState::block(word) != index_) continue;
      if (span_of(other).overlaps(bytes)) visit(p, slot, other, word);
    }
  });
}

void ProcessLock::visit_others(const Extent& extent, void (*visit)(const Holder&, void* context),
                               void* context) noexcept {
  visit_leases_of_others(bytes_of(extent), [&](uint32_t, const Slot& slot, const Record& other, uint64_t) {
    Holder holder;
    describe(slot, other, &holder);
    visit(holder, context);
  });
}

bool ProcessLock::describe_holder(const Asked& asked, Holder* holder) noexcept {
  uint32_t found = Participant::kNone;
  bool is_granted = false;
  visit_leases_of_others(
      bytes_of(asked.extent), [&](uint32_t p, const Slot& slot, const Record& other, uint64_t word) {
        if (!in_conflict(asked.access, RecordState::access(word))) return;
        if (found != Participant::kNone && (is_granted || RecordState::kind(word) != RecordKind::kGranted))
          return;
        found = p;
        is_granted = RecordState::kind(word) == RecordKind::kGranted;
        describe(slot, other, holder);
      });
  if (found == Participant::kNone) return false;
  describe_state(found, holder);
  return true;
}

bool ProcessLock::precedes(const Gate& other) const noexcept {
  const auto& that = static_cast<const ProcessLock&>(other);
  const SegmentId& a = segment_.header().id;
  const SegmentId& b = that.segment_.header().id;
  if (a != b) return a < b;
  return index_ < that.index_;
}

}  // namespace tenon::impl
