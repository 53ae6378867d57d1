// SPDX-License-Identifier: Apache-2.0
#include "ipc/segments.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "ipc/awaited.h"
#include "ipc/lazy_copy.h"
#include "ipc/pool_links.h"
#include "ipc/pool_servers.h"
#include "ipc/process_lock.h"
#include "ipc/tensor_pools.h"
#include "memory/fork.h"
#include "memory/known_memory.h"
#include "sync/waiter.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kLargestAmongBlocks = uint64_t{1} << 30;

constexpr std::chrono::milliseconds kSweepAgain{250}, kSweepWhenBusy{1}, kWatchAgain{1000};
constexpr DType kBytes(TENON_UINT, 8);
constexpr int64_t kNameTimeoutNs = 5'000'000'000;
// So long, other processes may take to close memory that they have dropped.
constexpr int64_t kFreedWithinNs = 1'000'000'000;

NamedArray named_array(DType dtype, Dims shape, uint32_t flags) noexcept {
  NamedArray array{};
  array.code = dtype.code;
  array.bits = dtype.bits;
  array.lanes = dtype.lanes;
  array.flags = flags & TENON_SUBBYTE_PADDED;
  array.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), array.shape);
  return array;
}

std::string file_prefix(const SegmentId& id) { return kFilePrefix + text_of(id); }

}  // namespace

void Segments::sleep_for_a_moment() noexcept {
  const timespec moment{0, 1'000'000};
  nanosleep(&moment, nullptr);
}

void check_name(const std::string& name) {
  constexpr const char* kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  if (name.empty() || name.size() > kMostNameBytes || name.find_first_not_of(kAllowed) != std::string::npos) {
    throw_error(Code::kValue, "'", name, "' cannot name a shared array: names have 1 to ", kMostNameBytes,
                " letters, digits and the characters _ - .");
  }
}

std::unique_lock<std::mutex> lock_open(const Segment& at_least, std::vector<const Segment*>* open) {
  open->assign(1, &at_least);
  Segments& segments = Segments::instance();
  // Does not wait: the thread that holds the lock may wait for the caller.
  std::unique_lock locked(segments.lock_, std::try_to_lock);
  if (!locked.owns_lock()) return locked;
  segments.open_.visit([&](const Segment& segment) {
    if (&segment != &at_least) open->push_back(&segment);
  });
  return locked;
}

Segments::Segments()
    : tensor_pools_(std::make_unique<TensorPools>(*this)),
      pool_servers_(std::make_unique<PoolServers>(*this)),
      pool_links_(std::make_unique<PoolLinks>(*this)) {
  (void)KnownMemory::instance();  // it registers the handlers of forks
  (void)LentMappings::instance();
  static constexpr ForkHooks kHooks{[] { instance().before_fork(); }, [] { instance().after_fork(); },
                                    [] { instance().become_child(); }};
  set_fork_hooks(&kHooks);
  (void)std::atexit(remove_names_at_exit);
}

Segments& Segments::instance() {
  static auto* const segments = new Segments;
  return *segments;
}

namespace {

// Created when the library is loaded. Otherwise, a fork during the first use would leave a half-constructed
// object in the child.
[[maybe_unused]] const Segments& made_at_load = Segments::instance();

}  // namespace

void Segments::nudge() noexcept { MutexOwner::instance().nudge(sweep_in_mutex_owner); }

std::chrono::milliseconds Segments::sweep_in_mutex_owner() noexcept {
  Segments& self = instance();
  // Does not wait: the thread that holds the lock may wait for this one.
  const std::unique_lock locked(self.lock_, std::try_to_lock);
  if (!locked.owns_lock()) return kSweepWhenBusy;
  try {
    const bool is_unfinished = self.sweep_all();
    AwaitedLook look;
    self.open_.visit([&](Segment& segment) { look.look_at(segment); });
    const bool is_watching = look.end_look();
    const std::chrono::milliseconds clean = self.open_.clean();
    // pairs with: Segments::note_end, "a sweep that is due"
    self.is_sweep_due_.store(is_unfinished, std::memory_order_seq_cst);
    // pairs with: Segments::note_end, "a sweep that is due"
    if (!is_unfinished && self.ended_uses_.load(std::memory_order_seq_cst) != nullptr) return kSweepWhenBusy;
    const auto again = is_unfinished ? kSweepAgain : is_watching ? kWatchAgain : std::chrono::milliseconds{0};
    return again.count() != 0 && clean.count() != 0 ? std::min(again, clean) : std::max(again, clean);
  } catch (const std::exception&) {
    return kSweepAgain;
  }
}

