// SPDX-License-Identifier: Apache-2.0
#include "ipc/participant.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <bitset>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "ipc/channel_ends.h"
#include "ipc/deaths.h"
#include "ipc/message_table.h"
#include "ipc/served_ends.h"
#include "sync/actor.h"

namespace tenon::impl {
namespace {

void drop_grant(const Control& control, Place& place, Grant& grant) noexcept {
  const uint64_t seen = look(grant.state);
  if (!GrantState::is_lease(seen)) return;
  const uint32_t index = GrantState::block(seen);
  const bool was_written =
      GrantState::kind(seen) == GrantState::kGranted && GrantState::access(seen) == Access::kWrite;
  if (index >= control.blocks || !was_written) {
    return publish(grant.state, uint64_t{GrantState::kFree});
  }
  (void)add(control.block(index).version, uint64_t{1});
  note_death(control, place, grant, seen);
}

// Fails with kSystem.
void make_robust(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int result = pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (result != 0) throw_error(Code::kSystem, "no robust mutex: ", std::strerror(result));
}

constexpr int64_t kPatienceNs = 10'000'000'000;
constexpr int64_t kShortPatienceNs = 1'000'000'000;  // if no other place is free

// The place is reserved for a forked child that has not taken it for so long that it was probably killed.
// Must be checked again under the lock of the place.
bool is_abandoned(const Control& control, uint32_t participant, int64_t patience_ns) noexcept {
  if (!control.has_place(participant)) return false;
  const Place& place = control.place(participant);
  return look(place.state) == PlaceState::kReserved &&
         now_ns() - place.since_ns.load(std::memory_order_relaxed) > patience_ns;
}

// Drops what the participant holds, and frees its place. Requires the lock of the place.
void clear(const Control& control, uint32_t participant) noexcept {
  if (!control.has_place(participant)) return;
  Place& place = control.place(participant);
  if (look(place.state) == PlaceState::kFree) return;
  if (ChannelState* const channel = control.channel())
    ChannelEnds(control, *channel).clear(participant, control.channel_slots);
  if (control.served() != nullptr) ServedEnds(control).clear(participant);
  std::bitset<kMostBlocks> has_deaths;
  join_one_of_many(control, participant);
  for (Grant& grant : used_grants(place)) {
    drop_grant(control, place, grant);
    const uint64_t word = look(grant.state);
    const uint32_t block = GrantState::block(word);
    if (GrantState::kind(word) == GrantState::kDied && block < kMostBlocks) has_deaths.set(block);
  }
  for (uint32_t i = 0, blocks = control.used_blocks(); i < blocks; ++i) {
    Block& block = control.block(i);
    if (look(block.state) == BlockState::kFree && is_empty(block.users) && is_empty(block.present)) continue;
    if (!has_bit(block.users, participant) && !has_bit(block.present, participant)) continue;
    // Also if no grant was found: an earlier reaper may have died after it dropped the grant.
    (void)add(block.changes, 1u);
    os::wake_all(block.changes);
    clear_bit(block.waiting, participant);
    if (!has_deaths.test(i)) clear_bit(block.present, participant);
    clear_bit(block.users, participant);
  }
  leave_messages(control, participant);
  publish(place.state, PlaceState::kFree);
}

}  // namespace

uint64_t Control::nbytes_of(const Header& header) noexcept {
  uint64_t end = control_end(header.blocks);
  if (header.channel_slots != 0)
    end = header.data_at + ChannelState::nbytes_before_description(header.channel_slots);
  if (header.feed_slots != 0) end = header.data_at + header.feed_pages * kPage;
  return round_up(end, std::max<uint64_t>(header.page_nbytes, os::page_nbytes()));
}

Control Control::map(const os::File& file, const Header& header, PlaceLocks* places) {
  const uint64_t page = std::max<uint64_t>(header.page_nbytes, os::page_nbytes());
  return {os::map(file, 0, nbytes_of(header), true, page),
          header.blocks,
          places,
          header.places_at,
          header.channel_slots,
          header.feed_slots,
          header.data_at};
}

std::atomic<uint32_t>& life_word(Life& life) noexcept {
  // glibc's mutexes begin with the word that robust-futexes.rst of the kernel describes.
  return *reinterpret_cast<std::atomic<uint32_t>*>(&life.mutex);
}

bool is_dead(uint32_t life_word) noexcept { return (life_word & FUTEX_OWNER_DIED) != 0; }

bool is_alive(const Control& control, uint32_t participant) noexcept {
  return !is_dead(look(life_word(control.life(participant)))) || !control.places->is_free(participant);
}

uint32_t note_sleeper(std::atomic<uint32_t>& life_word) noexcept {
  uint32_t word = look(life_word);
  // Only while a thread holds the mutex: no thread could lock a mutex with only FUTEX_WAITERS set.
  while ((word & FUTEX_TID_MASK) != 0 && (word & FUTEX_WAITERS) == 0) {
    if (exchange(life_word, word, word | FUTEX_WAITERS)) return word | FUTEX_WAITERS;
  }
  return word;
}

std::string command_of(const Place& place) {
  return readable({place.command, strnlen(place.command, sizeof place.command)});
}

void signal_event(SharedEvent& event) noexcept {
  (void)add(event.signals, 1u);
  if (!is_empty(event.waiting)) os::wake_all(event.signals);
}

bool has_users(const Control& control, const Block& block) noexcept {
  constexpr int kMostLooks = 64;
  for (int n = 0; n < kMostLooks; ++n) {
    // A parent may leave a block after this has looked for the child, and before it looks for the parent.
    const uint32_t forks = observe(control.forks());
    if (!is_empty(block.users)) return true;
    if (observe(control.forks()) == forks) return false;
  }
  return true;  // not known: forks come all the time
}

bool reap(const Control& control, uint32_t participant) noexcept {
  if (!control.has_place(participant)) return false;
  const Place& place = control.place(participant);
  if (look(place.state) != PlaceState::kLive || !control.places->try_lock(participant)) return false;
  const bool has_died = look(place.state) == PlaceState::kLive;
  if (has_died) clear(control, participant);
  control.places->unlock(participant);
  return has_died;
}

namespace {

void reap_all(const Control& control, int64_t patience_ns, bool only_marked = false) noexcept {
  for (uint32_t i = 0; i < control.used_places(); ++i) {
    const bool may_live = only_marked && !is_dead(look(life_word(control.life(i))));
    if ((!may_live && reap(control, i)) || !is_abandoned(control, i, patience_ns)) continue;
    if (!control.places->try_lock(i)) continue;  // the child has taken it
    if (is_abandoned(control, i, patience_ns)) clear(control, i);
    control.places->unlock(i);
  }
}

}  // namespace

void reap_all(const Control& control) noexcept { reap_all(control, kPatienceNs); }

void reap_marked(const Control& control) noexcept { reap_all(control, kPatienceNs, true); }

Participant::Participant(const Control& control, const os::File& file, MutexOwner& mutex_owner)
    : control_(control), mutex_owner_(&mutex_owner) {
  mutex_owner.call([&] { join(file); });
}

void Participant::join(const os::File& file) {
  os::check_byte_locks(file);
  (void)os::this_process();  // fails before the place is taken
  index_ = take_any_place(file);
  if (index_ == kNone) {
    throw_error(Code::kSystem, "all ", kParticipants,
                " places of a shared segment are taken: so many processes use it at a time");
  }
  keep_deaths();
  if (come_to_life()) return;
  control_.places->unlock(index_);
  throw_error(Code::kSystem, "the robust mutex of a place in a shared segment cannot be locked");
}

// kNone: all are taken.
uint32_t Participant::take_any_place(const os::File& file) {
  for (const bool reaps : {false, true}) {
    if (reaps) reap_all(control_, kShortPatienceNs);
    for (uint32_t i = 0; i < kParticipants; ++i) {
      if (take_place(i, file)) return i;
    }
  }
  // Deaths that were not healed may take the grants of places that no process has.
  for (uint32_t i = 0; i < control_.used_places(); ++i) {
    if (!control_.has_place(i) || look(control_.place(i).state) != PlaceState::kFree) continue;
    if (!control_.places->try_lock(i)) continue;
    if (look(control_.place(i).state) == PlaceState::kFree) join_deaths(control_, i);
    control_.places->unlock(i);
    if (take_place(i, file)) return i;
  }
  return kNone;
}

// True: this process holds the lock of the place.
bool Participant::take_place(uint32_t i, const os::File& file) {
  Place& place = control_.place(i);
  const auto is_reserved = [&] {  // for a forked child
    return control_.has_place(i) && look(place.state) == PlaceState::kReserved;
  };
  if (is_reserved() || !control_.places->try_lock(i)) return false;
  try {
    if (!control_.has_place(i)) {
      const uint64_t lives = kLivesAt + i / kLivesInPage * kPage;
      if (i >= kLivesInPage) os::commit(file, lives, kPage, "a place in a shared segment");
      os::commit(file, control_.places_at + i * kPlaceStride, kPlaceStride, "a place in a shared segment");
      // pairs with: Control::has_place, "memory of a place"
      publish(control_.life(i).has_place, 1u);
      uint32_t used = look(control_.places_used());
      while (used <= i && !exchange(control_.places_used(), used, i + 1)) {
      }
    }
  } catch (...) {
    control_.places->unlock(i);
    throw;
  }
  if (look(place.state) == PlaceState::kLive) clear(control_, i);  // its process has died
  if (is_reserved() || !has_room(place)) {
    control_.places->unlock(i);
    return false;
  }
  store(place.generation, place.generation.load(std::memory_order_relaxed) + 1);
  return true;
}

// Locks the mutex of the life, which the kernel marks when this thread ends, and writes the place. False: the
// mutex cannot be locked. Requires the lock of the place.
bool Participant::come_to_life() noexcept {
  Life& life = control_.life(index_);
  try {
    (void)os::this_process();
    make_robust(&life.mutex);  // its state after the last holder does not matter
  } catch (const std::exception&) {
    return false;
  }
  if (pthread_mutex_trylock(&life.mutex) != 0) return false;
  write_place();
  return true;
}

void Participant::write_place() noexcept {
  Place& place = this->place();
  const os::Process process = os::this_process();
  store(place.pid, process.pid);
  store(place.start, process.start);
  store(place.pid_namespace, os::pid_namespace_if_known());
  store(place.since_ns, now_ns());
  publish(place.note.lease, uint64_t{0});  // of the last process
  try {
    const std::string command = os::command_of(process.pid);
    std::strncpy(place.command, command.c_str(), sizeof place.command);
  } catch (const std::exception&) {
    place.command[0] = '\0';
  }
  publish(place.state, PlaceState::kLive);
}

bool Participant::can_leave() const noexcept {
  return index_ == kNone || mutex_owner_ != nullptr || life_holder_ == this_thread_id();
}

void Participant::leave() noexcept {
  if (index_ == kNone) return;
  Life& life = control_.life(index_);
  clear(control_, index_);
  const auto unlock = [&life] { (void)pthread_mutex_unlock(&life.mutex); };
  if (mutex_owner_ != nullptr) {
    mutex_owner_->call(unlock);  // cannot fail: its thread runs
  } else {
    unlock();
  }
  control_.places->unlock(index_);  // last: the next process initializes the mutex again
}

GrantId Participant::take_grant() noexcept {
  for (uint32_t w = 0; w < taken_.size(); ++w) {
    uint64_t taken = taken_[w].load(std::memory_order_relaxed);
    while (~taken != 0) {
      const auto bit = static_cast<uint32_t>(__builtin_ctzll(~taken));
      const uint32_t i = w * 64 + bit;
      if (i >= kGrants) break;
      // pairs with: Participant::give_grant, "a grant that is free"
      if (!taken_[w].compare_exchange_weak(taken, taken | uint64_t{1} << bit, std::memory_order_acquire,
                                           std::memory_order_relaxed)) {
        continue;
      }
      Place& place = this->place();
      uint32_t used = place.grants_used.load(std::memory_order_relaxed);
      while (used <= i && !exchange(place.grants_used, used, i + 1)) {
      }
      return i + 1;
    }
  }
  return take_back_deaths() ? take_grant() : kNoGrant;
}

GrantId Participant::take_grant_for_death() noexcept {
  constexpr int kMost = kGrants / 10;
  int deaths = 0;
  for (const auto& word : deaths_) deaths += std::popcount(word.load(std::memory_order_relaxed));
  const GrantId id = deaths < kMost || take_back_deaths() ? take_grant() : kNoGrant;
  if (id == kNoGrant) return kNoGrant;
  const uint32_t i = id - 1;
  deaths_[i / 64].fetch_or(uint64_t{1} << (i % 64), std::memory_order_relaxed);
  return id;
}

void Participant::give_grant(GrantId id) noexcept {
  const uint32_t i = id - 1;
  // pairs with: Participant::take_grant, "a grant that is free"
  taken_[i / 64].fetch_and(~(uint64_t{1} << (i % 64)), std::memory_order_seq_cst);
  // pairs with: Participant::begin_grant_wait, "a thread that waits for a grant"
  if (grant_waits_.load(std::memory_order_seq_cst) == 0) return;
  // pairs with: Participant::grants_given, "a grant that is free"
  grants_given_.fetch_add(1, std::memory_order_release);
  os::wake_all(grants_given_);
}

bool Participant::is_short_of_grants() const noexcept {
  constexpr int kMany = kGrants / 2;
  int taken = 0;
  for (const auto& word : taken_) taken += std::popcount(word.load(std::memory_order_relaxed));
  return taken >= kMany;
}

bool Participant::refer_to(GrantId id) noexcept {
  std::atomic<uint32_t>& count = references(id);
  uint32_t n = count.load(std::memory_order_relaxed);
  // pairs with: ProcessLock::write_request, "a grant that is counted"
  while (n != 0 && !count.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel)) {
  }
  return n != 0;
}

