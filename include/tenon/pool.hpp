// SPDX-License-Identifier: Apache-2.0
//
// C++ wrapper of tensor pools. tenon/pool.h has the rules.
#ifndef TENON_POOL_HPP_
#define TENON_POOL_HPP_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "tenon/engine.hpp"
#include "tenon/tenon.hpp"

namespace tenon {
inline namespace api0 {

struct PoolOptions {
  uint64_t idle_nbytes = 256 << 20;            // free memory that stays allocated
  std::chrono::nanoseconds timeout = forever;  // of messages
  bool is_pinned = false;                      // for copies to and from GPUs
};

struct MessageOptions {
  uint32_t opens = 1;                          // so many processes may open it; 0: no limit
  std::chrono::nanoseconds timeout = forever;  // forever: that of the pool
  std::vector<uint32_t> receivers{};           // pids; none: any process
  std::string tag{};                           // for TensorPool::revoke(); "": none
};

// The bytes of a message, which the program carries to another process.
using Message = std::vector<std::byte>;

// A socket at which a pool is served, until the last handle is gone. \since 0.7
class PoolServer {
 public:
  tenon_pool_server* get() const noexcept { return handle_.get(); }

 private:
  friend class TensorPool;
  explicit PoolServer(tenon_pool_server* handle) : handle_(handle) {}
  detail::Handle<tenon_pool_server, tenon_pool_server_retain, tenon_pool_server_release> handle_;
};

// Memory from which this process sends arrays. A reference-counted handle. Threads: any.
class TensorPool {
 public:
  // Fails as tenon_tensor_pool_create.
  static TensorPool create(uint64_t budget_nbytes, const PoolOptions& options = {}) {
    auto raw = detail::sized<tenon_pool_options>();
    raw.flags = options.is_pinned ? TENON_POOL_PINNED : 0;
    raw.budget_nbytes = budget_nbytes;
    raw.idle_nbytes = options.idle_nbytes;
    raw.timeout_ns = detail::timeout_ns(options.timeout);
    return TensorPool(detail::call_for<tenon_tensor_pool*>(tenon_tensor_pool_create, &raw));
  }

  tenon_tensor_pool* get() const noexcept { return handle_.get(); }

  // New memory of the pool, with elements of no defined values. If there is no room, waits for it. Fails as
  // tenon_tensor_pool_empty.
  Array empty(Shape shape, DType dtype = {}, std::chrono::nanoseconds timeout = forever) const {
    return Array::steal(detail::call_for<tenon_array*>(tenon_tensor_pool_empty, get(), tenon_dtype(dtype),
                                                       shape.ndim(), shape.data(),
                                                       detail::timeout_ns(timeout)));
  }
  template <class T>
  Array empty(Shape shape, std::chrono::nanoseconds timeout = forever) const {
    return empty(shape, dtype_of<T>(), timeout);
  }
  // A copy of an array in the pool.
  Array put(const Array& array, std::chrono::nanoseconds timeout = forever) const {
    Array made = empty(array.shape(), array.dtype(), timeout);
    array.copy_to(made);
    return made;
  }
  // A read-only array on the memory of an array of the pool, which ends. It may be sent repeatedly.
  Array freeze(const Array& array) const {
    return Array::steal(detail::call_for<tenon_array*>(tenon_tensor_pool_freeze, get(), array.get()));
  }

  // The arrays of this pool that are not frozen end. If it fails, every array is as it was. Fails as
  // tenon_tensor_pool_send.
  Message send(std::span<const Array> arrays, const MessageOptions& options = {},
               std::source_location where = std::source_location::current()) const {
    std::vector<tenon_array*> raw;
    raw.reserve(arrays.size());
    for (const Array& array : arrays) raw.push_back(array.get());
    const auto n = static_cast<uint32_t>(raw.size());
    const detail::Site site(where);
    auto described = detail::sized<tenon_message_options>();
    described.opens = options.opens;
    described.timeout_ns = detail::timeout_ns(options.timeout);
    described.receivers = options.receivers.data();
    described.n_receivers = static_cast<uint32_t>(options.receivers.size());
    described.tag = options.tag.empty() ? nullptr : options.tag.c_str();
    described.site = site.text();
    Message message(tenon_message_nbytes(raw.data(), n));
    message.resize(detail::call_for<uint64_t>(tenon_tensor_pool_send, get(), raw.data(), n, &described,
                                              static_cast<void*>(message.data()), uint64_t{message.size()}));
    return message;
  }
  Message send(const Array& array, const MessageOptions& options = {},
               std::source_location where = std::source_location::current()) const {
    return send(std::span(&array, 1), options, where);
  }

  // 1, 2 or 0: as tenon_tensor_pool_owns.
  int32_t owns(const Array& array) const noexcept { return tenon_tensor_pool_owns(get(), array.get()); }
  // 32 random bytes that only processes of this user can read, as tenon_tensor_pool_key.
  std::array<unsigned char, 32> key() const {
    std::array<unsigned char, 32> key{};
    call(tenon_tensor_pool_key, get(), key.data());
    return key;
  }
  // Ends the messages with this tag that have not ended. Returns how many there were.
  uint32_t revoke(const std::string& tag) const {
    return detail::call_for<uint32_t>(tenon_tensor_pool_revoke, get(), tag.c_str());
  }
  // Other processes of this user, and of the group, open messages of the pool with PoolLink::attach(path),
  // also in other containers. Fails as tenon_tensor_pool_serve. \since 0.7
  PoolServer serve(const std::string& path, int32_t backlog = 64, uint32_t group = TENON_NO_GROUP) const {
    return PoolServer(
        detail::call_for<tenon_pool_server*>(tenon_tensor_pool_serve, get(), path.c_str(), backlog, group));
  }
  // Adds to the counters what the caller has refused, or has sent in bytes of its own, because there was no
  // room. \since 0.7
  void note(uint64_t refused, uint64_t inlined = 0, uint64_t inlined_nbytes = 0) const {
    call(tenon_tensor_pool_note, get(), refused, inlined, inlined_nbytes);
  }
  tenon_pool_stats stats() const {
    auto now = detail::sized<tenon_pool_stats>();
    call(tenon_tensor_pool_stats, get(), &now);
    return now;
  }

 private:
  explicit TensorPool(tenon_tensor_pool* handle) : handle_(handle) {}
  detail::Handle<tenon_tensor_pool, tenon_tensor_pool_retain, tenon_tensor_pool_release> handle_;
};

// Opens messages of a pool that another process serves, as long as the last handle exists. What is open stays
// open. \since 0.7
class PoolLink {
 public:
  // Fails as tenon_pool_attach.
  static PoolLink attach(const std::string& path, std::chrono::nanoseconds timeout = std::chrono::seconds(5),
                         uint32_t group = TENON_NO_GROUP) {
    return PoolLink(detail::call_for<tenon_pool_link*>(tenon_pool_attach, path.c_str(),
                                                       detail::timeout_ns(timeout), group));
  }
  // The process that serves can open messages of this pool. Fails as tenon_pool_link_offer.
  void offer(const TensorPool& pool) const { call(tenon_pool_link_offer, get(), pool.get()); }
  tenon_pool_link* get() const noexcept { return handle_.get(); }

 private:
  explicit PoolLink(tenon_pool_link* handle) : handle_(handle) {}
  detail::Handle<tenon_pool_link, tenon_pool_link_retain, tenon_pool_link_release> handle_;
};

// The arrays of a message. is_readonly: all of them lie in place and are read-only. Fails as
// tenon_message_open; with GONE, Error::op_code() is one of enum tenon_gone.
inline std::vector<Array> open_message(std::span<const std::byte> message, bool is_readonly = false) {
  std::vector<tenon_array*> raw(message.size() / TENON_MESSAGE_NBYTES_PER_ARRAY);
  std::vector<Array> arrays(raw.size());  // now: nothing may fail after the open
  uint32_t n = 0;
  call(tenon_message_open, static_cast<const void*>(message.data()), uint64_t{message.size()},
       is_readonly ? uint32_t{TENON_READONLY} : 0U, raw.data(), static_cast<uint32_t>(raw.size()), &n);
  for (uint32_t i = 0; i < n; ++i) arrays[i] = Array::steal(raw[i]);
  arrays.resize(n);
  return arrays;
}

// Ends one message of this process. Fails as tenon_message_revoke.
inline void revoke_message(std::span<const std::byte> message) {
  call(tenon_message_revoke, static_cast<const void*>(message.data()), uint64_t{message.size()});
}
// This process keeps a message of another one, for the timeout at most. False: it has ended.
inline bool take_over_message(std::span<const std::byte> message,
                              std::chrono::nanoseconds timeout = forever) {
  return detail::call_for<int32_t>(tenon_message_take_over, static_cast<const void*>(message.data()),
                                   uint64_t{message.size()}, detail::timeout_ns(timeout)) != 0;
}
// The message, which this process has sent or opened, has not ended.
inline bool is_unopened_message(std::span<const std::byte> message) noexcept {
  return tenon_message_is_unopened(message.data(), message.size()) != 0;
}
// The random bytes of the pool of a message, as TensorPool::key() of its sender.
inline std::array<unsigned char, 32> key_of_message(std::span<const std::byte> message) {
  std::array<unsigned char, 32> key{};
  call(tenon_message_key, static_cast<const void*>(message.data()), uint64_t{message.size()}, key.data());
  return key;
}
// For the end of a program: waits until the messages of this process with a number of opens have ended.
// Returns how many have not.
inline uint32_t linger_for_messages(std::chrono::nanoseconds timeout) noexcept {
  return tenon_tensor_pools_linger(detail::timeout_ns(timeout));
}

}  // namespace api0
}  // namespace tenon

#endif  // TENON_POOL_HPP_
