// SPDX-License-Identifier: Apache-2.0
#include "sync/report.h"

#include <array>
#include <mutex>
#include <new>
#include <utility>

#include "base/error.h"
#include "sync/gate.h"

namespace tenon::impl {
namespace {

constexpr size_t kMostLinks = 4;     // that are named
constexpr int kMostSteps = 100;      // that are gone
constexpr size_t kMostViews = 4;     // that are reported at a time
constexpr size_t kMostFound = 1024;  // bytes

// Set once, when the binding is loaded.
ViewFinder find_views = nullptr;

// An op on the way, kept alive.
class Step {
 public:
  Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step() { set(nullptr); }
  void set(Claim* held) noexcept {
    if (Claim* const before = std::exchange(op_, held)) before->drop();
  }

 private:
  Claim* op_ = nullptr;
};

struct Link {
  Obstacle obstacle;
  Claim* op = nullptr;  // if it is one: held
};

// Whatever keeps an entry, which its claim waits for, from being granted. Requires the lock of the queue.
bool find_blocker(const Entry& entry, Link* link) noexcept {
  if (entry.is_granted) return false;
  Entry* e = entry.queue->first();
  for (bool is_behind = false; e != nullptr; e = e->next) {
    is_behind |= e == &entry;
    if (e->claim == entry.claim || !conflict(entry.access, entry.extent, e->access, e->extent)) continue;
    if (!is_behind || (entry.is_ahead && e->is_granted)) break;
  }
  const View* const view = entry.queue->view_in_the_way(entry);
  if (e != nullptr) {
    link->obstacle = Obstacle::of(*e);
    if (e->claim->party == Party::kOp) {
      link->op = e->claim;
      link->op->hold();
    }
  } else if (view != nullptr) {
    link->obstacle = Obstacle::of(*view);
  }
  return e != nullptr || view != nullptr;
}

// What a claim waits for, in its queues or at a gate.
bool look_at(Claim& claim, Link* link) noexcept {
  for (const Entry& entry : claim.entries) {
    if (entry.sequence == 0) continue;
    const std::scoped_lock lock(entry.queue->lock);
    if (entry.is_queued && find_blocker(entry, link)) return true;
  }
  return describe_at_gates(claim, &link->obstacle);
}

// An op that is unfinished, held: one that waits rather than one that runs. Null: there is none.
Claim* any_op() noexcept {
  struct Search {
    Claim* op = nullptr;
    bool is_waiting = false;
    Claim* replaced = nullptr;
  } search;
  const auto look = [](Queue& queue, void* context) {
    auto& s = *static_cast<Search*>(context);
    if (s.is_waiting) return;
    const std::scoped_lock lock(queue.lock);
    for (const Entry* e = queue.first(); e != nullptr && !s.is_waiting; e = e->next) {
      if (e->claim->party != Party::kOp) continue;
      const bool is_waiting = !e->is_granted || e->needs_pass;
      if (s.op != nullptr && !is_waiting) continue;
      s.replaced = std::exchange(s.op, e->claim);
      s.op->hold();
      s.is_waiting = is_waiting;
    }
  };
  visit_queues(look, &search);
  if (search.replaced != nullptr) search.replaced->drop();
  return search.op;
}

// From a waiter to what holds it up in the end: each waits for the next one. An op for which the waiter waits
// is the first. Of a long way the first links and the last one are kept.
struct Way {
  std::array<Obstacle, kMostLinks> links;
  size_t count = 0;
  bool is_cut = false;

