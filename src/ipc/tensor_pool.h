// SPDX-License-Identifier: Apache-2.0
//
// A tensor pool: a segment of this process whose arrays it sends by messages. The program carries the bytes
// of a message; the process that opens it has the arrays in place.
//
// A block stays as long as a process uses it. The sender of a message uses the blocks of the message until it
// has ended, which its record in the segment says (message_table.h). It looks at its records when it needs
// room, and in the sweeps of the mutex owner.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "array/array.h"
#include "base/fork_mark.h"
#include "base/os.h"
#include "base/ref.h"
#include "ipc/message_table.h"

namespace tenon::impl {

struct TensorPoolOptions {
  uint64_t budget_nbytes = 0;
  uint64_t idle_nbytes = 0;
  int64_t timeout_ns = -1;  // of messages; < 0: none
  bool is_pinned = false;
  bool notes_refusals = false;  // its caller tries again by itself, and notes what it refuses
};

struct SendOptions {
  uint32_t opens = 1;       // 0: no limit
  int64_t timeout_ns = -1;  // < 0: that of the pool
  std::vector<os::Process> receivers;
  std::string tag;  // "": none
  const char* site = nullptr;
};

struct TensorPoolStats {
  uint32_t blocks = 0;
  uint64_t used_nbytes = 0;
  uint64_t idle_nbytes = 0;
  uint64_t committed_nbytes = 0;
  uint32_t messages = 0;
  uint32_t waiting = 0;
  uint32_t processes = 0;  // that use a block, or are forked children that will
  uint64_t unopened = 0;   // messages that no process has opened
  uint64_t unopened_nbytes = 0;
  uint64_t held = 0;  // blocks that other processes use
  uint64_t held_nbytes = 0;
  // As PoolCounts.
  uint64_t sent = 0, sent_nbytes = 0;
  uint64_t opened = 0, expired = 0, revoked = 0, receivers_gone = 0;
  uint64_t inlined = 0, inlined_nbytes = 0;
  uint64_t refused = 0;
  uint64_t waits = 0, waited_ns = 0;
};

// What the caller of a pool counts itself.
struct TensorPoolNotes {
  uint64_t refused = 0;
  uint64_t inlined = 0, inlined_nbytes = 0;
};

// Counted. Threads: any. In a forked child, every function fails with kValue. After the last release, the
// messages and arrays stay.
class TensorPool {
 public:
  // Fails with kValue, kNoMemory, kSystem, and if it is pinned as device::Device::of.
  static Ref<TensorPool> create(const TensorPoolOptions& options);

  // The functions of pool.h of the C ABI.
  Ref<Array> empty(DType dtype, Dims shape, int64_t timeout_ns);
  Ref<Array> freeze(Array& array);
  int owns(const Array& array) const;
  // Writes the message to a buffer. Returns its size.
  size_t send(std::span<Array* const> arrays, const SendOptions& options, std::span<std::byte> room);
  uint32_t revoke(const std::string& tag);
  void key(std::byte* out);
  TensorPoolStats stats();
  void note(const TensorPoolNotes& notes);
  const TensorPoolOptions& options() const noexcept { return options_; }
  const SegmentId& id() const noexcept { return id_; }
  // Fails with kValue in a forked child.
  void check_process() const;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept;

 private:
  friend class TensorPools;
  TensorPool(const SegmentId& id, const TensorPoolOptions& options) : id_(id), options_(options) {}

  const SegmentId id_;
  const TensorPoolOptions options_;
  const ForkMark process_;
  const uint32_t pid_ = os::this_process().pid;
  RefCount refs_;
};

size_t most_nbytes_of_message(std::span<Array* const> arrays) noexcept;

// How many arrays a message has. Fails with kValue.
uint32_t count_of_arrays(std::span<const std::byte> bytes);
// The arrays of a message. Fails with kGone (op_code: TENON_GONE_*), kValue, kNotFound, kNoMemory, kSystem.
std::vector<Ref<Array>> open_message(std::span<const std::byte> bytes, bool is_readonly);
// Writes the key of the pool of a message.
void key_of_message(std::span<const std::byte> bytes, std::byte* out);
void revoke_message(std::span<const std::byte> bytes);
// False: it has ended.
bool take_over_message(std::span<const std::byte> bytes, int64_t timeout_ns);
bool is_unopened_message(std::span<const std::byte> bytes);
// Waits until the messages of this process that so many processes may open have ended. Returns how many have
// not.
uint32_t linger_for_messages(int64_t timeout_ns);

}  // namespace tenon::impl
