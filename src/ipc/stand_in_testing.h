// SPDX-License-Identifier: Apache-2.0
//
// Objects that stand for processes: each has its own mapping of the segment, its own place and its own mutex
// owner. At the end of the mutex owner's thread, the kernel does the same as when a process begins to end.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/os.h"
#include "exec/cells_testing.h"
#include "exec/engine.h"
#include "ipc/peer_testing.h"
#include "ipc/process_lock.h"
#include "ipc/segment.h"

namespace tenon::impl {

// The array of a segment whose data a test does not look at.
inline NamedArray one_byte() {
  NamedArray array{};
  array.code = TENON_UINT;
  array.bits = 8;
  array.lanes = 1;
  array.ndim = 1;
  array.shape[0] = 1;
  return array;
}

// Of a channel or feed: its state has memory, and is zero.
inline void begin_state(const Segment& segment) {
  os::commit(segment.file(), segment.header().data_at, segment.data_nbytes(), "a state");
  publish(segment.control().has_state(), 1U);
}

// One block in a stand-in, with the queue of its process.
struct StandInBlock {
  StandInBlock(Segment& segment, uint32_t block) : lock(segment.lock(block)) {
    const Block& b = segment.block(block);
    const auto at = reinterpret_cast<uintptr_t>(segment.data()) + b.begin.load(std::memory_order_relaxed);
    extent = {at, at + b.nbytes.load(std::memory_order_relaxed)};
    queue.set_bounds(extent);
    queue.set_gate(&lock);
  }
  ProcessLock& lock;
  Extent extent;
  Queue queue;
  Home home{&queue};
};

// A lease of bytes begin..end of a block.
class TestLease {
 public:
  TestLease(StandInBlock& place, Access access, size_t begin = 0, size_t end = SIZE_MAX)
      : request_(HolderKind::kLease, {&part_, 1}) {
    part_.home = &place.home;
    part_.access = access;
    part_.extent = {place.extent.begin + begin, std::min(place.extent.end, place.extent.begin + end)};
    if (end == SIZE_MAX) part_.extent.end = place.extent.end;
    request_.owner = current_actor();
  }
  ~TestLease() { release(); }
  TestLease& overwriting() {
    part_.is_overwrite = true;
    return *this;
  }
  TestLease& ignoring() {
    request_.ignores_dead_owner = true;
    return *this;
  }
  bool acquire(int64_t timeout_ns = kWatchdogNs) {
    request_.owner = current_actor();
    is_held_ = request_.acquire(Deadline(timeout_ns), &conflict);
    return is_held_;
  }
  Appended submit(PendingRequest* pending, std::atomic<int>* told) {
    pending->done = [](void* context) { static_cast<std::atomic<int>*>(context)->fetch_add(1); };
    pending->context = told;
    const Appended appended = request_.submit(pending, &conflict);
    // The gate may have refused what the queue has granted.
    if (appended == Appended::kGranted) arrived(*pending);
    return appended;
  }
  // After done() has been called.
  void arrived(const PendingRequest& pending) {
    is_held_ = !pending.is_refused;
    if (pending.is_refused) conflict = pending.conflict;
  }
  bool cancel() { return impl::cancel(request_); }
  bool is_held() const { return is_held_; }
  void release() {
    if (!std::exchange(is_held_, false)) return;
    if (!has_failed) impl::note_outcome(request_, {});
    impl::release(request_);
  }
  void detach() { impl::detach(request_); }
  Conflict::Reason reason() const { return conflict.reason; }

  Conflict conflict;
  bool has_failed = false;

