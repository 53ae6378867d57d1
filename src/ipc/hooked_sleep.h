// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>

#include "base/clock.h"
#include "base/error.h"
#include "sync/wait.h"

namespace tenon::impl {

// The dealings of a thread that sleeps with the hooks of its language.
class HookedSleep {
 public:
  HookedSleep() noexcept : hooks_(wait_hooks()), began_ns_(now_ns()) {
    if (hooks_.begin != nullptr) token_ = hooks_.begin();
  }
  HookedSleep(const HookedSleep&) = delete;
  HookedSleep& operator=(const HookedSleep&) = delete;
  ~HookedSleep() {
    if (hooks_.end != nullptr) hooks_.end(token_);
  }
  bool is_interrupted() const noexcept { return hooks_.poll != nullptr && hooks_.poll(token_) != 0; }
  // Every 5 s: for what it waits, as describe() says it.
  template <class Describe>
  void report(Describe describe) noexcept {
    constexpr int64_t kReportNs = 5'000'000'000;
    const int64_t waited = now_ns() - began_ns_;
    if (waited < reported_ns_ + kReportNs) return;
    reported_ns_ = waited / kReportNs * kReportNs;
    if (hooks_.report == nullptr) return;
    try {
      hooks_.report(concat("waiting for ", waited / 1'000'000'000, " s ", describe()).c_str());
    } catch (const std::exception&) {
      // The next one may say it.
    }
  }
  int64_t waited_ns() const noexcept { return now_ns() - began_ns_; }

 private:
  const WaitHooks& hooks_;
  const int64_t began_ns_;
  int64_t reported_ns_ = 0;
  void* token_ = nullptr;
};

}  // namespace tenon::impl