// Makes the thread that sweeps sweep soon. A forked child may not have it yet. False: it cannot be created.
bool Segments::begin_sweep() noexcept {
#if !defined(__SANITIZE_THREAD__)  // under which a child cannot start threads
  try {
    MutexOwner::instance().begin();
  } catch (const std::exception&) {
    return false;
  }
#endif
  nudge();
  return true;
}

// In a forked child that uses shared arrays: it has segments of its parent, which may need a cleaner.
void Segments::begin_sweeps() noexcept {
  if (!needs_sweeps_.load(std::memory_order_relaxed)) return;
  if (!needs_sweeps_.exchange(false, std::memory_order_relaxed)) return;
  if (!begin_sweep()) needs_sweeps_.store(true, std::memory_order_relaxed);
}

void Segments::schedule_sweep() noexcept {
  if (is_sweep_due_.exchange(true, std::memory_order_relaxed)) return;
  if (!begin_sweep()) is_sweep_due_.store(false, std::memory_order_relaxed);
}

void Segments::end_use(void* owner) {
  Segments& self = instance();
  auto* const use = static_cast<BlockUse*>(owner);
  if (use->segment->is_pinned_here() && self.end_later(use)) return;
  const bool is_of_pool = use->segment->is_tensor_pool();
  (void)use->segment->leave(use->block);
  self.note_end(use, is_of_pool);
}

// The process has left the block, so the segment may be closed.
void Segments::note_end(BlockUse* use, bool is_of_pool) noexcept {
  use->segment = nullptr;
  BlockUse* head = ended_uses_.load(std::memory_order_relaxed);
  do {
    use->next_use = head;
    // pairs with: Segments::look_at_ended_uses, "a use that has ended in the list"
  } while (
      !ended_uses_.compare_exchange_weak(head, use, std::memory_order_seq_cst, std::memory_order_relaxed));
  // Messages are many: a thread is woken for their blocks only if it would not look at them soon.
  // pairs with: Segments::sweep_in_mutex_owner, "a sweep that is due"
  begin_sweeps();
  if (is_of_pool && is_sweep_due_.load(std::memory_order_seq_cst)) return;
  nudge();
}

// After the work that was submitted to GPUs. False: this process cannot wait for it.
bool Segments::end_later(BlockUse* use) noexcept {
  use->call = [](device::AfterWork* after) noexcept {
    auto* const ended = static_cast<BlockUse*>(after);
    Segments& self = instance();
    {
      const std::scoped_lock locked(self.late_lock_);
      self.drop_late(ended);
      (void)ended->segment->leave(ended->block);  // at once for a fork, whose child leaves the late ones
    }
    self.note_end(ended, true);
  };
  const std::scoped_lock locked(late_lock_);
  if (!device::SubmittedWork::instance().then(use)) return false;
  use->next_use = std::exchange(late_uses_, use);
  if (use->next_use != nullptr) use->next_use->previous_use = use;
  return true;
}

void Segments::drop_late(const BlockUse* use) noexcept {
  (use->previous_use != nullptr ? use->previous_use->next_use : late_uses_) = use->next_use;
  if (use->next_use != nullptr) use->next_use->previous_use = use->previous_use;
}

const Segments::BlockUse* Segments::use_of(const Array& array) {
  return static_cast<const BlockUse*>(array.storage().owner_with(end_use));
}

void Segments::look_at_ended_uses() {
  // pairs with: Segments::note_end, "a use that has ended in the list"
  BlockUse* use = ended_uses_.exchange(nullptr, std::memory_order_acquire);
  while (use != nullptr) {
    const std::unique_ptr<BlockUse> ended(use);
    use = ended->next_use;
    open_.note_left(ended->id, ended->block);
  }
}

