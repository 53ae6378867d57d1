// SPDX-License-Identifier: Apache-2.0
#include "data/worker.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "data/slots.h"
#include "data/thread_worker.h"

namespace tenon::impl {
namespace {

constexpr int64_t kLookNs = 200'000'000;  // between two looks whether the feed's process lives

size_t fields_of(const std::byte* memory) {
  return static_cast<size_t>(reinterpret_cast<const RingsHead*>(memory)->fields);
}

}  // namespace

std::string WorkerLink::text() const {
  return concat(process.pid, ":", process.start, ":", feed, ":", fd, ":", loop);
}

WorkerLink WorkerLink::parse(const std::string& text) {
  WorkerLink link;
  int end = 0;
  if (std::sscanf(text.c_str(), "%" SCNu32 ":%" SCNu64 ":%" SCNu32 ":%d:%" SCNd32 "%n", &link.process.pid,
                  &link.process.start, &link.feed, &link.fd, &link.loop, &end) != 5 ||
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
    file = os::open_memory_of(link.process.pid, link.fd, kFeedFilePrefix);
  if (!file) {
    throw_error(Code::kNotFound, "process ", link.process.pid, " has no feed that worker ", link.loop,
                " could join: it is closed, or its process has ended");
  }
  RingsHead head{};
  const bool is_feed = os::read_at(file, 0, &head, sizeof head) && head.magic == kFeedMagic;
  if (!is_feed || head.version != kFeedVersion || link.loop < 0 || link.loop >= head.rings) {
    throw_error(Code::kValue, "process ", link.process.pid,
                " runs another version of Tenon, or has no worker ", link.loop);
  }
  std::byte* const memory = os::map(file, 0, head.nbytes, true, 2 << 20);
  if (static_cast<uint32_t>(getppid()) == link.process.pid) (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto worker = std::make_unique<ProcessWorker>(memory, link.loop);
  worker->file_ = std::move(file);
  return worker;
}

ProcessWorker::ProcessWorker(std::byte* memory, int32_t ring)
    : memory_(memory),
      head_(*reinterpret_cast<const RingsHead*>(memory)),
      ring_(ring_of(memory, fields_of(memory), static_cast<size_t>(ring))),
      number_(ring),
      fields_(fields_of(memory)),
      shapes_(fields_of(memory)),
      // What a predecessor was asked, and has not answered, is asked anew.
      done_(ring_.answered.load(std::memory_order_relaxed)),
      has_pages_((head_.nbytes - head_.slots_at) / head_.layout.slot_nbytes, head_.has_sparse_slots) {}

ProcessWorker::~ProcessWorker() {
  if (file_) os::unmap(memory_, head_.nbytes);
}

size_t ProcessWorker::offset_of(int32_t slot) const noexcept {
  return head_.slots_at + static_cast<size_t>(slot) * head_.layout.slot_nbytes;
}

bool ProcessWorker::is_feed_alive() const noexcept { return !os::has_ended({head_.pid, head_.start}); }

// False: it is late, or over.
bool ProcessWorker::wait_for_request(int64_t timeout_ns) {
  const auto has_request = [this] {
    // pairs with: WorkerProcesses::ask, "a request"
    return ring_.asked.load(std::memory_order_acquire) != done_ ||
           ring_.is_over.load(std::memory_order_relaxed) != 0;
  };
  if (has_request()) return true;
  const int64_t began = now_ns();
  bool has = SpinBudget::poll(timeout_ns == 0 ? 0 : short_wait_.budget_ns(), has_request);
  const Deadline deadline(timeout_ns);
  while (!has && !deadline.has_passed()) {
    // pairs with: WorkerProcesses::ask, "the worker sleeps"
    ring_.is_worker_asleep.store(1, std::memory_order_seq_cst);
    // pairs with: WorkerProcesses::ask, "the worker sleeps"
    if (ring_.asked.load(std::memory_order_seq_cst) == done_) {
      const os::Sleep sleep{&ring_.asked, done_};
      os::sleep_on(&sleep, 1, std::min(deadline.left_ns(), kLookNs));
    }
    ring_.is_worker_asleep.store(0, std::memory_order_relaxed);
    has = has_request();
    if (!has && !is_feed_alive()) ring_.is_over.store(1, std::memory_order_relaxed);
  }
  short_wait_.note(now_ns() - began);
  return has || has_request();
}

Worker::Received ProcessWorker::next(int64_t timeout_ns) {
  if (has_left_) return Received::kOver;
  const Deadline deadline(timeout_ns);
  while (true) {
    if (!wait_for_request(timeout_ns <= 0 ? timeout_ns : std::max<int64_t>(deadline.left_ns(), 0)))
      return Received::kLate;
    if (ring_.is_over.load(std::memory_order_relaxed) != 0) {
      has_left_ = true;
      return Received::kOver;
    }
    const Ticket& asked = ring_.requests[done_ % kRingEntries];
    if (asked.round != ended_.round || asked.place < ended_.place) break;
    since_ns_ = now_ns();
    answer(TENON_END_OF_EPOCH, nullptr);
  }
  const Ticket& asked = ring_.requests[done_ % kRingEntries];
  std::byte* const slot = memory_ + offset_of(asked.slot);
  if (!has_pages_[static_cast<size_t>(asked.slot)]) {
    map_slot(head_.layout, slot, false, [] { return false; });
    has_pages_[static_cast<size_t>(asked.slot)] = true;
  }
  int64_t* shape = head_.layout.shapes(slot);
  for (size_t i = 0; i < fields_.size(); ++i) {
    fields_[i] = slot + head_.places[i].offset;
    shapes_[i] = shape;
    shape += head_.places[i].ndim;
  }
  request_ = fill_request_of(asked, head_.layout, slot, fields_.data(), shapes_.data());
  request_.worker = number_;
  request_.rows = head_.rows;
  since_ns_ = now_ns();
  has_request_ = true;
  return Received::kRequest;
}

void ProcessWorker::commit(uint64_t nbytes) {
  if (!has_request_) throw_no_request(nbytes);
  const size_t offset = offset_of(ring_.requests[done_ % kRingEntries].slot);
  commit_fields(head_.layout, memory_ + offset, head_.has_sparse_slots, nbytes, [&](uint64_t at, uint64_t n) {
    if (file_) os::commit(file_, offset + at, n, concat("a batch of ", nbytes, " bytes"));
    os::populate(memory_ + offset + at, n, true);
  });
}

void ProcessWorker::answer(int32_t code, const char* message) noexcept {
  has_request_ = false;
  const Ticket& asked = ring_.requests[done_ % kRingEntries];
  if (code == TENON_END_OF_EPOCH && (asked.round != ended_.round || asked.place < ended_.place))
    ended_ = asked;
  RingAnswer& answer = ring_.answers[done_ % kRingEntries];
  answer.code = code;
  answer.began_ns = since_ns_;
  answer.fill_ns = static_cast<uint64_t>(now_ns() - since_ns_);
  std::strncpy(answer.message, message != nullptr ? message : "", sizeof answer.message - 1);
  answer.message[sizeof answer.message - 1] = '\0';
  // pairs with: WorkerProcesses::has_answer, "an answer"
  ring_.answered.store(++done_, std::memory_order_release);
  // pairs with: WorkerProcesses::await, "the feed sleeps"
  ring_.changes.fetch_add(1, std::memory_order_seq_cst);
  // pairs with: WorkerProcesses::await, "the feed sleeps"
  if (ring_.is_feed_asleep.load(std::memory_order_seq_cst) != 0) os::wake_all(ring_.changes);
}

}  // namespace tenon::impl
