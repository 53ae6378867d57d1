// SPDX-License-Identifier: Apache-2.0
//
// Other processes of a test: the test program itself, started again with words that say what it must do. They
// read lines that the test writes, and write lines that the test reads. And what tests with such processes
// have in common.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/comes_true_testing.h"
#include "base/error.h"
#include "tenon/share.hpp"  // last: inside, some of its names are others

namespace tenon::impl {

namespace api = tenon::api0;  // as users see it

inline std::string new_name() {
  static int n = 0;
  return concat("ipc_test.", getpid(), ".", ++n);
}

inline api::Array part(const api::Array& x, int64_t begin, int64_t end) {
  const api::Index items[] = {api::slice(begin, end)};
  return x.index(items);
}

inline tenon_status code_of(const std::function<void()>& attempt, std::string* message = nullptr) {
  try {
    attempt();
    return TENON_OK;
  } catch (const api::Error& e) {
    if (message != nullptr) *message = e.what();
    return e.code();
  }
}

// Bytes, such as a handle, as one word of a line.
inline std::string hex(const std::vector<std::byte>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[static_cast<unsigned>(b) >> 4];
    text += kDigits[static_cast<unsigned>(b) & 15];
  }
  return text;
}
inline std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(std::byte(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// Lines over a pair of files.
class Lines {
 public:
  Lines(int in, int out) noexcept : in_(in), out_(out) {}

  void say(const std::string& line) {
    const std::string text = line + '\n';
    if (::write(out_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      throw std::runtime_error("no process listens");
    }
  }
  // False: there are no more.
  bool hear(std::string* line) {
    while (true) {
      if (const size_t end = read_.find('\n'); end != std::string::npos) {
        *line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return true;
      }
      pollfd file{in_, POLLIN, 0};
      if (poll(&file, 1, std::chrono::milliseconds(kPatience).count()) == 0)
        throw std::runtime_error("the other process hangs");
      char some[4096];
      const ssize_t n = ::read(in_, some, sizeof some);
      if (n <= 0) return false;
      read_.append(some, static_cast<size_t>(n));
    }
  }

 private:
  int in_, out_;
  std::string read_;
};

class Peer {
 public:
  // Runs this program with the words after "--peer". crash_at: it is killed at its n-th store; 0: never.
  explicit Peer(const std::vector<std::string>& words, int crash_at = 0) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    std::vector<std::string> texts{"test", "--peer"};
    texts.insert(texts.end(), words.begin(), words.end());
    std::vector<char*> arguments, environment;
    for (std::string& text : texts) arguments.push_back(text.data());
    arguments.push_back(nullptr);
    std::string variable = concat("TENON_CRASH_AT=", crash_at);
    for (char** v = environ; *v != nullptr; ++v) environment.push_back(*v);
    if (crash_at != 0) environment.push_back(variable.data());
    environment.push_back(nullptr);
    pid_ = vfork();
    if (pid_ == 0) {
      (void)dup2(to[0], STDIN_FILENO);
      (void)dup2(from[1], STDOUT_FILENO);
      execve("/proc/self/exe", arguments.data(), environment.data());
      _exit(8);
    }
    (void)::close(to[0]);
    (void)::close(from[1]);
    to_ = to[1];
    from_ = from[0];
    lines_ = Lines(from_, to_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() { kill(); }

  pid_t pid() const noexcept { return pid_; }
  void say(const std::string& line) { lines_.say(line); }
  bool hear(std::string* line) { return lines_.hear(line); }
  std::string ask(const std::string& line) {
    say(line);
    std::string answer;
    if (!hear(&answer)) throw std::runtime_error(concat("process ", pid_, " has ended before '", line, "'"));
    return answer;
  }
  // All lines until its end.
  std::vector<std::string> listen() {
    std::vector<std::string> all;
    for (std::string line; hear(&line);) all.push_back(line);
    return all;
  }
  // Waits for its end. Returns its status.
  int end() {
    int status = -1;
    if (pid_ > 0) {
      (void)::close(to_);
      (void)waitpid(pid_, &status, 0);
      (void)::close(from_);
    }
    pid_ = 0;
    return status;
  }
  void kill() {
    if (pid_ > 0) (void)::kill(pid_, SIGKILL);
    (void)end();
  }
  // The caller must kill it and wait for its end.
  pid_t release() {
    (void)::close(to_);
    (void)::close(from_);
    return std::exchange(pid_, 0);
  }

 private:
  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
  Lines lines_{-1, -1};
};

// The main() of a test program: runs the tests, or, in a peer, be_peer(its words). A peer is killed at the
// end of the test program.
inline int run_tests_or_peer(int count, char** words, int (*be_peer)(const std::vector<std::string>& words)) {
  if (count >= 3 && std::string(words[1]) == "--peer") {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    return be_peer({words + 2, words + count});
  }
  testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}

}  // namespace tenon::impl
