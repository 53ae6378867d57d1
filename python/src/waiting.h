// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "python.h"

namespace tenon::python {

// Sets the hooks for waits of the C library.
void add_waiting(nb::module_& module);

// The number of a task of asyncio, which no other one ever gets. Requires the GIL; runs no Python code.
uint64_t number_of_task(PyObject* task) noexcept;

// The number of the task that runs; 0: none.
uint64_t current_task() noexcept;

// While the body of an op runs in this thread. Requires the GIL at its begin and end.
class InBody {
 public:
  InBody() noexcept;
  InBody(const InBody&) = delete;
  InBody& operator=(const InBody&) = delete;
  ~InBody();
};

// The body of an op runs in this thread.
bool is_in_body() noexcept;

// In a forked child: bodies of ops that other threads run are in the parent.
void forget_other_visitors() noexcept;

// A thread of the library that is about to run Python code or to drop objects of Python. While Python ends,
// such a thread must not ask for the GIL: CPython would end it in the middle of the library, or it hangs.
// So from the functions of atexit on, no such thread may begin, and the process waits for those that have
// begun, up to a limit.
class Visit {
 public:
  Visit() noexcept : is_needed_(PyGILState_GetThisThreadState() == nullptr) {
    if (!is_needed_) return;
    // pairs with: Visit::end_all, "a visitor and the end"
    visitors_.fetch_add(1, std::memory_order_seq_cst);
    // pairs with: Visit::end_all, "a visitor and the end"
    is_let_in_ = !is_over_.load(std::memory_order_seq_cst);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  ~Visit() {
    // pairs with: Visit::end_all, "a visitor and the end"
    if (is_needed_) visitors_.fetch_sub(1, std::memory_order_seq_cst);
  }
  explicit operator bool() const noexcept { return !is_needed_ || is_let_in_; }
  bool is_counted() const noexcept { return is_needed_; }

  // In a forked child: the visitors of other threads are in the parent.
  static void forget_others(bool is_visitor) noexcept {
    visitors_.store(is_visitor ? 1 : 0, std::memory_order_relaxed);
  }

  static void end_all() {
    constexpr int kMostMs = 1000;
    const nb::gil_scoped_release released;
    // pairs with: Visit::Visit, "a visitor and the end"
    is_over_.store(true, std::memory_order_seq_cst);
    // pairs with: Visit::Visit, "a visitor and the end"
    for (int ms = 0; ms < kMostMs && visitors_.load(std::memory_order_seq_cst) != 0; ++ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  static constinit inline std::atomic<int> visitors_{0};
  static constinit inline std::atomic<bool> is_over_{false};
  const bool is_needed_;  // of a thread that Python does not know
  bool is_let_in_ = false;
};

// Logs a warning about a long wait. Any thread.
void report_wait(const char* text) noexcept;

// When a wait of the extension or of Python code is reported: as often as waits of the library.
class ReportTimer {
 public:
  using Duration = std::chrono::nanoseconds;

  Duration waited() const { return Clock::now() - began_; }
  std::string waited_text() const;  // for a report: "5 s", "200 ms"
  Duration left() const { return next_ - waited(); }
  // Once in each period.
  bool is_due() {
    if (left() > Duration(0)) return false;
    next_ = Duration(tenon_next_report(waited().count()));
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;

  const Clock::time_point began_ = Clock::now();
  Duration next_{tenon_next_report(0)};
};

// Notes that Ctrl-C has ended a body that the main thread ran in a wait or a push. The interrupt is for the
// program: the wait or push raises it at its end, once. Does nothing in other threads. Requires the GIL.
void note_interrupt();
// Sets a noted interrupt as the Python error, unless a body or a wait of this thread is under way. Returns
// whether it did.
bool set_noted_interrupt() noexcept;
// The same, thrown.
void raise_noted_interrupt();

// Asks for words of a report in this thread.
class InReport {
 public:
  InReport() noexcept;
  InReport(const InReport&) = delete;
  InReport& operator=(const InReport&) = delete;
  ~InReport();
};

// What ask(text, size) writes, one of tenon_lease_report and tenon_await_report; without words it is asked
// with NULL, and the result is empty.
template <class Ask>
std::string report_of(bool is_in_words, Ask ask) {
  std::array<char, 4096> text;
  text[0] = '\0';
  const InReport in_report;
  (void)ask(is_in_words ? text.data() : nullptr, text.size());
  return text.data();
}

// (message, op, site, code, exception or None).
nb::object describe_failure(const tenon_failure* failure);
// The same, or None. Takes over the failure.
nb::object failure_tuple(tenon_failure* failure);

// Leases, and ops whose bodies are Python's or native functions.
void add_leases(nb::module_& module);
void add_ops(nb::module_& module);

}  // namespace tenon::python
