// SPDX-License-Identifier: Apache-2.0
#include "exec/recording.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/foreign_call.h"
#include "exec/engine.h"

namespace tenon::impl {

// A thread that runs steps, and the step whose body it runs.
struct Recording::Runner {
  explicit Runner(const Recording& of) noexcept : recording(of) {}

  const Recording& recording;
  uint32_t step = kNone;
  bool has_ended = false;  // the body has called complete() or fail()
  uint32_t next = kNone;   // a step that became ready
  uint32_t root = 0;       // the roots that it has claimed
  uint32_t last_root = 0;
  uint32_t n_done = 0;

  // Of this thread; null: none.
  static constinit thread_local Runner* here [[gnu::tls_model("initial-exec")]];
};

constinit thread_local Recording::Runner* Recording::Runner::here [[gnu::tls_model("initial-exec")]] =
    nullptr;

// Bodies that run in this thread run for this op meanwhile.
class Recording::InOp {
 public:
  explicit InOp(Op& op) noexcept : outer_(this_thread) {
    this_thread.running = op.number();
    this_thread.running_request = &op;
  }
  InOp(const InOp&) = delete;
  InOp& operator=(const InOp&) = delete;
  ~InOp() {
    this_thread.running = outer_.running;
    this_thread.running_request = outer_.running_request;
  }

