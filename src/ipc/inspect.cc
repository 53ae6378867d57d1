// SPDX-License-Identifier: Apache-2.0
#include "ipc/inspect.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <tuple>
#include <utility>

#include "array/dtype.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"
#include "ipc/arena.h"
#include "ipc/channel_state.h"
#include "ipc/message_table.h"
#include "ipc/participant.h"
#include "ipc/served_state.h"

namespace tenon::impl {
namespace {

// A larger description of a channel or an arena is not read.
constexpr uint64_t kMostDescription = uint64_t{16} << 20;

// Bytes of a file, read into private memory. So no missing page of the file is allocated, and the bytes do
// not change while they are examined.
class FileBytes {
 public:
  explicit FileBytes(size_t nbytes)
      : bytes_(static_cast<std::byte*>(::operator new(nbytes, kAlignment))), nbytes_(nbytes) {
    std::memset(bytes_.get(), 0, nbytes);
  }
  std::byte* data() const noexcept { return bytes_.get(); }
  size_t size() const noexcept { return nbytes_; }

 private:
  static constexpr std::align_val_t kAlignment{kPage};
  struct FreePages {
    void operator()(std::byte* bytes) const noexcept { ::operator delete(bytes, kAlignment); }
  };
  std::unique_ptr<std::byte, FreePages> bytes_;
  size_t nbytes_;
};

ProcessReport process_of(uint32_t pid) {
  return {pid, os::command_of(pid), os::start_of(pid) != 0, os::is_stopped(pid)};
}

int64_t age_of(int64_t since_ns) noexcept {
  const int64_t now = now_ns();
  return since_ns > 0 && since_ns <= now ? now - since_ns : -1;
}

Header header_of(const MemoryFile& memory) {
  if (!os::is_sealed(memory.file)) {
    throw_error(Code::kValue,
                "it is not sealed: it is being created, or its creator has died before the end");
  }
  Header header{};
  const uint64_t nbytes = memory.facts.nbytes;
  if (nbytes < kBlocksAt || !os::read_at(memory.file, 0, &header, sizeof header))
    throw_error(Code::kValue, "this is no shared memory that Tenon can use: it has ", nbytes, " bytes");
  check(header, nbytes);
  return header;
}

// Reads one segment from its file.
class Inspection {
 public:
  Inspection(const MemoryFile& memory, SegmentReport* report) : memory_(memory), report_(*report) {}

  // Fails with kValue: the segment is damaged.
  void run() {
    read_header();
    copy_ = std::make_unique<FileBytes>(control_end(header_.blocks));
    control_ = {copy_->data(), header_.blocks, nullptr, header_.places_at};
    memory_.read(0, copy_->data(), kBlocksAt);
    const uint32_t used = control_.used_blocks();
    memory_.read(kBlocksAt, copy_->data() + kBlocksAt, used * kBlockStride);
    for (uint32_t p = 0; p < control_.used_places(); ++p) look_at_place(p);
    look_at_creator();
    const uint32_t messages = control_.used_messages();
    const uint64_t messages_at = impl::messages_at(header_.blocks);
    memory_.read(messages_at, copy_->data() + messages_at, messages * kMessageStride);
    for (uint32_t i = 0; i < messages; ++i) look_at_message(i);
    std::ranges::sort(report_.messages, std::greater(), &MessageReport::age_ns);
    for (uint32_t b = 0; b < used; ++b) look_at_block(b);
    look_for_channel();
    look_for_feed();
    look_at_counts();
    report_.kind = kind();
  }

 private:
  void read_header() {
    header_ = header_of(memory_);
    report_.id = text_of(header_.id);
    report_.name = header_.name;
    report_.created_ns = header_.created_ns;
  }

