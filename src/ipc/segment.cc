// SPDX-License-Identifier: Apache-2.0
#include "ipc/segment.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "array/array.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "ipc/channel_state.h"
#include "ipc/deaths.h"
#include "ipc/lazy_copy.h"
#include "ipc/process_lock.h"

namespace tenon::impl {
namespace {

SegmentId random_id() {
  SegmentId id;
  if (getrandom(id.words, sizeof id.words, 0) != sizeof id.words) {
    throw_error(Code::kSystem, "no random number for a segment");
  }
  return id;
}

int64_t realtime_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

Header header_of(const SegmentPlan& plan, uint64_t page_nbytes) {
  Header h{};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.byte_order = kByteOrder;
  h.pointer_nbytes = sizeof(void*);
  h.mutex_nbytes = sizeof(pthread_mutex_t);
  h.major = kMajor;
  h.minor = kMinor;
  h.header_nbytes = sizeof(Header);
  h.required = plan.is_on_device ? kOnDevice : 0;
  h.id = random_id();
  h.lives_at = kLivesAt;
  h.places_at = places_at(plan.blocks);
  h.blocks_at = kBlocksAt;
  h.data_at = round_up(control_end(plan.blocks), std::max<uint64_t>(page_nbytes, 2 << 20));
  h.total_nbytes = h.data_at + round_up(std::max<uint64_t>(plan.data_nbytes, 1), page_nbytes);
  h.page_nbytes = page_nbytes;
  h.participants = kParticipants;
  h.grants = kGrants;
  h.blocks = plan.blocks;
  h.is_tensor_pool = plan.is_tensor_pool ? 1 : 0;
  h.channel_slots = plan.channel_slots;
  h.feed_slots = plan.feed_slots;
  h.feed_pages = plan.feed_pages;
  const os::Process process = os::this_process();
  h.creator_pid = process.pid;
  h.creator_start = process.start;
  h.created_ns = realtime_ns();
  if (plan.array != nullptr) {
    h.has_named_array = 1;
    h.array = *plan.array;
  }
  std::strncpy(h.name, plan.name.c_str(), sizeof h.name - 1);
  h.checksum = checksum_of(h);
  return h;
}

}  // namespace

std::unique_ptr<Segment> Segment::create(const SegmentPlan& plan, MutexOwner& mutex_owner) {
  std::unique_ptr<Segment> segment(new Segment);
  const uint64_t page = plan.has_huge_pages ? os::huge_page_nbytes() : os::page_nbytes();
  segment->header_ = header_of(plan, page);
  const Header& h = segment->header_;
  std::string name = kFilePrefix + text_of(h.id);
  if (!plan.name.empty()) name += ":" + plan.name;
  segment->file_ = os::create_memory(name, h.total_nbytes, plan.has_huge_pages);
  os::commit(segment->file_, 0, kLivesAt + kPage,
             concat("the control part of a shared segment", plan.has_huge_pages ? " in huge pages" : ""));
  if (plan.is_tensor_pool)
    os::commit(segment->file_, pool_head_at(h.blocks), kPage, "the control part of a tensor pool");
  segment->is_creator_ = true;
  segment->commit_block(plan.array != nullptr ? h.blocks - 1 : 0);
  segment->map(true, plan.node);
  if (plan.pinned_unit != 0) store(segment->pool_head().pinned_unit, plan.pinned_unit);
  segment->make_pinned_pages();
  std::memcpy(segment->control_.base, &h, sizeof h);
  segment->join(mutex_owner);
  os::seal(segment->file_);  // last: only a complete segment is sealed
  return segment;
}

std::unique_ptr<Segment> Segment::open(os::File file, bool is_writable, MutexOwner& mutex_owner,
                                       const SegmentId* pool) {
  std::unique_ptr<Segment> segment(new Segment);
  if (!os::is_sealed(file)) {
    throw_error(Code::kValue,
                "this is no shared memory that Tenon can use: it is not sealed, so its size could change");
  }
  const size_t nbytes = os::size_of(file);
  if (nbytes < kBlocksAt || !os::read_at(file, 0, &segment->header_, sizeof(Header))) {
    throw_error(Code::kValue, "this is no shared memory that Tenon can use: it has ", nbytes, " bytes");
  }
  check(segment->header_, nbytes);
  if (pool != nullptr && (segment->header_.id != *pool || !segment->is_tensor_pool()))
    throw_error(Code::kValue, "the memory file is not that of the tensor pool ", text_of(*pool));
  segment->file_ = std::move(file);
  segment->map(is_writable, -1);
  if (segment->is_on_device()) segment->read_record();
  segment->make_pinned_pages();
  segment->join(mutex_owner);
  return segment;
}

void Segment::map(bool is_writable, int node) {
  control_ = Control::map(file_, header_, &places_);
  data_ = os::map(file_, header_.data_at, data_nbytes(), is_writable, 2 << 20, is_sparse());
  if (node >= 0) os::bind_to_node(data_, data_nbytes(), node);
  is_writable_ = is_writable;
  if (!is_on_device()) private_pages_ = std::make_unique<PrivatePages>(file_, header_.data_at, data_nbytes());
}

void Segment::make_pinned_pages() {
  const uint32_t unit = is_tensor_pool() ? look(pool_head().pinned_unit) : 0;
  if (!std::has_single_bit(unit) || unit < header_.page_nbytes) return;
  pinned_pages_ = std::make_unique<PinnedPages>(data_, data_nbytes(), unit);
}

// Reads and checks where the memory is: others may overwrite it later. Fails with kValue.
void Segment::read_record() {
  static_assert(sizeof record_ <= kPage);  // the data have a page at least
  const NamedArray& array = header_.array;
  const uint64_t begin = block(0).begin.load(std::memory_order_relaxed);
  const uint64_t nbytes = block(0).nbytes.load(std::memory_order_relaxed);
  const uint64_t array_nbytes =
      nbytes_of(DType(array.code, array.bits, array.lanes), {array.shape, static_cast<size_t>(array.ndim)},
                static_cast<uint32_t>(array.flags));
  constexpr const char* kDamaged = "this is no shared memory that Tenon can use: ";
  if (!os::read_at(file_, header_.data_at, &record_, sizeof record_)) {
    throw_error(Code::kValue, kDamaged, "the record of its memory on a device cannot be read");
  }
  if (begin != 0 || nbytes > record_.nbytes) {
    throw_error(Code::kValue, kDamaged, "its block has the bytes ", begin, " to ", begin + nbytes, " of ",
                record_.nbytes, " on a device");
  }
  if (array_nbytes > nbytes) {
    throw_error(Code::kValue, kDamaged, "its array of ", array_nbytes, " bytes does not fit into ", nbytes);
  }
}

void Segment::join(MutexOwner& mutex_owner) {
  uses_.reset(static_cast<uint32_t*>(std::calloc(header_.blocks, sizeof(uint32_t))));
  if (uses_ == nullptr) throw std::bad_alloc();
  const ChannelState* const channel = control_.channel();
  if (channel != nullptr) deaths_before_joining_ = look(channel->deaths);
  participant_ = std::make_unique<Participant>(control_, file_, mutex_owner);
  if (channel != nullptr)
    deaths_while_joining_.store(look(channel->deaths) - deaths_before_joining_, std::memory_order_relaxed);
}

void Segment::commit_block(uint32_t block) {
  if (block < committed_blocks_) return;
  const auto end = std::min(static_cast<uint32_t>(round_up(block + 1, kBlockStep)), header_.blocks);
  os::commit(file_, kBlocksAt + committed_blocks_ * kBlockStride, (end - committed_blocks_) * kBlockStride,
             "the control part of a shared segment");
  committed_blocks_ = end;
}

void Segment::throw_no_place() const {
  if (file_.is_lost())
    throw_error(Code::kSystem, "this process cannot use shared memory of its parent: ", os::kLostText);
  if (!os::has_proc()) {
    throw_error(
        Code::kSystem,
        "this process was forked, and cannot use shared memory of its parent: there is no /proc here, "
        "and no process that serves the memory at a socket answered during the fork");
  }
  throw_error(Code::kSystem, "this process was forked while all ", kParticipants,
              " places of the shared segment were taken: so many processes use it at a time");
}

ProcessLock& Segment::lock(uint32_t block) {
  const std::scoped_lock uses(uses_lock_);
  if (locks_.size() <= block) locks_.resize(block + 1);
  if (!locks_[block]) locks_[block] = std::make_unique<ProcessLock>(*this, block);
  return *locks_[block];
}

ProcessLock& Segment::set_lock(uint32_t block, std::unique_ptr<ProcessLock>&& lock) {
  const std::scoped_lock uses(uses_lock_);
  if (locks_.size() <= block) locks_.resize(block + 1);
  if (!locks_[block]) locks_[block] = std::move(lock);
  return *locks_[block];
}

Segment::~Segment() {
  if (private_pages_) LentMappings::instance().remove(*private_pages_);
  memory_.reset();  // while the place shows the creator that this process uses the memory
  pinned_pages_.reset();
  if (participant_) participant_->leave();
  if (name_) {
    reap_all(control_);  // forked children may have ended since
    if (!has_users(control_, block(0))) remove_name(header_.name, header_.id);
  }
  if (data_ != nullptr) os::unmap(data_, data_nbytes());
  if (control_.base != nullptr) os::unmap(control_.base, Control::nbytes_of(header_));
}

void Segment::make_writable() {
  if (is_writable_) return;
  os::make_writable(data_, data_nbytes());
  is_writable_ = true;
}

void Segment::lie_on(std::unique_ptr<device::SharedMemory>&& memory) {
  os::commit(file_, header_.data_at, data_nbytes(), "the record of a shared array on a device");
  record_ = memory->record();
  std::memcpy(data_, &record_, sizeof record_);
  memory_ = std::move(memory);
}

void Segment::check_memory() const {
  if (!has_lost_memory()) return;
  throw_error(Code::kNotFound, "the shared array cannot be opened: process ", header_.creator_pid,
              ", which had allocated its memory on a device, has ended");
}

std::unique_ptr<device::SharedMemory> Segment::open_memory() const {
  try {
    return device::SharedMemory::open(record_);
  } catch (const Error&) {
    check_memory();  // it may have ended meanwhile
    throw;
  }
}

void Segment::keep_memory(std::unique_ptr<device::SharedMemory>&& memory) noexcept {
  if (memory_ != nullptr) return;
  memory_ = std::move(memory);
  const std::scoped_lock uses(uses_lock_);
  has_mapped_ = true;
}

bool Segment::may_end_memory() noexcept {
  if (!is_on_device() || !is_creator_ || memory_ == nullptr) return true;
  reap_all(control_);
  return free_if_unused(0);
}

bool Segment::is_left_to_others(tenon_device device) const noexcept {
  return is_creator_ && memory_ != nullptr && memory_->device().type == device.type &&
         memory_->device().id == device.id && users() == 0 && !has_handles(0);
}

void Segment::take_block(uint32_t i, uint64_t begin, uint64_t nbytes) noexcept {
  if (control_.blocks_used().load(std::memory_order_relaxed) <= i) publish(control_.blocks_used(), i + 1);
  Block& b = block(i);
  const std::scoped_lock uses(uses_lock_);
  store(b.begin, begin);
  store(b.nbytes, nbytes);
  store(b.sent, 0u);
  set_bit(b.users, participant_->index());
  publish(b.state, BlockState::kUsed);
  uses_[i] = 1;
  users_.fetch_add(1, std::memory_order_relaxed);
}

std::span<std::byte> Segment::bytes_of(uint32_t index) const noexcept {
  if (index >= control_.used_blocks() || look(block(index).state) != BlockState::kUsed) return {};
  const Block& b = block(index);
  const uint64_t begin = std::min(b.begin.load(std::memory_order_relaxed), data_nbytes());
  return {data_ + begin, std::min(b.nbytes.load(std::memory_order_relaxed), data_nbytes() - begin)};
}

Segment::Used Segment::try_use(uint32_t index, uint32_t generation) noexcept {
  if (index >= control_.used_blocks() || participant_->index() == Participant::kNone) return Used::kNo;
  Block& b = block(index);
  const uint64_t room = is_on_device() ? record_.nbytes : data_nbytes();
  const std::scoped_lock uses(uses_lock_);
  if (uses_[index] == 0) {
    // First the bit, then the state. The creator does the opposite in free_if_unused(): so if both run at
    // once, at least one sees the other.
    const bool was_user = has_bit(b.users, participant_->index());  // it has the memory mapped
    set_bit(b.users, participant_->index());
    const BlockState state = observe(b.state);
    const bool is_there =
        state == BlockState::kUsed && look(b.generation) == generation &&
        b.begin.load(std::memory_order_relaxed) <= room &&
        b.nbytes.load(std::memory_order_relaxed) <= room - b.begin.load(std::memory_order_relaxed);
    if (!is_there) {
      if (!was_user) clear_bit(b.users, participant_->index());
      const bool is_closing = state == BlockState::kClosing && look(b.generation) == generation;
      return is_closing ? Used::kIsClosing : Used::kNo;
    }
  } else if (b.generation.load(std::memory_order_relaxed) != generation) {
    return Used::kNo;
  }
  ++uses_[index];
  users_.fetch_add(1, std::memory_order_relaxed);
  return Used::kYes;
}

bool Segment::leave(uint32_t index) noexcept {
  bool is_last = false;
  {
    const std::scoped_lock uses(uses_lock_);
    is_last = --uses_[index] == 0;
    // A process that has the memory of another one mapped keeps it until the segment is closed.
    if (is_last && !has_mapped_ && participant_->index() != Participant::kNone) {
      clear_bit(block(index).users, participant_->index());
    }
  }
  if (is_last && is_tensor_pool()) signal_event(pool_head().room);
  // pairs with: Segment::users, "a use that has ended"
  users_.fetch_sub(1, std::memory_order_release);
  return is_last;
}

bool Segment::is_used_here(uint32_t index) noexcept {
  const std::scoped_lock uses(uses_lock_);
  return uses_[index] != 0;
}

// The creator was the first to take the first place, and has it as long as it lives. The number of its
// process says nothing: in other PID namespaces, and after the number was used again, another process has it.
bool Segment::is_creator_alive() const noexcept {
  constexpr uint32_t kOfCreator = 1;
  // The generation last: if it is the creator's, the answers before it were about the creator.
  return look(control_.place(0).state) == PlaceState::kLive && is_alive(control_, 0) &&
         look(control_.place(0).generation) == kOfCreator;
}

bool Segment::needs_cleaner() const noexcept {
  return !is_creator_ && header_.has_named_array == 0 && participant_->index() != Participant::kNone;
}

bool Segment::is_unused(uint32_t index) const noexcept {
  const Block& b = block(index);
  return look(b.state) != BlockState::kFree && !has_users(control_, b) && !has_handles(index);
}

// If the process ends before the new generation, some process may use the closed block. Later, none can.
bool Segment::close_if_unused(uint32_t index) noexcept {
  Block& b = block(index);
  const BlockState state = look(b.state);
  if (state == BlockState::kFree || (state == BlockState::kUsed && !is_unused(index))) return false;
  announce(b.state, BlockState::kClosing);
  if (!is_unused(index)) {
    publish(b.state, BlockState::kUsed);
    return false;
  }
  forget_deaths(control_, index);
  store(b.generation, b.generation.load(std::memory_order_relaxed) + 1);
  return true;
}

void Segment::free_closed(uint32_t index) noexcept { publish(block(index).state, BlockState::kFree); }

bool Segment::free_if_unused(uint32_t index) noexcept {
  if (!close_if_unused(index)) return false;
  free_closed(index);
  return true;
}

void Segment::begin_wait(SharedEvent& event) noexcept {
  const std::scoped_lock uses(uses_lock_);
  for (Waits& waits : waits_) {
    if (waits.event != nullptr && waits.event != &event) continue;
    waits.event = &event;
    if (waits.threads++ == 0) set_bit(event.waiting, participant_->index());
    return;
  }
}

void Segment::end_wait(SharedEvent& event) noexcept {
  const std::scoped_lock uses(uses_lock_);
  for (Waits& waits : waits_) {
    if (waits.event == &event && --waits.threads == 0) clear_bit(event.waiting, participant_->index());
  }
}

Participant::Reserved Segment::before_fork() noexcept {
  uses_lock_.lock();
  const Participant::Reserved place =
      file_.is_lost() ? Participant::Reserved() : participant_->reserve_for_child(file_);
  if (private_pages_) private_pages_->before_fork(place.index == kNone);
  return place;
}

void Segment::after_fork() noexcept {
  child_file_ = os::File();
  if (private_pages_) private_pages_->after_fork();
  uses_lock_.unlock();
  messages_lock_.unlock();
}

void Segment::become_child() noexcept {
  for (Waits& waits : waits_) waits.threads = 0;
  limited_.clear();  // the parent's
  is_creator_ = false;
  deaths_while_joining_.store(0, std::memory_order_relaxed);
  // With the parent's open file description, the child would hold the lock of the parent's place.
  const bool has_own_file =
      (os::reopen(file_) || os::replace(file_, child_file_)) &&
      os::remap(file_, 0, control_.base, Control::nbytes_of(header_), true) &&
      os::remap(file_, header_.data_at, data_, data_nbytes(), is_writable_, is_sparse());
  child_file_ = os::File();
  places_.become_child();
  participant_->become_child(has_own_file);
  if (private_pages_) private_pages_->after_fork();
  uses_lock_.unlock();
  messages_lock_.unlock();
}

}  // namespace tenon::impl