void Segments::sweep_some() {
  begin_sweeps();
  look_at_ended_uses();
  if (!forks_.is_empty()) forks_.look(open_);
  open_.sweep_some();
  end_memory_beside();
}

// True: it must be called again later.
bool Segments::sweep_all() {
  sweep_some();
  bool is_unfinished = tensor_pools_->sweep();
  is_unfinished |= open_.sweep_all();
  end_memory_beside();
  return is_unfinished || !forks_.is_empty() || open_.has_ending();
}

// In a thread for it: other threads wait for the mutex owner.
void Segments::end_memory_beside() noexcept {
  if (ends_memory_beside_ || !open_.has_ending()) return;
  try {
    const BlockedSignals blocked;
    std::thread([this] {
      pthread_setname_np(pthread_self(), "tenon-memory");
      std::unique_lock locked(lock_);
      end_memory(locked);
      if (open_.has_ending()) return;  // the process is in exit()
      ends_memory_beside_ = false;
      nudge();  // what could not be closed is tried again
    }).detach();
    ends_memory_beside_ = true;
  } catch (const std::exception&) {
    // The next sweep tries again.
  }
}

void Segments::end_memory(std::unique_lock<std::mutex>& locked) noexcept {
  while (open_.has_ending()) {
    const device::BeforeExit before;
    if (!before) return;  // it ends with the process
    Segment* const segment = open_.next_ending();
    if (segment == nullptr) return;
    const SegmentId id = segment->header().id;
    std::unique_ptr<device::SharedMemory> memory = segment->take_memory();
    locked.unlock();
    memory.reset();
    if (segment->is_pinned_here()) segment->pinned_pages()->unpin([&] { return segment->users() != 0; });
    locked.lock();
    open_.note_ended(id);
  }
}

// After an allocation has failed: ends the memory of arrays that have gone. True: more may be free a moment
// later.
bool Segments::end_unused_memory(tenon_device device) {
  std::unique_lock locked(lock_);
  look_at_ended_uses();
  (void)open_.close_left();
  end_memory(locked);
  return open_.is_freeing(device);
}

// The storage needs open_memory() and storage_of(). is_last: does not throw BlockIsClosing.
Segments::Use Segments::begin_use(Segment& segment, uint32_t block, uint32_t generation, bool is_readonly,
                                  bool is_last) {
  segment.check_memory();
  auto use = std::make_unique<BlockUse>(&segment, block);
  if (!is_readonly) segment.make_writable();
  const Segment::Used used = segment.try_use(block, generation);
  if (used == Segment::Used::kIsClosing && !is_last) throw BlockIsClosing();
  if (used != Segment::Used::kYes) {
    if (segment.participant().index() == Participant::kNone) segment.throw_no_place();
    throw_error(Code::kNotFound, "the shared array does not exist any more: all processes have released it");
  }
  return Use(use.release());
}

// Threads that open the same segment at once do not wait for each other: each maps the memory, and the first
// mapping is kept. The use keeps the segment open meanwhile.
void Segments::open_memory(const BlockUse& use, std::unique_lock<std::mutex>& locked) {
  Segment& segment = *use.segment;
  if (!segment.is_on_device() || segment.has_memory()) return;
  struct LockAtEnd {
    std::unique_lock<std::mutex>& locked;
    ~LockAtEnd() { locked.lock(); }
  };
  std::unique_ptr<device::SharedMemory> mapped;
  {
    locked.unlock();
    const LockAtEnd at_end{locked};
    mapped = segment.open_memory();
  }
  segment.keep_memory(std::move(mapped));
  if (mapped == nullptr) return;
  locked.unlock();
  mapped.reset();
  locked.lock();
}

Ref<Storage> Segments::storage_of(Use use, bool is_readonly) {
  Segment& segment = *use->segment;
  const uint32_t block = use->block;
  std::byte* const data = segment.data_of(block);
  const uint64_t nbytes = segment.block(block).nbytes.load(std::memory_order_relaxed);
  if (Ref<Storage> living = Storage::find(data, nbytes, is_readonly ? Access::kRead : Access::kWrite)) {
    const std::unique_ptr<BlockUse> spare(use.release());
    (void)segment.leave(block);  // not the last use
    return living;
  }
  return adopt(std::move(use), is_readonly);
}

