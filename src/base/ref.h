// SPDX-License-Identifier: Apache-2.0
//
// Intrusive reference counting: RefCount is the counter, Ref<T> the owning pointer.
//
// Why the orders suffice: a new reference is made from an existing one, so the increment publishes
// nothing and is relaxed. Each decrement releases what its thread did with the object, and the last
// one acquires all of that before the object is destroyed. The decrement is one acq_rel operation and
// not release plus fence, because ThreadSanitizer does not model fences.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace tenon::impl {

class RefCount {
 public:
  RefCount() noexcept = default;
  // For an object that starts with several owners.
  explicit RefCount(uint64_t n) noexcept : count_(n) {}

  void increment(uint64_t n = 1) noexcept { count_.fetch_add(n, std::memory_order_relaxed); }

  // Returns how many references are left.
  // pairs with: RefCount::decrement, "uses before destruction"
  uint64_t decrement_to() noexcept { return count_.fetch_sub(1, std::memory_order_acq_rel) - 1; }
  // Only a hint while other threads change the count.
  uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

  // For an object that one thread changes while another adds a reference and then looks at it: the first one
  // counts that reference, or the second one sees the change.
  uint64_t count_after_change() noexcept {
    // pairs with: RefCount::increment_before_look, "a change and a new reference"
    return count_.fetch_add(0, std::memory_order_acq_rel);
  }
  void increment_before_look() noexcept {
    // pairs with: RefCount::count_after_change, "a change and a new reference"
    count_.fetch_add(1, std::memory_order_acquire);
  }

  // True if these were the last references.
  // pairs with: RefCount::decrement, "uses before destruction"
  bool decrement(uint64_t n = 1) noexcept { return count_.fetch_sub(n, std::memory_order_acq_rel) == n; }

  // The same for objects for which increment_if_alive() is never called. A caller that holds all references
  // stays the only owner, so a load is enough and saves an atomic change.
  bool decrement_unlisted(uint64_t n = 1) noexcept {
    // pairs with: RefCount::decrement, "uses before destruction"
    return count_.load(std::memory_order_acquire) == n || decrement(n);
  }

  // Adds a reference unless the count has reached zero: for lookups in tables that do not own their entries.
  bool increment_if_alive() noexcept {
    uint64_t count = count_.load(std::memory_order_relaxed);
    while (count != 0) {
      // pairs with: RefCount::decrement, "uses before destruction"
      if (count_.compare_exchange_weak(count, count + 1, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  // For recycled objects without references.
  void reset() noexcept { count_.store(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{1};
};

// Owns one reference to a T, which has retain() and release(). May be null.
template <class T>
class Ref {
 public:
  Ref() noexcept = default;
  Ref(const Ref& other) noexcept : object_(other.object_) {
    if (object_ != nullptr) object_->retain();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr) object_->release();
  }

  // Takes over a reference that the caller owns.
  static Ref adopt(T* object) noexcept {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  // Adds a reference.
  static Ref share(T* object) noexcept {
    if (object != nullptr) object->retain();
    return adopt(object);
  }

  T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

  // Hands the reference to the caller.
  [[nodiscard]] T* detach() noexcept { return std::exchange(object_, nullptr); }

 private:
  T* object_ = nullptr;
};

}  // namespace tenon::impl
