// SPDX-License-Identifier: Apache-2.0
//
// The laws of tensor pools and their messages, with other processes that open, keep and die. Through the C
// ABI, as users have it.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "ipc/inspect.h"
#include "ipc/message.h"
#include "ipc/peer_testing.h"
#include "ipc/segments.h"
#include "tenon/tenon.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kBudget = 8 << 20;
constexpr tenon_dtype kByte{TENON_UINT, 8, 1};

using Bytes = std::vector<std::byte>;

struct Release {
  void operator()(tenon_array* array) const { tenon_array_release(array); }
  void operator()(tenon_tensor_pool* pool) const { tenon_tensor_pool_release(pool); }
};
using ArrayPtr = std::unique_ptr<tenon_array, Release>;
using PoolPtr = std::unique_ptr<tenon_tensor_pool, Release>;

// What a call ended with: a status, and for GONE the reason.
struct Outcome {
  tenon_status status = TENON_OK;
  int32_t reason = 0;
  std::string message;
};
Outcome outcome_of(const tenon_error& error, tenon_status status) {
  return status == TENON_OK ? Outcome{} : Outcome{status, error.op_code, error.message};
}

class Pool {
 public:
  explicit Pool(uint64_t budget = kBudget, uint64_t idle = kBudget, int64_t timeout_ns = -1) {
    const tenon_pool_options options{sizeof options, 0, budget, idle, timeout_ns};
    tenon_tensor_pool* made = nullptr;
    tenon_error error = TENON_ERROR_INIT;
    if (tenon_tensor_pool_create(&options, &made, &error) != TENON_OK)
      throw std::runtime_error(error.message);
    pool_.reset(made);
  }
  tenon_tensor_pool* get() const { return pool_.get(); }
  ArrayPtr empty(int64_t n, int64_t timeout_ns = 0, Outcome* outcome = nullptr) {
    tenon_array* made = nullptr;
    tenon_error error = TENON_ERROR_INIT;
    const tenon_status status = tenon_tensor_pool_empty(get(), kByte, 1, &n, timeout_ns, &made, &error);
    if (outcome != nullptr) *outcome = outcome_of(error, status);
    return ArrayPtr(made);
  }
  // An array whose bytes all have this value.
  ArrayPtr filled(int64_t n, int value) {
    ArrayPtr made = empty(n);
    if (made) std::memset(tenon_array_describe(made.get())->data, value, static_cast<size_t>(n));
    return made;
  }
  ArrayPtr freeze(tenon_array* array) {
    tenon_array* made = nullptr;
    tenon_error error = TENON_ERROR_INIT;
    EXPECT_EQ(tenon_tensor_pool_freeze(get(), array, &made, &error), TENON_OK) << error.message;
    return ArrayPtr(made);
  }
  Bytes send(const std::vector<tenon_array*>& arrays, uint32_t opens = 1, int64_t timeout_ns = -1,
             const std::vector<uint32_t>& receivers = {}, const char* tag = nullptr,
             Outcome* outcome = nullptr) {
    tenon_message_options options{
        sizeof options, opens, timeout_ns, receivers.data(), static_cast<uint32_t>(receivers.size()), 0, tag,
        "serve.py:12"};
    const auto n = static_cast<uint32_t>(arrays.size());
    Bytes bytes(tenon_message_nbytes(arrays.data(), n));
    uint64_t nbytes = 0;
    tenon_error error = TENON_ERROR_INIT;
    const tenon_status status = tenon_tensor_pool_send(get(), arrays.data(), n, &options, bytes.data(),
                                                       bytes.size(), &nbytes, &error);
    if (outcome != nullptr) {
      *outcome = outcome_of(error, status);
    } else {
      EXPECT_EQ(status, TENON_OK) << error.message;
    }
    bytes.resize(nbytes);
    return bytes;
  }
  Bytes send_new(int64_t n, int value, uint32_t opens = 1, const char* tag = nullptr) {
    return send({filled(n, value).get()}, opens, -1, {}, tag);
  }
  tenon_pool_stats stats() {
    tenon_pool_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(tenon_tensor_pool_stats(get(), &stats, nullptr), TENON_OK);
    return stats;
  }
  bool becomes_empty() {
    return comes_true([&] { return stats().used_nbytes == 0; });
  }

 private:
  PoolPtr pool_;
};

