// SPDX-License-Identifier: Apache-2.0
//
// The cases, for any contender C:
//
//   C(const Size&)                          starts its threads
//   session(f)                              calls f() where ops may be pushed
//   push<Body>(context, uses)               an op that calls Body::run(context) once
//   push_and_wait<Body>(context, uses)      the same, and returns when it is done
//   wait_all()                              returns when no op is unfinished
//   ~C()                                    ends its threads
//
// One thread pushes. Threads start and end, and some ops run, before and after what is timed.
#pragma once

#include <time.h>

#include <array>
#include <atomic>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/spin_lock.h"
#include "bench.h"

namespace bench {

using Uses = std::span<const Use>;

struct EmptyBody {
  static void run(void*) noexcept {}
};

// What each op uses, in the order in which they are pushed; the same for all contenders.
class Program {
 public:
  explicit Program(Case which) : which_(which) {
    if (which != Case::kReadsWrite) return;
    std::mt19937 generator(1);
    triples_.resize(kTriples);
    for (auto& triple : triples_) {
      for (int i = 0; i < kMostUses; ++i) triple[i] = {choose(generator, {triple.data(), size_t(i)}), i == 2};
    }
  }

  int variables() const noexcept {
    return which_ == Case::kIndependent ? kManyVariables : which_ == Case::kReadsWrite ? kFewVariables : 1;
  }

  Uses uses(int64_t i) noexcept {
    if (which_ == Case::kReadsWrite) return triples_[size_t(i) % kTriples];
    if (which_ == Case::kIndependent) one_.variable = static_cast<int>(i % kManyVariables);
    return {&one_, 1};
  }

 private:
  static constexpr size_t kTriples = 4096;

  static int choose(std::mt19937& generator, Uses taken) {
    while (true) {
      const auto chosen = static_cast<int>(generator() % kFewVariables);
      bool is_free = true;
      for (const Use& use : taken) is_free &= use.variable != chosen;
      if (is_free) return chosen;
    }
  }

  const Case which_;
  Use one_{0, true};
  std::vector<std::array<Use, kMostUses>> triples_;
};

template <class C>
int64_t elapsed_ns(Case which, int workers, int64_t n) {
  constexpr int64_t kWarmingOps = 200;
  constexpr timespec kRest{0, 500'000};
  Program program(which);
  C contender(Size{workers, program.variables(), n + kWarmingOps});
  int64_t elapsed = 0;
  contender.session([&] {
    for (int64_t i = 0; i < kWarmingOps; ++i) {
      contender.template push_and_wait<EmptyBody>(nullptr, program.uses(i));
    }
    if (which == Case::kRestedTrip) {
      for (int64_t i = 0; i < n; ++i) {
        nanosleep(&kRest, nullptr);
        const int64_t start = tenon::impl::now_ns();
        contender.template push_and_wait<EmptyBody>(nullptr, program.uses(i));
        elapsed += tenon::impl::now_ns() - start;
      }
      return;
    }
    const int64_t start = tenon::impl::now_ns();
    if (which == Case::kTrip) {
      for (int64_t i = 0; i < n; ++i) contender.template push_and_wait<EmptyBody>(nullptr, program.uses(i));
    } else {
      for (int64_t i = 0; i < n; ++i) contender.template push<EmptyBody>(nullptr, program.uses(i));
      contender.wait_all();
    }
    elapsed = tenon::impl::now_ns() - start;
  });
  return elapsed;
}

// The oracle: in the serial order, the one of the pushes, each op finds as many writes of each of its
// variables as were pushed before it, and nobody beside it who writes what it uses, or uses what it writes.
class Oracle {
 public:
  Oracle(Program& program, int64_t n) : variables_(size_t(program.variables())), ops_(size_t(n)) {
    std::vector<int64_t> writes(variables_.size());
    for (size_t i = 0; i < ops_.size(); ++i) {
      ops_[i].oracle = this;
      for (const Use& use : program.uses(int64_t(i))) {
        ops_[i].uses[ops_[i].n++] = {use, writes[size_t(use.variable)]};
      }
      for (const Use& use : program.uses(int64_t(i))) writes[size_t(use.variable)] += use.is_write ? 1 : 0;
    }
  }

  void* context(int64_t i) noexcept { return &ops_[size_t(i)]; }
  Found found() const noexcept { return {bodies_.load(), violations_.load()}; }

  struct Body {
    static void run(void* context) noexcept {
      auto& op = *static_cast<Op*>(context);
      op.oracle->observe({op.uses.data(), op.n});
    }
  };

 private:
  static constexpr int64_t kWriter = 1 << 16;

  struct Variable {
    std::atomic<int64_t> users{0};  // a writer counts as kWriter readers
    std::atomic<int64_t> writes{0};
  };
  struct Expected {
    Use use;
    int64_t writes;
  };
  struct Op {
    Oracle* oracle = nullptr;
    std::array<Expected, kMostUses> uses;
    size_t n = 0;
  };

  void observe(std::span<const Expected> uses) noexcept {
    for (const Expected& e : uses) {
      Variable& variable = variables_[size_t(e.use.variable)];
      const int64_t others = variable.users.fetch_add(e.use.is_write ? kWriter : 1);
      const bool is_alone = e.use.is_write ? others == 0 : others < kWriter;
      if (!is_alone || variable.writes.load() != e.writes) violations_.fetch_add(1);
    }
    for (int i = 0; i < 20; ++i) tenon::impl::relax_processor();
    for (const Expected& e : uses) {
      Variable& variable = variables_[size_t(e.use.variable)];
      if (e.use.is_write) variable.writes.store(e.writes + 1);
      variable.users.fetch_sub(e.use.is_write ? kWriter : 1);
    }
    bodies_.fetch_add(1);
  }

  std::vector<Variable> variables_;
  std::vector<Op> ops_;
  std::atomic<int64_t> bodies_{0};
  std::atomic<int64_t> violations_{0};
};

template <class C>
Found check(Case which, int workers, int64_t n) {
  const bool waits_for_each = which == Case::kTrip || which == Case::kRestedTrip;
  Program program(which);
  Oracle oracle(program, n);
  C contender(Size{workers, program.variables(), n});
  contender.session([&] {
    for (int64_t i = 0; i < n; ++i) {
      if (waits_for_each) {
        contender.template push_and_wait<Oracle::Body>(oracle.context(i), program.uses(i));
        if (oracle.found().bodies != i + 1) return;
      } else {
        contender.template push<Oracle::Body>(oracle.context(i), program.uses(i));
      }
    }
    if (!waits_for_each) contender.wait_all();
  });
  return oracle.found();
}

template <class C>
constexpr Contender contender(const char* name) {
  return {name, &elapsed_ns<C>, &check<C>};
}

}  // namespace bench
