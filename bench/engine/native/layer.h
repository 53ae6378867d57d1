// SPDX-License-Identifier: Apache-2.0
//
// The least that puts dependencies on an executor that knows none: each variable has a queue of reads and
// writes, each op counts what it waits for. What an engine adds to it, it pays for: leases, views, failures,
// parts of arrays, deadlocks, fork. As Tenon it appends to all queues of an op at once, and runs the first op
// that another has made ready in place.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "backlog.h"
#include "base/spin_lock.h"
#include "bench.h"

namespace bench {

// Executor(int workers) starts threads and ~Executor() ends them; post<&run>(Slot&, op) calls run(op) on one
// of them; each op has a Slot for it. Owns the ops, which it uses again. Threads: pushes and waits from one.
template <class Executor>
class Layer {
 public:
  explicit Layer(const Size& size)
      : variables_(std::make_unique<Variable[]>(size_t(size.variables))), executor_(size.workers) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // After wait_all().
  ~Layer() {
    destroy(free_);
    // pairs with: Layer::give_back, "an op to be used again"
    destroy(returned_.load(std::memory_order_acquire));
  }

  template <class F>
  void session(F f) {
    f();
  }

  template <class Body>
  void push(void* context, std::span<const Use> uses) {
    backlog_.begin();
    Op* const op = take();
    op->body = &Body::run;
    op->context = context;
    op->n = static_cast<uint32_t>(uses.size());
    op->missing.store(op->n, std::memory_order_relaxed);
    for (uint32_t i = 0; i < op->n; ++i) {
      op->claims[i] = {op, &variables_[size_t(uses[i].variable)], nullptr, uses[i].is_write};
    }
    const std::span<Claim> claims(op->claims.data(), op->n);
    std::sort(claims.begin(), claims.end(),
              [](const Claim& a, const Claim& b) { return a.variable < b.variable; });
    for (const Claim& claim : claims) claim.variable->lock.lock();
    uint32_t granted = 0;
    for (Claim& claim : claims) granted += claim.variable->append(&claim) ? 1 : 0;
    for (const Claim& claim : claims) claim.variable->lock.unlock();
    // With nothing granted here the op may be done by now.
    if (granted != 0 && op->is_ready_after(granted)) post(op);
  }

  template <class Body>
  void push_and_wait(void* context, std::span<const Use> uses) {
    push<Body>(context, uses);
    wait_all();
  }

  void wait_all() { backlog_.wait_until(0); }

 private:
  struct Op;
  struct Variable;

  struct Claim {
    Op* op;
    Variable* variable;
    Claim* next;
    bool is_write;
  };

  // Granted: some readers or one writer. Behind them wait claims in the order of the pushes.
  struct alignas(64) Variable {
    tenon::impl::SpinLock lock;
    bool has_writer = false;  // guarded by lock, as is the rest
    uint32_t readers = 0;
    Claim* first = nullptr;
    Claim* last = nullptr;

    bool can_grant(const Claim& claim) const noexcept {
      return !has_writer && (readers == 0 || !claim.is_write);
    }

    void grant(const Claim& claim) noexcept {
      has_writer = claim.is_write;
      readers += claim.is_write ? 0 : 1;
    }

    // True if it is granted.
    bool append(Claim* claim) noexcept {
      if (first == nullptr && can_grant(*claim)) {
        grant(*claim);
        return true;
      }
      (first == nullptr ? first : last->next) = claim;
      last = claim;
      return false;
    }

    // Takes a granted claim out. Ops that have become ready are put in front of ready.
    void remove(const Claim& claim, Op** ready) noexcept {
      readers -= claim.is_write ? 0 : 1;
      has_writer = false;
      while (first != nullptr && can_grant(*first)) {
        Op* const op = first->op;
        grant(*first);
        first = first->next;
        if (op->is_ready_after(1)) op->next = std::exchange(*ready, op);
      }
    }
  };

  struct Op {
    explicit Op(Layer* layer_of_op) noexcept : layer(layer_of_op) {}

    // True if nothing is missing any more.
    bool is_ready_after(uint32_t granted) noexcept {
      // pairs with: Op::is_ready_after, "what the ops before have done"
      return missing.fetch_sub(granted, std::memory_order_acq_rel) == granted;
    }

    Layer* const layer;
    void (*body)(void* context) = nullptr;
    void* context = nullptr;
    Op* next = nullptr;  // of a list of ops that are ready, or not used
    std::atomic<uint32_t> missing{0};
    uint32_t n = 0;
    std::array<Claim, kMostUses> claims{};
    typename Executor::Slot slot;
  };

  void post(Op* op) { executor_.template post<&Layer::run>(op->slot, op); }

  static void run(void* task) noexcept {
    for (auto* op = static_cast<Op*>(task); op != nullptr;) {
      op->body(op->context);
      op = op->layer->complete(op);
    }
  }

  // Returns an op that is ready now.
  Op* complete(Op* op) noexcept {
    Op* ready = nullptr;
    for (const Claim& claim : std::span(op->claims.data(), op->n)) {
      const std::scoped_lock lock(claim.variable->lock);
      claim.variable->remove(claim, &ready);
    }
    give_back(op);
    Op* const next = ready;
    if (next != nullptr) ready = next->next;
    while (ready != nullptr) post(std::exchange(ready, ready->next));
    backlog_.end();
    return next;
  }

  // Of the thread that pushes.
  Op* take() {
    // pairs with: Layer::give_back, "an op to be used again"
    if (free_ == nullptr) free_ = returned_.exchange(nullptr, std::memory_order_acquire);
    if (free_ == nullptr) return new Op(this);
    return std::exchange(free_, free_->next);
  }

  void give_back(Op* op) noexcept {
    op->next = returned_.load(std::memory_order_relaxed);
    // pairs with: Layer::take, "an op to be used again"
    while (!returned_.compare_exchange_weak(op->next, op, std::memory_order_release,
                                            std::memory_order_relaxed)) {
    }
  }

  static void destroy(Op* first) noexcept {
    while (first != nullptr) delete std::exchange(first, first->next);
  }

  const std::unique_ptr<Variable[]> variables_;
  Op* free_ = nullptr;  // of the thread that pushes
  alignas(64) std::atomic<Op*> returned_{nullptr};
  Backlog backlog_;
  Executor executor_;  // ended first
};

}  // namespace bench
