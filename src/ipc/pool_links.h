// SPDX-License-Identifier: Apache-2.0
//
// The processes that serve tensor pools to this one (pool_servers.h). They are asked for the memory file of a
// pool that this process cannot open through /proc, and, where there is no /proc, for a description for each
// forked child. Nothing else depends on them: what is open stays open after their ends. They are processes of
// this user, or of a group that is named, by what the kernel says of the connection.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ref.h"
#include "base/unix_socket.h"
#include "base/users.h"
#include "ipc/layout.h"

namespace tenon::impl {

class Segments;
class TensorPool;
class Waiter;
enum class LinkVerb : uint32_t;

// One socket of another process. Counted. Threads: any. A forked child has the links of its parent.
class PoolLink {
 public:
  // Opens the pool that is served at the path. group: os::kNoGroup, or one in which the process that serves
  // may be instead of being of this user. Fails with kNotFound (no process serves there, or it is of another
  // time namespace), kTimeout, kInterrupted, kValue (path; another version; this process is not in the
  // group), kSystem (another user; no descriptor is left), kNoMemory.
  static Ref<PoolLink> attach(const std::string& path, int64_t timeout_ns, uint32_t group = os::kNoGroup);
  // The process that serves, and processes that are linked to it, can open messages of this pool. Its memory
  // is given to the group. Fails as attach(), and with kValue (it was given to another group).
  void offer(const TensorPool& pool) const;

  void retain() noexcept { refs_.increment(); }
  // The last one ends the link. What is open stays open.
  void release() noexcept;

 private:
  PoolLink() noexcept = default;
  uint64_t number_ = 0;  // constant after attach(); 0: of none
  RefCount refs_;
};

// A part of Segments. Threads: the functions of the first part lock Segments::lock_, the others require it.
class PoolLinks {
 public:
  explicit PoolLinks(Segments& segments) noexcept : segments_(segments) {}
  static PoolLinks& instance();

  uint64_t attach(const std::string& path, int64_t timeout_ns, uint32_t group);
  void offer(uint64_t number, const SegmentId& pool);
  void drop(uint64_t number) noexcept;
  // Asks all for the memory of a tensor pool. True: it is open now. Fails with kInterrupted.
  bool ask(const SegmentId& pool);

  // The memory came from a link. It stays open until its creator has ended, or sends no further messages.
  bool has_given(const SegmentId& pool) const noexcept { return given_.contains(pool); }
  bool is_empty() const noexcept { return links_.empty(); }
  // A forked child cannot open memory files anew without /proc, nor those of other users that are not given
  // to a group of it. So it gets descriptions from the links. A child without one has no place, and the death
  // of its parent is noticed only after its own.
  void before_fork() noexcept;
  // In the child: ends its copies of the connections. Else the processes that serve would not see the ends of
  // those, and what was sent over them would stay.
  void become_child() noexcept;

 private:
  struct Link {
    uint64_t number;
    std::string path;
    uint32_t group;
  };
  struct Given {
    SegmentId segment;
    os::File file;
  };
  class Connection;
  Given ask(const Link& link, LinkVerb verb, const SegmentId& segment, const os::File* sent,
            const Deadline& deadline, std::unique_lock<std::mutex>* locked,
            std::optional<Waiter>* waiter = nullptr);

  Segments& segments_;
  // Guarded by Segments::lock_.
  std::vector<Link> links_;
  // Of threads that ask. In a forked child, these threads do not exist, and their stacks may not either.
  std::vector<std::shared_ptr<os::File>> connections_;
  std::set<SegmentId> given_;
  uint64_t last_number_ = 0;
};

}  // namespace tenon::impl
