// SPDX-License-Identifier: Apache-2.0
#include "ipc/tensor_pools.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <bitset>
#include <cstring>
#include <optional>
#include <utility>

#include "array/access.h"
#include "array/ownership.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "device/driver.h"
#include "device/submitted_work.h"
#include "sync/waiter.h"

namespace tenon::impl {
namespace {

constexpr size_t kBlocksAtOnce = 64;  // that other processes use, and that one allocation looks at
constexpr int64_t kIdleBeforeTrimNs = 1'000'000'000;
constexpr int64_t kLookAgainNs = 10'000'000;  // while a thread waits for room
constexpr size_t kLivePerEnded = 32;          // live messages that a look may visit for each that has ended
constexpr uint64_t kStep = 64 * 1024;         // in which memory is allocated
constexpr size_t kMostHolders = 3;            // that a message names
constexpr uint64_t kPinnedUnits = 16;         // in a pool, unless they would be smaller or larger than these
constexpr uint64_t kLeastPinnedUnit = 2 << 20, kMostPinnedUnit = 64 << 20;

}  // namespace

TensorPools& TensorPools::instance() { return *Segments::instance().tensor_pools_; }

// ------------------------------------------------------------------------------------------- pools

Ref<TensorPool> TensorPools::create(const TensorPoolOptions& options) {
  if (options.budget_nbytes == 0 || options.budget_nbytes > PTRDIFF_MAX / 2) {
    throw_error(Code::kValue, "the budget of a tensor pool is ", options.budget_nbytes,
                " bytes: it must be at least 1, and fit into 62 bits");
  }
  SegmentPlan plan;
  plan.data_nbytes = round_up(options.budget_nbytes, kStep);
  if (options.is_pinned) {
    device::SubmittedWork::instance().prepare();
    const uint64_t unit =
        std::clamp(std::bit_floor(plan.data_nbytes / kPinnedUnits), kLeastPinnedUnit, kMostPinnedUnit);
    plan.pinned_unit = static_cast<uint32_t>(unit);
    if (plan.data_nbytes > unit) plan.data_nbytes = round_up(plan.data_nbytes, unit);
  }
  plan.blocks = kMostBlocks;
  plan.is_tensor_pool = true;
  std::unique_ptr<Segment> made = Segment::create(plan, MutexOwner::instance());
  Segment& segment = *made;
  uint64_t key[4];
  if (getrandom(key, sizeof key, 0) != sizeof key) throw_error(Code::kSystem, "no random number for a pool");
  for (size_t i = 0; i < std::size(key); ++i) store(segment.pool_head().key[i], key[i]);
  TensorPoolOptions rounded = options;
  rounded.budget_nbytes = segment.data_nbytes();
  Ref<TensorPool> pool = Ref<TensorPool>::adopt(new TensorPool(segment.header().id, rounded));
  const os::Process self = os::this_process();
  MessageHead head;
  head.boot = os::boot();
  head.pid_namespace = os::pid_namespace();
  head.user = os::user();
  head.pid = self.pid;
  head.start = self.start;
  head.segment = segment.header().id;
  head.fd = segment.file().fd();
  const std::scoped_lock locked(segments_.lock_);
  auto node = std::map<SegmentId, std::unique_ptr<Own>>();
  BlockAllocator& allocator = segments_.open_.add_allocator(std::move(made));
  try {
    std::unique_ptr<Own> made_own(new Own{segment, allocator, rounded, head});
    node.emplace(segment.header().id, std::move(made_own));
  } catch (...) {
    segments_.open_.remove_allocator(segment.header().id);
    throw;
  }
  own_.merge(node);
  return pool;
}

void TensorPools::drop(const TensorPool& pool) noexcept {
  {
    const std::scoped_lock locked(segments_.lock_);
    if (Own* const own = find_own(pool.id_)) own->is_dropped = true;
  }
  Segments::nudge();
}

TensorPools::Own* TensorPools::find_own(const SegmentId& id) noexcept {
  const auto at = own_.find(id);
  return at != own_.end() ? at->second.get() : nullptr;
}

bool TensorPools::needs(const SegmentId& pool, const SegmentId& segment) noexcept {
  const Own* const own = find_own(pool);
  if (own == nullptr) return false;
  const auto is_in_it = [&](const Hold& hold) { return hold.segment->header().id == segment; };
  return pool == segment || std::ranges::any_of(own->live, [&](const Live& live) {
           return std::ranges::any_of(live.holds, is_in_it);
         });
}

// A pool that exists has its own_, unless the process was forked meanwhile.
TensorPools::Own& TensorPools::own_of(const TensorPool& pool) {
  Own* const own = find_own(pool.id_);
  if (own == nullptr) pool.check_process();
  return *own;
}

void TensorPools::key_of(const TensorPool& pool, std::byte* out) {
  const std::scoped_lock locked(segments_.lock_);
  for (const auto& word : own_of(pool).segment.pool_head().key) {
    const uint64_t value = word.load(std::memory_order_relaxed);
    std::memcpy(out, &value, sizeof value);
    out += sizeof value;
  }
}

TensorPoolStats TensorPools::stats(const TensorPool& pool) {
  const std::scoped_lock locked(segments_.lock_);
  segments_.look_at_ended_uses();
  Own& own = own_of(pool);
  look_at(own, true);
  (void)own.allocator.reclaim();
  TensorPoolStats stats;
  own.allocator.visit_used([&](uint32_t) { ++stats.blocks; });
  stats.used_nbytes = own.allocator.used_nbytes();
  stats.idle_nbytes = own.allocator.idle_nbytes();
  stats.committed_nbytes = own.allocator.committed_nbytes();
  stats.messages = static_cast<uint32_t>(own.live.size());
  stats.waiting = own.waiting;
  for (const Live& live : own.live) {
    const MessageRecord& record = own.segment.message(live.record);
    if (MessageWord::is_opened(look(record.word))) continue;
    ++stats.unopened;
    stats.unopened_nbytes += record.nbytes.load(std::memory_order_relaxed);
  }
  const uint32_t self = own.segment.participant().index();
  std::bitset<kParticipants> users;
  own.allocator.visit_used([&](uint32_t b) {
    const Block& block = own.segment.block(b);
    bool is_held = false;
    visit_bits(block.users, [&](uint32_t p) {
      users.set(p);
      is_held |= p != self;
    });
    if (!is_held) return;
    ++stats.held;
    stats.held_nbytes += block.nbytes.load(std::memory_order_relaxed);
  });
  stats.processes = static_cast<uint32_t>(users.count());
  const PoolCounts& counts = own.segment.pool_head().counts;
  const auto value = [](const std::atomic<uint64_t>& word) { return word.load(std::memory_order_relaxed); };
  stats.sent = value(counts.sent);
  stats.sent_nbytes = value(counts.sent_nbytes);
  stats.opened = value(counts.opened);
  stats.expired = value(counts.expired);
  stats.revoked = value(counts.revoked);
  stats.receivers_gone = value(counts.receivers_gone);
  stats.inlined = value(counts.inlined);
  stats.inlined_nbytes = value(counts.inlined_nbytes);
  stats.refused = value(counts.refused);
  stats.waits = value(counts.waits);
  stats.waited_ns = value(counts.waited_ns);
  return stats;
}

void TensorPools::note(const TensorPool& pool, const TensorPoolNotes& notes) {
  const std::scoped_lock locked(segments_.lock_);
  PoolCounts& counts = own_of(pool).segment.pool_head().counts;
  count(counts.refused, notes.refused);
  count(counts.inlined, notes.inlined);
  count(counts.inlined_nbytes, notes.inlined_nbytes);
}

// A call fails because there is no room.
void TensorPools::note_refusal(Own& own) noexcept {
  if (!own.options.notes_refusals) count(own.segment.pool_head().counts.refused);
}

// ------------------------------------------------------------------------------------------- memory

// A thread that waits for room. Requires the lock at its begin and its end.
class TensorPools::Wait {
 public:
  Wait(TensorPools& pools, Own& own, const Deadline& deadline) : pools_(pools), own_(own), waiter_(deadline) {
    const std::scoped_lock locked(pools_.segments_.lock_);
    ++own_.waiting;
    own_.segment.begin_wait(own_.segment.pool_head().room);
  }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait() {
    const std::scoped_lock locked(pools_.segments_.lock_);
    --own_.waiting;
    PoolCounts& counts = own_.segment.pool_head().counts;
    count(counts.waits);
    count(counts.waited_ns, static_cast<uint64_t>(now_ns() - since_ns_));
    own_.segment.end_wait(own_.segment.pool_head().room);
  }
  // signals: of the event, before the last look.
  WaitEnd sleep(uint32_t signals) {
    const os::Sleep word{&own_.segment.pool_head().room.signals, signals};
    return waiter_.sleep_on(&word, 1, kLookAgainNs, [] {
      return "room in a tensor pool" + device::SubmittedWork::instance().describe();
    });
  }

