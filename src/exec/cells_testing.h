// SPDX-License-Identifier: Apache-2.0
//
// Memory, ops, leases and views for the tests of the engine: plain integers, each with a queue of its own.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "base/comes_true_testing.h"
#include "base/repeats_testing.h"
#include "exec/engine.h"

namespace tenon::impl {

// Memory of eight bytes with a queue of its own.
struct Cell {
  Cell() { queue.set_bounds(extent()); }
  ~Cell() {
    FailedRange* rest = queue.heal(extent());
    while (rest != nullptr) delete std::exchange(rest, rest->next);
  }
  Extent extent() const {
    const auto at = reinterpret_cast<uintptr_t>(&value);
    return {at, at + sizeof value};
  }

  int64_t value = 0;
  Queue queue;
  Home home{&queue};
};

// An access to the bytes begin..end of a cell.
struct Wanted {
  Cell* cell;
  Access access;
  bool is_overwrite = false;
  size_t begin = 0;
  size_t end = sizeof(int64_t);
};
inline Wanted read(Cell& cell) { return {&cell, Access::kRead}; }
inline Wanted write(Cell& cell) { return {&cell, Access::kWrite}; }
inline Wanted overwrite(Cell& cell) { return {&cell, Access::kWrite, true}; }
inline Wanted read(Cell& cell, size_t begin, size_t end) { return {&cell, Access::kRead, false, begin, end}; }
inline Wanted write(Cell& cell, size_t begin, size_t end) {
  return {&cell, Access::kWrite, false, begin, end};
}

inline Extent extent_of(const Wanted& wanted) {
  const uintptr_t at = wanted.cell->extent().begin;
  return {at + wanted.begin, at + wanted.end};
}

inline void describe(const Wanted& wanted, RequestPart& part) {
  part.home = &wanted.cell->home;
  part.extent = extent_of(wanted);
  part.access = wanted.access;
  part.is_overwrite = wanted.is_overwrite;
}

using Body = std::function<void(Op*)>;

inline Ref<Op> make(std::span<const Wanted> wanted, Body body, const char* name = "op") {
  auto* const context = new Body(std::move(body));
  const Work work{context, [](void* c, Op* op) { (*static_cast<Body*>(c))(op); },
                  [](void* c) { delete static_cast<Body*>(c); }};
  Ref<Op> op = Op::create(work, wanted.size(), name, "here:1");
  size_t i = 0;
  for (const Wanted& w : wanted) describe(w, op->parts[i++]);
  return op;
}

inline Ref<Op> make(std::initializer_list<Wanted> wanted, Body body, const char* name = "op") {
  return make(std::span(wanted.begin(), wanted.size()), std::move(body), name);
}

// Deletes the body of an op that will never run.
inline void forget(const Ref<Op>& op) { delete static_cast<Body*>(op->give_up()); }

// Pushes an op of make(). If it is refused, its body is deleted.
inline bool submit(const Ref<Op>& op, OnHost on_host = OnHost::kRaise, Conflict* conflict = nullptr) {
  Conflict unused;
  if (Engine::instance().push(op, on_host, conflict != nullptr ? conflict : &unused)) return true;
  forget(op);
  return false;
}

// Pushes work that ends when it returns.
inline Ref<Op> push(std::initializer_list<Wanted> wanted, std::function<void()> body,
                    OnHost on_host = OnHost::kRaise) {
  Ref<Op> op = make(wanted, [body = std::move(body)](Op* self) {
    body();
    self->complete();
  });
  if (!submit(op, on_host)) return {};
  return op;
}

inline Ref<Failure> new_failure(const char* name, int32_t op_code = 0) {
  return Ref<Failure>::adopt(new Failure(Code::kOp, op_code, "no", name, nullptr));
}

// Pushes work that fails.
inline Ref<Op> push_failing(std::initializer_list<Wanted> wanted, const char* name = "bad") {
  Ref<Op> op = make(wanted, [name](Op* self) { self->fail(new_failure(name)); }, name);
  if (!submit(op)) return {};
  return op;
}

inline void wait(const Ref<Op>& op) {
  Conflict conflict;
  ASSERT_TRUE(op->wait(Deadline(-1), &conflict)) << static_cast<int>(conflict.reason);
}

inline void wait_all() {
  Conflict conflict;
  ASSERT_TRUE(Engine::instance().wait_all(Deadline(-1), &conflict)) << static_cast<int>(conflict.reason);
}

// How many failures began with an op of their own since the last call.
inline size_t take_failures() {
  size_t n = 0;
  while (Failures::instance().take()) ++n;
  return n;
}

// Tests that run on each of the executors that the suite names.
class OnExecutor : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { Engine::instance().set_executor(GetParam(), 3); }
  void TearDown() override {
    wait_all();
    (void)take_failures();
  }
};