std::vector<ArrayPtr> open(const Bytes& bytes, uint32_t flags = 0, Outcome* outcome = nullptr) {
  tenon_array* arrays[8] = {};
  uint32_t n = 0;
  tenon_error error = TENON_ERROR_INIT;
  const tenon_status status =
      tenon_message_open(bytes.data(), bytes.size(), flags, arrays, std::size(arrays), &n, &error);
  if (outcome != nullptr) *outcome = outcome_of(error, status);
  std::vector<ArrayPtr> opened;
  for (uint32_t i = 0; i < n; ++i) opened.emplace_back(arrays[i]);
  return opened;
}

std::byte* data_of(const ArrayPtr& array) {
  return static_cast<std::byte*>(tenon_array_describe(array.get())->data);
}
bool is_filled(const ArrayPtr& array, int value) {
  const auto n = static_cast<size_t>(tenon_array_describe(array.get())->shape[0]);
  return std::all_of(data_of(array), data_of(array) + n, [&](std::byte b) { return b == std::byte(value); });
}

// Whether a process has the memory file of a segment open.
bool has_open(pid_t pid, const SegmentId& id) {
  for (const auto& file : std::filesystem::directory_iterator(concat("/proc/", pid, "/fd"))) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(file.path(), error).string();
    if (target.find(text_of(id)) != std::string::npos) return true;
  }
  return false;
}

std::string answer_of(const Outcome& outcome) {
  return outcome.status == TENON_OK ? "ok" : concat(outcome.status, " ", outcome.reason);
}

// The words of a peer: it opens messages, keeps their arrays, and sends.
int be_peer(const std::vector<std::string>& words) {
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  std::vector<ArrayPtr> kept;
  std::optional<Pool> pool;
  std::string line;
  while (lines.hear(&line)) {
    const std::string verb = line.substr(0, line.find(' '));
    const std::string rest = line.size() > verb.size() ? line.substr(verb.size() + 1) : "";
    if (verb == "open" || verb == "read") {
      Outcome outcome;
      std::vector<ArrayPtr> opened = open(bytes_of(rest), verb == "read" ? TENON_READONLY : 0, &outcome);
      for (ArrayPtr& array : opened) kept.push_back(std::move(array));
      lines.say(answer_of(outcome));
    } else if (verb == "first" || verb == "last") {  // byte of the last array
      const int64_t n = tenon_array_describe(kept.back().get())->shape[0];
      lines.say(concat(static_cast<int>(data_of(kept.back())[verb == "first" ? 0 : n - 1])));
    } else if (verb == "set") {
      data_of(kept.back())[0] = std::byte(std::stoi(rest));
      lines.say("ok");
    } else if (verb == "drop") {
      kept.clear();
      lines.say("ok");
    } else if (verb == "send") {  // a message with so many opens, of 1 MiB that is filled with 7
      if (!pool) pool.emplace();
      lines.say(hex(pool->send_new(1 << 20, 7, static_cast<uint32_t>(std::stoi(rest)), "sent")));
    } else if (verb == "revoke") {  // all of these; stops at its store of this number, or ends
      (void)stop_at_store(std::stol(rest));
      (void)tenon_tensor_pool_revoke(pool->get(), "sent", nullptr, nullptr);
      (void)stop_at_store(0);
      return 0;
    } else if (verb == "pass") {  // the last array, which is read-only, in a message of its own
      if (!pool) pool.emplace();
      Outcome outcome;
      const Bytes bytes = pool->send({kept.back().get()}, 1, -1, {}, nullptr, &outcome);
      lines.say(outcome.status == TENON_OK ? hex(bytes) : answer_of(outcome));
    } else if (verb == "keep") {
      int32_t is_kept = 0;
      const Bytes bytes = bytes_of(rest);
      (void)tenon_message_take_over(bytes.data(), bytes.size(), -1, &is_kept, nullptr);
      lines.say(concat(is_kept));
    }
  }
  return words.empty() ? 1 : 0;
}

constexpr const char* kGone = "18 ";
std::string gone(int reason) { return concat(kGone, reason); }

TEST(TensorPool, AMessageOfOneOpenHandsItsMemoryOver) {
  Pool pool;
  ArrayPtr x = pool.filled(1 << 20, 3);
  std::byte* const data = data_of(x);
  const Bytes message = pool.send({x.get()});
  tenon_error error = TENON_ERROR_INIT;
  tenon_array* twice = nullptr;
  EXPECT_EQ(tenon_tensor_pool_freeze(pool.get(), x.get(), &twice, &error), TENON_ERR_MOVED) << "it has ended";
  EXPECT_EQ(tenon_message_is_unopened(message.data(), message.size()), 1);
  std::vector<ArrayPtr> opened = open(message);
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_EQ(data_of(opened[0]), data) << "in place";
  EXPECT_TRUE(is_filled(opened[0], 3));
  EXPECT_EQ(tenon_message_is_unopened(message.data(), message.size()), 0);
  data_of(opened[0])[0] = std::byte{4};
  EXPECT_EQ(pool.stats().used_nbytes, 1U << 20);
  opened.clear();
  EXPECT_TRUE(pool.becomes_empty());
  EXPECT_EQ(pool.stats().messages, 0U);
}

