// SPDX-License-Identifier: Apache-2.0
//
// Random programs over small memory: ops that read and write whole cells or ranges of bytes, fail, overwrite
// and heal; leases with and without a time-out, nested, left by an exception; views that are opened, dropped,
// and outlive the lease under which they were taken, which they then continue; pushes that raise, wait or
// ignore views.
//
// Oracle: the thread that pushes executes each step on a model at once, one after the other, as if there were
// no engine. What ops, leases and views find, what is refused and why, and in the end all bytes and failures
// must be the same. Whether a request with a time-out is granted is left open where the engine may still be
// at work, and follows from the model where it cannot be granted.
//
// A failure prints the number of the program. TENON_PROGRAM=<number> runs that one alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "exec/cells_testing.h"
#include "exec/history_testing.h"

namespace tenon::impl {
namespace {

constexpr size_t kBytes = sizeof(int64_t);
using Bytes = std::array<uint8_t, kBytes>;

uint8_t* bytes_of(Cell& cell) { return reinterpret_cast<uint8_t*>(&cell.value); }

// The bytes of a cell that one pusher alone may write, or that no thread writes.
struct Place {
  Cell* cell;
  size_t begin = 0;
  size_t end = kBytes;
  bool is_constant = false;
};

bool overlaps(const Wanted& a, const Wanted& b) {
  return a.cell == b.cell && a.begin < b.end && b.begin < a.end;
}
bool contains(const Wanted& a, const Wanted& b) {
  return a.cell == b.cell && a.begin <= b.begin && b.end <= a.end;
}
bool conflicts(const Wanted& a, const Wanted& b) { return overlaps(a, b) && in_conflict(a.access, b.access); }
bool allows(const Wanted& a, const Wanted& b) { return contains(a, b) && includes(a.access, b.access); }

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 27);
}

// What an op computes: from its number and all that it reads, every byte that it writes. at(cell) is where
// the bytes lie: those of the cell, or those of the model.
template <class At>
void compute(uint64_t number, const std::vector<Wanted>& wanted, const At& at) {
  uint64_t hash = mix(number + 1);
  for (const Wanted& w : wanted) {
    if (w.is_overwrite) continue;
    for (size_t i = w.begin; i < w.end; ++i) hash = mix(hash * 31 + at(*w.cell)[i]);
  }
  for (const Wanted& w : wanted) {
    if (w.access == Access::kRead) continue;
    for (size_t i = w.begin; i < w.end; ++i) at(*w.cell)[i] = static_cast<uint8_t>(mix(hash + i) >> 8);
  }
}

