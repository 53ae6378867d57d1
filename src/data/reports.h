// SPDX-License-Identifier: Apache-2.0
//
// Messages of a feed for its consumer that are neither batches nor failures. They are kept until the consumer
// takes them.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

namespace tenon::impl {

// Threads: any.
class Reports {
 public:
  // Drops the oldest one if no caller takes them.
  void add(std::string text) noexcept try {
    const std::scoped_lock lock(mutex_);
    if (texts_.size() == kMost) texts_.pop_front();
    texts_.push_back(std::move(text));
    has_any_.store(true, std::memory_order_relaxed);
  } catch (const std::exception&) {  // no memory: the statistics have the counts
  }

  // The oldest one; empty: there is none.
  std::string take() {
    if (!has_any_.load(std::memory_order_relaxed)) return {};
    const std::scoped_lock lock(mutex_);
    if (texts_.empty()) return {};  // another thread took it
    std::string text = std::move(texts_.front());
    texts_.pop_front();
    has_any_.store(!texts_.empty(), std::memory_order_relaxed);
    return text;
  }

 private:
  static constexpr size_t kMost = 64;

  std::mutex mutex_;
  std::deque<std::string> texts_;  // guarded by mutex_
  std::atomic<bool> has_any_{false};
};

}  // namespace tenon::impl