// Marks the grants as taken that hold deaths of earlier processes of the place.
void Participant::keep_deaths() noexcept {
  const auto used = used_grants(place());
  for (uint32_t i = 0; i < used.size(); ++i) {
    if (look(used[i].state) == GrantState::kFree) continue;
    taken_[i / 64].fetch_or(uint64_t{1} << (i % 64), std::memory_order_relaxed);
    deaths_[i / 64].fetch_or(uint64_t{1} << (i % 64), std::memory_order_relaxed);
  }
}

// Frees the grants whose deaths are healed. True: there were some.
bool Participant::take_back_deaths() noexcept {
  bool has_found = false;
  for (uint32_t w = 0; w < deaths_.size(); ++w) {
    for (uint64_t left = deaths_[w].load(std::memory_order_relaxed); left != 0; left &= left - 1) {
      const uint64_t bit = left & (~left + 1);
      const uint32_t i = w * 64 + static_cast<uint32_t>(std::countr_zero(left));
      Grant& grant = place().grants[i];
      uint64_t word = look(grant.state);
      // A death without bytes is changed only by the process that has the place.
      const bool is_healed = word == GrantState::kFree || look(grant.begin) >= look(grant.end);
      if (!is_healed || (deaths_[w].fetch_and(~bit, std::memory_order_relaxed) & bit) == 0) continue;
      if (word != GrantState::kFree) (void)exchange(grant.state, word, uint64_t{GrantState::kFree});
      give_grant(i + 1);
      has_found = true;
    }
  }
  return has_found;
}