Ref<Storage> Segments::adopt(Use use, bool is_readonly) {
  Segment& segment = *use->segment;
  std::byte* const data = segment.data_of(use->block);
  const uint64_t nbytes = segment.block(use->block).nbytes.load(std::memory_order_relaxed);
  Gate* const gate = segment.is_tensor_pool() ? nullptr : &segment.lock(use->block);
  Ref<Storage> storage =
      Storage::adopt({data, nbytes, data, nbytes, is_readonly, use.get(), end_use, gate, segment.device()});
  (void)use.release();
  return storage;
}

// An array on some elements of a storage of this class; null: they do not lie in it.
Ref<Array> Segments::array_on(const Ref<Storage>& storage, int64_t offset, DType dtype, uint32_t flags,
                              Dims shape, Dims strides) {
  if (offset < 0 || static_cast<uint64_t>(offset) > storage->nbytes()) return {};
  tenon_adoption adoption{};
  adoption.struct_size = sizeof adoption;
  adoption.flags = flags;
  adoption.data = storage->data() + offset;
  adoption.device = storage->device();
  adoption.ndim = static_cast<int32_t>(shape.size());
  adoption.dtype = dtype;
  adoption.shape = shape.data();
  adoption.strides = strides.data();
  Ref<Array> array = Array::alias(adoption);
  if (!array && std::ranges::find(shape, 0) != shape.end()) array = Array::over(storage, dtype, shape, flags);
  return array;
}

// The first bytes of the data of a new segment.
void Segments::commit_data(Segment& segment, uint64_t nbytes, const std::string& what) {
  const auto commit = [&] { os::commit(segment.file(), segment.header().data_at, nbytes, what); };
  try {
    commit();
  } catch (const Error& e) {
    // Tries again with the unused memory of the allocators.
    if (!open_.trim_blocks() || e.code() != Code::kNoMemory) throw;
    commit();
  }
}

// A new segment with consecutive blocks of these sizes. The first one holds the array. The caller must end or
// take over the use of each block.
Segment& Segments::make_alone(const NamedArray& array, std::span<const uint64_t> sizes,
                              const SharedOptions& options) {
  uint64_t nbytes = 0;
  for (const uint64_t size : sizes) {
    if (__builtin_add_overflow(nbytes, round_up(std::max<uint64_t>(size, 1), kPage), &nbytes) ||
        nbytes > PTRDIFF_MAX) {
      throw_error(Code::kValue, sizes.size(), " blocks of shared memory do not fit into 63 bits");
    }
  }
  SegmentPlan plan{options.name,           nbytes,      static_cast<uint32_t>(sizes.size()), &array,
                   options.has_huge_pages, options.node};
  plan.channel_slots = options.channel_slots;
  std::unique_ptr<Segment> fresh = Segment::create(plan, MutexOwner::instance());
  const uint64_t committed =
      options.is_populated ? fresh->data_nbytes() : std::min(fresh->data_nbytes(), options.committed_nbytes);
  commit_data(*fresh, committed,
              concat(std::min(nbytes, committed), " bytes of shared memory",
                     options.has_huge_pages ? " in huge pages" : ""));
  if (options.is_populated) os::populate(fresh->data(), fresh->data_nbytes(), true);
  uint64_t at = 0;
  uint32_t block = 0;
  for (const uint64_t size : sizes) {
    fresh->take_block(block++, at, std::max<uint64_t>(size, 1));
    at += round_up(std::max<uint64_t>(size, 1), kPage);
  }
  return open_.add(std::move(fresh));
}

// The array on a block whose use the caller has begun. This use becomes the storage's, or ends.
Ref<Array> Segments::take_over(Segment& segment, uint32_t block, DType dtype, Dims shape, uint32_t flags,
                               const SharedOptions& options) {
  struct LeaveAtEnd {
    Segments& self;
    Segment& segment;
    uint32_t block;
    ~LeaveAtEnd() {
      if (segment.leave(block)) self.open_.note_left(segment.header().id, block);
    }
  } const at_end{*this, segment, block};
  if (options.prepare) options.prepare(segment.data_of(block));
  const uint32_t generation = segment.block(block).generation.load(std::memory_order_relaxed);
  return Array::over(storage_of(begin_use(segment, block, generation, false), false), dtype, shape, flags);
}

