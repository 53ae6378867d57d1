// SPDX-License-Identifier: Apache-2.0
#include "buffer_calls.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "addresses.h"
#include "ending_threads.h"
#include "frames.h"
#include "ndarray.h"
#include "owners.h"
#include "waiting.h"

namespace tenon::python {

constinit BufferCall* first_buffer_call = nullptr;
constinit uint64_t n_waits = 0;

namespace {

using Clock = std::chrono::steady_clock;

// A call whose result keeps the buffer ends without a release and wakes no thread. So waiters look again
// after a pause, which grows.
constexpr std::chrono::nanoseconds kFirstPause = std::chrono::microseconds(50);
constexpr std::chrono::nanoseconds kLongestPause = std::chrono::milliseconds(20);

// A thread that waits, in the C library or here for calls of other threads.
struct WaitingThread {
  unsigned long ident = 0;
  int depth = 0;
  WaitingThread* next = nullptr;
};
constinit thread_local WaitingThread waiting_here [[gnu::tls_model("initial-exec")]];
constinit WaitingThread* first_waiting = nullptr;

bool is_waiting(unsigned long ident) noexcept {
  const WaitingThread* w = first_waiting;
  while (w != nullptr && w->ident != ident) w = w->next;
  return w != nullptr;
}

// Sleeps until a call has released its buffer. Each sleeper has a lock of its own, because a forked child
// must not use the locks of other threads.
class Sleeper {
 public:
  Sleeper() noexcept : next_(process_ == getpid() ? first_ : nullptr) {
    process_ = getpid();
    first_ = this;
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() {
    Sleeper** link = &first_;
    while (*link != nullptr && *link != this) link = &(*link)->next_;
    if (*link == this) *link = next_;
  }

  void sleep(std::chrono::nanoseconds longest) {
    const nb::gil_scoped_release released;
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, longest, [this] { return is_woken_; });
    is_woken_ = false;
  }
  static void wake_all() noexcept {
    if (first_ == nullptr || process_ != getpid()) return;  // a forked child has none of them
    for (Sleeper* s = first_; s != nullptr; s = s->next_) {
      {
        const std::scoped_lock lock(s->mutex_);
        s->is_woken_ = true;
      }
      s->woken_.notify_one();
    }
  }

 private:
  static inline constinit Sleeper* first_ = nullptr;
  static inline constinit pid_t process_ = 0;  // in which these sleep

  std::mutex mutex_;
  std::condition_variable woken_;
  bool is_woken_ = false;  // guarded by mutex_
  Sleeper* next_;
};

// The innermost frame of each thread. All of this may run the garbage collector.
class Stacks {
 public:
  // Throws nb::python_error. The arguments are copies, because a collection may release the buffer.
  bool has(const Caller caller, const unsigned long thread) {
    nb::object frame = innermost(thread);
    for (bool is_innermost = true; frame.is_valid() && !frame.is_none(); is_innermost = false) {
      if (frame.ptr() == caller.frame) {
        const Position position = Position::of(frame);
        const nb::object code = nb::steal(position.code);
        return position.instruction == caller.instruction &&
               is_call(code, position.instruction, is_innermost);
      }
      frame = back_of(frame);
    }
    return false;
  }

 private:
  nb::object innermost(unsigned long thread) {
    if (thread == PyThread_get_thread_ident()) return innermost_frame();
    if (!all_.is_valid()) all_ = nb::module_::import_("sys").attr("_current_frames")();
    return all_.attr("get")(thread);
  }
  // The step of a loop or of `yield from` is no call: its view may be in use until the next step, which is
  // the same instruction and may wait for the thread that waits for the view. In f(*arguments), the arguments
  // were evaluated before f began.
  static bool is_call(nb::handle code, int instruction, bool is_innermost) {
    static const auto number_of = [](const char* name) {
      return nb::cast<int>(nb::object(nb::module_::import_("opcode").attr("opmap")[name]));
    };
    static const int step = number_of("FOR_ITER"), delegated = number_of("SEND");
    static const int spread = number_of("CALL_FUNCTION_EX");
    const int operation = nb::cast<int>(nb::object(code.attr("co_code")[nb::int_(instruction)]));
    return operation != step && operation != delegated && (is_innermost || operation != spread);
  }

  nb::object all_;
};

}  // namespace

// The list of calls that run.
class BufferCalls {
 public:
  struct ViewSite {
    const char* site;
    uint32_t thread;  // the kernel's number
  };

