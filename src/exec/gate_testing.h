// SPDX-License-Identifier: Apache-2.0
//
// Memory that several processes share, for tests. The processes are objects, each with its own cells, queues
// and gates. They share the turns at the gates, which have the order of real processes: first come, first
// served among conflicting requests, and a process does not exclude itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "exec/cells_testing.h"
#include "sync/gate.h"

namespace tenon::impl {

class StandInGate;

// The turns of one memory. Counts grants: the test fails if a grant ends twice or is used after its end.
class Turns {
 public:
  explicit Turns(int order) : order(order) {}
  const int order;

  // The number of grants, including waiting ones; 0 when everything has ended.
  size_t grants() {
    const std::scoped_lock lock(lock_);
    return grants_.size();
  }
  // The number of references to all grants.
  size_t references() {
    const std::scoped_lock lock(lock_);
    size_t sum = 0;
    for (const Grant& r : grants_) sum += r.references;
    return sum;
  }
  // True if the process holds the bytes now.
  bool holds(int process, const Extent& extent, Access access) {
    const std::scoped_lock lock(lock_);
    for (const Grant& r : grants_) {
      const bool is_enough = r.extent.contains(extent) && includes(r.access, access);
      if (r.is_granted && r.process == process && is_enough) return true;
    }
    return false;
  }
  uint64_t turns_taken() {
    const std::scoped_lock lock(lock_);
    return last_id_;
  }

  // The next caller, or the next waiting request whose turn comes, is refused for this reason.
  void refuse_next(Conflict::Reason reason) {
    const std::scoped_lock lock(lock_);
    next_refusal_ = reason;
  }
  void refuse_some(unsigned percent, uint64_t seed) {
    const std::scoped_lock lock(lock_);
    refusals_percent_ = percent;
    random_.seed(seed);
  }

 private:
  friend class StandInGate;

  struct Grant {
    int process;
    Extent extent;  // from the begin of the memory
    Access access;
    GrantId id;
    uint32_t references = 1;
    bool is_granted = false;
    StandInGate* gate = nullptr;
    Request* request = nullptr;  // of a request
    RequestPart* part = nullptr;
  };

  std::list<Grant>::iterator find(GrantId id) {
    auto it = grants_.begin();
    while (it != grants_.end() && it->id != id) ++it;
    return it;
  }
  const Grant* blocker_of(const Grant& wanted) const {
    for (const Grant& r : grants_) {
      if (r.process == wanted.process || !in_conflict(r.access, r.extent, wanted.access, wanted.extent))
        continue;
      if (r.is_granted || r.id < wanted.id) return &r;
    }
    return nullptr;
  }
  std::optional<Conflict::Reason> draw_refusal() {
    if (next_refusal_) return std::exchange(next_refusal_, std::nullopt);
    if (refusals_percent_ != 0 && random_() % 100 < refusals_percent_) return Conflict::Reason::kOwnerDied;
    return std::nullopt;
  }
  inline void grant_next();

  std::mutex lock_;
  std::condition_variable turned_;
  std::list<Grant> grants_;  // in the order of their arrival
  GrantId last_id_ = 0;
  uint64_t version_ = 0;
  std::optional<Conflict::Reason> next_refusal_;
  unsigned refusals_percent_ = 0;
  std::mt19937_64 random_;
};

// The thread of a process that calls arrive_at_gates().
class StandInWaiter {
 public:
  StandInWaiter() : thread_([this] { run(); }) {}
  ~StandInWaiter() {
    {
      const std::scoped_lock lock(lock_);
      is_over_ = true;
    }
    told_.notify_all();
    thread_.join();
  }
  void tell(Request* request, RequestPart* part, GrantId grant, std::optional<Conflict> conflict) {
    {
      const std::scoped_lock lock(lock_);
      arrivals_.push_back({request, part, grant, std::move(conflict)});
    }
    told_.notify_all();
  }

 private:
  struct Arrival {
    Request* request;
    RequestPart* part;
    GrantId grant;
    std::optional<Conflict> conflict;
  };
  void run() {
    std::unique_lock lock(lock_);
    while (true) {
      told_.wait(lock, [this] { return is_over_ || !arrivals_.empty(); });
      if (arrivals_.empty()) return;
      const Arrival next = std::move(arrivals_.front());
      arrivals_.pop_front();
      lock.unlock();
      if (!next.conflict) next.part->grant = next.grant;
      arrive_at_gates(*next.request, next.conflict ? &*next.conflict : nullptr);
      lock.lock();
    }
  }

  std::mutex lock_;
  std::condition_variable told_;
  std::deque<Arrival> arrivals_;
  bool is_over_ = false;
  std::thread thread_;
};

class StandInGate final : public Gate {
 public:
  StandInGate(Turns& turns, int process, uintptr_t begin, StandInWaiter& waiter)
      : turns_(turns), process_(process), begin_(begin), waiter_(waiter) {}
  virtual ~StandInGate() = default;

