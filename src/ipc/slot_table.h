// SPDX-License-Identifier: Apache-2.0
//
// Slots that processes pass to each other, and the order of what lies in them. Each change of a slot is one
// compare-and-swap of its word, so there is no lock: a process that is stopped inside of a function blocks at
// most its own slot, and after the death of a process its words show what to do with its slots.
// tests/models/slots.pml is the model.
//
//   word           who has the slot                                      after the death of p
//   free           no process                                            -
//   held(p, 0)     p, to write                                           free
//   held(p, n)     p has received item n, for itself alone               free: n is lost
//   offered(p, n)  p has written it, and asks for number n               ready(n) if entry n names it; free
//   ready(n)       no process, or those that read: their reader bits     -
//   claimed(p, n)  p looks whether a process reads or wants item n       ready(n)
//
// A feed gives the number, of a ticket, before the slot is written:
//
//   held(p, n)     loop p of the feed fills it for ticket n, or consumer p has received that
//   ready(n)       ticket n is settled
//   left(p, n)     thread p hangs in ticket n, which is not in this slot any more
//   left(0, 0)     no process can have it: it is a spare one, or not made yet
//   left(0, n)     consumers have received ticket n; the state in it is to be noted
//   asked(o, n)    no process; loop o of the feed, or any (0), is to fill it for ticket n
//
// Entry n % (number of entries) names the slot of item n. It is written by the compare-and-swap that gives
// the number; then any process makes the slot ready and moves the last number on.
//
// The bytes of a slot are written only under held(p, 0), and by a loop under held(p, n). held(p, 0) is
// reached from free, or from claimed after no living reader was seen. A reader first sets its bit and then
// looks at the word; a process that claims does the opposite. So one of the two sees the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/prefetch.h"
#include "ipc/layout.h"

namespace tenon::impl {

// The values of a word. A number is given once, so a word with a number does not come back.
struct SlotWord {
  enum Kind : uint64_t {
    kFree = 0,
    kHeld = 1,
    kOffered = 2,
    kReady = 3,
    kClaimed = 4,
    kLeft = 5,
    kAsked = 6
  };
  static constexpr uint64_t make(Kind kind, uint32_t holder, uint64_t number) noexcept {
    return number << 15 | uint64_t{holder} << 3 | kind;
  }
  static constexpr uint64_t held(uint32_t p, uint64_t number) noexcept { return make(kHeld, p, number); }
  // A stray was put back by the only process that had received it.
  static constexpr uint64_t ready(uint64_t number, bool is_stray = false) noexcept {
    return make(kReady, is_stray ? 1 : 0, number);
  }
  static constexpr bool is_stray(uint64_t word) noexcept { return kind(word) == kReady && holder(word) != 0; }
  static constexpr Kind kind(uint64_t word) noexcept { return static_cast<Kind>(word & 7); }
  static constexpr uint32_t holder(uint64_t word) noexcept {
    return static_cast<uint32_t>(word >> 3) & 0xFFF;
  }
  static constexpr uint64_t number(uint64_t word) noexcept { return word >> 15; }
  // A consumer has given it back before the state of the generator after it was noted.
  static constexpr uint64_t unnoted(uint64_t number) noexcept { return make(kLeft, 0, number); }
  // A process has it for itself.
  static constexpr bool has_holder(uint64_t word) noexcept {
    return kind(word) == kHeld || kind(word) == kOffered || kind(word) == kClaimed;
  }
  static constexpr bool is_held_by(uint64_t word, uint32_t p) noexcept {
    return kind(word) == kHeld && holder(word) == p;
  }
  // Of the item that lies in it; 0: none.
  static constexpr uint64_t item(uint64_t word) noexcept {
    return kind(word) == kReady || kind(word) == kClaimed ? number(word) : 0;
  }
};

struct alignas(64) SlotState {
  std::atomic<uint64_t> word;
  Mask readers;  // a bit has no effect when the process of its place has ended
};

// The name of a slot under a number: the number, then 15 bits of the slot.
using SlotEntry = std::atomic<uint64_t>;

struct SlotCounters {
  alignas(64) std::atomic<uint64_t> given;  // the last number
  // No slot has an item with this number or a smaller one, except strays.
  alignas(64) std::atomic<uint64_t> passed;
  std::atomic<uint64_t> strays;  // at least as many as there are
};

// A value that refers to shared memory. p: the place of the calling process. Threads: any.
class SlotTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kMostSlots = (1 << 15) - 1;

  SlotTable() = default;
  SlotTable(SlotCounters& counters, std::span<SlotState> slots, std::span<SlotEntry> entries) noexcept
      : counters_(&counters), slots_(slots), entries_(entries) {}

  uint64_t word(uint32_t slot) const noexcept { return observe(slots_[slot].word); }
  const Mask& readers(uint32_t slot) const noexcept { return slots_[slot].readers; }
  uint64_t given() const noexcept { return observe(counters_->given); }

