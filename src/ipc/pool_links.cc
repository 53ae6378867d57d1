// SPDX-License-Identifier: Apache-2.0
#include "ipc/pool_links.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "ipc/pool_link_packets.h"
#include "ipc/segments.h"
#include "ipc/tensor_pool.h"
#include "sync/waiter.h"

namespace tenon::impl {
namespace {

constexpr int64_t kForLoadNs = 1'000'000'000, kForOfferNs = 5'000'000'000;
constexpr int64_t kForForkNs = 100'000'000;  // for all links: all threads may wait for it
constexpr int64_t kMostClockErrorNs = 1'000'000'000;

os::SocketPeer checked_peer(const os::File& connection, const std::string& path, uint32_t group) {
  os::SocketPeer peer = os::peer_of(connection);
  if (os::may_share(connection, peer, group)) return peer;
  throw_error(Code::kSystem, "the socket '", path, "' is served by a process of ", text_of_user(peer),
              ", and this process is of user ", os::user(),
              group == os::kNoGroup ? ": serve the pool to a group of both, and name it here, too"
                                    : concat("; it was not in the group ", group, " when it began to serve"));
}

[[noreturn]] void throw_refused(const LinkAnswer& answer, const std::string& path) {
  const Code code = answer.status == LinkStatus::kUnknown ? Code::kNotFound
                    : answer.status == LinkStatus::kVersion || answer.status == LinkStatus::kNotPool
                        ? Code::kValue
                        : Code::kSystem;
  const std::string why(answer.text, strnlen(answer.text, sizeof answer.text));
  throw_error(code, "the socket '", path, "': ", readable(why));
}

}  // namespace

// --------------------------------------------------------------------------------------------- one link

Ref<PoolLink> PoolLink::attach(const std::string& path, int64_t timeout_ns, uint32_t group) {
  Ref<PoolLink> link = Ref<PoolLink>::adopt(new PoolLink);
  link->number_ = PoolLinks::instance().attach(path, timeout_ns, group);  // nothing fails after it
  return link;
}

void PoolLink::offer(const TensorPool& pool) const {
  pool.check_process();
  PoolLinks::instance().offer(number_, pool.id());
}

void PoolLink::release() noexcept {
  if (!refs_.decrement()) return;
  PoolLinks::instance().drop(number_);
  delete this;
}

// -------------------------------------------------------------------------------------------- the links

PoolLinks& PoolLinks::instance() { return *Segments::instance().pool_links_; }

// A connection that a forked child does not keep. It may be one itself: a signal handler can fork while this
// process waits.
class PoolLinks::Connection {
 public:
  // locked: as that of ask().
  Connection(PoolLinks& links, const std::unique_lock<std::mutex>* locked) : links_(links), locked_(locked) {
    const auto guard = lock();
    links_.connections_.reserve(links_.connections_.size() + 1);
    file_ = std::make_shared<os::File>(os::new_socket());
    links_.connections_.push_back(file_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    const auto guard = lock();
    std::erase(links_.connections_, file_);
    os::end(std::move(*file_));
  }
  const os::File& file() const noexcept { return *file_; }
  bool is_closed() const noexcept { return !*file_; }  // this is a forked child by now

 private:
  std::unique_lock<std::mutex> lock() const {
    const bool has_lock = locked_ == nullptr || locked_->owns_lock();
    return has_lock ? std::unique_lock<std::mutex>() : std::unique_lock(links_.segments_.lock_);
  }

  PoolLinks& links_;
  const std::unique_lock<std::mutex>* const locked_;
  std::shared_ptr<os::File> file_;
};

// locked: locked before a file is received, and until the caller has put it where forks take care of it.
// Null: the caller has the lock. waiter: of the program; null: a call that waits this long cannot be
// interrupted.
PoolLinks::Given PoolLinks::ask(const Link& link, LinkVerb verb, const SegmentId& segment,
                                const os::File* sent, const Deadline& deadline,
                                std::unique_lock<std::mutex>* locked, std::optional<Waiter>* waiter) {
  const std::string& path = link.path;
  const auto sleep = [&](auto call) {
    const std::string what = concat("an answer at the socket '", path, "'");
    WaitEnd end = WaitEnd::kOver;
    if (waiter != nullptr) {
      end = (*waiter)->sleep(Waiter::kSliceNs, call, [&] { return what; });
    } else if (const int64_t left = deadline.left_ns(); left > 0) {
      (void)call(std::min(left, Waiter::kSliceNs));
    } else {
      end = WaitEnd::kTimeout;
    }
    if (end == WaitEnd::kInterrupted)
      throw_error(Code::kInterrupted, "the wait for ", what, " was interrupted");
    if (end == WaitEnd::kTimeout)
      throw_error(Code::kTimeout, "no process has answered at the socket '", path, "': is it stopped?");
  };
  os::SocketPeer peer;
  LinkRequest request{};
  const auto is_answered = [&](const Connection& connection) {
    constexpr timespec kMoment{0, 1'000'000};
    while (!os::connect_to(connection.file(), path)) {
      sleep([&](int64_t) { return nanosleep(&kMoment, nullptr) != 0; });
      if (connection.is_closed()) return false;
    }
    peer = checked_peer(connection.file(), path, link.group);
    std::memcpy(request.mark, kLinkMark, sizeof request.mark);
    request.verb = verb;
    request.segment = segment;
    request.now_ns = now_ns();
    if (!os::send_packet(connection.file(), std::as_bytes(std::span(&request, 1)), sent)) {
      throw_error(Code::kNotFound, "the process that serves the socket '", path,
                  "' has ended, or takes no packet");
    }
    while (!os::await_packet(connection.file(), 0)) {
      sleep([&](int64_t ns) { return os::await_packet(connection.file(), ns); });
      if (connection.is_closed()) return false;
    }
    return true;
  };
  std::optional<Connection> connection(std::in_place, *this, locked);
  while (!is_answered(*connection)) connection.emplace(*this, locked);
  if (waiter != nullptr) waiter->reset();  // first: it takes the lock of the language
  if (locked != nullptr) locked->lock();
  LinkAnswer answer{};
  Given given;
  bool has_lost_files = false;
  const long n = os::receive_packet(connection->file(), std::as_writable_bytes(std::span(&answer, 1)),
                                    &given.file, &has_lost_files);
  if (n <= 0) {
    throw_error(Code::kNotFound, "the process that serves the socket '", path,
                "' has ended, or has closed the connection, before it answered");
  }
  if (n != sizeof answer || std::memcmp(answer.mark, kLinkMark, sizeof answer.mark) != 0) {
    throw_error(Code::kValue, "the socket '", path,
                "' is not of a tensor pool, or is of another version of Tenon");
  }
  if (has_lost_files) {
    throw_error(Code::kSystem, "the memory at the socket '", path,
                "' was not received: no file descriptor is left in this process (ulimit -n)");
  }
  if (answer.status != LinkStatus::kGiven) throw_refused(answer, path);
  const bool has_file = static_cast<bool>(given.file);
  if (has_file != (verb == LinkVerb::kGet) || (segment != SegmentId() && answer.segment != segment))
    throw_error(Code::kValue, "the socket '", path, "' has sent another answer than that to the question");
  if (has_file && !os::is_of_user(given.file, os::user()) && !os::is_given_to(given.file, link.group) &&
      !(peer.has_user && os::is_of_user(given.file, peer.user))) {
    throw_error(Code::kValue, "the socket '", path,
                "' has sent a memory file that is neither of its user nor given to the group");
  }
  if (answer.now_ns < request.now_ns - kMostClockErrorNs || answer.now_ns > now_ns() + kMostClockErrorNs) {
    throw_error(
        Code::kNotFound, "the socket '", path,
        "' is of a process in another time namespace: the deadlines of its messages mean another time "
        "here");
  }
  given.segment = answer.segment;
  return given;
}

uint64_t PoolLinks::attach(const std::string& path, int64_t timeout_ns, uint32_t group) {
  const Deadline deadline(timeout_ns);
  os::check_socket_path(path);
  if (group != os::kNoGroup) os::check_member(group);
  // The program may change its directory before the link is asked again.
  Link link{0, path[0] == '/' ? path : concat(std::filesystem::current_path().string(), '/', path), group};
  os::check_socket_path(link.path);
  std::unique_lock locked(segments_.lock_, std::defer_lock);
  std::optional<Waiter> waiter(std::in_place, deadline);
  Given given = ask(link, LinkVerb::kGet, {}, nullptr, deadline, &locked, &waiter);
  links_.reserve(links_.size() + 1);
  given_.insert(given.segment);
  (void)segments_.add_pool(std::move(given.file), given.segment);
  link.number = ++last_number_;
  links_.push_back(std::move(link));
  return last_number_;
}

void PoolLinks::offer(uint64_t number, const SegmentId& pool) {
  std::unique_lock locked(segments_.lock_);
  const auto at = std::ranges::find(links_, number, &Link::number);
  if (at == links_.end()) throw_error(Code::kClosed, "the link is closed");
  const Link link = *at;
  const Segment* const segment = segments_.open_.find(pool);  // as long as the pool of the caller
  if (segment == nullptr) throw_error(Code::kValue, "the tensor pool is of another process");
  if (link.group != os::kNoGroup) os::give_to(segment->file(), link.group);
  locked.unlock();
  (void)ask(link, LinkVerb::kOffer, pool, &segment->file(), Deadline(kForOfferNs), &locked);
}

Segment& Segments::add_pool(os::File file, const SegmentId& expected) {
  if (Segment* const here = open_.find(expected)) return *here;
  // A tensor pool has none. Where the system has none left, an access would end this process.
  if (os::has_huge_pages(file)) throw_error(Code::kValue, "the memory file has huge pages");
  Segment& added = open_.add(Segment::open(std::move(file).keep(), true, MutexOwner::instance(), &expected));
  nudge();
  return added;
}

bool Segments::ask_links(const SegmentId& segment) { return instance().pool_links_->ask(segment); }

void PoolLinks::drop(uint64_t number) noexcept {
  const std::scoped_lock locked(segments_.lock_);
  std::erase_if(links_, [&](const Link& link) { return link.number == number; });
}

bool PoolLinks::ask(const SegmentId& pool) {
  std::vector<Link> links;
  {
    const std::scoped_lock locked(segments_.lock_);
    links = links_;
  }
  for (const Link& link : links) {
    try {
      const Deadline deadline(kForLoadNs);
      std::unique_lock locked(segments_.lock_, std::defer_lock);
      std::optional<Waiter> waiter(std::in_place, deadline);
      Given given = ask(link, LinkVerb::kGet, pool, nullptr, deadline, &locked, &waiter);
      given_.insert(pool);
      (void)segments_.add_pool(std::move(given.file), pool);
      return true;
    } catch (const Error& e) {
      if (e.code() == Code::kInterrupted) throw;
      // Another one may have it.
    }
  }
  return false;
}

void PoolLinks::before_fork() noexcept {
  if (links_.empty()) return;
  uint64_t silent = 0;  // the numbers of links whose processes have not answered, as bits
  const auto bit_of = [&](const Link& link) { return uint64_t{1} << (&link - links_.data()) % 64; };
  const bool has_proc = os::has_proc();
  segments_.open_.visit([&](Segment& segment) {
    if (!segment.is_tensor_pool() || segment.file().is_lost()) return;
    if (has_proc && (os::is_of_user(segment.file(), os::user()) || os::open_again(segment.file(), true)))
      return;
    for (const Link& link : links_) {
      if ((silent & bit_of(link)) != 0) continue;
      try {
        const Deadline deadline(kForForkNs / static_cast<int64_t>(links_.size()));
        Given given = ask(link, LinkVerb::kGet, segment.header().id, nullptr, deadline, nullptr);
        if (os::is_same_file(given.file, segment.file())) return segment.give_child(std::move(given.file));
      } catch (const Error& e) {
        if (e.code() == Code::kTimeout) silent |= bit_of(link);
        // Another one may have it.
      } catch (...) {
        // The same.
      }
    }
  });
}

void PoolLinks::become_child() noexcept {
  for (const std::shared_ptr<os::File>& connection : connections_) *connection = os::File();
  connections_.clear();
}

}  // namespace tenon::impl