  // A call of another thread that conflicts with an access. Removes calls that have ended from the list.
  static std::optional<ViewSite> find(tenon_array* array, Access access) {
    const Addresses extent = addresses_of(*tenon_array_describe(array));
    const unsigned long here = PyThread_get_thread_ident();
    const bool looks_at_all = n_ > kFew;
    Stacks stacks;
    BufferCall* call = first_buffer_call;
    while (call != nullptr) {
      const BufferCall::BufferUse& use = call->use_;
      const bool conflicts = (use.access == Access::kWrite || access == Access::kWrite) &&
                             use.begin < extent.end && extent.begin < use.end;
      if (!conflicts && !looks_at_all) {
        call = call->next_;
        continue;
      }
      const uint64_t version = version_;
      const bool is_running = stacks.has(call->caller_, call->thread_);
      if (version != version_) {  // the garbage collector ran code: buffers and stacks have changed
        stacks = Stacks();
        call = first_buffer_call;
        continue;
      }
      BufferCall* const next = call->next_;
      if (!is_running) {
        call->unlink();
      } else if (conflicts && call->thread_ != here && !is_waiting(call->thread_)) {
        if (const auto found = in_queue_of(array, *call)) return found;
      }
      call = next;
    }
    return std::nullopt;
  }

  static void link(BufferCall* call) noexcept {
    call->is_listed_ = true;
    call->previous_ = nullptr;
    call->next_ = std::exchange(first_buffer_call, call);
    if (call->next_ != nullptr) call->next_->previous_ = call;
    ++n_;
    ++version_;
  }
  static void unlink(BufferCall* call) noexcept {
    call->is_listed_ = false;
    (call->previous_ != nullptr ? call->previous_->next_ : first_buffer_call) = call->next_;
    if (call->next_ != nullptr) call->next_->previous_ = call->previous_;
    --n_;
    ++version_;
  }

  // Removes the calls of the calling thread.
  static void unlink_here() noexcept {
    const unsigned long here = PyThread_get_thread_ident();
    for (BufferCall* call = first_buffer_call; call != nullptr;) {
      BufferCall* const next = call->next_;
      if (call->thread_ == here) unlink(call);
      call = next;
    }
  }

  // The first entry from `from` on that the same call of this thread has made.
  static BufferCall* same_call(BufferCall* from, const Caller& caller) noexcept {
    const unsigned long here = PyThread_get_thread_ident();
    while (from != nullptr && !(from->thread_ == here && from->caller_ == caller)) from = from->next_;
    return from;
  }

 private:
  // This number of calls that have ended, or that use other memory, may stay in the list.
  static constexpr size_t kFew = 16;

  // Finds the call among the views in the queue of the array. Unchecked arrays have another queue.
  static std::optional<ViewSite> in_queue_of(tenon_array* array, const BufferCall& call) {
    std::vector<tenon_holder> holders(static_cast<size_t>(tenon_array_holders(array, 0, nullptr)));
    const int32_t n = tenon_array_holders(array, static_cast<int32_t>(holders.size()), holders.data());
    holders.resize(std::min(holders.size(), static_cast<size_t>(n)));
    const char* const site = call.use_.site != nullptr ? call.use_.site : "";
    for (const tenon_holder& holder : holders) {
      if (holder.kind != TENON_HOLDER_VIEW) continue;
      if (std::strncmp(holder.site, site, sizeof holder.site - 1) == 0) return ViewSite{site, holder.thread};
    }
    return std::nullopt;
  }

