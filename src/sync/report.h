// SPDX-License-Identifier: Apache-2.0
//
// The report of a long wait: what holds the memory, past the ops between, and which variables refer to the
// views in its way.
// How the parts work together: docs/dev/turns.md.
#pragma once

#include <cstddef>
#include <string>

#include "sync/holder.h"
#include "sync/wait.h"

namespace tenon::impl {

class Gate;

// Writes on what the views of a holder hang, as "variable `x` of main (train.py:12)"; "" at first. It belongs
// to the language, and may run any code of it: no lock of the library is held.
using ViewFinder = void (*)(const Holder& holder, char* text, size_t size);
void set_view_finder(ViewFinder find) noexcept;

// The functions that follow call the finder. Strings throw std::bad_alloc.

// text_of(), and on what its views hang, if that is found.
std::string found_text_of(const Holder& holder);
// The same without ages: for a reader at a later time.
std::string lasting_text_of(const Holder& holder);
// "a lease for writing, ...", or "the op 'b' that ..., which waits for a view of it, ..."; after a lease what
// to do if its owner waits for the waiter. "": nothing is in the waiter's way any more.
std::string text_of_wait(const WaitNode& node);

// Reports each view that outlived its lease and keeps this waiter waiting, once, by the hook.
void report_kept_views(const WaitNode& node) noexcept;
void report_kept_view(const Holder& view) noexcept;

// What holds a grant of this process: a view, else the innermost part. is_to_report: it is a view that
// outlived its lease and was not reported; it counts as reported then. False: nothing holds it any more.
// Requires that no queue's lock is held.
bool describe_grant(const Gate& gate, GrantId grant, Holder* holder, bool* is_to_report) noexcept;

}  // namespace tenon::impl