TEST(TensorPool, AsManyProcessesOpenAMessageAsMayAndEachOnce) {
  Pool pool;
  const Bytes message = pool.send_new(1 << 20, 3, 2);
  Peer a({"a"}), b({"b"}), c({"c"});
  EXPECT_EQ(a.ask("open " + hex(message)), "ok");
  EXPECT_EQ(a.ask("open " + hex(message)), "ok") << "a second open in one process is not counted";
  EXPECT_EQ(b.ask("read " + hex(message)), "ok");
  EXPECT_EQ(c.ask("open " + hex(message)), gone(TENON_GONE_OPENED));
  EXPECT_EQ(b.ask("read " + hex(message)), "ok") << "it still has the arrays";
  EXPECT_EQ(a.ask("set 9"), "ok");
  EXPECT_EQ(a.ask("first"), "9");
  EXPECT_EQ(b.ask("first"), "3") << "a has memory of its own";
  EXPECT_EQ(b.ask("drop"), "ok");
  EXPECT_EQ(a.ask("drop"), "ok");
  EXPECT_TRUE(pool.becomes_empty());
  EXPECT_EQ(b.ask("read " + hex(message)), gone(TENON_GONE_OPENED));
}

TEST(TensorPool, AnEndHasItsReason) {
  Pool pool;
  Peer peer({"peer"});
  const Bytes revoked = pool.send_new(4096, 1, 1, "request");
  const Bytes kept = pool.send_new(4096, 1, 1, "other");
  uint32_t n = 0;
  EXPECT_EQ(tenon_tensor_pool_revoke(pool.get(), "request", &n, nullptr), TENON_OK);
  EXPECT_EQ(n, 1U);
  EXPECT_EQ(peer.ask("open " + hex(revoked)), gone(TENON_GONE_REVOKED));
  EXPECT_EQ(peer.ask("open " + hex(kept)), "ok");
  EXPECT_EQ(tenon_message_revoke(kept.data(), kept.size(), nullptr), TENON_OK);
  const Bytes expired = pool.send({pool.filled(4096, 1).get()}, 1, 1);
  EXPECT_EQ(peer.ask("open " + hex(expired)), gone(TENON_GONE_EXPIRED));
  Peer other({"other"});
  const Bytes named = pool.send({pool.filled(4096, 1).get()}, 1, -1, {static_cast<uint32_t>(other.pid())});
  other.kill();
  EXPECT_TRUE(comes_true([&] { return pool.stats().messages == 0; }));
  EXPECT_EQ(peer.ask("open " + hex(named)), gone(TENON_GONE_RECEIVERS));
  EXPECT_EQ(peer.ask("drop"), "ok");
  EXPECT_TRUE(pool.becomes_empty());
  Bytes old = revoked;  // as if its record had another message
  MessageHead head;
  std::memcpy(&head, old.data(), sizeof head);
  head.generation -= 1;
  std::memcpy(old.data(), &head, sizeof head);
  EXPECT_EQ(peer.ask("open " + hex(old)), gone(TENON_GONE_UNKNOWN));
}

TEST(TensorPool, TheMemoryOfADeadReceiverComesBack) {
  Pool pool;
  Peer peer({"peer"});
  EXPECT_EQ(peer.ask("open " + hex(pool.send_new(6 << 20, 1))), "ok");
  Outcome outcome;
  EXPECT_FALSE(pool.empty(6 << 20, 0, &outcome));
  EXPECT_EQ(outcome.status, TENON_ERR_NO_MEMORY);
  EXPECT_NE(outcome.message.find(concat("process ", peer.pid())), std::string::npos) << outcome.message;
  EXPECT_FALSE(pool.empty(6 << 20, 1'000'000, &outcome));
  EXPECT_EQ(outcome.status, TENON_ERR_TIMEOUT);
  std::thread killer([&] {
    while (pool.stats().waiting == 0) std::this_thread::yield();
    peer.kill();
  });
  EXPECT_TRUE(pool.empty(6 << 20, -1, &outcome)) << outcome.message;
  killer.join();
  Peer other({"other"});
  EXPECT_EQ(other.ask("open " + hex(pool.send_new(6 << 20, 1))), "ok");
  other.kill();
  EXPECT_TRUE(pool.empty(6 << 20, 0, &outcome))
      << "a death that has happened needs no wait: " << outcome.message;
}

