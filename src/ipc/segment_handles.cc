// SPDX-License-Identifier: Apache-2.0
//
// How Segments makes and opens handles, and the records of handles in a segment.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "ipc/handle.h"
#include "ipc/segments.h"
#include "ipc/tensor_pools.h"

namespace tenon::impl {

// --------------------------------------------------------------------------------- records of handles

uint64_t Segment::sender() const noexcept {
  const uint32_t self = participant_->index();
  return self == Participant::kNone
             ? 0
             : Sender::make(self, participant_->place().generation.load(std::memory_order_relaxed));
}

uint32_t Segment::new_message() {
  constexpr uint32_t kInPage = kPage / sizeof(MessageRecord);
  uint32_t used = control_.used_messages();
  while (used < kMostMessages) {
    if (used % kInPage == 0) {
      os::commit(file_, messages_at(header_.blocks) + used * sizeof(MessageRecord), kPage,
                 "the records of messages in a shared segment");
    }
    if (exchange(control_.messages_used(), used, used + 1)) return used;
    used = control_.used_messages();
  }
  return kNone;
}

// Takes a record that has no message for this process. False: it has one, or is another process's.
bool Segment::take_message(uint32_t i, uint64_t self) noexcept {
  MessageRecord& record = message(i);
  uint64_t sender = look(record.sender);
  if (sender != self && lives(control_, sender)) return false;
  const uint32_t generation = MessageWord::generation(look(record.word));
  if (look_at_message(control_, record, generation) == MessageStatus::kLive) return false;
  return sender == self || exchange(record.sender, sender, self);
}

// Requires messages_lock_. kNone: all have messages.
uint32_t Segment::take_message(uint64_t self) {
  constexpr uint32_t kInPage = kPage / sizeof(MessageRecord), kLooks = 16;
  const auto search = [&](uint32_t looks, uint32_t used) {
    for (uint32_t n = 0; n < looks; ++n) {
      next_message_ = next_message_ + 1 < used ? next_message_ + 1 : 0;
      if (take_message(next_message_, self)) return next_message_;
    }
    return kNone;
  };
  while (true) {
    // The record that was used last is used again last: it tells why its message has ended.
    const uint32_t used = control_.used_messages();
    if (used >= kInPage) {
      const uint32_t found = search(used < kMostMessages ? kLooks : used, used);
      if (found != kNone) return found;
    }
    const uint32_t fresh = new_message();
    if (fresh == kNone && used == kMostMessages) return kNone;
    if (fresh != kNone && take_message(fresh, self)) return fresh;
  }
}

MessageId Segment::send(uint32_t index) {
  const uint64_t self = sender();
  if (self == 0) return {};  // without a place, no process could notice the sender's end
  MessageFacts facts;
  facts.sender = self;
  facts.block = index;
  facts.since_ns = now_ns();
  facts.nbytes = block(index).nbytes.load(std::memory_order_relaxed);
  const std::scoped_lock locked(messages_lock_);
  if (const uint32_t free = take_message(self); free != kNone) {
    store(block(index).sent, free + 1);
    return {free, begin_message(message(free), facts)};
  }
  // The handle shares the record of another one without limits, so the number of such handles has no bound.
  for (uint32_t i = 0; i < kMostMessages; ++i) {
    MessageRecord& record = message(i);
    if (look(record.sender) != self || record.block.load(std::memory_order_relaxed) != index) continue;
    const uint32_t flags = record.flags.load(std::memory_order_relaxed);
    if ((flags & kCountedHandle) != 0 || record.until_ns.load(std::memory_order_relaxed) != 0) continue;
    if (std::ranges::any_of(limited_, [&](const Limited& l) { return !l.is_kept && l.handle.record == i; }))
      continue;
    store(record.flags, flags | kSharedRecord);
    const uint32_t generation = MessageWord::generation(look(record.word));
    if (add_open(record)) return {i, generation};
  }
  throw_error(Code::kNoMemory, "the shared array cannot be sent: ", kMostMessages,
              " handles of arrays in its memory are unopened, or were a second ago, which is their greatest "
              "number: let them be opened, or revoke them (tn.revoke_handles, tenon_shared_revoke)");
}

MessageStatus Segment::receive(const MessageId& handle) noexcept {
  if (const MessageStatus status = status_of(handle); status != MessageStatus::kLive) return status;
  bool is_last = false;
  return open_message(message(handle.record), handle.generation, now_ns(), &is_last);
}

MessageStatus Segment::status_of(const MessageId& handle) const noexcept {
  if (handle.record >= control_.used_messages()) return MessageStatus::kUnknown;
  return look_at_message(control_, message(handle.record), handle.generation);
}

Kept Segment::take_over(const MessageId& handle, int64_t until_ns) {
  const uint32_t self = participant_->index();
  const std::scoped_lock locked(messages_lock_);
  const bool is_live = status_of(handle) == MessageStatus::kLive;
  if (!is_live || self == Participant::kNone) return Kept::kNo;
  if (is_own(handle)) return Kept::kYes;  // it keeps it as its sender
  if (limited_.size() == limited_.capacity()) limited_.reserve(2 * limited_.size() + 4);
  const Kept answer = keep_message(control_, message(handle.record), handle.generation, self);
  if (answer != Kept::kYes) return answer;
  std::erase_if(limited_, [&](const Limited& l) { return l.is_kept && l.handle.record == handle.record; });
  if (until_ns != 0) limited_.push_back({handle, {}, until_ns, true});
  return Kept::kYes;
}

bool Segment::has_sent() noexcept {
  drop_kept();
  for (uint32_t i = 0, used = control_.used_messages(); i < used; ++i) {
    if (keeps_message(message(i), look(message(i).word))) return true;
  }
  return false;
}

// This process keeps the message of the record, if that is live.
bool Segment::keeps_message(const MessageRecord& record, uint64_t word) const noexcept {
  if (participant_->index() == Participant::kNone || !MessageWord::is_live(word)) return false;
  if (MessageWord::keeper(word) == participant_->index() + 1) return true;
  const uint64_t alone = MessageWord::with_keeper(word, MessageWord::kNoKeeper);
  return look(record.sender) == sender() && fate_of(control_, record, alone) == MessageStatus::kLive;
}

uint32_t Segment::revoke(uint32_t index) noexcept {
  drop_kept();
  uint32_t n = 0;
  for (uint32_t i = 0, used = control_.used_messages(); i < used; ++i) {
    MessageRecord& record = message(i);
    // If one of these looks is at a later message, the exchange fails.
    for (uint64_t word = look(record.word); keeps_message(record, word); word = look(record.word)) {
      if (record.block.load(std::memory_order_relaxed) != index) break;
      const uint32_t count = count_of_handles(record, word);
      if (!exchange(record.word, word, MessageWord::with_status(word, MessageStatus::kRevoked))) continue;
      n += count;
      break;
    }
  }
  return n;
}

// A live handle that this process has sent.
bool Segment::is_own(const MessageId& handle) const noexcept {
  return handle.record < control_.used_messages() && look(message(handle.record).sender) == sender() &&
         impl::status_of(message(handle.record), handle.generation) == MessageStatus::kLive;
}

// A handle that shares its record has no limits of its own. Fails with kNoMemory.
void Segment::check_alone(const MessageRecord& record) {
  if ((record.flags.load(std::memory_order_relaxed) & kSharedRecord) == 0) return;
  throw_error(Code::kNoMemory,
              "this handle cannot have limits: it shares its record with another one, because ",
              kMostMessages,
              " handles of arrays in this memory were unopened; let them be opened, or revoke them "
              "(tn.revoke_handles, tenon_shared_revoke), and make the handle again");
}

void Segment::limit(const MessageId& handle, const HandleLimits& limits) {
  const std::scoped_lock locked(messages_lock_);
  if (!is_own(handle)) return;
  MessageRecord& record = message(handle.record);
  if (limits.receiver.pid != 0 || limits.until_ns != 0) check_alone(record);
  std::erase_if(limited_, [&](const Limited& l) { return !l.is_kept && l.handle.record == handle.record; });
  if (limits.until_ns != 0 && limits.until_ns <= now_ns()) {
    (void)end_message(record, handle.generation, MessageStatus::kRevoked);
    return;
  }
  if (limits.receiver.pid != 0) limited_.push_back({handle, limits.receiver, 0, false});
  store(record.until_ns, limits.until_ns);
}

bool Segment::set_opens(const MessageId& handle, uint32_t opens) {
  const std::scoped_lock locked(messages_lock_);
  if (!is_own(handle)) return false;
  MessageRecord& record = message(handle.record);
  check_alone(record);
  store(record.flags, uint32_t{kCountedHandle});
  return impl::set_opens(record, handle.generation, opens);
}

// This process keeps handles of others no longer than it has said.
void Segment::drop_kept() noexcept {
  const std::scoped_lock locked(messages_lock_);
  std::erase_if(limited_, [&](const Limited& l) {
    if (!l.is_kept) return false;
    if (l.until_ns > now_ns())
      return impl::status_of(message(l.handle.record), l.handle.generation) != MessageStatus::kLive;
    drop_message(control_, message(l.handle.record), l.handle.generation, participant_->index(),
                 MessageStatus::kExpired);
    return true;
  });
}

// The receiver of a handle of this process has ended. It does not bind a process that keeps the handle.
void Segment::end_for_receiver(const MessageId& handle) noexcept {
  MessageRecord& record = message(handle.record);
  while (is_own(handle)) {
    uint64_t word = look(record.word);
    if (MessageWord::keeper(word) != MessageWord::kNoKeeper) {
      return store(record.until_ns, int64_t{1});  // this one keeps it no more
    }
    if (MessageWord::generation(word) == handle.generation && MessageWord::is_live(word) &&
        exchange(record.word, word, MessageWord::with_status(word, MessageStatus::kReceiversGone))) {
      return;
    }
  }
}

bool Segment::end_limited() noexcept {
  drop_kept();
  std::vector<Limited> over;
  try {
    {
      const std::scoped_lock locked(messages_lock_);
      over = limited_;
    }
    std::erase_if(over, [this](const Limited& l) {
      return l.is_kept || (is_own(l.handle) && !os::has_ended(l.receiver));
    });
  } catch (const std::bad_alloc&) {
    return true;
  }
  const std::scoped_lock locked(messages_lock_);
  for (const Limited& sent : over) {
    // Its limits may have been changed meanwhile.
    const auto is_same = [&](const Limited& l) {
      return !l.is_kept && l.handle == sent.handle && l.receiver == sent.receiver;
    };
    if (std::erase_if(limited_, is_same) != 0) end_for_receiver(sent.handle);
  }
  return (has_many_messages() && give_messages()) || !limited_.empty();
}

// Other processes may take the records of messages of this one that have ended. True: many others are live.
// Requires messages_lock_.
bool Segment::give_messages() noexcept {
  const uint64_t self = sender();
  constexpr uint32_t kMany = kPage / sizeof(MessageRecord);
  uint32_t live = 0;
  for (uint32_t i = 0, used = control_.used_messages(); i < used && self != 0; ++i) {
    MessageRecord& record = message(i);
    if (look(record.sender) != self) continue;
    const bool is_live = MessageWord::is_live(look(record.word));
    live += is_live ? 1 : 0;
    if (!is_live) publish(record.sender, uint64_t{0});
  }
  return live > kMany;
}

bool Segment::keeps(uint32_t i, uint32_t index) const noexcept {
  const MessageRecord& record = message(i);
  const uint64_t word = look(record.word);
  return MessageWord::is_live(word) && record.block.load(std::memory_order_relaxed) == index &&
         fate_of(control_, record, word) == MessageStatus::kLive;
}

// Some handle on the block is unopened.
bool Segment::has_handles(uint32_t index) const noexcept {
  Block& b = block(index);
  const uint32_t last = look(b.sent), used = control_.used_messages();
  if (last == 0) return false;
  if (last <= used && keeps(last - 1, index)) return true;
  for (uint32_t i = 0; i < used; ++i) {
    if (!keeps(i, index)) continue;
    store(b.sent, i + 1);
    return true;
  }
  return false;
}

// --------------------------------------------------------------------------------------------- handles

std::string Segments::handle_of(const Array& array) {
  const BlockUse* const use = &checked_use_of(array);
  Segment& segment = *use->segment;
  ArrayHandle handle;
  handle.boot = os::boot();
  handle.pid_namespace = os::pid_namespace();
  handle.user = os::user();
  const os::Process self = os::this_process();
  handle.pid = self.pid;
  handle.start = self.start;
  handle.fd = segment.file().fd();
  handle.segment = segment.header().id;
  handle.block = use->block;
  handle.generation = segment.block(use->block).generation.load(std::memory_order_relaxed);
  handle.offset = array.data() - segment.data_of(use->block);
  handle.dtype = array.dtype();
  handle.flags = array.desc().flags;
  handle.ndim = array.desc().ndim;
  handle.shape.assign(array.shape().begin(), array.shape().end());
  handle.strides.assign(array.strides().begin(), array.strides().end());
  // No process can open a file that this one has lost.
  const MessageId sent = handle.fd >= 0 ? segment.send(use->block) : MessageId();
  if (segment.has_many_messages()) {
    // Other processes may need its records when the handles have been opened.
    const std::scoped_lock locked(lock_);
    schedule_sweep();
  }
  handle.record = sent.record;
  handle.message = sent.generation;
  try {
    return handle.encode();
  } catch (...) {
    (void)segment.receive(sent);  // no process will open it
    throw;
  }
}

uint32_t Segments::revoke(const Array& array) {
  const BlockUse& use = checked_use_of(array);
  return use.segment->revoke(use.block);
}

Segment* Segments::own_segment_of(const ArrayHandle& handle) {
  if (handle.sender() != os::this_process()) {
    throw_error(Code::kValue, "process ", handle.pid, " has sent this handle, not this process, ",
                os::this_process().pid);
  }
  return open_.find(handle.segment);
}

void Segments::limit(std::span<const std::byte> bytes, const HandleLimits& limits) {
  const ArrayHandle handle = ArrayHandle::decode(bytes);
  {
    const std::scoped_lock locked(lock_);
    Segment* const segment = own_segment_of(handle);
    if (segment == nullptr) return;  // it is closed, and the handle keeps nothing
    segment->limit(handle.sent(), limits);
    schedule_sweep();
  }
}

void Segments::set_opens(std::span<std::byte> bytes, uint32_t opens) {
  if (opens >= MessageWord::kNoLimit) {
    throw_error(Code::kValue, "opens is ", opens, ": it must be 0 to ", MessageWord::kNoLimit - 1);
  }
  ArrayHandle handle = ArrayHandle::decode(bytes);
  const std::scoped_lock locked(lock_);
  Segment* const segment = own_segment_of(handle);
  const uint32_t most = opens == 0 ? uint32_t{MessageWord::kNoLimit} : opens;
  if (segment == nullptr || !segment->set_opens(handle.sent(), most)) {
    throw_error(Code::kValue, "this handle has ended: a process has opened it, or it was revoked");
  }
  handle.flags |= kCountedOpens;
  std::memcpy(bytes.data(), static_cast<const HandleHead*>(&handle), sizeof(HandleHead));
}

Ref<Array> Segments::open(std::span<const std::byte> bytes) {
  const ArrayHandle handle = ArrayHandle::decode(bytes);
  return open(handle, [&](Segment& segment) {
    if (!handle.has_counted_opens()) {
      (void)segment.receive(handle.sent());
      return;
    }
    const MessageStatus status = tensor_pools_->count_open(segment, handle.sent());
    if (status != MessageStatus::kLive) throw_gone(status, "handle", handle.pid);
  });
}

Ref<Array> Segments::open_or_lose(std::span<const std::byte> bytes) {
  try {
    return open(bytes);
  } catch (const Error& why) {
    const ArrayHandle handle = ArrayHandle::decode(bytes);
    check_dtype(handle.dtype);
    const uint32_t flags = handle.flags & (TENON_READONLY | TENON_SUBBYTE_PADDED);
    return Array::lost(handle.dtype, handle.shape, flags, {TENON_CPU, 0}, why);
  }
}

bool Segments::take_over(std::span<const std::byte> bytes, int64_t until_ns) {
  const ArrayHandle handle = ArrayHandle::decode(bytes);
  const auto keep = [&] {
    Kept answer = Kept::kNo;
    try {
      (void)open(handle, [&](Segment& segment) {
        answer = segment.take_over(handle.sent(), until_ns);
        if (answer == Kept::kYes) schedule_sweep();
      });
    } catch (const Error& e) {
      if (e.code() != Code::kGone) throw;
    }
    return answer;
  };
  return keep_patiently(keep);
}

bool Segments::is_unopened(std::span<const std::byte> bytes) {
  const ArrayHandle handle = ArrayHandle::decode(bytes);
  const std::scoped_lock locked(lock_);
  const Segment* const segment = open_.find(handle.segment);
  return segment != nullptr && segment->status_of(handle.sent()) == MessageStatus::kLive;
}

const Segments::BlockUse& Segments::checked_use_of(const Array& array) {
  const BlockUse* const use = use_of(array);
  array.check_memory();
  if (use == nullptr) {
    throw_error(Code::kType, "the array of shape ", shape_text(array.shape()),
                " does not lie in shared memory: make it with shared=");
  }
  if (use->segment->is_tensor_pool()) {
    throw_error(Code::kType, "the array of shape ", shape_text(array.shape()),
                " lies in a tensor pool, which sends it by messages and not by handles: use pool.dumps");
  }
  return *use;
}

// The handle stays unopened. The result lies on the segment. Calls then, at most once, while this process
// uses the block: the array may be of another owner that has lent the memory.
Ref<Array> Segments::open(const ArrayHandle& handle, const std::function<void(Segment&)>& then) {
  return open_patiently([&](bool is_last) { return try_open(handle, then, is_last); });
}

Ref<Array> Segments::try_open(const ArrayHandle& handle, const std::function<void(Segment&)>& then,
                              bool is_last) {
  check_machine("the shared array cannot be opened: ", handle.boot);
  if (handle.user != os::user()) {
    throw_error(Code::kNotFound, "the shared array cannot be opened: it belongs to user ", handle.user,
                ", this process to user ", os::user());
  }
  std::unique_lock locked(lock_);
  sweep_some();
  OpenSegments::CloseUnused opened(open_);
  if (open_.find(handle.segment) == nullptr && handle.pid_namespace != os::pid_namespace()) {
    throw_error(Code::kNotFound,
                "the shared array cannot be opened: it was sent from another PID namespace "
                "(another container?)");
  }
  const auto reach_it = [&]() -> Segment& {
    try {
      return reach(handle.segment, handle.sender(), handle.fd, opened);
    } catch (const Error& e) {
      if (e.code() != Code::kNotFound || !handle.has_counted_opens()) throw;
      if (!os::why_hidden(handle.sender(), handle.fd).empty()) throw;
      throw_gone(MessageStatus::kSenderGone, "handle", handle.pid);
    }
  };
  Segment& segment = reach_it();
  if (handle.has_counted_opens() && !tensor_pools_->has_opened(segment, handle.sent())) {
    const MessageStatus status = segment.status_of(handle.sent());
    if (status != MessageStatus::kLive) throw_gone(status, "handle", handle.pid);
  }
  if (segment.is_tensor_pool()) throw_error(Code::kValue, "this handle names the memory of a tensor pool");
  const bool is_readonly = (handle.flags & TENON_READONLY) != 0 && !segment.is_writable();
  const auto begin_to_use = [&] {
    try {
      return begin_use(segment, handle.block, handle.generation, is_readonly, is_last);
    } catch (const Error& e) {
      if (e.code() != Code::kNotFound || !handle.has_counted_opens()) throw;
      const MessageStatus now = segment.status_of(handle.sent());
      throw_gone(now != MessageStatus::kLive ? now : MessageStatus::kSenderGone, "handle", handle.pid);
    }
  };
  Use use = begin_to_use();
  open_memory(*use, locked);
  const Ref<Storage> storage = storage_of(std::move(use), is_readonly);
  const Ref<Array> array =
      array_on(storage, handle.offset, handle.dtype, handle.flags & (TENON_READONLY | TENON_SUBBYTE_PADDED),
               handle.shape, handle.strides);
  if (array) {
    then(segment);
    return array;
  }
  throw_error(Code::kValue,
              "this is not a handle of a shared array: its elements do not lie in the memory that it names");
}

}  // namespace tenon::impl
