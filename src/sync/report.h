// SPDX-License-Identifier: Apache-2.0
//
// The report of a long wait: the path to the holder of the memory, and the variables that refer to the views
// in its way.
// How the parts work together: docs/dev/turns.md.
#pragma once

#include <cstddef>
#include <string>

#include "sync/holder.h"
#include "sync/wait.h"

namespace tenon::impl {

class Gate;

// Writes to text what refers to the views of a holder, as "variable `x` of main (train.py:12)"; text is "" at
// the call. It belongs to the language binding and may run any code of the language, so it is called without
// locks of the library.
using ViewFinder = void (*)(const Holder& holder, char* text, size_t size);
void set_view_finder(ViewFinder find) noexcept;

// The functions that follow call the finder. Strings throw std::bad_alloc.

// text_of(), followed by what refers to its views, if that is found.
std::string found_text_of(const Holder& holder);
// The same without ages, for a reader at a later time.
std::string lasting_text_of(const Holder& holder);
// "a lease for writing, ...", or "the op 'b' that ..., which waits for a view of it, ..."; after a lease,
// what to do if its owner waits for the waiter. "": nothing is in the way of the waiter any more.
std::string text_of_wait(const WaitNode& node);

// Calls the report hook once for each view that outlived its lease and for which this waiter waits.
void report_outlived_views(const WaitNode& node) noexcept;
void report_outlived_view(const Holder& view) noexcept;

// The holder of a grant of this process: a view, else the innermost part. is_to_report: it is a view that
// outlived its lease and was not reported before; it counts as reported then. False: there is no holder.
// Requires that no lock of a queue is held.
bool describe_grant(const Gate& gate, GrantId grant, Holder* holder, bool* is_to_report) noexcept;

}  // namespace tenon::impl
