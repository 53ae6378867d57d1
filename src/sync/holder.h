// SPDX-License-Identifier: Apache-2.0
//
// The holder that is in the way of a request: a copy of its facts, so that messages need no lock.
#pragma once

#include <cstdint>
#include <string>

#include "sync/request.h"

namespace tenon::impl {

struct Holder {
  HolderKind kind = HolderKind::kView;
  Access access = Access::kRead;
  bool is_granted = false;
  bool is_stopped = false;  // a process: by SIGSTOP or a debugger
  bool is_ending = false;   // a process: its end has begun
  uint32_t thread = 0;      // of this process; 0: not known, or it is another process
  uint32_t pid = 0;         // of another process
  uint32_t dead_pid = 0;    // of the process that held it; pid is the one that cleans up after it
  int64_t since_ms = 0;
  // Texts are set up to their NUL only, because clearing the rest takes longer than a lease.
  char name[64];  // of a process: its command
  char site[192];
  bool has_view = false;   // it is a view, or a lease under which a view is open
  bool has_owner = false;  // it is a granted lease with an owner
  Extent extent;           // not set for a process
  char note[384];          // of a process: what holds the memory there, if it has written a note

  Holder() noexcept { name[0] = site[0] = note[0] = '\0'; }
  static Holder of(const RequestPart& part) noexcept;  // requires the lock of the queue
  static Holder of(const View& view) noexcept;         // requires the lock of the queue
};

// "the op 'fill' that writes it, pushed at train.py:12 by thread 7, 20 ms ago"; "process 1234 (python) that
// holds it for writing since 3.2 s". Throws std::bad_alloc.
std::string text_of(const Holder& holder);
// The same without its age. Not for a process.
std::string text_without_age(const Holder& holder);
// " (0.5 s)", for a message about a wait that had this time; empty if timeout_ns is negative.
std::string timeout_text(int64_t timeout_ns);
// "process 1234 (python) died while it was writing there". Throws std::bad_alloc.
std::string dead_owner_text(const Holder& holder);

// Of the memory of an item of a channel that this process does not possess.
inline constexpr char kNotHeldText[] =
    "the item of its channel was sent or dropped, or other processes read it, or it belongs to the process "
    "that has forked this one; loan or receive an item in this process (one that several processes receive "
    "can only be read)";

}  // namespace tenon::impl
