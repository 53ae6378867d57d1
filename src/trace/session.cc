// SPDX-License-Identifier: Apache-2.0
#include "trace/session.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/trace.h"
#include "trace/chrome.h"

namespace tenon::impl::trace {
namespace {

struct Session {
  std::mutex lock;
  // Guarded by lock.
  std::string path;
  int fd = -1;  // < 0: no trace runs
};

// Never destroyed, and made without an allocation, which could fail here.
Session& session() noexcept {
  alignas(Session) static std::byte room[sizeof(Session)];
  static auto* const one = new (room) Session;
  return *one;
}

void forget_in_child() noexcept {
  Session& child = session();
  if (child.fd >= 0) ::close(child.fd);
  child.fd = -1;
  new (&child.lock) std::mutex;
}

void handle_forks() {
  [[maybe_unused]] static const int handlers =
      pthread_atfork([] { session().lock.lock(); }, [] { session().lock.unlock(); }, forget_in_child);
}

class TraceFile {
 public:
  explicit TraceFile(int fd) noexcept : fd_(fd) {}
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  // 0, or errno.
  int write(std::string_view text) noexcept {
    while (!text.empty()) {
      const ssize_t n = ::write(fd_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return 0;
  }
  int close() noexcept {
    const int failed = ::close(fd_);
    fd_ = -1;
    return failed != 0 && errno != EINTR ? errno : 0;
  }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

[[noreturn]] void fail(const std::string& path, int reason) {
  throw_error(reason == ENOENT || reason == ENOTDIR ? Code::kNotFound : Code::kSystem,
              "trace: cannot write '", path, "': ", std::strerror(reason));
}

}  // namespace

void begin(const char* path, uint64_t capacity) {
  if (capacity < 1 || capacity > kMostRecords) {
    throw_error(Code::kValue, "a trace keeps 1 to ", kMostRecords, " events, not ", capacity);
  }
  handle_forks();
  Session& now = session();
  const std::scoped_lock lock(now.lock);
  if (now.fd >= 0) {
    throw_error(Code::kValue, "a trace into '", now.path, "' runs already: a process has one at a time");
  }
  now.path = path;
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail(now.path, errno);
  TraceFile file(fd);
  start(static_cast<size_t>(capacity));
  now.fd = file.release();
}

Counts end() {
  Session& now = session();
  const std::scoped_lock lock(now.lock);
  if (now.fd < 0) throw_error(Code::kValue, "no trace runs");
  TraceFile file(std::exchange(now.fd, -1));
  const Recording recording = stop();
  int reason = 0;
  write_chrome(recording, [&](std::string_view text) { return (reason = file.write(text)) == 0; });
  const int at_close = file.close();
  if (reason == 0) reason = at_close;
  if (reason != 0) fail(now.path, reason);
  Counts counts;
  for (const Record& record : recording) counts.events += record.kind != SpanKind::kNone ? 1 : 0;
  counts.lost = recording.lost;
  return counts;
}

}  // namespace tenon::impl::trace
