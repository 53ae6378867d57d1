// SPDX-License-Identifier: Apache-2.0
//
// Memory that several processes share, for tests: the processes are objects, each with its own cells, queues
// and gates; what they really share is the turns at the gates, which are taken as between true processes:
// first come, first served among those that conflict, and nobody excludes what is of the same process.
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

// The turns of one memory. Counts passes: what ends twice, or is used after its end, fails the test.
class Turns {
 public:
  explicit Turns(int order) : order(order) {}
  const int order;

  // Of all passes and requests: 0 when everything has ended.
  size_t records() {
    const std::scoped_lock lock(lock_);
    return records_.size();
  }
  // To passes.
  size_t references() {
    const std::scoped_lock lock(lock_);
    size_t sum = 0;
    for (const Record& r : records_) sum += r.references;
    return sum;
  }
  // The process has the bytes now.
  bool holds(int process, const Extent& extent, Access access) {
    const std::scoped_lock lock(lock_);
    for (const Record& r : records_) {
      const bool is_enough = r.extent.contains(extent) && includes(r.access, access);
      if (r.is_granted && r.process == process && is_enough) return true;
    }
    return false;
  }
  uint64_t turns_taken() {
    const std::scoped_lock lock(lock_);
    return last_pass_;
  }

  // The next one that asks, or request whose turn comes, is refused for this reason.
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

  struct Record {
    int process;
    Extent extent;  // from the begin of the memory
    Access access;
    Pass pass;
    uint32_t references = 1;
    bool is_granted = false;
    StandInGate* gate = nullptr;
    Request* request = nullptr;  // of a request
    RequestPart* part = nullptr;
  };

  std::list<Record>::iterator find(Pass pass) {
    auto it = records_.begin();
    while (it != records_.end() && it->pass != pass) ++it;
    return it;
  }
  const Record* blocker_of(const Record& wanted) const {
    for (const Record& r : records_) {
      if (r.process == wanted.process || !in_conflict(r.access, r.extent, wanted.access, wanted.extent))
        continue;
      if (r.is_granted || r.pass < wanted.pass) return &r;
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
  std::list<Record> records_;  // in the order in which they came
  Pass last_pass_ = 0;
  uint64_t version_ = 0;
  std::optional<Conflict::Reason> next_refusal_;
  unsigned refusals_percent_ = 0;
  std::mt19937_64 random_;
};

// The thread of a process that tells requests of their turn.
class StandInKeeper {
 public:
  StandInKeeper() : thread_([this] { run(); }) {}
  ~StandInKeeper() {
    {
      const std::scoped_lock lock(lock_);
      is_over_ = true;
    }
    told_.notify_all();
    thread_.join();
  }
  void tell(Request* request, RequestPart* part, Pass pass, std::optional<Conflict> conflict) {
    {
      const std::scoped_lock lock(lock_);
      arrivals_.push_back({request, part, pass, std::move(conflict)});
    }
    told_.notify_all();
  }

 private:
  struct Arrival {
    Request* request;
    RequestPart* part;
    Pass pass;
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
      if (!next.conflict) next.part->pass = next.pass;
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
  StandInGate(Turns& turns, int process, uintptr_t begin, StandInKeeper& keeper)
      : turns_(turns), process_(process), begin_(begin), keeper_(keeper) {}
  virtual ~StandInGate() = default;

  bool enter(const Request& request, RequestPart& part, const Deadline& deadline,
             Conflict* conflict) noexcept override {
    std::unique_lock lock(turns_.lock_);
    const auto record = ask(request, part, conflict);
    if (record == turns_.records_.end()) return false;
    while (!record->is_granted) {
      if (deadline.is_never()) {
        turns_.turned_.wait(lock);
      } else if (turns_.turned_.wait_until(lock, deadline.time_point()) == std::cv_status::timeout &&
                 !record->is_granted) {
        conflict->reason = Conflict::Reason::kTimeout;
        conflict->holder = describe(*turns_.blocker_of(*record));
        turns_.records_.erase(record);
        turns_.grant_next();
        return false;
      }
    }
    part.pass = record->pass;
    return true;
  }

  Appended submit(Request& request, RequestPart& part, Conflict* conflict) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    const auto record = ask(request, part, conflict);
    if (record == turns_.records_.end()) return Appended::kRefused;
    if (record->is_granted) {
      part.pass = record->pass;
      return Appended::kGranted;
    }
    record->gate = this;
    record->request = &request;
    record->part = &part;
    return Appended::kWaiting;
  }

  bool cancel(RequestPart& part) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    for (auto it = turns_.records_.begin(); it != turns_.records_.end(); ++it) {
      if (it->part != &part || it->is_granted) continue;
      turns_.records_.erase(it);
      turns_.grant_next();
      return true;
    }
    return false;
  }

  void share(Pass pass) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    const auto record = turns_.find(pass);
    if (record == turns_.records_.end() || !record->is_granted || record->process != process_) {
      ADD_FAILURE() << "pass " << pass << " is shared, but not held";
      return;
    }
    ++record->references;
  }

