// SPDX-License-Identifier: Apache-2.0
//
// A queue with an index grants the same parts in the same order as one without, also around views that have
// outlived their leases. Oracle: the rules of the queue, applied to a list of all parts after every step. The
// seed is printed.
#include "sync/part_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <list>
#include <memory>
#include <random>

#include "base/repeats_testing.h"
#include "sync/queue.h"

namespace tenon::impl {
namespace {

constexpr uintptr_t kBegin = 4096;
constexpr uintptr_t kEnd = kBegin + 32'768;

// A view with the memory for its ended part.
struct Seen {
  View view;
  std::array<std::byte, sizeof(EndedPart)> room;
};

// A request with one part, and what the rules say of it. Or (ended) the ended part of a view.
struct Use final : Request {
  explicit Use(HolderKind request_kind) : Request(request_kind, {&part, 1}) {}
  void become_ready() noexcept override {}
  void refuse_at_gates(const Conflict&) noexcept override {}

  // The part that is in the queue.
  const RequestPart* queued() const {
    return ended ? static_cast<const RequestPart*>(ended->view.under) : &part;
  }

  RequestPart part;
  std::unique_ptr<Seen> ended;
  std::list<std::unique_ptr<Seen>> views;  // under it
  bool is_granted = false;
  bool is_submitted = false;
};

bool is_ignored(const Use& use, const Use& other) {
  if (use.kind == HolderKind::kOp) return !use.heeds_views;
  return other.part.access == Access::kWrite && other.owner == use.owner;
}

bool is_in_the_way(const Use& use, const Use& other) {
  return in_conflict(use.part.access, use.part.extent, other.part.access, other.part.extent) &&
         !(other.is_submitted && use.is_on_stream()) && !(other.ended && is_ignored(use, other));
}

class Model {
 public:
  // ahead_every: one of so many new parts is inserted before a waiting one; 0: none. While there is such a
  // part, the queue does not use its index to grant.
  Model(uint64_t seed, uint64_t ahead_every) : random_(seed), ahead_every_(ahead_every) {
    queue_.set_bounds({kBegin, kEnd});
    queue_.lock.lock();
  }
  ~Model() {
    while (!uses_.empty()) remove(uses_.begin());
    queue_.lock.unlock();
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Steps until the queue has n parts.
  void go_to(size_t n) {
    const size_t at_begin = uses_.size();
    while (uses_.size() != n && !testing::Test::HasFailure()) {
      const bool is_to_grow = (n > at_begin) == (random_() % 4 != 0);
      if (uses_.empty() || is_to_grow) {
        add();
      } else if (random_() % 8 == 0) {
        submit();
      } else if (random_() % 4 == 0) {
        view();
      } else {
        remove(any());
      }
      check();
    }
  }

 private:
  using Place = std::list<Use>::iterator;

  Place any() { return std::next(uses_.begin(), static_cast<ptrdiff_t>(random_() % uses_.size())); }

  Extent any_extent() {
    const uint64_t kind = random_() % 64;
    if (kind == 0) return {kBegin, kEnd};
    if (kind < 48) {  // a row
      const uintptr_t begin = kBegin + random_() % 512 * 64;
      return {begin, begin + 64};
    }
    const uintptr_t length = 1 + random_() % (uintptr_t{1} << random_() % 14);
    const uintptr_t begin = kBegin + random_() % (kEnd - kBegin - length + 1);
    return {begin, begin + length};
  }

  // Right before this place.
  Place make(Place place) {
    const Place use = uses_.emplace(place, random_() % 2 == 0 ? HolderKind::kOp : HolderKind::kLease);
    use->part.queue = &queue_;
    use->part.begin(&*use);
    use->part.extent = any_extent();
    use->part.access = random_() % 2 == 0 ? Access::kWrite : Access::kRead;
    if (random_() % 4 == 0) use->traits = Request::kOnStream;
    use->heeds_views = random_() % 2 == 0;
    use->missing = 1;
    if (random_() % 4 != 0) use->owner = actor_of_task(0);
    return use;
  }

  void add() {
    const uint64_t kind = random_() % 32;
    const Place place = uses_.empty() ? uses_.end() : any();
    const bool is_ahead = ahead_every_ != 0 && random_() % ahead_every_ == 0;
    if (is_ahead && place != uses_.end() && place->part.blockers != 0) {
      const Place use = make(place);
      if (random_() % 2 == 0) use->part.extent = place->part.extent;
      take_note(use, queue_.insert_before(&use->part, &place->part, &ready_));
      if (random_() % 2 == 0) remove(use);  // often the only one of its kind
    } else if (kind == 0) {
      const Place use = make(uses_.begin());
      use->traits = Request::kOnStream;
      queue_.insert_submitted(&use->part, &ready_);
      use->is_granted = use->is_submitted = true;
    } else if (kind == 1 && place != uses_.end() && place->is_granted && !place->is_submitted &&
               !place->ended) {
      const Place use = make(std::next(place));
      use->part.extent = place->part.extent;
      use->part.access = place->part.access;
      use->traits = place->traits;
      queue_.insert_under(&use->part, &place->part, &ready_);
      use->is_granted = true;
    } else {
      const Place use = make(uses_.end());
      take_note(use, queue_.append(&use->part, &ready_));
    }
  }

  void take_note(Place use, bool is_granted) {
    use->is_granted = n_blockers(*use) == 0;
    EXPECT_EQ(is_granted, use->is_granted);
  }

  void submit() {
    const Place use = any();
    if (!use->is_granted || use->is_submitted || use->ended || !use->is_on_stream()) return;
    queue_.mark_submitted(&use->part, &ready_);
    use->is_submitted = true;
  }

  // Opens a view under a granted lease.
  void view() {
    const Place use = any();
    if (!use->is_granted || use->is_submitted || use->ended || use->kind != HolderKind::kLease) return;
    auto seen = std::make_unique<Seen>();
    seen->view.extent = use->part.extent;
    if (random_() % 2 == 0) seen->view.extent.end = seen->view.extent.begin + 1;
    seen->view.access = random_() % 2 == 0 ? use->part.access : Access::kRead;
    seen->view.thread = this_thread_id();
    queue_.add_view(&seen->view, &use->part);
    seen->view.room = seen->room.data();
    use->views.push_back(std::move(seen));
  }

  // The views under it go under another lease of its owner that allows them, or get ended parts.
  void remove(Place use) {
    if (use->ended) {
      queue_.remove_view(&use->ended->view, &ready_);
      uses_.erase(use);
      return;
    }
    queue_.remove(&use->part, &ready_);
    std::list<std::unique_ptr<Seen>> views = std::move(use->views);
    const Actor owner = use->owner;
    Place place = uses_.erase(use);
    for (; !views.empty(); views.pop_back()) {
      std::unique_ptr<Seen>& seen = views.back();
      if (Use* const outer = lease_of(owner, seen->view)) {
        outer->views.push_back(std::move(seen));
        continue;
      }
      place = uses_.emplace(place, HolderKind::kLease);
      place->part.extent = seen->view.extent;
      place->part.access = seen->view.access;
      place->owner = owner;
      place->is_granted = true;
      place->ended = std::move(seen);
    }
  }
  Use* lease_of(const Actor& owner, const View& view) {
    Use* last = nullptr;
    for (Use& use : uses_) {
      const bool is_own = use.kind == HolderKind::kLease && use.owner == owner;
      if (is_own && use.is_granted && !use.ended && Queue::allows(use.part, view.extent, view.access))
        last = &use;
    }
    return last;
  }

  // How many parts are in the way: earlier ones, and those that were granted before this one was inserted
  // before them.
  uint32_t n_blockers(const Use& use) const {
    uint32_t n = 0;
    bool is_earlier = true;
    for (const Use& other : uses_) {
      if (&other == &use) {
        is_earlier = false;
      } else if ((is_earlier || other.is_granted) && is_in_the_way(use, other)) {
        ++n;
      }
    }
    return n;
  }

  // The step has granted the parts that nothing blocks any more, in their order.
  void check() {
    const Request* next = ready_.take_all();
    is_counted_ |= std::any_of(uses_.begin(), uses_.end(), [](const Use& use) {
      return use.ended || use.is_on_stream() || !use.part.extent.contains({kBegin, kEnd});
    });
    is_counted_ &= !uses_.empty();
    const RequestPart* part = queue_.first();
    for (Use& use : uses_) {
      ASSERT_EQ(part, use.queued());
      part = part->next;
      if (use.is_granted) continue;
      const uint32_t blockers = n_blockers(use);
      ASSERT_EQ(use.part.is_granted, blockers == 0);
      ASSERT_TRUE(!is_counted_ || use.part.blockers == blockers);
      if (blockers != 0) continue;
      ASSERT_EQ(next, &use);
      next = next->next_ready;
      use.is_granted = true;
    }
    ASSERT_EQ(part, nullptr);
    ASSERT_EQ(next, nullptr);
    check_searches();
  }

  void check_searches() {
    const Extent extent = any_extent();
    const Access access = random_() % 2 == 0 ? Access::kWrite : Access::kRead;
    bool has_conflict = false, has_unsubmitted = false;
    const RequestPart *last = nullptr, *weaker = nullptr;
    for (Use& use : uses_) {
      const RequestPart* const e = use.queued();
      if (in_conflict(access, extent, e->access, e->extent)) {
        has_conflict = true;
        has_unsubmitted |= !use.is_submitted;
      }
      const bool is_own = use.kind == HolderKind::kLease && use.owner.thread == this_thread_id();
      if (!use.is_granted || use.ended || !is_own || !e->extent.overlaps(extent)) continue;
      (Queue::allows(*e, extent, access) ? last : weaker) = e;
    }
    ASSERT_EQ(queue_.has_conflict(access, extent), has_conflict);
    ASSERT_EQ(queue_.has_unsubmitted_conflict(access, extent), has_unsubmitted);
    ASSERT_EQ(queue_.own_part_for(extent, access), last != nullptr ? last : weaker);
  }

  std::mt19937_64 random_;
  const uint64_t ahead_every_;
  Queue queue_;
  std::list<Use> uses_;  // in the order of the queue
  bool is_counted_ = false;
  ReadyList ready_;
};

TEST(PartIndexes, ALongQueueGrantsTheSamePartsInTheSameOrder) {
  const uint64_t seed = new_seed();
  SCOPED_TRACE(seed);
  const int rounds = repeats<int>(99, 6, 3);
  for (int i = 0; i < rounds && !HasFailure(); ++i) {
    Model model(seed + static_cast<uint64_t>(i),
                std::array<uint64_t, 3>{0, 8, 100}[static_cast<size_t>(i) % 3]);
    for (const size_t n : {80, 10, 300, 40, 100, 0, 200, 0}) model.go_to(n);
  }
}

}  // namespace
}  // namespace tenon::impl