 private:
  RequestPart part_;
  BlockingRequest request_;
  bool is_held_ = false;
};

class StandIn {
 public:
  // Creates a segment.
  explicit StandIn(uint32_t blocks, uint64_t data_nbytes = 1 << 16)
      : mutex_owner_(std::make_unique<MutexOwner>()) {
    SegmentPlan plan;
    plan.data_nbytes = data_nbytes;
    plan.blocks = blocks;
    segment_ = Segment::create(plan, *mutex_owner_);
  }
  explicit StandIn(const SegmentPlan& plan) : mutex_owner_(std::make_unique<MutexOwner>()) {
    segment_ = Segment::create(plan, *mutex_owner_);
  }
  // Opens the segment of another stand-in.
  explicit StandIn(const StandIn& of) : mutex_owner_(std::make_unique<MutexOwner>()) {
    const std::string path = concat("/proc/self/fd/", of.segment_->file().fd());
    segment_ = Segment::open(os::File(::open(path.c_str(), O_RDWR | O_CLOEXEC)), true, *mutex_owner_);
  }
  ~StandIn() {
    places_.clear();
    for (uint32_t block : used_) (void)segment_->leave(block);
  }

  Segment& segment() { return *segment_; }
  uint32_t index() { return segment_->participant().index(); }
  // Begins to use a new block; use(): one of another stand-in.
  uint32_t take(uint64_t nbytes) {
    uint32_t block = 0;  // the first one that is free
    while (look(segment_->block(block).state) != BlockState::kFree) ++block;
    segment_->take_block(block, block_end_, nbytes);
    block_end_ += round_up(nbytes, 64);
    used_.push_back(block);
    return block;
  }
  bool use(uint32_t block) {
    const uint32_t generation = segment_->block(block).generation.load(std::memory_order_relaxed);
    if (!segment_->use(block, generation)) return false;
    used_.push_back(block);
    return true;
  }
  void leave(uint32_t block) {
    std::erase(used_, block);
    (void)segment_->leave(block);
  }
  StandInBlock& place(uint32_t block) {
    for (const auto& [number, place] : places_) {
      if (number == block) return *place;
    }
    places_.emplace_back(block, std::make_unique<StandInBlock>(*segment_, block));
    return *places_.back().second;
  }

  // As if it were killed: what it holds stays held, and is of no use to it any more.
  void die() {
    mutex_owner_.reset();
    segment_->control().places->unlock(index());
    // Its mapping and its leases are kept and not used any more.
    static auto* const graves = new std::vector<Grave>;
    static std::mutex lock;
    const std::scoped_lock locked(lock);
    graves->push_back({std::move(segment_), std::move(places_), std::move(turns_)});
    used_.clear();
    places_.clear();
    turns_.clear();
  }
  // The kept leases have no owner thread any more. Otherwise a thread that acts for several processes would
  // wait for itself.
  void detach_all() {
    for (const auto& turn : turns_) turn->detach();
  }
  // A lease that it keeps until it dies.
  TestLease& keep(std::unique_ptr<TestLease> turn) {
    turns_.push_back(std::move(turn));
    return *turns_.back();
  }

 private:
  using Places = std::vector<std::pair<uint32_t, std::unique_ptr<StandInBlock>>>;
  using Turns = std::vector<std::unique_ptr<TestLease>>;
  struct Grave {
    std::unique_ptr<Segment> segment;
    Places places;
    Turns turns;
  };

  std::unique_ptr<MutexOwner> mutex_owner_;
  std::unique_ptr<Segment> segment_;
  Places places_;
  Turns turns_;
  std::vector<uint32_t> used_;
  uint64_t block_end_ = 0;
};

// The number of grants of this kind on a block, in all places.
inline uint32_t count_grants(Segment& segment, uint32_t block, GrantState::Kind kind) {
  const Control& control = segment.control();
  uint32_t n = 0;
  for (uint32_t p = 0; p < control.used_places(); ++p) {
    if (!control.has_place(p)) continue;
    for (const Grant& grant : control.place(p).grants) {
      const uint64_t state = look(grant.state);
      if (GrantState::kind(state) == kind && GrantState::block(state) == block) ++n;
    }
  }
  return n;
}
inline uint32_t waiting(Segment& segment, uint32_t block) {
  return count_grants(segment, block, GrantState::kWaiting);
}
inline uint32_t granted(Segment& segment, uint32_t block) {
  return count_grants(segment, block, GrantState::kGranted);
}

}  // namespace tenon::impl
