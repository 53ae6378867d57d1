// SPDX-License-Identifier: Apache-2.0
//
// Tenon through its C ABI: items of a channel, arrays that are handed over by a lease, and a lease whose
// holder is killed.
#include "party.h"

#include <tenon/channel.hpp>

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <vector>

namespace bench {
namespace {

const std::vector<int64_t> kShape{kArrayBytes / sizeof(uint64_t)};

volatile uint64_t& first_element(const tenon::Array& array) {
  return *static_cast<volatile uint64_t*>(array.data());
}

// The producer opens first, and leaves what the consumer needs in the side's state.
tenon_handle& handle_place(const Side& side, std::size_t i) {
  return reinterpret_cast<tenon_handle*>(side.state())[i];
}

void send_handle(const Side& side, std::size_t i, const tenon::Array& array) {
  tenon::call(tenon_shared_send, array.get(), &handle_place(side, i));
}

tenon::Array open_handle(const Side& side, std::size_t i) {
  const tenon_handle& handle = handle_place(side, i);
  return tenon::open(std::as_bytes(std::span(handle.data, handle.nbytes)));
}

template <bool kIsPolling>
class Items {
 public:
  explicit Items(const Side& side) : channel_(side.is_producer ? create(side) : open(side)) {}

  void set_up() {}

  void hand_over(uint64_t value) {
    tenon::Item item = channel_.loan();
    first_element(item.array(0)) = value;
    item.send();
  }

  uint64_t take() {
    item_.emplace(next(), channel_.get());
    array_ = item_->array(0);
    return first_element(*array_);
  }

  void give_back() {
    array_.reset();
    item_.reset();
  }

 private:
  static tenon::Channel create(const Side& side) {
    const tenon::Field field{"x", tenon::dtype_of<uint64_t>(), kShape};
    tenon::Channel channel = tenon::Channel::create(std::span(&field, 1), 4);
    send_handle(side, 0, channel.memory());
    return channel;
  }
  static tenon::Channel open(const Side& side) { return tenon::Channel::open(open_handle(side, 0)); }

  tenon_item* next() {
    tenon_item* item = nullptr;
    tenon_error error = TENON_ERROR_INIT;
    tenon_status status = TENON_ERR_TIMEOUT;
    while (status == TENON_ERR_TIMEOUT) {
      status = tenon_channel_receive(channel_.get(), kIsPolling ? 0 : -1, nullptr, &item, &error);
    }
    if (status != TENON_OK) throw std::runtime_error(error.message);
    return item;
  }

  const tenon::Channel channel_;
  std::optional<tenon::Item> item_;
  std::optional<tenon::Array> array_;
};

tenon_status try_acquire(tenon_lease& lease, const tenon::Array& array, int32_t access, int64_t timeout_ns,
                         tenon_error* error) {
  tenon_lease_options options{};
  options.struct_size = sizeof options;
  options.access = access;
  options.timeout_ns = timeout_ns;
  return tenon_lease_acquire(&lease, array.get(), &options, error);
}

void acquire(tenon_lease& lease, const tenon::Array& array, int32_t access, int64_t timeout_ns) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_status status = TENON_ERR_TIMEOUT;
  while (status == TENON_ERR_TIMEOUT) status = try_acquire(lease, array, access, timeout_ns, &error);
  if (status != TENON_OK) throw std::runtime_error(error.message);
}

// The producer holds the array that is next and the one after it; the consumer waits for the next one.
template <bool kIsPolling>
class Leases {
 public:
  explicit Leases(const Side& side) : is_producer_(side.is_producer) {
    for (std::size_t i = 0; i < kTurns; i++) {
      arrays_.push_back(is_producer_ ? tenon::zeros_shared(kShape, tenon::dtype_of<uint64_t>())
                                     : open_handle(side, i));
      if (is_producer_) send_handle(side, i, arrays_[i]);
    }
    for (std::size_t i = 1; i < kTurns && is_producer_; i++) hold(i);
  }
  ~Leases() {
    for (tenon_lease& lease : leases_) (void)tenon_lease_release(&lease);
  }

