// SPDX-License-Identifier: Apache-2.0
//
// How TensorPools sends and opens messages.
#include <algorithm>
#include <cstring>
#include <utility>

#include "array/access.h"
#include "array/ownership.h"
#include "base/clock.h"
#include "base/error.h"
#include "ipc/handle.h"
#include "ipc/lazy_copy.h"
#include "ipc/pool_links.h"
#include "ipc/tensor_pools.h"

namespace tenon::impl {
namespace {

int64_t until(int64_t timeout_ns) noexcept {
  int64_t until_ns = 0;
  if (timeout_ns < 0) return 0;
  return __builtin_add_overflow(now_ns(), timeout_ns, &until_ns) ? INT64_MAX : std::max<int64_t>(until_ns, 1);
}

// Of a limit and the deadline of the message; 0: none.
int64_t earlier(int64_t limit_ns, int64_t deadline_ns) noexcept {
  if (limit_ns == 0 || deadline_ns == 0) return std::max(limit_ns, deadline_ns);
  return std::min(limit_ns, deadline_ns);
}

// Arrays of this process lie there. A message that it has sent may use the block without them.
bool has_arrays_on(Segment& segment, uint32_t block, Access access) {
  if (block >= segment.header().blocks || !segment.is_used_here(block)) return false;
  const uint64_t nbytes = segment.block(block).nbytes.load(std::memory_order_relaxed);
  return nbytes == 0 || Storage::find(segment.data_of(block), nbytes, access);
}

void check_reachable(const MessageHead& message) {
  constexpr const char* kCannot = "the message cannot be opened: ";
  check_machine("the message cannot be opened: ", message.boot);
  if (message.user != os::user()) {
    throw_error(Code::kNotFound, kCannot, "it belongs to user ", message.user, ", this process to user ",
                os::user(),
                ": serve the pool at a socket to a group of both users, and attach to it here (group= of "
                "pool.serve and tn.attach_pool; tenon_tensor_pool_serve, tenon_pool_attach)");
  }
  if (message.pid_namespace != os::pid_namespace()) {
    throw_error(
        Code::kNotFound, kCannot,
        "it was sent from another PID namespace (another container?): serve the pool at a socket, and "
        "attach to it here (pool.serve, tn.attach_pool; tenon_tensor_pool_serve, tenon_pool_attach)");
  }
}

// A writable storage with the bytes of a read-only one, of which no other process sees a write. Requires that
// nobody writes the bytes as long as the storage exists.
Ref<Storage> writable_copy(Storage& shared, Segment& segment) {
  PrivatePages* const pages = segment.private_pages();
  if (pages != nullptr && shared.nbytes() >= kLeastPrivateNbytes) {
    const auto begin = static_cast<uint64_t>(shared.data() - segment.data());
    if (Ref<Storage> storage = on_private_pages(shared, *pages, begin, shared.nbytes())) return storage;
  }
  Ref<Storage> copied = Storage::allocate(shared.nbytes(), false);
  if (shared.nbytes() != 0) std::memcpy(copied->data(), shared.data(), shared.nbytes());
  return copied;
}

}  // namespace

// ------------------------------------------------------------------------------------------ sending

// A list with one message, whose record is free.
TensorPools::Messages TensorPools::take_record(Own& own) {
  Messages taken;
  if (own.segment.control().used_messages() < kMostMessages) {
    taken.emplace_back();
    taken.front().record = own.segment.new_message();  // no other process takes one
  } else {
    if (own.ended.empty()) look_at(own, true);
    if (own.ended.empty()) {
      note_refusal(own);
      throw_error(Code::kNoMemory, own.live.size(),
                  " messages of the tensor pool have not ended, which is their greatest number: let them be "
                  "opened, give them a time limit, or revoke them");
    }
    taken.splice(taken.begin(), own.ended, own.ended.begin());
  }
  taken.front().segment = &own.segment;
  taken.front().generation = 0;  // of no message, until it is sent
  return taken;
}

// A copy of the text that is never freed.
const char* TensorPools::lasting(const char* site) {
  if (site == nullptr) return nullptr;
  const auto at = sites_.find(std::string_view(site));
  return (at != sites_.end() ? *at : *sites_.emplace(site).first).c_str();
}

size_t TensorPools::send(const TensorPool& pool, std::span<Array* const> arrays, const SendOptions& options,
                         std::span<std::byte> room) {
  if (options.opens >= MessageWord::kNoLimit) {
    throw_error(Code::kValue, "opens is ", options.opens, ": it must be 0 to ", MessageWord::kNoLimit - 1);
  }
  if (room.size() < most_nbytes_of_message(arrays)) {
    throw_error(Code::kValue, "a message of ", arrays.size(), " arrays does not fit into ", room.size(),
                " bytes");
  }
  std::vector<Source> sources(arrays.size());
  std::vector<MessageArray> written(arrays.size());
  std::vector<MessageSegment> list;
  std::vector<Array*> moved;  // one for each storage
  std::vector<Hold> moved_holds;
  Messages message;
  const char* site = nullptr;
  {
    const std::scoped_lock locked(segments_.lock_);
    segments_.look_at_ended_uses();
    Own& own = own_of(pool);
    look_at(own, false);
    site = lasting(options.site);
    for (size_t i = 0; i < arrays.size(); ++i) {
      const Array& array = *arrays[i];
      const Source& source = sources[i] = source_of(array);
      MessageArray& to = written[i];
      to.offset = array.data() - source.segment->data_of(source.block);
      to.block = source.block;
      to.generation = source.segment->block(source.block).generation.load(std::memory_order_relaxed);
      to.dtype = array.dtype();
      to.flags = array.desc().flags & TENON_SUBBYTE_PADDED;
      to.ndim = array.desc().ndim;
      if (source.segment != &own.segment) {
        const SegmentId& id = source.segment->header().id;
        auto at = std::ranges::find(list, id, &MessageSegment::id);
        if (at == list.end()) at = list.insert(list.end(), {id, source.segment->file().fd(), 0});
        to.segment = static_cast<uint32_t>(at - list.begin()) + 1;
      }
      const auto is_same = [&](const Array* other) { return &other->storage() == &array.storage(); };
      if (!source.is_moved || std::ranges::any_of(moved, is_same)) continue;
      moved.push_back(arrays[i]);
      moved_holds.push_back({source.segment, source.block});
    }
    Messages taken = take_record(own);
    Live& live = taken.front();
    try {
      live.tag = options.tag;
      live.receivers = options.receivers;
      live.holds.reserve(arrays.size());
    } catch (...) {
      own.ended.splice(own.ended.end(), taken);
      throw;
    }
    for (size_t i = 0; i < arrays.size(); ++i) {
      if (sources[i].is_moved) continue;
      (void)sources[i].segment->use(sources[i].block, written[i].generation);  // the array uses it, too
      live.holds.push_back({sources[i].segment, sources[i].block});
    }
    message = std::move(taken);
  }
  std::vector<Memory> memories;
  try {
    memories.resize(moved.size());
    if (!moved.empty()) move_out(moved, site, memories.data());
  } catch (...) {
    const std::scoped_lock locked(segments_.lock_);
    finish(message, message.begin(), &own_of(pool).ended);
    throw;
  }
  // Nothing fails from here on.
  const std::scoped_lock locked(segments_.lock_);
  Own& own = own_of(pool);
  Live& live = message.front();
  for (const Memory& memory : memories) {
    auto* const use = static_cast<Segments::BlockUse*>(memory.owner);
    Segment& segment = *use->segment;
    const uint32_t generation = segment.block(use->block).generation.load(std::memory_order_relaxed);
    if (segment.is_pinned_here() && segment.use(use->block, generation)) {
      Segments::end_use(use);  // after the work that was submitted, beside the use of the message
    } else {
      delete use;
    }
  }
  live.holds.insert(live.holds.end(), moved_holds.begin(), moved_holds.end());
  MessageFacts facts;
  facts.opens = options.opens == 0 ? uint32_t{MessageWord::kNoLimit} : options.opens;
  facts.since_ns = now_ns();
  facts.until_ns = until(options.timeout_ns >= 0 ? options.timeout_ns : own.options.timeout_ns);
  facts.site = site;
  facts.tag = live.tag;
  facts.sender = own.segment.sender();
  bool is_handed_over = facts.opens == 1;
  for (const Hold& hold : live.holds) {
    facts.nbytes += hold.segment->block(hold.block).nbytes.load(std::memory_order_relaxed);
  }
  for (size_t i = 0; i < arrays.size(); ++i) {
    // A forked child may have inherited the array.
    const uint32_t self = sources[i].segment->participant().index();
    bool is_alone = sources[i].is_moved && facts.opens == 1;
    visit_bits(sources[i].segment->block(sources[i].block).users, [&](uint32_t p) { is_alone &= p == self; });
    if (is_alone) written[i].flags |= kHandedOver;
    is_handed_over &= is_alone;
  }
  if (is_handed_over) facts.flags = kHandedOverMessage;
  live.has_opens = options.opens != 0;
  live.until_ns = facts.until_ns;
  live.generation = begin_message(own.segment.message(live.record), facts);
  count(own.segment.pool_head().counts.sent);
  count(own.segment.pool_head().counts.sent_nbytes, facts.nbytes);
  MessageHead head = own.head;
  head.record = live.record;
  head.generation = live.generation;
  head.segments = static_cast<uint32_t>(list.size());
  head.arrays = static_cast<uint32_t>(arrays.size());
  std::byte* at = room.data();
  const auto write = [&](const void* from, size_t nbytes) {
    if (nbytes != 0) std::memcpy(at, from, nbytes);
    at += nbytes;
  };
  write(&head, sizeof head);
  write(list.data(), list.size() * sizeof(MessageSegment));
  for (size_t i = 0; i < arrays.size(); ++i) {
    write(&written[i], sizeof written[i]);
    write(arrays[i]->shape().data(), arrays[i]->shape().size_bytes());
    write(arrays[i]->strides().data(), arrays[i]->strides().size_bytes());
  }
  own.live.splice(own.live.end(), message);
  segments_.schedule_sweep();
  return static_cast<size_t>(at - room.data());
}

uint32_t TensorPools::revoke(const TensorPool& pool, const std::string& tag) {
  const std::scoped_lock locked(segments_.lock_);
  Own& own = own_of(pool);
  uint32_t n = 0;
  const int64_t now = now_ns();
  for (Live& live : own.live) {
    if (live.tag != tag || tag.empty()) continue;
    end_over(live, now);  // such a message is not revoked, but expired
    if (end_message(own.segment.message(live.record), live.generation, MessageStatus::kRevoked)) ++n;
  }
  look_at(own, true);
  if (n != 0) signal_event(own.segment.pool_head().room);
  return n;
}

// Another process that lives has sent the message, which is live. If this process does not have the memory,
// and the number of the sender is of other processes here, that is not known: true.
bool TensorPools::is_of_another(const MessageHead& message) noexcept {
  const Segment* const segment = segments_.open_.find(message.segment);
  if (segment != nullptr && segment->is_tensor_pool() &&
      message.record < segment->control().used_messages()) {
    const MessageRecord& record = segment->control().message(message.record);
    return status_of(record, message.generation) == MessageStatus::kLive &&
           lives(segment->control(), look(record.sender));
  }
  const bool has_number = message.start != 0 && message.pid_namespace == os::pid_namespace_if_known();
  const os::Process sender{message.pid, message.start};
  return !has_number || !(sender == os::this_process() || os::has_ended(sender));
}

void TensorPools::revoke(std::span<const std::byte> bytes) {
  const MessageHead head = ReadMessage::head_of(bytes);
  const std::scoped_lock locked(segments_.lock_);
  Own* const own = find_own(head.segment);
  Messages& from = own != nullptr ? own->live : kept_;
  const auto is_it = [&](const Live& live) {
    return live.segment->header().id == head.segment && live.record == head.record &&
           live.generation == head.generation;
  };
  const auto at = std::ranges::find_if(from, is_it);
  if (at == from.end()) {
    // One of a process that has ended was opened, or is not kept by this process.
    if (own != nullptr || !is_of_another(head)) return;
    const bool is_elsewhere = head.pid_namespace != os::pid_namespace_if_known();
    throw_error(Code::kValue, "process ", head.pid, is_elsewhere ? " of another PID namespace" : "",
                " has sent this message, not this process, ", os::this_process().pid);
  }
  Segment& segment = *at->segment;
  end_over(*at, now_ns());
  (void)end_message(segment.message(head.record), head.generation, MessageStatus::kRevoked);
  finish(from, at, own != nullptr ? &own->ended : nullptr);
  signal_event(segment.pool_head().room);
}

bool TensorPools::is_unopened(std::span<const std::byte> bytes) {
  const MessageHead head = ReadMessage::head_of(bytes);
  const std::scoped_lock locked(segments_.lock_);
  const Segment* const segment = segments_.open_.find(head.segment);
  return segment != nullptr && segment->is_tensor_pool() &&
         segment->status_of(head.id()) == MessageStatus::kLive;
}

uint32_t TensorPools::count_live() {
  const std::scoped_lock locked(segments_.lock_);
  look_at_kept(now_ns());
  uint32_t n = 0;
  const auto count = [&](Live& live) {
    end_over(live, now_ns());
    const MessageStatus status = status_of(live.segment->message(live.record), live.generation);
    n += live.has_opens && status == MessageStatus::kLive ? 1 : 0;
  };
  const auto count_own = [&](Live& live) {
    const uint64_t word = look(live.segment->message(live.record).word);
    if (!has_living_keeper(live.segment->control(), word)) count(live);
  };
  for (auto& [id, own] : own_) std::ranges::for_each(own->live, count_own);
  std::ranges::for_each(kept_, count);
  return n;
}

// ------------------------------------------------------------------------------------------ opening

// The segments of a message that was read. Requires the lock.
class TensorPools::Opened {
 public:
  Opened(Segments& segments, const MessageHead& message) : message_(message) {
    pool_ = &reach(segments, message.segment, message.fd);
    if (message.record >= pool_->control().used_messages()) {
      throw_error(Code::kValue, "this is not a message of a tensor pool: it names the record ",
                  message.record);
    }
  }
  Opened(Segments& segments, const ReadMessage& message)
      : Opened(segments, static_cast<const MessageHead&>(message)) {
    for (const MessageSegment& other : message.list) others_.push_back(&reach(segments, other.id, other.fd));
  }
  Segment& pool() const noexcept { return *pool_; }
  Segment& of(const MessageArray& array) const noexcept {
    return array.segment == 0 ? *pool_ : *others_[array.segment - 1];
  }
  MessageRecord& record() const noexcept { return pool_->message(message_.record); }
  // kLive, or why the message cannot be opened.
  MessageStatus status() const noexcept { return pool_->status_of(message_.id()); }