TEST(TensorPool, AWaitForRoomEndsWithTheReleaseOfAnotherProcess) {
  Pool pool;
  Peer peer({"peer"});
  EXPECT_EQ(peer.ask("open " + hex(pool.send_new(6 << 20, 1))), "ok");
  std::thread releaser([&] {
    while (pool.stats().waiting == 0) std::this_thread::yield();
    EXPECT_EQ(peer.ask("drop"), "ok");
  });
  EXPECT_TRUE(pool.empty(6 << 20, -1));
  releaser.join();
  const ArrayPtr all = pool.empty(2 << 20);
  ASSERT_TRUE(all);
  const Bytes message = pool.send({all.get()});
  Outcome outcome;
  EXPECT_FALSE(pool.empty(8 << 20, 0, &outcome));
  EXPECT_NE(outcome.message.find("serve.py:12"), std::string::npos) << outcome.message;
  EXPECT_EQ(tenon_message_revoke(message.data(), message.size(), nullptr), TENON_OK);
  EXPECT_TRUE(pool.empty(8 << 20, 0, &outcome)) << outcome.message;
}

TEST(TensorPool, AMessageEndsWithItsSender) {
  Peer sender({"sender"}), reader({"reader"});
  const std::string read = sender.ask("send 2"), unread = sender.ask("send 1");
  EXPECT_EQ(reader.ask("open " + read), "ok");
  EXPECT_EQ(open(bytes_of(read), TENON_READONLY).size(), 1U);
  sender.kill();
  EXPECT_EQ(reader.ask("first"), "7") << "those who have opened it keep it";
  Outcome outcome;
  EXPECT_TRUE(open(bytes_of(unread), 0, &outcome).empty());
  EXPECT_EQ(answer_of(outcome), gone(TENON_GONE_SENDER));
}

TEST(TensorPool, AnotherProcessKeepsAMessageBeyondItsSender) {
  Peer sender({"sender"}), keeper({"keeper"}), reader({"reader"});
  const std::string message = sender.ask("send 1"), gone_one = sender.ask("send 1");
  EXPECT_EQ(keeper.ask("keep " + message), "1");
  sender.kill();
  EXPECT_EQ(reader.ask("open " + message), "ok");
  EXPECT_EQ(reader.ask("first"), "7");
  EXPECT_EQ(keeper.ask("keep " + message), "0");
  EXPECT_EQ(keeper.ask("keep " + gone_one), "0");
}

TEST(TensorPool, AnEscapedViewSendsNothingAndLeavesEachArrayAsItWas) {
  Pool pool;
  const ArrayPtr x = pool.filled(4096, 1), y = pool.filled(4096, 2);
  tenon_view view = TENON_VIEW_INIT;
  tenon_error error = TENON_ERROR_INIT;
  ASSERT_EQ(tenon_view_open(&view, y.get(), TENON_READ, "view.py:1", &error), TENON_OK) << error.message;
  Outcome outcome;
  (void)pool.send({x.get(), y.get()}, 1, -1, {}, nullptr, &outcome);
  EXPECT_EQ(outcome.status, TENON_ERR_LEASE_CONFLICT) << outcome.message;
  EXPECT_EQ(pool.stats().messages, 0U);
  EXPECT_EQ(tenon_tensor_pool_owns(pool.get(), x.get()), 1);
  tenon_view_close(&view);
  const std::vector<ArrayPtr> opened = open(pool.send({x.get(), y.get(), x.get()}));
  ASSERT_EQ(opened.size(), 3U);
  EXPECT_TRUE(is_filled(opened[0], 1) && is_filled(opened[1], 2));
  EXPECT_EQ(data_of(opened[0]), data_of(opened[2])) << "views of one memory share it afterwards";
}