// Tests on a pool of two workers, with a cell.
class OnPool : public testing::Test {
 protected:
  void SetUp() override { Engine::instance().set_executor("pool", 2); }

  Cell cell;
  Conflict conflict;
};

inline Conflict::Reason reason_of(const std::function<bool(Conflict*)>& attempt) {
  Conflict conflict;
  EXPECT_FALSE(attempt(&conflict));
  return conflict.reason;
}

class CellLease {
 public:
  explicit CellLease(const Wanted& wanted) : request_(HolderKind::kLease, {&part_, 1}) {
    describe(wanted, part_);
    request_.owner = current_actor();
  }
  bool acquire(Conflict* conflict, int64_t timeout_ns = -1) {
    is_held_ = request_.acquire(Deadline(timeout_ns), conflict);
    return is_held_;
  }
  // For a task. told counts the calls of done.
  Appended submit(PendingRequest* pending, std::atomic<int>* told, Conflict* conflict) {
    pending->done = [](void* context) { static_cast<std::atomic<int>*>(context)->fetch_add(1); };
    pending->context = told;
    return request_.submit(pending, conflict);
  }
  bool cancel() { return impl::cancel(request_); }
  bool release() {
    is_held_ = false;
    return impl::release(request_);
  }
  void release_if_held() {
    if (is_held_) release();
  }
  ~CellLease() { release_if_held(); }
  // With a failure: the bytes hold no value. Without: overwritten bytes hold a value again.
  void note_outcome(const Ref<Failure>& failure) { impl::note_outcome(request_, failure); }
  // Removes the owner: any thread may release it then.
  void detach() { impl::detach(request_); }

 private:
  RequestPart part_;
  BlockingRequest request_;
  bool is_held_ = false;
};

// A synchronous call over some cells.
class CellCall {
 public:
  explicit CellCall(std::initializer_list<Wanted> wanted)
      : request_(HolderKind::kCall, std::span(parts_).first(wanted.size())) {
    size_t i = 0;
    for (const Wanted& w : wanted) describe(w, parts_[i++]);
    request_.owner = actor_of_task(0);
  }
  bool begin(Conflict* conflict, int64_t timeout_ns = kWatchdogNs) {
    return is_held_ = request_.acquire(Deadline(timeout_ns), conflict);
  }
  void end() {
    if (std::exchange(is_held_, false)) impl::release(request_);
  }
  ~CellCall() { end(); }

 private:
  std::array<RequestPart, 2> parts_;
  BlockingRequest request_;
  bool is_held_ = false;
};

inline void describe(const Wanted& wanted, View& view) {
  view.home = &wanted.cell->home;
  view.extent = extent_of(wanted);
  view.access = wanted.access;
}

// A view of ordinary code.
class Sight {
 public:
  explicit Sight(const Wanted& wanted, const char* site = nullptr) {
    describe(wanted, view_);
    view_.site = site;
  }
  // Before it is opened: another library has it.
  void give_away() { view_.is_exported = true; }
  // Waits for work that was pushed before; false: refused.
  bool open(Conflict* conflict, int64_t timeout_ns = -1) {
    is_open_ = open_view(view_, false, Deadline(timeout_ns), conflict);
    return is_open_;
  }
  void close() {
    is_open_ = false;
    close_view(view_);
  }
  ~Sight() {
    if (is_open_) close();
  }

 private:
  View view_;
  bool is_open_ = false;
};

// Waits until the queue of a cell has n parts besides ended ones, so that a thread that should wait there
// does.
inline void await_parts(Cell& cell, size_t n) {
  const auto count = [&cell] {
    const std::scoped_lock lock(cell.queue.lock);
    size_t parts = 0;
    for (const RequestPart* e = cell.queue.first(); e != nullptr; e = e->next) parts += e->is_ended ? 0 : 1;
    return parts;
  };
  while (count() < n) std::this_thread::yield();
}

}  // namespace tenon::impl