// Locks lock_ and the name, and calls run(lock). Repeats this until the result of run is not null. Forks wait
// for lock_, so no child inherits the lock of the name. make: creates the file of the name if there is none.
template <class Run>
auto Segments::with_name(const std::string& name, NameLock::Make make, Run run) {
  const Deadline deadline(kNameTimeoutNs);
  std::optional<Waiter> waiter;
  while (true) {
    {
      const std::scoped_lock locked(lock_);
      if (!std::exchange(has_cleaned_names_, true)) (void)remove_names_of_the_dead();
      NameLock lock(name, make);
      if (lock.state() != NameLock::NameState::kBusy) {
        sweep_some();
        if (auto made = run(lock)) return made;
      }
    }
    if (!waiter) waiter.emplace(deadline);
    const auto sleep = [](int64_t) {
      sleep_for_a_moment();
      return false;
    };
    const WaitEnd end = waiter->sleep(Waiter::kSliceNs, sleep, [] { return std::string(); });
    if (end == WaitEnd::kTimeout) {
      throw_error(Code::kTimeout, "cannot make or open '", name,
                  "' within 5 s: ", os::process_text(NameLock::holder(name)), " is making or opening it");
    }
    if (end == WaitEnd::kInterrupted)
      throw_error(Code::kInterrupted, "the wait to make or open '", name, "' was interrupted");
  }
}

// Of a segment that no process uses any more, the name that is locked becomes free. False: another process
// takes the name. Fails with kValue: some process uses the segment that has it.
bool Segments::free_name(const std::string& name, NameLock& lock) {
  OpenSegments::CloseUnused opened(open_);
  if (Segment* const known = open_named(name, lock, true, Code::kValue, opened)) {
    const uint32_t own = known->participant().index();
    const bool is_here = own != Participant::kNone && has_bit(known->block(0).users, own);
    throw_error(Code::kValue, "shared memory named '", name, "' exists already",
                is_here ? ", and this process uses it: delete the objects that use it, " : ": ",
                "attach to it, or choose another name");
  }
  return !lock.is_kept() || lock.renew();
}

// The array that create() makes under lock_. Its segment gets the name, unless that is "", when it is
// complete.
template <class Create>
Ref<Array> Segments::create_with(const std::string& name, Create create, bool opens_existing) {
  if (name.empty()) {
    const std::scoped_lock locked(lock_);
    sweep_some();
    return create();
  }
  check_name(name);
  const Deadline closing(kClosingNs);  // as open_patiently(): with_name() repeats it
  return with_name(name, NameLock::Make::kYes, [&](NameLock& lock) {
    if (opens_existing) {
      OpenSegments::CloseUnused opened(open_);
      if (Segment* const existing = open_named(name, lock, true, Code::kValue, opened)) {
        if (existing->is_on_device())
          throw_error(Code::kValue, "the shared memory named '", name, "' lies on a device");
        try {
          return named_array_on(begin_named_use(*existing, lock, false, closing.has_passed()), false);
        } catch (const BlockIsClosing&) {
          return Ref<Array>();
        }
      }
    }
    if (!free_name(name, lock)) return Ref<Array>();
    Ref<Array> array = create();
    Segment& segment = *use_of(*array)->segment;
    segment.keep_name(lock.keep(segment.header().id, segment.file().fd()));
    return array;
  });
}

namespace {

void check_is_on_host(const SharedOptions& options, const char* what) {
  if (options.device.type == TENON_CPU) return;
  throw_error(Code::kValue, what, " cannot be on ", device::text_of(options.device), ": use 'cpu'");
}

}  // namespace

