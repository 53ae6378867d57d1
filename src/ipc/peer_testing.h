// SPDX-License-Identifier: Apache-2.0
//
// Other processes of a test: this program, started anew with words that say what it is to do. They read lines
// that the test writes, and write lines that it reads.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tenon::impl {

// Lines over a pair of files. A process that is silent for so long hangs.
class Lines {
 public:
  static constexpr int kWatchdogMs = 600'000;

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
      if (poll(&file, 1, kWatchdogMs) == 0) throw std::runtime_error("the other process hangs");
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
  // Runs this program with the words behind "--peer". crash_at: killed at its store number so and so; 0:
  // never.
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
  // All that it says until its end.
  std::vector<std::string> listen() {
    std::vector<std::string> all;
    for (std::string line; hear(&line);) all.push_back(line);
    return all;
  }
  // Waits for its end; how it has ended.
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

 private:
  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
  Lines lines_{-1, -1};
};

// In main(): whether this process is a peer; then its words. It ends with the test.
inline bool is_peer(int count, char** words, std::vector<std::string>* told) {
  if (count < 3 || std::string(words[1]) != "--peer") return false;
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  told->assign(words + 2, words + count);
  return true;
}

}  // namespace tenon::impl
