// SPDX-License-Identifier: Apache-2.0
//
// Boost.Interprocess, and the queue of Boost.Lockfree in shared memory.
#include "party.h"

// Boost's own files go where temporary files of this process go.
#define BOOST_INTERPROCESS_SHARED_DIR_FUNC

#include <boost/interprocess/detail/robust_emulation.hpp>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/interprocess/sync/interprocess_semaphore.hpp>
#include <boost/interprocess/sync/spin/mutex.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <boost/version.hpp>

#include <cstdlib>
#include <filesystem>
#include <new>

namespace boost::interprocess::ipcdetail {

inline void get_shared_dir(std::string& folder) {
  const char* chosen = std::getenv("TMPDIR");
  folder = std::string(chosen ? chosen : "/tmp") + "/boost_interprocess";
}

}  // namespace boost::interprocess::ipcdetail

namespace bench {
namespace {

namespace bip = boost::interprocess;

constexpr std::size_t kPlaces = 64;

template <bool kIsPolling>
class MessageQueue {
 public:
  // The producer opens first.
  explicit MessageQueue(const Side& side)
      : name_(side.name), queue_(bip::open_or_create, name_.c_str(), kPlaces, sizeof(uint64_t)) {}

  void set_up() { bip::message_queue::remove(name_.c_str()); }
  void send(uint64_t which) { queue_.send(&which, sizeof which, 0); }

  uint64_t receive() {
    uint64_t which;
    bip::message_queue::size_type size;
    unsigned priority;
    if constexpr (kIsPolling) {
      while (!queue_.try_receive(&which, sizeof which, size, priority)) relax();
    } else {
      queue_.receive(&which, sizeof which, size, priority);
    }
    return which;
  }

 private:
  const std::string name_;
  bip::message_queue queue_;
};

template <bool kIsPolling>
class Semaphore {
 public:
  explicit Semaphore(const Side& side)
      : semaphore_(*reinterpret_cast<bip::interprocess_semaphore*>(side.state())) {
    if (side.is_producer) new (side.state()) bip::interprocess_semaphore(0);
  }

  void set_up() {}
  void send(uint64_t) { semaphore_.post(); }

  uint64_t receive() {
    if constexpr (kIsPolling) {
      while (!semaphore_.try_wait()) relax();
    } else {
      semaphore_.wait();
    }
    return ++count_ % kArrays;
  }

 private:
  bip::interprocess_semaphore& semaphore_;
  uint64_t count_ = 0;
};

class LockfreeQueue {
 public:
  explicit LockfreeQueue(const Side& side) : queue_(*reinterpret_cast<Queue*>(side.state())) {
    if (side.is_producer) new (side.state()) Queue;
  }

  void set_up() {}
  void send(uint64_t which) { queue_.push(which); }

  uint64_t receive() {
    uint64_t which;
    while (!queue_.pop(which)) relax();
    return which;
  }

 private:
  using Queue = boost::lockfree::spsc_queue<uint64_t, boost::lockfree::capacity<kPlaces>>;
  Queue& queue_;
};

// Boost emulates robustness with a file for each process that locks. Its documentation does not name it.
using RobustMutex = bip::ipcdetail::robust_spin_mutex<bip::ipcdetail::spin_mutex>;

template <bool kIsLate>
std::unique_ptr<Party> robust_mutex(const Side& side) {
  if (side.is_producer) {
    std::string folder;
    bip::ipcdetail::get_shared_dir(folder);
    std::filesystem::create_directory(folder);
    new (side.state()) RobustMutex;
  }
  const auto lock = [](void* mutex) { static_cast<RobustMutex*>(mutex)->lock(); };
  const auto recover = [](void* state) {
    auto* mutex = static_cast<RobustMutex*>(state);
    mutex->lock();
    if (!mutex->previous_owner_dead()) throw std::runtime_error("no word of the holder's death");
    mutex->consistent();
    mutex->unlock();
  };
  return recovery(side, {side.state(), lock, recover}, kIsLate);
}

constexpr Contender kContenders[] = {
    {"Boost message_queue, polled", "spinning",
     open<HandOver<ArraysOfSide<MessageQueue<true>>, kShortPauseNs>>},
    {"Boost interprocess_semaphore, polled", "spinning",
     open<HandOver<ArraysOfSide<Semaphore<true>>, kShortPauseNs>>},
    {"Boost.Lockfree spsc_queue", "spinning", open<HandOver<ArraysOfSide<LockfreeQueue>, kShortPauseNs>>},
    {"Boost message_queue", "asleep", open<HandOver<ArraysOfSide<MessageQueue<false>>, kLongPauseNs>>},
    {"Boost interprocess_semaphore", "asleep", open<HandOver<ArraysOfSide<Semaphore<false>>, kLongPauseNs>>},
    {"Boost robust_spin_mutex", "recovery", robust_mutex<false>},
    {"Boost robust_spin_mutex", "late recovery", robust_mutex<true>},
};

}  // namespace

std::span<const Contender> boost_contenders() { return kContenders; }

const char* boost_version() { return "Boost " BOOST_LIB_VERSION; }

}  // namespace bench
