// SPDX-License-Identifier: Apache-2.0
#include "exec/step_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <random>
#include <vector>

#include "exec/cells_testing.h"

namespace tenon::impl {
namespace {

void add(StepGraph& graph, const std::vector<StepUse>& uses) {
  graph.add_step();
  for (const StepUse& use : uses) graph.use(use);
}

std::vector<StepUse> claims_of(std::initializer_list<std::vector<Wanted>> steps) {
  StepGraph graph;
  for (const std::vector<Wanted>& step : steps) add(graph, uses_of(step));
  return graph.claims();
}

TEST(StepGraph, ClaimsWhatTheStepsUseTogether) {
  Cell cell;
  const uintptr_t at = cell.extent().begin;
  const auto claims = claims_of({{read(cell, 0, 4)}, {write(cell, 2, 3)}, {read(cell, 4, 6)}, {read(cell)}});
  ASSERT_EQ(claims.size(), 5u);
  EXPECT_EQ(claims[0].extent, (Extent{at, at + 2}));
  EXPECT_EQ(claims[0].access, Access::kRead);
  EXPECT_EQ(claims[1].extent, (Extent{at + 2, at + 3}));
  EXPECT_EQ(claims[1].access, Access::kWrite);
  EXPECT_EQ(claims[2].extent, (Extent{at + 3, at + 8})) << "ranges with the same access are one claim";
  EXPECT_EQ(claims[2].access, Access::kRead);
  EXPECT_EQ(claims[3].extent, (Extent{at, at + 4}))
      << "a step that reads it must find one claim to act under";
  EXPECT_EQ(claims[3].access, Access::kRead);
  EXPECT_TRUE(claims[3].is_overwrite) << "the first claims say which of its bytes must hold a value";
  EXPECT_EQ(claims[4].extent, cell.extent());
  EXPECT_EQ(claims[4].access, Access::kRead);
}

TEST(StepGraph, OnlyClaimsOfOneKindAndMemoryAreMerged) {
  std::array<Home, 2> homes;
  const auto claims_of_two = [&](StepUse a, StepUse b) {
    StepGraph graph;
    add(graph, {{a, b}});
    return graph.claims().size();
  };
  const StepUse first{&homes[0], {64, 128}, Access::kWrite, true};
  EXPECT_EQ(claims_of_two(first, {&homes[0], {128, 192}, Access::kWrite, true}), 1u);
  EXPECT_EQ(claims_of_two(first, {&homes[1], {128, 192}, Access::kWrite, true}), 2u);
  EXPECT_EQ(claims_of_two(first, {&homes[0], {128, 192}, Access::kWrite, false}), 2u);
  EXPECT_EQ(claims_of_two(first, {&homes[0], {128, 192}, Access::kRead, false}), 2u);
  StepGraph graph;
  add(graph, {{StepUse{&homes[0], {64, 128}, Access::kRead, true}}});
  EXPECT_FALSE(graph.claims().front().is_overwrite) << "a read overwrites nothing";
}

// Each use is inside of a claim that allows it, and each claimed byte has the strongest access of the steps.
TEST(StepGraph, EachUseIsInsideOfAClaim) {
  std::mt19937 random(6);
  for (int round = 0; round < 500; ++round) {
    Cell cell;
    std::array<bool, 8> is_written{}, is_used{};
    StepGraph graph;
    std::vector<StepUse> all;
    const size_t n_steps = 1 + random() % 8;
    for (size_t step = 0; step < n_steps; ++step) {
      std::vector<StepUse> uses;
      const size_t n = random() % 4;
      for (size_t i = 0; i < n; ++i) {
        const size_t begin = random() % 8;
        const size_t end = begin + 1 + random() % (8 - begin);
        const bool is_write = random() % 3 == 0;
        const Wanted wanted{&cell, is_write ? Access::kWrite : Access::kRead, is_write && random() % 2 == 0,
                            begin, end};
        uses.push_back(uses_of({&wanted, 1}).front());
        for (size_t b = begin; b < end; ++b) {
          is_used[b] = true;
          is_written[b] |= is_write;
        }
      }
      all.insert(all.end(), uses.begin(), uses.end());
      add(graph, uses);
    }
    const std::vector<StepUse> claims = graph.claims();
    for (const StepUse& use : all) {
      EXPECT_TRUE(std::any_of(claims.begin(), claims.end(), [&use](const StepUse& claim) {
        return claim.extent.contains(use.extent) && includes(claim.access, use.access);
      })) << round;
    }
    std::array<bool, 8> claims_write{}, claims_use{};
    for (const StepUse& claim : claims) {
      for (uintptr_t b = claim.extent.begin; b < claim.extent.end; ++b) {
        claims_use[b - cell.extent().begin] = true;
        claims_write[b - cell.extent().begin] |= claim.access == Access::kWrite;
      }
    }
    EXPECT_EQ(claims_use, is_used) << round;
    EXPECT_EQ(claims_write, is_written) << round;
  }
}

TEST(StepGraph, UncheckedUsesConflictOnlyAmongThemselves) {
  std::array<Home, 2> homes;
  const StepUse checked{&homes[0], {64, 128}, Access::kWrite};
  StepUse unchecked{&homes[1], {64, 128}, Access::kWrite};
  unchecked.is_unchecked = true;
  StepUse part = unchecked;
  part.extent = {32, 80};
  for (const std::vector<StepUse>& steps :
       {std::vector{checked, unchecked, part, checked}, std::vector{unchecked, checked, checked, part}}) {
    StepGraph graph;
    for (const StepUse& step : steps) add(graph, {step});
    for (uint32_t from = 0; from < graph.size(); ++from) {
      graph.visit_after(from, [&](uint32_t to) {
        EXPECT_EQ(steps[from].is_unchecked, steps[to].is_unchecked) << from << " to " << to;
      });
    }
    EXPECT_EQ(graph.n_edges(), 2u);
    const std::vector<StepUse> claims = graph.claims();
    for (const StepUse& use : steps) {
      EXPECT_TRUE(std::any_of(claims.begin(), claims.end(), [&use](const StepUse& claim) {
        return claim.home == use.home && claim.extent.contains(use.extent);
      }));
    }
  }
}

TEST(StepGraph, ClaimsEachUncheckedArrayOfTheSameBytes) {
  std::array<Home, 2> homes;
  StepUse first{&homes[0], {64, 128}, Access::kWrite, true};
  first.is_unchecked = true;
  StepUse second{&homes[1], {64, 128}, Access::kRead};
  second.is_unchecked = true;
  StepGraph graph;
  add(graph, {first});
  add(graph, {second});
  EXPECT_EQ(graph.n_edges(), 1u);
  std::vector<StepUse> claims = graph.claims();
  ASSERT_EQ(claims.size(), 2u);
  if (claims[0].home != &homes[0]) std::swap(claims[0], claims[1]);
  EXPECT_EQ(claims[0].access, Access::kWrite);
  EXPECT_TRUE(claims[0].is_overwrite);
  EXPECT_EQ(claims[1].home, &homes[1]);
  EXPECT_EQ(claims[1].access, Access::kRead);
  EXPECT_FALSE(claims[1].is_overwrite) << "its bytes must hold a value";
}

TEST(StepGraph, BytesAreOverwrittenIfTheirFirstStepOverwritesThem) {
  Cell cell;
  const auto overwrites = [&](std::initializer_list<std::vector<Wanted>> steps) {
    return claims_of(steps).front().is_overwrite;
  };
  EXPECT_TRUE(overwrites({{overwrite(cell)}}));
  EXPECT_TRUE(overwrites({{overwrite(cell)}, {read(cell)}, {write(cell)}}));
  EXPECT_FALSE(overwrites({{write(cell)}, {overwrite(cell)}}));
  EXPECT_FALSE(overwrites({{read(cell)}, {overwrite(cell)}}));
  EXPECT_FALSE(overwrites({{read(cell), overwrite(cell)}}));
  EXPECT_FALSE(overwrites({{overwrite(cell), read(cell)}}));
}

// Each step waits for exactly the earlier ones that conflict, directly or through others.
TEST(StepGraph, OrdersConflictingStepsAndNoOthers) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::array<Cell, 2> cells;
    std::vector<std::vector<StepUse>> steps(1 + random() % 24);
    StepGraph graph;
    for (auto& step : steps) {
      const size_t n = random() % 4;
      for (size_t i = 0; i < n; ++i) {
        const size_t begin = random() % 8;
        const size_t end = begin + 1 + random() % (8 - begin);
        const Wanted wanted{&cells[random() % 2], random() % 2 == 0 ? Access::kRead : Access::kWrite, false,
                            begin, end};
        step.push_back(uses_of({&wanted, 1}).front());
      }
      add(graph, step);
    }
    const size_t n = steps.size();
    std::vector<std::vector<bool>> expected(n, std::vector<bool>(n)), found = expected;
    std::vector<uint32_t> n_before(n);
    for (size_t to = 0; to < n; ++to) {
      for (size_t from = 0; from < to; ++from) {
        for (const StepUse& a : steps[from]) {
          for (const StepUse& b : steps[to]) {
            if (in_conflict(a.access, a.extent, b.access, b.extent)) expected[from][to] = true;
          }
        }
      }
    }
    for (uint32_t from = 0; from < n; ++from) {
      graph.visit_after(from, [&](uint32_t to) {
        EXPECT_FALSE(found[from][to]) << "counted twice";
        EXPECT_TRUE(expected[from][to]) << from << " to " << to << " in round " << round;
        found[from][to] = true;
        ++n_before[to];
      });
    }
    for (uint32_t i = 0; i < n; ++i) EXPECT_EQ(graph.n_before(i), n_before[i]);
    const auto close = [n](std::vector<std::vector<bool>>& reaches) {
      for (size_t k = 0; k < n; ++k) {
        for (size_t i = 0; i < n; ++i) {
          for (size_t j = 0; reaches[i][k] && j < n; ++j) reaches[i][j] = reaches[i][j] || reaches[k][j];
        }
      }
    };
    close(expected);
    close(found);
    ASSERT_EQ(expected, found) << "round " << round;
  }
}

}  // namespace
}  // namespace tenon::impl