// One pusher's program and its model.
class Program {
 public:
  // is_alone: of all pushers; then a run depends on the seed alone.
  Program(uint64_t seed, uint32_t asker, bool is_alone, std::vector<Place> places, History& history)
      : random_(seed), asker_(asker), is_alone_(is_alone), places_(std::move(places)), history_(history) {
    for (const Place& p : places_) std::copy_n(bytes_of(*p.cell), kBytes, model_[p.cell].begin());
  }

  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) step();
    while (!views_.empty()) close_view(draw(views_.size()));
  }

  // When all ops of all programs are done.
  void check_end() {
    for (const Place& p : places_) {
      for (size_t i = p.begin; i < p.end; ++i) {
        const Wanted byte = read(*p.cell, i, i + 1);
        EXPECT_EQ(bytes_of(*p.cell)[i], model_[p.cell][i]) << "byte " << i;
        check_failure(failure_of(p.cell->home, extent_of(byte)), causes_in(byte));
      }
    }
    for (const Pushed& pushed : pushed_) check_failure(pushed.op->failure(), pushed.causes);
  }

  size_t failed_bodies() const { return failed_bodies_; }

 private:
  using Causes = std::set<std::string>;  // any of which may be told; empty: there is a value

  struct FailedBytes {
    Wanted what;
    Causes causes;
  };
  struct Pushed {
    Ref<Op> op;
    std::vector<Wanted> wanted;
    Causes causes;
    OnHost on_host;
  };
  struct Opened {
    std::unique_ptr<Sight> sight;
    CellAccess access;
    Bytes expected;
    bool is_disturbed = false;  // an op that ignores views writes there
    int under = 0;              // how deep the lease is that it was taken under; 0: the host's
    bool has_outlived = false;  // that lease
  };

  size_t draw(size_t n) { return static_cast<size_t>(random_() % n); }
  bool chance(unsigned percent) { return random_() % 100 < percent; }

  Wanted any_access(unsigned writes, bool may_be_constant) {
    while (true) {
      const Place& p = places_[draw(places_.size())];
      if (p.is_constant && (!may_be_constant || writes == 100)) continue;
      Wanted w{p.cell, !p.is_constant && chance(writes) ? Access::kWrite : Access::kRead, false, p.begin,
               p.end};
      if (chance(15)) narrow(w);
      return w;
    }
  }
  void narrow(Wanted& w) {
    const size_t a = w.begin + draw(w.end - w.begin), b = w.begin + draw(w.end - w.begin);
    w.begin = std::min(a, b);
    w.end = std::max(a, b) + 1;
  }

  void step() {
    const size_t dice = draw(100);
    if (dice < 58) return push_any({});
    if (dice < 72) return lease_block(nullptr, 0);
    if (dice < 80) return open_view(any_access(40, true), nullptr);
    if (dice < 90) return views_.empty() ? void() : close_view(draw(views_.size()));
    if (dice < 98) return wait_for_one();
    wait_for_all();
  }

  // The model's memory.

  Causes causes_in(const Wanted& w) const {
    Causes all;
    for (const FailedBytes& p : failed_) {
      if (overlaps(p.what, w)) all.insert(p.causes.begin(), p.causes.end());
    }
    return all;
  }
  void heal(const Wanted& w) {
    std::vector<FailedBytes> rest;
    for (const FailedBytes& p : failed_) {
      FailedBytes before = p, behind = p;
      if (p.what.cell == w.cell) {
        before.what.end = std::min(p.what.end, w.begin);
        behind.what.begin = std::max(p.what.begin, w.end);
        if (behind.what.begin < behind.what.end) rest.push_back(behind);
      }
      if (before.what.begin < before.what.end) rest.push_back(before);
    }
    failed_ = std::move(rest);
  }
  void add_failure(const Wanted& w, const Causes& causes) {
    heal(w);
    failed_.push_back({w, causes});
  }
  void write_model(const Wanted& w, uint64_t salt) {
    compute(salt, {w}, [this](Cell& cell) { return model_[&cell].data(); });
  }

  void check_failure(const Ref<Failure>& failure, const Causes& causes) {
    EXPECT_EQ(failure.get() != nullptr, !causes.empty()) << (failure ? failure->op : "no failure");
    if (failure) {
      EXPECT_TRUE(causes.contains(failure->op)) << failure->op << " is not the cause";
    }
  }

  // What the host's views keep from running: directly, or because it stands behind such work.

  bool is_kept_by_host(const Wanted& w) const {
    return std::any_of(views_.begin(), views_.end(),
                       [&](const Opened& v) { return v.under == 0 && conflicts(v.access.what, w); });
  }
  bool is_kept_by_host(const Pushed& p) const {
    return p.on_host != OnHost::kIgnore &&
           std::any_of(p.wanted.begin(), p.wanted.end(),
                       [this](const Wanted& w) { return is_kept_by_host(w); });
  }
  bool is_behind_kept(const Wanted& w, size_t before) const {
    for (size_t i = 0; i < before; ++i) {
      for (const Wanted& earlier : pushed_[kept_[i]].wanted) {
        if (conflicts(earlier, w)) return true;
      }
    }
    return false;
  }
  bool is_behind_kept(const Wanted& w) const { return is_behind_kept(w, kept_.size()); }
  // An op that ignores views: it is not known to wait for the host, though it stands behind work that does.
  bool is_behind_kept_that_ignores(const Wanted& w) const {
    return std::any_of(kept_.begin(), kept_.end(), [&](size_t i) {
      const Pushed& p = pushed_[i];
      return p.on_host == OnHost::kIgnore &&
             std::any_of(p.wanted.begin(), p.wanted.end(),
                         [&](const Wanted& other) { return conflicts(other, w); });
    });
  }
  // A part that waits for views of the host, and not only for those that have outlived a lease.
  bool is_behind_host(const Wanted& w) const {
    const auto waits_for_host = [&](const Wanted& earlier) {
      return conflicts(earlier, w) && std::any_of(views_.begin(), views_.end(), [&](const Opened& v) {
               return v.under == 0 && !v.has_outlived && conflicts(v.access.what, earlier);
             });
    };
    return std::any_of(kept_.begin(), kept_.end(), [&](size_t i) {
      const Pushed& p = pushed_[i];
      return p.on_host != OnHost::kIgnore && std::any_of(p.wanted.begin(), p.wanted.end(), waits_for_host);
    });
  }
  void look_what_is_kept(size_t since) {
    std::vector<size_t> candidates = kept_;
    for (size_t i = since; i < pushed_.size(); ++i) {
      if (std::find(kept_.begin(), kept_.end(), i) == kept_.end()) candidates.push_back(i);
    }
    std::sort(candidates.begin(), candidates.end());
    kept_.clear();
    for (const size_t i : candidates) {
      const Pushed& p = pushed_[i];
      const size_t before = kept_.size();
      if (is_kept_by_host(p) || std::any_of(p.wanted.begin(), p.wanted.end(),
                                            [&](const Wanted& w) { return is_behind_kept(w, before); })) {
        kept_.push_back(i);
      }
    }
  }
  // This thread's own views that have outlived leases: others wait for them, and it acts in their turn.
  bool has_ended() const {
    return std::any_of(views_.begin(), views_.end(), [](const Opened& v) { return v.has_outlived; });
  }
  bool is_covered(const Wanted& w) const {
    return std::any_of(views_.begin(), views_.end(),
                       [&](const Opened& v) { return v.has_outlived && allows(v.access.what, w); });
  }
  bool would_wait_for_itself(const Wanted& w) const {
    return !is_covered(w) && std::any_of(views_.begin(), views_.end(), [&](const Opened& v) {
      return v.has_outlived && v.access.what.access == Access::kRead && conflicts(v.access.what, w);
    });
  }
  bool is_kept(size_t i) const { return std::find(kept_.begin(), kept_.end(), i) != kept_.end(); }

  // The steps.

  // under: a lease that the op is to conflict with.
  void push_any(std::optional<Wanted> under) {
    std::vector<Wanted> wanted;
    for (size_t n = draw(5); n > 0; --n) wanted.push_back(any_access(0, true));
    for (size_t n = 1 + draw(2); n > 0; --n) {
      wanted.push_back(any_access(100, false));
      wanted.back().is_overwrite = chance(30);
    }
    if (under) {
      wanted.push_back(*under);
      if (!places_of_constant(*under)) wanted.back().access = Access::kWrite;
    }
    std::shuffle(wanted.begin(), wanted.end(), random_);
    const OnHost on_host = std::array{OnHost::kRaise, OnHost::kWait, OnHost::kIgnore}[draw(3)];
    push(std::move(wanted), on_host, chance(5));
  }
  bool places_of_constant(const Wanted& w) const {
    for (const Place& p : places_) {
      if (p.cell == w.cell) return p.is_constant;
    }
    return true;
  }

  void push(std::vector<Wanted> wanted, OnHost on_host, bool fails) {
    const uint64_t number = ++asked_;
    const std::string name = concat("op ", asker_, ".", number);
    const bool ignores_views = on_host == OnHost::kIgnore;
    const Ref<Op> op = make(
        wanted,
        [this, wanted, number, ignores_views, fails, name](Op* self) {
          std::vector<std::unique_ptr<History::Scope>> scopes;
          for (const Wanted& w : wanted) {
            scopes.push_back(std::make_unique<History::Scope>(
                history_,
                CellAccess{w, HolderKind::kOp, self->number(), asker_, number, 0, 0, ignores_views}));
          }
          if (!fails) compute(number, wanted, [](Cell& cell) { return bytes_of(cell); });
          scopes.clear();
          fails ? self->fail(new_failure(name.c_str())) : self->complete();
        },
        name.c_str());
    const bool is_hindered =
        std::any_of(wanted.begin(), wanted.end(), [this](const Wanted& w) { return is_kept_by_host(w); });
    Conflict conflict;
    const bool was_pushed = submit(op, on_host, &conflict);
    ASSERT_EQ(was_pushed, !(is_hindered && on_host == OnHost::kRaise)) << name;
    if (!was_pushed) {
      EXPECT_EQ(conflict.reason, Conflict::Reason::kHostView);
      return;
    }
    Pushed pushed{op, wanted, {}, on_host};
    for (const Wanted& w : wanted) {
      if (!w.is_overwrite) pushed.causes.merge(causes_in(w));
      if (w.access == Access::kRead || on_host != OnHost::kIgnore) continue;
      for (Opened& v : views_) v.is_disturbed |= overlaps(v.access.what, w);
    }
    if (pushed.causes.empty() && fails) {
      pushed.causes = {name};
      ++failed_bodies_;
    } else if (pushed.causes.empty()) {
      compute(number, wanted, [this](Cell& cell) { return model_[&cell].data(); });
    }
    for (const Wanted& w : wanted) {
      if (w.access == Access::kWrite && !pushed.causes.empty()) add_failure(w, pushed.causes);
      if (w.is_overwrite && pushed.causes.empty()) heal(w);
    }
    pushed_.push_back(std::move(pushed));
    look_what_is_kept(pushed_.size() - 1);
  }

  // What is read through a lease or view, against what the model says.
  void check_bytes(const Wanted& w, const Bytes& expected) {
    for (size_t i = w.begin; i < w.end; ++i) ASSERT_EQ(bytes_of(*w.cell)[i], expected[i]) << "byte " << i;
  }
  // Ordinary code writes: into its own turn, which its other views see.
  void write_here(const Wanted& w) {
    const uint64_t salt = ++asked_;
    compute(salt, {w}, [](Cell& cell) { return bytes_of(cell); });
    write_model(w, salt);
    for (Opened& v : views_) {
      for (size_t i = w.begin; v.access.what.cell == w.cell && i < w.end; ++i) {
        v.expected[i] = model_[w.cell][i];
      }
    }
  }

  // outer: the lease that this one stands in.
  void lease_block(const CellAccess* outer, int depth) {
    Wanted w = outer != nullptr ? outer->what : any_access(50, true);
    if (outer != nullptr && chance(50)) narrow(w);
    if (outer != nullptr && w.access == Access::kWrite && chance(50)) w.access = Access::kRead;
    if (w.access == Access::kWrite) w.is_overwrite = chance(20);
    const bool would_hang = outer == nullptr && is_behind_kept(w);
    if (would_hang && is_covered(w)) return;  // it would run before work that the model has executed
    const bool would_wait_here = outer == nullptr && would_wait_for_itself(w);
    const bool has_timeout = would_hang || chance(20);
    CellLease lease(w);
    Conflict conflict;
    const uint64_t number = ++asked_;
    if (!lease.acquire(&conflict,
                       has_timeout ? static_cast<int64_t>(is_alone_ ? 0 : draw(2) * 20'000) : -1)) {
      if (would_wait_here) {
        // A limit of some microseconds may pass before the search for deadlocks begins.
        if (has_timeout && !is_alone_ && conflict.reason == Conflict::Reason::kTimeout) return;
        ASSERT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
        return;
      }
      ASSERT_TRUE(has_timeout && outer == nullptr) << static_cast<int>(conflict.reason);
      if (has_ended() && conflict.reason == Conflict::Reason::kDeadlock) return;
      ASSERT_EQ(conflict.reason, Conflict::Reason::kTimeout);
      return;
    }
    ASSERT_FALSE(would_wait_here)
        << "a lease was granted beside a view that has outlived its lease and allows less";
    ASSERT_FALSE(would_hang) << "a lease was granted before work that waits for the host";
    const uint64_t request = outer != nullptr ? outer->request : (uint64_t{asker_} << 48) + number;
    const CellAccess access{w, HolderKind::kLease, request, asker_, number, 0, 0};
    const size_t pushed_before = pushed_.size();
    {
      const History::Scope scope(history_, access);
      if (!w.is_overwrite) check_failure(failure_of(w.cell->home, extent_of(w)), causes_in(w));
      check_bytes(w, model_[w.cell]);
      if (w.access == Access::kWrite && (w.is_overwrite || causes_in(w).empty())) write_here(w);
      if (outer == nullptr && w.access == Access::kRead && chance(20)) check_no_upgrade(w);
      if (depth < 2 && chance(40)) lease_block(&access, depth + 1);
      // What is pushed from here on runs later, but the model has executed it: so it comes last.
      const bool has_pushed = pushed_.size() != pushed_before;
      if (!has_pushed && chance(30)) open_view_under(access, depth + 1);
      if (!has_pushed) leave(lease, w);
      if (chance(40)) push_behind(w);
    }
    for (Opened& v : views_) {
      if (v.under != depth + 1) continue;
      v.under = depth;
      v.has_outlived = depth == 0;
    }
    lease.release();
    look_what_is_kept(pushed_before);
  }

  void check_no_upgrade(const Wanted& w) {
    CellLease stronger(write(*w.cell, w.begin, w.end));
    EXPECT_EQ(reason_of([&](Conflict* r) { return stronger.acquire(r, 0); }), Conflict::Reason::kOwnLease);
  }

  // Work behind a lease of one's own, and the wait for it that can never end.
  void push_behind(const Wanted& w) {
    const size_t before = pushed_.size();
    push_any(w);
    if (pushed_.size() == before || places_of_constant(w)) return;
    if (chance(50)) {
      EXPECT_EQ(reason_of([&](Conflict* r) { return pushed_.back().op->wait(Deadline(-1), r); }),
                Conflict::Reason::kDeadlock);
    }
  }

  // As the binding does: by an exception, or with every byte overwritten.
  void leave(CellLease& lease, const Wanted& w) {
    if (w.access == Access::kRead) return;
    if (chance(10)) {
      const std::string name = concat("lease ", asker_, ".", ++asked_);
      lease.note_outcome(new_failure(name.c_str()));
      add_failure(w, {name});
    } else if (w.is_overwrite) {
      lease.note_outcome({});
      heal(w);
    }
  }
  void open_view_under(const CellAccess& lease, int depth) {
    Wanted w = lease.what;
    w.is_overwrite = false;
    if (chance(50)) narrow(w);
    if (chance(50)) w.access = Access::kRead;
    const size_t before = views_.size();
    open_view(w, &lease);
    if (views_.size() != before + 1) return;
    views_.back().under = depth;
    if (chance(60)) close_view(views_.size() - 1);
  }

  void open_view(const Wanted& w, const CellAccess* lease) {
    if (views_.size() > 4) return close_view(draw(views_.size()));
    const Opened* joined = nullptr;
    for (const Opened& v : views_) {
      if (lease == nullptr && joined == nullptr && allows(v.access.what, w)) joined = &v;
    }
    const bool is_refused = lease == nullptr && joined == nullptr && is_behind_host(w);
    if (lease == nullptr && joined == nullptr && !is_refused && is_behind_kept(w)) return;
    if (lease == nullptr && joined != nullptr && is_behind_kept_that_ignores(w)) return;
    const bool would_wait_here = lease == nullptr && !is_refused && would_wait_for_itself(w);
    Opened opened;
    opened.sight = std::make_unique<Sight>(w);
    const uint64_t number = ++asked_;
    const uint64_t request = lease != nullptr ? lease->request : (uint64_t{asker_} << 48) + number;
    opened.access = {w, HolderKind::kView, request, asker_, 0, 0, 0};
    Conflict conflict;
    if (!opened.sight->open(&conflict)) {
      if (would_wait_here) {
        ASSERT_EQ(conflict.reason, Conflict::Reason::kDeadlock);
        return;
      }
      ASSERT_TRUE(is_refused) << static_cast<int>(conflict.reason);
      ASSERT_EQ(conflict.reason, Conflict::Reason::kWaitsForHost);
      return;
    }
    ASSERT_FALSE(is_refused || would_wait_here) << "the host would wait for itself";
    history_.begin(opened.access);
    opened.expected = joined != nullptr ? joined->expected : model_[w.cell];
    opened.is_disturbed = joined != nullptr && joined->is_disturbed;
    if (!opened.is_disturbed) check_bytes(w, opened.expected);
    if (w.access == Access::kWrite && joined == nullptr && causes_in(w).empty()) {
      write_here(w);
      opened.expected = model_[w.cell];
    }
    views_.push_back(std::move(opened));
  }

  void close_view(size_t i) {
    Opened v = std::move(views_[i]);
    views_.erase(views_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!v.is_disturbed) check_bytes(v.access.what, v.expected);
    history_.end(v.access);
    v.sight->close();
    look_what_is_kept(pushed_.size());
  }

  void wait_for_one() {
    if (pushed_.empty()) return;
    const size_t i = pushed_.size() - 1 - draw(std::min<size_t>(pushed_.size(), 8));
    Conflict conflict;
    if (is_kept(i)) {
      EXPECT_FALSE(pushed_[i].op->wait(Deadline(0), &conflict));
      if (!has_ended() || conflict.reason != Conflict::Reason::kDeadlock) {
        EXPECT_EQ(conflict.reason, Conflict::Reason::kTimeout);
      }
    } else {
      ASSERT_TRUE(pushed_[i].op->wait(Deadline(-1), &conflict)) << static_cast<int>(conflict.reason);
      check_failure(pushed_[i].op->failure(), pushed_[i].causes);
    }
  }

  void wait_for_all() {
    if (!is_alone_ || !kept_.empty()) return;
    Conflict conflict;
    ASSERT_TRUE(Engine::instance().wait_all(Deadline(-1), &conflict)) << static_cast<int>(conflict.reason);
  }

  std::mt19937_64 random_;
  const uint32_t asker_;
  const bool is_alone_;
  const std::vector<Place> places_;
  History& history_;
  std::map<Cell*, Bytes> model_;
  std::vector<FailedBytes> failed_;
  std::vector<Pushed> pushed_;
  std::vector<size_t> kept_;  // of pushed_, in its order
  std::vector<Opened> views_;
  uint64_t asked_ = 0;
  size_t failed_bodies_ = 0;
};

std::vector<std::unique_ptr<Cell>> new_cells(size_t n) {
  std::vector<std::unique_ptr<Cell>> cells;
  for (size_t i = 0; i < n; ++i) {
    cells.push_back(std::make_unique<Cell>());
    cells.back()->value = static_cast<int64_t>(mix(i + 1));
  }
  return cells;
}

uint64_t only_program() {
  const char* const number = std::getenv("TENON_PROGRAM");
  return number != nullptr ? std::strtoull(number, nullptr, 10) : 0;
}

// The end of a round, when all programs have run.
void check_round(const std::vector<std::unique_ptr<Program>>& programs, History& history) {
  Conflict conflict;
  ASSERT_TRUE(Engine::instance().wait_all(Deadline(kWatchdogNs), &conflict))
      << Engine::instance().unfinished() << " ops do not end, reason " << static_cast<int>(conflict.reason);
  size_t failed_bodies = 0;
  for (const auto& program : programs) {
    program->check_end();
    failed_bodies += program->failed_bodies();
  }
  EXPECT_EQ(take_failures(), failed_bodies);
  EXPECT_EQ(history.take_fault(), "");
}

void run_seeded(uint64_t number) {
  SCOPED_TRACE(concat("TENON_PROGRAM=", number));
  Engine::instance().set_executor(concat("seeded:", number), 1);
  std::mt19937_64 random(number);
  const auto cells = new_cells(number % 50 == 0 ? 100 : 1 + random() % 6);
  std::vector<Place> places;
  for (const auto& cell : cells) places.push_back({cell.get()});
  if (places.size() > 2) places.front().is_constant = true;
  History history;
  std::vector<std::unique_ptr<Program>> programs;
  programs.push_back(std::make_unique<Program>(number, 1, true, places, history));
  programs.front()->run(number % 50 == 0 ? 200 : 40);
  check_round(programs, history);
}

TEST(RandomPrograms, OfOnePusherGiveWhatTheSerialOrderGives) {
  if (only_program() != 0) return run_seeded(only_program());
  const uint64_t count = repeats<uint64_t>(200'000, 10'000, 1'000);
  for (uint64_t number = 1; number <= count && !HasFailure(); ++number) run_seeded(number);
}

// Each pusher has cells of its own, parts of cells whose other parts are others', and what no thread writes:
// so what each program gives does not depend on the others.
void run_on_pool(uint64_t number) {
  SCOPED_TRACE(concat("TENON_PROGRAM=", number));
  constexpr size_t kPushers = 4;
  Engine::instance().set_executor("pool", 1 + static_cast<int>(number % 4));
  std::mt19937_64 random(number);
  const auto own = new_cells(kPushers * (1 + random() % 4)), shared = new_cells(3), constant = new_cells(2);
  History history;
  std::vector<std::unique_ptr<Program>> programs;
  for (size_t t = 0; t < kPushers; ++t) {
    std::vector<Place> places;
    for (size_t i = t; i < own.size(); i += kPushers) places.push_back({own[i].get()});
    for (const auto& cell : shared) places.push_back({cell.get(), 2 * t, 2 * t + 2});
    for (const auto& cell : constant) places.push_back({cell.get(), 0, kBytes, true});
    const auto asker = static_cast<uint32_t>(t + 1);
    programs.push_back(std::make_unique<Program>(mix(number) + t, asker, false, places, history));
  }
  std::vector<std::thread> pushers;
  for (const auto& program : programs) {
    pushers.emplace_back([&program] { program->run(150); });
  }
  for (std::thread& pusher : pushers) pusher.join();
  check_round(programs, history);
}

TEST(RandomPrograms, OfSeveralPushersGiveWhatEachGivesAlone) {
  if (only_program() != 0) return run_on_pool(only_program());
  const uint64_t first = std::random_device{}();
  const uint64_t count = repeats<uint64_t>(20'000, 400, 60);
  for (uint64_t n = 0; n < count && !HasFailure(); ++n) run_on_pool(first + n);
}

}  // namespace
}  // namespace tenon::impl