 private:
  const ThisThread outer_;
};

Ref<Recording> Recording::create() { return Ref<Recording>::adopt(new Recording); }

void Recording::release() noexcept {
  if (!owners_.decrement()) return;
  // The last first: the array of a body lives until the body has been dropped.
  for (size_t i = kept_.size(); i-- > 0;) kept_[i].drop(kept_[i].object);
  release_memory();
}

Recording::~Recording() {
  Parts* parts = spare_.load(std::memory_order_relaxed);
  while (parts != nullptr) ::operator delete(std::exchange(parts, parts->next));
}

void Recording::release_memory() noexcept {
  if (refs_.decrement()) delete this;
}

// last: a copy that was made before; it serves for an equal text.
const char* Recording::copy(const char* text, const char* last) {
  if (text == nullptr) return nullptr;
  if (last != nullptr && std::strcmp(text, last) == 0) return last;
  const size_t size = std::strlen(text) + 1;
  const auto& made = copies_.emplace_back(std::make_unique<char[]>(size));
  return static_cast<const char*>(std::memcpy(made.get(), text, size));
}

void Recording::begin_add(const RecordedBody& body, const BodyTexts& texts) {
  if (is_prepared_) {
    throw_error(Code::kValue, "the recording has been replayed, and cannot be extended: make another one");
  }
  if (is_incomplete_) throw_error(Code::kNoMemory, "there was no memory for a body of the recording");
  is_incomplete_ = true;
  const BodyTexts copied{copy(texts.name, last_texts_.name), copy(texts.site, last_texts_.site)};
  if (copied.name != last_texts_.name || copied.site != last_texts_.site) {
    texts_.push_back({size(), copied});
    last_texts_ = copied;
  }
  steps_.push_back({body});
  graph_.add_step();
}

BodyTexts Recording::texts_of(uint32_t step) const noexcept {
  const auto behind = std::upper_bound(texts_.begin(), texts_.end(), step,
                                       [](uint32_t a, const TextsFrom& b) { return a < b.step; });
  return behind != texts_.begin() ? std::prev(behind)->texts : BodyTexts{};
}

bool Recording::is_new(const void* object) noexcept {
  return std::exchange(recent_[reinterpret_cast<uintptr_t>(object) / 64 % recent_.size()], object) != object;
}

void Recording::prepare() {
  std::vector<StepUse> claims = graph_.claims();
  const auto is_write = [](const StepUse& claim) { return claim.access == Access::kWrite; };
  if (std::none_of(claims.begin(), claims.end(), is_write)) {
    // The end of a queue takes long if many are listed, so a recording has one only if it needs it. It is
    // listed now, so that the first op is appended as the later ones.
    turn_ = std::make_unique<Turn>();
    turn_->queue.lock.lock();
    turn_->queue.lock.unlock();
    // Overwritten, because a failure of one op does not concern the next.
    claims.push_back({&turn_->home, Extent(), Access::kWrite, true});
  }
  // In the order of their queues, so that append() need not sort the parts. The queues are read once: a home
  // may get another one meanwhile.
  std::vector<std::pair<const Queue*, const StepUse*>> sorted;
  sorted.reserve(claims.size());
  for (const StepUse& claim : claims)
    sorted.emplace_back(claim.home->load(std::memory_order_relaxed), &claim);
  if (!std::is_sorted(sorted.begin(), sorted.end())) std::sort(sorted.begin(), sorted.end());
  claims_.clear();
  for (const auto& [queue, claim] : sorted) claims_.push_back(*claim);
  roots_.clear();
  edges_.clear();
  edges_.reserve(graph_.n_edges());
  for (uint32_t i = 0; i < size(); ++i) {
    graph_.visit_after(i, [this](uint32_t after) { edges_.push_back(after); });
    Step& step = steps_[i];
    step.edges_end = static_cast<uint32_t>(edges_.size());
    step.n_before = graph_.n_before(i);
    if (step.n_before == 0) roots_.push_back(i);
  }
  n_threads_ = static_cast<uint32_t>(Engine::instance().concurrency()) + 1;  // and one that waits
  start_anew();
  is_prepared_ = true;
}

// No op runs here: none has begun, or it runs in the parent of this process.
void Recording::start_anew() noexcept {
  for (Step& step : steps_) step.waits_for = step.n_before;
  ready_.store(kNone, std::memory_order_relaxed);
  new (&ready_lock_) SpinLock;
  is_helper_posted_.store(false, std::memory_order_relaxed);
  failure_ = {};  // of an op that runs in the parent
  process_ = ForkMark();
}

Ref<Op> Recording::make_op(const char* name, const char* site) {
  if (is_incomplete_) throw_error(Code::kNoMemory, "there was no memory for a body of the recording");
  if (!is_prepared_) prepare();
  Ref<Op> op = Op::create({this, run, drop}, 0, name != nullptr ? name : "replay", site);
  op->parts = {take_parts(), claims_.size()};
  retain();
  op->set_bodies(*this);
  if (needs_lock_) op->traits = Request::kNeedsLock;
  return op;
}

// Takes all that is spare, keeps the first and puts the rest back. The rest may be long: its end is looked
// for only if others have come meanwhile. A child that is forked between the two has none of them.
RequestPart* Recording::take_parts() {
  // pairs with: Recording::keep_parts, "parts of an op that was destroyed"
  if (Parts* const spare = spare_.exchange(nullptr, std::memory_order_acquire)) {
    spare_nbytes_.fetch_sub(parts_nbytes(), std::memory_order_relaxed);
    Parts* const rest = spare->next;
    Parts* none = nullptr;
    // pairs with: Recording::take_parts, "parts of an op that was destroyed"
    if (!spare_.compare_exchange_strong(none, rest, std::memory_order_release, std::memory_order_relaxed) &&
        rest != nullptr) {
      Parts* last = rest;
      while (last->next != nullptr) last = last->next;
      keep_parts(rest, last);
    }
    return spare->first();
  }
  RequestPart* const first = (new (::operator new(parts_nbytes())) Parts)->first();
  RequestPart* part = first;
  for (const StepUse& claim : claims_) {
    new (part) RequestPart;
    part->home = claim.home;
    part->extent = claim.extent;
    part->access = claim.access;
    part->is_overwrite = claim.is_overwrite;
    ++part;
  }
  return first;
}

void Recording::keep_parts(Parts* first, Parts* last) noexcept {
  Parts* head = spare_.load(std::memory_order_relaxed);
  do {
    last->next = head;
    // pairs with: Recording::take_parts, "parts of an op that was destroyed"
  } while (!spare_.compare_exchange_weak(head, first, std::memory_order_release, std::memory_order_relaxed));
}

void Recording::end_op(const Op& op) noexcept {
  Parts* const parts = reinterpret_cast<Parts*>(op.parts.data()) - 1;
  const size_t nbytes = parts_nbytes();
  if (op.keeps_parts && spare_nbytes_.load(std::memory_order_relaxed) + nbytes <= kMostSpare) {
    spare_nbytes_.fetch_add(nbytes, std::memory_order_relaxed);
    keep_parts(parts, parts);
  } else {
    ::operator delete(parts);
  }
  release_memory();
}

void Recording::drop(void* context) {
  auto& self = *static_cast<Recording*>(context);
  if (self.turn_ != nullptr && self.turn_->queue.has_failures.load(std::memory_order_relaxed))
    (void)clear_failures(self.turn_->home, Extent(), nullptr);
  self.release();
}

// The body of each op: runs on the thread that runs the op.
void Recording::run(void* context, Op* op) {
  auto& self = *static_cast<Recording*>(context);
  if (self.process_.is_child()) [[unlikely]]
    self.start_anew();
  if (self.size() == 0) return op->end_bodies({});
  self.op_ = op;
  self.has_failed_.store(false, std::memory_order_relaxed);
  self.unfinished_.store(self.size(), std::memory_order_relaxed);
  // pairs with: Recording::claim_roots, "the op of a recording"
  self.next_root_.store(0, std::memory_order_release);
  self.work();
}

// Late calls of it find nothing, or steps of the op that runs now.
Task* Recording::Helper::run() noexcept {
  Recording& self = recording_;
  // pairs with: Recording::call_helper, "ready steps, or a helper that was given back"
  self.is_helper_posted_.exchange(false, std::memory_order_acq_rel);
  self.work();
  self.release_memory();
  return nullptr;
}

void Recording::call_helper() noexcept {
  // pairs with: Helper::run, "ready steps, or a helper that was given back"
  if (is_helper_posted_.exchange(true, std::memory_order_acq_rel)) return;
  retain_memory();
  Engine::instance().executor().post(&helper_);
}

// Runs steps as long as it finds one.
void Recording::work() noexcept {
  Runner runner(*this);
  if (!find_step(&runner)) return;
  Op& op = *op_;  // it does not end before the steps that this thread takes
  {
    const InOp in_op(op);
    Runner* const outer = std::exchange(Runner::here, &runner);
    const auto run = [this, &runner] { run_steps(&runner); };
    while (!has_returned(run)) {
      // The body has ended its thread, which continues here.
      if (!runner.has_ended) fail_step(&runner, kEndedThread);
      end_step(&runner);
      if (!find_step(&runner)) break;
    }
    Runner::here = outer;
  }
  // pairs with: Recording::work, "what all steps have written"
  const bool is_last = unfinished_.load(std::memory_order_acquire) == runner.n_done;
  // pairs with: Recording::work, "what all steps have written"
  if (is_last || unfinished_.fetch_sub(runner.n_done, std::memory_order_acq_rel) == runner.n_done)
    op.end_bodies(std::move(failure_));
}

// Begins with the step that was found.
void Recording::run_steps(Runner* runner) {
  do {
    run_step(runner);
    end_step(runner);
  } while (find_step(runner));
}

bool Recording::find_step(Runner* runner) noexcept {
  runner->step = std::exchange(runner->next, kNone);
  if (runner->step != kNone) return true;
  if (runner->root == runner->last_root) {
    runner->step = pop_ready();
    if (runner->step != kNone) {
      if (ready_.load(std::memory_order_relaxed) != kNone) call_helper();
      return true;
    }
    if (!claim_roots(runner)) return false;
  }
  runner->step = roots_[runner->root++];
  return true;
}

// Takes a share of the roots that are left. Several, because each claim costs the transfer of a cache line;
// but no other thread can take them back.
bool Recording::claim_roots(Runner* runner) noexcept {
  constexpr uint32_t kMost = 16;
  const auto n_roots = static_cast<uint32_t>(roots_.size());
  uint32_t root = next_root_.load(std::memory_order_relaxed);
  while (root < n_roots) {
    const uint32_t end = root + std::clamp((n_roots - root) / (2 * n_threads_), 1u, kMost);
    // pairs with: Recording::run, "the op of a recording"
    if (!next_root_.compare_exchange_weak(root, end, std::memory_order_acquire, std::memory_order_relaxed))
      continue;
    runner->root = root;
    runner->last_root = end;
    if (end < n_roots) call_helper();
    return true;
  }
  return false;
}

void Recording::push_ready(uint32_t step) noexcept {
  {
    const std::scoped_lock lock(ready_lock_);
    steps_[step].next_ready = ready_.load(std::memory_order_relaxed);
    ready_.store(step, std::memory_order_relaxed);
  }
  call_helper();
}

uint32_t Recording::pop_ready() noexcept {
  if (ready_.load(std::memory_order_relaxed) == kNone) return kNone;
  const std::scoped_lock lock(ready_lock_);
  const uint32_t step = ready_.load(std::memory_order_relaxed);
  if (step != kNone) ready_.store(steps_[step].next_ready, std::memory_order_relaxed);
  return step;
}

// After a failure the steps that have not begun are skipped.
void Recording::run_step(Runner* runner) {
  if (has_failed_.load(std::memory_order_relaxed)) [[unlikely]]
    return;
  const RecordedBody& body = steps_[runner->step].body;
  runner->has_ended = false;
  Op& op = *op_;  // in a forked child, the body may have run other ops of the recording
  body.run(body.context, reinterpret_cast<tenon_op*>(&op));
  if (this_thread.running_request != &op) [[unlikely]]
    op.end_forked_child();
  if (runner->has_ended) [[likely]]
    return;
  fail_step(
      runner,
      "its body returned before it had completed or failed the op: a recorded body cannot end later, on "
      "another thread");
}

// A body that has not ended the op, and cannot do so any more.
void Recording::fail_step(Runner* runner, const char* message) noexcept {
  // A thread may have the op and end it later, without effect.
  if (last_kept_.exchange(op_, std::memory_order_relaxed) != op_) op_->keep_for_ever();
  const auto [name, site] = texts_of(runner->step);
  note_failure(Failure::make(Code::kOp, message, name, site));
}

// This thread runs one of the steps that have become ready; the others are left to all.
void Recording::end_step(Runner* runner) noexcept {
  ++runner->n_done;
  const Step& ended = steps_[runner->step];
  for (uint32_t i = runner->step != 0 ? (&ended)[-1].edges_end : 0; i < ended.edges_end; ++i) {
    Step& after = steps_[edges_[i]];
    const std::atomic_ref<uint32_t> waits_for(after.waits_for);
    // pairs with: Recording::end_step, "what the steps before have written"
    const bool is_last = waits_for.load(std::memory_order_acquire) == 1;
    // pairs with: Recording::end_step, "what the steps before have written"
    if (!is_last && waits_for.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    waits_for.store(after.n_before, std::memory_order_relaxed);
    if (runner->next == kNone) {
      runner->next = edges_[i];
    } else {
      push_ready(edges_[i]);
    }
  }
}

void Recording::end_body(const Op& op, Ref<Failure> failure) noexcept {
  Runner* const runner = Runner::here;
  if (runner == nullptr || this_thread.running_request != &op || std::exchange(runner->has_ended, true))
    return;
  if (failure) note_failure(std::move(failure));
}

BodyTexts Recording::texts() const noexcept {
  const Runner* const runner = Runner::here;
  return runner != nullptr && &runner->recording == this ? texts_of(runner->step) : BodyTexts{};
}

void Recording::note_failure(Ref<Failure> failure) noexcept {
  if (!has_failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::move(failure);
}

}  // namespace tenon::impl
