// SPDX-License-Identifier: Apache-2.0
#include "sync/report.h"

#include <array>
#include <mutex>
#include <new>
#include <utility>

#include "base/error.h"
#include "sync/gate.h"

namespace tenon::impl {
namespace {

constexpr size_t kMostNamed = 4;  // holders of one path
constexpr int kMostFollowed = 100;
constexpr size_t kMostViews = 4;     // that are reported at a time
constexpr size_t kMostFound = 1024;  // bytes

// Set once, when the binding is loaded.
ViewFinder find_views = nullptr;

// An op that is followed, kept alive meanwhile.
class KeptOp {
 public:
  KeptOp() = default;
  KeptOp(const KeptOp&) = delete;
  KeptOp& operator=(const KeptOp&) = delete;
  ~KeptOp() { set(nullptr); }
  void set(Request* held) noexcept {
    if (Request* const before = std::exchange(op_, held)) before->drop();
  }

 private:
  Request* op_ = nullptr;
};

struct Blocker {
  Holder holder;
  Request* op = nullptr;  // if it is one: held
};

// What is in the way of a part. False: nothing. Requires the lock of the queue.
bool find_blocker(const RequestPart& part, Blocker* blocker) noexcept {
  if (part.is_granted) return false;
  RequestPart* e = part.queue->first();
  for (bool is_behind = false; e != nullptr; e = e->next) {
    is_behind |= e == &part;
    if (!Queue::waits_for(part, *e)) continue;
    if (!is_behind || (part.is_ahead && e->is_granted)) break;
  }
  const View* const view = part.queue->view_in_the_way(part);
  if (e != nullptr) {
    blocker->holder = Holder::of(*e);
    if (e->request->kind == HolderKind::kOp) {
      blocker->op = e->request;
      blocker->op->hold();
    }
  } else if (view != nullptr) {
    blocker->holder = Holder::of(*view);
  }
  return e != nullptr || view != nullptr;
}

// What a request waits for, in its queues or at a gate.
bool look_at(Request& request, Blocker* blocker) noexcept {
  for (const RequestPart& part : request.parts) {
    if (!part.is_appended) continue;
    const std::scoped_lock lock(part.queue->lock);
    if (part.is_queued && find_blocker(part, blocker)) return true;
  }
  return describe_at_gates(request, &blocker->holder);
}

// An unfinished op, held: preferably one that waits. Null: there is none.
Request* any_op() noexcept {
  Request *op = nullptr, *replaced = nullptr;
  bool is_waiting = false;
  ListedQueues::visit([&](const Queue& queue) {
    if (is_waiting) return;
    for (const RequestPart* e = queue.first(); e != nullptr && !is_waiting; e = e->next) {
      if (e->request->kind != HolderKind::kOp) continue;
      const bool waits = !e->is_granted || e->needs_grant;
      if (op != nullptr && !waits) continue;
      replaced = std::exchange(op, e->request);
      op->hold();
      is_waiting = waits;
    }
  });
  if (replaced != nullptr) replaced->drop();
  return op;
}

// The path from a waiter to the holder at its end: each entry waits for the next one. If the waiter waits for
// an op, the op is the first entry. A long path keeps its first entries and its last one.
struct WaitPath {
  std::array<Holder, kMostNamed> holders;
  size_t count = 0;
  bool is_cut = false;

