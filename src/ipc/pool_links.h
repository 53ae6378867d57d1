// SPDX-License-Identifier: Apache-2.0
//
// The processes that serve tensor pools to this one (pool_servers.h). They are asked for the memory file of a
// pool that this process cannot open through /proc, and, where there is no /proc, for a description for each
// forked child. Nothing else depends on them: what is open stays open after their ends.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ref.h"
#include "base/unix_socket.h"
#include "ipc/layout.h"

namespace tenon::impl {

class Segments;
class TensorPool;
class Waiter;
enum class LinkVerb : uint32_t;

// One socket of another process. Counted. Threads: any. A forked child has the links of its parent.
class PoolLink {
 public:
  // Opens the pool that is served at the path. Fails with kNotFound (no process serves there, or it is of
  // another time namespace), kTimeout, kInterrupted, kValue (path; another version), kSystem (another user;
  // no descriptor is left), kNoMemory.
  static Ref<PoolLink> attach(const std::string& path, int64_t timeout_ns);
  // The process that serves, and processes that are linked to it, can open messages of this pool. Fails as
  // attach().
  void offer(const TensorPool& pool) const;

  void retain() noexcept { refs_.increment(); }
  // The last one ends the link. What is open stays open.
  void release() noexcept;

 private:
  PoolLink() noexcept = default;
  uint64_t number_ = 0;  // constant after attach(); 0: of none
  RefCount refs_;
};

// A part of Segments. Threads: the functions of the first group lock Segments::lock_, the others require it.
class PoolLinks {
 public:
  explicit PoolLinks(Segments& segments) noexcept : segments_(segments) {}
  static PoolLinks& instance();

  uint64_t attach(const std::string& path, int64_t timeout_ns);
  void offer(uint64_t number, const SegmentId& pool);
  void drop(uint64_t number) noexcept;
  // Asks all for the memory of a tensor pool. True: it is open now. Fails with kInterrupted.
  bool ask(const SegmentId& pool);

  // The memory came from a link. It stays open until its creator has ended, or sends no further messages.
  bool has_given(const SegmentId& pool) const noexcept { return given_.contains(pool); }
  bool is_empty() const noexcept { return links_.empty(); }
  // Without /proc: a forked child cannot open the memory files anew, so it gets descriptions from the links.
  // A child without one has no place, and the death of its parent is noticed only after its own.
  void before_fork() noexcept;

 private:
  struct Link {
    uint64_t number;
    std::string path;
  };
  struct Given {
    SegmentId segment;
    os::File file;
  };
  Given ask(const std::string& path, LinkVerb verb, const SegmentId& segment, const os::File* sent,
            const Deadline& deadline, std::unique_lock<std::mutex>* locked,
            std::optional<Waiter>* waiter = nullptr) const;

  Segments& segments_;
  // Guarded by Segments::lock_.
  std::vector<Link> links_;
  std::set<SegmentId> given_;
  uint64_t last_number_ = 0;
};

}  // namespace tenon::impl
