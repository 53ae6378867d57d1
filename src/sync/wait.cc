// SPDX-License-Identifier: Apache-2.0
#include "sync/wait.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "sync/gate.h"
#include "sync/report.h"

namespace tenon::impl {

constinit thread_local ThisThread this_thread [[gnu::tls_model("initial-exec")]];

namespace {

constexpr int64_t kHelperSliceNs = 1'000'000;  // if the sleeper itself must run ready ops
constexpr int64_t kViewsNs = 50'000'000;
constexpr int64_t kOutlivedNs = 1'000'000'000;          // then views that outlived leases are reported
constexpr int64_t kMostBetweenLooksNs = 5'000'000'000;  // whatever the period of reports is

std::atomic<const Runner*> runner{nullptr};

bool has_own_threads() noexcept {
  // pairs with: set_runner, "what runs ops"
  const Runner* const r = runner.load(std::memory_order_acquire);
  return r == nullptr || r->has_own_threads();
}

}  // namespace

void set_runner(const Runner& new_runner) noexcept {
  // pairs with: has_own_threads, help, "what runs ops"
  runner.store(&new_runner, std::memory_order_release);
}

bool help() noexcept {
  // pairs with: set_runner, "what runs ops"
  const Runner* const r = runner.load(std::memory_order_acquire);
  return r != nullptr && r->help();
}

uint64_t current_task() noexcept {
  const auto current = wait_hooks().current_task;
  return current != nullptr ? current() : 0;
}

int64_t coarse_now_ms() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * 1000 + static_cast<uint32_t>(now.tv_nsec) / 1'000'000;
}

bool is_over(WaitEnd end, Conflict* conflict) noexcept {
  switch (end) {
    case WaitEnd::kOver: return true;
    case WaitEnd::kTimeout: conflict->reason = Conflict::Reason::kTimeout; break;
    case WaitEnd::kDeadlock: conflict->reason = Conflict::Reason::kDeadlock; break;
    case WaitEnd::kInterrupted: conflict->reason = Conflict::Reason::kInterrupted; break;
  }
  return false;
}

WaitGraph& WaitGraph::instance() noexcept {
  static constinit WaitGraph graph;
  return graph;
}

void WaitGraph::enter(WaitNode* node) noexcept {
  const std::scoped_lock lock(lock_);
  WaitNode*& first = chain_of(*node);
  node->previous = nullptr;
  node->next = first;
  node->is_entered = true;
  node->seen_by = 0;
  if (first != nullptr) first->previous = node;
  first = node;
}

bool WaitGraph::is_deadlock(const WaitNode& node, Holder* holder, bool* is_through_views) noexcept {
  if (has_empty_hands(node.request)) return false;
  const std::scoped_lock lock(lock_);
  try {
    // Twice: if another thread releases a lease during the first walk, the walk may find a cycle that never
    // existed at one time. The edges of a real cycle stay.
    return has_cycle(node, holder, is_through_views) && has_cycle(node, holder, is_through_views);
  } catch (const std::bad_alloc&) {
    return false;  // without memory for the walk the caller waits; the report of long waits names the holder
  }
}

