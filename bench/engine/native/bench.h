// SPDX-License-Identifier: Apache-2.0
//
// What is measured and who is measured. Each contender is a class in a file of its own; the templates of
// cases.h drive it; bench.cc holds the list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bench {

enum class Case {
  kIndependent,  // each op writes a variable of its own
  kChain,        // each op writes the same variable
  kReadsWrite,   // each op reads two and writes one of kFewVariables, chosen at random
  kTrip,         // push one op and wait for it, again and again
  kRestedTrip,   // the same, after all threads have had time to fall asleep
};

constexpr int kFewVariables = 64;
constexpr int kMostUses = 3;

// As many ops are unfinished at a time before a push waits for half of them: Tenon's limit, kept by all.
constexpr uint32_t kLimit = 10'000;
// More than that, so that ops which write in turn what is theirs never meet.
constexpr int kManyVariables = 16'384;

// What an op does to a variable. The variables of an op differ.
struct Use {
  int variable;
  bool is_write;
};

// What is known before a contender is made.
struct Size {
  int workers;
  int variables;
  int64_t ops;  // at most as many will be pushed
};

// How often bodies ran, and how often one of them met what no serial order gives.
struct Found {
  int64_t bodies = 0;
  int64_t violations = 0;
};

struct Contender {
  const char* name;
  int64_t (*elapsed_ns)(Case which, int workers, int64_t n);
  Found (*check)(Case which, int workers, int64_t n);
};

// A step of one thread, done n times; returns nanoseconds.
struct Step {
  const char* name;
  int64_t (*elapsed_ns)(int64_t n);
};

std::span<const Contender> tenon_contenders();
std::span<const Step> steps();
extern const Contender tenon_executor;
extern const Contender layer_on_tbb;
extern const Contender layer_on_taskflow;
extern const Contender layer_on_stdexec;
extern const Contender openmp;
extern const Contender mxnet;
extern const Step mxnet_step;

}  // namespace bench
