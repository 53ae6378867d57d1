// SPDX-License-Identifier: Apache-2.0
#include "ipc/process_lock.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/one_per_process.h"
#include "base/spin_budget.h"
#include "ipc/awaited.h"
#include "ipc/ending_pace.h"
#include "ipc/proxy_waiter.h"
#include "ipc/walk.h"
#include "sync/wait.h"

namespace tenon::impl {
namespace {

using GrantKind = GrantState::Kind;

constexpr int64_t kWalkNs = 1'000'000;                   // most waits end before this
constexpr size_t kCommandRoom = sizeof Place().command;  // for the name of a holder

// The number of grants that ops may have at a time. An op takes one grant after the other, one for each
// memory that it uses. It reserves all of them before it begins. Otherwise two ops could wait for grants of
// each other.
class OpQuota {
 public:
  static OpQuota& instance() { return one_per_process<OpQuota>(); }

  // Reserves all grants of an op. False: it must be tried again when the proxy waiter is called.
  bool take(Request& request) noexcept {
    if (request.gate_quota != 0) return true;
    const uint32_t wanted = std::min(count_memories(request), kAll);
    for (const bool is_announced : {false, true}) {
      // pairs with: OpQuota::give, "a quota that is free"
      uint32_t free = free_.load(std::memory_order_seq_cst);
      while (free >= wanted) {
        // pairs with: OpQuota::give, "a quota that is free"
        if (!free_.compare_exchange_weak(free, free - wanted, std::memory_order_seq_cst)) continue;
        request.gate_quota = wanted;
        return true;
      }
      // pairs with: OpQuota::give, "an op that waits for a quota"
      if (!is_announced) is_awaited_.store(true, std::memory_order_seq_cst);
    }
    return false;
  }
  void give(Request& request) noexcept {
    // pairs with: OpQuota::take, "a quota that is free"
    free_.fetch_add(std::exchange(request.gate_quota, 0), std::memory_order_seq_cst);
    // pairs with: OpQuota::take, "an op that waits for a quota"
    if (is_awaited_.exchange(false, std::memory_order_seq_cst)) ProxyWaiter::instance().call();
  }

