// SPDX-License-Identifier: Apache-2.0
//
// The tensor pools and messages of this process.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ipc/message.h"
#include "ipc/segments.h"
#include "ipc/tensor_pool.h"

namespace tenon::impl {

// A part of Segments. Threads: the functions of the first group lock Segments::lock_, the others require it.
class TensorPools {
 public:
  explicit TensorPools(Segments& segments) noexcept : segments_(segments) {}

  static TensorPools& instance();

  Ref<TensorPool> create(const TensorPoolOptions& options);
  void drop(const TensorPool& pool) noexcept;
  Ref<Array> empty(TensorPool& pool, DType dtype, Dims shape, int64_t timeout_ns);
  Ref<Array> freeze(const TensorPool& pool, Array& array);
  int owns(const TensorPool& pool, const Array& array);
  size_t send(const TensorPool& pool, std::span<Array* const> arrays, const SendOptions& options,
              std::span<std::byte> room);
  uint32_t revoke(const TensorPool& pool, const std::string& tag);
  void key_of(const TensorPool& pool, std::byte* out);
  TensorPoolStats stats(const TensorPool& pool);
  void note(const TensorPool& pool, const TensorPoolNotes& notes);
  std::vector<Ref<Array>> open(std::span<const std::byte> bytes, bool is_readonly);
  // Of an array of a pool whose pages are pinned: pins them in this process. Calls the driver, and locks
  // nothing during that. Fails as PinnedPages.
  static void pin(const Array& array);
  // The same if this process uses CUDA. If the driver refuses, nothing happens.
  static void pin_if_in_use(const Array& array) noexcept;
  void key_of(std::span<const std::byte> bytes, std::byte* out);
  void revoke(std::span<const std::byte> bytes);
  bool take_over(std::span<const std::byte> bytes, int64_t timeout_ns);
  bool is_unopened(std::span<const std::byte> bytes);
  // Of messages with a number of opens.
  uint32_t count_live();

  // This process has opened a message, or a handle whose opens are counted.
  bool has_opened(const Segment& segment, const MessageId& message) const noexcept;
  bool is_of_another(const MessageHead& message) noexcept;
  // Counts the open of one that exists, unless this process has opened it before. kLive, or why it has ended.
  // Requires that this process uses the blocks.
  MessageStatus count_open(Segment& segment, const MessageId& message);

  // Of a pool of this process: processes that receive its messages need this segment. Requires the lock.
  bool needs(const SegmentId& pool, const SegmentId& segment) noexcept;

  // Ends what has reached its limits, and returns memory. True: it must be called again later.
  bool sweep() noexcept;
  // In a forked child: the messages are the parent's.
  void become_child() noexcept;

 private:
  // A use of a block that a message has in this process.
  struct Hold {
    Segment* segment;
    uint32_t block;
  };
  struct Live {
    Segment* segment = nullptr;  // of the pool
    uint32_t record = 0;
    uint32_t generation = 0;
    bool has_opens = false;  // a number of processes may open it
    int64_t until_ns = 0;
    std::vector<Hold> holds;
    std::vector<os::Process> receivers;
    std::string tag;
  };
  using Messages = std::list<Live>;  // its nodes move between lists, which needs no memory
  struct Own {
    Segment& segment;
    BlockAllocator& allocator;
    TensorPoolOptions options;
    MessageHead head;  // of all messages; it would take ten times as long to ask the system for each
    Messages live = {};
    Messages ended = {};  // their records are used again in this order
    uint32_t seen_ended = 0;
    int64_t allocated_at_ns = 0;
    uint32_t waiting = 0;  // threads
    bool is_dropped = false;
  };
  // Where an array of a message lies.
  struct Source {
    Segment* segment = nullptr;
    uint32_t block = 0;
    bool is_moved = false;
  };
  class Wait;
  class Opened;

  Own& own_of(const TensorPool& pool);
  static void note_refusal(Own& own) noexcept;
  Own* find_own(const SegmentId& id) noexcept;
  AllocatedBlock allocate(Own& own, uint64_t nbytes, bool is_thorough);
  Ref<Array> try_empty(Own& own, DType dtype, Dims shape, uint64_t nbytes, bool is_thorough);
  std::string full_text(Own& own, uint64_t nbytes) const;
  Source source_of(const Array& array) const;
  Messages take_record(Own& own);
  void end_hold(const Hold& hold) noexcept;
  void finish(Messages& from, Messages::iterator at, Messages* ended) noexcept;
  void look_at(Own& own, bool is_thorough) noexcept;
  static void end_over(Live& live, int64_t now) noexcept;
  void look_at_kept(int64_t now) noexcept;
  std::vector<Ref<Array>> try_open(const ReadMessage& message, bool is_readonly, bool is_last);
  Kept try_take_over(const ReadMessage& message, int64_t timeout_ns);
  const char* lasting(const char* site);
  void forget_closed() noexcept;

  Segments& segments_;
  // Guarded by Segments::lock_.
  std::map<SegmentId, std::unique_ptr<Own>> own_;
  Messages kept_;                                              // of other processes; their segments stay open
  std::map<std::pair<SegmentId, uint32_t>, uint32_t> opened_;  // segment, record -> generation
  size_t forget_at_ = 64;
  std::set<std::string, std::less<>> sites_;
};

}  // namespace tenon::impl