  void look_at_place(uint32_t p) {
    if (!control_.has_place(p)) return;
    const Place& place = control_.place(p);
    const uint64_t at = header_.places_at + p * kPlaceStride;
    memory_.read(at, copy_->data() + at, sizeof place);
    const PlaceState state = look(place.state);
    const bool is_taken = state == PlaceState::kReserved || state == PlaceState::kLive;
    look_at_grants(p, place, is_taken);
    if (!is_taken) return;
    const uint32_t pid = place.pid.load(std::memory_order_relaxed);
    PlaceReport seen;
    seen.index = p;
    seen.is_reserved = state == PlaceState::kReserved;
    seen.process = {pid, command_of(place), true, false};
    seen.age_ns = age_of(place.since_ns.load(std::memory_order_relaxed));
    const bool is_visible =
        place.pid_namespace.load(std::memory_order_relaxed) == os::pid_namespace_if_known();
    if (!seen.is_reserved) {
      seen.process.is_alive = os::is_byte_locked(memory_.file, p);
      seen.process.is_stopped = is_visible && seen.process.is_alive && os::is_stopped(pid);
    } else if (is_visible) {
      seen.process = process_of(pid);
    }
    pids_[p] = pid;
    report_.places.push_back(std::move(seen));
  }

  // is_taken: the place is not free. A free place can have deaths.
  void look_at_grants(uint32_t p, const Place& place, bool is_taken) {
    for (const Grant& grant : used_grants(place)) {
      const uint64_t state = look(grant.state);
      const GrantState::Kind kind = GrantState::kind(state);
      if (kind == GrantState::kDied) {
        deaths_[GrantState::block(state)].push_back({grant.task_or_dead_pid.load(std::memory_order_relaxed),
                                                     grant.begin.load(std::memory_order_relaxed),
                                                     grant.end.load(std::memory_order_relaxed),
                                                     GrantState::is_joined(state)});
      }
      if (!is_taken || !GrantState::is_lease(state)) continue;
      LeaseReport lease;
      lease.block = GrantState::block(state);
      lease.place = p;
      lease.pid = place.pid.load(std::memory_order_relaxed);
      lease.access = GrantState::access(state);
      lease.is_granted = kind == GrantState::kGranted;
      lease.begin = grant.begin.load(std::memory_order_relaxed);
      lease.end = grant.end.load(std::memory_order_relaxed);
      lease.ticket = grant.ticket.load(std::memory_order_relaxed);
      lease.age_ns = age_of(grant.since_ns.load(std::memory_order_relaxed));
      lease.task = grant.task_or_dead_pid.load(std::memory_order_relaxed);
      report_.leases.push_back(lease);
    }
  }

  // It has the first place as long as it lives.
  void look_at_creator() {
    const uint32_t pid = header_.creator_pid;
    ProcessReport& creator = report_.creator;
    creator.pid = pid;
    if (os::start_of(pid) == header_.creator_start) {
      creator = process_of(pid);
    } else if (!report_.places.empty() && report_.places[0].index == 0 &&
               report_.places[0].process.pid == pid) {
      creator = report_.places[0].process;
    }
  }

  void look_at_block(uint32_t b) {
    const Block& block = control_.block(b);
    if (look(block.state) != BlockState::kUsed) return;
    ArrayReport array;
    array.block = b;
    array.begin = block.begin.load(std::memory_order_relaxed);
    array.nbytes = block.nbytes.load(std::memory_order_relaxed);
    array.version = block.version.load(std::memory_order_relaxed);
    if (b == 0 && header_.has_named_array == 1) {
      const NamedArray& named = header_.array;
      array.dtype = DType(named.code, named.bits, named.lanes).name();
      array.shape.assign(named.shape, named.shape + named.ndim);
    }
    visit_bits(block.users, [&](uint32_t p) {
      if (!pids_.contains(p)) return;
      array.users.push_back(pids_[p]);
      array.places.push_back(p);
    });
    for (const auto& [place, sent] : sent_[b]) array.sent.push_back(sent);
    if (const auto found = deaths_.find(b); found != deaths_.end()) array.deaths = found->second;
    look_for_arena(&array);
    report_.arrays.push_back(std::move(array));
  }

