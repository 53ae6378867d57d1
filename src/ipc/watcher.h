// SPDX-License-Identifier: Apache-2.0
//
// File descriptors for events of shared memory, for programs that wait with poll(), select() or epoll. One
// thread of the process sleeps on the events of up to kMostEvents watches.
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

// The descriptor for one event of a channel, in one process. Readable: there may be an item to receive, or a
// free slot. Threads: any.
class Watch {
 public:
  // Fails with kSystem (no descriptor is left, or no thread).
  Watch(const Channel& channel, SharedEvent& event);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  // Closes it.
  ~Watch();

  // -1: other code has closed it.
  int fd() const noexcept { return event_.fd(); }
  // This process is a forked child of the one that made it. Only that one may use it.
  bool is_inherited() const noexcept { return mark_.is_child(); }
  // Makes the descriptor readable.
  void signal() noexcept;
  // Makes the descriptor not readable. The caller must check afterwards whether there is something to do.
  void clear() noexcept;
  // Ends the watch of the event: only signal() and clear() change the descriptor afterwards. Idempotent.
  void end() noexcept;
  // Becomes the owner of the watch that was in the place of this one: of the parent process, or without its
  // descriptor.
  void keep(Watch* before) noexcept { before_.reset(before); }

 private:
  friend class Watcher;
  const Channel& channel_;
  SharedEvent& shared_event_;
  const os::File event_;
  const ForkMark mark_;
  std::atomic<bool> is_watched_{false};
  std::unique_ptr<Watch> before_;
  uint32_t seen_ = 0;  // the signals of the event; guarded by the watcher's lock
};

// A thread, which runs as long as there is something to watch. Never destroyed. Threads: any.
class Watcher {
 public:
  static constexpr size_t kMostEvents = 120;

  Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // False: it has kMostEvents watches. Fails with kSystem (the thread cannot be created).
  bool add(Watch& watch);
  // False: it does not have this watch. Afterwards its thread uses neither the watch nor its channel.
  bool remove(Watch& watch) noexcept;

  // The same with the watchers of this process. A forked child has its own.
  static void add_to_any(Watch& watch);
  static void remove_from_all(Watch& watch) noexcept;

 private:
  void run() noexcept;
  size_t look(os::Sleep* words, int64_t* timeout_ns) noexcept;

  std::mutex lock_;
  // Guarded by lock_.
  std::vector<Watch*> watches_;
  bool is_running_ = false;

  std::atomic<uint32_t> changes_{0};  // changes with watches_; the thread sleeps on it, too
};

}  // namespace tenon::impl