  void add(const Obstacle& obstacle) noexcept {
    is_cut |= count == kMostLinks;
    if (count < kMostLinks) ++count;
    links[count - 1] = obstacle;
  }
};

// Calls visit with each claim that waits on the way.
template <class Visit>
Way way_of(const Waiter& waiter, Visit visit) noexcept {
  Way way;
  Step step;
  Claim* claim = waiter.claim;
  if (waiter.waits_for_all) {
    claim = any_op();
    step.set(claim);
  }
  if (claim != nullptr && claim->party == Party::kOp) {
    for (const Entry& entry : claim->entries) {
      if (entry.sequence == 0) continue;
      const std::scoped_lock lock(entry.queue->lock);
      if (!entry.is_queued) continue;
      way.add(Obstacle::of(entry));
      break;
    }
  }
  for (int i = 0; claim != nullptr && i < kMostSteps; ++i) {
    visit(*claim);
    Link link;
    if (!look_at(*claim, &link)) break;
    way.add(link.obstacle);
    claim = link.op;
    step.set(claim);
  }
  return way;
}

Way way_of(const Waiter& waiter) noexcept {
  return way_of(waiter, [](const Claim&) {});
}

std::string found(const Obstacle& obstacle) {
  if (!obstacle.has_view || find_views == nullptr) return {};
  std::array<char, kMostFound> text;
  text[0] = '\0';
  find_views(obstacle, text.data(), text.size());
  if (text[0] == '\0') return {};
  const bool is_view = obstacle.party == Party::kView;
  return concat(is_view ? "; it hangs on: " : "; its view hangs on: ", text.data());
}

}  // namespace

void set_view_finder(ViewFinder find) noexcept { find_views = find; }

std::string found_text_of(const Obstacle& obstacle) { return text_of(obstacle) + found(obstacle); }

std::string lasting_text_of(const Obstacle& obstacle) { return text_without_age(obstacle) + found(obstacle); }

std::string text_of_wait(const Waiter& waiter) {
  const Way way = way_of(waiter);
  std::string text;
  for (size_t i = 0; i < way.count; ++i) {
    if (i != 0)
      text += way.is_cut && i + 1 == way.count ? ", which in the end waits for " : ", which waits for ";
    text += found_text_of(way.links[i]);
  }
  return text;
}

namespace detail {

void describe_obstacle(const Waiter& waiter, Obstacle* obstacle) noexcept {
  if (obstacle == nullptr) return;
  const Way way = way_of(waiter);
  if (way.count != 0) *obstacle = way.links[way.count - 1];
}

}  // namespace detail

void report_kept_view(const Obstacle& view) noexcept {
  if (wait_hooks().report == nullptr) return;
  try {
    wait_hooks().report(concat(text_of(view), " outlived its block and keeps others waiting", found(view),
                               ": drop it, or copy what is to be kept")
                            .c_str());
  } catch (const std::bad_alloc&) {
    // The report of long waits names it.
  }
}

void report_kept_views(const Waiter& waiter) noexcept {
  if (wait_hooks().report == nullptr) return;
  std::array<Obstacle, kMostViews> views;
  size_t n = 0;
  (void)way_of(waiter, [&](const Claim& claim) {
    for (const Entry& entry : claim.entries) {
      if (entry.sequence == 0) continue;
      const std::scoped_lock lock(entry.queue->lock);
      if (!entry.is_queued || entry.is_granted) continue;
      entry.queue->visit_bound_views(entry, [&](View& view) {
        if (n < kMostViews && !std::exchange(view.is_reported, true)) views[n++] = Obstacle::of(view);
      });
    }
  });
  for (size_t i = 0; i < n; ++i) report_kept_view(views[i]);
}

bool describe_pass(const Gate& gate, Pass pass, Obstacle* holder, bool* is_to_report) noexcept {
  struct Search {
    const Gate& gate;
    const Pass pass;
    Obstacle* const holder;
    bool is_found = false, is_to_report = false;
  } search{gate, pass, holder};
  const auto look = [](Queue& queue, void* context) {
    auto& s = *static_cast<Search*>(context);
    if (s.is_found) return;
    const std::scoped_lock lock(queue.lock);
    if (queue.gate() != &s.gate) return;
    for (View* v = queue.first_view(); v != nullptr; v = v->next) {
      if (v->pass != s.pass || (s.is_found && !v->is_bound)) continue;
      *s.holder = Obstacle::of(*v);
      s.is_found = true;
      s.is_to_report = v->is_bound && !std::exchange(v->is_reported, true);
      if (s.is_to_report) break;
    }
    for (const Entry* e = queue.first(); e != nullptr && !s.is_found; e = e->next) {
      if (e->pass != s.pass) continue;
      *s.holder = Obstacle::of(*e);
      s.is_found = true;
    }
  };
  visit_queues(look, &search);
  *is_to_report = search.is_to_report;
  return search.is_found;
}

}  // namespace tenon::impl