 private:
  static constexpr uint32_t kAll = kGrants * 3 / 5;  // the rest is for leases, calls and deaths

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

// A hash of a grant and its last ticket.
uint64_t mix(uint64_t grant, uint64_t ticket) noexcept {
  uint64_t x = (grant + 1) * 0x9E3779B97F4A7C15 ^ (ticket + 1) * 0xC2B2AE3D27D4EB4F;
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9 | 1;
}

template <class Text>
void write_text(char* to, size_t room, Text text) noexcept {
  size_t length = 0;
  try {
    length = text().copy(to, room);
  } catch (const std::exception&) {
    // Without the text: the number of the process is enough.
  }
  to[length] = '\0';
}

void describe_death(uint32_t pid, Conflict* conflict,
                    Conflict::Reason reason = Conflict::Reason::kOwnerDied) noexcept {
  conflict->reason = reason;
  conflict->holder = Holder();
  conflict->holder.kind = HolderKind::kProcess;
  conflict->holder.access = Access::kWrite;
  conflict->holder.pid = pid;
}

}  // namespace

ByteRange ProcessLock::bytes_of(const Extent& extent) const noexcept {
  const Block& b = block();
  const auto base = reinterpret_cast<uintptr_t>(segment_.data_of(index_));
  const uint64_t nbytes = b.nbytes.load(std::memory_order_relaxed);
  const auto offset = [&](uintptr_t address) {
    return address <= base ? 0 : std::min<uint64_t>(address - base, nbytes);
  };
  return {offset(extent.begin), offset(extent.end)};
}

ProcessLock::ProcessLock(Segment& segment, uint32_t block) : segment_(segment), index_(block) {
  (void)OpQuota::instance();  // creates it here, where this may fail
}

ProcessLock::GrantRequest ProcessLock::grant_request_of(const Request& request,
                                                        const RequestPart& part) const noexcept {
  const Asked asked = asked_of(request, part);
  GrantRequest wanted;
  wanted.bytes = bytes_of(asked.extent);
  wanted.access = asked.access;
  wanted.ignores_death = request.ignores_dead_owner || asked.overwrites;
  const bool has_owner =
      request.kind != HolderKind::kOp && !request.is_detached.load(std::memory_order_relaxed);
  if (has_owner) wanted.owner = request.owner;
  return wanted;
}

// Why this process can get no grant.
Conflict::Reason ProcessLock::no_grant_reason() const noexcept {
  if (segment_.participant().index() != Participant::kNone) return Conflict::Reason::kTooMany;
  return segment_.file().is_lost() ? Conflict::Reason::kNoFile : Conflict::Reason::kNoPlace;
}

// The process has all the grants that it can have. Names the process behind which some of them wait; without
// a number: this process holds them all.
void ProcessLock::describe_full(Conflict* conflict) const noexcept {
  conflict->holder = Holder();
  for (const Grant& own : used_grants(segment_.participant().place())) {
    const uint64_t word = look(own.state);
    if (GrantState::kind(word) != GrantKind::kWaiting) continue;
    const ProcessLock& lock = segment_.lock(GrantState::block(word));
    if (lock.describe_holder(range_of(own), GrantState::access(word), &conflict->holder)) return;
  }
}

// Waits until the request has a grant, which waits or was given. kNoGrant: the conflict says why.
GrantId ProcessLock::begin(const GrantRequest& wanted, const Deadline& deadline,
                           Conflict* conflict) noexcept {
  Participant& self = segment_.participant();
  conflict->reason = no_grant_reason();
  if (self.index() == Participant::kNone) return kNoGrant;
  const bool is_brief = deadline.leaves_no_time();
  GrantId grant = begin(wanted, is_brief);
  if (grant != kNoGrant) return grant;
  WaitEnd end = deadline.has_passed() ? WaitEnd::kTimeout : WaitEnd::kOver;
  if (end == WaitEnd::kOver) {
    Waiter waiter(deadline);
    self.begin_grant_wait();
    while (end == WaitEnd::kOver) {
      const os::Sleep given = self.grants_given();
      grant = begin(wanted, is_brief);
      if (grant != kNoGrant) break;
      end = waiter.sleep_on(&given, 1, Waiter::kSliceNs, [] {
        return concat("for this process to hold fewer leases of shared memory than ", kGrants,
                      " of a segment");
      });
    }
    self.end_grant_wait();
  }
  if (end == WaitEnd::kInterrupted) conflict->reason = Conflict::Reason::kInterrupted;
  if (end == WaitEnd::kTimeout) describe_full(conflict);
  return grant;
}

GrantId ProcessLock::begin(const GrantRequest& wanted, bool is_brief) noexcept {
  GrantId grant = join(wanted);
  if (grant != kNoGrant) return grant;
  grant = segment_.participant().take_grant();
  if (grant != kNoGrant) write_request(wanted, grant, is_brief);
  return grant;
}

// The grant of an earlier reader, which the request now shares. kNoGrant: there is none.
GrantId ProcessLock::join(const GrantRequest& wanted) noexcept {
  Participant& self = segment_.participant();
  if (wanted.access != Access::kRead || !self.is_short_of_grants()) return kNoGrant;
  bool has_writer = false;
  visit_leases_of_others(wanted.bytes, [&](uint32_t, const Place&, const Grant&, uint64_t word) {
    has_writer |= GrantState::kind(word) != GrantKind::kGranted && GrantState::access(word) == Access::kWrite;
  });
  const auto is_of_reader = [&](uint64_t word) {
    return GrantState::block(word) == index_ && GrantState::access(word) == Access::kRead &&
           (GrantState::kind(word) == GrantKind::kWaiting || GrantState::kind(word) == GrantKind::kGranted);
  };
  const auto used = used_grants(self.place());
  for (uint32_t i = 0; i < used.size(); ++i) {
    Grant& other = used[i];
    const uint64_t word = look(other.state);
    if (!is_of_reader(word) || GrantState::is_brief(word)) continue;
    if (has_writer && GrantState::kind(word) == GrantKind::kGranted) continue;
    const uint64_t ticket = look(other.ticket);
    if (!range_of(other).contains(wanted.bytes) || !self.refer_to(i + 1)) continue;
    if (is_of_reader(look(other.state)) && look(other.ticket) == ticket) {
      disown(i + 1);
      return i + 1;
    }
    free_grant(i + 1);  // meanwhile it has become that of another request
  }
  return kNoGrant;
}

// Afterwards the grant waits.
void ProcessLock::write_request(const GrantRequest& wanted, GrantId grant, bool is_brief) noexcept {
  const uint32_t self = segment_.participant().index();
  Block& b = block();
  Grant& r = segment_.participant().grant(grant);
  // pairs with: Participant::refer_to, "a grant that is counted"
  segment_.participant().references(grant).store(1, std::memory_order_release);
  // A thread that reads the bytes of this request instead of those of an earlier one in the same grant also
  // sees that the earlier one has ended.
  publish(r.begin, wanted.bytes.begin);
  publish(r.end, wanted.bytes.end);
  store(r.since_ns, coarse_now_ms() * 1'000'000);  // for messages
  store(r.thread, wanted.owner.thread);
  store(r.task_or_dead_pid, static_cast<uint32_t>(wanted.owner.task));
  if (!has_bit(b.present, self)) set_bit(b.present, self);  // it stays as long as this process lives
  const uint32_t seen = observe(b.arrivals_seen);
  const uint64_t brief = is_brief ? GrantState::kBrief : 0;
  announce(r.state, GrantState::make(index_, GrantKind::kArriving, wanted.access) | brief);
  set_bit(b.waiting, self);
  publish(r.ticket, add(b.next_ticket, uint64_t{1}));
  announce(r.state, GrantState::make(index_, GrantKind::kWaiting, wanted.access) | brief);
  // Earlier requests may wait for this one, because they saw it without a ticket.
  if (observe(b.arrivals_seen) != seen) note_change(b);
}

GrantId ProcessLock::begin(Request& request, const RequestPart& part) noexcept {
  if (request.kind == HolderKind::kOp && !OpQuota::instance().take(request)) return kNoGrant;
  return begin(grant_request_of(request, part), false);
}

ProcessLock::GrantResult ProcessLock::try_grant(GrantId grant, bool ignores_death, Blockers* blockers,
                                                Conflict* conflict) noexcept {
  Participant& self = segment_.participant();
  const Control& control = segment_.control();
  Block& b = block();
  Grant& own = self.grant(grant);
  const Access access = GrantState::access(own.state.load(std::memory_order_relaxed));
  const uint64_t ticket = own.ticket.load(std::memory_order_relaxed);
  const ByteRange bytes = range_of(own);
  uint32_t died = 0, death_moves = 0;
  uint64_t arrivals = 0, told = 0;  // sums over the grants that are kArriving
  while (true) {
    told = std::exchange(arrivals, 0);
    // Before the grants: a grant that ends after it was read increments the changes.
    blockers->words[0] = {&b.changes, observe(b.changes)};
    blockers->count = 0;
    death_moves = observe(b.death_moves);
    died = 0;
    bool has_holder = false, is_holder_granted = false;
    visit_bits(b.present, [&](uint32_t p) {
      if (!control.has_place(p)) return;
      const Place& place = control.place(p);
      bool is_in_way = false, is_named = false;
      for (const Grant& other : used_grants(place)) {
        const uint64_t word = observe(other.state);
        const GrantKind kind = GrantState::kind(word);
        if (kind == GrantKind::kFree || GrantState::block(word) != index_) continue;
        if (kind == GrantKind::kDied) {
          if (range_of(other).overlaps(bytes)) died = other.task_or_dead_pid.load(std::memory_order_relaxed);
          continue;
        }
        if (p == self.index() || !in_conflict(access, GrantState::access(word))) continue;
        const bool is_granted = kind == GrantKind::kGranted;
        if (kind == GrantKind::kWaiting && look(other.ticket) > ticket) continue;
        if (!range_of(other).overlaps(bytes)) continue;
        is_in_way = true;
        if (kind == GrantKind::kArriving) {
          // The generation, because the ticket may be that of an earlier process in the place.
          const uint64_t process = uint64_t{look(place.generation)} << 32 | uint64_t{p} << 8;
          const auto nth = static_cast<uint64_t>(&other - place.grants);
          arrivals += mix(process | nth, look(other.ticket));
        }
        if (has_holder && (is_holder_granted || !is_granted)) continue;
        has_holder = is_named = true;
        is_holder_granted = is_granted;
        describe(place, other, &conflict->holder);
      }
      // Of more blockers than the system can wait for, some are left out: this is called again when the
      // others have gone.
      const bool is_full = blockers->count == std::size(blockers->participants);
      if (!is_in_way || (is_full && !is_named)) return;
      const size_t i = is_full ? 0 : blockers->count++;
      std::atomic<uint32_t>& life = life_word(control.life(p));
      blockers->participants[i] = p;
      blockers->words[i + 1] = {&life, note_sleeper(life)};
      if (is_named) {
        std::swap(blockers->participants[0], blockers->participants[i]);
        std::swap(blockers->words[1], blockers->words[i + 1]);
      }
    });
    // The arriving requests increment the changes when they have their tickets, or have their tickets
    // already.
    const bool has_news = arrivals != 0 && arrivals != told;
    if (has_news) (void)add(b.arrivals_seen, 1u);
    if (!has_news && (blockers->count != 0 || observe(b.death_moves) == death_moves)) break;
  }
  if (blockers->count != 0) return GrantResult::kBlocked;
  if (segment_.has_lost_memory()) {
    describe_death(segment_.header().creator_pid, conflict, Conflict::Reason::kMemoryDied);
    free_grant(grant);
    return GrantResult::kDied;
  }
  if (died != 0 && !ignores_death) {
    describe_death(died, conflict);
    free_grant(grant);
    return GrantResult::kDied;
  }
  end_wait(grant, GrantState::make(index_, GrantKind::kGranted, access));
  note_grant();
  return GrantResult::kGranted;
}

// The grant does not wait any longer.
void ProcessLock::end_wait(GrantId ended, uint64_t state) noexcept {
  Participant& self = segment_.participant();
  Block& b = block();
  const auto has_waiting = [&] {
    for (const Grant& own : used_grants(self.place())) {
      const uint64_t word = observe(own.state);
      const bool is_waiting =
          GrantState::kind(word) == GrantKind::kArriving || GrantState::kind(word) == GrantKind::kWaiting;
      if (is_waiting && GrantState::block(word) == index_) return true;
    }
    return false;
  };
  publish(self.grant(ended).state, state);
  if (has_waiting()) return;
  clear_bit(b.waiting, self.index());
  // Another thread may have begun to wait meanwhile, and may sleep although the bit was cleared.
  if (!has_waiting()) return;
  set_bit(b.waiting, self.index());
  os::wake_all(b.changes);
}

bool ProcessLock::reap_dead(const Blockers& blockers, bool only_marked) noexcept {
  bool has_reaped = false;
  for (size_t i = 0; i < blockers.count; ++i) {
    if (only_marked && !is_dead(look(*blockers.words[i + 1].word))) continue;
    has_reaped |= reap(segment_.control(), blockers.participants[i]);
  }
  return has_reaped;
}

bool ProcessLock::is_ending(const Blockers& blockers) noexcept {
  const os::Sleep* const lives = blockers.words + 1;
  return std::any_of(lives, lives + blockers.count,
                     [](const os::Sleep& life) { return is_dead(look(*life.word)); });
}

void ProcessLock::free_grant(GrantId grant) noexcept {
  Participant& self = segment_.participant();
  if (add(self.references(grant), ~0u) != 1) return;
  std::atomic<uint64_t>& state = self.grant(grant).state;
  if (GrantState::kind(state.load(std::memory_order_relaxed)) == GrantKind::kGranted) {
    publish(state, uint64_t{GrantKind::kFree});
  } else {
    end_wait(grant, uint64_t{GrantKind::kFree});
  }
  note_change(block());
  self.give_grant(grant);
}

// Whether a process has another place in the segment than this one.
bool ProcessLock::has_other_place(uint32_t pid, uint32_t participant) const noexcept {
  const Control& control = segment_.control();
  for (uint32_t p = 0; p < control.used_places(); ++p) {
    if (p == participant || !control.has_place(p)) continue;
    const Place& place = control.place(p);
    if (look(place.state) == PlaceState::kLive && place.pid.load(std::memory_order_relaxed) == pid)
      return true;
  }
  return false;
}

// Adds to the description of a blocker that it is stopped or ending. If another process cleans up after the
// blocker, describes that one instead. Process numbers are valid only in their own PID namespace.
void ProcessLock::describe_state(uint32_t participant, Holder* holder) const noexcept {
  const Control& control = segment_.control();
  if (!control.has_place(participant)) return;
  const Place& place = control.place(participant);
  const bool is_marked = is_dead(look(life_word(control.life(participant))));
  if (place.pid_namespace.load(std::memory_order_relaxed) == os::pid_namespace_if_known()) {
    const uint32_t locker = is_marked ? os::holder_of_byte(segment_.file(), participant) : 0;
    const bool is_other = locker != 0 && locker != holder->pid && locker != static_cast<uint32_t>(getpid());
    if (is_other && has_other_place(locker, participant)) {
      holder->dead_pid = std::exchange(holder->pid, locker);
      write_text(holder->name, kCommandRoom, [&] { return os::command_of(locker); });
    } else if (is_other) {  // a forked child that shares its files, or `tenon gc`, which has no place
      write_text(holder->note, sizeof holder->note - 1,
                 [&] { return concat(os::process_text(locker), " has the lock of its place"); });
    }
    holder->is_stopped = os::is_stopped(holder->pid);
  }
  if (is_marked && segment_.file().is_lost()) {
    write_text(holder->note, sizeof holder->note - 1,
               [] { return concat("this process cannot see whether it has ended: ", os::kLostText); });
  }
  holder->is_ending = is_marked && holder->dead_pid == 0;
}

bool ProcessLock::enter(const Request& request, RequestPart& part, const Deadline& deadline,
                        Conflict* conflict) noexcept {
  part.grant = enter(grant_request_of(request, part), deadline, conflict);
  return part.grant != kNoGrant;
}

// kNoGrant: the conflict says why.
GrantId ProcessLock::enter(const GrantRequest& wanted, const Deadline& deadline,
                           Conflict* conflict) noexcept {
  const GrantId grant = begin(wanted, deadline, conflict);
  if (grant == kNoGrant) return kNoGrant;
  Blockers blockers;
  const auto look_again = [&] { return try_grant(grant, wanted.ignores_death, &blockers, conflict); };
  GrantResult seen = look_again();
  // A dead process will not end its wait or lease.
  if (seen == GrantResult::kBlocked && reap_dead(blockers, true)) seen = look_again();
  const auto is_over = [&] {
    const os::Sleep& changes = blockers.words[0];
    if (look(*changes.word) != changes.value) seen = look_again();
    return seen != GrantResult::kBlocked;
  };
  if (seen == GrantResult::kBlocked) (void)spin(kBriefLooks, is_over);
  if (seen != GrantResult::kBlocked) return seen == GrantResult::kGranted ? grant : kNoGrant;

  Waiter waiter(deadline);
  EndingPace pace;
  int64_t next_walk_ns = kWalkNs;
  WaitEnd end = WaitEnd::kOver;
  while (true) {
    const bool is_holder_ending = is_ending(blockers);
    if (!reap_dead(blockers)) {
      const int64_t waited = waiter.waited_ns();
      if (waited >= next_walk_ns || deadline.has_passed()) {
        next_walk_ns = waited + Waiter::kSliceNs;
        if (is_waiting_for_itself(segment_, grant)) {
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
      end = waiter.sleep_on(blockers.words, blockers.word_count(), slice, [&] {
        Holder holder = conflict->holder;
        describe_state(blockers.participants[0], &holder);
        return concat("behind ", text_of(holder));
      });
      if (end != WaitEnd::kOver) break;
    }
    // The kernel has woken only this thread.
    if (!reap_dead(blockers, true) && !is_holder_ending && is_ending(blockers)) note_change(block());
    seen = look_again();
    if (seen != GrantResult::kBlocked) return seen == GrantResult::kGranted ? grant : kNoGrant;
  }
  if (end == WaitEnd::kTimeout) describe_state(blockers.participants[0], &conflict->holder);
  (void)impl::is_over(end, conflict);
  free_grant(grant);
  return kNoGrant;
}

Appended ProcessLock::submit(Request& request, RequestPart& part, Conflict* conflict) noexcept {
  Participant& self = segment_.participant();
  const bool has_place = self.index() != Participant::kNone;
  const GrantId grant = has_place && !self.has_grant_waits() ? begin(request, part) : kNoGrant;
  if (grant == kNoGrant) {
    // Behind the requests that wait for a grant already.
    if (has_place && ProxyWaiter::instance().add(*this, request, part, kNoGrant)) return Appended::kWaiting;
    conflict->reason = no_grant_reason();
    return Appended::kRefused;
  }
  Blockers blockers;
  while (true) {
    switch (try_grant(request, part, grant, &blockers, conflict)) {
      case GrantResult::kGranted: part.grant = grant; return Appended::kGranted;
      case GrantResult::kDied: return Appended::kRefused;
      case GrantResult::kBlocked: break;
    }
    if (!reap_dead(blockers)) break;
  }
  if (request.kind != HolderKind::kOp && is_waiting_for_itself(segment_, grant)) {
    conflict->reason = Conflict::Reason::kDeadlock;
  } else if (ProxyWaiter::instance().add(*this, request, part, grant)) {
    return Appended::kWaiting;
  } else {
    conflict->reason = Conflict::Reason::kTooMany;
  }
  free_grant(grant);
  return Appended::kRefused;
}

bool ProcessLock::cancel(RequestPart& part) noexcept { return ProxyWaiter::instance().cancel(part); }

void ProcessLock::share(GrantId grant) noexcept {
  segment_.participant().references(grant).fetch_add(1, std::memory_order_relaxed);
}

void ProcessLock::leave(GrantId grant, bool has_written) noexcept {
  if (has_written) note_write();
  free_grant(grant);
}

void ProcessLock::note_write() noexcept { (void)add(block().version, uint64_t{1}); }

void ProcessLock::note_outlived_view() noexcept { impl::note_outlived_view(); }

void ProcessLock::return_quota(Request& request) noexcept { OpQuota::instance().give(request); }

void ProcessLock::heal(const Extent& extent) noexcept {
  if (segment_.participant().index() == Participant::kNone) return;
  impl::heal(segment_.control(), segment_.participant(), index_, bytes_of(extent));
}

bool ProcessLock::clear_deaths(const Extent& extent, const Deadline& deadline, Conflict* conflict) noexcept {
  const GrantRequest wanted{bytes_of(extent), Access::kWrite, true, current_actor()};
  bool has_any = false;
  uint32_t moves = 0;
  do {
    moves = observe(block().death_moves);
    visit_grants(segment_.control(), index_, [&](const Grant& grant, uint64_t word) {
      const bool may_die =
          GrantState::kind(word) == GrantKind::kDied || GrantState::access(word) == Access::kWrite;
      has_any |= may_die && range_of(grant).overlaps(wanted.bytes);
    });
  } while (!has_any && observe(block().death_moves) != moves);
  if (!has_any) return true;
  const GrantId grant = enter(wanted, deadline, conflict);
  if (grant == kNoGrant) return false;
  impl::heal(segment_.control(), segment_.participant(), index_, wanted.bytes);
  free_grant(grant);
  return true;
}

void ProcessLock::disown(GrantId grant) noexcept { store(segment_.participant().grant(grant).thread, 0u); }

template <class Visit>
void ProcessLock::visit_leases_of_others(const ByteRange& bytes, Visit visit) const noexcept {
  const Control& control = segment_.control();
  const uint32_t self = segment_.participant().index();
  visit_bits(block().present, [&](uint32_t p) {
    if (p == self || !control.has_place(p) || !is_alive(control, p)) return;
    const Place& place = control.place(p);
    for (const Grant& other : used_grants(place)) {
      const uint64_t word = look(other.state);
      if (!GrantState::is_lease(word) || GrantState::block(word) != index_) continue;
      if (range_of(other).overlaps(bytes)) visit(p, place, other, word);
    }
  });
}

void ProcessLock::visit_others(const Extent& extent, void (*visit)(const Holder&, void* context),
                               void* context) noexcept {
  visit_leases_of_others(bytes_of(extent), [&](uint32_t, const Place& place, const Grant& other, uint64_t) {
    Holder holder;
    describe(place, other, &holder);
    visit(holder, context);
  });
}

bool ProcessLock::describe_holder(const Asked& asked, Holder* holder) noexcept {
  return describe_holder(bytes_of(asked.extent), asked.access, holder);
}

bool ProcessLock::describe_holder(const ByteRange& bytes, Access access, Holder* holder) const noexcept {
  uint32_t found = Participant::kNone;
  bool is_granted = false;
  visit_leases_of_others(bytes, [&](uint32_t p, const Place& place, const Grant& other, uint64_t word) {
    if (!in_conflict(access, GrantState::access(word))) return;
    if (found != Participant::kNone && (is_granted || GrantState::kind(word) != GrantKind::kGranted)) return;
    found = p;
    is_granted = GrantState::kind(word) == GrantKind::kGranted;
    describe(place, other, holder);
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
