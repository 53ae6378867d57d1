// SPDX-License-Identifier: Apache-2.0
//
// Items: their arrays, and how they are sent and put back.
#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "array/access.h"
#include "base/bytes.h"
#include "base/error.h"
#include "ipc/channel.h"
#include "ipc/openings.h"

namespace tenon::impl {

// Offers a loan that is to be sent, and refuses all later uses of the arrays that it made: when this
// process has the slot again, they must not use its next item. False: a view, a lease or an op of this
// process uses the slot, or (with the failure) an op has failed to write it. has_room: others have more.
bool Channel::end_uses(Item& item, Ref<Failure>* failure, bool* has_room) noexcept {
  Storage& slot = storage_of(item.slot_);
  item.has_ended_.store(true, std::memory_order_relaxed);
  {
    // A request or a view comes before and is seen here, or it comes later and is refused.
    Queue& queue = lock_home(slot.home());
    const std::unique_lock lock(queue.lock, std::adopt_lock);
    if (queue.is_used(slot.extent())) return false;
    if (queue.has_failures.load(std::memory_order_relaxed)) [[unlikely]]
      *failure = queue.failure_in(slot.extent());
    if (*failure) return false;
    item.taker_ = 0;
    *has_room = return_excess(item);
    if (plan_.holds_bytes()) memories_.set_used(item.slot_, item.nbytes());
    table_.offer(self(), item.slot_);
  }
  if (item.refs_.count_after_change() != 1) Storage::end_parts(slot, Item::release_array);
  return true;
}

// A thread that sends the item. Another one must not send it, nor make an array of it.
struct Item::Sending {
  explicit Sending(Item& sent) : item(sent) {
    // pairs with: Item::Making, "an array of a loan"
    if (!item.is_sending_.exchange(true, std::memory_order_seq_cst)) return;
    throw_error(Code::kValue, "another thread sends the item or changes its size");
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;
  // pairs with: Item::Making, "an array of a loan"
  ~Sending() { item.is_sending_.store(false, std::memory_order_release); }
  Item& item;
};

// A thread that makes an array of a loan. It refuses to if a send has begun. A send that begins later waits
// for it, and then sees that the field has an array.
struct Item::Making {
  explicit Making(Item& loan) : item(loan) {
    // pairs with: Channel::clear_unused_fields, "an array of a loan"
    item.n_making_.fetch_add(1, std::memory_order_seq_cst);
    // pairs with: Item::Sending, "an array of a loan"
    const bool is_sending = item.is_sending_.load(std::memory_order_seq_cst);
    if (!is_sending && !item.has_ended_.load(std::memory_order_relaxed)) return;
    end();
    throw_sent();
  }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;
  ~Making() { end(); }
  // pairs with: Channel::clear_unused_fields, "an array of a loan"
  void end() const noexcept { item.n_making_.fetch_sub(1, std::memory_order_release); }
  [[noreturn]] static void throw_sent() {
    throw_error(Code::kLeaseConflict, "the item was sent or dropped, so it has no arrays any more");
  }
  Item& item;
};

std::atomic<bool>& Channel::use_of(uint32_t slot, size_t field) const noexcept {
  return used_fields_[slot * schema_->fields().size() + field];
}

// Their bytes may be of an item of another process; a channel of bytes has no fields. Requires an
// Item::Sending.
void Channel::clear_unused_fields(const Item& item) const noexcept {
  // pairs with: Item::Making, "an array of a loan"
  while (item.n_making_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  if (plan_.holds_bytes()) return;
  const std::vector<SchemaField>& fields = schema_->fields();
  for (size_t i = 0; i < fields.size(); ++i) {
    if (use_of(item.slot_, i).load(std::memory_order_relaxed)) continue;
    std::memset(storage_of(item.slot_).data() + fields[i].offset, 0, fields[i].nbytes);
    use_of(item.slot_, i).store(true, std::memory_order_relaxed);
  }
}

void Item::set_nbytes(uint64_t nbytes) {
  Channel& channel = *channel_;
  if (!channel.plan_.holds_bytes()) throw_error(Code::kValue, "an item with fields cannot change its size");
  channel.check_size(nbytes);
  const Sending alone(*this);
  channel.check_loan(*this);
  const uint64_t pages = round_up(std::max<uint64_t>(nbytes, 1), os::page_nbytes());
  if (!channel.make_room(slot_, pages, {}) || !channel.grow(slot_, pages)) {
    throw_error(Code::kNoMemory, "the channel has no room for a loan of ", nbytes,
                " bytes: ", channel.use_text(), ": a loan that has a slot does not wait for room");
  }
  nbytes_.store(nbytes, std::memory_order_relaxed);
}

void Channel::check_loan(const Item& item) const {
  if (item.has_ended_.load(std::memory_order_relaxed) || item.sequence() != 0 || item.taker_ != taker())
    throw_error(Code::kValue, "the item is not a loan of the channel in this process, or was already sent");
}

void Channel::drop(Item& item) {
  const Item::Sending sending(item);
  check_loan(item);
  // pairs with: Item::Making, "an array of a loan"
  while (item.n_making_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  item.has_ended_.store(true, std::memory_order_relaxed);
  // First the arrays: another thread may lend the slot again.
  if (!Storage::end_parts(storage_of(item.slot_), Item::release_array, true)) return;
  item.end_span();
  give_back(item);
  signal_event(state_->room);
}

void Channel::send(Item& item) {
  Ref<Failure> failure;
  bool has_room = false;
  const Item::Sending sending(item);
  if (!item.has_ended_.load(std::memory_order_relaxed) && item.sequence() == 0 && item.taker_ == taker())
    clear_unused_fields(item);
  {
    const std::scoped_lock local(openings_->lock());  // close() waits
    check_loan(item);
    // Consumers may have been told that the channel has ended.
    if (is_closed_.load(std::memory_order_relaxed))
      throw_error(Code::kClosed, "the channel was closed here before the item was sent");
    if (end_uses(item, &failure, &has_room))
      item.sequence_.store(table_.give_number(self(), item.slot_), std::memory_order_relaxed);
  }
  if (failure) throw OpFailure(failure);
  if (item.sequence() == 0) {
    throw_error(Code::kLeaseEscaped,
                "a view, a lease or an op of the item still exists, so the item was dropped and not sent: "
                "before you send, delete the view or keep a copy of its elements, release the lease, and "
                "wait for the op");
  }
  if (plan_.holds_bytes()) note_sent_nbytes(item.nbytes());
  store(state_->recent_slot, item.slot_);
  signal_event(state_->items);
  item.end_span();
  // Other items may have become spare.
  if (has_room || plan_.mode != ChannelMode::kQueue || plan_.when_full == WhenFull::kDropOldest)
    signal_event(state_->room);
}

void Channel::note_sent_nbytes(uint64_t nbytes) noexcept {
  uint64_t most = observe(state_->largest_sent_nbytes);
  while (most < nbytes && !exchange(state_->largest_sent_nbytes, most, nbytes)) {
  }
}

void Channel::put_back(Item& item) {
  {
    const std::scoped_lock local(openings_->lock());
    const bool is_queue = plan_.mode == ChannelMode::kQueue;
    const bool is_consumer = (roles_.load(std::memory_order_relaxed) & (kConsumer | kViewer)) != 0;
    if (!is_queue && is_consumer) cursor_->put_back.reserve(cursor_->put_back.size() + 1);
    const uint64_t sequence = item.sequence();
    const bool has_ended = sequence == 0 || item.has_ended_.exchange(true, std::memory_order_relaxed);
    if (has_ended || item.taker_ != taker() || item.refs_.count_after_change() != 1) {
      if (sequence != 0) item.has_ended_.store(has_ended, std::memory_order_relaxed);
      throw_error(Code::kValue, "the item was not received in this process, or something refers to it");
    }
    if (is_queue) {
      item.taker_ = 0;
      table_.put_back(item.slot_, sequence);
    } else {
      if (is_consumer) forget(sequence);
      give_back(item);  // last: a producer that does not see this reader sees its cursor
    }
    (void)add(state_->received, ~uint64_t{0});
  }
  item.end_span();
  ends_.wake_all();
}

// This opening has not received the item. Requires Openings::lock(), and that it is a consumer.
void Channel::forget(uint64_t sequence) noexcept {
  if (plan_.mode == ChannelMode::kLatest || is_viewer()) {
    if (cursor_->sequence == sequence) --cursor_->sequence;
    return;
  }
  std::vector<uint64_t>& put_back = cursor_->put_back;
  put_back.insert(std::ranges::lower_bound(put_back, sequence), sequence);
  note_cursors();
  // If this consumer leaves, the next one is to get the item.
  const auto has_other = [&] {
    bool has_received = openings_->has_received(taker(), sequence);
    ends_.visit_ends([&](uint32_t, const ChannelEnd& end) {
      has_received = has_received || ((look(end.word) & kConsumer) != 0 && observe(end.cursor) >= sequence);
    });
    return has_received;
  };
  uint64_t last = sequence;
  if (has_other() || !exchange(state_->last_received, last, sequence - 1)) return;
  // Another one may have received it meanwhile. It notes its cursor first.
  if (has_other()) note_received(sequence);
}

Item::~Item() {
  const bool has_slot = taker_ != 0;
  if (has_slot && taker_ == channel_->taker()) end_span();
  channel_->give_back(*this);
  if (has_slot) signal_event(channel_->state_->room);
}

// Before the caller has it: a hook may get a failure that no caller has seen.
void Item::begin(const char* site) noexcept {
  // Of an earlier item, whose op may have ended after the item if its memory was imported by its address.
  Storage& slot = channel_->storage_of(slot_);
  if (slot.region().has_failures.load(std::memory_order_relaxed)) [[unlikely]]
    (void)clear_failures(slot.home(), slot.extent(), nullptr);
  if (trace::is_on()) [[unlikely]]
    begin_span(site);
}

void Item::begin_span(const char* site) noexcept {
  span_ = trace::open(trace::SpanKind::kLease, trace::key_of(this), [&](trace::Record& record) {
    const Storage& slot = channel_->storage_of(slot_);
    record.access = is_readonly_ ? Access::kRead : Access::kWrite;
    record.address = trace::key_of(slot.data());
    trace::copy_end(record.site, site);
    trace::SpanText(record.text) << "slot " << slot_ << " of a channel, "
                                 << (nbytes() != 0 ? nbytes() : slot.nbytes()) << " bytes";
  });
  trace::mark(span_, trace::key_of(this), trace::kReady);
}

Ref<Array> Item::array(int32_t index) {
  const std::vector<SchemaField>& fields = channel_->schema_->fields();
  if (index < 0 || index >= static_cast<int32_t>(fields.size())) {
    throw_error(Code::kIndex, "the channel has no field ", index, ": it has ", fields.size(), " fields");
  }
  const SchemaField& field = fields[static_cast<size_t>(index)];
  const bool holds_bytes = channel_->plan_.holds_bytes();
  const uint64_t nbytes = holds_bytes ? this->nbytes() : field.nbytes;
  const auto n = static_cast<int64_t>(nbytes);
  const bool is_loan = sequence() == 0;
  if (process_.is_child()) {
    throw_error(Code::kLeaseConflict,
                "the item belongs to the process that has forked this one: loan or receive an item here");
  }
  // It lies on its own storage over the slot's bytes, which keeps the item.
  Storage& slot = channel_->storage_of(slot_);
  Memory memory = slot.memory();
  memory.data += field.offset;
  memory.nbytes = nbytes;
  memory.gate = channel_->gate_;
  memory.owner = this;
  memory.deleter = release_array;
  memory.is_readonly = is_readonly_;
  if (nbytes == 0) memory.extent_nbytes = 0;
  std::optional<Making> making;
  if (is_loan) {
    making.emplace(*this);
    channel_->use_of(slot_, static_cast<size_t>(index)).store(true, std::memory_order_relaxed);
  }
  refs_.increment_before_look();
  Ref<Storage> storage;
  try {
    storage = nbytes == 0 ? Storage::adopt(memory) : Storage::adopt_part(slot, memory);
  } catch (...) {
    release();
    throw;
  }
  // From here on, the storage's deleter releases the item. If send() ends the uses from now on, it finds this
  // storage.
  if (has_ended_.load(std::memory_order_relaxed)) Making::throw_sent();
  return Array::over(std::move(storage), field.dtype, holds_bytes ? Dims(&n, 1) : Dims(field.shape),
                     is_readonly_ ? uint32_t{TENON_READONLY} : 0);
}

}  // namespace tenon::impl
