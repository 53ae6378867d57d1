// SPDX-License-Identifier: Apache-2.0
//
// Forks, exec and limits of the system, with real processes: what a child can do with the shared arrays of
// its parent, whichever of the two ends first, and the errors if a resource is exhausted.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/channel.h"
#include "ipc/segments.h"
#include "ipc/stand_in_testing.h"
#include "tenon/engine.hpp"
#include "tenon/share.hpp"

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer would end forked children that start a thread. There are few of them, and they do not wait.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace tenon::impl {
namespace {

using namespace std::chrono_literals;

constexpr api::DType kInt = api::dtype_of<int64_t>();

tenon_status try_lease(const api::Array& x, api::Access access,
                       std::chrono::nanoseconds patience = kPatience) {
  return code_of([&] { const api::Lease lease(x, access, 0, patience); });
}
int64_t first_of(const api::Array& x) {
  const api::Lease lease(x, api::Access::kRead, 0, kPatience);
  return lease.view<const int64_t, 1>()(0);
}
void set_first(const api::Array& x, int64_t value) {
  const api::Lease lease(x, api::Access::kWrite, 0, kPatience);
  lease.view<int64_t, 1>()(0) = value;
}

// Another thread of this process has the same name as this one: so it has just started. Threads of the
// library and of the tests below first set their own name.
[[maybe_unused]] bool is_thread_starting() {
  namespace fs = std::filesystem;
  const auto name_of = [](const fs::path& task) {
    std::string name;
    std::ifstream(task / "comm") >> name;
    return name;
  };
  const fs::path self = std::to_string(gettid());
  const std::string own = name_of("/proc/self/task" / self);
  std::error_code error;  // of a thread that ends meanwhile
  for (fs::directory_iterator at("/proc/self/task", error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename() != self && name_of(at->path()) == own) return true;
  }
  return false;
}

// AddressSanitizer of g++ 12 does not take the locks of its allocator before a fork. A starting thread
// allocates, and a child that is forked at that moment would wait for such a lock for ever.
void wait_until_threads_have_started() {
#if defined(__SANITIZE_ADDRESS__)
  const auto end = std::chrono::steady_clock::now() + 1s;
  while (is_thread_starting() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(100us);
#endif
}

// Runs the body in a child, which exits with its result. A child that hangs is killed.
pid_t start(const std::function<int()>& body) {
  wait_until_threads_have_started();
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(600);
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& e) {
      (void)!::write(STDERR_FILENO, e.what(), std::string(e.what()).size());
    }
    _exit(status);
  }
  return pid;
}
int end_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
int in_child(const std::function<int()>& body) { return end_of(start(body)); }

// An event for which another process can wait.
class Gatepost {
 public:
  Gatepost() { EXPECT_EQ(pipe(ends_), 0); }
  ~Gatepost() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void pass() { EXPECT_EQ(::write(ends_[1], "", 1), 1); }
  void wait() {
    char c = 0;
    EXPECT_EQ(::read(ends_[0], &c, 1), 1);
  }

 private:
  int ends_[2];
};

// ------------------------------------------------------------------------------------------------- children

TEST(Fork, AChildUsesWhatItInherits) {
  const api::Array x = api::zeros_shared({100}, kInt);
  set_first(x, 1);
  EXPECT_EQ(in_child([&] {
              if (first_of(x) != 1) return 1;
              set_first(x, 2);
              const api::Array own = api::zeros_shared({10}, kInt);
              set_first(own, 5);
              return first_of(own) == 5 ? 0 : 2;
            }),
            0);
  EXPECT_EQ(first_of(x), 2);
}

// Allocates all remaining memory, down to single words, and limits the address space.
class Hoard {
 public:
  Hoard() {
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit now = before_;
    now.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    EXPECT_EQ(setrlimit(RLIMIT_AS, &now), 0);
    for (size_t size = 1 << 20; size >= sizeof(Block); size /= 2) {
      while (auto* const block = static_cast<Block*>(std::malloc(size))) first_ = new (block) Block{first_};
    }
  }
  Hoard(const Hoard&) = delete;
  Hoard& operator=(const Hoard&) = delete;
  ~Hoard() {
    while (first_ != nullptr) std::free(std::exchange(first_, first_->next));
    EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0);
  }

 private:
  struct Block {
    Block* next;
  };
  rlimit before_{};
  Block* first_ = nullptr;
};

