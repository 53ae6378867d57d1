// SPDX-License-Identifier: Apache-2.0
#include "feed/slots.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace tenon {
namespace {

constexpr uint32_t kLast = UINT32_MAX;
constexpr size_t kHugePage = size_t{2} << 20;

constexpr uint64_t head_of(uint64_t gives, uint32_t slot) { return gives << 32 | slot; }
constexpr uint32_t slot_of(uint64_t head) { return static_cast<uint32_t>(head); }
constexpr uint64_t gives_of(uint64_t head) { return head >> 32; }

// What the kernel would give without swapping; SIZE_MAX when it does not say.
size_t available_memory() {
  size_t kilobytes = SIZE_MAX / 1024;
  if (std::FILE* file = std::fopen("/proc/meminfo", "re")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::sscanf(line, "MemAvailable: %zu kB", &kilobytes) == 1) break;
    }
    std::fclose(file);
  }
  return kilobytes * 1024;
}

// Writes to every page, so that neither workers nor consumers meet a page fault later.
bool populate(std::byte* memory, size_t nbytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(memory, nbytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;  // EINVAL: a kernel before 5.14
#endif
  std::memset(memory, 0, nbytes);
  return true;
}

[[noreturn]] void fail(int32_t count, size_t slot_nbytes, const std::string& reason) {
  throw_error(Code::kNoMemory, count, " slots of ", slot_nbytes, " bytes: ", reason,
              "; use fewer slots or smaller batches");
}

// Populating more than there is would wake the OOM killer instead of failing.
size_t checked_nbytes(int32_t count, size_t slot_nbytes) {
  size_t nbytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(count), slot_nbytes, &nbytes) || nbytes > PTRDIFF_MAX) {
    throw_error(Code::kValue, count, " slots of ", slot_nbytes, " bytes do not fit into 63 bits");
  }
  const size_t available = available_memory();
  if (nbytes > available) {
    fail(count, slot_nbytes, concat(nbytes, " bytes together, but only ", available, " are available"));
  }
  return nbytes;
}

std::byte* map_memory(int32_t count, size_t slot_nbytes, size_t nbytes) {
  void* const memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(count, slot_nbytes, std::strerror(errno));
  // Advice only: without huge pages the memory works all the same.
  if (nbytes >= kHugePage) (void)madvise(memory, nbytes, MADV_HUGEPAGE);
  if (!populate(static_cast<std::byte*>(memory), nbytes)) {
    const int reason = errno;
    munmap(memory, nbytes);
    fail(count, slot_nbytes, std::strerror(reason));
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

Ref<Slots> Slots::create(int32_t count, size_t slot_nbytes) {
  return Ref<Slots>::adopt(new Slots(count, slot_nbytes));
}

Slots::Slots(int32_t count, size_t slot_nbytes)
    : slot_nbytes_(slot_nbytes),
      nbytes_(checked_nbytes(count, slot_nbytes)),
      links_(static_cast<size_t>(count)),
      head_(head_of(0, 0)) {
  for (size_t i = 0; i < links_.size(); ++i) {
    links_[i].pool = this;
    links_[i].next.store(i + 1 < links_.size() ? static_cast<uint32_t>(i + 1) : kLast,
                         std::memory_order_relaxed);
  }
  sem_init(&free_, 0, static_cast<unsigned>(count));
  try {
    memory_ = map_memory(count, slot_nbytes, nbytes_);
  } catch (...) {
    sem_destroy(&free_);
    throw;
  }
}

Slots::~Slots() {
  munmap(memory_, nbytes_);
  sem_destroy(&free_);
}

int32_t Slots::take() noexcept {
  while (sem_wait(&free_) != 0) {
  }  // EINTR
  return pop();
}

int32_t Slots::try_take() noexcept {
  while (sem_trywait(&free_) != 0) {
    if (errno != EINTR) return is_awake_.load(std::memory_order_relaxed) ? kOver : kNone;
  }
  return pop();
}

// Requires a token of the semaphore.
int32_t Slots::pop() noexcept {
  // pairs with: Slots::wake, "awake before the tokens"
  if (is_awake_.load(std::memory_order_acquire)) return kOver;
  // pairs with: Slots::give, "slot free"
  uint64_t head = head_.load(std::memory_order_acquire);
  while (true) {
    const uint32_t slot = slot_of(head);
    // Another thread may own the slot by now; then the head has changed and the exchange fails.
    const uint32_t next = links_[slot].next.load(std::memory_order_relaxed);
    // pairs with: Slots::give, "slot free"
    if (head_.compare_exchange_weak(head, head_of(gives_of(head), next), std::memory_order_acquire)) {
      return static_cast<int32_t>(slot);
    }
  }
}

void Slots::give(int32_t slot) noexcept {
  Link& link = links_[static_cast<size_t>(slot)];
  uint64_t head = head_.load(std::memory_order_relaxed);
  do {
    link.next.store(slot_of(head), std::memory_order_relaxed);
    // pairs with: Slots::pop, "slot free"
  } while (!head_.compare_exchange_weak(head, head_of(gives_of(head) + 1, static_cast<uint32_t>(slot)),
                                        std::memory_order_release, std::memory_order_relaxed));
  sem_post(&free_);
}

void* Slots::lend(int32_t slot) noexcept {
  retain();
  lent_.fetch_add(1, std::memory_order_relaxed);
  return &links_[static_cast<size_t>(slot)];
}

void Slots::end_loan(void* owner) noexcept {
  auto* const link = static_cast<Link*>(owner);
  const Ref<Slots> pool = Ref<Slots>::adopt(link->pool);
  pool->lent_.fetch_sub(1, std::memory_order_relaxed);
  pool->give(static_cast<int32_t>(link - pool->links_.data()));
}

void Slots::wake(int32_t waiters) noexcept {
  // pairs with: Slots::pop, "awake before the tokens"
  is_awake_.store(true, std::memory_order_release);
  for (int32_t i = 0; i < waiters; ++i) sem_post(&free_);
}

}  // namespace tenon