  void leave(Pass pass, bool has_written) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    const auto record = turns_.find(pass);
    if (record == turns_.records_.end() || !record->is_granted || record->process != process_) {
      ADD_FAILURE() << "pass " << pass << " is left, but not held";
      return;
    }
    if (has_written) ++turns_.version_;
    if (--record->references != 0) return;
    turns_.records_.erase(record);
    turns_.grant_next();
  }

  void disown(Pass pass) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    if (turns_.find(pass) == turns_.records_.end()) ADD_FAILURE() << "pass " << pass << " is not held";
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

  static Holder describe(const Turns::Record& record) {
    Holder holder;
    holder.kind = HolderKind::kProcess;
    holder.access = record.access;
    holder.is_granted = record.is_granted;
    holder.thread = static_cast<uint32_t>(record.process);
    holder.since_ms = coarse_now_ms();
    std::snprintf(holder.name, sizeof holder.name, "stand-in");
    return holder;
  }

  // A record, granted if it is its turn; none: the conflict says why.
  std::list<Turns::Record>::iterator ask(const Request& request, const RequestPart& part,
                                         Conflict* conflict) {
    const Asked asked = asked_of(request, part);
    if (const auto reason = turns_.draw_refusal();
        reason && !asked.overwrites && !request.ignores_dead_owner) {
      conflict->reason = *reason;
      conflict->holder.kind = HolderKind::kProcess;
      conflict->holder.thread = 4711;
      return turns_.records_.end();
    }
    turns_.records_.push_back({process_,
                               {asked.extent.begin - begin_, asked.extent.end - begin_},
                               asked.access,
                               ++turns_.last_pass_});
    const auto record = std::prev(turns_.records_.end());
    record->is_granted = turns_.blocker_of(*record) == nullptr;
    return record;
  }

  Turns& turns_;
  const int process_;
  const uintptr_t begin_;
  StandInKeeper& keeper_;
};

// Some who wait have their turn now. Requests may learn then that an owner has died.
inline void Turns::grant_next() {
  for (auto it = records_.begin(); it != records_.end();) {
    const auto record = it++;
    if (record->is_granted || blocker_of(*record) != nullptr) continue;
    record->is_granted = true;
    if (record->request == nullptr) continue;
    std::optional<Conflict> conflict;
    if (const auto reason = draw_refusal()) {
      conflict.emplace();
      conflict->reason = *reason;
      conflict->holder.kind = HolderKind::kProcess;
      conflict->holder.thread = 4711;
    }
    record->gate->keeper_.tell(record->request, record->part, record->pass, conflict);
    if (conflict) {
      records_.erase(record);
      it = records_.begin();  // those before it may have waited for this one
    }
  }
  turned_.notify_all();
}

// A process: its cells of the memories that are shared. Its threads are those that use them.
class StandInProcess {
 public:
  StandInProcess(int number, std::span<Turns* const> memories) : number(number) {
    for (Turns* turns : memories) {
      auto cell = std::make_unique<Cell>();
      gates.push_back(std::make_unique<StandInGate>(*turns, number, cell->extent().begin, keeper_));
      cell->queue.set_gate(gates.back().get());
      cells.push_back(std::move(cell));
    }
  }
  Cell& operator[](size_t i) { return *cells[i]; }

  const int number;
  std::vector<std::unique_ptr<StandInGate>> gates;
  std::vector<std::unique_ptr<Cell>> cells;

 private:
  StandInKeeper keeper_;
};

}  // namespace tenon::impl