 private:
  TensorPools& pools_;
  Own& own_;
  const int64_t since_ns_ = now_ns();
  Waiter waiter_;
};

Ref<Array> TensorPools::empty(TensorPool& pool, DType dtype, Dims shape, int64_t timeout_ns) {
  check_dtype(dtype);
  const uint64_t nbytes = nbytes_of(dtype, shape, 0);
  if (nbytes > pool.options_.budget_nbytes) {
    throw_error(Code::kValue, "an array of ", nbytes, " bytes does not fit into a tensor pool of ",
                pool.options_.budget_nbytes, ": give it a larger budget=");
  }
  const Deadline deadline(timeout_ns);
  std::optional<Wait> wait;
  while (true) {
    uint32_t signals = 0;
    Own* own = nullptr;
    std::string why;
    Ref<Array> made;
    {
      const std::scoped_lock locked(segments_.lock_);
      own = &own_of(pool);
      signals = look(own->segment.pool_head().room.signals);
      made = try_empty(*own, dtype, shape, nbytes, wait.has_value());
      if (!made && (timeout_ns == 0 || (wait && deadline.has_passed()))) {
        why = full_text(*own, nbytes);
        note_refusal(*own);
      }
    }
    if (made) {
      pin(*made);
      return made;
    }
    if (!why.empty()) throw_error(timeout_ns == 0 ? Code::kNoMemory : Code::kTimeout, why);
    if (!wait) {
      wait.emplace(*this, *own, deadline);
      continue;  // another process may have freed memory before it saw that this one waits
    }
    if (wait->sleep(signals) == WaitEnd::kInterrupted) {
      throw_error(Code::kInterrupted, "the wait for room in a tensor pool was interrupted");
    }
  }
}

Ref<Array> TensorPools::try_empty(Own& own, DType dtype, Dims shape, uint64_t nbytes, bool is_thorough) {
  auto use = std::make_unique<Segments::BlockUse>(&own.segment, Segment::kNone);
  const AllocatedBlock found = allocate(own, nbytes, is_thorough);
  if (found.block == Segment::kNone) return {};
  use->block = found.block;
  return Array::over(Segments::adopt(Segments::Use(use.release()), false), dtype, shape, 0);
}

void TensorPools::pin(const Array& array) {
  const Segments::BlockUse* const use = Segments::use_of(array);
  PinnedPages* const pages = use != nullptr ? use->segment->pinned_pages() : nullptr;
  if (pages == nullptr) return;
  const Block& block = use->segment->block(use->block);
  pages->pin(block.begin.load(std::memory_order_relaxed), block.nbytes.load(std::memory_order_relaxed));
}

void TensorPools::pin_if_in_use(const Array& array) noexcept {
  const Segments::BlockUse* const use = Segments::use_of(array);
  if (use == nullptr || use->segment->pinned_pages() == nullptr) return;
  if (!use->segment->is_pinned_here() && !device::is_cuda_in_use()) return;
  try {
    pin(array);
  } catch (const std::exception&) {
    // Copies of it are ordinary ones.
  }
}

AllocatedBlock TensorPools::allocate(Own& own, uint64_t nbytes, bool is_thorough) {
  segments_.look_at_ended_uses();
  if (!is_thorough) {
    look_at(own, false);
    (void)own.allocator.free_unused(kBlocksAtOnce);
  }
  const auto attempt = [&] {
    try {
      return own.allocator.allocate(nbytes);
    } catch (const Error& e) {
      // Tries again with the unused memory of all pools.
      if (e.code() != Code::kNoMemory || !segments_.open_.trim_blocks()) throw;
      return own.allocator.allocate(nbytes);
    }
  };
  own.allocated_at_ns = now_ns();
  if (!is_thorough) {
    const AllocatedBlock found = attempt();
    if (found.block != Segment::kNone) return found;
  }
  look_at(own, true);
  (void)own.allocator.reclaim();
  return attempt();
}

std::string TensorPools::full_text(Own& own, uint64_t nbytes) const {
  const Control& control = own.segment.control();
  std::map<uint32_t, std::pair<uint32_t, uint64_t>> holders;  // participant -> blocks, bytes
  uint32_t blocks = 0;
  own.allocator.visit_used([&](uint32_t b) {
    ++blocks;
    const Block& block = control.block(b);
    visit_bits(block.users, [&](uint32_t p) {
      ++holders[p].first;
      holders[p].second += block.nbytes.load(std::memory_order_relaxed);
    });
  });
  std::string text =
      concat("the tensor pool of ", own.options.budget_nbytes, " bytes has no room for ", nbytes, ": ",
             own.allocator.used_nbytes(), " bytes in ", blocks, " blocks are in use");
  if (blocks == own.segment.header().blocks) text += ", which is their greatest number";
  std::vector<std::pair<uint32_t, std::pair<uint32_t, uint64_t>>> most(holders.begin(), holders.end());
  std::ranges::sort(most, [](const auto& a, const auto& b) { return a.second.second > b.second.second; });
  for (size_t i = 0; i < std::min(most.size(), kMostHolders); ++i) {
    const Place& place = control.place(most[i].first);
    const bool is_elsewhere =
        place.pid_namespace.load(std::memory_order_relaxed) != os::pid_namespace_if_known();
    text += concat(i == 0 ? "; by process " : ", by process ", place.pid.load(std::memory_order_relaxed),
                   " (", command_of(place), is_elsewhere ? ", in another PID namespace) " : ") ",
                   most[i].second.second, " bytes in ", most[i].second.first);
  }
  text += device::SubmittedWork::instance().describe();
  if (!own.live.empty()) text += concat("; ", own.live.size(), " messages have not ended, the oldest:");
  size_t n = 0;
  for (const Live& live : own.live) {
    if (n++ == kMostHolders) break;
    const MessageRecord& record = own.segment.message(live.record);
    const int64_t age_ms = (now_ns() - record.since_ns.load(std::memory_order_relaxed)) / 1'000'000;
    const std::string site = site_of(record);
    text += concat(n == 1 ? " " : ", ", record.nbytes.load(std::memory_order_relaxed), " bytes sent ", age_ms,
                   " ms ago", site.empty() ? "" : " at ", site);
  }
  return text;
}

int TensorPools::owns(const TensorPool& pool, const Array& array) {
  const std::scoped_lock locked(segments_.lock_);
  try {
    const Source source = source_of(array);
    if (!source.is_moved) return 2;
    return source.segment->header().id == pool.id_ ? 1 : 0;
  } catch (const Error&) {
    return 0;
  }
}

// How the array can be sent. Fails with kType (it cannot), kMoved.
TensorPools::Source TensorPools::source_of(const Array& array) const {
  const Storage& storage = array.storage();
  if (storage.moved_at() != nullptr) {
    Conflict conflict;
    conflict.reason = Conflict::Reason::kMoved;
    throw_conflict(conflict, "send", &array);
  }
  const Segments::BlockUse* const use = Segments::use_of(array);
  if (use == nullptr || !use->segment->is_tensor_pool()) {
    throw_error(Code::kType, "the array of shape ", shape_text(array.shape()),
                " does not lie in a tensor pool: make it with pool.empty, or copy it with pool.put");
  }
  if (storage.is_readonly()) return {use->segment, use->block, false};
  if (own_.find(use->id) == own_.end()) {
    throw_error(Code::kType, "the array of shape ", shape_text(array.shape()),
                " was received and can be written, so it lies in no pool of this process: copy it with "
                "pool.put, or receive it as read-only");
  }
  return {use->segment, use->block, true};
}

Ref<Array> TensorPools::freeze(const TensorPool& pool, Array& array) {
  {
    const std::scoped_lock locked(segments_.lock_);
    (void)own_of(pool);
    if (!source_of(array).is_moved) return Ref<Array>::share(&array);
  }
  Memory memory = move_out(array, "pool.freeze");
  memory.is_readonly = true;
  Segments::Use use(static_cast<Segments::BlockUse*>(memory.owner));
  Layout layout = array.layout();
  layout.flags |= TENON_READONLY;
  return Array::make(Segments::adopt(std::move(use), true), layout);
}

// --------------------------------------------------------------------------------- ends of messages

void TensorPools::end_hold(const Hold& hold) noexcept {
  (void)hold.segment->leave(hold.block);
  segments_.open_.note_left(hold.segment->header().id, hold.block);
}

// Ends the uses of a message that is over. ended: where its record goes; null: it is another process's.
void TensorPools::finish(Messages& from, Messages::iterator at, Messages* ended) noexcept {
  for (const Hold& hold : at->holds) end_hold(hold);
  if (ended == nullptr) {
    at->segment->end_stay();
    segments_.open_.note_left(at->segment->header().id, 0);
    from.erase(at);
    return;
  }
  // Of a message that was not sent, the record has another generation.
  PoolCounts& counts = at->segment->pool_head().counts;
  switch (status_of(at->segment->message(at->record), at->generation)) {
    case MessageStatus::kOpened: count(counts.opened); break;
    case MessageStatus::kExpired: count(counts.expired); break;
    case MessageStatus::kRevoked: count(counts.revoked); break;
    case MessageStatus::kReceiversGone: count(counts.receivers_gone); break;
    default: break;
  }
  at->holds = {};
  at->receivers = {};
  at->tag = {};
  ended->splice(ended->end(), from, at);
}

void TensorPools::end_over(Live& live, int64_t now) noexcept {
  MessageRecord& record = live.segment->message(live.record);
  if (live.until_ns != 0 && live.until_ns <= now) {
    (void)end_message(record, live.generation, MessageStatus::kExpired);
  } else if (!live.receivers.empty() && std::ranges::all_of(live.receivers, os::has_ended)) {
    (void)end_message(record, live.generation, MessageStatus::kReceiversGone);
  }
}

// Ends the uses of the messages that are over. is_thorough: also of those that have reached a limit. Else it
// happens only if so many have ended that the looks take a constant time for each of them.
void TensorPools::look_at(Own& own, bool is_thorough) noexcept {
  const uint32_t ended = look(own.segment.pool_head().ended);
  if (!is_thorough && ended - own.seen_ended <= own.live.size() / kLivePerEnded) return;
  own.seen_ended = ended;
  const int64_t now = is_thorough ? now_ns() : 0;
  for (auto at = own.live.begin(); at != own.live.end();) {
    const auto message = at++;
    if (is_thorough) end_over(*message, now);
    const MessageStatus status = status_of(own.segment.message(message->record), message->generation);
    if (status != MessageStatus::kLive) finish(own.live, message, &own.ended);
  }
}

// Ends the uses of the messages of other processes that are over, or that this one has kept long enough.
void TensorPools::look_at_kept(int64_t now) noexcept {
  for (auto at = kept_.begin(); at != kept_.end();) {
    const auto message = at++;
    Segment& segment = *message->segment;
    MessageRecord& record = segment.message(message->record);
    const bool is_over = message->until_ns != 0 && message->until_ns <= now;
    if (is_over) {
      drop_message(segment.control(), record, message->generation, segment.participant().index(),
                   MessageStatus::kExpired);
    }
    if (is_over || status_of(record, message->generation) != MessageStatus::kLive) {
      finish(kept_, message, nullptr);
    }
  }
}

// ------------------------------------------------------------------------------------------- duties

bool TensorPools::sweep() noexcept {
  bool is_unfinished = false;
  const int64_t now = now_ns();
  for (auto at = own_.begin(); at != own_.end();) {
    const auto here = at++;
    Own& own = *here->second;
    look_at(own, true);
    (void)own.allocator.reclaim();
    const uint64_t kept_nbytes = own.options.is_pinned ? UINT64_MAX
                                 : own.is_dropped      ? 0
                                                       : own.options.idle_nbytes;
    if (own.allocator.idle_nbytes() > kept_nbytes) {
      if (kept_nbytes == 0 || now - own.allocated_at_ns >= kIdleBeforeTrimNs) own.allocator.trim(kept_nbytes);
      is_unfinished |= own.allocator.idle_nbytes() > kept_nbytes;
    }
    is_unfinished |= !own.live.empty();
    if (!own.is_dropped || !own.live.empty() || own.allocator.used_nbytes() != 0) continue;
    publish(own.segment.pool_head().is_over, 1u);
    segments_.open_.remove_allocator(here->first);
    own_.erase(here);
  }
  look_at_kept(now);
  return is_unfinished || !kept_.empty();
}

void TensorPools::become_child() noexcept {
  const auto leave = [](const Live& live) {
    for (const Hold& hold : live.holds) (void)hold.segment->leave(hold.block);
  };
  for (const auto& [id, own] : own_) std::ranges::for_each(own->live, leave);
  std::ranges::for_each(kept_, leave);
  for (const Live& live : kept_) live.segment->end_stay();
  own_.clear();
  kept_.clear();
  opened_.clear();
}

}  // namespace tenon::impl