// Memory that ops of the parent were to write holds no value in the child: an old value would be wrong.
TEST(Fork, OfAProcessWithoutMemoryTheChildLivesAndKnowsWhatWasUnfinished) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's memory has no such limit";
#endif
  EXPECT_EQ(in_child([] {
              (void)mallopt(M_ARENA_MAX, 1);  // the child would have those of its parent's threads besides
              const api::Array x = api::Array::zeros<int64_t>({4}), shared = api::zeros_shared({100}, kInt);
              std::vector<api::Op> ops;
              pid_t pid = -1;
              {
                const api::Lease held = x.read();
                for (int i = 0; i < 3; ++i) {
                  ops.push_back(api::push([](api::View<int64_t, 1> v) { v(0) += 1; }, api::write(x)));
                }
                auto hoard = std::make_unique<Hoard>();
                pid = fork();
                hoard.reset();
                if (pid == 0) {
                  if (code_of([&] { (void)first_of(x); }) != TENON_ERR_OP) _exit(1);
                  if (code_of([&] { (void)ops[0].wait(); }) != TENON_ERR_OP) _exit(2);
                  // It has all of the shared memory, or none.
                  const tenon_status leased = try_lease(shared, api::Access::kWrite);
                  _exit(leased == TENON_OK || leased == TENON_ERR_LEASE_CONFLICT ? 0 : 3);
                }
              }
              if (pid < 0) return 10;
              for (const api::Op& op : ops) op.wait();
              if (first_of(x) != 3 || try_lease(shared, api::Access::kWrite) != TENON_OK) return 11;
              return end_of(pid);
            }),
            0);
}

TEST(Fork, AParentsLeaseIsNotTheChilds) {
  const api::Array x = api::zeros_shared({100}, kInt);
  api::Lease lease(x, api::Access::kWrite, 0, kPatience);
  EXPECT_EQ(in_child([&] {
              if (try_lease(x, api::Access::kRead, 1ms) != TENON_ERR_TIMEOUT) return 1;
              return 0;
            }),
            0);
  lease.view<int64_t, 1>()(0) = 3;
  lease.release();
  EXPECT_EQ(first_of(x), 3) << "and the child has not given it back";
}

TEST(Fork, ALeaseOfAThreadThatIsNotThereIsNotTheChilds) {
  const api::Array x = api::zeros_shared({100}, kInt);
  std::atomic<bool> is_held{false}, may_end{false};
  std::thread holder([&] {
    pthread_setname_np(pthread_self(), "holder");
    const api::Lease lease(x, api::Access::kWrite, 0, kPatience);
    is_held = true;
    while (!may_end) std::this_thread::yield();
  });
  while (!is_held) std::this_thread::yield();
  EXPECT_EQ(in_child([&] { return try_lease(x, api::Access::kRead, 1ms) == TENON_ERR_TIMEOUT ? 0 : 1; }), 0);
  may_end = true;
  holder.join();
  EXPECT_EQ(in_child([&] { return try_lease(x, api::Access::kWrite) == TENON_OK ? 0 : 1; }), 0);
}

TEST(Fork, AChildThatDiesWritingIsTold) {
  const api::Array x = api::zeros_shared({100}, kInt);
  EXPECT_EQ(in_child([&]() -> int {
              const api::Lease lease(x, api::Access::kWrite, 0, kPatience);
              _exit(7);
            }),
            7);
  EXPECT_EQ(try_lease(x, api::Access::kRead), TENON_ERR_OWNER_DIED);
  EXPECT_EQ(try_lease(x, api::Access::kRead), TENON_ERR_OWNER_DIED);
  tenon_array_clear_error(x.get());
  EXPECT_EQ(try_lease(x, api::Access::kRead), TENON_OK);
}

TEST(Fork, AProgramThatFollowsHasNothing) {
  const api::Array x = api::zeros_shared({100}, kInt);
  Gatepost held, over;
  const pid_t pid = start([&]() -> int {
    const api::Lease lease(x, api::Access::kWrite, 0, kPatience);
    execl("/bin/sleep", "sleep", "60", nullptr);
    return 1;
  });
  // The kernel unmaps it when the new program begins.
  EXPECT_TRUE(comes_true([&] { return try_lease(x, api::Access::kRead, 1ms) == TENON_ERR_OWNER_DIED; }));
  EXPECT_EQ(kill(pid, 0), 0) << "it lives, as another program";
  kill(pid, SIGKILL);
  EXPECT_EQ(end_of(pid), 1000 + SIGKILL);
}

