// SPDX-License-Identifier: Apache-2.0
//
// The effects of a fork, as docs/contract.md states them (section 5), and docs/share.md for shared memory.
// The child has one thread, all of the memory, and no grants. The handlers wait only for short sections,
// never for ops. They need no memory: without it the child continues, and its failures have a shorter
// message.
#include "memory/fork.h"

#include <pthread.h>

#include <atomic>
#include <utility>

#include "exec/engine.h"
#include "memory/known_memory.h"
#include "sync/gate.h"

namespace tenon::impl {
namespace {

std::atomic<const ForkHooks*> hooks{nullptr};
// Used by the forking thread, between the handlers.
const ForkHooks* hooks_of_fork = nullptr;

constexpr const char* kUnfinished = "it was unfinished when the process forked, and runs in the parent only";

void before_fork() {
  // pairs with: set_fork_hooks, "the hooks of forks"
  const ForkHooks* const wanted = hooks.load(std::memory_order_acquire);
  if (wanted != nullptr) wanted->before();
  WaitGraph::instance().lock_for_fork();
  hooks_of_fork = wanted;
  KnownMemory::instance().lock_for_fork();
  ListedQueues::lock_for_fork();
  Failures::instance().lock_for_fork();
  lock_threads_for_fork();  // last: a thread takes it under any other lock
}

void unlock_all(bool is_child) {
  unlock_threads_after_fork(is_child);
  Failures::instance().unlock_after_fork();
  ListedQueues::unlock_after_fork();
  KnownMemory::instance().unlock_after_fork();
  WaitGraph::instance().unlock_after_fork();
}

void in_parent() {
  const ForkHooks* const wanted = hooks_of_fork;
  unlock_all(false);
  if (wanted != nullptr) wanted->in_parent();
}

// True if the child does not keep the request. A request of the forking thread that waits belongs to a task,
// whose loop runs in the parent.
bool is_void(const Request& request) {
  if (request.is_gated) return true;
  if (request.is_on_stream()) return true;  // no driver tells the child when it is done
  if (request.kind == HolderKind::kOp || request.missing.load(std::memory_order_relaxed) != 0) return true;
  return !request.is_detached.load(std::memory_order_relaxed) && request.owner.thread != this_thread_id();
}

// Removes the requests of threads that do not exist here from a queue. Adds each op once to the list.
void empty(Queue& queue, ReadyList* ops) {
  constexpr uint64_t kListed = UINT64_MAX;  // no walk has this number
  ReadyList ready;  // stays empty: a waiting part is removed before the parts that it waits for
  RequestPart* last = queue.first();
  while (last != nullptr && last->next != nullptr) last = last->next;
  for (RequestPart* part = last; part != nullptr;) {
    RequestPart* const previous = part->previous;
    Request& request = *part->request;
    if (!part->is_ended && is_void(request)) {
      if (request.is_gated) {
        forget_gates(request);
      } else {
        queue.lose_views_of_others(part, this_thread_id());
      }
      queue.remove(part, &ready);
      if (request.kind == HolderKind::kOp && std::exchange(request.seen_by, kListed) != kListed)
        ops->add(&request);
    }
    part = previous;
  }
  (void)ready.take_all();
  queue.end_parts_after_fork(this_thread_id());
  if (queue.gate() != nullptr) queue.mark_views_inherited();
}

void in_child() {
  ReadyList ops;
  ListedQueues::visit_locked([&ops](Queue& queue) { empty(queue, &ops); });
  this_thread.running = 0;  // the op whose body forked runs in the parent
  this_thread.running_request = nullptr;
  this_thread.is_finishing = false;
  WaitGraph::instance().clear_after_fork();
  Engine::instance().start_anew_after_fork();
  const ForkHooks* const wanted = hooks_of_fork;
  unlock_all(true);
  if (wanted != nullptr) wanted->in_child();
  for (Request* request = ops.take_all(); request != nullptr;) {
    Op& op = static_cast<Op&>(*std::exchange(request, request->next_ready));
    op.abandon(Failure::make(Code::kOp, kUnfinished, op.name, op.site));
  }
}

}  // namespace

void handle_forks() {
  (void)Engine::instance();  // forks, and leases that fail, use it when there may be no memory
  pthread_atfork(before_fork, in_parent, in_child);
}

void set_fork_hooks(const ForkHooks* given) noexcept {
  // pairs with: before_fork, "the hooks of forks"
  hooks.store(given, std::memory_order_release);
}

}  // namespace tenon::impl
