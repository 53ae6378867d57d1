// SPDX-License-Identifier: Apache-2.0
#include "ipc/tensor_pool.h"

#include "base/clock.h"
#include "base/error.h"
#include "ipc/message.h"
#include "ipc/tensor_pools.h"
#include "sync/waiter.h"

namespace tenon::impl {

Ref<TensorPool> TensorPool::create(const TensorPoolOptions& options) {
  return TensorPools::instance().create(options);
}

void TensorPool::release() noexcept {
  if (!refs_.decrement()) return;
  if (!process_.is_child()) TensorPools::instance().drop(*this);
  delete this;
}

void TensorPool::check_process() const {
  if (!process_.is_child()) return;
  throw_error(Code::kValue, "the tensor pool belongs to process ", pid_,
              ", which has forked this one: create a pool here");
}

Ref<Array> TensorPool::empty(DType dtype, Dims shape, int64_t timeout_ns) {
  check_process();
  return TensorPools::instance().empty(*this, dtype, shape, timeout_ns);
}

Ref<Array> TensorPool::freeze(Array& array) {
  check_process();
  return TensorPools::instance().freeze(*this, array);
}

int TensorPool::owns(const Array& array) const {
  return process_.is_child() ? 0 : TensorPools::instance().owns(*this, array);
}

size_t TensorPool::send(std::span<Array* const> arrays, const SendOptions& options,
                        std::span<std::byte> room) {
  check_process();
  return TensorPools::instance().send(*this, arrays, options, room);
}

uint32_t TensorPool::revoke(const std::string& tag) {
  check_process();
  return TensorPools::instance().revoke(*this, tag);
}

void TensorPool::key(std::byte* out) {
  check_process();
  TensorPools::instance().key_of(*this, out);
}

TensorPoolStats TensorPool::stats() {
  check_process();
  return TensorPools::instance().stats(*this);
}

void TensorPool::note(const TensorPoolNotes& notes) {
  check_process();
  TensorPools::instance().note(*this, notes);
}

size_t most_nbytes_of_message(std::span<Array* const> arrays) noexcept {
  size_t nbytes = sizeof(MessageHead);
  for (const Array* array : arrays) {
    nbytes += sizeof(MessageSegment) + sizeof(MessageArray) +
              2 * static_cast<size_t>(array->desc().ndim) * sizeof(int64_t);
  }
  return nbytes;
}

uint32_t count_of_arrays(std::span<const std::byte> bytes) { return ReadMessage::head_of(bytes).arrays; }

std::vector<Ref<Array>> open_message(std::span<const std::byte> bytes, bool is_readonly) {
  std::vector<Ref<Array>> arrays = TensorPools::instance().open(bytes, is_readonly);
  for (const Ref<Array>& array : arrays) TensorPools::pin_if_in_use(*array);
  return arrays;
}

void key_of_message(std::span<const std::byte> bytes, std::byte* out) {
  TensorPools::instance().key_of(bytes, out);
}

void revoke_message(std::span<const std::byte> bytes) { TensorPools::instance().revoke(bytes); }

bool take_over_message(std::span<const std::byte> bytes, int64_t timeout_ns) {
  return TensorPools::instance().take_over(bytes, timeout_ns);
}

bool is_unopened_message(std::span<const std::byte> bytes) {
  return TensorPools::instance().is_unopened(bytes);
}

uint32_t linger_for_messages(int64_t timeout_ns) {
  constexpr int64_t kLookAgainNs = 5'000'000;
  const Deadline deadline(timeout_ns);
  uint32_t live = TensorPools::instance().count_live();
  if (live == 0) return 0;
  Waiter waiter(deadline);
  const auto sleep = [](int64_t ns) {
    const timespec time = timespec_of(ns);
    nanosleep(&time, nullptr);
    return false;
  };
  const auto describe = [&] { return concat(live, " messages of tensor pools that no process has opened"); };
  while (live != 0 && waiter.sleep(kLookAgainNs, sleep, describe) == WaitEnd::kOver) {
    live = TensorPools::instance().count_live();
  }
  return live;
}

}  // namespace tenon::impl