  static inline constinit size_t n_ = 0;
  static inline constinit uint64_t version_ = 0;
};

namespace {

std::string text_of(const BufferCalls::ViewSite& call) {
  std::string text = "a call that uses a buffer of it, made";
  if (*call.site != '\0') text += std::string(" at ") + call.site;
  return text + " by thread " + std::to_string(call.thread);
}

// Finds nothing in the body of an op, which may not wait.
std::optional<BufferCalls::ViewSite> find(tenon_array* array, Access access) {
  if (!may_have_buffer_calls() || is_in_body() || is_python_ending()) return std::nullopt;
  return BufferCalls::find(array, access);
}

std::string shape_text(const tenon_array_desc& desc) {
  std::string text = "(";
  for (int32_t i = 0; i < desc.ndim; ++i)
    text += std::to_string(desc.shape[i]) + (desc.ndim == 1 ? "," : i + 1 < desc.ndim ? ", " : "");
  return text + ")";
}

std::string seconds_text(std::chrono::nanoseconds time) {
  char text[32];
  const double seconds = std::chrono::duration<double>(time).count();
  return std::string(text,
                     std::to_chars(text, text + sizeof text, seconds, std::chars_format::general, 6).ptr) +
         " s";
}

// While the calling thread waits here.
struct BufferWait {
  BufferWait() noexcept { begin_waiting(); }
  BufferWait(const BufferWait&) = delete;
  BufferWait& operator=(const BufferWait&) = delete;
  ~BufferWait() { end_waiting(); }
};

}  // namespace

[[gnu::hot]] void BufferCall::begin(const BufferUse& use, const Caller& caller) noexcept {
  if (caller.frame == nullptr || use.begin == use.end) return;
  // One by one: a copy by words twice as wide would have to wait until the caller's stores are done.
  use_.array = use.array;
  use_.begin = use.begin;
  use_.end = use.end;
  use_.access = use.access;
  use_.site = use.site;
  caller_ = caller;
  thread_ = PyThread_get_thread_ident();
  BufferCalls::link(this);
}

void BufferCall::unlink() noexcept { BufferCalls::unlink(this); }

[[gnu::hot]] void BufferCall::finish() noexcept {
  unlink();
  Sleeper::wake_all();
}

// One call for all buffers. It is still granted when this thread has the GIL again, so a request that is
// granted later finds the buffers in the list. A view alone could be overtaken repeatedly. Views that the
// line has made before, and that were kept, look like buffers of the call: it does not ask for their values.
void BufferCall::renew() {
  if (!is_listed_) return;
  std::vector<Array> arrays;  // during the wait the buffers may be released
  std::vector<tenon_use> uses;
  for (BufferCall* call = first_buffer_call; (call = BufferCalls::same_call(call, caller_)) != nullptr;
       call = call->next_) {
    if (call != this && tenon_array_has_value(array_of(call->use_.array)) == 0) continue;
    arrays.push_back(share(call->use_.array));
    uses.push_back({arrays.back().get(), static_cast<int32_t>(call->use_.access), 0});
  }
  tenon_call* turn = nullptr;
  tenon::call(tenon_call_begin, "getbuffer", use_.site, static_cast<int32_t>(uses.size()), uses.data(),
              &turn);
  tenon_call_end(turn);
}

WaitLimit limit_of(int64_t timeout_ns) {
  if (timeout_ns < 0) return std::nullopt;
  constexpr int64_t kCentury = 3'200'000'000 * int64_t{1'000'000'000};  // the clock's sum must not overflow
  return TimeLimit{Clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, kCentury)),
                   std::chrono::nanoseconds(timeout_ns)};
}

void wait_for_buffer_calls(tenon_array* array, Access access, WaitLimit end) {
  std::optional<BufferCalls::ViewSite> found = find(array, access);
  if (!found) return;
  ReportTimer timer;
  std::chrono::nanoseconds pause = kFirstPause;
  const BufferWait waiting;
  Sleeper sleeper;
  while (found) {
    const Clock::time_point now = Clock::now();
    if (end && now >= end->end && pause != kFirstPause) {
      throw Error(TENON_ERR_TIMEOUT,
                  std::string("cannot lease for ") + (access == Access::kWrite ? "writing" : "reading") +
                      " the array of shape " + shape_text(*tenon_array_describe(array)) +
                      " in the time given (" + seconds_text(end->given) + "): " + text_of(*found));
    }
    if (timer.is_due())
      report_wait(("waiting for " + timer.waited_text() + " behind " + text_of(*found)).c_str());
    sleeper.sleep(end ? std::clamp<std::chrono::nanoseconds>(end->end - now, kFirstPause, pause) : pause);
    pause = std::min(2 * pause, kLongestPause);
    check_python(PyErr_CheckSignals());
    owners::drain();
    found = find(array, access);
  }
}

std::string buffer_call_ahead(tenon_array* array, Access access) {
  const auto found = find(array, access);
  if (!found) return {};
  leave_calls_to_task();
  return text_of(*found);
}

void leave_calls_to_task() noexcept { BufferCalls::unlink_here(); }

void begin_waiting() noexcept {
  WaitingThread& here = waiting_here;
  ++n_waits;
  if (here.depth++ != 0) return;
  here.ident = PyThread_get_thread_ident();
  here.next = std::exchange(first_waiting, &here);
}

void end_waiting() noexcept {
  WaitingThread& here = waiting_here;
  if (--here.depth != 0) return;
  WaitingThread** link = &first_waiting;
  while (*link != &here) link = &(*link)->next;
  *link = here.next;
}

void forget_other_waits() noexcept {
  WaitingThread& here = waiting_here;
  first_waiting = here.depth != 0 ? &here : nullptr;
  here.next = nullptr;
}

}  // namespace tenon::python
