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
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

namespace tenon::impl::os {
namespace {

// Of sockets that do not listen yet, beside the paths that they will get.
constexpr const char* kUnfinishedPrefix = ".tenon-socket.";

sockaddr_un address_of(const std::string& path) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

File new_socket() {
  File made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made) return std::move(made).keep();
  const int error = errno;
  check_descriptors(error);
  throw_error(Code::kSystem, "a Unix socket cannot be made: ", std::strerror(error));
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
  // A path through /proc, which is short.
  std::string at(const std::string& name) const { return concat("/proc/self/fd/", file.fd(), '/', name); }
};

// What processes have left that were killed before their sockets listened. Requires the lock.
void sweep(const Folder& folder) {
  struct Close {
    void operator()(DIR* directory) const noexcept { closedir(directory); }
  };
  const std::unique_ptr<DIR, Close> entries(opendir(folder.at(".").c_str()));
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string name = entry->d_name;
    struct stat status{};
    const bool is_left = name.rfind(kUnfinishedPrefix, 0) == 0 &&
                         fstatat(folder.file.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                         S_ISSOCK(status.st_mode) && status.st_uid == user();
    if (is_left) (void)unlinkat(folder.file.fd(), name.c_str(), 0);
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

void check_socket_path(const std::string& path) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  if (path.empty() || path.size() > kMost || path[0] == '@' || path.find('\0') != std::string::npos ||
      last_part_of(path).empty()) {
    throw_error(Code::kValue, "'", readable(path), "' is not the path of a socket: it has 1 to ", kMost,
                " bytes, and is one of a file system");
  }
}

File listen_at(const std::string& path, int backlog, SocketFile* made) {
  check_socket_path(path);
  const Folder folder(path);
  if (!folder.is_locked) return {};
  sweep(folder);
  check_free(folder, path);
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    throw_error(Code::kSystem, "no random number for a socket");
  const std::string name = concat(kUnfinishedPrefix, number);
  File listener = new_socket();
  const sockaddr_un address = address_of(folder.at(name));
  struct stat status{};
  // It gets its path when it listens: a connection to a socket that is only bound is refused, as to one that
  // was left.
  const bool is_done =
      bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      fchmodat(folder.file.fd(), name.c_str(), 0600, 0) == 0 && listen(listener.fd(), backlog) == 0 &&
      fstatat(folder.file.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
      renameat(folder.file.fd(), name.c_str(), folder.file.fd(), last_part_of(path).c_str()) == 0;
  if (!is_done) {
    const int error = errno;
    (void)unlinkat(folder.file.fd(), name.c_str(), 0);
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

File connect_to(const std::string& path) {
  check_socket_path(path);
  File made = new_socket();
  const int error = try_connect(made, path);
  switch (error) {
    case 0: return made;
    case EAGAIN:  // so many connections wait that it takes no more
    case EINTR: return {};
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

SocketPeer peer_of(const File& connection) {
  ucred credentials{};
  socklen_t nbytes = sizeof credentials;
  if (getsockopt(connection.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &nbytes) != 0) {
    throw_error(Code::kSystem,
                "the process at the other end of a socket is not known: ", std::strerror(errno));
  }
  // What the kernel shows instead of users that the user namespace has no number for.
  static const uint32_t overflow = [] {
    const File file(open("/proc/sys/kernel/overflowuid", O_RDONLY | O_CLOEXEC));
    char text[16] = {};
    unsigned number = 65534;
    if (file && read(file.fd(), text, sizeof text - 1) > 0) (void)std::sscanf(text, "%u", &number);
    return number;
  }();
  SocketPeer peer;
  peer.pid = static_cast<uint32_t>(std::max<pid_t>(credentials.pid, 0));
  peer.user = credentials.uid;
  peer.has_user = credentials.uid != overflow;
  return peer;
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

long receive_packet(const File& connection, std::span<std::byte> packet, File* file,
                    bool* has_lost_files) noexcept {
  constexpr size_t kMostFiles = 8;  // the others are closed by the kernel
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
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t files = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < files; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      File received(fd);  // closes what is too much
      if (*file) {
        *has_lost_files = true;
      } else {
        *file = std::move(received).keep();
      }
    }
  }
  return static_cast<long>(n);
}

bool await_packet(const File& connection, int64_t timeout_ns) noexcept {
  pollfd file{connection.fd(), POLLIN, 0};
  const timespec time = timespec_of(std::max<int64_t>(timeout_ns, 0));
  return ppoll(&file, 1, &time, nullptr) > 0;
}

}  // namespace tenon::impl::os