  // The bytes of an array that lie in the file, at most `most` of them. Null: none can be read.
  std::unique_ptr<FileBytes> bytes_of(const ArrayReport& array, uint64_t most) const {
    const uint64_t data_nbytes = header_.total_nbytes - header_.data_at;
    if ((header_.required & kOnDevice) != 0 || array.begin > data_nbytes) return nullptr;
    const uint64_t nbytes = std::min({array.nbytes, data_nbytes - array.begin, most});
    if (nbytes == 0) return nullptr;
    auto copy = std::make_unique<FileBytes>(nbytes);
    if (!os::read_at(memory_.file, header_.data_at + array.begin, copy->data(), nbytes)) return nullptr;
    return copy;
  }

  void look_for_arena(ArrayReport* array) const {
    if (array->nbytes <= sizeof(ArenaState)) return;
    const std::unique_ptr<FileBytes> head = bytes_of(*array, sizeof(ArenaState));
    if (head == nullptr || head->size() < sizeof(ArenaState)) return;
    const auto& state = *reinterpret_cast<const ArenaState*>(head->data());
    if (state.mark.load(std::memory_order_relaxed) != kArenaMark) return;
    ArenaReport arena;
    try {
      const uint64_t nbytes = state.description_nbytes;
      const std::unique_ptr<FileBytes> all =
          nbytes <= kMostDescription ? bytes_of(*array, sizeof(ArenaState) + nbytes) : nullptr;
      if (all == nullptr || all->size() != sizeof(ArenaState) + nbytes) {
        throw_error(Code::kValue, "its description of ", nbytes, " bytes does not lie in it");
      }
      for (const NamedFields& layout : decode_layouts({all->data() + sizeof(ArenaState), nbytes})) {
        arena.layouts.push_back(layout.name);
      }
      const uint32_t active = state.active.load(std::memory_order_relaxed);
      if (active > 0 && active <= arena.layouts.size()) arena.active = arena.layouts[active - 1];
      arena.generation = state.generation.load(std::memory_order_relaxed);
    } catch (const Error& e) {
      arena.damage = e.what();
    }
    array->arena = std::move(arena);
  }

  // The place of a process that sends messages; null: it is another's now.
  const PlaceReport* place_of(uint64_t sender) const {
    const PlaceReport* const place = place_at(Sender::participant(sender));
    const bool is_its = sender != 0 && place != nullptr &&
                        look(control_.place(place->index).generation) == Sender::generation(sender);
    return is_its ? place : nullptr;
  }
  const PlaceReport* place_at(uint32_t p) const {
    const auto at = std::ranges::find(report_.places, p, &PlaceReport::index);
    return at != report_.places.end() ? &*at : nullptr;
  }

  void look_at_message(uint32_t i) {
    const MessageRecord& record = control_.message(i);
    const uint64_t word = look(record.word);
    if (!MessageWord::is_live(word)) return;
    const uint32_t keeper = MessageWord::keeper(word);
    const PlaceReport* const kept_by = keeper != MessageWord::kNoKeeper ? place_at(keeper - 1) : nullptr;
    const PlaceReport* const sent_by = place_of(look(record.sender));
    const int64_t until = record.until_ns.load(std::memory_order_relaxed);
    const bool is_taken_over = kept_by != nullptr && !kept_by->is_dead();
    const PlaceReport* const place = is_taken_over || sent_by == nullptr ? kept_by : sent_by;
    const bool is_lost = place == nullptr || place->is_dead();
    const uint32_t block = record.block.load(std::memory_order_relaxed);
    if (block != kNoBlock) {
      if (place == nullptr || (kept_by == nullptr && until != 0 && until <= now_ns())) return;
      SentReport& sent = sent_[block][place->index];
      sent = {place->index, place->process.pid, sent.count + count_of_handles(record, word), is_lost};
      return;
    }
    MessageReport message;
    message.record = i;
    message.nbytes = record.nbytes.load(std::memory_order_relaxed);
    if (MessageWord::opens(word) != MessageWord::kNoLimit) message.opens_left = MessageWord::opens(word);
    message.age_ns = age_of(record.since_ns.load(std::memory_order_relaxed));
    if (until != 0) message.left_ns = std::max<int64_t>(until - now_ns(), 0);
    message.keeper = place != nullptr ? place->process.pid : 0;
    message.is_lost = is_lost;
    message.site = site_of(record);
    message.tag = tag_of(record);
    message.is_opened = MessageWord::is_opened(word);
    message.is_handed_over = (record.flags.load(std::memory_order_relaxed) & kHandedOverMessage) != 0;
    report_.messages.push_back(std::move(message));
  }

