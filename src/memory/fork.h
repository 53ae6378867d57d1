// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tenon::impl {

// Registers the fork handlers. Once for the process.
void handle_forks();

// The handlers of a higher layer. before() is called first, without locks; in_parent() last; in_child()
// before the abandoned ops end, because their end may release anything.
struct ForkHooks {
  void (*before)();
  void (*in_parent)();
  void (*in_child)();
};
// Once for the process.
void set_fork_hooks(const ForkHooks* hooks) noexcept;

}  // namespace tenon::impl