  void set_up() {}

  void hand_over(uint64_t value) {
    const std::size_t which = value % kTurns;
    first_element(arrays_[which]) = value;
    (void)tenon_lease_release(&leases_[which]);
    hold((value + 2) % kTurns);
  }

  uint64_t take() {
    which_ = (which_ + 1) % kTurns;
    acquire(leases_[which_], arrays_[which_], TENON_READ, kIsPolling ? 0 : -1);
    return first_element(arrays_[which_]);
  }

  void give_back() { (void)tenon_lease_release(&leases_[which_]); }

 private:
  static constexpr std::size_t kTurns = 3;

  void hold(std::size_t i) { acquire(leases_[i], arrays_[i], TENON_WRITE, -1); }

  const bool is_producer_;
  std::vector<tenon::Array> arrays_;
  std::array<tenon_lease, kTurns> leases_{};
  std::size_t which_ = 0;
};

// An array whose lease the holders take.
struct Guarded {
  std::string name;
  tenon::Array array;
};

pid_t spawn_holder(void* state) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  char path[] = TENON_BENCH_HOLDER;
  char* const arguments[] = {path, static_cast<Guarded*>(state)->name.data(), nullptr};
  pid_t holder = 0;
  const int result = posix_spawn(&holder, path, &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  char byte;
  const bool is_held = result == 0 && read(ends[0], &byte, 1) == 1;
  close(ends[0]);
  if (!is_held) throw std::runtime_error("the holder did not come to hold");
  return holder;
}

void lock_lease(void* state) {
  static tenon_lease lease = TENON_LEASE_INIT;
  acquire(lease, static_cast<Guarded*>(state)->array, TENON_WRITE, -1);
}

void recover_lease(void* state) {
  const tenon::Array& array = static_cast<Guarded*>(state)->array;
  tenon_lease lease = TENON_LEASE_INIT;
  tenon_error error = TENON_ERROR_INIT;
  if (try_acquire(lease, array, TENON_WRITE, -1, &error) != TENON_ERR_OWNER_DIED) {
    throw std::runtime_error("no word of the holder's death");
  }
  array.clear_error();
  acquire(lease, array, TENON_WRITE, -1);
  (void)tenon_lease_release(&lease);
}

template <bool kIsSpawned, bool kIsLate>
std::unique_ptr<Party> lease_of_the_killed(const Side& side) {
  // Lives as long as the process, as what it is a state of.
  static std::optional<Guarded> guarded;
  const std::string name = side.name + "-lock";
  if (side.is_producer) {
    tenon::SharedOptions options;
    options.name = name;
    guarded.emplace(name, tenon::zeros_shared(kShape, tenon::dtype_of<uint64_t>(), options));
  } else {
    guarded.emplace(name, tenon::attach(name));
  }
  const Lock lock{&*guarded, lock_lease, recover_lease, kIsSpawned ? spawn_holder : nullptr};
  return recovery(side, lock, kIsLate);
}

constexpr Contender kContenders[] = {
    {"Tenon channel", "spinning", open<HandOver<Items<true>, kShortPauseNs>>},
    {"Tenon channel", "asleep", open<HandOver<Items<false>, kLongPauseNs>>},
    {"Tenon lease", "spinning", open<HandOver<Leases<true>, kShortPauseNs>>},
    {"Tenon lease", "asleep", open<HandOver<Leases<false>, kLongPauseNs>>},
    {"Tenon lease in C, forked holder", "recovery", lease_of_the_killed<false, false>},
    {"Tenon lease in C, holder of its own", "recovery", lease_of_the_killed<true, false>},
    {"Tenon lease in C, forked holder", "late recovery", lease_of_the_killed<false, true>},
    {"Tenon lease in C, holder of its own", "late recovery", lease_of_the_killed<true, true>},
};

}  // namespace

std::span<const Contender> tenon_contenders() { return kContenders; }

}  // namespace bench