  void look_at_counts() {
    if (header_.is_tensor_pool == 0) return;
    PoolHead head;
    memory_.read(pool_head_at(header_.blocks), static_cast<void*>(&head), sizeof head);
    const auto value = [](const std::atomic<uint64_t>& word) { return word.load(std::memory_order_relaxed); };
    const PoolCounts& counts = head.counts;
    report_.pool = {value(counts.sent),    value(counts.sent_nbytes),    value(counts.opened),
                    value(counts.expired), value(counts.revoked),        value(counts.receivers_gone),
                    value(counts.inlined), value(counts.inlined_nbytes), value(counts.refused),
                    value(counts.waits),   value(counts.waited_ns)};
  }

  void look_for_channel() {
    if (header_.blocks < 2 || report_.arrays.empty() || report_.arrays[0].block != 0) return;
    const std::unique_ptr<FileBytes> mark = bytes_of(report_.arrays[0], sizeof kChannelMark);
    if (mark == nullptr || std::memcmp(mark->data(), &kChannelMark, mark->size()) != 0) return;
    const std::unique_ptr<FileBytes> bytes = bytes_of(report_.arrays[0], kMostDescription);
    if (bytes == nullptr || bytes->size() < sizeof(ChannelState)) return;
    const auto& state = *reinterpret_cast<const ChannelState*>(bytes->data());
    ChannelReport channel;
    channel.mode = state.mode;
    channel.when_full = state.when_full;
    channel.sent = look(state.counters.given);
    channel.received = look(state.received);
    channel.dropped = look(state.dropped);
    channel.deaths = look(state.deaths);
    try {
      look_at_channel(state, *bytes, &channel);
    } catch (const Error& e) {
      channel.damage = e.what();
    }
    report_.channel = std::move(channel);
  }

  void look_at_channel(const ChannelState& state, const FileBytes& bytes, ChannelReport* channel) {
    const uint64_t at = ChannelState::nbytes_before_description(state.slots);
    if (state.slots == 0 || state.mode > TENON_CHANNEL_LATEST || state.when_full > TENON_WHEN_FULL_KEEP ||
        at > bytes.size() || state.description_nbytes > bytes.size() - at) {
      throw_error(Code::kValue, "its table of ", state.slots, " slots is damaged");
    }
    const auto* const states = reinterpret_cast<const SlotState*>(bytes.data() + sizeof(ChannelState));
    channel->slots.resize(state.slots);
    for (uint32_t i = 0; i < state.slots; ++i)
      channel->slots[i].sequence = SlotWord::item(look(states[i].word));
    for (const PlaceReport& place : report_.places) {
      const ChannelEnd& end = state.ends[place.index];
      const uint32_t roles = EndWord::roles(look(end.word));
      if (!place.is_live()) continue;
      for (uint32_t i = 0; i < state.slots; ++i) {
        const uint64_t word = look(states[i].word);
        const bool is_holder = SlotWord::has_holder(word) && SlotWord::holder(word) == place.index;
        if (is_holder || has_bit(states[i].readers, place.index))
          channel->slots[i].holders.push_back(place.process.pid);
      }
      if ((roles & kProducer) != 0) channel->producers.push_back(place.process.pid);
      if ((roles & kConsumer) != 0)
        channel->consumers.push_back({place.process.pid, look(end.cursor), false});
      if ((roles & kViewer) != 0) channel->consumers.push_back({place.process.pid, std::nullopt, true});
    }
    std::span<const std::byte> rest(bytes.data() + at, state.description_nbytes);
    const Ref<Schema> schema = Schema::decode(&rest);
    channel->has_objects = state.holds_bytes != 0;
    for (const SchemaField& field : schema->fields()) {
      if (!channel->has_objects) channel->fields.push_back(field.name);
    }
    look_at_room(state, states, schema->fields_nbytes(), channel);
  }