TEST(TensorPool, AFrozenArrayIsSentRepeatedlyAndAReadOnlyOneSentOn) {
  Pool pool;
  const ArrayPtr x = pool.filled(1 << 20, 5);
  const ArrayPtr frozen = pool.freeze(x.get());
  EXPECT_EQ(tenon_tensor_pool_owns(pool.get(), frozen.get()), 2);
  Peer a({"a"}), b({"b"});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(a.ask("read " + hex(pool.send({frozen.get()}))), "ok");
  EXPECT_EQ(b.ask("read " + a.ask("pass")), "ok") << "no copy: it lies in the pool of another process";
  EXPECT_EQ(a.ask("drop"), "ok");
  EXPECT_EQ(b.ask("first"), "5");
  EXPECT_EQ(a.ask("open " + hex(pool.send({frozen.get()}))), "ok");
  EXPECT_EQ(a.ask("pass").substr(0, 2), "2 ") << "a writable array that was received is packed";
  EXPECT_TRUE(is_filled(frozen, 5));
  EXPECT_EQ(pool.stats().used_nbytes, 1U << 20);
  b.kill();
}

// Oracle: the opens of one process count once, whichever of its threads make them at the same time.
TEST(TensorPool, TheThreadsOfAProcessOpenAMessageOnce) {
  Pool pool(kBudget);
  for (int round = 0; round < 100; ++round) {
    const uint32_t opens = 1 + static_cast<uint32_t>(round) % 2;  // in place, or private pages
    const Bytes message = pool.send_new(5'000'000, round, opens);
    std::atomic<int> ready{0};
    std::vector<ArrayPtr> here, there;
    const auto run = [&](std::vector<ArrayPtr>& opened) {
      ++ready;
      while (ready != 2) continue;
      opened = open(message);
    };
    std::thread other([&] { run(there); });
    run(here);
    other.join();
    ASSERT_EQ(here.size() + there.size(), 2U);
    EXPECT_EQ(data_of(here[0])[0], std::byte(round));
    EXPECT_EQ(data_of(there[0])[4'999'999], std::byte(round));
    EXPECT_EQ(data_of(here[0]) == data_of(there[0]), opens == 1);
    EXPECT_EQ(tenon_message_is_unopened(message.data(), message.size()), opens == 1 ? 0 : 1);
    EXPECT_EQ(tenon_message_revoke(message.data(), message.size(), nullptr), TENON_OK);
  }
  EXPECT_TRUE(pool.becomes_empty());
}

TEST(TensorPool, AnOpenBesideTheEndOfItsMessageHasAllOfItOrNothing) {
  Pool pool(64 << 10);  // room for one array
  Peer peer({"peer"});
  int opened = 0;
  for (int round = 0; round < 300; ++round) {
    const int value = round % 100;
    const Bytes message = pool.send_new(64 << 10, value);
    peer.say("open " + hex(message));
    const auto moment = std::chrono::steady_clock::now() + std::chrono::microseconds(round % 100);
    while (std::chrono::steady_clock::now() < moment) continue;
    EXPECT_EQ(tenon_message_revoke(message.data(), message.size(), nullptr), TENON_OK);
    (void)pool.filled(64 << 10, 0xff);  // the memory, if it is free
    std::string answer;
    ASSERT_TRUE(peer.hear(&answer));
    if (answer == "ok") {
      ++opened;
      EXPECT_EQ(peer.ask("first"), concat(value));
      EXPECT_EQ(peer.ask("last"), concat(value));
      EXPECT_EQ(peer.ask("drop"), "ok");
    } else {
      EXPECT_EQ(answer, gone(TENON_GONE_REVOKED));
    }
    EXPECT_TRUE(pool.becomes_empty());
  }
  std::cout << opened << " of 300 were opened\n";
}

TEST(TensorPool, AnArrayIsSentOnThroughThreePoolsAndOutlivesThem) {
  Peer a({"a"}), b({"b"}), c({"c"}), d({"d"});
  EXPECT_EQ(b.ask("read " + a.ask("send 1")), "ok");
  const std::string second = b.ask("pass");
  EXPECT_EQ(b.ask("drop"), "ok");
  a.kill();
  EXPECT_EQ(c.ask("read " + second), "ok") << "the message of b keeps the memory of a";
  const std::string third = c.ask("pass"), fourth = c.ask("pass");
  b.kill();
  EXPECT_EQ(d.ask("read " + third), "ok");
  c.kill();
  EXPECT_EQ(d.ask("first"), "7");
  EXPECT_EQ(d.ask("last"), "7");
  EXPECT_EQ(d.ask("read " + fourth), gone(TENON_GONE_SENDER));
}

