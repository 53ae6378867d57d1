// SPDX-License-Identifier: Apache-2.0
//
// Turns events of shared memory into file descriptors, for programs that wait with poll() and its kind. One
// thread of the process sleeps on the events of up to kMostEvents watches at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fork_mark.h"
#include "base/os.h"

namespace tenon::impl {

struct SharedEvent;
class Channel;

// The descriptor of one end of a channel, in one process. Readable: there may be something to do for this
// end. Threads: any.
class Watch {
 public:
  // Fails with kSystem (no descriptor is left, or no thread).
  Watch(const Channel& channel, SharedEvent& event);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  // Closes it.
  ~Watch();

  int fd() const noexcept { return event_.fd(); }
  // This process is a forked child of the one that made it, which alone may use it.
  bool is_inherited() const noexcept { return mark_.is_child(); }
  void signal() noexcept;
  // Not readable any more. The caller looks once more whether there is something to do.
  void clear() noexcept;
  // It stays as it is from now on: no thread looks at the event any more. Idempotent.
  void end() noexcept;
  // Takes what a parent process has left in this place.
  void keep(Watch* inherited) noexcept { inherited_.reset(inherited); }

 private:
  friend class Watcher;
  const Channel& channel_;
  SharedEvent& shared_event_;
  const os::File event_;
  const ForkMark mark_;
  std::atomic<bool> is_watched_{false};
  std::unique_ptr<Watch> inherited_;
  uint32_t seen_ = 0;  // of the event; under the watcher's lock
};

// The thread, as long as there is something to watch. Never destroyed. Threads: any.
class Watcher {
 public:
  static constexpr size_t kMostEvents = 120;

  Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // False: it has as many as it can have. Fails with kSystem (there can be no thread).
  bool add(Watch& watch);
  // False: it is none of its. Afterwards its thread touches neither the watch nor its channel.
  bool remove(Watch& watch) noexcept;

  // To one of those of this process: others after a fork.
  static void add_to_any(Watch& watch);
  static void remove_from_all(Watch& watch) noexcept;

 private:
  void run() noexcept;
  size_t look(os::Sleep* words, int64_t* timeout_ns) noexcept;

  std::mutex lock_;
  // Guarded by lock_.
  std::vector<Watch*> watches_;
  bool is_running_ = false;

  std::atomic<uint32_t> changes_{0};  // of watches_; the thread sleeps on it, too
};

}  // namespace tenon::impl
