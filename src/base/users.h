// SPDX-License-Identifier: Apache-2.0
//
// Users and groups, as the kernel knows them: of the process at the other end of a socket, of this process,
// and of files. All numbers are those of the user namespace of this process. A user or a group that has no
// number there is nobody's: it never matches. Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "base/os.h"

namespace tenon::impl::os {

constexpr uint32_t kNoGroup = UINT32_MAX;  // no group has this number

// Fails with kValue: this process is not in the group, or the number stands for groups without one.
void check_member(uint32_t group);

struct SocketPeer {
  uint32_t pid = 0;  // 0: it is of another PID namespace
  uint32_t user = 0;
  bool has_user = false;  // has a number here
  uint32_t group = 0;     // its effective one
};
// The process at the other end, as it was when it connected or began to listen. Fails with kSystem.
SocketPeer peer_of(const File& connection);
// The process at the other end was in the group then. group: kNoGroup: false. Fails with std::bad_alloc.
bool is_peer_in_group(const File& connection, const SocketPeer& peer, uint32_t group);
// It is of this user, or was in the group.
bool may_share(const File& connection, const SocketPeer& peer, uint32_t group);
// "user 1000", "user 65534 (which has no number in this user namespace)".
std::string text_of_user(const SocketPeer& peer);

// The owner of the file has given it to the group.
bool is_given_to(const File& file, uint32_t group) noexcept;
// The same for any group of this process.
bool is_given_to_own_group(const File& file) noexcept;
// Fails with kValue: it was given to another group.
void check_can_be_given_to(const File& file, uint32_t group);
// Processes of the group that get a descriptor of a memory file may open it anew, for writing. Fails with
// kValue (it was given to another group), kSystem (it is another user's; the group).
void give_to(const File& file, uint32_t group);

}  // namespace tenon::impl::os
