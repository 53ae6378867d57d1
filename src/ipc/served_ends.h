// SPDX-License-Identifier: Apache-2.0
//
// The processes that receive the batches of a feed, and its server: how they come and go, how they pass
// slots, and how their deaths are cleaned up. There is no lock: a process changes its own record, and that of
// a dead process is changed under the lock of its place (participant.h). docs/dev/slots.md lists the stores.
//
// A batch of a queue is received by held(p, n), then the last number that was passed moves on. Who finds the
// first without the second does the second: so a process that stops between them blocks its slot alone. In a
// broadcast each consumer has a cursor and reads the slot under its bit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/event.h"
#include "base/os.h"
#include "ipc/ending_pace.h"
#include "ipc/participant.h"
#include "ipc/served_state.h"

namespace tenon::impl {

// A value that refers to the feed's memory. p: the place of the calling process. Threads: any, but those of a
// process join, end rounds and leave one at a time.
class ServedEnds {
 public:
  // Requires that control.served() is not null.
  explicit ServedEnds(const Control& control) noexcept
      : control_(control), state_(control.served()), table_(state_->table(control.feed_slots)) {}

  ServedState& state() const noexcept { return *state_; }
  const SlotTable& table() const noexcept { return table_; }
  bool is_alive(uint32_t place) const noexcept { return has_living(control_, place); }
  bool is_broadcast() const noexcept { return look(state_->mode) == ServedMode::kBroadcast; }

  // This process is the server from now on.
  void serve(uint32_t p) const noexcept;
  bool is_server_alive() const noexcept;

  // The process becomes a consumer, in two steps. After the first one, no round begins without it, and it
  // misses no batch that is not passed: between them the caller finds out of which round it is. ended: the
  // base of that round if it takes no part in it, else 0. Before the first step, the caller writes what it
  // wants into the record. keeps_wanted: no round of the serving has begun.
  void begin_join(uint32_t p, bool has_wanted) const noexcept;
  void end_join(uint32_t p, uint64_t ended, bool keeps_wanted = false) const noexcept;
  // Of the server, when the first round of a serving begins: what consumers have wanted is void.
  void drop_wanted() const noexcept;
  // It was told the end of the round with this base.
  void end_round(uint32_t p, uint64_t base) const noexcept;
  // Its loop is over, without that.
  void end_loop(uint32_t p, uint64_t base) const noexcept;
  // It is no consumer any more. Slots that it has stay.
  void leave(uint32_t p) const noexcept;

  // Of the consumers that live.
  uint32_t count() const noexcept;
  bool have_all_ended(uint64_t base) const noexcept;

  // Of a queue: ready(n) -> held(p, n), n = passed + 1. False: another process was first.
  bool take(uint32_t p, uint32_t slot, uint64_t n) const noexcept;
  // Another process may have taken the next number, and not passed it yet: passes it.
  void help() const noexcept;
  // From held(p, n). The slot stays until the state in it is noted.
  void release(uint32_t p, uint32_t slot, uint64_t n) const noexcept;

  // Of a broadcast: this process reads batch n, the next one after its cursor. False: the slot is not
  // ready(n).
  bool read(uint32_t p, uint32_t slot, uint64_t n) const noexcept {
    bool is_first = false;
    return read(p, slot, n, &is_first, [] { return true; });
  }
  // The same, if may() holds. It is asked after the bit is set, so a process that looks at the bits later
  // sees this reader. is_first: no other consumer has read the batch before.
  template <class May>
  bool read(uint32_t p, uint32_t slot, uint64_t n, bool* is_first, May may) const noexcept {
    if (begin_read(p, slot, n) && may()) {
      *is_first = note_read(p, n);
      return true;
    }
    end_read(p, slot);
    return false;
  }
  void end_read(uint32_t p, uint32_t slot) const noexcept;
  // A living process reads the slot.
  bool is_read(uint32_t slot) const noexcept;

  // It has the word of a batch whose state may not be noted yet.
  static bool is_settled(uint64_t word) noexcept;

  // The slots that consumers have. A slot that a broadcast reads counts once.
  uint32_t held() const noexcept;

  // Of the server: calls note(slot, n) for each batch in order up to number `last`, which was passed, before
  // its slot may be filled again.
  template <class Note>
  void note_up_to(uint64_t last, Note note) const {
    const uint64_t before = observe(state_->noted);
    while (true) {
      const SlotTable::Found next = next_unnoted(last);
      if (next.slot == SlotTable::kNone) break;
      note(next.slot, next.number());
      note_one(next.slot, next.number());
    }
    if (observe(state_->noted) < last) announce(state_->noted, last);
    if (observe(state_->noted) != before) signal(state_->pool().room);
  }

  // Reaps the users that have died, of whom the kernel has marked the death.
  void reap_dead() const noexcept;

  // Sleeps on an event of the feed until is_over() holds, which is called again after each signal, and when a
  // process may have ended that visit_lives(add) adds by add(place). False: the time has passed.
  template <class Condition, class VisitLives>
  bool sleep(uint32_t p, Event& event, const Deadline& deadline, Condition is_over,
             VisitLives visit_lives) const {
    Event::Sleeper sleeper(event);
    EndingPace pace;
    while (true) {
      Lives lives;
      lives.words[lives.n++] = {&event.signals, sleeper.look()};
      visit_lives([&](uint32_t place) {
        if (place != p) add_life(place, &lives);
      });
      if (lives.is_complete) pace.restart();
      if (is_over()) return true;
      const int64_t left = deadline.left_ns();
      if (left <= 0) return false;
      const int64_t slice = lives.is_complete ? kSliceNs : pace.next_ns(kSliceNs);
      os::sleep_on(lives.words, lives.n, std::min(left, slice));
      // The kernel wakes only one thread when a process begins to end. From then on, the others poll, too.
      const auto is_ending = [](const os::Sleep& life) { return is_dead(look(*life.word)); };
      if (lives.is_complete && std::any_of(lives.words + 1, lives.words + lives.n, is_ending)) wake_all();
    }
  }
  // The places of the consumers.
  template <class Visit>
  void visit_consumers(Visit visit) const {
    visit_bits(state_->users, [&](uint32_t place) {
      if (look(state_->records[place].word) != CursorRecord::kNone) visit(place);
    });
  }

  // Gives back the slots of the process that had the place, and ends its record. May be repeated after the
  // death of the caller. Requires the lock of the place. The memory may be damaged.
  void clear(uint32_t place) const noexcept;

 private:
  static constexpr int64_t kSliceNs = 50'000'000;

  struct Lives {
    os::Sleep words[os::kMostWords];
    size_t n = 0;
    bool is_complete = true;  // the end of each of them wakes this thread
  };
  void add_life(uint32_t place, Lives* lives) const noexcept;

  bool begin_read(uint32_t p, uint32_t slot, uint64_t n) const noexcept;
  bool note_read(uint32_t p, uint64_t n) const noexcept;
  bool has_noted(uint64_t n) const noexcept { return observe(state_->noted) >= n; }
  void give_back(uint32_t slot, uint64_t seen) const noexcept;
  SlotTable::Found next_unnoted(uint64_t last) const noexcept;
  void note_one(uint32_t slot, uint64_t n) const noexcept;
  static void signal(Event& event) noexcept;
  void wake_all() const noexcept;

  Control control_;
  ServedState* state_;
  SlotTable table_;
};

}  // namespace tenon::impl
