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
#include "base/os.h"
#include "base/trace.h"
#include "trace/chrome.h"

namespace tenon::impl::trace {
namespace {

struct Session {
  std::mutex lock;
  // Guarded by lock.
  std::string path;
  os::File file;  // empty: no trace runs
};

// Never destroyed, and created without an allocation, which could fail here.
Session& session() noexcept {
  alignas(Session) static std::byte room[sizeof(Session)];
  static auto* const one = new (room) Session;
  return *one;
}

void forget_session_in_child() noexcept {
  Session& child = session();
  (void)os::File(std::move(child.file));
  new (&child.lock) std::mutex;
}

void handle_forks() {
  [[maybe_unused]] static const int handlers =
      pthread_atfork([] { session().lock.lock(); }, [] { session().lock.unlock(); }, forget_session_in_child);
}

// 0, or errno.
int write_all(const os::File& file, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = ::write(file.fd(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

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
  if (now.file) {
    throw_error(Code::kValue, "a trace into '", now.path, "' runs already: a process has one at a time");
  }
  now.path = path;
  os::File file = os::File(::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666)).keep();
  if (!file) fail(now.path, errno);
  start(static_cast<size_t>(capacity));  // may fail: the file is not emptied before
  (void)!::ftruncate(file.fd(), 0);      // that of a device, or a FIFO, has no length
  now.file = std::move(file);
}

Counts end() {
  Session& now = session();
  const std::scoped_lock lock(now.lock);
  if (!now.file) throw_error(Code::kValue, "no trace runs");
  os::File file(std::move(now.file));
  const Recording recording = stop();
  if (file.is_lost()) {
    throw_error(Code::kSystem, "trace: cannot write '", now.path,
                "': other code of this process has closed its file descriptor");
  }
  int reason = 0;
  write_chrome(recording, [&](std::string_view text) { return (reason = write_all(file, text)) == 0; });
  if (::close(file.release()) != 0 && errno != EINTR && reason == 0) reason = errno;
  if (reason != 0) fail(now.path, reason);
  Counts counts;
  for (const Record& record : recording) counts.events += record.kind != SpanKind::kNone ? 1 : 0;
  counts.lost = recording.lost;
  return counts;
}

}  // namespace tenon::impl::trace