Ref<Array> Segments::create_on_device(DType dtype, Dims shape, uint32_t flags, const SharedOptions& options) {
  if (options.has_huge_pages || options.is_populated || options.node >= 0) {
    throw_error(Code::kValue,
                "huge pages, populated pages and NUMA nodes are options of memory on the host: a shared "
                "array on ",
                device::text_of(options.device), " cannot have them");
  }
  const uint64_t nbytes = nbytes_of(dtype, shape, flags);
  std::unique_ptr<device::SharedMemory> memory;
  const Deadline deadline(kFreedWithinNs);
  for (bool may_try_again = true; memory == nullptr;) {
    try {
      memory = device::SharedMemory::create(options.device, nbytes, (flags & TENON_ZEROED) != 0);
    } catch (const Error& e) {
      if (e.code() != Code::kNoMemory || !may_try_again) throw;
      may_try_again = end_unused_memory(options.device) && !deadline.has_passed();
      if (may_try_again) sleep_for_a_moment();
    }
  }
  return create_with(options.name, [&] {
    SegmentPlan plan;
    const NamedArray array = named_array(dtype, shape, flags);
    plan.name = options.name;
    plan.data_nbytes = sizeof(device::SharedMemoryRecord);
    plan.array = &array;
    plan.is_on_device = true;
    OpenSegments::CloseUnused made(open_);
    Segment& fresh = made.add(Segment::create(plan, MutexOwner::instance()));
    fresh.lie_on(std::move(memory));
    fresh.take_block(0, 0, std::max<uint64_t>(nbytes, 1));
    return take_over(fresh, 0, dtype, shape, flags, options);
  });
}

Ref<Array> Segments::create(DType dtype, Dims shape, uint32_t flags, const SharedOptions& options) {
  check_dtype(dtype);
  if (device::is_device_memory(options.device) && !options.prepare)
    return create_on_device(dtype, shape, flags, options);
  check_is_on_host(options, options.prepare ? "the memory of an arena" : "a shared array");
  const uint64_t nbytes = nbytes_of(dtype, shape, flags);
  return create_with(options.name, [&] {
    if (!options.name.empty() || options.has_huge_pages || options.node >= 0 ||
        nbytes > kLargestAmongBlocks) {
      Segment& segment = make_alone(named_array(dtype, shape, flags), {&nbytes, 1}, options);
      return take_over(segment, 0, dtype, shape, flags, options);
    }
    const AllocatedBlock found = open_.allocate(nbytes);
    std::byte* const data = found.segment->data() + found.begin;
    if (options.is_populated) os::populate(data, nbytes, true);
    if ((flags & TENON_ZEROED) != 0 && !found.is_fresh) std::memset(data, 0, nbytes);
    return take_over(*found.segment, found.block, dtype, shape, flags, options);
  });
}

Ref<Array> Segments::create_blocks(std::span<const uint64_t> sizes, const SharedOptions& options) {
  if (sizes.empty() || sizes.size() > kMostBlocks) {
    throw_error(Code::kValue, sizes.size(), " blocks of shared memory: there may be 1 to ", kMostBlocks);
  }
  check_is_on_host(options, "the memory of a channel");
  return create_with(
      options.name,
      [&] {
        const auto n = static_cast<int64_t>(sizes[0]);
        Segment& segment = make_alone(named_array(kBytes, {&n, 1}, 0), sizes, options);
        for (uint32_t i = 1; i < sizes.size(); ++i) (void)segment.leave(i);
        return take_over(segment, 0, kBytes, {&n, 1}, 0, options);
      },
      options.opens_existing);
}

void Segments::take_name(const Array& control) {
  Segment& segment = feed_segment_of(control);
  const std::string name = segment.header().name;
  (void)with_name(name, NameLock::Make::kYes, [&](NameLock& lock) {
    if (!free_name(name, lock)) return false;
    segment.keep_name(lock.keep(segment.header().id, segment.file().fd()));
    return true;
  });
}

Segment& Segments::writable_segment_of(const Array& first) {
  const BlockUse* const use = use_of(first);
  if (use == nullptr || use->segment->is_tensor_pool() || use->block != 0 ||
      first.data() != use->segment->data_of(0)) {
    throw_error(Code::kValue, "the memory of shape ", shape_text(first.shape()),
                " is not the first block of a shared memory");
  }
  const std::scoped_lock locked(lock_);
  use->segment->make_writable();
  return *use->segment;
}

namespace {

// The memory file that a process has open as this descriptor; empty: it does not have it any more.
os::File file_of(const os::Process& process, int fd, const std::string& prefix) {
  return os::has_ended(process) ? os::File() : os::open_memory_of(process.pid, fd, prefix);
}

// The memory file that any process has open; empty: no visible process has it.
os::File find_file(const std::string& prefix) {
  os::File file;
  for (const os::Found& found : os::find_memory(prefix)) {
    file = os::open_memory_of(found.pid, found.fd, prefix);
    if (file) break;
  }
  return file;
}

}  // namespace

