// SPDX-License-Identifier: Apache-2.0
//
// What the socket of a tensor pool gives: an open file description that only its receiver has. Processes in
// other namespaces, and the file of the socket, are tested in tests/python/share.
#include "ipc/pool_servers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ipc/peer_testing.h"
#include "ipc/pool_link_packets.h"
#include "ipc/pool_links.h"
#include "ipc/segments.h"
#include "ipc/tensor_pool.h"

namespace tenon::impl {
namespace {

constexpr int64_t kLongNs = 600'000'000'000;
constexpr uint64_t kByteOfTest = 5000;  // of the file, that no process locks

class ServedPool : public testing::Test {
 protected:
  ServedPool() {
    char name[] = "/tmp/tenon-test-XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/pool";
    TensorPoolOptions options;
    options.budget_nbytes = 1 << 20;
    pool_ = TensorPool::create(options);
  }
  ~ServedPool() override { std::filesystem::remove_all(folder_); }

  // Asks as another process. Empty: it was not given.
  os::File ask(const SegmentId& segment = {}) const {
    const os::File connection = os::new_socket();
    EXPECT_TRUE(os::connect_to(connection, path_));
    LinkRequest request{};
    std::memcpy(request.mark, kLinkMark, sizeof request.mark);
    request.verb = LinkVerb::kGet;
    request.segment = segment;
    request.now_ns = now_ns();
    EXPECT_TRUE(os::send_packet(connection, std::as_bytes(std::span(&request, 1)), nullptr));
    EXPECT_TRUE(os::await_packet(connection, kLongNs));
    LinkAnswer answer{};
    os::File file;
    bool has_lost_files = false;
    EXPECT_EQ(
        os::receive_packet(connection, std::as_writable_bytes(std::span(&answer, 1)), &file, &has_lost_files),
        static_cast<long>(sizeof answer));
    EXPECT_EQ(answer.status == LinkStatus::kGiven, static_cast<bool>(file)) << answer.text;
    return file;
  }

  std::string folder_, path_;
  Ref<TensorPool> pool_;
};

TEST_F(ServedPool, GiveEachReceiverADescriptionOfItsOwn) {
  const Ref<PoolServer> server = PoolServer::create(*pool_, path_, 16);
  os::File first = ask();
  const os::File second = ask();
  ASSERT_TRUE(first && second);
  ASSERT_TRUE(os::try_lock_byte(first, kByteOfTest));
  EXPECT_TRUE(os::is_byte_locked(second, kByteOfTest));
  // Nobody else has the first one, so its locks end with it.
  first = os::File();
  EXPECT_FALSE(os::is_byte_locked(second, kByteOfTest));
}

TEST_F(ServedPool, GiveNothingButWhatTheirMessagesNeed) {
  const Ref<PoolServer> server = PoolServer::create(*pool_, path_, 16);
  EXPECT_TRUE(ask(pool_->id()));
  TensorPoolOptions options;
  options.budget_nbytes = 1 << 20;
  const Ref<TensorPool> other = TensorPool::create(options);
  EXPECT_FALSE(ask(other->id()));
  EXPECT_FALSE(ask({{1, 2}}));
}

#if !defined(__SANITIZE_THREAD__)  // its children hang in the runtime if they are forked beside threads

// Oracle: the locks of a description end when its receiver closes it, whatever children this process has. So
// no child has inherited one on its way.
TEST_F(ServedPool, LetNoDescriptionIntoAForkedChild) {
  const Ref<PoolServer> server = PoolServer::create(*pool_, path_, 64);
  std::vector<pid_t> children;
  // The one that asks is another process: here, a fork could inherit what it has received.
  const pid_t asker = fork();
  if (asker == 0) {
    const os::File probe = ask();
    for (int i = 0; i < 2000; ++i) {
      const os::File file = ask();
      if (!file || !os::try_lock_byte(file, kByteOfTest)) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  while (waitpid(asker, &status, WNOHANG) == 0) {
    if (children.size() == 64) {
      for (const pid_t child : children) {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, nullptr, 0);
      }
      children.clear();
    }
    const pid_t child = fork();
    if (child == 0) {
      while (true) pause();
    }
    children.push_back(child);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "a lock of a description that was closed is still held";
  for (const pid_t child : children) {
    (void)kill(child, SIGKILL);
    (void)waitpid(child, nullptr, 0);
  }
}

#endif

TEST_F(ServedPool, AreMadeUsedAndClosedByManyThreads) {
  const Ref<PoolServer> lasting = PoolServer::create(*pool_, path_, 64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string own = concat(folder_, "/own", t);
      for (int i = 0; i < 100; ++i) {
        const Ref<PoolServer> server = PoolServer::create(*pool_, own, 4);
        const Ref<PoolLink> here = PoolLink::attach(own, kLongNs);
        const Ref<PoolLink> there = PoolLink::attach(path_, kLongNs);
        here->offer(*pool_);
        server->close();
        try {
          (void)PoolLink::attach(own, kLongNs);
          ADD_FAILURE() << "nobody serves there";
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), Code::kNotFound) << e.what();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(ask());
}

}  // namespace
}  // namespace tenon::impl