Participant::Reserved Participant::reserve_for_child(const os::File& file) noexcept {
  child_ = {};
  if (index_ == kNone) return {};
  uint32_t i = kNone;
  try {
    i = take_any_place(file);
  } catch (const std::exception&) {
    return {};
  }
  if (i == kNone) return {};
  store(control_.place(i).since_ns, now_ns());
  store(control_.place(i).pid, static_cast<uint32_t>(getpid()));
  publish(control_.place(i).state, PlaceState::kReserved);
  child_ = {i, control_.place(i).generation.load(std::memory_order_relaxed)};
  for (uint32_t b = 0, blocks = control_.used_blocks(); b < blocks; ++b) {
    Block& block = control_.block(b);
    if (has_bit(block.users, index_)) set_bit(block.users, i);
  }
  (void)add(control_.forks(), 1u);
  control_.places->unlock(i);  // last: from now on, others may find that the child does not take the place
  return child_;
}

void Participant::free_reserved(const Reserved& reserved) noexcept {
  if (reserved.index == kNone) return;
  if (!control_.places->try_lock(reserved.index)) return;  // the child has taken it
  const Place& place = control_.place(reserved.index);
  const bool is_unused = look(place.state) == PlaceState::kReserved &&
                         place.generation.load(std::memory_order_relaxed) == reserved.generation;
  if (is_unused) clear(control_, reserved.index);
  control_.places->unlock(reserved.index);
}