 private:
  Segment& reach(Segments& segments, const SegmentId& id, int fd) {
    OpenSegments::CloseUnused opened(segments.open_);
    try {
      if (segments.open_.find(id) == nullptr) check_reachable(message_);
      Segment& segment = segments.reach(id, {message_.pid, message_.start}, fd, opened);
      if (!segment.is_tensor_pool()) {
        throw_error(Code::kValue, "this is not a message of a tensor pool: it names other shared memory");
      }
      opened.keep();
      return segment;
    } catch (const Error& e) {
      if (e.code() != Code::kNotFound) throw;
      const Error why = why_not(segments, id, fd);
      if (segments.pool_links_->is_empty()) throw Error(why);
      throw Segments::Unreached{id, why};
    }
  }

  // A segment of the message was not found.
  Error why_not(Segments& segments, const SegmentId& id, int fd) const {
    try {
      // Of a message that has ended, nobody has to give another pool.
      if (pool_ != nullptr && status() != MessageStatus::kLive) throw_gone(status(), "message", message_.pid);
      if (segments.pool_links_->has_given(id))
        throw_gone(MessageStatus::kSenderGone, "message", message_.pid);
      check_reachable(message_);
      if (const std::string why = os::why_hidden({message_.pid, message_.start}, fd); !why.empty())
        return {Code::kNotFound, concat("the message cannot be opened: ", why)};
      throw_gone(MessageStatus::kSenderGone, "message", message_.pid);
    } catch (const Error& e) {
      return e;
    }
  }

