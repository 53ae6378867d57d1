// SPDX-License-Identifier: Apache-2.0
#include "ipc/pool_servers.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/error.h"
#include "ipc/pool_link_packets.h"
#include "ipc/segments.h"
#include "ipc/tensor_pools.h"

namespace tenon::impl {
namespace {

constexpr size_t kMostConnections = 64;  // the others wait in the backlog
constexpr size_t kMostOffered = 64;      // pools of one other user
constexpr int64_t kForRequestNs = 5'000'000'000;
constexpr int kLookAgainMs = 250;  // for connections that say nothing
constexpr timespec kForFolder{0, 1'000'000}, kWithoutDescriptors{0, 20'000'000};
constexpr timespec kBetweenTurns{0, 100'000};  // others get the lock: a mutex is not fair

void refuse(LinkAnswer* answer, LinkStatus status, std::string_view why) noexcept {
  answer->status = status;
  why.copy(answer->text, sizeof answer->text - 1);
}

}  // namespace

// ------------------------------------------------------------------------------------------- one socket

Ref<PoolServer> PoolServer::create(TensorPool& pool, const std::string& path, int backlog, uint32_t group) {
  Ref<PoolServer> server = Ref<PoolServer>::adopt(new PoolServer(Ref<TensorPool>::share(&pool)));
  server->number_ = PoolServers::instance().listen(pool.id(), path, backlog, group);  // nothing fails after
  return server;
}

void PoolServer::close() noexcept {
  if (!process_.is_child()) PoolServers::instance().close(number_);
}

void PoolServer::release() noexcept {
  if (!refs_.decrement()) return;
  close();
  delete this;
}

// ------------------------------------------------------------------------------------------ the sockets

PoolServers& PoolServers::instance() { return *Segments::instance().pool_servers_; }

uint64_t PoolServers::listen(const SegmentId& pool, const std::string& path, int backlog, uint32_t group) {
  const Deadline deadline(kForRequestNs);
  os::check_socket_path(path);
  if (group != os::kNoGroup) os::check_member(group);
  while (true) {
    {
      const std::scoped_lock locked(segments_.lock_);
      if (servers_.size() == kMostServers) {
        throw_error(Code::kSystem, "this process serves tensor pools at ", kMostServers,
                    " sockets, which is their greatest number");
      }
      servers_.reserve(kMostServers);
      const Segment* const segment = segments_.open_.find(pool);  // as long as the pool of the caller
      if (segment == nullptr) throw_error(Code::kValue, "the tensor pool is of another process");
      if (group != os::kNoGroup) os::check_can_be_given_to(segment->file(), group);
      start_thread();
      Server server;
      server.listener = os::listen_at(path, backlog, group, &server.socket);
      if (server.listener) {
        server.served = {pool, os::user(), group};
        try {
          if (group != os::kNoGroup) os::give_to(segment->file(), group);
        } catch (...) {
          (void)os::remove_socket(server.socket);
          throw;
        }
        server.number = ++last_number_;
        servers_.push_back(std::move(server));
        wake();
        return last_number_;
      }
    }
    if (deadline.has_passed()) {
      throw_error(Code::kTimeout, "no socket can be made at '", path,
                  "': another process makes one in the same directory. Is it stopped?");
    }
    nanosleep(&kForFolder, nullptr);
  }
}

void PoolServers::close(uint64_t number) noexcept {
  constexpr int kTries = 100;
  std::unique_lock locked(segments_.lock_);
  const auto at = std::ranges::find(servers_, number, &Server::number);
  if (at == servers_.end()) return;
  const os::SocketFile socket = std::move(at->socket);
  servers_.erase(at);
  wake();
  for (int i = 0; i < kTries && !os::remove_socket(socket); ++i) {
    locked.unlock();  // another process makes a socket in the directory
    nanosleep(&kForFolder, nullptr);
    locked.lock();
  }
}

void PoolServers::remove_all() noexcept {
  for (const Server& server : servers_) (void)os::remove_socket(server.socket);
  servers_.clear();
}

void PoolServers::become_child() noexcept {
  servers_.clear();  // else processes could connect to sockets at which nobody answers any more
  connections_.clear();
  offered_.clear();
  wake_.reset();
}

// ------------------------------------------------------------------------------------------- the thread

void PoolServers::start_thread() {
  if (wake_ != nullptr && !wake_->signalled.is_lost() && !wake_->polled.is_lost()) return;
  auto wake = std::make_unique<Wake>();
  os::make_socket_pair(&wake->signalled, &wake->polled);
  connections_.reserve(kMostConnections);
  wake_ = std::move(wake);
  ++thread_;
  try {
    const BlockedSignals blocked;
    std::thread([this, thread = thread_] {
      pthread_setname_np(pthread_self(), "tenon-server");
      while (true) {
        const Woken woken = wait(thread);
        if (woken == Woken::kIsReplaced) return;
        if (woken == Woken::kWithoutDescriptors) nanosleep(&kWithoutDescriptors, nullptr);
        {
          const std::scoped_lock locked(segments_.lock_);
          if (thread == thread_) look();
        }
        nanosleep(&kBetweenTurns, nullptr);
      }
    }).detach();
  } catch (const std::exception& e) {
    wake_.reset();
    throw_error(Code::kSystem, "no thread can be started to serve a tensor pool: ", e.what());
  }
}

void PoolServers::wake() noexcept {
  constexpr std::byte kAny{};
  if (wake_ == nullptr) return;  // no thread could be started in place of one that has lost its files
  (void)os::send_packet(wake_->signalled, std::span(&kAny, 1), nullptr);
}

// Waits until there is something to do. kWithoutDescriptors: there may be nothing.
PoolServers::Woken PoolServers::wait(uint64_t thread) noexcept {
  pollfd files[1 + kMostServers + kMostConnections];
  nfds_t n = 0;
  bool looks_again = false;
  {
    const std::scoped_lock locked(segments_.lock_);
    if (thread != thread_) return Woken::kIsReplaced;
    files[n++] = {wake_->polled.fd(), POLLIN, 0};
    for (const Connection& connection : connections_) files[n++] = {connection.file.fd(), POLLIN, 0};
    looks_again = !connections_.empty();
    if (connections_.size() < kMostConnections) {
      for (const Server& server : servers_) files[n++] = {server.listener.fd(), POLLIN, 0};
    }
  }
  // Where it is not known whether a descriptor is still that of the file, poll() does not look at it.
  for (nfds_t i = 0; i < n; ++i) looks_again |= files[i].fd < 0;
  (void)poll(files, n, looks_again ? kLookAgainMs : -1);
  const std::scoped_lock locked(segments_.lock_);
  if (thread != thread_) return Woken::kIsReplaced;
  return std::exchange(is_without_descriptors_, false) ? Woken::kWithoutDescriptors : Woken::kLooks;
}

// Takes new connections, and serves those that have asked.
void PoolServers::look() noexcept {
  std::byte any[1];
  os::File none;
  bool has_lost_files = false;
  while (os::receive_packet(wake_->polled, any, &none, &has_lost_files) > 0) {
  }
  const int64_t now = now_ns();
  for (const Server& server : servers_) {
    // Not without end: this thread has the lock.
    for (size_t n = 0; n < kMostConnections && connections_.size() < kMostConnections; ++n) {
      errno = 0;
      os::File file = os::accept_from(server.listener);
      is_without_descriptors_ |= errno == EMFILE || errno == ENFILE;
      if (!file) break;
      connections_.push_back({server.served, std::move(file), now + kForRequestNs});
      // At once, so that those that wait do not use up the descriptors.
      if (!serve(connections_.back())) continue;
      os::end(std::move(connections_.back().file));
      connections_.pop_back();
    }
  }
  std::erase_if(connections_, [&](Connection& connection) {
    if (!serve(connection) && connection.until_ns > now) return false;
    os::end(std::move(connection.file));
    return true;
  });
}

// True: the connection is over.
bool PoolServers::serve(const Connection& connection) noexcept {
  LinkRequest request{};
  os::File sent;
  bool has_lost_files = false;
  const long n = os::receive_packet(connection.file, std::as_writable_bytes(std::span(&request, 1)), &sent,
                                    &has_lost_files);
  if (n < 0) return false;
  if (n == 0) return true;
  LinkAnswer answer{};
  std::memcpy(answer.mark, kLinkMark, sizeof answer.mark);
  answer.now_ns = now_ns();
  answer.segment = request.segment;
  os::File given;
  try {
    if (n != sizeof request || std::memcmp(request.mark, kLinkMark, sizeof request.mark) != 0) {
      refuse(&answer, LinkStatus::kVersion, "the request is of another version of Tenon");
    } else {
      given = answer_to(connection, request, std::move(sent), has_lost_files, &answer);
    }
  } catch (const std::exception& e) {
    refuse(&answer, LinkStatus::kNoFiles, e.what());
  } catch (...) {
    refuse(&answer, LinkStatus::kNoFiles, "the process that serves the pool has failed");
  }
  answer.files = given ? 1 : 0;
  const auto bytes = std::as_bytes(std::span(&answer, 1));
  if (os::send_packet(connection.file, bytes, given ? &given : nullptr) || !given) return true;
  answer.files = 0;
  refuse(&answer, LinkStatus::kNoFiles,
         "the process that serves the pool cannot send its memory: too many descriptors of this user are on "
         "their way");
  (void)os::send_packet(connection.file, bytes, nullptr);
  return true;
}

os::File PoolServers::answer_to(const Connection& connection, const LinkRequest& request, os::File sent,
                                bool has_lost_files, LinkAnswer* answer) {
  const Served& served = connection.served;
  if (served.user != os::user()) {
    refuse(answer, LinkStatus::kRefused, "the process that serves the pool has changed its user");
    return {};
  }
  const os::SocketPeer peer = os::peer_of(connection.file);
  if (!os::may_share(connection.file, peer, served.group)) {
    const bool has_group = served.group != os::kNoGroup;
    refuse(answer, LinkStatus::kRefused,
           concat("the pool is of user ", served.user, has_group ? concat(" and group ", served.group) : "",
                  ", the process that asks of ", text_of_user(peer),
                  has_group ? ", and not in that group" : ""));
    return {};
  }
  if (has_lost_files) {
    refuse(answer, LinkStatus::kNoFiles, "the process that serves the pool has no file descriptor left");
    return {};
  }
  if (request.verb == LinkVerb::kOffer) {
    take(served, request.segment, std::move(sent), answer);
    return {};
  }
  if (request.verb == LinkVerb::kGet) {
    const bool is_same_user = peer.has_user && peer.user == served.user;
    return give(served, is_same_user, request.segment, answer);
  }
  refuse(answer, LinkStatus::kVersion, "the request is of another version of Tenon");
  return {};
}

// A member of the group does not get what another user has given to other groups, or offered to others.
os::File PoolServers::give(const Served& served, bool is_same_user, const SegmentId& wanted,
                           LinkAnswer* answer) {
  const SegmentId id = wanted == SegmentId() ? served.pool : wanted;
  answer->segment = id;
  Segment* const segment = segments_.open_.find(id);
  const auto offered = offered_.find(id);
  const bool is_offered =
      offered != offered_.end() && (is_same_user || offered->second.groups.contains(served.group));
  const bool is_its = segments_.tensor_pools_->needs(served.pool, id) || is_offered;
  const bool may_get = segment != nullptr && (is_same_user || os::is_of_user(segment->file(), served.user) ||
                                              os::is_given_to(segment->file(), served.group));
  if (!may_get || !is_its || !segment->is_tensor_pool()) {
    refuse(answer, LinkStatus::kUnknown,
           "the process that serves the pool does not give this memory: it has "
           "ended, or is of no message of the pool");
    return {};
  }
  if (segment->file().is_lost()) {
    refuse(answer, LinkStatus::kUnknown, os::kLostText);
    return {};
  }
  errno = 0;
  os::File fresh = os::open_again(segment->file(), true);
  if (!fresh) {
    const int error = errno;
    refuse(answer, LinkStatus::kNoFiles,
           concat("the process that serves the pool cannot open its memory again: ", std::strerror(error)));
  }
  return fresh;
}

// Opens what another process has offered. It stays open as every tensor pool of a living process. The number
// of a pool is no proof that the other process has it, as each message has that: its file is. What is no
// sealed memory file is not even opened: that could wait, or do something.
void PoolServers::take(const Served& served, const SegmentId& offered, os::File sent, LinkAnswer* answer) {
  Segment* segment = segments_.open_.find(offered);
  const bool is_sent_by_sharer =
      sent && (os::is_of_user(sent, served.user) || os::is_given_to(sent, served.group));
  if (!is_sent_by_sharer || !os::is_sealed(sent) ||
      (segment != nullptr && !os::is_same_file(sent, segment->file()))) {
    return refuse(answer, LinkStatus::kNotPool,
                  concat("what was offered is not a memory file of user ", served.user,
                         served.group != os::kNoGroup
                             ? concat(", nor one that its owner has given to group ", served.group)
                             : ""));
  }
  std::erase_if(offered_, [&](const auto& each) { return segments_.open_.find(each.first) == nullptr; });
  const uint32_t user = os::owner_of(sent);
  if (user != served.user && !offered_.contains(offered)) {
    const auto n =
        std::ranges::count_if(offered_, [&](const auto& each) { return each.second.user == user; });
    const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES));
    if (static_cast<size_t>(n) >= kMostOffered || os::size_of(sent) / os::page_nbytes() > pages) {
      return refuse(answer, LinkStatus::kNoFiles,
                    concat("the process that serves the pool takes ", kMostOffered, " pools of user ", user,
                           " at most, none of them larger than the memory of the machine"));
    }
  }
  if (segment == nullptr) {
    os::File own = os::open_again(sent, true);
    sent = os::File();  // its description is that of the other process
    if (!own) {
      return refuse(answer, LinkStatus::kNoFiles,
                    "the process that serves the pool cannot open what was offered: no file descriptor is "
                    "left, or /proc is missing");
    }
    try {
      segment = &segments_.add_pool(std::move(own), offered);
    } catch (const Error& e) {
      return refuse(answer, e.code() == Code::kValue ? LinkStatus::kNotPool : LinkStatus::kNoFiles, e.what());
    }
  }
  if (!segment->is_tensor_pool())
    return refuse(answer, LinkStatus::kNotPool, "what was offered is not the memory of a tensor pool");
  Offered& entry = offered_[offered];
  entry.user = user;
  entry.groups.insert(served.group);
}

}  // namespace tenon::impl
