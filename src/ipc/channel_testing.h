// SPDX-License-Identifier: Apache-2.0
//
// What the tests of channels have in common: channels with the same fields, and items that show whether they
// are complete.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/repeats_testing.h"
#include "exec/cells_testing.h"
#include "ipc/peer_testing.h"
#include "tenon/channel.hpp"  // last: inside, some of its names are others

namespace tenon::impl {

using namespace std::chrono_literals;
using api::ChannelMode;
using api::WhenFull;

constexpr int64_t kCount = 500;
constexpr int64_t kTorn = -1;

inline const std::vector<api::Field> kFields = {api::field<int64_t>("x", {kCount}),
                                                api::field<int32_t>("k", {})};

inline api::Channel make(int slots, ChannelMode mode = ChannelMode::kQueue,
                         WhenFull when_full = WhenFull::kWait, const std::string& name = {}) {
  api::SharedOptions shared;
  shared.name = name;
  return api::Channel::create(kFields, slots, mode, when_full, shared);
}
inline api::Channel join(const std::string& name) { return api::Channel::open(api::attach(name)); }

inline void fill(const api::Item& item, int64_t value) {
  const api::Array array = item.array(0);
  const auto x = array.as<int64_t, 1>();
  for (int64_t i = 0; i < kCount; ++i) x(i) = value;
}
inline int64_t value_of(const api::Item& item) {
  const api::Array array = item.array(0);
  const auto x = array.as<const int64_t, 1>();
  for (int64_t i = 1; i < kCount; ++i) {
    if (x(i) != x(0)) return kTorn;
  }
  return x(0);
}
inline void put(const api::Channel& channel, int64_t value, std::chrono::nanoseconds patience = kPatience) {
  api::Item item = channel.loan(patience);
  fill(item, value);
  item.send();
}
inline int64_t take(const api::Channel& channel) { return value_of(*channel.receive(kPatience)); }

inline tenon_status try_loan(const api::Channel& channel) {
  return code_of([&] { (void)channel.loan(0s); });
}
inline tenon_status try_receive(const api::Channel& channel) {
  tenon_status closed = TENON_OK;
  const tenon_status status =
      code_of([&] { closed = channel.receive(0s).has_value() ? TENON_OK : TENON_ERR_CLOSED; });
  return status != TENON_OK ? status : closed;
}

// Forks a child that runs when `before` has returned in this process. Returns its exit status: child().
template <class Before, class Child>
int status_of_forked(Before before, Child child) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t pid = fork();
  if (pid == 0) {
    char go = 0;
    _exit(::read(ends[0], &go, 1) == 1 ? child() : 255);
  }
  before();
  int status = 0;
  const bool has_run = ::write(ends[1], "x", 1) == 1 && waitpid(pid, &status, 0) == pid;
  close(ends[0]);
  close(ends[1]);
  return has_run && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Case {
  ChannelMode mode;
  WhenFull when_full;
};
inline std::string name_of(const testing::TestParamInfo<Case>& info) {
  static constexpr const char *kModes[] = {"Queue", "Broadcast", "Latest"},
                              *kPolicies[] = {"Wait", "DropOldest", "Raise", "Keep"};
  return concat(kModes[static_cast<int>(info.param.mode)], kPolicies[static_cast<int>(info.param.when_full)]);
}
inline std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const ChannelMode mode : {ChannelMode::kQueue, ChannelMode::kBroadcast, ChannelMode::kLatest}) {
    for (const WhenFull policy :
         {WhenFull::kWait, WhenFull::kDropOldest, WhenFull::kRaise, WhenFull::kKeep}) {
      all.push_back({mode, policy});
    }
  }
  return all;
}

// The answer of a steered peer after an error.
inline std::string error_of(tenon_status code, int32_t pid = 0) {
  return concat("error ", static_cast<int>(code), ' ', pid);
}
// A peer that gets an order for each step.
void be_steered(Lines& lines, const std::string& name);

}  // namespace tenon::impl
