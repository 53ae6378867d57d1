// SPDX-License-Identifier: Apache-2.0
//
// What the tests of shared arrays on a device have in common. The other processes are the test program,
// started anew; each side has one array and does what single lines ask for.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/device.h"
#include "fake_cuda.h"
#include "ipc/peer_testing.h"
#include "ipc/segments.h"
#include "tenon/dlpack.h"
#include "tenon/engine.hpp"
#include "tenon/share.hpp"  // last: inside, some of its names are others

namespace tenon::impl {

using namespace std::chrono_literals;
using device::Device;
using device::StreamKind;

constexpr int64_t kN = 3000;
constexpr tenon_device kCuda{TENON_CUDA, 0};
constexpr api::DType kInt = api::dtype_of<int32_t>();

template <class... Parameters, class... Arguments>
inline int on_device(int (*function)(Parameters...), Arguments... arguments) {
  const Device::Current current(Device::of(kCuda));
  return function(arguments...);
}

// A kernel that writes one value to all elements.
struct Store {
  uint64_t address;
  int32_t value;

  static int run(void* argument) {
    const std::unique_ptr<Store> self(static_cast<Store*>(argument));
    const std::vector<int32_t> all(kN, self->value);
    return fake_cuda_write(self->address, all.data(), kN * 4);
  }
};

inline api::Array make(const std::string& name = "", int64_t n = kN, tenon_device device = kCuda) {
  api::SharedOptions options;
  options.name = name;
  options.device = device;
  return api::zeros_shared({n}, kInt, options);
}

// Waits until the fake driver counts none of them: the process frees a moment later what it does not use.
inline bool ends(const char* what) {
  return comes_true([&] { return fake_cuda_count(what) == 0; });
}

// An array that this process drops in exit(), after the end of the driver.
inline api::Array* dropped_late = nullptr;

// One process of a test.
class Side {
 public:
  // "ok", a value, or "error STATUS: text".
  std::string answer(const std::string& line) {
    try {
      std::istringstream words(line);
      std::string verb, what;
      words >> verb >> what;
      return act(verb, what);
    } catch (const api::Error& e) {
      return concat("error ", e.code(), ": ", e.what());
    }
  }

  void keep(api::Array array) { a_ = std::move(array); }

 private:
  std::string act(const std::string& verb, const std::string& what) {
    if (verb == "make") a_ = make(what);
    if (verb == "open") a_ = api::open(bytes_of(what));
    if (verb == "attach") a_ = api::attach(what);
    if (verb == "attach-readonly") a_ = api::attach(what, true);
    if (verb == "send") return hex(api::send(a_));
    if (verb == "device") return a_.device().name();
    if (verb == "drop") a_ = {};
    if (verb == "fill") a_.fill(int32_t{std::stoi(what)});
    if (verb == "value") return value();
    if (verb == "clear-error") a_.clear_error();
    // A lease that does not wait, and one that does.
    if (verb == "try") lease_.emplace(a_, what == "w" ? api::Access::kWrite : api::Access::kRead, 0, 0ns);
    if (verb == "lease")
      lease_.emplace(a_, what == "w" ? api::Access::kWrite : api::Access::kRead, 0, kPatience);
    if (verb == "release") lease_.reset();
    if (verb == "count") return std::to_string(fake_cuda_count(what.c_str()));
    if (verb == "none") return ends(what.c_str()) ? "ok" : "some are left";
    if (verb == "export") export_();
    if (verb == "launch") launch(std::stoi(what));
    if (verb == "unexport") tensor_->deleter(tensor_);
    if (verb == "resume") (void)on_device(fake_cuda_resume, stream());
    // Calls of the driver: they wait, one of them waits, none waits any more.
    if (verb == "hold") (void)fake_cuda_hold_calls(what.c_str());
    if (verb == "await")
      return comes_true([&] { return fake_cuda_count(what.c_str()) != 0; }) ? "ok" : "none";
    if (verb == "let-go") fake_cuda_release_calls();
    if (verb == "let-go-in-exit") {
      std::thread([] {
        std::this_thread::sleep_for(200ms);
        fake_cuda_release_calls();
      }).detach();
    }
    if (verb == "drop-late") dropped_late = new api::Array(std::move(a_));
    return "ok";
  }

