// SPDX-License-Identifier: Apache-2.0
//
// Unix sockets that carry packets (SOCK_SEQPACKET), each with one file or none: unix(7). All sockets are
// non-blocking, and exec closes them. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/os.h"
#include "base/users.h"

namespace tenon::impl::os {

// Fails with kValue: no socket can have this path.
void check_socket_path(const std::string& path);

// The socket of a listener at its path, which another process may have replaced since.
struct SocketFile {
  std::string path;
  uint64_t device = 0, inode = 0;
};

// A socket at the path to which only processes of this user can connect, and those of a group, if it is not
// kNoGroup. Replaces the socket of a process that has ended. Empty: another process makes a socket in the
// directory at the same time. Requires that this process does not fork meanwhile. Fails with kSystem (another
// process listens there; it is no socket; the directory), kValue (path).
File listen_at(const std::string& path, int backlog, uint32_t group, SocketFile* made);
// Removes the socket, unless another one has its path. False: as an empty result of listen_at().
bool remove_socket(const SocketFile& made) noexcept;

// For a connection. Fails with kSystem.
File new_socket();
// False: so many connections wait there that it takes no more now. Fails with kNotFound (nobody listens
// there), kValue (path), kSystem.
bool connect_to(const File& made, const std::string& path);
// A connection that waits. Empty: there is none, or no descriptor is left.
File accept_from(const File& listener) noexcept;

// Two that are connected. Fails with kSystem.
void make_socket_pair(File* one, File* other);

// False: the other end is closed, or does not take packets. file: sent with the packet; null: none.
bool send_packet(const File& connection, std::span<const std::byte> packet, const File* file) noexcept;
// The size of the packet, at most that of the buffer; 0: the other end is closed; < 0: there is none yet.
// *file: the memory file that came with it, or empty. *has_lost_files: more files came than one, or no
// descriptor is left. Does not wait for a file of another kind, which a thread closes.
long receive_packet(const File& connection, std::span<std::byte> packet, File* file,
                    bool* has_lost_files) noexcept;
// Closes the connection, and does not wait for files that came over it and were not received.
void end(File&& connection) noexcept;
// Waits until a packet can be received, or the other end is closed. False: not within this time, or a signal
// has come.
bool await_packet(const File& connection, int64_t timeout_ns) noexcept;

}  // namespace tenon::impl::os