  void add(const Holder& holder) noexcept {
    is_cut |= count == kMostNamed;
    if (count < kMostNamed) ++count;
    holders[count - 1] = holder;
  }
};

// Calls visit with each request that waits on the path.
template <class Visit>
WaitPath path_of(const WaitNode& node, Visit visit) noexcept {
  WaitPath path;
  KeptOp kept;
  Request* request = node.request;
  if (node.waits_for_all) {
    request = any_op();
    kept.set(request);
  }
  if (request != nullptr && request->kind == HolderKind::kOp) {
    for (const RequestPart& part : request->parts) {
      if (!part.is_appended) continue;
      const std::scoped_lock lock(part.queue->lock);
      if (!part.is_queued) continue;
      path.add(Holder::of(part));
      break;
    }
  }
  for (int i = 0; request != nullptr && i < kMostFollowed; ++i) {
    visit(*request);
    Blocker blocker;
    if (!look_at(*request, &blocker)) break;
    path.add(blocker.holder);
    request = blocker.op;
    kept.set(request);
  }
  return path;
}

WaitPath path_of(const WaitNode& node) noexcept {
  return path_of(node, [](const Request&) {});
}

std::string found(const Holder& holder) {
  if (!holder.has_view || find_views == nullptr) return {};
  std::array<char, kMostFound> text;
  text[0] = '\0';
  find_views(holder, text.data(), text.size());
  if (text[0] == '\0') return {};
  const bool is_view = holder.kind == HolderKind::kView;
  return concat(is_view ? "; it is kept by: " : "; its view is kept by: ", text.data());
}

}  // namespace

void set_view_finder(ViewFinder find) noexcept { find_views = find; }

std::string found_text_of(const Holder& holder) { return text_of(holder) + found(holder); }

std::string lasting_text_of(const Holder& holder) { return text_without_age(holder) + found(holder); }

std::string text_of_wait(const WaitNode& node) {
  const WaitPath path = path_of(node);
  std::string text;
  for (size_t i = 0; i < path.count; ++i) {
    if (i != 0)
      text += path.is_cut && i + 1 == path.count ? ", which in the end waits for " : ", which waits for ";
    text += found_text_of(path.holders[i]);
  }
  // The owner may wait for this waiter in a way that the library does not know: by a join, or for a future.
  if (path.count != 0 && path.holders[path.count - 1].has_owner) {
    text +=
        "; if the thread or task that holds the lease waits for this code, both wait for ever: use the array "
        "before the block of the lease, or pass the view of the block to this code";
  }
  return text;
}

namespace detail {

void describe_holder(const WaitNode& node, Holder* holder) noexcept {
  if (holder == nullptr) return;
  const WaitPath path = path_of(node);
  if (path.count != 0) *holder = path.holders[path.count - 1];
}

}  // namespace detail

void report_outlived_view(const Holder& view) noexcept {
  if (wait_hooks().report == nullptr) return;
  try {
    wait_hooks().report(
        concat(text_of(view), " outlived its block and keeps others waiting", found(view),
               ": drop it (`a.drop_views()` if a notebook or a traceback keeps it), or copy what is "
               "to be kept")
            .c_str());
  } catch (const std::bad_alloc&) {
    // The report of long waits will name it.
  }
}

void report_outlived_views(const WaitNode& node) noexcept {
  if (wait_hooks().report == nullptr) return;
  std::array<Holder, kMostViews> views;
  size_t n = 0;
  (void)path_of(node, [&](const Request& request) {
    for (const RequestPart& part : request.parts) {
      if (!part.is_appended) continue;
      const std::scoped_lock lock(part.queue->lock);
      if (!part.is_queued || part.is_granted) continue;
      for (const RequestPart* e = part.queue->first(); e != nullptr; e = e->next) {
        if (!e->is_ended || !Queue::waits_for(part, *e) || n == kMostViews) continue;
        if (!std::exchange(e->views->is_reported, true)) views[n++] = Holder::of(*e);
      }
    }
  });
  for (size_t i = 0; i < n; ++i) report_outlived_view(views[i]);
}

bool describe_grant(const Gate& gate, GrantId grant, Holder* holder, bool* is_to_report) noexcept {
  bool is_found = false;
  *is_to_report = false;
  ListedQueues::visit([&](const Queue& queue) {
    if (is_found || queue.gate() != &gate) return;
    const auto take = [&](const auto& user) {
      if (is_found || user.grant != grant) return;
      *holder = Holder::of(user);
      is_found = true;
    };
    for (const RequestPart* e = queue.first(); e != nullptr && !*is_to_report; e = e->next) {
      if (!e->is_ended || e->views->grant != grant) continue;
      *holder = Holder::of(*e);
      is_found = true;
      *is_to_report = !std::exchange(e->views->is_reported, true);
    }
    for (const View* v = queue.first_view(); v != nullptr; v = v->next) take(*v);
    for (const RequestPart* e = queue.first(); e != nullptr; e = e->next) {
      if (!e->needs_grant) take(*e);
    }
  });
  return is_found;
}

}  // namespace tenon::impl
