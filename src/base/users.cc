// SPDX-License-Identifier: Apache-2.0
#include "base/users.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"

#ifndef SO_PEERGROUPS  // Linux 4.13
#define SO_PEERGROUPS 59
#endif

namespace tenon::impl::os {
namespace {

constexpr unsigned kOfGroup = S_IRGRP | S_IWGRP;

// What the kernel shows instead of numbers that the user namespace does not have.
uint32_t overflow_number(const char* path) noexcept {
  constexpr unsigned kUsual = 65534;
  const File file(open(path, O_RDONLY | O_CLOEXEC));
  char text[16] = {};
  unsigned number = kUsual;
  if (file && read(file.fd(), text, sizeof text - 1) > 0) (void)std::sscanf(text, "%u", &number);
  return number;
}

uint32_t overflow_user() noexcept {
  static const uint32_t number = overflow_number("/proc/sys/kernel/overflowuid");
  return number;
}

uint32_t overflow_group() noexcept {
  static const uint32_t number = overflow_number("/proc/sys/kernel/overflowgid");
  return number;
}

bool can_be_named(uint32_t group) noexcept { return group != kNoGroup && group != overflow_group(); }

// Of this process: the effective one first.
std::vector<uint32_t> own_groups() {
  std::vector<uint32_t> groups;
  int n = 0;
  do {  // another thread may change them
    n = getgroups(0, nullptr);
    groups.resize(1 + static_cast<size_t>(std::max(n, 0)));
    n = getgroups(static_cast<int>(groups.size()) - 1, groups.data() + 1);
  } while (n < 0 && errno == EINVAL);
  groups.resize(1 + static_cast<size_t>(std::max(n, 0)));
  groups[0] = getegid();
  return groups;
}

}  // namespace

void check_member(uint32_t group) {
  if (!can_be_named(group)) {
    throw_error(Code::kValue, "the group ", group,
                " stands for groups that have no number in a user namespace, so it cannot be named: choose "
                "another one");
  }
  const std::vector<uint32_t> groups = own_groups();
  if (std::ranges::find(groups, group) != groups.end()) return;
  std::string text;
  constexpr size_t kMost = 16;
  for (size_t i = 0; i < std::min(groups.size(), kMost); ++i) text += concat(i == 0 ? "" : ", ", groups[i]);
  if (groups.size() > kMost) text += ", ...";
  throw_error(Code::kValue, "this process is not in the group ", group, ", but in ", text,
              ": start it in that group, or name one of these");
}

SocketPeer peer_of(const File& connection) {
  ucred credentials{};
  socklen_t nbytes = sizeof credentials;
  if (getsockopt(connection.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &nbytes) != 0) {
    throw_error(Code::kSystem,
                "the process at the other end of a socket is not known: ", std::strerror(errno));
  }
  SocketPeer peer;
  peer.pid = static_cast<uint32_t>(std::max<pid_t>(credentials.pid, 0));
  peer.user = credentials.uid;
  peer.has_user = credentials.uid != overflow_user();
  peer.group = credentials.gid;
  return peer;
}

bool is_peer_in_group(const File& connection, const SocketPeer& peer, uint32_t group) {
  if (!can_be_named(group)) return false;
  if (peer.group == group) return true;
  std::vector<uint32_t> groups(32);
  while (true) {
    auto nbytes = static_cast<socklen_t>(groups.size() * sizeof groups[0]);
    const int result = getsockopt(connection.fd(), SOL_SOCKET, SO_PEERGROUPS, groups.data(), &nbytes);
    const size_t n = nbytes / sizeof groups[0];
    if (result != 0 && errno == ERANGE && n > groups.size()) {
      groups.resize(n);
      continue;
    }
    groups.resize(result == 0 ? std::min(n, groups.size()) : 0);  // else they are not known
    return std::ranges::find(groups, group) != groups.end();
  }
}

bool may_share(const File& connection, const SocketPeer& peer, uint32_t group) {
  return (peer.has_user && peer.user == user()) || is_peer_in_group(connection, peer, group);
}

std::string text_of_user(const SocketPeer& peer) {
  return concat("user ", peer.user, peer.has_user ? "" : " (which has no number in this user namespace)");
}

bool is_given_to(const File& file, uint32_t group) noexcept {
  struct stat status{};
  return can_be_named(group) && fstat(file.fd(), &status) == 0 && status.st_gid == group &&
         (status.st_mode & kOfGroup) == kOfGroup;
}

bool is_given_to_own_group(const File& file) noexcept {
  try {
    const std::vector<uint32_t> groups = own_groups();
    return std::ranges::any_of(groups, [&](uint32_t group) { return is_given_to(file, group); });
  } catch (const std::exception&) {
    return false;
  }
}

void check_can_be_given_to(const File& file, uint32_t group) {
  struct stat status{};
  if (is_given_to(file, group) || fstat(file.fd(), &status) != 0 || (status.st_mode & kOfGroup) == 0) return;
  throw_error(Code::kValue, "the memory was given to the group ", status.st_gid,
              ", and cannot be given to the group ", group, " too: make another pool for that");
}

void give_to(const File& file, uint32_t group) {
  if (is_given_to(file, group)) return;
  check_can_be_given_to(file, group);
  // First the group: the rights are never those of another one.
  if (fchown(file.fd(), static_cast<uid_t>(-1), group) == 0 && fchmod(file.fd(), 0660) == 0) return;
  const int error = errno;
  throw_error(Code::kSystem, "the memory cannot be given to the group ", group, ": ", std::strerror(error),
              error == EPERM ? " (has this process changed its user since it made the memory?)" : "");
}

}  // namespace tenon::impl::os