  // states: of the slots, of which the entries and the memories follow.
  static void look_at_room(const ChannelState& state, const SlotState* states, uint64_t fields_nbytes,
                           ChannelReport* channel) {
    const auto* const entries = reinterpret_cast<const SlotEntry*>(states + state.slots);
    const auto* const memories = reinterpret_cast<const SlotMemory*>(entries + state.slots);
    ChannelReport::Room room;
    room.refused = look(state.refused);
    room.nbytes = state.budget_nbytes;
    room.largest_sent_nbytes = channel->has_objects ? look(state.largest_sent_nbytes)
                               : channel->sent != 0 ? fields_nbytes
                                                    : 0;
    for (uint32_t i = 0; i < state.slots; ++i) {
      ChannelReport::SlotReport& slot = channel->slots[i];
      const uint64_t committed = std::min(look(memories[i].committed), state.capacity_nbytes);
      room.committed_nbytes += committed;
      const uint64_t word = look(states[i].word);
      if (slot.sequence == 0 && slot.holders.empty()) continue;
      const bool is_loan = SlotWord::kind(word) == SlotWord::kHeld && SlotWord::number(word) == 0;
      slot.nbytes =
          is_loan || !channel->has_objects ? committed : std::min(look(memories[i].used), committed);
      room.used_nbytes += slot.nbytes;
    }
    channel->room = room;
  }

  // Who serves a feed passes its batches as by a channel.
  void look_for_feed() {
    const uint32_t n = header_.feed_slots;
    if (n == 0 || report_.arrays.empty() || report_.arrays[0].block != 0) return;
    const std::unique_ptr<FileBytes> bytes = bytes_of(report_.arrays[0], report_.arrays[0].nbytes);
    if (bytes == nullptr || bytes->size() < ServedState::end_at(n)) return;
    auto& state = *reinterpret_cast<ServedState*>(bytes->data());
    ChannelReport feed;
    feed.mode = look(state.mode) == ServedMode::kBroadcast ? TENON_CHANNEL_BROADCAST : TENON_CHANNEL_QUEUE;
    feed.when_full = TENON_WHEN_FULL_KEEP;
    feed.sent = feed.received = look(state.delivered);
    try {
      look_at_feed(state, *bytes, &feed);
    } catch (const Error& e) {
      feed.damage = e.what();
    }
    report_.channel = std::move(feed);
  }

  void look_at_feed(ServedState& state, const FileBytes& bytes, ChannelReport* feed) {
    const SlotTable table = state.table(header_.feed_slots);
    feed->slots.resize(table.size());
    for (uint32_t i = 0; i < table.size(); ++i) {
      const uint64_t word = table.word(i);
      feed->slots[i].sequence = SlotWord::item(word);
      const bool is_unread =
          SlotWord::kind(word) == SlotWord::kReady && SlotWord::number(word) > table.passed();
      feed->sent += is_unread ? 1 : 0;
    }
    const uint32_t server = look(state.server);
    for (const PlaceReport& place : report_.places) {
      if (!place.is_live()) continue;
      for (uint32_t i = 0; i < table.size(); ++i) {
        if (SlotWord::is_held_by(table.word(i), place.index) || has_bit(table.readers(i), place.index))
          feed->slots[i].holders.push_back(place.process.pid);
      }
      const CursorRecord& record = state.records[place.index];
      if (place.index == server) feed->producers.push_back(place.process.pid);
      if (look(record.word) != CursorRecord::kNone)
        feed->consumers.push_back({place.process.pid, look(record.cursor), false});
    }
    const uint64_t at = state.description_at;
    if (at > bytes.size() || state.description_nbytes > bytes.size() - at)
      throw_error(Code::kValue, "its description does not lie in it");
    std::span<const std::byte> rest(bytes.data() + at, state.description_nbytes);
    const Ref<Schema> schema = Schema::decode(&rest);
    for (const SchemaField& field : schema->fields()) feed->fields.push_back(field.name);
  }