  bool enter(const Request& request, RequestPart& part, const Deadline& deadline,
             Conflict* conflict) noexcept override {
    std::unique_lock lock(turns_.lock_);
    const auto grant = ask(request, part, conflict);
    if (grant == turns_.grants_.end()) return false;
    while (!grant->is_granted) {
      if (deadline.is_never()) {
        turns_.turned_.wait(lock);
      } else if (turns_.turned_.wait_until(lock, deadline.time_point()) == std::cv_status::timeout &&
                 !grant->is_granted) {
        conflict->reason = Conflict::Reason::kTimeout;
        conflict->holder = describe(*turns_.blocker_of(*grant));
        turns_.grants_.erase(grant);
        turns_.grant_next();
        return false;
      }
    }
    part.grant = grant->id;
    return true;
  }

  Appended submit(Request& request, RequestPart& part, Conflict* conflict) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    const auto grant = ask(request, part, conflict);
    if (grant == turns_.grants_.end()) return Appended::kRefused;
    if (grant->is_granted) {
      part.grant = grant->id;
      return Appended::kGranted;
    }
    grant->gate = this;
    grant->request = &request;
    grant->part = &part;
    return Appended::kWaiting;
  }

  bool cancel(RequestPart& part) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    for (auto it = turns_.grants_.begin(); it != turns_.grants_.end(); ++it) {
      if (it->part != &part || it->is_granted) continue;
      turns_.grants_.erase(it);
      turns_.grant_next();
      return true;
    }
    return false;
  }

  void share(GrantId id) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    const auto grant = turns_.find(id);
    if (grant == turns_.grants_.end() || !grant->is_granted || grant->process != process_) {
      ADD_FAILURE() << "grant " << id << " is shared, but not held";
      return;
    }
    ++grant->references;
  }

  void leave(GrantId id, bool has_written) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    const auto grant = turns_.find(id);
    if (grant == turns_.grants_.end() || !grant->is_granted || grant->process != process_) {
      ADD_FAILURE() << "grant " << id << " is left, but not held";
      return;
    }
    if (has_written) ++turns_.version_;
    if (--grant->references != 0) return;
    turns_.grants_.erase(grant);
    turns_.grant_next();
  }

  void disown(GrantId id) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    if (turns_.find(id) == turns_.grants_.end()) ADD_FAILURE() << "grant " << id << " is not held";
    ++disowned;
  }

  bool precedes(const Gate& other) const noexcept override {
    return turns_.order < static_cast<const StandInGate&>(other).turns_.order;
  }

  uint64_t version() noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    return turns_.version_;
  }
  void note_write() noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    ++turns_.version_;
  }

  int disowned = 0;  // guarded by the lock of the turns

 private:
  friend class Turns;

  static Holder describe(const Turns::Grant& grant) {
    Holder holder;
    holder.kind = HolderKind::kProcess;
    holder.access = grant.access;
    holder.is_granted = grant.is_granted;
    holder.pid = static_cast<uint32_t>(grant.process);
    holder.since_ms = coarse_now_ms();
    std::snprintf(holder.name, sizeof holder.name, "stand-in");
    return holder;
  }

  // A new grant, which may have to wait; end(): refused, and the conflict says why.
  std::list<Turns::Grant>::iterator ask(const Request& request, const RequestPart& part, Conflict* conflict) {
    const Asked asked = asked_of(request, part);
    if (const auto reason = turns_.draw_refusal();
        reason && !asked.overwrites && !request.ignores_dead_owner) {
      conflict->reason = *reason;
      conflict->holder.kind = HolderKind::kProcess;
      conflict->holder.pid = 4711;
      return turns_.grants_.end();
    }
    turns_.grants_.push_back({process_,
                              {asked.extent.begin - begin_, asked.extent.end - begin_},
                              asked.access,
                              ++turns_.last_id_});
    const auto grant = std::prev(turns_.grants_.end());
    grant->is_granted = turns_.blocker_of(*grant) == nullptr;
    return grant;
  }

  Turns& turns_;
  const int process_;
  const uintptr_t begin_;
  StandInWaiter& waiter_;
};

// Grants the waiting requests whose turn has come. Some of them may be refused.
inline void Turns::grant_next() {
  for (auto it = grants_.begin(); it != grants_.end();) {
    const auto grant = it++;
    if (grant->is_granted || blocker_of(*grant) != nullptr) continue;
    grant->is_granted = true;
    if (grant->request == nullptr) continue;
    std::optional<Conflict> conflict;
    if (const auto reason = draw_refusal()) {
      conflict.emplace();
      conflict->reason = *reason;
      conflict->holder.kind = HolderKind::kProcess;
      conflict->holder.pid = 4711;
    }
    grant->gate->waiter_.tell(grant->request, grant->part, grant->id, conflict);
    if (conflict) {
      grants_.erase(grant);
      it = grants_.begin();  // those before it may have waited for this one
    }
  }
  turned_.notify_all();
}

// A process: its cells of the shared memories. The threads that use the cells are its threads.
class StandInProcess {
 public:
  StandInProcess(int number, std::span<Turns* const> memories) : number(number) {
    for (Turns* turns : memories) {
      auto cell = std::make_unique<Cell>();
      gates.push_back(std::make_unique<StandInGate>(*turns, number, cell->extent().begin, waiter_));
      cell->queue.set_gate(gates.back().get());
      cells.push_back(std::move(cell));
    }
  }
  Cell& operator[](size_t i) { return *cells[i]; }

  const int number;
  std::vector<std::unique_ptr<StandInGate>> gates;
  std::vector<std::unique_ptr<Cell>> cells;

 private:
  StandInWaiter waiter_;
};

}  // namespace tenon::impl
