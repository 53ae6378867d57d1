// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tenon::impl {

// Registers the handlers that keep the contract over fork(). Once for the process.
void handle_forks();

// What belongs to a layer above: before() runs ahead of the core's own part, when no lock is held;
// in_parent() behind it; in_child() ahead of the end of the ops that are abandoned, which may release
// anything.
struct ForkHooks {
  void (*before)();
  void (*in_parent)();
  void (*in_child)();
};
// Once for the process.
void set_fork_hooks(const ForkHooks* hooks) noexcept;

}  // namespace tenon::impl
