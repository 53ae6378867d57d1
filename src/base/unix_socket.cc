// SPDX-License-Identifier: Apache-2.0
#include "base/unix_socket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

namespace tenon::impl::os {
namespace {

// Of directories for sockets that do not listen yet, beside the paths that they will get. Only this user can
// open such a directory. So the socket in it is the one that was made, whoever writes to the directory
// around it.
constexpr const char* kUnfinishedPrefix = ".tenon-socket.";
constexpr const char* kUnfinishedName = "socket";

sockaddr_un address_of(const std::string& path) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

// 0, or the error.
int try_connect(const File& made, const std::string& path) noexcept {
  const sockaddr_un address = address_of(path);
  return connect(made.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string last_part_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// A path through /proc, which is short.
std::string path_in(const File& folder, const std::string& name) {
  return concat("/proc/self/fd/", folder.fd(), '/', name);
}

// The directory of a socket. All changes of its sockets are made under its lock, which ends with the
// descriptor.
struct Folder {
  File file;
  bool is_locked = false;

  // Fails with kSystem.
  explicit Folder(const std::string& path)
      : file(open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (!file) {
      const int error = errno;
      check_descriptors(error);
      throw_error(Code::kSystem, "the directory of the socket '", path,
                  "' cannot be opened: ", std::strerror(error));
    }
    is_locked = flock(file.fd(), LOCK_EX | LOCK_NB) == 0;
    if (is_locked || errno == EWOULDBLOCK || errno == EINTR) return;
    throw_error(Code::kSystem, "the directory of the socket '", path,
                "' cannot be locked: ", std::strerror(errno));
  }
};

// Such a directory for one socket. Goes with the object.
struct Unfinished {
  const Folder& folder;
  const std::string name;
  File file;

  // Empty: errno says why.
  Unfinished(const Folder& in, std::string as) : folder(in), name(std::move(as)) {
    if (mkdirat(folder.file.fd(), name.c_str(), 0700) != 0) return;
    file = open_own(folder, name);
    if (file) (void)chmod(concat("/proc/self/fd/", file.fd()).c_str(), 0700);  // whatever the umask
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished() { remove(folder, name, file); }

  // Empty: it is not a directory that only this user can open.
  static File open_own(const Folder& folder, const std::string& name) noexcept {
    File found(openat(folder.file.fd(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status{};
    if (!found || fstat(found.fd(), &status) != 0) return {};
    if (status.st_uid == user() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0) return found;
    errno = EPERM;
    return {};
  }
  static void remove(const Folder& folder, const std::string& name, const File& file) noexcept {
    const int error = errno;
    struct stat status{};
    if (file) {
      const bool has_socket =
          fstatat(file.fd(), kUnfinishedName, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(status.st_mode);
      if (has_socket) (void)unlinkat(file.fd(), kUnfinishedName, 0);
      (void)unlinkat(folder.file.fd(), name.c_str(), AT_REMOVEDIR);
    }
    errno = error;
  }
};

// What processes have left that were killed before their sockets listened. Requires the lock.
void sweep(const Folder& folder) {
  struct Close {
    void operator()(DIR* directory) const noexcept { closedir(directory); }
  };
  const std::unique_ptr<DIR, Close> entries(opendir(path_in(folder.file, ".").c_str()));
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string name = entry->d_name;
    if (name.rfind(kUnfinishedPrefix, 0) == 0)
      Unfinished::remove(folder, name, Unfinished::open_own(folder, name));
  }
}

// Fails with kSystem: the path is not that of a socket which nobody uses any more.
void check_free(const Folder& folder, const std::string& path) {
  struct stat status{};
  const std::string name = last_part_of(path);
  if (fstatat(folder.file.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return;
    throw_error(Code::kSystem, "'", path, "' cannot be looked at: ", std::strerror(errno));
  }
  if (!S_ISSOCK(status.st_mode))
    throw_error(Code::kSystem, "'", path, "' exists, and is not a socket: choose another path");
  const File made = new_socket();
  const int error = try_connect(made, path);
  if (error == ECONNREFUSED || error == ENOENT) return;
  if (error != 0 && error != EAGAIN && error != EPROTOTYPE) {
    throw_error(Code::kSystem, "there is a socket at '", path,
                "', and it is not known whether a process listens there: ", std::strerror(error));
  }
  const uint32_t pid = error == 0 ? peer_of(made).pid : 0;
  throw_error(Code::kSystem, pid == 0 ? "another process" : process_text(pid), " listens at the socket '",
              path, "': close it there, or choose another path");
}

}  // namespace

File new_socket() {
  File made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made) return std::move(made).keep();
  const int error = errno;
  check_descriptors(error);
  throw_error(Code::kSystem, "a Unix socket cannot be made: ", std::strerror(error));
}

void check_socket_path(const std::string& path) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  if (path.empty() || path.size() > kMost || path[0] == '@' || path.find('\0') != std::string::npos ||
      last_part_of(path).empty()) {
    throw_error(Code::kValue, "'", readable(path), "' is not the path of a socket: it has 1 to ", kMost,
                " bytes, and is one of a file system");
  }
}

File listen_at(const std::string& path, int backlog, uint32_t group, SocketFile* made) {
  check_socket_path(path);
  const Folder folder(path);
  if (!folder.is_locked) return {};
  sweep(folder);
  check_free(folder, path);
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    throw_error(Code::kSystem, "no random number for a socket");
  File listener = new_socket();
  const Unfinished unfinished(folder, concat(kUnfinishedPrefix, number));
  const int own = unfinished.file.fd();
  const mode_t mode = group == kNoGroup ? 0600 : 0660;
  struct stat status{};
  const auto bind_and_listen = [&] {
    const sockaddr_un address = address_of(path_in(unfinished.file, kUnfinishedName));
    return bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
           (group == kNoGroup ||
            fchownat(own, kUnfinishedName, static_cast<uid_t>(-1), group, AT_SYMLINK_NOFOLLOW) == 0) &&
           fchmodat(own, kUnfinishedName, mode, 0) == 0 && listen(listener.fd(), backlog) == 0 &&
           fstatat(own, kUnfinishedName, &status, AT_SYMLINK_NOFOLLOW) == 0;
  };
  // It gets its path when it listens: a connection to a socket that is only bound is refused, as to one that
  // was left.
  const bool is_done = unfinished.file && bind_and_listen() &&
                       renameat(own, kUnfinishedName, folder.file.fd(), last_part_of(path).c_str()) == 0;
  if (!is_done) {
    const int error = errno;
    if (!has_proc()) throw_error(Code::kSystem, "a socket at '", path, "' cannot be made without /proc");
    throw_error(Code::kSystem, "a socket at '", path, "' cannot be made: ", std::strerror(error));
  }
  made->path = path[0] == '/' ? path : concat(std::filesystem::current_path().string(), '/', path);
  made->device = static_cast<uint64_t>(status.st_dev);
  made->inode = static_cast<uint64_t>(status.st_ino);
  return listener;
}

bool remove_socket(const SocketFile& made) noexcept {
  try {
    const Folder folder(made.path);
    if (!folder.is_locked) return false;
    struct stat status{};
    const std::string name = last_part_of(made.path);
    const bool is_own = fstatat(folder.file.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                        static_cast<uint64_t>(status.st_dev) == made.device &&
                        static_cast<uint64_t>(status.st_ino) == made.inode;
    if (is_own) (void)unlinkat(folder.file.fd(), name.c_str(), 0);
  } catch (const std::exception&) {
    // The directory is gone, or no descriptor is left: then the next process that listens there removes it.
  }
  return true;
}

bool connect_to(const File& made, const std::string& path) {
  check_socket_path(path);
  const int error = try_connect(made, path);
  switch (error) {
    case 0: return true;
    case EAGAIN:  // so many connections wait that it takes no more
    case EINTR: return false;
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
      throw_error(Code::kNotFound, "no process listens at the socket '", path, "'",
                  error == ECONNREFUSED ? ": the one that had made it has ended" : "");
    default:
      throw_error(Code::kSystem, "there is no connection to the socket '", path, "': ", std::strerror(error));
  }
}

File accept_from(const File& listener) noexcept {
  return File(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)).keep();
}

void make_socket_pair(File* one, File* other) {
  int fds[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    const int error = errno;
    check_descriptors(error);
    throw_error(Code::kSystem, "a pair of sockets cannot be made: ", std::strerror(error));
  }
  *one = File(fds[0]).keep();
  *other = File(fds[1]).keep();
}

bool send_packet(const File& connection, std::span<const std::byte> packet, const File* file) noexcept {
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (file != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = file->fd();
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return sendmsg(connection.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(packet.size());
}

namespace {

// The close of another file than a memory file may wait, without end: of a TCP socket for its peer, of a file
// in user space for its program.
void close_beside(std::span<const int> files) noexcept {
  try {
    const BlockedSignals blocked;
    std::thread([fds = std::vector<int>(files.begin(), files.end())] {
      for (const int fd : fds) close(fd);
    }).detach();
  } catch (const std::exception&) {
    for (const int fd : files) close(fd);
  }
}

bool is_memory_file(int fd) noexcept { return fcntl(fd, F_GET_SEALS) >= 0 || errno != EINVAL; }

}  // namespace

void end(File&& connection) noexcept {
  File ending = std::move(connection);
  if (ending.fd() < 0) return;
  (void)shutdown(ending.fd(), SHUT_RDWR);  // nothing comes from now on
  // Each packet has the credentials of its sender then, also an empty one.
  const int has_credentials = 1;
  (void)setsockopt(ending.fd(), SOL_SOCKET, SO_PASSCRED, &has_credentials, sizeof has_credentials);
  msghdr message{};
  const bool is_received = recvmsg(ending.fd(), &message, MSG_PEEK | MSG_DONTWAIT) < 0 ||
                           (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) == 0;
  if (is_received) return;
  const int fd = ending.release();
  close_beside({&fd, 1});
}

long receive_packet(const File& connection, std::span<std::byte> packet, File* file,
                    bool* has_lost_files) noexcept {
  constexpr size_t kMostFiles = 253;  // SCM_MAX_FD
  iovec part{packet.data(), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFiles * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  *file = File();
  *has_lost_files = false;
  const ssize_t n = recvmsg(connection.fd(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
  *has_lost_files = (message.msg_flags & MSG_CTRUNC) != 0;
  std::array<int, kMostFiles> foreign;
  size_t n_files = 0, n_foreign = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t files = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < files; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      *has_lost_files |= n_files++ != 0;
      if (!is_memory_file(fd)) {
        foreign[n_foreign++] = fd;
        continue;
      }
      File received(fd);  // closes what is too much
      if (!*file) *file = std::move(received).keep();
    }
  }
  if (n_foreign != 0) close_beside({foreign.data(), n_foreign});
  return static_cast<long>(n);
}

bool await_packet(const File& connection, int64_t timeout_ns) noexcept {
  pollfd file{connection.fd(), POLLIN, 0};
  const timespec time = timespec_of(std::max<int64_t>(timeout_ns, 0));
  return ppoll(&file, 1, &time, nullptr) > 0;
}

}  // namespace tenon::impl::os
