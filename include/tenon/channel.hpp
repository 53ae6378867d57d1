// SPDX-License-Identifier: Apache-2.0
//
// C++ wrapper of channels. tenon/share.h has the rules.
#ifndef TENON_CHANNEL_HPP_
#define TENON_CHANNEL_HPP_

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tenon/engine.hpp"
#include "tenon/field.hpp"
#include "tenon/share.hpp"

namespace tenon {
inline namespace api0 {

enum class ChannelMode : int32_t {
  kQueue = TENON_CHANNEL_QUEUE,
  kBroadcast = TENON_CHANNEL_BROADCAST,
  kLatest = TENON_CHANNEL_LATEST,
};
enum class WhenFull : int32_t {
  kWait = TENON_WHEN_FULL_WAIT,
  kDropOldest = TENON_WHEN_FULL_DROP_OLDEST,
  kRaise = TENON_WHEN_FULL_RAISE,
  kKeep = TENON_WHEN_FULL_KEEP,
};

// A slot that was loaned or received: a reference-counted handle. A loan that is destroyed without send() is
// lost.
class Item {
 public:
  explicit Item(tenon_item* handle, tenon_channel* channel) : handle_(handle), channel_(channel) {}

  // The array keeps the item. Do not use the array of a loan after send(). Fails with INDEX, NOT_FOUND.
  Array array(int32_t field) const {
    return Array::steal(detail::call_for<tenon_array*>(tenon_item_array, handle_.get(), field));
  }
  Array array(std::string_view name) const {
    if (handle_.get() == nullptr) return array(0);  // fails, because the item was moved from
    for (int32_t i = 0; i < tenon_channel_field_count(channel_); ++i) {
      if (name == tenon_channel_field(channel_, i).name) return array(i);
    }
    throw Error(TENON_ERR_NOT_FOUND, "the channel has no field '" + std::string(name) + "'");
  }
  // The size of a loan of a channel of bytes from now on. Fails as tenon_item_set_nbytes.
  void resize(uint64_t nbytes) { call(tenon_item_set_nbytes, handle_.get(), nbytes); }
  uint64_t sequence() const noexcept { return tenon_item_sequence(handle_.get()); }

  // Sends a loan. Fails with VALUE (not a loan), CLOSED (the channel was closed here), LEASE_ESCAPED (a view,
  // a lease or an op uses one of its arrays) and OP (an op failed to write one): it cannot be sent any more.
  void send() { call(tenon_item_send, handle_.get()); }
  // Drops a loan and ends its arrays. Fails as tenon_item_drop.
  void drop() { call(tenon_item_drop, handle_.get()); }
  // Gives a received item back. Fails as tenon_item_put_back.
  void put_back() { call(tenon_item_put_back, handle_.get()); }

 private:
  detail::Handle<tenon_item, tenon_item_retain, tenon_item_release> handle_;
  tenon_channel* channel_;  // kept by the item
};

// A reference-counted handle. Threads: any.
class Channel {
 public:
  static Channel create(std::span<const Field> fields, int32_t slots, ChannelMode mode = ChannelMode::kQueue,
                        WhenFull when_full = WhenFull::kWait, const SharedOptions& shared = {}) {
    const std::vector<tenon_field> described = detail::describe(fields);
    const tenon_channel_options options{sizeof options, slots, static_cast<int32_t>(mode),
                                        static_cast<int32_t>(when_full)};
    const tenon_shared_options raw = detail::raw_options(shared);
    return Channel(detail::call_for<tenon_channel*>(
        tenon_channel_create, static_cast<int32_t>(described.size()), described.data(), &options, &raw));
  }
  // A channel of bytes. largest: of one item; 0: as there. Fails as tenon_channel_create_bytes.
  static Channel create_bytes(uint64_t nbytes, uint64_t largest = 0, int32_t slots = 256,
                              ChannelMode mode = ChannelMode::kQueue, WhenFull when_full = WhenFull::kWait,
                              const SharedOptions& shared = {}) {
    const tenon_channel_options options{sizeof options, slots, static_cast<int32_t>(mode),
                                        static_cast<int32_t>(when_full)};
    const tenon_shared_options raw = detail::raw_options(shared);
    return Channel(
        detail::call_for<tenon_channel*>(tenon_channel_create_bytes, &options, nbytes, largest, &raw));
  }
  // The channel of another process. memory: its memory, attached or opened here.
  static Channel open(const Array& memory) {
    return Channel(detail::call_for<tenon_channel*>(tenon_channel_open, memory.get()));
  }

  // The same, with TENON_AWAIT_PRODUCERS and TENON_RECEIVE_LATEST. Fails as tenon_channel_open_as.
  static Channel open_as(const Array& memory, uint32_t flags) {
    return Channel(detail::call_for<tenon_channel*>(tenon_channel_open_as, memory.get(), flags));
  }

  tenon_channel* get() const noexcept { return handle_.get(); }
  Array memory() const { return Array::steal(tenon_channel_memory(get())); }  // to send to other processes

  // A free slot. Fails as tenon_channel_loan.
  Item loan(std::chrono::nanoseconds timeout = forever) const {
    return Item(detail::call_for<tenon_item*>(tenon_channel_loan, get(), detail::timeout_ns(timeout),
                                              static_cast<const char*>(nullptr)),
                get());
  }
  // A slot with so many bytes, of a channel of bytes. Fails as tenon_channel_loan_bytes.
  Item loan_bytes(uint64_t nbytes, std::chrono::nanoseconds timeout = forever) const {
    return Item(detail::call_for<tenon_item*>(tenon_channel_loan_bytes, get(), nbytes,
                                              detail::timeout_ns(timeout), static_cast<const char*>(nullptr)),
                get());
  }
  // The next item; empty if all producers have closed the channel. Fails as tenon_channel_receive.
  std::optional<Item> receive(std::chrono::nanoseconds timeout = forever) const {
    tenon_item* item = nullptr;
    tenon_error error = TENON_ERROR_INIT;
    const tenon_status status =
        tenon_channel_receive(get(), detail::timeout_ns(timeout), nullptr, &item, &error);
    if (status == TENON_ERR_CLOSED) return std::nullopt;
    if (status != TENON_OK) detail::throw_reported(status, error);
    return Item(item, get());
  }
  // A descriptor for poll() and similar functions, as tenon_channel_fd: kRead to receive, kWrite to loan.
  int descriptor(Access access = Access::kRead) const {
    return detail::call_for<int32_t>(tenon_channel_fd, get(), static_cast<int32_t>(access));
  }
  // Consumers are told of the death of this process, as tenon_channel_join says.
  void join() const { call(tenon_channel_join, get()); }
  void close() const noexcept { tenon_channel_close(get()); }
  tenon_channel_statistics statistics() const noexcept {
    auto now = detail::sized<tenon_channel_statistics>();
    tenon_channel_statistics_get(get(), &now);
    return now;
  }

 private:
  explicit Channel(tenon_channel* handle) : handle_(handle) {}
  detail::Handle<tenon_channel, tenon_channel_retain, tenon_channel_release> handle_;
};

}  // namespace api0
}  // namespace tenon

#endif  // TENON_CHANNEL_HPP_