  // Of all elements, if they are the same.
  std::string value() {
    const api::Array host = a_.to(api::Device());
    const auto view = host.as<const int32_t, 1>();
    for (int64_t i = 0; i < kN; ++i) {
      if (view(i) != view(0)) return concat("torn: ", view(0), " and ", view(i));
    }
    return std::to_string(view(0));
  }
  void* stream() {
    if (stream_ == nullptr) {
      const Device::Current current(Device::of(kCuda));
      (void)Device::of(kCuda).driver().create_stream(&stream_);
    }
    return stream_;
  }
  void export_() {
    tenon_error error = TENON_ERROR_INIT;
    const auto number = static_cast<int64_t>(reinterpret_cast<intptr_t>(stream()));
    const tenon_status status = tenon_array_to_dlpack_on(a_.get(), 0, number, nullptr, &tensor_, &error);
    if (status != TENON_OK) throw api::Error(status, error.message);
  }
  // The kernel does not run before "resume".
  void launch(int32_t value) {
    (void)on_device(fake_cuda_hold, stream());
    (void)on_device(
        fake_cuda_launch, stream(), Store::run,
        static_cast<void*>(new Store{reinterpret_cast<uint64_t>(tensor_->dl_tensor.data), value}));
  }

  api::Array a_;
  std::optional<api::Lease> lease_;
  DLManagedTensorVersioned* tensor_ = nullptr;
  void* stream_ = nullptr;
};

inline int be_peer(const std::vector<std::string>&) {
  (void)std::atexit([] {  // registered before the driver is opened
    if (dropped_late == nullptr) return;
    *dropped_late = {};
    std::this_thread::sleep_for(500ms);  // as long as a fault takes to show itself
  });
  Lines lines(STDIN_FILENO, STDOUT_FILENO);
  Side side, second;
  constexpr std::string_view kSecond = "second ";
  for (std::string line; lines.hear(&line);) {
    const bool is_second = line.starts_with(kSecond);
    lines.say(is_second ? second.answer(line.substr(kSecond.size())) : side.answer(line));
  }
  return 0;
}

// The answer is an error of this status, and contains the text.
inline testing::AssertionResult fails(tenon_status status, const std::string& answer,
                                      const std::string& text) {
  const bool is_so = answer.starts_with(concat("error ", status, ": "));
  if (is_so && answer.find(text) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << answer << "', and not error " << status << ": ..." << text;
}
#define EXPECT_FAILS(...) EXPECT_TRUE(fails(__VA_ARGS__))

inline size_t open_here() {
  size_t n = 0;
  Segments::instance().visit([&n](Segment& segment) { n += segment.is_on_device() ? 1 : 0; });
  return n;
}

// The segments on a device of which this process is a user, for others.
inline size_t used_here() {
  size_t n = 0;
  Segments::instance().visit([&n](Segment& segment) {
    const bool is_user = has_bit(segment.block(0).users, segment.participant().index());
    n += segment.is_on_device() && is_user ? 1 : 0;
  });
  return n;
}

// The status of a forked child that runs the body.
inline int status_of_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  return status;
}

// The settings of the fake driver for processes that are started while this lives.
class DriverOfPeers {
 public:
  explicit DriverOfPeers(const char* settings) { setenv("TENON_FAKE_CUDA", settings, 1); }
  DriverOfPeers(const DriverOfPeers&) = delete;
  DriverOfPeers& operator=(const DriverOfPeers&) = delete;
  ~DriverOfPeers() { setenv("TENON_FAKE_CUDA", own_.c_str(), 1); }

 private:
  const std::string own_ = std::getenv("TENON_FAKE_CUDA");
};

class SharedOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda_fail(nullptr, 0, 0);
    fake_cuda_reset_counts();
  }
  // Nothing is left in this process, and the driver has found no error in it.
  void TearDown() override {
    fake_cuda_fail(nullptr, 0, 0);
    fake_cuda_release_calls();
    (void)here.answer("release");
    (void)here.answer("drop");
    EXPECT_TRUE(ends("live.device"));
    EXPECT_TRUE(ends("live.ipc"));
    EXPECT_TRUE(comes_true([] { return open_here() == 0; }));
    char problem[256] = "";
    fake_cuda_last_problem(problem, sizeof problem);
    EXPECT_EQ(fake_cuda_count("problems"), 0u) << problem;
  }
  std::string ask(const std::string& line) { return here.answer(line); }
  // Another process that has the array of this one.
  std::unique_ptr<Peer> importer() {
    auto peer = std::make_unique<Peer>(std::vector<std::string>{"side"});
    EXPECT_EQ("ok", peer->ask("open " + ask("send")));
    return peer;
  }
  // Another process whose array this one has.
  std::unique_ptr<Peer> exporter() {
    auto peer = std::make_unique<Peer>(std::vector<std::string>{"side"});
    EXPECT_EQ("ok", peer->ask("make"));
    EXPECT_EQ("ok", ask("open " + peer->ask("send")));
    return peer;
  }

  Side here;
};

}  // namespace tenon::impl