TEST(Fork, TheParentMayEndFirst) {
  int result[2];
  ASSERT_EQ(pipe(result), 0);
  Gatepost parent_ended;
  // The parent is a child of the test, so that the test can wait for both.
  EXPECT_EQ(in_child([&] {
              const api::Array x = api::zeros_shared({100}, kInt);
              set_first(x, 11);
              Gatepost is_there;
              const pid_t grandchild = fork();
              if (grandchild == 0) {
                alarm(600);
                is_there.pass();
                parent_ended.wait();
                bool is_good = first_of(x) == 11;
                set_first(x, 12);
                const std::vector<std::byte> handle = api::send(x);
                is_good &= first_of(api::open(handle)) == 12;
                is_good &= first_of(api::zeros_shared({100}, kInt)) == 0;
                (void)!::write(result[1], is_good ? "y" : "n", 1);
                _exit(0);
              }
              is_there.wait();
              return 0;
            }),
            0);
  parent_ended.pass();
  close(result[1]);
  char answer = '?';
  EXPECT_EQ(::read(result[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  close(result[0]);
}

TEST(Fork, AChildKeepsMemoryThatTheParentGivesBack) {
  api::Array x = api::zeros_shared({1000}, kInt);
  set_first(x, 21);
  Gatepost dropped;
  const pid_t pid = start([&] {
    dropped.wait();
    return first_of(x) == 21 ? 0 : 1;
  });
  x = {};
  for (int i = 0; i < 100; ++i) {  // would take the memory of x
    const api::Array other = api::zeros_shared({1000}, kInt);
    set_first(other, 99);
  }
  dropped.pass();
  EXPECT_EQ(end_of(pid), 0);
}

TEST(Fork, AChildOfAChildHasAPlaceOfItsOwn) {
  const api::Array x = api::zeros_shared({100}, kInt);
  EXPECT_EQ(in_child([&] {
              return in_child([&] {
                set_first(x, 31);
                return in_child([&] { return first_of(x) == 31 ? 0 : 1; });
              });
            }),
            0);
  EXPECT_EQ(first_of(x), 31);
}

// The ops of the parent fail in the child, and release arrays there of which they had the last reference.
TEST(Fork, OpsThatWereUnfinishedLetGoOfSharedArraysInTheChild) {
  const api::Array blocked = api::zeros_shared({10}, kInt);
  api::Array x = api::zeros_shared({100}, kInt);
  auto lease = std::make_unique<api::Lease>(blocked, api::Access::kWrite, 0, kPatience);
  api::Op op = api::push([kept = x](api::View<int64_t, 1> out) { out(0) = 1; }, api::write(blocked));
  x = {};
  EXPECT_EQ(in_child([&] { return first_of(api::zeros_shared({100}, kInt)) == 0 ? 0 : 1; }), 0);
  lease.reset();
  op.wait();
  EXPECT_EQ(first_of(blocked), 1);
}

// Places that were reserved for children that never took them are freed in the end.
TEST(Fork, ManyChildrenOneAfterTheOtherLeaveNoPlaceTaken) {
  const api::Array x = api::zeros_shared({100}, kInt);
  for (uint32_t i = 0; i < 2 * kParticipants; ++i) {
    ASSERT_EQ(in_child([&] {
                set_first(x, i);
                return 0;
              }),
              0);
  }
  EXPECT_EQ(first_of(x), 2 * kParticipants - 1);
}

// All places are taken, so that the child gets none.
TEST(Fork, AChildWithoutAPlaceLeavesTheItemsOfAChannelToItsParent) {
  const tenon_field field{"x", {TENON_INT, 64, 1}, 0, nullptr};
  const Ref<Channel> channel = Channel::create({&field, 1}, {3}, {});
  Ref<Item> loan = channel->loan(Deadline(0), nullptr), dropped = channel->loan(Deadline(0), nullptr);
  Segment& segment = Segments::instance().writable_segment_of(channel->memory());
  struct Other {
    std::unique_ptr<MutexOwner> mutex_owner = std::make_unique<MutexOwner>();
    std::unique_ptr<Segment> segment;
  };
  std::vector<Other> others;
  while (others.size() + 1 < kParticipants) {
    os::File file(::open(concat("/proc/self/fd/", segment.file().fd()).c_str(), O_RDWR | O_CLOEXEC));
    Other& other = others.emplace_back();
    other.segment = Segment::open(std::move(file), true, *other.mutex_owner);
  }
  const auto fails = [](auto attempt) {
    try {
      attempt();
      return false;
    } catch (const Error&) {
      return true;
    }
  };
  EXPECT_EQ(in_child([&] {
              if (segment.participant().index() != Participant::kNone) return 1;
              if (!fails([&] { channel->send(*loan); })) return 2;
              if (!fails([&] { (void)channel->loan(Deadline(0), nullptr); })) return 3;
              if (!fails([&] { (void)channel->receive(Deadline(0), nullptr); })) return 4;
              loan = {};
              dropped = {};
              return channel->statistics().in_use == 2 ? 0 : 5;
            }),
            0);
  EXPECT_EQ(channel->statistics().in_use, 2U);
  dropped = {};
  channel->send(*loan);
  EXPECT_EQ(channel->receive(Deadline(0), nullptr)->sequence(), 1U);
  EXPECT_EQ(channel->statistics().in_use, 0U);
}

TEST(Fork, AnAbandonedPlaceIsFreeAgain) {
  StandIn owner{2}, other{owner};
  const uint32_t block = owner.take(64);
  owner.segment().lock_messages();
  owner.segment().before_fork();  // and no child comes
  owner.segment().after_fork();
  const Control& control = owner.segment().control();
  uint32_t place = 0;
  while (look(control.place(place).state) != PlaceState::kReserved) ++place;
  EXPECT_TRUE(has_bit(control.block(block).users, place));
  reap_all(other.segment().control());
  EXPECT_EQ(look(control.place(place).state), PlaceState::kReserved) << "it may still come";
  control.place(place).since_ns -= 11'000'000'000;
  reap_all(other.segment().control());
  EXPECT_EQ(look(control.place(place).state), PlaceState::kFree);
  EXPECT_FALSE(has_bit(control.block(block).users, place));
}

TEST(Fork, ForksAndNewArraysAtTheSameTimeNeverWaitForEachOther) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer's forked children of several threads can have none";
#endif
  std::atomic<bool> is_over{false};
  std::atomic<int> made{0};
  std::vector<std::thread> makers;
  for (int i = 0; i < 2; ++i) {
    makers.emplace_back([&] {
      pthread_setname_np(pthread_self(), "maker");
      while (!is_over) {
        const api::Array a = api::zeros_shared({10}, kInt);
        set_first(a, 1);
        ++made;
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(in_child([&] { return first_of(api::zeros_shared({10}, kInt)) == 0 ? 0 : 1; }), 0) << i;
  }
  is_over = true;
  for (std::thread& maker : makers) maker.join();
  EXPECT_GT(made, 0);
}

TEST(Fork, AStoppedProcessIsNotTakenForADeadOne) {
  const api::Array x = api::zeros_shared({100}, kInt);
  Gatepost held;
  const pid_t pid = start([&]() -> int {
    const api::Lease lease(x, api::Access::kWrite, 0, kPatience);
    held.pass();
    while (true) pause();
  });
  held.wait();
  kill(pid, SIGSTOP);
  EXPECT_EQ(try_lease(x, api::Access::kRead, 100ms), TENON_ERR_TIMEOUT);
  kill(pid, SIGKILL);
  EXPECT_EQ(try_lease(x, api::Access::kRead), TENON_ERR_OWNER_DIED) << "also while it is a zombie";
  EXPECT_EQ(end_of(pid), 1000 + SIGKILL);
}

// -------------------------------------------------------------------------------------------------- handles

TEST(Handles, KeepArraysThatLieAloneToo) {
  api::SharedOptions options;
  options.name = concat("fork_test.", getpid());
  api::Array x = api::zeros_shared({10}, kInt, options);
  set_first(x, 41);
  const std::vector<std::byte> handle = api::send(x);
  x = {};
  for (int i = 0; i < 3; ++i) (void)api::zeros_shared({10}, kInt);  // looks for what is not used any more
  x = api::open(handle);
  EXPECT_EQ(first_of(x), 41);
  x = {};
  EXPECT_TRUE(comes_true([&] {
    (void)api::zeros_shared({10}, kInt);
    return code_of([&] { (void)api::open(handle); }) == TENON_ERR_NOT_FOUND;
  }));
}

TEST(Handles, OfTheDeadSayThatNobodyHasTheArray) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer's forked children of several threads can have none";
#endif
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(in_child([&] {
              const api::Array x = api::zeros_shared({10}, kInt);
              const std::vector<std::byte> handle = api::send(x);
              return ::write(ends[1], handle.data(), handle.size()) > 0 ? 0 : 1;
            }),
            0);
  std::vector<std::byte> handle(TENON_MAX_HANDLE_NBYTES);
  const ssize_t n = ::read(ends[0], handle.data(), handle.size());
  ASSERT_GT(n, 0);
  handle.resize(static_cast<size_t>(n));
  std::string message;
  EXPECT_EQ(code_of([&] { (void)api::open(handle); }, &message), TENON_ERR_NOT_FOUND);
  EXPECT_NE(message.find("no process has it any more"), std::string::npos) << message;
  close(ends[0]);
  close(ends[1]);
}

// --------------------------------------------------------------------------------------------------- limits

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose addresses are few
TEST(Limits, MemoryThatIsNotThereIsAnErrorWithNumbersAtCreation) {
  for (const int shift : {40, 45, 47, 50, 59}) {
    std::string message;
    EXPECT_EQ(
        code_of([&] { (void)api::empty_shared({int64_t{1} << shift}, api::dtype_of<int8_t>()); }, &message),
        TENON_ERR_NO_MEMORY)
        << shift;
    EXPECT_NE(message.find(std::to_string(uint64_t{1} << shift)), std::string::npos) << message;
  }
  std::string message;
  (void)code_of([&] { (void)api::empty_shared({int64_t{1} << 45}, api::dtype_of<int8_t>()); }, &message);
  EXPECT_NE(message.find(" MiB "), std::string::npos) << "what there is: " << message;
  set_first(api::zeros_shared({10}, kInt), 1);
}

#endif

TEST(Limits, WithoutDescriptorsItSaysHowManyThereMayBe) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors to look at objects";
#endif
  EXPECT_EQ(in_child([] {
              // No descriptor below the last of these is free, as the kernel takes the lowest free number:
              // stand-ins of other tests have descriptors open that are never closed.
              std::vector<int> others;
              while (others.size() < 8) others.push_back(dup(STDERR_FILENO));
              const auto most = static_cast<rlim_t>(others.back()) + 1;
              const rlimit few{most, most};
              setrlimit(RLIMIT_NOFILE, &few);
              for (const int fd : others) close(fd);
              std::vector<api::Array> arrays;
              std::string message;
              tenon_status status = TENON_OK;
              for (int i = 0; i < 20 && status == TENON_OK; ++i) {
                api::SharedOptions options;
                options.name = concat("fork_test.", getpid(), ".", i);
                status = code_of([&] { arrays.push_back(api::zeros_shared({10}, kInt, options)); }, &message);
              }
              if (status != TENON_ERR_SYSTEM) return 1;
              if (message.find(std::to_string(most)) == std::string::npos &&
                  message.find("Too many open files") == std::string::npos)
                return 2;
              arrays.clear();
              Segments::nudge();
              return comes_true([] {
                return code_of([] {
                         api::SharedOptions options;
                         options.name = concat("fork_test.", getpid(), ".last");
                         (void)api::zeros_shared({10}, kInt, options);
                       }) == TENON_OK;
              })
                         ? 0
                         : 3;
            }),
            0);
}

TEST(Limits, WithoutDescriptorsAHandleCannotBeOpenedAndNothingIsLost) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors to look at objects";
#endif
  const api::Array x = api::zeros_shared({10}, kInt);
  const std::vector<std::byte> handle = api::send(x);
  EXPECT_EQ(in_child([&] {
              execl("/proc/self/exe", "ipc_test", "--gtest_filter=none", nullptr);
              return 1;
            }),
            0)
      << "this program can be started anew";
  EXPECT_EQ(in_child([&] {
              const rlimit none{0, 0};
              setrlimit(RLIMIT_NOFILE, &none);
              const tenon_status status = code_of([] { (void)api::attach("nobody.is.here"); });
              return status == TENON_ERR_SYSTEM ? 0 : 1;
            }),
            0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Limits, WithFewAddressesAPoolIsSmallerOrItIsAnError) {
  EXPECT_EQ(in_child([] {
              uint64_t pages = 0;  // that it has already, the pools of other tests among them
              std::ifstream("/proc/self/statm") >> pages;
              const uint64_t most = pages * os::page_nbytes() + (uint64_t{2} << 30);
              const rlimit some{most, most};
              setrlimit(RLIMIT_AS, &some);
              api::Array x = api::zeros_shared({10}, kInt);
              set_first(x, 1);
              std::string message;
              const tenon_status status =
                  code_of([&] { (void)api::zeros_shared({int64_t{1} << 29}, kInt); }, &message);
              if (status != TENON_ERR_NO_MEMORY) return 1;
              if (message.find("addresses") == std::string::npos) return 2;
              return first_of(x) == 1 ? 0 : 3;
            }),
            0);
}
#endif

}  // namespace
}  // namespace tenon::impl
