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
  void refuse_next(Refusal::Reason reason) {
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
    Claim* claim = nullptr;  // of a request
    Entry* entry = nullptr;
  };

  std::list<Record>::iterator find(Pass pass) {
    auto it = records_.begin();
    while (it != records_.end() && it->pass != pass) ++it;
    return it;
  }
  const Record* blocker_of(const Record& wanted) const {
    for (const Record& r : records_) {
      if (r.process == wanted.process || !conflict(r.access, r.extent, wanted.access, wanted.extent))
        continue;
      if (r.is_granted || r.pass < wanted.pass) return &r;
    }
    return nullptr;
  }
  std::optional<Refusal::Reason> draw_refusal() {
    if (next_refusal_) return std::exchange(next_refusal_, std::nullopt);
    if (refusals_percent_ != 0 && random_() % 100 < refusals_percent_) return Refusal::Reason::kOwnerDied;
    return std::nullopt;
  }
  inline void grant_next();

  std::mutex lock_;
  std::condition_variable turned_;
  std::list<Record> records_;  // in the order in which they came
  Pass last_pass_ = 0;
  uint64_t version_ = 0;
  std::optional<Refusal::Reason> next_refusal_;
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
  void tell(Claim* claim, Entry* entry, Pass pass, std::optional<Refusal> refusal) {
    {
      const std::scoped_lock lock(lock_);
      arrivals_.push_back({claim, entry, pass, std::move(refusal)});
    }
    told_.notify_all();
  }

 private:
  struct Arrival {
    Claim* claim;
    Entry* entry;
    Pass pass;
    std::optional<Refusal> refusal;
  };
  void run() {
    std::unique_lock lock(lock_);
    while (true) {
      told_.wait(lock, [this] { return is_over_ || !arrivals_.empty(); });
      if (arrivals_.empty()) return;
      const Arrival next = std::move(arrivals_.front());
      arrivals_.pop_front();
      lock.unlock();
      if (!next.refusal) next.entry->pass = next.pass;
      arrive_at_gates(*next.claim, next.refusal ? &*next.refusal : nullptr);
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

  bool enter(const Claim& claim, Entry& entry, const Deadline& deadline, Refusal* refusal) noexcept override {
    std::unique_lock lock(turns_.lock_);
    const auto record = ask(claim, entry, refusal);
    if (record == turns_.records_.end()) return false;
    while (!record->is_granted) {
      if (deadline.is_never()) {
        turns_.turned_.wait(lock);
      } else if (turns_.turned_.wait_until(lock, deadline.time_point()) == std::cv_status::timeout &&
                 !record->is_granted) {
        refusal->reason = Refusal::Reason::kTimeout;
        refusal->obstacle = describe(*turns_.blocker_of(*record));
        turns_.records_.erase(record);
        turns_.grant_next();
        return false;
      }
    }
    entry.pass = record->pass;
    return true;
  }

  Appended request(Claim& claim, Entry& entry, Refusal* refusal) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    const auto record = ask(claim, entry, refusal);
    if (record == turns_.records_.end()) return Appended::kRefused;
    if (record->is_granted) {
      entry.pass = record->pass;
      return Appended::kGranted;
    }
    record->gate = this;
    record->claim = &claim;
    record->entry = &entry;
    return Appended::kWaiting;
  }

  bool cancel(Entry& entry) noexcept override {
    const std::scoped_lock lock(turns_.lock_);
    for (auto it = turns_.records_.begin(); it != turns_.records_.end(); ++it) {
      if (it->entry != &entry || it->is_granted) continue;
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

  static Obstacle describe(const Turns::Record& record) {
    Obstacle obstacle;
    obstacle.party = Party::kProcess;
    obstacle.access = record.access;
    obstacle.is_granted = record.is_granted;
    obstacle.thread = static_cast<uint32_t>(record.process);
    obstacle.since_ms = coarse_now_ms();
    std::snprintf(obstacle.name, sizeof obstacle.name, "stand-in");
    return obstacle;
  }

  // A record, granted if it is its turn; none: the refusal says why.
  std::list<Turns::Record>::iterator ask(const Claim& claim, const Entry& entry, Refusal* refusal) {
    const Asked asked = asked_of(claim, entry);
    if (const auto reason = turns_.draw_refusal(); reason && !asked.overwrites && !claim.ignores_dead_owner) {
      refusal->reason = *reason;
      refusal->obstacle.party = Party::kProcess;
      refusal->obstacle.thread = 4711;
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
    if (record->claim == nullptr) continue;
    std::optional<Refusal> refusal;
    if (const auto reason = draw_refusal()) {
      refusal.emplace();
      refusal->reason = *reason;
      refusal->obstacle.party = Party::kProcess;
      refusal->obstacle.thread = 4711;
    }
    record->gate->keeper_.tell(record->claim, record->entry, record->pass, refusal);
    if (refusal) {
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
