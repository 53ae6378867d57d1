// SPDX-License-Identifier: Apache-2.0
#include "base/unix_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/comes_true_testing.h"
#include "base/error.h"

namespace tenon::impl::os {
namespace {

constexpr int64_t kLongNs = 600'000'000'000;

class UnixSocket : public testing::Test {
 protected:
  UnixSocket() {
    char name[] = "/tmp/tenon-test-XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/socket";
  }
  ~UnixSocket() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    return names;
  }
  static int fds() {
    int n = 0;
    for (int fd = 0; fd < 256; ++fd) n += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return n;
  }
  static std::span<const std::byte> bytes(const char* text) {
    return std::as_bytes(std::span(text, std::strlen(text)));
  }

  std::string folder_, path_;
};

// Empty: the backlog is full.
File connected_to(const std::string& path) {
  File made = new_socket();
  return connect_to(made, path) ? std::move(made) : File();
}

Code code_of(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "no error";
  return Code::kInternal;
}

TEST_F(UnixSocket, CarriesPacketsWithAFileOrWithout) {
  SocketFile made;
  const File listener = listen_at(path_, 4, kNoGroup, &made);
  ASSERT_TRUE(listener);
  const File one = connected_to(path_);
  File other = accept_from(listener);
  ASSERT_TRUE(one && other);
  EXPECT_FALSE(accept_from(listener));
  EXPECT_EQ(peer_of(one).pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(peer_of(other).user, user());
  std::array<std::byte, 64> room{};
  File file;
  bool has_lost_files = true;
  EXPECT_LT(receive_packet(other, room, &file, &has_lost_files), 0);
  const int before = fds();
  const File sent(memfd_create("sent", MFD_CLOEXEC));
  EXPECT_TRUE(send_packet(one, bytes("with"), &sent));
  EXPECT_TRUE(send_packet(one, bytes("without"), nullptr));
  ASSERT_TRUE(await_packet(other, kLongNs));
  EXPECT_EQ(receive_packet(other, room, &file, &has_lost_files), 4);
  FileFacts here, there;
  EXPECT_TRUE(facts_of(sent, &here) && facts_of(file, &there));
  EXPECT_EQ(here.inode, there.inode);
  EXPECT_NE(fcntl(file.fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(receive_packet(other, room, &file, &has_lost_files), 7);
  EXPECT_FALSE(file);
  EXPECT_FALSE(has_lost_files);
  EXPECT_EQ(fds(), before + 1) << "the file that was sent";
  other = File();
  EXPECT_EQ(receive_packet(one, room, &file, &has_lost_files), 0);
  EXPECT_FALSE(send_packet(one, bytes("x"), nullptr));
}

TEST_F(UnixSocket, TakesOneFileAndClosesTheOthers) {
  SocketFile made;
  const File listener = listen_at(path_, 4, kNoGroup, &made);
  const File one = connected_to(path_);
  const File other = accept_from(listener);
  for (const size_t n : {size_t{2}, size_t{8}, size_t{20}}) {
    const int before = fds();
    std::vector<int> sent(n, 0);
    std::vector<char> control(CMSG_SPACE(n * sizeof(int)));
    char text[] = "x";
    iovec part{text, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(n * sizeof(int));
    std::memcpy(CMSG_DATA(header), sent.data(), n * sizeof(int));
    ASSERT_EQ(sendmsg(one.fd(), &message, 0), 1);
    std::array<std::byte, 64> room{};
    {
      File file;
      bool has_lost_files = false;
      EXPECT_EQ(receive_packet(other, room, &file, &has_lost_files), 1);
      EXPECT_TRUE(has_lost_files);
    }
    EXPECT_TRUE(comes_true([&] { return fds() == before; })) << n;
  }
}

// The close of a TCP socket with unsent bytes waits for as long as its user has said.
TEST_F(UnixSocket, DoesNotWaitForTheFilesThatItGets) {
  SocketFile made;
  const File listener = listen_at(path_, 4, kNoGroup, &made);
  const File tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t nbytes = sizeof address;
  ASSERT_EQ(bind(tcp.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(tcp.fd(), 16), 0);
  ASSERT_EQ(getsockname(tcp.fd(), reinterpret_cast<sockaddr*>(&address), &nbytes), 0);
  for (const bool is_received : {true, false}) {
    for (const char* const text : {"x", ""}) {
      const File one = connected_to(path_);
      File other = accept_from(listener);
      {
        const File slow(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        (void)connect(slow.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
        const struct linger wait{1, 4};
        ASSERT_EQ(setsockopt(slow.fd(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
        pollfd ready{slow.fd(), POLLOUT, 0};
        ASSERT_EQ(poll(&ready, 1, -1), 1);
        const std::vector<char> unread(1 << 20);
        while (send(slow.fd(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
        }
        ASSERT_TRUE(send_packet(one, bytes(text), &slow));
      }  // the last descriptor is on its way
      const int64_t before = now_ns();
      if (is_received) {
        std::array<std::byte, 64> room{};
        File file;
        bool has_lost_files = false;
        EXPECT_EQ(receive_packet(other, room, &file, &has_lost_files), static_cast<long>(std::strlen(text)));
        EXPECT_FALSE(file);
      }
      end(std::move(other));
      EXPECT_LT(now_ns() - before, 3'000'000'000) << is_received << text;
      std::array<std::byte, 64> room{};
      File file;
      bool has_lost_files = false;
      EXPECT_EQ(receive_packet(one, room, &file, &has_lost_files), 0) << "the other end is closed";
    }
  }
}

TEST_F(UnixSocket, HasItsPathOnlyWhileItListens) {
  SocketFile made;
  {
    const File listener = listen_at(path_, 4, kNoGroup, &made);
    struct stat status{};
    ASSERT_EQ(stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U);
    SocketFile second;
    EXPECT_EQ(code_of([&] { (void)listen_at(path_, 4, kNoGroup, &second); }), Code::kSystem);
    EXPECT_EQ(files(), std::vector<std::string>{"socket"});
  }
  EXPECT_EQ(code_of([&] { (void)connected_to(path_); }), Code::kNotFound);
  SocketFile second;
  const File listener = listen_at(path_, 4, kNoGroup, &second);  // replaces the one that was left
  EXPECT_TRUE(remove_socket(made));
  EXPECT_EQ(files(), std::vector<std::string>{"socket"}) << "the path is another one's";
  EXPECT_TRUE(remove_socket(second));
  EXPECT_TRUE(files().empty());
}

TEST_F(UnixSocket, IsNotMadeWhileAnotherProcessMakesOne) {
  const File folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(flock(folder.fd(), LOCK_EX), 0);
  SocketFile made;
  EXPECT_FALSE(listen_at(path_, 4, kNoGroup, &made));
  EXPECT_FALSE(remove_socket({path_, 0, 0}));
  ASSERT_EQ(flock(folder.fd(), LOCK_UN), 0);
  EXPECT_TRUE(listen_at(path_, 4, kNoGroup, &made));
}

TEST_F(UnixSocket, TakesNoConnectionIfItsBacklogIsFull) {
  SocketFile made;
  const File listener = listen_at(path_, 0, kNoGroup, &made);
  const File first = connected_to(path_);
  EXPECT_TRUE(first);
  EXPECT_FALSE(connected_to(path_));
  EXPECT_TRUE(accept_from(listener));
  const File second = connected_to(path_);
  EXPECT_TRUE(second);
  EXPECT_FALSE(await_packet(second, 1'000'000));
}

TEST_F(UnixSocket, OfARelativePathIsRemovedFromAnyDirectory) {
  const std::filesystem::path before = std::filesystem::current_path();
  SocketFile made;
  std::filesystem::current_path(folder_);
  const File listener = listen_at("socket", 4, kNoGroup, &made);
  std::filesystem::current_path(before);
  EXPECT_EQ(files(), std::vector<std::string>{"socket"});
  EXPECT_TRUE(remove_socket(made));
  EXPECT_TRUE(files().empty());
}

TEST_F(UnixSocket, HasAPathOfAFileSystem) {
  for (const std::string& path : {std::string(), std::string("@x"), std::string(1, '\0') + "x",
                                  std::string("/tmp/"), "/tmp/" + std::string(103, 'x')}) {
    EXPECT_EQ(code_of([&] { check_socket_path(path); }), Code::kValue);
  }
  check_socket_path("/tmp/" + std::string(102, 'x'));
  check_socket_path("x");
}

}  // namespace
}  // namespace tenon::impl::os