bool WaitGraph::is_behind_host(const WaitNode& node, bool is_certain, Holder* holder) noexcept {
  if (!Queue::may_wait_for_views()) return false;
  const std::scoped_lock lock(lock_);
  try {
    return finds_host(node, is_certain, holder);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void WaitGraph::leave(WaitNode* node) noexcept {
  const std::scoped_lock lock(lock_);
  if (!node->is_entered) return;
  node->is_entered = false;
  (node->previous != nullptr ? node->previous->next : chain_of(*node)) = node->next;
  if (node->next != nullptr) node->next->previous = node->previous;
}

void WaitGraph::clear_after_fork() noexcept {
  Waiter::forget_others_after_fork();
  for (WaitNode*& first : chains_) {
    for (WaitNode* w = first; w != nullptr; w = w->next) w->is_entered = false;
    first = nullptr;
  }
}

// One walk, with the lock of the graph. It marks the ops and waiters that it visits with its number, and
// keeps the ops alive until it ends.
class WaitGraph::Walk {
 public:
  Walk(const WaitNode& from, WaitGraph& graph) : from_(from), graph_(graph), number_(++graph.walks_) {}
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;
  ~Walk() {
    for (Request* op : ops_) op->drop();
  }

  // Walks until `what` is set or everything has been visited.
  bool meets(std::optional<Holder> Walk::* what, Holder* holder) {
    follow(from_);
    size_t next_op = 0;
    while (!(this->*what) && (next_op < ops_.size() || waiters_ != nullptr)) {
      if (next_op < ops_.size()) {
        follow(*ops_[next_op++]);
      } else {
        follow(*std::exchange(waiters_, waiters_->next_seen));
      }
    }
    if (this->*what && holder != nullptr) *holder = *(this->*what);
    return (this->*what).has_value();
  }

  std::optional<Holder> own_lease;     // or ended part, of the node at which the walk started
  std::optional<Holder> host_view;     // for which a visited part waits
  std::optional<Holder> certain_view;  // the same, which no other library has
  bool is_through_views = false;       // it went over an ended part

 private:
  void follow(const WaitNode& node) { node.waits_for_all ? follow_all() : follow(*node.request); }

  // Visits the ops in all queues.
  void follow_all() {
    ListedQueues::visit([this](const Queue& queue) {
      for (const RequestPart* e = queue.first(); e != nullptr; e = e->next) {
        if (e->request->kind == HolderKind::kOp) visit(*e);
      }
    });
  }

  void follow(Request& request) {
    for (const RequestPart& part : request.parts) {
      if (!part.is_appended) continue;
      const std::scoped_lock lock(part.queue->lock);
      if (!part.is_queued || part.is_granted) continue;
      // Parts before seen_to have been visited, from a later part that excludes all others.
      uint64_t& seen_to = part.queue->seen_to(number_);
      const bool excludes_all = part.access == Access::kWrite && part.queue->are_whole(part, part) &&
                                !part.queue->has_ended_parts();
      for (const RequestPart* e = part.previous; e != nullptr && e->sequence >= seen_to; e = e->previous) {
        if (Queue::waits_for(part, *e)) visit(*e);
      }
      if (excludes_all) seen_to = std::max(seen_to, part.sequence);
      for (const RequestPart* e = part.is_ahead ? part.next : nullptr; e != nullptr; e = e->next) {
        if (e->is_granted && Queue::waits_for(part, *e)) visit(*e);
      }
      for (const View* v = part.waits_for_host ? part.queue->first_view() : nullptr; v != nullptr;
           v = v->next) {
        if (in_conflict(v->access, v->extent, part.access, part.extent)) note(*v, Holder::of(*v));
      }
    }
  }

  void note(const View& view, const Holder& holder) {
    if (!host_view) host_view = holder;
    if (!certain_view && !view.is_exported) certain_view = holder;
  }

  // Adds the waiters of this actor to those to be followed: its task, and its thread if that sleeps.
  void add(Actor actor) noexcept {
    WaitNode* const of_thread = graph_.chain_of(actor.thread, 0);
    for (WaitNode* w = of_thread; w != nullptr; w = w->next) add_if(w, w->is_thread, actor);
    for (WaitNode* w = graph_.chain_of(actor.thread, actor.task); w != nullptr; w = w->next) {
      add_if(w, !w->is_thread, actor);
    }
  }
  void add_if(WaitNode* w, bool is_of_kind, Actor actor) noexcept {
    if (!is_of_kind || w->seen_by == number_) return;
    if (w->is_thread ? w->actor.thread != actor.thread : !(w->actor == actor)) return;
    w->seen_by = number_;
    w->next_seen = std::exchange(waiters_, w);
  }

  // Requires the lock of the queue of the part.
  void visit(const RequestPart& part) {
    Request& request = *part.request;
    if (request.kind == HolderKind::kOp) {
      if (request.missing.load(std::memory_order_relaxed) == 0 || request.seen_by == number_) return;
      ops_.push_back(&request);
      request.seen_by = number_;
      request.hold();
      return;
    }
    if (part.is_ended) {
      note(*part.views, Holder::of(part));
      if (part.views->is_exported) return;
      is_through_views = true;
    }
    if (request.is_detached.load(std::memory_order_relaxed)) return;
    const Actor owner = request.owner;
    if (part.is_granted && is_from(owner)) {
      own_lease = Holder::of(part);
      return;
    }
    add(owner);
  }

  // While a thread sleeps, none of its tasks can continue.
  bool is_from(Actor owner) const noexcept {
    return from_.is_thread ? owner.thread == from_.actor.thread : owner == from_.actor;
  }

  const WaitNode& from_;
  WaitGraph& graph_;
  const uint64_t number_;
  std::vector<Request*> ops_;
  WaitNode* waiters_ = nullptr;  // to be followed
};

bool WaitGraph::has_cycle(const WaitNode& node, Holder* holder, bool* is_through_views) {
  Walk walk(node, *this);
  const bool is_found = walk.meets(&Walk::own_lease, holder);
  if (is_through_views != nullptr) *is_through_views = walk.is_through_views;
  return is_found;
}

bool WaitGraph::finds_host(const WaitNode& node, bool is_certain, Holder* holder) {
  return Walk(node, *this).meets(is_certain ? &Walk::certain_view : &Walk::host_view, holder);
}

namespace {

// A cycle through views to which no object refers is not a deadlock: is_alone() closes these first.
bool is_true_deadlock(const WaitNode& node, Holder* holder, void* token) noexcept {
  WaitGraph& graph = WaitGraph::instance();
  bool is_through_views = false;
  if (!graph.is_deadlock(node, holder, &is_through_views)) return false;
  if (!is_through_views || wait_hooks().is_alone == nullptr) return true;
  (void)wait_hooks().is_alone(token);
  return graph.is_deadlock(node, holder);
}

}  // namespace

namespace detail {

void WaitSpan::open(const WaitNode& node) noexcept {
  span_ = trace::open(trace::SpanKind::kWait, trace::key_of(this), [&](trace::Record& record) {
    trace::SpanText name(record.name);
    const char* site = nullptr;
    if (node.waits_for_all) {
      name << (node.is_pusher ? "wait for room to push" : "wait for all ops");
    } else if (node.request->is_for_view()) {
      name << "wait to take a view";
      site = node.request->site;
    } else {
      const Request& request = *node.request;
      if (request.kind == HolderKind::kOp) {
        name << "wait for op '" << (request.name != nullptr ? request.name : "") << "'";
        record.index = request.number();
      } else if (request.name != nullptr) {
        name << (request.kind == HolderKind::kCall ? "wait for the call of " : "") << request.name;
      } else {
        name << "wait for a lease";
      }
      site = request.site;
    }
    trace::copy_end(record.site, site);
  });
}

WaitEnd CycleSleep::while_equal(const std::atomic<uint32_t>& word, uint32_t value, Holder* holder) noexcept {
  const int64_t waited = waiter_.waited_ns();
  const bool is_due = waited >= next_look_ns_;
  const bool is_again = (node_.waits_for_all && waited - walked_ns_ >= kViewsNs) ||
                        (is_due && new_owners_ != Queue::new_owners());
  const bool is_to_walk = walked_ns_ == 0 ? is_due || deadline_.has_passed() : is_again;
  if (is_to_walk && is_cycle(holder)) return WaitEnd::kDeadlock;
  if (waited >= next_look_ns_ && is_held_by_views(holder)) return WaitEnd::kDeadlock;
  const int64_t slice = has_own_threads() ? INT64_MAX : kHelperSliceNs;
  return waiter_.sleep(
      std::clamp<int64_t>(next_look_ns_ - waited, 0, slice),
      [&](int64_t ns) { return futex_wait_for(word, value, ns) == FutexWait::kWoken; },
      [&] {
        std::string text = text_of_wait(node_);
        return text.empty() ? text : "behind " + text;
      });
}

// Usually once, because the thread that closes a cycle later finds it. A wait for all ops repeats it,
// because the body of an op may push further ops. And the end of a detached lease may close one: then what
// outlived it has an owner.
bool CycleSleep::is_cycle(Holder* holder) noexcept {
  new_owners_ = Queue::new_owners();
  if (walked_ns_ == 0) next_look_ns_ = kViewsNs;
  walked_ns_ = waiter_.waited_ns();
  return is_true_deadlock(node_, holder, waiter_.token());
}

bool CycleSleep::is_held_by_views(Holder* holder) noexcept {
  const int64_t waited = waiter_.waited_ns();
  next_look_ns_ =
      waited < kOutlivedNs ? kOutlivedNs : std::min(next_report_ns(waited), waited + kMostBetweenLooksNs);
  WaitGraph& graph = WaitGraph::instance();
  const auto is_alone = wait_hooks().is_alone;
  if (is_alone != nullptr && graph.is_behind_host(node_, false, nullptr) && is_alone(waiter_.token()) != 0 &&
      graph.is_behind_host(node_, true, holder)) {
    return true;
  }
  if (waited >= kOutlivedNs) report_outlived_views(node_);
  return false;
}

}  // namespace detail

void BlockingRequest::become_ready() noexcept {
  if (pending_ != nullptr) {
    if (is_gated && !pass_gates(*this)) return;
    if (is_refused) withdraw(*this);
    PendingRequest& pending = *pending_;
    // pairs with: BlockingRequest::submit, "a request and its grant"
    if (pending.steps_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    WaitGraph::instance().leave(&pending.node);
    trace::mark(span, trace::key_of(static_cast<Request*>(this)), trace::kReady);
    pending.done(pending.context);  // may destroy both requests
    return;
  }
  // pairs with: BlockingRequest::acquire, "what was waited for"
  is_ready_.store(1, std::memory_order_release);
  futex_wake_all(is_ready_);
}

void BlockingRequest::refuse_at_gates(const Conflict& conflict) noexcept {
  pending_->is_refused = true;
  pending_->conflict = conflict;
}

// Passes the gates after the request has been granted in its queues.
bool BlockingRequest::pass_or_withdraw(const Deadline& deadline, Conflict* conflict) noexcept {
  const bool has_own_time = heeds_gate_timeout && deadline.is_never();
  const Deadline limit = has_own_time ? Deadline::from_first_look(gate_timeout_ns()) : deadline;
  conflict->timeout_ns = limit.timeout_ns();
  if (enter_gates(*this, limit, conflict)) return true;
  withdraw(*this);
  return false;
}

namespace {

// Of a request that has been granted in its queues.
bool has_grants(const Request& request) noexcept {
  return !request.is_gated || std::ranges::none_of(request.parts, &RequestPart::needs_grant);
}

// The first part that is not granted; null: all have been granted meanwhile.
const RequestPart* first_missing(const Request& request) noexcept {
  for (const RequestPart& part : request.parts) {
    if (!part.is_appended) continue;
    const std::scoped_lock lock(part.queue->lock);
    if (part.is_queued && !part.is_granted) return &part;
  }
  return nullptr;
}

}  // namespace

bool BlockingRequest::acquire(const Deadline& deadline, Conflict* conflict) noexcept {
  return acquire_idle() || acquire_locked(deadline, conflict);
}

bool BlockingRequest::acquire_locked(const Deadline& deadline, Conflict* conflict) noexcept {
  is_ready_.store(0, std::memory_order_relaxed);
  pending_ = nullptr;  // of an earlier submit()
  const Appended appended = append_locked(*this, OnHost::kIgnore, conflict);
  if (appended == Appended::kRefused) return false;
  if (appended == Appended::kGranted) return has_grants(*this) || pass_or_withdraw(deadline, conflict);
  WaitNode node;
  node.actor = owner;
  node.is_thread = owner.thread == this_thread_id();  // else it waits on behalf of another thread
  node.request = this;
  conflict->timeout_ns = deadline.timeout_ns();
  // pairs with: BlockingRequest::become_ready, "what was waited for"
  const auto is_ready = [](uint32_t value) { return value == 1; };
  if (this_thread.running != 0) {
    conflict->reason = Conflict::Reason::kInBody;
  } else if (impl::is_over(wait(node, is_ready_, is_ready, deadline, &conflict->holder), conflict)) {
    return !is_gated || pass_or_withdraw(deadline, conflict);
  }
  conflict->part = first_missing(*this);
  if (cancel(*this)) return false;
  // It was granted at the last moment: another thread will call become_ready(), and this object must exist
  // until then. That thread may first need the lock of the language, for a request that became ready before.
  {
    const Waiter gives_lock_away;
    // pairs with: BlockingRequest::become_ready, "what was waited for"
    while (is_ready_.load(std::memory_order_acquire) == 0) relax_processor();
  }
  if (conflict->reason != Conflict::Reason::kInterrupted) {
    return !is_gated || pass_or_withdraw(deadline, conflict);
  }
  release(*this, false);  // the caller gets the interrupt as an error
  return false;
}

Appended BlockingRequest::submit(PendingRequest* pending, Conflict* conflict) noexcept {
  pending_ = pending;
  Appended appended = append(*this, OnHost::kIgnore, conflict);
  if (appended == Appended::kGranted && is_gated) {
    if (!pass_gates(*this)) {
      appended = Appended::kWaiting;
    } else if (is_refused) {
      withdraw(*this);
    }
  }
  if (appended != Appended::kWaiting) return appended;
  WaitGraph& graph = WaitGraph::instance();
  pending->node.actor = owner;
  pending->node.is_thread = false;
  pending->node.request = this;
  graph.enter(&pending->node);
  bool is_hopeless = true;
  if (this_thread.running != 0) {
    conflict->reason = Conflict::Reason::kInBody;
  } else if (is_true_deadlock(pending->node, &conflict->holder, nullptr)) {
    conflict->reason = Conflict::Reason::kDeadlock;
  } else {
    is_hopeless = false;
  }
  if (is_hopeless && cancel(*this)) {
    graph.leave(&pending->node);
    return Appended::kRefused;
  }
  // pairs with: BlockingRequest::become_ready, "a request and its grant"
  if (pending->steps_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return Appended::kWaiting;
  graph.leave(&pending->node);
  return Appended::kGranted;
}

bool open_view(View& view, bool may_weaken, const Deadline& deadline, Conflict* conflict) noexcept {
  Appended opened = try_open_view(view, may_weaken, conflict);
  while (opened == Appended::kWaiting) {
    RequestPart part;
    part.home = view.home;
    part.extent = view.extent;
    part.access = view.access;
    BlockingRequest turn(HolderKind::kCall, {&part, 1});
    turn.traits = Request::kForView | (view.device != nullptr ? Request::kOnStream : 0);
    turn.site = view.site;
    turn.owner = actor_of_task(0);
    turn.since_ms = coarse_now_ms();
    if (!turn.acquire(deadline, conflict)) return false;
    opened = try_open_view(view, may_weaken, conflict);  // under the turn
    release(turn);
  }
  return opened == Appended::kGranted;
}

}  // namespace tenon::impl
