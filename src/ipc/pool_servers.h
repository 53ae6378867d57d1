// SPDX-License-Identifier: Apache-2.0
//
// The sockets at which this process serves its tensor pools. Other processes of this user, or of a group that
// is named, ask there for the memory file of a pool, in place of opening it through /proc, which they do not
// see or may not use. Who they are is what the kernel says of the connection.
//
// What they get is a new open file description of the file, of which this process keeps no descriptor. So the
// locks of their places (place_locks.h) end with their processes, as those of processes that have opened the
// file themselves. The server keeps nothing of them: no connection, no list.
//
// A description that is here for a moment must not get into a forked child, where it would outlive the
// process for which it is. So each is opened, sent and closed under the lock of Segments, which a fork takes
// first. No call waits for another process meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fork_mark.h"
#include "base/ref.h"
#include "base/unix_socket.h"
#include "base/users.h"
#include "ipc/layout.h"
#include "ipc/tensor_pool.h"

namespace tenon::impl {

class Segments;
struct LinkAnswer;
struct LinkRequest;

// One socket. Counted. Threads: any. It is closed with the last release. In a forked child, its functions do
// nothing.
class PoolServer {
 public:
  // Serves a pool of this process. backlog: connections that may wait. group: os::kNoGroup, or that of other
  // users, to which the memory is given, too. Fails with kSystem (another process listens at the path; it is
  // no socket; there is no /proc; the memory is another user's), kValue (path; this process is not in the
  // group; the memory was given to another one), kTimeout (another process is making a socket in the
  // directory).
  static Ref<PoolServer> create(TensorPool& pool, const std::string& path, int backlog,
                                uint32_t group = os::kNoGroup);
  // Removes the socket. What processes have got stays theirs.
  void close() noexcept;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept;

 private:
  explicit PoolServer(Ref<TensorPool> pool) noexcept : pool_(std::move(pool)) {}
  const Ref<TensorPool> pool_;  // else it would be over
  uint64_t number_ = 0;         // constant after create(); 0: of none
  const ForkMark process_;
  RefCount refs_;
};

// A part of Segments. Threads: the functions of the first group lock Segments::lock_, the others require it.
class PoolServers {
 public:
  explicit PoolServers(Segments& segments) noexcept : segments_(segments) {}
  static PoolServers& instance();

  uint64_t listen(const SegmentId& pool, const std::string& path, int backlog, uint32_t group);
  void close(uint64_t number) noexcept;

  // Removes the sockets. For the end of the process.
  void remove_all() noexcept;
  // In a forked child: the sockets are the parent's.
  void become_child() noexcept;

 private:
  // What is served to whom.
  struct Served {
    SegmentId pool;
    uint32_t user = 0;  // of this process when it began
    uint32_t group = os::kNoGroup;
  };
  struct Server {
    uint64_t number = 0;
    Served served;
    os::File listener;
    os::SocketFile socket;
  };
  struct Connection {
    Served served;  // by its server
    os::File file;
    int64_t until_ns = 0;
  };

  struct Offered {
    uint32_t user = 0;          // that owns its file
    std::set<uint32_t> groups;  // of the servers at which it was offered: only their members get it
  };

  static constexpr size_t kMostServers = 64;

  // How others wake the thread. Each end has an inode of its own, so one that other code has closed is told
  // from what that code has opened since.
  struct Wake {
    os::File signalled, polled;
  };

  void start_thread();
  enum class Woken { kLooks, kWithoutDescriptors, kIsReplaced };
  Woken wait(uint64_t thread) noexcept;
  void wake() noexcept;
  void look() noexcept;
  bool serve(const Connection& connection) noexcept;
  os::File answer_to(const Connection& connection, const LinkRequest& request, os::File sent,
                     bool has_lost_files, LinkAnswer* answer);
  os::File give(const Served& served, bool is_same_user, const SegmentId& wanted, LinkAnswer* answer);
  void take(const Served& served, const SegmentId& offered, os::File sent, LinkAnswer* answer);

  Segments& segments_;
  // Guarded by Segments::lock_.
  std::vector<Server> servers_;
  std::vector<Connection> connections_;
  std::map<SegmentId, Offered> offered_;
  uint64_t last_number_ = 0;
  bool is_without_descriptors_ = false;
  std::unique_ptr<Wake> wake_;  // the lists have changed. Null: there is no thread
  uint64_t thread_ = 0;  // its number: one that waits for files which other code has closed is replaced
};

}  // namespace tenon::impl