TEST(TensorPool, WhereNoDescriptorIsLeftNobodyIsTakenForDead) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors to look at objects";
#endif
  Pool pool;
  Peer receiver({"receiver"});
  const std::vector<uint32_t> receivers{static_cast<uint32_t>(receiver.pid())};
  const Bytes message = pool.send({pool.filled(4096, 1).get()}, 2, -1, receivers);
  const Bytes foreign = bytes_of(receiver.ask("send 1"));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const uint32_t messages = pool.stats().messages;
  Outcome foreign_outcome, own_outcome;
  std::thread other([&] {  // has not read its own start yet
    (void)open(foreign, 0, &foreign_outcome);
    (void)open(message, 0, &own_outcome);
  });
  other.join();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(messages, 1U);
  EXPECT_EQ(own_outcome.status, TENON_OK) << own_outcome.message;
  EXPECT_EQ(foreign_outcome.status, TENON_ERR_SYSTEM) << foreign_outcome.message;
  EXPECT_EQ(open(foreign).size(), 1U);
  EXPECT_EQ(receiver.ask("open " + hex(message)), "ok");
}

TEST(TensorPool, AMessageWhoseTimeIsOverIsNotRevoked) {
  Pool pool;
  const Bytes tagged = pool.send({pool.filled(4096, 1).get()}, 1, 1, {}, "tag");
  const Bytes other = pool.send({pool.filled(4096, 1).get()}, 1, 1);
  EXPECT_EQ(tenon_message_is_unopened(other.data(), other.size()), 0);
  uint32_t n = 9;
  EXPECT_EQ(tenon_tensor_pool_revoke(pool.get(), "tag", &n, nullptr), TENON_OK);
  EXPECT_EQ(n, 0U);
  EXPECT_EQ(tenon_message_revoke(other.data(), other.size(), nullptr), TENON_OK);
  for (const Bytes& message : {tagged, other}) {
    Outcome outcome;
    EXPECT_TRUE(open(message, 0, &outcome).empty());
    EXPECT_EQ(answer_of(outcome), gone(TENON_GONE_EXPIRED));
  }
}

TEST(TensorPool, AMessageThatWasSentOnSaysWhyItHasEndedAfterTheEndOfItsMemory) {
  Peer owner({"owner"}), sender({"sender"});
  EXPECT_EQ(sender.ask("read " + owner.ask("send 1")), "ok");
  const std::string message = sender.ask("pass");
  owner.kill();
  EXPECT_EQ(sender.ask("drop"), "ok");
  Peer reader({"reader"});
  EXPECT_EQ(reader.ask("open " + message), "ok");
  reader.kill();
  const ReadMessage read = ReadMessage::read(bytes_of(message));
  ASSERT_EQ(read.list.size(), 1U);
  EXPECT_TRUE(comes_true([&] { return !has_open(sender.pid(), read.list[0].id); }));
  Peer late({"late"});
  EXPECT_EQ(late.ask("open " + message), gone(TENON_GONE_OPENED));
}

TEST(TensorPool, AForkedChildHasNoMessagesOfItsParent) {
  Pool pool;
  const Bytes message = pool.send_new(1 << 20, 1);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)::close(ready[1]);
    Outcome outcome;
    (void)pool.empty(1, 0, &outcome);
    char byte;
    (void)!::read(ready[0], &byte, 1);
    _exit(outcome.status == TENON_ERR_VALUE ? 0 : 1);
  }
  EXPECT_EQ(open(message).size(), 1U);
  EXPECT_TRUE(pool.becomes_empty()) << "the child keeps no block of the message";
  (void)::close(ready[1]);
  int status = -1;
  (void)waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(TensorPool, AnArrayThatAChildHasInheritedIsNotHandedOver) {
  Pool pool;
  const ArrayPtr x = pool.filled(1 << 20, 1);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)::close(ready[1]);
    char byte;
    (void)!::read(ready[0], &byte, 1);
    _exit(is_filled(x, 1) ? 0 : 1);
  }
  const std::vector<ArrayPtr> opened = open(pool.send({x.get()}));
  ASSERT_EQ(opened.size(), 1U);
  data_of(opened[0])[0] = std::byte{2};
  (void)::close(ready[1]);
  int status = -1;
  (void)waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "the child sees a write";
}

TEST(TensorPool, ItsMemoryIsReturnedWithoutFurtherCalls) {
  Pool pool(kBudget, 0);
  {
    const std::vector<ArrayPtr> opened = open(pool.send_new(6 << 20, 1));
    EXPECT_GE(pool.stats().committed_nbytes, 6U << 20);
  }
  EXPECT_TRUE(comes_true([&] { return pool.stats().committed_nbytes == 0; }));
}

TEST(TensorPool, ADroppedPoolKeepsItsMessages) {
  Peer peer({"peer"});
  std::optional<Pool> pool(std::in_place);
  const Bytes message = pool->send_new(1 << 20, 6);
  pool.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a sweep
  EXPECT_EQ(peer.ask("open " + hex(message)), "ok");
  EXPECT_EQ(peer.ask("first"), "6");
}