  // free -> held(p, 0). False: it is not free.
  bool take_free(uint32_t p, uint32_t slot) const noexcept;
  // ready(n) -> held(p, kept). seen: that word. False: another process was first.
  bool take(uint32_t p, uint32_t slot, uint64_t seen, uint64_t kept) const noexcept;
  // ready(n) -> claimed(p, n). False: another process was first.
  bool claim(uint32_t p, uint32_t slot, uint64_t n) const noexcept;
  // claimed(p, n) -> held(p, 0), or back to ready(n).
  void end_claim(uint32_t p, uint32_t slot, uint64_t n, bool is_taken) const noexcept;
  // held(p, 0) -> offered(p, n). The bytes do not change from now on.
  void offer(uint32_t p, uint32_t slot) const noexcept;
  // Of an offered slot: -> ready(n). Returns n.
  uint64_t give_number(uint32_t p, uint32_t slot) const noexcept;
  // held(p, n) -> ready(n) again.
  void put_back(uint32_t slot, uint64_t n) const noexcept;
  // Of a slot that is not used, or from now on not: -> left(0, 0).
  void set_aside(uint32_t slot) const noexcept;
  // For the holder of a slot, or one that is set aside: -> held(p, n).
  void hold(uint32_t p, uint32_t slot, uint64_t n = 0) const noexcept;
  // held(p, *) -> free.
  void release(uint32_t slot) const noexcept;
  void set_reader(uint32_t p, uint32_t slot) const noexcept { set_bit(slots_[slot].readers, p); }
  void clear_reader(uint32_t p, uint32_t slot) const noexcept { clear_bit(slots_[slot].readers, p); }

  // The number that is given next, and what its entry is until then.
  struct Turn {
    uint64_t number = 0;
    uint64_t before = 0;
  };
  Turn next_number() const noexcept;
  // For the holder of the slot: -> held(p, n). False: another slot has that number, and this one has it in
  // its word alone.
  bool take_number(uint32_t slot, const Turn& turn) const noexcept;
  // held(p, n) -> ready(n). False: it was left.
  bool settle(uint32_t slot, uint64_t n) const noexcept;
  // held(p, n) -> asked(of, n). False: it was left.
  bool ask(uint32_t slot, uint64_t n, uint32_t of) const noexcept;
  // asked(o, n) -> held(p, n). seen: that word. False: another process was first.
  bool take_asked(uint32_t p, uint32_t slot, uint64_t seen) const noexcept;
  // held(p, n) -> left(p, n). False: it was settled.
  bool leave(uint32_t slot, uint64_t n) const noexcept;
  // Of a number whose slot was left: it has this slot from now on.
  void move(uint64_t n, uint32_t from, uint32_t to) const noexcept;
  // Of a settled number: no slot has it from now on, and ready(n) in the word is only to be freed.
  void skip(uint64_t n, uint32_t slot) const noexcept;
  bool is_skipped(uint64_t n) const noexcept;
  uint64_t entries() const noexcept { return entries_.size(); }
  // That has number n; kNone: none, it was not given, or a later number has its entry.
  uint32_t slot_of(uint64_t n) const noexcept;
  uint64_t passed() const noexcept { return observe(counters_->passed); }
  // Moves it on; it never moves back. False: it is there, or behind it.
  bool pass(uint64_t n) const noexcept;
  // The number after the next one, which a thread that is about to take it may still get. Requires that no
  // thread begins to take one.
  uint64_t next_base() const noexcept { return next_number().number + 1; }
  // Passes all numbers before such a base.
  void begin_anew(uint64_t base) const noexcept;
  uint64_t begin_anew() const noexcept {
    const uint64_t base = next_base();
    begin_anew(base);
    return base;
  }

  // Fetch the cache lines of the next number, all at the same time: to give it, and to find its item.
  void prefetch_to_give() const noexcept {
    prefetch_to_write(&counters_->given);
    prefetch_to_write(&entry(given() + 1));
  }
  void prefetch_to_find() const noexcept {
    prefetch_to_read(&counters_->given);
    prefetch_to_write(&counters_->passed);
    prefetch_to_read(&entry(observe(counters_->passed) + 1));
  }

  // A slot with an item, and its word: ready(n), or claimed(p, n).
  struct Found {
    uint32_t slot = kNone;  // kNone: none
    uint64_t word = 0;
    uint64_t number() const noexcept { return SlotWord::number(word); }
  };
  // The oldest item after this number. 0: of all items, also of strays.
  Found next(uint64_t after) const noexcept;
  Found newest() const noexcept;

  // seen -> after. False: the word is another one. For the functions of served feeds (served_ends.h).
  bool change(uint32_t slot, uint64_t seen, uint64_t after) const noexcept;
  uint32_t size() const noexcept { return static_cast<uint32_t>(slots_.size()); }

  // Gives back what the dead process p has. True: it had something. Requires that no process can get the
  // place of p meanwhile.
  bool reclaim(uint32_t p) const noexcept;

 private:
  SlotEntry& entry(uint64_t n) const noexcept { return entries_[n % entries_.size()]; }
  bool end_fill(uint32_t slot, uint64_t n, uint64_t after) const noexcept;
  void help(uint64_t n) const noexcept;
  // is_known: set to false if the entry is of a later number already.
  Found item(uint64_t n, bool* is_known) const noexcept;
  Found oldest_of_all(uint64_t after, uint64_t last) const noexcept;

  SlotCounters* counters_ = nullptr;
  std::span<SlotState> slots_;
  std::span<SlotEntry> entries_;
};

}  // namespace tenon::impl