void Participant::become_child(bool has_own_file) noexcept {
  const Reserved reserved = std::exchange(child_, {});
  index_ = has_own_file ? reserved.index : kNone;
  mutex_owner_ = nullptr;
  life_holder_ = this_thread_id();
  for (auto& word : taken_) word.store(0, std::memory_order_relaxed);
  for (auto& word : deaths_) word.store(0, std::memory_order_relaxed);
  grant_waits_.store(0, std::memory_order_relaxed);
  for (auto& count : references_) count.store(0, std::memory_order_relaxed);
  if (index_ == kNone) return;
  keep_deaths();
  // A place that was given up is another process's now: this child has come late.
  const auto is_reserved = [&] {
    return look(place().state) == PlaceState::kReserved &&
           place().generation.load(std::memory_order_relaxed) == reserved.generation;
  };
  // Other processes may hold the lock for a moment, to read that the place is reserved. If such a process is
  // stopped, it holds the lock for long.
  const Deadline deadline(kShortPatienceNs);
  bool is_locked = false;
  while (!(is_locked = control_.places->try_lock(index_)) && is_reserved() && !deadline.has_passed()) {
    sched_yield();
  }
  // This thread locks the mutex of the life. It is the only thread of the process, and usually lives as long.
  if (is_locked && is_reserved() && come_to_life()) return;
  if (is_locked) control_.places->unlock(index_);
  index_ = kNone;
}

}  // namespace tenon::impl