// The segment that has the name and that some process uses; null: there is none.
Segment* Segments::open_named(const std::string& name, const NameLock& lock, bool is_writable,
                              Code unreachable, OpenSegments::CloseUnused& opened) {
  if (!lock.is_kept()) return nullptr;
  const std::optional<NameRecord> record = lock.record();
  if (!record) {
    throw_error(Code::kValue, "the file '", lock.path(), "' of the name '", name,
                "' cannot be read: another version of Tenon has written it");
  }
  const auto is_used = [](Segment& segment) {
    reap_all(segment.control());
    return has_users(segment.control(), segment.block(0)) && !segment.has_lost_memory();
  };
  if (Segment* const here = open_.find(record->segment)) return is_used(*here) ? here : nullptr;
  const auto find = [&, prefix = file_prefix(record->segment)] {
    for (const NameUser& holder : record->holders) {
      if (holder.pid == 0) continue;
      // Also if its processes are visible here: their mutexes name threads by the numbers of their namespace.
      if (holder.pid_namespace != os::pid_namespace()) {
        throw_error(unreachable, "the shared array named '", name,
                    "' belongs to processes of another PID namespace (another container?), as process ",
                    holder.pid, " there: it cannot be used from here");
      }
      if (os::File file = file_of({holder.pid, holder.start}, holder.fd, prefix)) return file;
    }
    return find_file(prefix);  // perhaps only forked children of these processes have it
  };
  os::File file = find();
  // A process that leaves gives up the name before it closes the memory. The descriptors of a process that
  // ends disappear from /proc before the kernel closes them, and the process keeps the name until then.
  const Deadline deadline(kFreedWithinNs);
  while (!file) {
    if (!lock.is_kept()) return nullptr;
    if (deadline.has_passed()) {
      throw_error(unreachable, "the memory of the shared array named '", name,
                  "' cannot be opened through the processes that have it: is /proc restricted?");
    }
    sleep_for_a_moment();
    file = find();
  }
  std::unique_ptr<Segment> segment = Segment::open(std::move(file), is_writable, MutexOwner::instance());
  return is_used(*segment) ? &opened.add(std::move(segment)) : nullptr;
}

Ref<Array> Segments::attach(const std::string& name, bool is_readonly) {
  check_name(name);
  const Deadline closing(kClosingNs);  // as open_patiently(): with_name() repeats it
  Use use = with_name(name, NameLock::Make::kNo, [&](NameLock& lock) {
    OpenSegments::CloseUnused opened(open_);
    Segment* const segment = lock.state() == NameLock::NameState::kLocked
                                 ? open_named(name, lock, !is_readonly, Code::kNotFound, opened)
                                 : nullptr;
    if (segment == nullptr) {
      throw_error(Code::kNotFound, "no process of this user shares memory named '", name, "' (by '",
                  lock.path(), "'); is the process that creates it running?");
    }
    try {
      return begin_named_use(*segment, lock, is_readonly, closing.has_passed());
    } catch (const BlockIsClosing&) {
      return Use();
    }
  });
  std::unique_lock locked(lock_);
  open_memory(*use, locked);
  return named_array_on(std::move(use), is_readonly);
}

// A use of the array that a segment with this name holds. The segment keeps the name.
Segments::Use Segments::begin_named_use(Segment& segment, NameLock& lock, bool is_readonly, bool is_last) {
  const uint32_t generation = segment.block(0).generation.load(std::memory_order_relaxed);
  Use use = begin_use(segment, 0, generation, is_readonly, is_last);
  if (!segment.keeps_name()) segment.keep_name(lock.keep(segment.header().id, segment.file().fd()));
  return use;
}

Ref<Array> Segments::named_array_on(Use use, bool is_readonly) {
  const NamedArray& array = use->segment->header().array;
  const Dims shape{array.shape, static_cast<size_t>(array.ndim)};
  const uint32_t flags = static_cast<uint32_t>(array.flags) | (is_readonly ? TENON_READONLY : 0);
  return Array::over(storage_of(std::move(use), is_readonly), DType(array.code, array.bits, array.lanes),
                     shape, flags);
}

