// SPDX-License-Identifier: Apache-2.0
#include "ipc/private_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tenon::impl {
namespace {

const size_t kPageNbytes = os::page_nbytes();

// A memory file whose pages after the first are lent. The shared bytes of page i are i.
struct Lent {
  explicit Lent(size_t pages)
      : nbytes(pages * kPageNbytes),
        file(os::create_memory("tenon-private-pages", kPageNbytes + nbytes, false)),
        shared(os::map(file, kPageNbytes, nbytes, true, kPageNbytes)) {
    for (size_t i = 0; i < pages; ++i) write(i, static_cast<int>(i));
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { os::unmap(shared, nbytes); }

  void write(size_t page, int value) const {
    std::fill_n(shared + page * kPageNbytes, kPageNbytes, static_cast<std::byte>(value));
  }

  const size_t nbytes;
  os::File file;
  std::byte* const shared;
  PrivatePages pages{file, kPageNbytes, nbytes};
};

int value_at(const std::byte* bytes, size_t page) { return static_cast<int>(bytes[page * kPageNbytes]); }
void set_at(std::byte* bytes, size_t page, int value) {
  bytes[page * kPageNbytes] = static_cast<std::byte>(value);
}
size_t count_written(const std::byte* bytes, size_t pages) {
  size_t n = 0;
  for (size_t i = 0; i < pages; ++i) n += os::is_written(bytes + i * kPageNbytes) ? 1 : 0;
  return n;
}

// The result of the body in a child. A child that hangs is killed.
int in_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(600);
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
bool limit(int resource, rlim_t most) {
  const rlimit limited{most, most};
  return setrlimit(static_cast<__rlimit_resource>(resource), &limited) == 0;
}

TEST(PrivatePages, AWriteShowsNowhereElse) {
  Lent lent(4);
  std::byte* const own = lent.pages.open(0, lent.nbytes);
  ASSERT_NE(own, nullptr);
  set_at(own, 1, 91);
  EXPECT_EQ(value_at(lent.shared, 1), 1);
  EXPECT_EQ(value_at(own, 1), 91);
  EXPECT_EQ(value_at(own, 2), 2);
  lent.write(2, 82);  // a page that was not written is the shared one
  EXPECT_EQ(value_at(own, 2), 82);
  lent.pages.end(own);
}

TEST(PrivatePages, ARangeThatIsOpenedAgainHasTheBytesOfThen) {
  constexpr size_t kPages = 1500;  // more than are looked at in one call
  Lent lent(kPages);
  std::byte* first = nullptr;
  for (const size_t step : {1, 7, 40, 700}) {  // in one run, in runs with small gaps, and with large ones
    std::byte* const own = lent.pages.open(0, lent.nbytes);
    if (first == nullptr) first = own;
    ASSERT_EQ(own, first) << "a mapping is kept";
    for (size_t i = 0; i < kPages; i += step) set_at(own, i, 99);
    ASSERT_EQ(count_written(own, kPages), (kPages + step - 1) / step);
    lent.pages.end(own);
    EXPECT_EQ(count_written(own, kPages), 0U) << "the memory of written pages is given back";
    for (size_t i = 0; i < kPages; ++i) lent.write(i, static_cast<int>(i + step));
    ASSERT_EQ(lent.pages.open(0, lent.nbytes), own);
    for (size_t i = 0; i < kPages; ++i) ASSERT_EQ(value_at(own, i), static_cast<int>((i + step) % 256));
    lent.pages.end(own);
  }
}

TEST(PrivatePages, PagesThatAreReadAreKeptForTheNextUse) {
  Lent lent(64);
  std::byte* const own = lent.pages.open(0, lent.nbytes);
  EXPECT_EQ(value_at(own, 40), 40);
  set_at(own, 3, 9);
  lent.pages.end(own);
  const auto entry_of = [&](size_t page) {
    const os::File map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    uint64_t entry = 0;
    const auto at = (reinterpret_cast<uintptr_t>(own) / kPageNbytes + page) * sizeof entry;
    EXPECT_TRUE(os::read_at(map, at, &entry, sizeof entry));
    return entry;
  };
  EXPECT_NE(entry_of(40) >> 63, 0U);
  EXPECT_EQ(entry_of(3) >> 63, 0U);
}

TEST(PrivatePages, RangesOfOnePageAreOpenAtOnce) {
  Lent lent(8);
  const size_t half = kPageNbytes / 2;
  std::vector<std::byte*> open;
  for (size_t i = 0; i < PrivatePages::kMostMappings; ++i) {
    open.push_back(lent.pages.open(kPageNbytes + half, kPageNbytes));  // of the pages 1 and 2
    ASSERT_NE(open.back(), nullptr);
    open.back()[0] = static_cast<std::byte>(100 + i);
  }
  EXPECT_EQ(lent.pages.open(2 * kPageNbytes, 1), nullptr);
  std::byte* const beside = lent.pages.open(3 * kPageNbytes, 1);
  EXPECT_NE(beside, nullptr);
  for (size_t i = 0; i < open.size(); ++i) EXPECT_EQ(open[i][0], static_cast<std::byte>(100 + i));
  EXPECT_EQ(lent.shared[kPageNbytes + half], std::byte{1});
  lent.pages.end(open[2]);
  std::byte* const again = lent.pages.open(2 * kPageNbytes, 1);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(value_at(again, 0), 2);
  open[2] = again;
  for (std::byte* const bytes : open) lent.pages.end(bytes);
  lent.pages.end(beside);
}

TEST(PrivatePages, WhatDoesNotLieInThePagesIsRefused) {
  Lent lent(2);
  EXPECT_EQ(lent.pages.open(0, 0), nullptr);
  EXPECT_EQ(lent.pages.open(1, lent.nbytes), nullptr);
  EXPECT_EQ(lent.pages.open(UINT64_MAX, 2), nullptr);
}

TEST(PrivatePages, AMappingKeepsNoLockOfTheFile) {
  Lent lent(2);
  ASSERT_TRUE(os::try_lock_byte(lent.file, 0));
  std::byte* const own = lent.pages.open(0, lent.nbytes);
  ASSERT_NE(own, nullptr);
  const os::File other(
      ::open(("/proc/self/fd/" + std::to_string(lent.file.fd())).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(os::is_byte_locked(other, 0));
  os::unmap(lent.shared, lent.nbytes);  // it keeps the description, too
  lent.file = os::File();
  EXPECT_FALSE(os::is_byte_locked(other, 0));
  lent.pages.end(own);
  ASSERT_EQ(mmap(lent.shared, lent.nbytes, PROT_READ, MAP_SHARED | MAP_FIXED, other.fd(), 0), lent.shared);
}

// A child has what was open at the fork, and what is written later stays in the process that writes it.
TEST(PrivatePages, AChildKeepsTheValuesOfItsFork) {
  Lent lent(64);
  std::byte* const own = lent.pages.open(0, lent.nbytes);
  set_at(own, 1, 91);
  for (const bool is_unkept : {false, true}) {
    lent.write(2, 2);
    lent.pages.before_fork(is_unkept);
    const int result = in_child([&] {
      lent.pages.after_fork();
      lent.write(2, 72);  // as another process would
      if (value_at(own, 1) != 91) return 1;
      if (value_at(own, 2) != (is_unkept ? 2 : 72)) return 2;
      set_at(own, 1, 55);
      std::byte* const second = lent.pages.open(0, lent.nbytes);  // beside the one that is inherited
      if (second == nullptr || second == own || value_at(second, 2) != 72) return 3;
      set_at(second, 3, 56);
      lent.pages.end(second);
      lent.pages.end(own);
      std::byte* const again = lent.pages.open(0, lent.nbytes);
      return again == own && value_at(own, 1) == 1 && value_at(own, 2) == 72 ? 0 : 4;
    });
    lent.pages.after_fork();
    EXPECT_EQ(result, 0);
    EXPECT_EQ(value_at(own, 1), 91);
    EXPECT_EQ(value_at(own, 3), 3);
  }
  lent.pages.end(own);
}

// Locked pages are not dropped by the system, and mlockall() copies all pages of a mapping.
TEST(PrivatePages, LockedPagesAreThoseOfTheFileAtTheNextUse) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers make mlock() and mlockall() do nothing";
#endif
  EXPECT_EQ(in_child([] {
              Lent lent(64);
              std::byte* const own = lent.pages.open(0, lent.nbytes);
              if (own == nullptr) return 1;
              if (mlock(own + 5 * kPageNbytes, kPageNbytes) != 0) return 0;  // not permitted
              set_at(own, 5, 99);
              lent.pages.end(own);
              lent.write(5, 85);
              if (lent.pages.open(0, lent.nbytes) != own || value_at(own, 5) != 85) return 2;
              lent.pages.end(own);
              if (mlockall(MCL_CURRENT) != 0) return 0;
              if (count_written(own, 64) != 64) return 3;
              for (size_t i = 0; i < 64; ++i) lent.write(i, 77);
              if (lent.pages.open(0, lent.nbytes) != own) return 4;
              for (size_t i = 0; i < 64; ++i) {
                if (value_at(own, i) != 77) return 5;
              }
              return 0;
            }),
            0);
}

TEST(PrivatePages, AMappingCommitsNothingAlsoWhereAllMappingsAreLocked) {
  EXPECT_EQ(in_child([] {
              const os::File file = os::create_memory("tenon-private-pages", size_t{1} << 30, false);
              if (mlockall(MCL_FUTURE) != 0) return 0;  // not permitted
              PrivatePages pages(file, 0, size_t{1} << 30);
              std::byte* const own = pages.open(kPageNbytes, kPageNbytes);
              if (own == nullptr) return 1;
              os::FileFacts facts;
              if (!os::facts_of(file, &facts) || facts.committed_nbytes != 0) return 2;
              if (os::is_written(own)) return 3;
              set_at(own, 0, 1);
              pages.end(own);
              return os::is_written(own) ? 4 : 0;
            }),
            0);
}

TEST(PrivatePages, AMappingThatTheSystemRefusesIsNull) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer ends the process when it gets no address space";
#endif
  for (const int resource : {RLIMIT_AS, RLIMIT_DATA, RLIMIT_NOFILE}) {
    EXPECT_EQ(in_child([&] {
                Lent lent(64);
                if (!limit(resource, 0)) return 1;
                return lent.pages.open(0, lent.nbytes) == nullptr ? 0 : 2;
              }),
              0)
        << resource;
  }
}

// Without a descriptor, it is not known which pages were written.
TEST(PrivatePages, ARangeIsRightWithoutThePageMap) {
  EXPECT_EQ(in_child([] {
              Lent lent(64);
              std::byte* const own = lent.pages.open(0, lent.nbytes);
              set_at(own, 5, 99);
              if (!limit(RLIMIT_NOFILE, 0)) return 1;
              lent.pages.end(own);
              lent.write(5, 85);
              if (lent.pages.open(0, lent.nbytes) != own) return 2;
              return value_at(own, 5) == 85 ? 0 : 3;
            }),
            0);
}

// Each thread marks all pages that it has open. Oracle: it finds its own marks, and else the shared bytes.
TEST(PrivatePages, ThreadsOpenTheSameRangeAndOthers) {
  constexpr size_t kPages = 32;
  constexpr int kThreads = 6, kRounds = 300;
  Lent lent(kPages);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0}, refused{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const size_t begin = t % 2 == 0 ? 0 : static_cast<size_t>(round + t) % (kPages / 2);
        const size_t n = kPages / 2;
        std::byte* const own = lent.pages.open(begin * kPageNbytes, n * kPageNbytes);
        if (own == nullptr) {
          ++refused;
          std::this_thread::yield();
          continue;
        }
        for (size_t i = 0; i < n; ++i) {
          if (value_at(own, i) != static_cast<int>(begin + i)) ++wrong;
          if (i % 3 == 0) set_at(own, i, 100 + t);
        }
        for (size_t i = 0; i < n; i += 3) {
          if (value_at(own, i) != 100 + t) ++wrong;
        }
        lent.pages.end(own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LT(refused, kThreads * kRounds);
  for (size_t i = 0; i < kPages; ++i) EXPECT_EQ(value_at(lent.shared, i), static_cast<int>(i));
}

}  // namespace
}  // namespace tenon::impl
