// SPDX-License-Identifier: Apache-2.0
//
// Failures of the system on demand: one allocation, or one system call, of this process fails. The test
// program replaces operator new, the functions of malloc and the calls below for itself, so that the library
// needs no hook. faults.cc lists what can fail, and with which error. Futexes are left out: a wait or a
// wake-up that fails says nothing new.
#pragma once

namespace tenon::faults {

enum class Kind { kMemory, kSystem };

// From now on the calls of this kind are counted, in all threads; number n, from 1, fails. 0: none does.
// most_of_a_place: of the calls that the same line makes for the same callers, as in a loop, count so many;
// 0: all. Once in a process.
void arm(Kind kind, long n, int most_of_a_place) noexcept;
// Returns how many calls there were.
long disarm() noexcept;

// The call that failed, as "open"; nullptr: none has.
const char* failed_call() noexcept;
// Writes where the call was made. For messages; safe in a handler of signals.
void print_backtrace(int fd) noexcept;

}  // namespace tenon::faults
