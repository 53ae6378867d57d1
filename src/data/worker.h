// SPDX-License-Identifier: Apache-2.0
//
// A worker's end of a feed: of a worker process, and of a thread that a generator has started in the feed's
// process (thread_worker.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/os.h"
#include "base/ref.h"
#include "data/feed_control.h"
#include "data/fill_loop.h"
#include "data/filling.h"
#include "ipc/schema.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// What a worker needs to find its feed.
struct WorkerLink {
  os::Process process;
  uint32_t feed = 0;  // which one of the process
  int fd = -1;        // of its memory; -1: the worker is a thread of the process
  int32_t loop = 0;
  // Where the control part lies in the file, and the head in it.
  uint64_t at = 0, head_at = 0;

  std::string text() const;
  static WorkerLink parse(const std::string& text);  // fails with kValue
};

// Threads: one at a time.
class Worker {
 public:
  // Finds the feed in this process, or opens its memory. Fails with kNotFound, kValue, kSystem.
  static std::unique_ptr<Worker> join(const std::string& link);
  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  virtual ~Worker() = default;

  enum class Received { kRequest, kLate, kOver };
  // The next request, which request() then has, until it is answered. timeout_ns < 0: for ever.
  virtual Received next(int64_t timeout_ns) = 0;
  // Null: there is none.
  const tenon_fill_request* request() const noexcept { return has_request_ ? &request_ : nullptr; }
  // Takes memory for the first bytes of a sparse slot, that of the current request. Fails with kValue,
  // kNoMemory.
  virtual void commit(uint64_t nbytes) = 0;
  // message is cut where it is too long; null: none.
  virtual void answer(int32_t code, const char* message) noexcept = 0;

 protected:
  tenon_fill_request request_{};
  bool has_request_ = false;
  bool has_left_ = false;
  int64_t since_ns_ = 0;  // when the current one was taken
};

// Takes tickets and settles them by the same functions as a thread of the feed (filling.h), over the feed's
// control part. Its process may be killed or stopped at any store: WorkerProcesses gives back what it has.
class ProcessWorker final : public Worker {
 public:
  static std::unique_ptr<ProcessWorker> join(const WorkerLink& link);
  // For a child that the feed has forked: it has the memory, and the file, which is the caller's.
  // slots: the first one.
  ProcessWorker(const FeedControl& control, std::byte* slots, Ref<Schema> schema, const os::File& file,
                int32_t number);
  ~ProcessWorker() override;

  Received next(int64_t timeout_ns) override;
  void commit(uint64_t nbytes) override;
  void answer(int32_t code, const char* message) noexcept override;

 private:
  // A mapping of the feed's file.
  struct Joined {
    os::File file;
    std::byte* memory = nullptr;
    uint64_t nbytes = 0;

    Joined() = default;
    Joined(Joined&& other) noexcept
        : file(std::move(other.file)), memory(std::exchange(other.memory, nullptr)), nbytes(other.nbytes) {}
    ~Joined();
  };
  ProcessWorker(Joined joined, const os::File* file, const FeedControl& control, std::byte* slots,
                Ref<Schema> schema, int32_t number);

  Filling::Hooks hooks() noexcept;
  void commit_part(uint64_t offset, uint64_t nbytes, const std::string& what);
  bool take_memory(int32_t slot, std::string& reason) noexcept;
  Filling::JobTake take_job(int64_t timeout_ns);
  void set_request();
  [[noreturn]] void end_self() const noexcept;
  void note_busy(int64_t since_ns) noexcept;
  std::byte* data(int32_t slot) const noexcept { return slots_ + offset_of(slot); }
  // From the first slot.
  uint64_t offset_of(int32_t slot) const noexcept {
    return static_cast<uint64_t>(slot) * control_.head().layout.slot_nbytes;
  }
  bool is_feed_alive() const noexcept;

  const Joined joined_;   // of one that has joined
  const os::File& file_;  // of the feed's memory
  const FeedControl control_;
  std::byte* const slots_;
  const Ref<Schema> schema_;
  const int32_t number_;
  LoopRecord& record_;
  Filling filling_;
  Job job_;
  std::vector<void*> fields_;
  std::vector<int64_t*> shapes_;
  std::vector<bool> has_pages_;  // by slot: its pages are in this process' table, as far as they can be
};

}  // namespace tenon::impl
