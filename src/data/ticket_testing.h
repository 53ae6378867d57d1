// SPDX-License-Identifier: Apache-2.0
//
// A TicketRing with its slots, for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/ticket_ring.h"

namespace tenon::impl {

inline TicketFailure failure_of(int32_t code, const std::string& message) {
  TicketFailure failure;
  failure.code = code;
  failure.set_message(message.c_str());
  return failure;
}

using NextBatch = TicketRing::NextBatch;

// Of slots that hold nothing but a state.
inline constexpr SlotLayout kLayout{.stated_at = 0, .state_at = 8, .state_nbytes = 64};

inline std::string text_of(const WorkerState& state) {
  if (!state.bytes) return "start";
  return {reinterpret_cast<const char*>(state.bytes->data()), state.bytes->size()};
}
inline std::string text_of(const KnownState& known) {
  const std::string text(reinterpret_cast<const char*>(known.bytes.data()), known.bytes.size());
  return concat(known.is_lost ? "lost " : "", known.number == 0 ? "start" : text);
}

// A ring and its slots, driven by one thread.
struct Bench {
  Bench(const SlotsPlan& plan, int64_t batches, int32_t round_robin = 0, uint32_t flags = 0)
      : slots(Slots::create(plan, head_of(batches, round_robin, flags))), ring(slots) {}
  Bench(int32_t slot_count, int64_t batches, int32_t round_robin = 0)
      : Bench(SlotsPlan{slot_count, static_cast<size_t>(sysconf(_SC_PAGESIZE))}, batches, round_robin) {}
  static FeedHead head_of(int64_t batches, int32_t round_robin, uint32_t flags = 0) {
    FeedHead head{};
    head.flags = flags | (round_robin != 0 ? uint32_t{kGoesRound} : 0);
    head.loops = 4;
    head.workers = round_robin != 0 ? round_robin : 2;
    head.batches = batches < 0 ? Order::kNoEnd : static_cast<uint64_t>(batches);
    head.ranks = 1;
    head.layout = kLayout;
    return head;
  }

  Ticket take() {
    Ticket ticket{.slot = slots->try_take(Slots::kFirstLoop)};
    EXPECT_GE(ticket.slot, 0);
    EXPECT_EQ(ring.take(0, ticket), TicketRing::TicketTake::kTicket);
    return ticket;
  }
  void publish(const Ticket& ticket) { ring.publish(ticket); }
  void write_state(const Ticket& ticket, const std::string& state) {
    std::byte* const slot = slots->data(ticket.slot);
    kLayout.stated(slot) = state.size();
    std::memcpy(kLayout.state(slot), state.data(), state.size());
  }
  // As a worker does.
  void publish(const Ticket& ticket, KnownState& known, const std::string& state) {
    write_state(ticket, state);
    known.bytes.assign(kLayout.state(slots->data(ticket.slot)),
                       kLayout.state(slots->data(ticket.slot)) + state.size());
    known.number = ticket.number;
    known.is_lost = false;
    ring.publish(ticket, kHasState);
  }
  NextBatch next() { return ring.next(0, item); }
  int32_t free_slots() {
    std::vector<int32_t> taken;
    for (int32_t slot = slots->try_take(); slot >= 0; slot = slots->try_take()) taken.push_back(slot);
    for (const int32_t slot : taken) slots->give(slot);
    return static_cast<int32_t>(taken.size());
  }

  Ref<Slots> slots;
  TicketRing ring;
  TicketRing::Delivery item;
};

}  // namespace tenon::impl
