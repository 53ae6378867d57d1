// SPDX-License-Identifier: Apache-2.0
//
// Processes of other users and groups, which need the rights of root, are tested beside those of other
// namespaces in tests/python/share.
#include "base/users.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/unix_socket.h"

namespace tenon::impl::os {
namespace {

constexpr uint32_t kOther = 4001, kMember = 4002, kUser = 4003;

template <class Attempt>
Code code_of(Attempt attempt) {
  try {
    attempt();
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "no error";
  return Code::kInternal;
}

// In a forked child, which may change its user. True: it returned true.
template <class Run>
bool holds_in_child(Run run) {
  const pid_t child = fork();
  if (child == 0) _exit(run() ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Users, AProcessNamesOnlyGroupsInWhichItIs) {
  check_member(getegid());
  EXPECT_EQ(code_of([] { check_member(UINT32_MAX - 1); }), Code::kValue);
  EXPECT_EQ(code_of([] { check_member(kNoGroup); }), Code::kValue);
  EXPECT_EQ(code_of([] { check_member(65534); }), Code::kValue) << "it stands for groups without a number";
  if (geteuid() != 0) GTEST_SKIP() << "needs root: other groups";
  EXPECT_TRUE(holds_in_child([] {
    const gid_t groups[] = {kOther, 65534, kMember};
    if (setgroups(3, groups) != 0) return false;
    check_member(kMember);
    return code_of([] { check_member(65534); }) == Code::kValue;
  }));
}

TEST(Users, APeerIsInTheGroupsThatItHadWhenItConnected) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: other groups";
  char name[] = "/tmp/tenon-test-XXXXXX";
  const std::string folder = mkdtemp(name), path = folder + "/socket";
  SocketFile made;
  const File listener = listen_at(path, 4, kNoGroup, &made);
  for (const size_t n : {size_t{0}, size_t{1}, size_t{31}, size_t{32}, size_t{33}, size_t{5000}}) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      std::vector<gid_t> groups(n);
      std::iota(groups.begin(), groups.end(), 10000);
      const File connection = new_socket();
      const bool is_connected =
          setgroups(n, groups.data()) == 0 && setegid(kMember) == 0 && connect_to(connection, path);
      // The groups of now do not count.
      const gid_t later[] = {kOther};
      const bool is_changed = setegid(0) == 0 && setgroups(1, later) == 0;
      (void)!write(ready[1], "x", is_connected && is_changed ? 1 : 0);
      close(ready[1]);
      while (true) pause();
    }
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    const File connection = accept_from(listener);
    const SocketPeer peer = peer_of(connection);
    EXPECT_TRUE(peer.has_user);
    EXPECT_EQ(peer.group, kMember);
    EXPECT_TRUE(is_peer_in_group(connection, peer, kMember));
    EXPECT_EQ(is_peer_in_group(connection, peer, 10000), n > 0);
    EXPECT_EQ(is_peer_in_group(connection, peer, 10000 + static_cast<uint32_t>(n) - 1), n > 0);
    EXPECT_FALSE(is_peer_in_group(connection, peer, 10000 + static_cast<uint32_t>(n)));
    EXPECT_FALSE(is_peer_in_group(connection, peer, kOther)) << "it came later";
    EXPECT_FALSE(is_peer_in_group(connection, peer, 65534));
    EXPECT_FALSE(is_peer_in_group(connection, peer, kNoGroup));
    (void)kill(child, SIGKILL);
    (void)waitpid(child, nullptr, 0);
  }
  std::filesystem::remove_all(folder);
}

TEST(Users, AMemoryFileIsGivenToOneGroup) {
  const File file = create_memory("tenon-test", 4096, false);
  const uint32_t group = getegid();
  EXPECT_FALSE(is_given_to(file, group)) << "that of its owner is not meant";
  EXPECT_FALSE(is_given_to_own_group(file));
  give_to(file, group);
  give_to(file, group);
  struct stat status{};
  ASSERT_EQ(fstat(file.fd(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0660U);
  EXPECT_TRUE(is_given_to(file, group) && is_given_to_own_group(file));
  EXPECT_FALSE(is_given_to(file, group + 1));
  EXPECT_EQ(code_of([&] { give_to(file, group + 1); }), Code::kValue);
  EXPECT_TRUE(is_given_to(file, group));
  EXPECT_EQ(code_of([] { give_to(File(), 1); }), Code::kSystem);
}

TEST(Users, OnlyTheGroupOpensAGivenFileAnew) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: other users";
  const File given = create_memory("tenon-test", 4096, false),
             kept = create_memory("tenon-test", 4096, false);
  EXPECT_TRUE(holds_in_child([&] {
    const gid_t groups[] = {kMember};
    if (setgroups(1, groups) != 0) return false;
    give_to(given, kMember);
    return true;
  }));
  for (const bool is_member : {true, false}) {
    EXPECT_TRUE(holds_in_child([&] {
      const gid_t groups[] = {is_member ? kMember : kOther};
      if (setgroups(1, groups) != 0 || setgid(kUser) != 0 || setuid(kUser) != 0) return false;
      const bool opens = static_cast<bool>(open_again(given, true));
      return opens == is_member && is_given_to_own_group(given) == is_member && !open_again(kept, true) &&
             !is_of_user(given, user()) &&
             code_of([&] { give_to(kept, groups[0]); }) == Code::kSystem;  // it is another user's
    }));
  }
}

TEST(Users, ASocketOfAGroupHasThatGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: other groups";
  char name[] = "/tmp/tenon-test-XXXXXX";
  const std::string folder = mkdtemp(name);
  for (const mode_t mask : {mode_t{0}, mode_t{0077}, mode_t{0777}}) {
    for (const uint32_t group : {kNoGroup, kMember}) {
      const mode_t before = umask(mask);
      SocketFile made;
      const File listener = listen_at(folder + "/socket", 4, group, &made);
      umask(before);
      struct stat status{};
      ASSERT_EQ(stat(made.path.c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 07777, group == kNoGroup ? 0600U : 0660U);
      EXPECT_EQ(status.st_gid, group == kNoGroup ? getegid() : kMember);
      EXPECT_TRUE(remove_socket(made));
      EXPECT_TRUE(std::filesystem::is_empty(folder));
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tenon::impl::os
