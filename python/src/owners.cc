// SPDX-License-Identifier: Apache-2.0
#include "owners.h"

#include <dlfcn.h>

#include <atomic>
#include <utility>

#include "free_list.h"

namespace tenon::python::owners {

// One thread only.
struct Local {
  Collector* current = nullptr;
  int depth = 0;  // Collectors and drains on the stack
};

namespace {

// Chains of owners (memory lent by memory lent by ...) are finished recursively to this depth, then in a
// loop by the outermost call: each level takes several frames, also of other libraries.
constexpr int kMaxDepth = 32;

// Shared. Nodes that were released without the GIL. Any thread pushes; only threads with the GIL pop, one
// at a time, so that a node cannot be popped and pushed again while another pop looks at it.
std::atomic<Node*> released{nullptr};
std::atomic<bool> is_call_pending{false};
std::atomic<bool> is_python_ending{false};

constinit thread_local Local local [[gnu::tls_model("initial-exec")]];

// Under the GIL. Nodes of the usual sizes.
constexpr size_t kNodeSize = 64;
constinit FreeList<kNodeSize> nodes;

// The thread state that is current, without a check: of this thread, or (before 3.12) of the one that holds
// the GIL. Not in the limited API, so looked up; null on interpreters that have neither name.
PyThreadState* (*unchecked_state)() = nullptr;

void push(Node* node) noexcept {
  Node* head = released.load(std::memory_order_relaxed);
  do {
    node->next = head;
    // pairs with: owners::pop, "released before finished"
  } while (!released.compare_exchange_weak(head, node, std::memory_order_release, std::memory_order_relaxed));
}

Node* pop() noexcept {
  // pairs with: owners::push, "released before finished"
  Node* head = released.load(std::memory_order_acquire);
  while (head != nullptr && !released.compare_exchange_weak(head, head->next, std::memory_order_acquire,
                                                            std::memory_order_acquire)) {
  }
  return head;
}

int run_pending_call(void*) {
  // pairs with: owners::schedule_call, "a node pushed before this is seen"
  is_call_pending.exchange(false, std::memory_order_acq_rel);
  drain();
  return 0;
}

void schedule_call() noexcept {
  if (is_python_ending.load(std::memory_order_relaxed)) return;
  // pairs with: owners::run_pending_call, "a node pushed before this is seen"
  if (is_call_pending.exchange(true, std::memory_order_acq_rel)) return;
  if (Py_AddPendingCall(run_pending_call, nullptr) != 0) {
    is_call_pending.store(false,
                          std::memory_order_relaxed);  // the queue is full: the next release tries again
  }
}

}  // namespace

bool holds_gil() noexcept {
  if (unchecked_state == nullptr) return false;
  PyThreadState* const state = unchecked_state();
  return state != nullptr && state == PyGILState_GetThisThreadState();
}

[[gnu::hot]] void* Node::operator new(size_t size) {
  return size <= kNodeSize ? nodes.take() : ::operator new(size);
}

[[gnu::hot]] void Node::operator delete(void* memory, size_t size) noexcept {
  size <= kNodeSize ? nodes.give(memory) : ::operator delete(memory);
}

Object::Object(nb::handle owned_object)
    : Node([](Node* node) {
        auto* const self = static_cast<Object*>(node);
        Py_DECREF(std::exchange(self->object, nullptr));
        delete self;
      }),
      object(owned_object.inc_ref().ptr()) {}

[[gnu::hot]] void release(void* owner) noexcept {
  auto* const node = static_cast<Node*>(owner);
  if (Collector* const collector = local.current) {
    node->next = std::exchange(collector->nodes_, node);
    return;
  }
  if (Py_IsInitialized() == 0) return;
  push(node);
  if (holds_gil()) {
    drain();
  } else {
    schedule_call();
  }
}

[[gnu::hot]] void drain() {
  if (released.load(std::memory_order_relaxed) == nullptr) return;
  Local& here = local;
  if (here.depth >= kMaxDepth) return;
  const KeepError keep_error;
  ++here.depth;
  while (Node* const node = pop()) node->finish(node);
  --here.depth;
}

[[gnu::hot]] Collector::Collector() noexcept : local_(local), outer_(std::exchange(local_.current, this)) {
  ++local_.depth;
}

[[gnu::hot]] Collector::~Collector() {
  local_.current = outer_;
  while (nodes_ != nullptr) {
    Node* const node = std::exchange(nodes_, nodes_->next);
    is_deep() ? push(node) : node->finish(node);
  }
  if (--local_.depth == 0) drain();
}

bool Collector::is_deep() const noexcept { return local_.depth > kMaxDepth; }

void Collector::defer(Node* node) noexcept { push(node); }

void add_owners(nb::module_&) {
  for (const char* name : {"PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet"}) {
    unchecked_state = reinterpret_cast<PyThreadState* (*)()>(dlsym(RTLD_DEFAULT, name));
    if (unchecked_state != nullptr) break;
  }
  nb::module_::import_("atexit").attr("register")(
      nb::cpp_function([] { is_python_ending.store(true, std::memory_order_relaxed); }));
}

}  // namespace tenon::python::owners
