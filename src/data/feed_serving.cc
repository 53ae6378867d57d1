// SPDX-License-Identifier: Apache-2.0
//
// Feed: the server of consumers in other processes. They receive from the table themselves (attached_feed.h).
// The server begins the rounds, notes states, and watches. docs/dev/slots.md has the stores.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "data/failure_text.h"
#include "data/feed.h"
#include "data/packed_states.h"
#include "ipc/segments.h"
#include "ipc/served_ends.h"

namespace tenon::impl {
namespace {

constexpr int64_t kServeLookNs = 50'000'000;  // for what wakes no server: a batch that nobody is told of

// Of an array of bytes in C order.
size_t bytes_in(const Array& array) {
  const bool is_plain =
      array.shape().size() == 1 && array.dtype() == DType(TENON_UINT, 8) && array.is_contiguous();
  if (!is_plain) throw_error(Code::kValue, "the states of a consumer are no bytes");
  return static_cast<size_t>(array.shape()[0]);
}

}  // namespace

// Requires that the feed has a name.
ServedEnds Feed::ends() const noexcept { return workers_->slots().served_ends(); }

void Feed::serve(const ServeOptions& options) {
  check_process();
  Slots& slots = workers_->slots();
  ServedState* const state = slots.served();
  if (state == nullptr) throw_error(Code::kValue, "the feed has no name by which others could find it");
  if (options.note.size() > FeedLayout::kNoteNbytes)
    throw_error(Code::kValue, "a note has ", options.note.size(), " bytes, of at most ",
                FeedLayout::kNoteNbytes);
  const int32_t tokens = slots.count() - std::max(workers_->threads(), 1);
  if (tokens < 1) throw_error(Code::kValue, "a feed with ", slots.count(), " slots cannot be served");
  if (begin_serving(options, tokens)) take_name();
}

// All of it is there before another process can find the feed by its name. True: it has none yet.
bool Feed::begin_serving(const ServeOptions& options, int32_t tokens) {
  Slots& slots = workers_->slots();
  ServedState& state = *slots.served();
  const std::scoped_lock lock(serving_);
  if (is_serving_) throw_error(Code::kValue, "the feed is being served already");
  const ServedMode before = look(state.mode);
  if (before != ServedMode::kUnserved && before != options.mode)
    throw_error(Code::kValue, "the feed was served in another mode before");
  is_serving_ = true;
  has_gathered_ = is_in_round_ = is_beginning_ = false;
  wanted_.clear();
  store(state.wants, static_cast<uint32_t>(std::max(options.consumers, 0)));
  store(state.first_number, uint64_t{0});
  workers_->queue().begin_serving();
  ends().serve(slots.self());
  announce(state.phase, ServedPhase::kGathering);
  if (before != ServedMode::kUnserved) return false;
  const FeedLayout& parts = slots.control().head().parts;
  if (!options.note.empty())
    std::memcpy(slots.control().base() + parts.note_at, options.note.data(), options.note.size());
  state.note_at = parts.note_at;
  state.note_nbytes = options.note.size();
  store(state.tokens, static_cast<uint32_t>(tokens));
  publish(state.mode, options.mode);
  return true;
}

// Without serving_: it may wait, and look for signals, which take the lock of the interpreter.
void Feed::take_name() {
  Slots& slots = workers_->slots();
  try {
    slots.take_name();
  } catch (...) {
    const std::scoped_lock lock(serving_);
    is_serving_ = false;
    workers_->queue().end_serving();
    announce(slots.served()->phase, ServedPhase::kOver);
    publish(slots.served()->mode, ServedMode::kUnserved);
    throw;
  }
  if (!workers_->is_dismissed()) return;
  slots.drop_name();
  throw_error(Code::kClosed, "the feed is closed");
}

void Feed::check_not_served() const {
  if (is_serving_.load(std::memory_order_relaxed)) {
    throw_error(Code::kValue, "the feed is being served to other processes, which get its batches");
  }
}

// Where consumers want to begin, once all are there.
void Feed::read_wanted() {
  const ServedState& state = *workers_->slots().served();
  ends().visit_consumers([&](uint32_t place) {
    const CursorRecord& record = state.records[place];
    const auto has_wanted = [&] {
      return (observe(record.word) & CursorRecord::kHasWanted) != 0 && ends().is_alive(place);
    };
    if (!has_wanted()) return;
    ServeWanted wanted;
    wanted.position.epoch = look(record.epoch);
    wanted.position.place = look(record.place);
    wanted.position.worker = look(record.worker);
    wanted.position.ignored_index = look(record.indexed) != 0;
    wanted.rank = look(record.rank);
    wanted.world_size = look(record.world_size);
    if (const int32_t states = look(record.states); states > 0) {
      const std::span<const std::byte> handle(
          record.handle, std::min<size_t>(look(record.handle_nbytes), sizeof record.handle));
      try {
        const Ref<Array> packed = Segments::instance().open(handle);
        wanted.position.states =
            unpack_states({packed->data(), bytes_in(*packed)}, static_cast<size_t>(states));
      } catch (const Error&) {
        if (has_wanted()) throw;
        return;  // the consumer has ended, and its array with it
      }
    }
    wanted_.push_back(std::move(wanted));
  });
}

std::optional<ServeWanted> Feed::serve_wanted(int32_t i) {
  const std::scoped_lock lock(serving_);
  if (i < 0 || static_cast<size_t>(i) >= wanted_.size()) return std::nullopt;
  return wanted_[static_cast<size_t>(i)];
}

// The round is over, and each living consumer knows it, or there is none to know it.
bool Feed::is_round_ended(const TicketRing::RoundView& view) const {
  const ServedEnds ends = this->ends();
  if (!view.is_over || !ends.have_all_ended(view.base)) return false;
  return observe(ends.state().told) >= view.base || ends.count() == 0;
}

// Requires serving_. What the server has to tell, if it has.
ServeReport Feed::look_at_serving() {
  ServeReport report;
  const ServedEnds ends = this->ends();
  const ServedState& state = ends.state();
  if (!is_serving_ || workers_->is_dismissed()) {
    report.what = ServeWhat::kOver;
    report.batches = look(state.delivered);
    const SlotTable& table = ends.table();
    const uint64_t passed = table.passed();
    const uint64_t closing =
        std::min(observe(state.closing), passed + 1 + table.entries());  // 0: no round was begun
    for (uint64_t n = passed + 1; n < closing; ++n)
      report.batches += workers_->queue().look_at(n).kind == Tickets::Look::kBatch ? 1 : 0;
    return report;
  }
  ends.help();
  report.consumers = static_cast<int32_t>(ends.count());
  if (!has_gathered_) {
    if (static_cast<uint32_t>(report.consumers) < look(state.wants)) return report;
    read_wanted();
    has_gathered_ = true;
    report.what = ServeWhat::kGathered;
    return report;
  }
  if (is_beginning_) begin_served_round();
  if (!is_in_round_) return report;
  const TicketRing::RoundView view = workers_->queue().view_round();
  report.unread = static_cast<int32_t>(view.ready);
  report.is_filled = view.is_filled;
  const uint64_t tokens = look(state.tokens), held = std::min<uint64_t>(ends.held(), tokens);
  report.batches = look(state.delivered) + std::min(view.ready, tokens - held);
  if (!is_round_ended(view)) return report;
  is_in_round_ = false;
  report.what = ServeWhat::kEpochEnded;
  report.has_failure = view.failure.has_value();
  if (view.failure) note_failure(view.ticket, *view.failure);
  return report;
}

ServeReport Feed::serve_wait(int64_t timeout_ns) {
  check_process();
  const Deadline deadline(timeout_ns);
  const ServedEnds ends = this->ends();
  const std::atomic<uint32_t>& signals = ends.state().ends.signals;
  while (true) {
    const uint32_t seen = impl::look(signals);
    ends.reap_dead();
    ServeReport report;
    {
      const std::scoped_lock lock(serving_);
      report = look_at_serving();
      if (report.what != ServeWhat::kNothing) return report;
    }
    bool needs_slot = false;
    if (workers_->is_inline() && is_in_round_ && workers_->fill_inline(&needs_slot) &&
        !deadline.has_passed()) {
      continue;
    }
    if (options_.fill_timeout_ns > 0 && workers_->slots().control().shared().settled.has_sleepers())
      (void)give_up_hung(true);
    const int64_t left = deadline.is_never() ? kServeLookNs : std::min(deadline.left_ns(), kServeLookNs);
    if (left <= 0) return report;
    // A server that fills itself waits for what consumers let go of.
    Slots& slots = workers_->slots();
    Event& event = needs_slot ? slots.control().shared().room : ends.state().ends;
    (void)ends.sleep(
        slots.self(), event, Deadline(left),
        [&] {
          if (impl::look(signals) != seen || (needs_slot && slots.has_free())) return true;
          const std::scoped_lock lock(serving_);
          report = look_at_serving();
          return report.what != ServeWhat::kNothing;
        },
        [&](auto add) { ends.visit_consumers(add); });
    if (report.what != ServeWhat::kNothing) return report;
  }
}

void Feed::serve_next() {
  check_process();
  const std::scoped_lock lock(serving_);
  if (!is_serving_) throw_error(Code::kClosed, "the feed is not served any more");
  is_beginning_ = true;
  begin_served_round();
}

// Requires serving_. If a consumer still takes part in the last round, serve_wait() does it later. One that
// joins announces its word, then reads the version of the round: it or the server sees the other.
void Feed::begin_served_round() {
  const ServedEnds ends = this->ends();
  ServedState& state = ends.state();
  const bool has_begun =
      workers_->queue().begin_served([&](uint64_t base) { return ends.have_all_ended(base); },
                                     [&](const Tickets::Round& next) {
                                       store(state.closing, uint64_t{0});
                                       if (look(state.first_number) == 0) {
                                         ends.drop_wanted();
                                         store(state.first_batch, uint64_t{0});
                                         store(state.first_epoch, next.epoch);
                                         store(state.first_place, next.begin);
                                         publish(state.first_number, next.base);
                                       }
                                       publish(state.phase, ServedPhase::kServing);
                                     });
  if (!has_begun) return;
  is_beginning_ = false;
  is_in_round_ = true;
  if (WorkerProcesses* const processes = workers_->processes()) processes->note_begin();
}

// The first number of the round that consumers do not receive any more. It is said twice: first in a way that
// consumers wait at it. Then it moves behind what one has begun to receive meanwhile: a consumer announces a
// number, then looks at this one.
void Feed::serve_end() noexcept {
  if (process_.is_child()) return;
  const std::scoped_lock lock(serving_);
  if (!is_serving_.exchange(false)) return;
  Slots& slots = workers_->slots();
  const ServedEnds ends = this->ends();
  ServedState& state = ends.state();
  const SlotTable& table = slots.table();
  const TicketRing::RoundView view = workers_->queue().view_round();
  const uint64_t tokens = look(state.tokens), held = std::min<uint64_t>(ends.held(), tokens);
  const uint64_t passed = table.passed();
  uint64_t closing = passed + 1, left = std::min(view.ready, tokens - held);
  for (uint64_t n = closing; left > 0 && n <= passed + table.entries(); ++n) {
    const Tickets::Look::Kind kind = workers_->queue().look_at(n).kind;
    if (kind == Tickets::Look::kSkip) continue;
    if (kind != Tickets::Look::kBatch) break;
    closing = n + 1;
    --left;
  }
  announce(state.closing, closing | ServedState::kProvisional);
  ends.visit_consumers(
      [&](uint32_t place) { closing = std::max(closing, observe(state.records[place].cursor) + 1); });
  for (int32_t i = 0; i < slots.made(); ++i) {
    const auto slot = static_cast<uint32_t>(i);
    if (ends.is_read(slot)) closing = std::max(closing, SlotWord::number(table.word(slot)) + 1);
  }
  closing = std::max(closing, table.passed() + 1);
  announce(state.closing, closing);
  announce(state.phase, ServedPhase::kOver);
  workers_->queue().end_serving();
  for (Event* const event : {&slots.control().shared().settled, &state.ends}) event->signal_all();
}

ServeCounts Feed::serve_counts() const noexcept {
  ServeCounts counts;
  if (workers_->slots().served() == nullptr) return counts;
  const ServedEnds ends = this->ends();
  counts.consumers = static_cast<int32_t>(ends.count());
  counts.held = static_cast<int32_t>(ends.held());
  counts.batches = look(ends.state().delivered);
  counts.nbytes = look(ends.state().delivered_nbytes);
  counts.starved_ns = look(ends.state().starved_ns);
  return counts;
}

}  // namespace tenon::impl