bool Segments::is_shared(const Array& array) noexcept {
  const BlockUse* const use = use_of(array);
  return use != nullptr && array.storage().moved_at() == nullptr && !use->segment->is_tensor_pool();
}

// The segment of a handle. Opens it if it is not open in this process.
Segment& Segments::reach(const SegmentId& id, const os::Process& sender, int fd,
                         OpenSegments::CloseUnused& opened) {
  if (Segment* const here = open_.find(id)) return *here;
  const std::string prefix = file_prefix(id);
  os::File file = file_of(sender, fd, prefix);
  if (!file) file = find_file(prefix);
  if (!file) {
    if (const std::string why = os::why_hidden(sender, fd); !why.empty())
      throw_error(Code::kNotFound, "the shared array cannot be opened: ", why, "; send a copy of it");
    const bool is_alive = !os::has_ended(sender);
    throw_error(Code::kNotFound, "the shared array cannot be opened: no process has it any more (process ",
                sender.pid, " sent it",
                is_alive ? "; it has released it, or other code of it has closed the file descriptor" : "",
                ")");
  }
  std::unique_ptr<Segment> segment = Segment::open(std::move(file), true, MutexOwner::instance());
  if (segment->header().id != id) {
    throw_error(Code::kValue,
                "this is not a handle of a shared array: the memory file that it names is the segment ",
                text_of(segment->header().id));
  }
  if (segment->header().name[0] != '\0') segment->keep_name(keep_name(segment->header().name, id));
  Segment& added = opened.add(std::move(segment));
  if (added.needs_cleaner()) nudge();
  return added;
}

void Segments::before_fork() noexcept {
  try {
    (void)os::boot();  // so that no other thread is computing it during the fork
  } catch (const std::exception&) {
    // The child computes it.
  }
  lock_.lock();
  pool_links_->before_fork();
  // First, because it may wait: the others take spin locks.
  open_.visit([](Segment& segment) { segment.lock_messages(); });
  late_lock_.lock();
  forks_.before(open_);
  LentMappings::instance().before_fork();
}

void Segments::after_fork() noexcept {
  LentMappings::instance().after_fork();
  forks_.after(open_);
  late_lock_.unlock();
  const bool is_awaited = !forks_.is_empty();
  lock_.unlock();
  if (is_awaited) nudge();
}

void Segments::become_child() noexcept {
  LentMappings::instance().after_fork();
  forget_watch();
  open_.become_child();
  tensor_pools_->become_child();
  pool_servers_->become_child();
  pool_links_->become_child();
  while (late_uses_ != nullptr) {  // the parent waits for its work
    const std::unique_ptr<BlockUse> late(late_uses_);
    late_uses_ = late->next_use;
    (void)late->segment->leave(late->block);
  }
  late_lock_.unlock();
  is_sweep_due_.store(false, std::memory_order_relaxed);
  forks_.become_child();
  bool needs_sweeps = false;
  open_.visit([&](const Segment& segment) { needs_sweeps |= segment.needs_cleaner(); });
  needs_sweeps_.store(needs_sweeps, std::memory_order_relaxed);
  ends_memory_beside_ = false;
  lock_.unlock();
}

// Removes the names of segments that no other process uses. If this process is killed, the next process that
// uses names removes them.
void Segments::remove_names_at_exit() {
  Segments& self = instance();
  constexpr int kTries = 20;
  std::unique_lock locked(self.lock_, std::defer_lock);
  for (int i = 0; i < kTries && !locked.try_lock(); ++i) sleep_for_a_moment();
  if (!locked.owns_lock()) return;
  self.pool_servers_->remove_all();
  self.open_.visit([](Segment& segment) {
    if (!segment.keeps_name()) return;
    reap_all(segment.control());
    const uint32_t own = segment.participant().index();
    bool is_used = false;
    visit_bits(segment.block(0).users, [&](uint32_t p) { is_used |= p != own; });
    if (!is_used) remove_name(segment.header().name, segment.header().id);
  });
}

}  // namespace tenon::impl