  const MessageHead& message_;
  Segment* pool_ = nullptr;
  std::vector<Segment*> others_;
};

bool TensorPools::has_opened(const Segment& segment, const MessageId& message) const noexcept {
  const auto at = opened_.find({segment.header().id, message.record});
  return at != opened_.end() && at->second == message.generation;
}

MessageStatus TensorPools::count_open(Segment& segment, const MessageId& message) {
  if (has_opened(segment, message)) return MessageStatus::kLive;
  forget_closed();
  uint32_t& generation = opened_[{segment.header().id, message.record}];
  bool is_last = false;
  const MessageStatus status =
      impl::open_message(segment.message(message.record), message.generation, now_ns(), &is_last);
  if (is_last && segment.is_tensor_pool()) {
    (void)add(segment.pool_head().ended, 1u);
    signal_event(segment.pool_head().room);
  }
  if (status == MessageStatus::kLive) generation = message.generation;
  return status;
}

void TensorPools::forget_closed() noexcept {
  if (opened_.size() < forget_at_) return;
  std::erase_if(opened_,
                [&](const auto& opened) { return segments_.open_.find(opened.first.first) == nullptr; });
  forget_at_ = std::max<size_t>(64, 2 * opened_.size());
}

std::vector<Ref<Array>> TensorPools::open(std::span<const std::byte> bytes, bool is_readonly) {
  const ReadMessage message = ReadMessage::read(bytes);
  return Segments::open_patiently([&](bool is_last) { return try_open(message, is_readonly, is_last); });
}

std::vector<Ref<Array>> TensorPools::try_open(const ReadMessage& message, bool is_readonly, bool is_last) {
  std::vector<Ref<Array>> arrays;
  std::vector<Segment*> segments;  // of the arrays; they stay open as long as these
  bool has_copies = false;
  {
    const std::scoped_lock locked(segments_.lock_);
    segments_.look_at_ended_uses();
    const Opened opened(segments_, message);
    const bool is_again = has_opened(opened.pool(), message.id());
    const MessageStatus status = opened.status();
    if (status != MessageStatus::kLive && !is_again) throw_gone(status, "message", message.pid);
    std::vector<Segments::Use> uses;
    uses.reserve(message.all.size());
    for (const ReadArray& array : message.all) {
      Segment& segment = opened.of(array);
      const bool may_use =
          status == MessageStatus::kLive || has_arrays_on(segment, array.block, Access::kRead);
      auto use = std::make_unique<Segments::BlockUse>(&segment, array.block);
      const Segment::Used used =
          may_use ? segment.try_use(array.block, array.generation) : Segment::Used::kNo;
      if (used == Segment::Used::kIsClosing && !is_last) throw Segments::BlockIsClosing();
      if (used != Segment::Used::kYes) {
        if (segment.participant().index() == Participant::kNone) segment.throw_no_place();
        const MessageStatus now = opened.status();
        throw_gone(now != MessageStatus::kLive ? now : MessageStatus::kSenderGone, "message", message.pid);
      }
      uses.emplace_back(use.release());
    }
    for (size_t i = 0; i < uses.size(); ++i) {
      const ReadArray& array = message.all[i];
      check_dtype(array.dtype);
      // After the end of the message, this process may have sent its read-only arrays on.
      const bool is_in_place =
          (array.flags & kHandedOver) != 0 && !is_readonly &&
          (status == MessageStatus::kLive || has_arrays_on(opened.of(array), array.block, Access::kWrite));
      const uint32_t flags = (array.flags & TENON_SUBBYTE_PADDED) | (is_in_place ? 0 : TENON_READONLY);
      has_copies |= !is_in_place && !is_readonly;
      const Ref<Storage> storage = segments_.storage_of(std::move(uses[i]), !is_in_place);
      segments.push_back(&opened.of(array));
      arrays.push_back(
          Segments::array_on(storage, array.offset, array.dtype, flags, array.shape, array.strides));
      if (arrays.back()) continue;
      throw_error(Code::kValue, "this is not a message of a tensor pool: the elements of array ", i,
                  " do not lie in the memory that it names");
    }
    if (!has_copies) {
      const MessageStatus now = count_open(opened.pool(), message.id());
      if (now != MessageStatus::kLive) throw_gone(now, "message", message.pid);
      return arrays;
    }
  }
  // Nobody writes the memory: the sender has given it to its readers. Arrays on one block share the copy.
  std::map<const Storage*, Ref<Storage>> copies;
  for (size_t i = 0; i < arrays.size(); ++i) {
    Array& shared = *arrays[i];
    if (!shared.is_readonly()) continue;
    Ref<Storage>& storage = copies[&shared.storage()];
    if (!storage) storage = writable_copy(shared.storage(), *segments[i]);
    Layout layout = shared.layout();
    layout.data = storage->data() + (shared.data() - shared.storage().data());
    layout.flags &= ~uint32_t{TENON_READONLY};
    arrays[i] = Array::make(storage, layout);
  }
  const std::scoped_lock locked(segments_.lock_);
  Segment* const pool = segments_.open_.find(message.segment);
  if (pool == nullptr) throw_gone(MessageStatus::kSenderGone, "message", message.pid);
  const MessageStatus now = count_open(*pool, message.id());
  if (now != MessageStatus::kLive) throw_gone(now, "message", message.pid);
  return arrays;
}

void TensorPools::key_of(std::span<const std::byte> bytes, std::byte* out) {
  const MessageHead head = ReadMessage::head_of(bytes);
  Segments::open_patiently([&](bool) {
    const std::scoped_lock locked(segments_.lock_);
    std::byte* at = out;
    for (const auto& word : Opened(segments_, head).pool().pool_head().key) {
      const uint64_t value = word.load(std::memory_order_relaxed);
      std::memcpy(at, &value, sizeof value);
      at += sizeof value;
    }
  });
}

bool TensorPools::take_over(std::span<const std::byte> bytes, int64_t timeout_ns) {
  const ReadMessage message = ReadMessage::read(bytes);
  return keep_patiently([&] {
    try {
      return Segments::open_patiently([&](bool) { return try_take_over(message, timeout_ns); });
    } catch (const Error& e) {
      if (e.code() == Code::kGone) return Kept::kNo;
      throw;
    }
  });
}

Kept TensorPools::try_take_over(const ReadMessage& message, int64_t timeout_ns) {
  const std::scoped_lock locked(segments_.lock_);
  const Opened opened(segments_, message);
  if (opened.status() != MessageStatus::kLive) return Kept::kNo;
  if (find_own(message.segment) != nullptr) return Kept::kYes;
  for (Live& kept : kept_) {
    const bool is_it = kept.segment == &opened.pool() && kept.record == message.record &&
                       kept.generation == message.generation;
    if (!is_it) continue;
    kept.until_ns = earlier(until(timeout_ns), opened.record().until_ns.load(std::memory_order_relaxed));
    return Kept::kYes;
  }
  Participant& participant = opened.pool().participant();
  if (participant.index() == Participant::kNone) opened.pool().throw_no_place();
  Messages kept(1);
  Live& live = kept.front();
  live.segment = &opened.pool();
  live.record = message.record;
  live.generation = message.generation;
  live.has_opens = true;
  live.holds.reserve(message.all.size());
  live.segment->begin_stay();  // for the record: the arrays may lie in other segments
  Kept answer = Kept::kYes;
  for (const ReadArray& array : message.all) {
    Segment& segment = opened.of(array);
    const Segment::Used used = segment.try_use(array.block, array.generation);
    if (used == Segment::Used::kYes) {
      live.holds.push_back({&segment, array.block});
      continue;
    }
    answer = used == Segment::Used::kIsClosing ? Kept::kLater : Kept::kNo;
    break;
  }
  live.until_ns = earlier(until(timeout_ns), opened.record().until_ns.load(std::memory_order_relaxed));
  if (answer == Kept::kYes) {
    answer = keep_message(opened.pool().control(), opened.record(), message.generation, participant.index());
  }
  if (answer != Kept::kYes) {
    finish(kept, kept.begin(), nullptr);
    return answer;
  }
  kept_.splice(kept_.end(), kept);
  segments_.schedule_sweep();
  return Kept::kYes;
}

}  // namespace tenon::impl
