// SPDX-License-Identifier: Apache-2.0
#include "sync/waiter.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace tenon::impl {
namespace {

constexpr char kVariable[] = "TENON_REPORT_SECONDS";
constexpr int64_t kDefaultNs = 5'000'000'000;
constexpr double kShortest = 1e-3, kLongest = 1e9;

// No value: the variable has one that cannot be used.
std::optional<int64_t> given_period_ns() noexcept {
  const char* const given = std::getenv(kVariable);
  if (given == nullptr || *given == '\0') return kDefaultNs;
  const std::string_view text = given;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || !(seconds >= kShortest && seconds <= kLongest)) return std::nullopt;
  return std::llround(seconds * 1e9);
}

std::atomic<int64_t>& period_ns() noexcept {
  static std::atomic<int64_t> period{given_period_ns().value_or(kDefaultNs)};
  return period;
}

// Set once, when the binding is loaded.
WaitHooks installed;

// Each poll may take the lock of the language, so thousands of waiting threads poll less often. A signal
// wakes its thread at once.
std::atomic<int64_t> waiters{0};

}  // namespace

void set_wait_hooks(const WaitHooks& new_hooks) noexcept {
  installed = new_hooks;
  if (installed.report == nullptr || given_period_ns()) return;
  try {
    installed.report(concat(kVariable, " is '", std::getenv(kVariable),
                            "', and has no effect: long waits are reported every 5 s. It must be a number ",
                            "from 0.001 to 1e9")
                         .c_str());
  } catch (const std::exception&) {
    // Without memory for the text, it is not reported.
  }
}

const WaitHooks& wait_hooks() noexcept { return installed; }

int64_t next_report_ns(int64_t waited_ns) noexcept {
  const int64_t period = period_ns().load(std::memory_order_relaxed);
  return (waited_ns / period + 1) * period;
}

int64_t set_report_period_ns(int64_t period) noexcept {
  if (period <= 0) return period_ns().load(std::memory_order_relaxed);
  constexpr auto kLongestNs = static_cast<int64_t>(kLongest * 1e9);  // sums with it must not overflow
  return period_ns().exchange(std::min(period, kLongestNs), std::memory_order_relaxed);
}

Waiter::Waiter(const Deadline* deadline) noexcept : deadline_(deadline), began_ns_(now_ns()) {
  waiters.fetch_add(1, std::memory_order_relaxed);
  if (installed.begin != nullptr) token_ = installed.begin();
}

Waiter::~Waiter() {
  if (installed.end != nullptr) installed.end(token_);
  waiters.fetch_sub(1, std::memory_order_relaxed);
}

void Waiter::forget_others_after_fork() noexcept { waiters.store(0, std::memory_order_relaxed); }

int64_t Waiter::slice_ns() noexcept {
  constexpr int64_t kWaitersPerSlice = 64;
  return kSliceNs * (1 + waiters.load(std::memory_order_relaxed) / kWaitersPerSlice);
}

bool Waiter::is_interrupted() const noexcept {
  return installed.poll != nullptr && installed.poll(token_) != 0;
}

bool Waiter::is_report_due() noexcept {
  const int64_t waited = waited_ns();
  if (waited < next_report_ns_) return false;
  next_report_ns_ = next_report_ns(waited);
  return installed.report != nullptr;
}

void Waiter::report(const std::string& text) const {
  if (text.empty()) return;
  const int64_t ms = waited_ns() / 1'000'000;
  const std::string waited = ms < 1000 ? concat(ms, " ms ") : concat(ms / 1000, " s ");
  installed.report(concat("waiting for ", waited, text).c_str());
}

}  // namespace tenon::impl