TEST(TensorPool, ItsMessagesAreSeenWithTheLineThatSentThem) {
  Pool pool;
  const Bytes message = pool.send_new(1 << 20, 1, 2), over = pool.send_new(4096, 1);
  MessageHead head;
  std::memcpy(&head, message.data(), sizeof head);
  const std::vector<ArrayPtr> opened = open(message, TENON_READONLY), last = open(over);
  const std::vector<SegmentReport> all = inspect();
  const auto seen = std::ranges::find(all, text_of(head.segment), &SegmentReport::id);
  ASSERT_NE(seen, all.end());
  EXPECT_EQ(seen->damage, "");
  EXPECT_STREQ(seen->kind, "tensor pool");
  ASSERT_EQ(seen->messages.size(), 1U);
  const MessageReport& report = seen->messages[0];
  EXPECT_EQ(report.nbytes, 1U << 20);
  EXPECT_EQ(report.opens_left, 1);
  EXPECT_EQ(report.left_ns, -1);
  EXPECT_EQ(report.keeper, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(report.site, "serve.py:12");
  EXPECT_FALSE(report.is_handed_over);
  EXPECT_EQ(tenon_message_revoke(message.data(), message.size(), nullptr), TENON_OK);
}

TEST(TensorPool, TheKeyIsOfThePool) {
  Pool pool, other;
  unsigned char a[32], b[32], c[32];
  const Bytes message = pool.send({});
  ASSERT_EQ(tenon_tensor_pool_key(pool.get(), a, nullptr), TENON_OK);
  ASSERT_EQ(tenon_tensor_pool_key(other.get(), b, nullptr), TENON_OK);
  ASSERT_EQ(tenon_message_key(message.data(), message.size(), c, nullptr), TENON_OK);
  EXPECT_NE(std::memcmp(a, b, 32), 0);
  EXPECT_EQ(std::memcmp(a, c, 32), 0);
  EXPECT_EQ(open(message).size(), 0U);
}

TEST(TensorPool, BytesOfOthersAreRefused) {
  Pool pool;
  const Bytes message = pool.send_new(4096, 1, 0);
  for (size_t n = 0; n < message.size(); ++n) {
    Outcome outcome;
    EXPECT_TRUE(
        open(Bytes(message.begin(), message.begin() + static_cast<ptrdiff_t>(n)), 0, &outcome).empty());
    EXPECT_EQ(outcome.status, TENON_ERR_VALUE) << n;
  }
  std::srand(1);
  for (int i = 0; i < 3000; ++i) {
    Bytes bad = message;
    if (i % 2 == 0) bad.resize(static_cast<size_t>(std::rand()) % (bad.size() + 1));
    if (!bad.empty()) bad[static_cast<size_t>(std::rand()) % bad.size()] = std::byte(std::rand());
    Outcome outcome;
    const std::vector<ArrayPtr> opened = open(bad, TENON_READONLY, &outcome);
    for (const ArrayPtr& array : opened) {
      const tenon_array_desc& desc = *tenon_array_describe(array.get());
      EXPECT_TRUE(desc.ndim != 1 || desc.nbytes <= 4096U);
    }
    EXPECT_TRUE(outcome.status == TENON_OK || !outcome.message.empty());
  }
}

TEST(TensorPool, LingeringEndsWithTheLastMessage) {
  Pool pool;
  const Bytes message = pool.send_new(4096, 1), forever = pool.send_new(4096, 1, 0);
  EXPECT_EQ(tenon_tensor_pools_linger(1'000'000), 1U);
  std::thread opener([&] { EXPECT_EQ(open(message).size(), 1U); });
  EXPECT_EQ(tenon_tensor_pools_linger(-1), 0U);
  opener.join();
}

// Oracle: a process that is killed at any store of an open has opened the message or not, and holds nothing
// afterwards. So the message is live, or has ended as opened, and all memory comes back.
TEST(TensorPoolCrash, AProcessThatIsKilledAtAnyStoreOfAnOpenLeaksNothing) {
  Pool pool;
  bool has_lived = false, has_died_live = false, has_died_opened = false;
  for (int store = 1; !has_lived; ++store) {
    ASSERT_LT(store, 500);
    const Bytes message = pool.send_new(1 << 20, 1);
    Peer peer({"peer"}, store);
    std::string answer;
    try {
      has_lived = peer.ask("open " + hex(message)) == "ok" && peer.ask("drop") == "ok";
    } catch (const std::runtime_error&) {
      has_lived = false;
    }
    peer.kill();
    Outcome outcome;
    const std::vector<ArrayPtr> opened = open(message, 0, &outcome);
    if (outcome.status == TENON_OK) {
      EXPECT_TRUE(is_filled(opened[0], 1));
      has_died_live = true;
    } else {
      EXPECT_EQ(answer_of(outcome), gone(TENON_GONE_OPENED)) << store;
      has_died_opened |= !has_lived;
    }
  }
  EXPECT_TRUE(has_died_live && has_died_opened);
  EXPECT_TRUE(pool.becomes_empty());
}

// Oracle: as long as the sender lives, it keeps the message, even if a process dies that takes it over.
TEST(TensorPoolCrash, AProcessThatIsKilledAtAnyStoreOfATakeOverEndsNoMessage) {
  Pool pool;
  bool has_lived = false;
  for (int store = 1; !has_lived; ++store) {
    ASSERT_LT(store, 500);
    const Bytes message = pool.send_new(1 << 20, 1);
    Peer keeper({"keeper"}, store);
    try {
      has_lived = keeper.ask("keep " + hex(message)) == "1";
    } catch (const std::runtime_error&) {
      has_lived = false;
    }
    keeper.kill();
    Outcome outcome;
    ASSERT_EQ(open(message, 0, &outcome).size(), 1U) << store << ": " << outcome.message;
  }
  EXPECT_TRUE(pool.becomes_empty());
}

// Blocks in use, of a segment that this process has open.
uint32_t blocks_left(const Bytes& message) {
  MessageHead head;
  std::memcpy(&head, message.data(), sizeof head);
  uint32_t n = 0;
  Segments::nudge();
  Segments::instance().visit([&](Segment& segment) {
    if (segment.header().id != head.segment) return;
    for (uint32_t i = 0; i < segment.control().used_blocks(); ++i) {
      n += look(segment.block(i).state) == BlockState::kFree ? 0 : 1;
    }
  });
  return n;
}

// Oracle: a reader keeps what it has opened, nobody opens the other message, and its memory is freed.
TEST(TensorPoolCrash, ASenderThatIsKilledAtAnyStoreOfARevokeLeavesNothing) {
  int kills = 0;
  for (bool is_inside = true; is_inside && !HasFailure();) {
    Peer sender({"sender"});
    const Bytes read = bytes_of(sender.ask("send 2")), unread = bytes_of(sender.ask("send 1"));
    std::vector<ArrayPtr> kept = open(read, TENON_READONLY);
    ASSERT_EQ(kept.size(), 1U);
    sender.say(concat("revoke ", kills + 1));
    int status = 0;
    ASSERT_EQ(waitpid(sender.pid(), &status, WUNTRACED), sender.pid());
    is_inside = WIFSTOPPED(status);
    if (is_inside) {
      ++kills;
      sender.kill();
    } else {
      (void)sender.release();
    }
    Outcome outcome;
    EXPECT_TRUE(open(unread, 0, &outcome).empty());
    const std::string answer = answer_of(outcome);
    EXPECT_TRUE(answer == gone(TENON_GONE_REVOKED) || answer == gone(TENON_GONE_SENDER)) << answer;
    EXPECT_TRUE(comes_true([&] { return blocks_left(read) == 1; }));
    EXPECT_TRUE(is_filled(kept[0], 7));
    kept.clear();
    EXPECT_TRUE(comes_true([&] { return blocks_left(read) == 0; }));
  }
  EXPECT_GT(kills, 3);
  std::cout << kills << " kills\n";
}

// Oracle: a sender that is killed at any store leaves no message that can be opened.
TEST(TensorPoolCrash, AMessageOfASenderThatIsKilledAtAnyStoreIsGone) {
  bool has_lived = false;
  for (int store = 1; !has_lived; store += 3) {
    ASSERT_LT(store, 2000);
    Peer sender({"sender"}, store);
    std::string message;
    try {
      message = sender.ask("send 1");
      has_lived = true;
    } catch (const std::runtime_error&) {
      continue;
    }
    sender.kill();
    Outcome outcome;
    EXPECT_TRUE(open(bytes_of(message), 0, &outcome).empty());
    EXPECT_EQ(answer_of(outcome), gone(TENON_GONE_SENDER));
  }
}

}  // namespace
}  // namespace tenon::impl

int main(int count, char** words) {
  return tenon::impl::run_tests_or_peer(count, words, tenon::impl::be_peer);
}
