// SPDX-License-Identifier: Apache-2.0
#include "data/worker.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "data/slots.h"
#include "data/thread_worker.h"

namespace tenon::impl {
std::string WorkerLink::text() const {
  return concat(process.pid, ":", process.start, ":", feed, ":", fd, ":", loop, ":", at, ":", head_at);
}

WorkerLink WorkerLink::parse(const std::string& text) {
  WorkerLink link;
  int end = 0;
  if (std::sscanf(text.c_str(),
                  "%" SCNu32 ":%" SCNu64 ":%" SCNu32 ":%d:%" SCNd32 ":%" SCNu64 ":%" SCNu64 "%n",
                  &link.process.pid, &link.process.start, &link.feed, &link.fd, &link.loop, &link.at,
                  &link.head_at, &end) != 7 ||
      static_cast<size_t>(end) != text.size()) {
    throw_error(Code::kValue, "'", text, "' is no link to a feed");
  }
  return link;
}

std::unique_ptr<Worker> Worker::join(const std::string& text) {
  const WorkerLink link = WorkerLink::parse(text);
  // This process is known, also where no descriptor is left to look.
  const os::Process here = os::this_process();
  if (here.pid != link.process.pid) return ProcessWorker::join(link);
  Ref<Workers> workers = here.start == link.process.start ? Workers::find(link.feed) : Ref<Workers>();
  FillLoop* const loop = workers ? workers->join(link.loop) : nullptr;
  if (loop == nullptr) {
    throw_error(Code::kNotFound, "this process has no feed that worker ", link.loop,
                " could join: it is closed, or the worker has joined it");
  }
  return std::make_unique<ThreadWorker>(std::move(workers), *loop);
}

std::unique_ptr<ProcessWorker> ProcessWorker::join(const WorkerLink& link) {
  if (link.fd < 0) {
    throw_error(Code::kNotFound, "the workers of this feed are threads of process ", link.process.pid,
                ": worker ", link.loop, " can join it only there");
  }
  os::File file;
  if (os::process_of(link.process.pid).start == link.process.start)
    file = os::open_memory_of(link.process.pid, link.fd, link.at == 0 ? kFeedFilePrefix : kFilePrefix);
  if (!file) {
    throw_error(Code::kNotFound, "process ", link.process.pid, " has no feed that worker ", link.loop,
                " could join: it is closed, or its process has ended");
  }
  FeedHead head{};
  Joined joined;
  Ref<Schema> schema;
  try {
    const uint64_t file_nbytes = os::size_of(file);
    if (link.at > file_nbytes || link.head_at > file_nbytes - link.at ||
        !os::read_at(file, link.at + link.head_at, &head, sizeof head)) {
      throw_error(Code::kValue, "it is cut");
    }
    check_head(head, file_nbytes - link.at);
    if (link.loop < 0 || link.loop >= head.workers || head.nbytes > file_nbytes - link.at ||
        head.file_at != link.at || head.parts.head_at != link.head_at) {
      throw_error(Code::kValue, "it has no such worker");
    }
    joined.nbytes = head.nbytes;
    joined.memory = os::map(file, link.at, head.nbytes, true, kHugePage);
    schema = read_schema(FeedControl(joined.memory, head));
    check_slots(head, *schema);
  } catch (const Error& e) {
    if (e.code() != Code::kValue && e.code() != Code::kType) throw;
    throw_error(Code::kValue, "process ", link.process.pid,
                " runs another version of Tenon, or has no worker ", link.loop, ": ", e.what());
  }
  joined.file = std::move(file);
  if (static_cast<uint32_t>(getppid()) == link.process.pid) (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  const FeedControl control(joined.memory, head);
  std::byte* const slots = joined.memory + head.slots_at;
  return std::unique_ptr<ProcessWorker>(
      new ProcessWorker(std::move(joined), nullptr, control, slots, std::move(schema), link.loop));
}

ProcessWorker::Joined::~Joined() {
  if (memory != nullptr) os::unmap(memory, nbytes);
}

ProcessWorker::ProcessWorker(const FeedControl& control, std::byte* slots, Ref<Schema> schema,
                             const os::File& file, int32_t number)
    : ProcessWorker(Joined(), &file, control, slots, std::move(schema), number) {}

ProcessWorker::ProcessWorker(Joined joined, const os::File* file, const FeedControl& control,
                             std::byte* slots, Ref<Schema> schema, int32_t number)
    : joined_(std::move(joined)),
      file_(file != nullptr ? *file : joined_.file),
      control_(control),
      slots_(slots),
      schema_(std::move(schema)),
      number_(number),
      record_(control_.loop(number)),
      filling_(FreeSlots(control_), data(0), schema_, number, hooks()),
      fields_(schema_->fields().size()),
      shapes_(fields_.size()),
      has_pages_(static_cast<size_t>(control_.head().most), control_.head().has(kHasSparseSlots)) {
  // A predecessor's generator is lost with it.
  if (look(record_.begun) != 0) filling_.lose_state();
}

ProcessWorker::~ProcessWorker() = default;

Filling::Hooks ProcessWorker::hooks() noexcept {
  Filling::Hooks hooks;
  hooks.take_memory = [](void* self, int32_t slot, std::string& reason) {
    return static_cast<ProcessWorker*>(self)->take_memory(slot, reason);
  };
  hooks.self = this;
  return hooks;
}

bool ProcessWorker::is_feed_alive() const noexcept {
  return !os::has_ended({control_.head().pid, control_.head().start});
}

// The feed's process has this one killed, or will, and gives back what it has. It settles nothing more.
void ProcessWorker::end_self() const noexcept {
  (void)kill(getpid(), SIGKILL);
  _exit(1);
}

// Of the slots. Other code of this process may have closed the descriptor; then writes take the memory.
void ProcessWorker::commit_part(uint64_t offset, uint64_t nbytes, const std::string& what) {
  const FeedHead& head = control_.head();
  if (!file_.is_lost()) return os::commit(file_, head.file_at + head.slots_at + offset, nbytes, what);
  os::check_room(nbytes, what);
  os::populate(slots_ + offset, nbytes, true);
}

// Of a slot that this worker has, so no other process takes its memory now.
bool ProcessWorker::take_memory(int32_t slot, std::string& reason) noexcept try {
  SlotRecord& record = control_.record(static_cast<uint32_t>(slot));
  if (control_.head().has(kHasSparseSlots) || look(record.has_memory) != 0) return true;
  const uint64_t nbytes = control_.head().layout.slot_nbytes;
  commit_part(offset_of(slot), nbytes, concat("1 slot of ", nbytes, " bytes"));
  publish(record.has_memory, 1U);
  return true;
} catch (const std::exception& e) {
  reason = e.what();
  return false;
}

// From now on it is busy, or idle. One that took too long before is killed: then this changes nothing.
void ProcessWorker::note_busy(int64_t since_ns) noexcept {
  // pairs with: WorkerProcesses::kill_late, "what a loop is busy with"
  int64_t now = record_.since_ns.load(std::memory_order_acquire);
  // pairs with: WorkerProcesses::kill_late, "what a loop is busy with"
  if (now == FillLoop::kAbandoned ||
      !record_.since_ns.compare_exchange_strong(now, since_ns, std::memory_order_acq_rel))
    end_self();
}

Filling::JobTake ProcessWorker::take_job(int64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  auto taken = filling_.take_job(Deadline::from_first_look(0), job_);
  while (taken == Filling::JobTake::kNone && !deadline.has_passed()) {
    store(record_.is_asleep, 1U);
    taken = filling_.take_job(Deadline(std::min(deadline.left_ns(), Event::kLookNs)), job_);
    store(record_.is_asleep, 0U);
    if (taken == Filling::JobTake::kNone && !is_feed_alive()) return Filling::JobTake::kOver;
  }
  return taken;
}

Worker::Received ProcessWorker::next(int64_t timeout_ns) {
  if (has_left_) return Received::kOver;
  if (has_request_) return Received::kRequest;
  note_busy(FillLoop::kIdle);
  const Filling::JobTake taken = take_job(timeout_ns);
  if (taken != Filling::JobTake::kJob) {
    has_left_ = taken == Filling::JobTake::kOver;
    note_busy(FillLoop::outside(now_ns()));
    return has_left_ ? Received::kOver : Received::kLate;
  }
  if (!has_pages_[static_cast<size_t>(job_.slot)]) {
    map_slot(control_.head().layout, data(job_.slot), false, [] { return false; });
    has_pages_[static_cast<size_t>(job_.slot)] = true;
  }
  filling_.put_state(job_);
  set_request();
  since_ns_ = now_ns();
  store(record_.epoch, job_.epoch);
  store(record_.index, job_.index);
  store(record_.number, job_.number);
  store(record_.begun, record_.begun.load(std::memory_order_relaxed) + 1);
  note_busy(FillLoop::in_fill(since_ns_));
  has_request_ = true;
  return Received::kRequest;
}

void ProcessWorker::set_request() {
  std::byte* const slot = data(job_.slot);
  int64_t* shape = control_.head().layout.shapes(slot);
  for (size_t i = 0; i < fields_.size(); ++i) {
    fields_[i] = slot + schema_->fields()[i].offset;
    shapes_[i] = shape;
    shape += schema_->fields()[i].shape.size();
  }
  request_ = fill_request_of(job_, control_.head().layout, slot, fields_.data(), shapes_.data());
  request_.worker = number_;
  request_.rows = control_.head().rows;
}

void ProcessWorker::commit(uint64_t nbytes) {
  if (!has_request_) throw_no_request(nbytes);
  const uint64_t offset = offset_of(job_.slot);
  commit_fields(control_.head().layout, data(job_.slot), control_.head().has(kHasSparseSlots), nbytes,
                [&](uint64_t at, uint64_t n) {
                  commit_part(offset + at, n, concat("a batch of ", nbytes, " bytes"));
                  os::populate(data(job_.slot) + at, n, true);
                });
}

void ProcessWorker::answer(int32_t code, const char* message) noexcept {
  if (!std::exchange(has_request_, false)) return;
  FillResult result;
  result.code = code;
  result.pid = getpid();
  result.began_ns = since_ns_;
  result.fill_ns = static_cast<uint64_t>(now_ns() - since_ns_);
  try {
    if (code != 0 && message != nullptr) result.message.assign(message, strnlen(message, kMessageSize - 1));
    filling_.check_fill(job_, result);
    note_busy(FillLoop::outside(now_ns()));
    if (filling_.note_result(job_, result)) {
      // A process may be left in any state by a fill that fails. So a new one fills the batch again.
      end_self();
    }
    filling_.settle(job_, result);
  } catch (const std::exception&) {
    end_self();  // no memory for a message
  }
  store(record_.last_fill_ns, result.fill_ns);
  store(record_.ended, record_.ended.load(std::memory_order_relaxed) + 1);
  publish(record_.number, uint64_t{0});
}

}  // namespace tenon::impl
