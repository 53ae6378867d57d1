// SPDX-License-Identifier: Apache-2.0
#include "data/filling.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>

#include "base/error.h"
#include "data/generator_call.h"
#include "data/seed.h"

namespace tenon::impl {

Filling::Filling(const FreeSlots& slots, std::byte* memory, Ref<Schema> schema, int32_t loop,
                 const Hooks& hooks)
    : slots_(slots),
      tickets_(slots),
      control_(slots.control()),
      memory_(memory),
      schema_(std::move(schema)),
      loop_(loop),
      worker_(loop),
      hooks_(hooks),
      skips_(shared().failed_in_a_row, shared().failed_skips) {
  known_.bytes.reserve(head().layout.state_nbytes);
}

// ------------------------------------------------------------------------------------------- before a fill

int32_t Filling::take_slot(const Deadline& deadline) noexcept {
  const uint32_t holder = FreeSlots::kFirstLoop + static_cast<uint32_t>(loop_);
  int32_t slot = slots_.try_take(holder);
  if (slot != FreeSlots::kNone || deadline.leaves_no_time()) return slot;
  const trace::Span span =
      hooks_.begin_blocked != nullptr ? hooks_.begin_blocked(hooks_.self) : trace::kNoSpan;
  const int64_t start = now_ns();
  const bool is_consumers = tickets_.has_ready();
  const bool is_found = SpinBudget::poll(short_wait_.budget_ns(), [&] {
    slot = slots_.try_take(holder);
    return slot != FreeSlots::kNone;
  });
  if (!is_found) slot = slots_.take(holder, deadline);
  const int64_t waited = now_ns() - start;
  trace::close(span, trace::key_of(hooks_.self), trace::SpanOutcome::kDone);
  short_wait_.note(waited);
  shared().blocked_ns.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
  if (is_consumers)
    shared().blocked_by_consumer_ns.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
  return slot;
}

Filling::JobTake Filling::take_job(const Deadline& deadline, Job& job) {
  while (true) {
    // Before it is its turn, a worker takes neither a slot nor the mutex of prepare.
    const Tickets::TicketTake turn = tickets_.await_turn(worker_, deadline);
    if (turn == Tickets::TicketTake::kStopped) return JobTake::kOver;
    if (turn == Tickets::TicketTake::kNone) return JobTake::kNone;
    const bool prepares = hooks_.prepare != nullptr;
    const bool is_asked = tickets_.take_asked(worker_, job);
    std::unique_lock<TimedMutex> preparing;
    std::string reason;
    bool has_memory = false;
    if (!is_asked) {
      // What another one has taken is not waited for with a slot that no one else may take.
      if (head().has(kPrepares) && worker_ != Tickets::kPreparer) {
        if (!deadline.leaves_no_time()) continue;
        return JobTake::kNone;
      }
      job.slot = take_slot(deadline);
      if (job.slot == FreeSlots::kOver) return JobTake::kOver;
      if (job.slot == FreeSlots::kNone) return JobTake::kNone;
      has_memory = hooks_.take_memory(hooks_.self, job.slot, reason);
      const int64_t left_ns = deadline.is_never() ? -1 : std::max<int64_t>(deadline.left_ns(), 0);
      if (prepares && !hooks_.preparing->lock_within(left_ns)) {
        slots_.give(job.slot);
        return JobTake::kNone;
      }
      if (prepares) preparing = std::unique_lock(*hooks_.preparing, std::adopt_lock);
      const Tickets::TicketTake taken = tickets_.take(worker_, job);
      if (taken != Tickets::TicketTake::kTicket) {
        slots_.give(job.slot);
        if (taken == Tickets::TicketTake::kStopped) return JobTake::kOver;
        // Another worker has taken the last one, or the epoch has ended.
        if (!deadline.leaves_no_time()) continue;
        return JobTake::kNone;
      }
    }
    job.retries = look(control_.record(static_cast<uint32_t>(job.slot)).attempt);
    job.seed = batch_seed(head().seed, job.epoch, job.index);
    job.epoch_seed = epoch_seed(head().seed, job.epoch);
    job.restore_nbytes = 0;
    // A consumer that runs the loop looks itself.
    const bool may_go_on = hooks_.is_inline || !deadline.leaves_no_time();
    // Fills behind the last delivered batch are undone.
    if (has_state() && worker_ != Tickets::kPreparer && !tickets_.start_state(job, worker_, known_)) {
      tickets_.skip(job);
      if (may_go_on) continue;
      return JobTake::kNone;
    }
    if (hooks_.begin_span != nullptr) hooks_.begin_span(hooks_.self, job);
    if (!has_memory && !hooks_.take_memory(hooks_.self, job.slot, reason)) {  // there may be some by now
      TicketFailure failure;
      failure.code = TENON_ERR_NO_MEMORY;
      failure.was_begun = 0;
      failure.set_message(reason.c_str());
      tickets_.fail(job, loop_, failure);
      if (may_go_on) continue;
      return JobTake::kNone;
    }
    if (is_asked) return JobTake::kJob;  // the slot is as it was written before
    reset_slot(head().layout, *schema_, data(job.slot));
    if (!prepares || hooks_.prepare(hooks_.self, job)) return JobTake::kJob;
    if (!may_go_on) return JobTake::kNone;  // each batch may be skipped
  }
}

void Filling::put_state(Job& job) noexcept {
  if (!has_state() || !std::exchange(known_.is_lost, false)) return;
  job.flags |= known_.number != 0 ? TENON_RESTORE_STATE : TENON_RESTORE_START;
  job.restore_nbytes = known_.bytes.size();
  if (!known_.bytes.empty())
    std::memcpy(head().layout.state(data(job.slot)), known_.bytes.data(), known_.bytes.size());
}

void Filling::put_back(const Job& job) noexcept {
  std::byte* const slot = data(job.slot);
  reset_slot(head().layout, *schema_, slot);
  if (job.attachment.empty()) return;
  std::memcpy(head().layout.attachment(slot), job.attachment.data(), job.attachment.size());
  head().layout.attached(slot) = job.attachment.size();
}

// ------------------------------------------------------------------------------------------- after a fill

// Texts that find no place are dropped: the statistics have the counts.
void Filling::report(std::string text) noexcept {
  if (hooks_.report != nullptr) return hooks_.report(hooks_.self, std::move(text));
  for (LoopRecord::Report& to : control_.loop(loop_).reports) {
    // pairs with: Workers::take_report, "a report"
    if (to.state.load(std::memory_order_acquire) != LoopRecord::Report::kFree) continue;
    std::strncpy(to.text, text.c_str(), sizeof to.text - 1);
    // pairs with: Workers::take_report, "a report"
    to.state.store(LoopRecord::Report::kComplete, std::memory_order_release);
    return;
  }
}

void Filling::note_unwritten(FillResult& result) noexcept {
  if (result.code != TENON_UNWRITTEN) return;
  result.code = 0;
  const bool is_first = shared().unwritten.fetch_add(1, std::memory_order_relaxed) == 0;
  std::string text = std::exchange(result.message, {});
  if (is_first && !text.empty()) report(std::move(text));
}

void Filling::check_shapes(const Job& job, FillResult& result) const {
  if (result.code != 0) return;
  const SlotLayout& layout = head().layout;
  std::byte* const slot = data(job.slot);
  const SchemaField* const wrong = find_wrong_shape(layout, *schema_, slot);
  if (wrong != nullptr) {
    result.code = -1;
    result.message =
        concat("it left field '", wrong->name, "' in a shape that does not fit into ",
               shape_text(wrong->shape), ", or with another number of rows than the first field");
  } else if (layout.attached(slot) > layout.attachment_nbytes) {
    result.code = -1;
    result.message = concat("it attached ", layout.attached(slot), " bytes where there is room for ",
                            layout.attachment_nbytes);
  }
}

void Filling::check_fill(const Job& job, FillResult& result) {
  note_unwritten(result);
  check_shapes(job, result);
  if (result.kind == TENON_FAILED)
    read_notes(job, result);  // a process that has ended may have begun to write
}

void Filling::read_notes(const Job& job, FillResult& result) const {
  const SlotLayout& layout = head().layout;
  std::byte* const slot = data(job.slot);
  if (result.code == 0 && (layout.notes(slot) & TENON_IGNORED_INDEX) != 0) result.notes |= kIgnoredIndex;
  if (!has_state()) return;
  const uint64_t nbytes = layout.stated(slot);
  if (nbytes <= layout.state_nbytes) {
    result.notes |= kHasState;
  } else if (result.code == 0) {
    result.code = -1;
    result.message =
        nbytes == SlotLayout::kNoState
            ? "it left no state"
            : concat("its state has ", nbytes, " bytes, and state_nbytes is ", layout.state_nbytes);
  }
}

bool Filling::has_attempts_left(const Job& job) const noexcept {
  return head().on_error == TENON_ON_ERROR_RETRY && job.retries < head().retries;
}

bool Filling::note_result(const Job& job, const FillResult& result) {
  const bool is_again = is_failure(result) && has_attempts_left(job) && !tickets_.is_past(job);
  if (has_state()) note_state(job, result, is_again);
  return is_again;
}

void Filling::note_state(const Job& job, const FillResult& result, bool is_again) {
  if (!is_again && (result.notes & kHasState) != 0) {
    const std::span<const std::byte> state = head().layout.state_in(data(job.slot));
    known_.bytes.assign(state.begin(), state.end());
    known_.number = job.number;
  } else if (is_again || result.code != TENON_END_OF_EPOCH || job.is_restored()) {
    known_.is_lost = true;  // an end may be said without the generator, which has its state then
  }
}

void Filling::retry(Job& job) noexcept {
  shared().retried.fetch_add(1, std::memory_order_relaxed);
  put_back(job);
  ++job.retries;
}

// Skips a batch that failed, and reports some. False: it is not to be skipped.
bool Filling::skip(const Job& job, const FillResult& result) noexcept {
  if (head().on_error != TENON_ON_ERROR_SKIP || !skips_.note_failure()) return false;
  tickets_.skip(job, result.notes);
  const uint64_t count = skips_.note_skip();
  if (count == 0) return true;
  try {
    const std::string_view last = trace::last_line_of(result.message);
    report(concat("generator '", head().generator, "' has failed at ", count,
                  " batches, which were skipped; the last one was ", ticket_text(job), ": ",
                  last.empty() ? failed_text(result.code, "") : last));
  } catch (const std::exception&) {  // no memory for the text
  }
  return true;
}

void Filling::settle(const Job& job, const FillResult& result, bool was_begun) noexcept {
  if (result.pid != 0) {
    SlotRecord& record = control_.record(static_cast<uint32_t>(job.slot));
    // pairs with: Workers::note_delivery, "a word that others look at"
    publish(record.pid, result.pid);
    publish(record.began_ns, result.began_ns);
    publish(record.fill_ns, result.fill_ns);
  }
  if (was_begun && is_failure(result)) control_.loop(worker_).times.note_failure();
  if (result.code == 0) {
    skips_.note_batch();
    control_.loop(worker_).times.note(result.fill_ns);
    tickets_.publish(job, result.notes);
  } else if (result.code == TENON_END_OF_EPOCH) {
    tickets_.finish(job, result.notes);
  } else if (result.code == TENON_NO_BATCH) {
    tickets_.skip(job, result.notes);
  } else if (!skip(job, result)) {
    TicketFailure failure;
    failure.kind = result.kind;
    failure.code = result.code;
    failure.worker = was_begun ? worker_ : -1;
    failure.pid = result.pid;
    failure.exit_signal = result.exit_signal;
    failure.exit_code = result.exit_code;
    const bool is_limit = head().on_error == TENON_ON_ERROR_SKIP;
    failure.set_message((is_limit ? Skips::limit_text() : "").append(result.message).c_str());
    tickets_.fail(job, loop_, failure, result.notes);
  }
}

}  // namespace tenon::impl
