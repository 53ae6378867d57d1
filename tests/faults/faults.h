// SPDX-License-Identifier: Apache-2.0
//
// Failures of the system on demand: one allocation, or one system call, of this process fails. The test
// program replaces operator new, the functions of malloc and the calls below, so the library needs no hook.
// faults.cc lists the calls that can fail, with their errors. Futexes are left out: a failed wait or wake-up
// has no effect of its own.
#pragma once

namespace tenon::faults {

enum class Kind { kMemory, kSystem };

// Begins to count the calls of this kind, in all threads. Call n, from 1, fails. 0: none fails.
// most_of_a_place: the number of counted calls from the same line with the same callers, as in a loop; 0:
// all. Once in a process.
void arm(Kind kind, long n, int most_of_a_place) noexcept;
// Returns how many calls there were.
long disarm() noexcept;

// The call that failed, as "open"; nullptr: none has.
const char* failed_call() noexcept;
// Writes the stack of the failed call. For messages; safe in a signal handler.
void print_backtrace(int fd) noexcept;

}  // namespace tenon::faults