  const char* kind() const {
    if (report_.channel) return "channel";
    if (header_.is_tensor_pool != 0) return "tensor pool";
    if (header_.has_named_array == 0) return "pool";
    return !report_.arrays.empty() && report_.arrays[0].arena ? "arena" : "array";
  }

  const MemoryFile& memory_;
  SegmentReport& report_;
  Header header_{};
  std::unique_ptr<FileBytes> copy_;
  Control control_;
  std::map<uint32_t, uint32_t> pids_;                        // of the participants
  std::map<uint32_t, std::vector<DeathReport>> deaths_;      // of the blocks
  std::map<uint32_t, std::map<uint32_t, SentReport>> sent_;  // of the blocks, by places
};

// Opens the file of these descriptors through one of them. False: it does not exist any more.
bool open_any(const std::vector<os::Found>& descriptors, const os::FileFacts& known, MemoryFile* memory) {
  bool is_there = false;
  for (const os::Found& found : descriptors) {
    memory->descriptor = found;
    memory->file = os::open_memory_of(found.pid, found.fd, found.name, false);
    os::FileFacts& facts = memory->facts;
    const auto is_known = [&] { return facts.inode == known.inode && facts.device == known.device; };
    if (memory->file && os::facts_of(memory->file, &facts) && is_known()) return true;
    memory->file = {};
    // The process may have closed it, or the file cannot be opened.
    is_there |= os::facts_of(found.pid, found.fd, &facts) && is_known();
    facts = {};
  }
  return is_there;
}

}  // namespace

void MemoryFile::read(uint64_t at, void* to, size_t nbytes) const {
  if (os::read_at(file, at, to, nbytes)) return;
  throw_error(Code::kValue, "bytes ", at, " to ", at + nbytes, " cannot be read");
}

void visit_memory_files(const std::string& prefix, const std::function<void(const MemoryFile&)>& visit) {
  std::map<std::pair<uint64_t, uint64_t>, std::vector<os::Found>> files;
  for (os::Found& found : os::find_memory(prefix)) {
    os::FileFacts facts;
    if (!os::facts_of(found.pid, found.fd, &facts) || !facts.is_regular) continue;
    files[{facts.device, facts.inode}].push_back(std::move(found));
  }
  for (const auto& [file, descriptors] : files) {
    MemoryFile memory;
    os::FileFacts known;
    known.device = file.first;
    known.inode = file.second;
    if (!open_any(descriptors, known, &memory)) continue;
    for (const os::Found& found : descriptors) {
      const auto is_same = [&](const ProcessReport& process) { return process.pid == found.pid; };
      if (std::ranges::any_of(memory.processes, is_same)) continue;
      memory.processes.push_back(process_of(found.pid));
    }
    visit(memory);
  }
}

std::optional<FeedPart> find_feed(const MemoryFile& memory) noexcept {
  try {
    const Header header = header_of(memory);
    if (header.feed_slots == 0) return std::nullopt;
    return FeedPart{header.data_at, header.feed_slots};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::vector<SegmentReport> inspect() {
  std::vector<SegmentReport> segments;
  visit_memory_files(kFilePrefix, [&](const MemoryFile& memory) {
    SegmentReport report;
    report.file = memory.descriptor.name;
    report.opened_of_pid = memory.descriptor.pid;
    report.opened_fd = memory.descriptor.fd;
    report.nbytes = memory.facts.nbytes;
    report.committed_nbytes = memory.facts.committed_nbytes;
    report.processes = memory.processes;
    try {
      if (!memory.file) throw_error(Code::kValue, "it cannot be opened");
      Inspection(memory, &report).run();
    } catch (const Error& e) {
      report.damage = e.what();
    }
    segments.push_back(std::move(report));
  });
  std::ranges::sort(segments, {}, [](const SegmentReport& s) {
    return std::tuple(s.name.empty(), s.name, s.created_ns, s.file);
  });
  return segments;
}

}  // namespace tenon::impl
