// SPDX-License-Identifier: Apache-2.0
#include "ipc/segments.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "ipc/awaited.h"
#include "ipc/handle.h"
#include "ipc/process_lock.h"
#include "memory/fork.h"
#include "memory/known_memory.h"
#include "sync/waiter.h"

namespace tenon::impl {
namespace {

// Addresses, not memory: a pool grows into them.
constexpr uint64_t kPoolNbytes = uint64_t{4} << 30;
constexpr uint64_t kSmallPoolNbytes = uint64_t{256} << 20;  // where addresses are short
constexpr uint64_t kLargestInPool = uint64_t{1} << 30;

constexpr std::chrono::milliseconds kSweepAgain{250}, kSweepWhenBusy{1}, kWatchAgain{1000};
constexpr int64_t kSweepNs = 100'000'000;
constexpr size_t kSomeBlocks = 64;  // that a new array makes this process look at
constexpr size_t kSomeSegments = 8;
constexpr size_t kMostForks = 64;  // children that have not come yet, which are looked at
constexpr int64_t kNameTimeoutNs = 5'000'000'000;

void sleep_for_a_moment() noexcept {
  const timespec moment{0, 1'000'000};
  nanosleep(&moment, nullptr);
}

std::string file_prefix(const SegmentId& id) { return kFilePrefix + text_of(id); }

}  // namespace

void check_name(const std::string& name) {
  constexpr const char* kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  if (name.empty() || name.size() > kMostNameBytes || name.find_first_not_of(kAllowed) != std::string::npos) {
    throw_error(Code::kValue, "'", name, "' cannot name a shared array: names have 1 to ", kMostNameBytes,
                " letters, digits and the characters _ - .");
  }
}

std::vector<const Segment*> open_segments(const Segment& at_least) {
  std::vector<const Segment*> all{&at_least};
  Segments& segments = Segments::instance();
  // Whoever holds the lock may wait for the caller: to see less is better than to wait.
  const std::unique_lock locked(segments.lock_, std::try_to_lock);
  if (!locked.owns_lock()) return all;
  for (const auto& [id, segment] : segments.open_) {
    if (segment.get() != &at_least) all.push_back(segment.get());
  }
  return all;
}

Segments::Segments() {
  (void)KnownMemory::instance();  // which handles forks
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

// Made when the library is loaded: a fork at the moment of the first use would leave the child with an object
// half made.
[[maybe_unused]] const Segments& made_at_load = Segments::instance();

}  // namespace

void Segments::nudge() noexcept { Keeper::instance().nudge(sweep_in_keeper); }

std::chrono::milliseconds Segments::sweep_in_keeper() noexcept {
  Segments& self = instance();
  // Not waited for: whoever has it may wait for this thread.
  const std::unique_lock locked(self.lock_, std::try_to_lock);
  if (!locked.owns_lock()) return kSweepWhenBusy;
  try {
    const bool is_unfinished = self.sweep_all();
    AwaitedLook look;
    for (const auto& [id, segment] : self.open_) look.look_at(*segment);
    const bool is_watching = look.end_look();
    if (is_unfinished) return kSweepAgain;
    return is_watching ? kWatchAgain : std::chrono::milliseconds{0};
  } catch (const std::exception&) {
    return kSweepAgain;
  }
}

void Segments::end_use(void* owner) {
  Segments& self = instance();
  auto* const use = static_cast<Use*>(owner);
  (void)use->segment->leave(use->block);
  use->segment = nullptr;
  Use* head = self.ended_uses_.load(std::memory_order_relaxed);
  do {
    use->next = head;
    // pairs with: Segments::look_at_ended_uses, "a use and its note"
  } while (!self.ended_uses_.compare_exchange_weak(head, use, std::memory_order_release,
                                                   std::memory_order_relaxed));
  nudge();
}

const Segments::Use* Segments::use_of(const Array& array) {
  return static_cast<const Use*>(array.storage().owner_with(end_use));
}

// Sorts the notes of uses that have ended: to the pools, and to the segments that may be left.
void Segments::look_at_ended_uses() {
  // pairs with: Segments::end_use, "a use and its note"
  Use* use = ended_uses_.exchange(nullptr, std::memory_order_acquire);
  while (use != nullptr) {
    const std::unique_ptr<Use> ended(use);
    use = ended->next;
    note_left(ended->id, ended->block);
  }
}

void Segments::note_left(const SegmentId& id, uint32_t block) noexcept {
  if (Pool* const pool = pool_of(id)) {
    pool->note_left(block);
  } else if (auto node = staying_.extract(id)) {
    leaving_.insert(std::move(node));
  }
}

// What costs the same however many arrays there are: for whoever makes or opens one.
void Segments::sweep_some() {
  look_at_ended_uses();
  if (!forks_.empty()) look_at_forks();
  for (size_t n = std::min(kSomeSegments, leaving_.size()); n != 0; --n) {
    auto at = leaving_.upper_bound(last_looked_at_);
    if (at == leaving_.end()) at = leaving_.begin();
    last_looked_at_ = *at;
    (void)try_close(at);
  }
  if (pools_.empty()) return;
  next_pool_ = (next_pool_ + 1) % pools_.size();
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (i == next_pool_ || pools_[i]->is_any_new()) (void)pools_[i]->reclaim(kSomeBlocks);
  }
}

// All of it, unless it was done a moment ago: then what is new. True: something is left to be looked at
// later.
bool Segments::sweep_all() {
  sweep_some();
  const int64_t now = now_ns();
  if (now - swept_at_ns_ < kSweepNs) return true;
  swept_at_ns_ = now;
  look_at_forks();
  bool is_unfinished = !forks_.empty();
  for (const auto& [id, segment] : open_) {
    if (segment->has_limited()) is_unfinished |= segment->end_limited();
  }
  for (const auto& pool : pools_) is_unfinished |= pool->reclaim();
  for (auto at = leaving_.begin(); at != leaving_.end();) {
    const auto next = std::next(at);
    is_unfinished |= !try_close(at);
    at = next;
  }
  return is_unfinished;
}

// Of leaving_. True: the segment is closed, or in use, so that it is not to be looked at any more.
bool Segments::try_close(std::set<SegmentId>::iterator leaving) noexcept {
  const auto at = open_.find(*leaving);
  Segment& segment = *at->second;
  if (pool_of(*leaving) != nullptr || segment.users() != 0) {
    staying_.insert(leaving_.extract(leaving));
    return true;
  }
  if (!segment.participant().can_leave()) return false;
  // What comes by a handle from a process that lives, comes again.
  const bool comes_again = segment.header().has_named_array == 0 && segment.is_creator_alive();
  if (comes_again || segment.has_sent()) return false;
  leaving_.erase(leaving);
  open_.erase(at);
  return true;
}

Pool* Segments::pool_of(const SegmentId& id) noexcept {
  const auto is_it = [&](const auto& pool) { return pool->segment().header().id == id; };
  const auto at = std::find_if(pools_.begin(), pools_.end(), is_it);
  return at != pools_.end() ? at->get() : nullptr;
}

Segment& Segments::add(std::unique_ptr<Segment> segment) {
  const SegmentId id = segment->header().id;
  std::set<SegmentId> leaving{id};  // first: what is open is in one of the sets
  const auto [at, is_new] = open_.try_emplace(id, std::move(segment));
  if (!is_new) throw_error(Code::kValue, "two memory files say that they are the segment ", text_of(id));
  leaving_.merge(leaving);  // until it is used
  added_ = id;
  return *at->second;
}

// While an array is opened: a segment that was opened for it, and gave none, is closed again.
class Segments::Opening {
 public:
  explicit Opening(Segments& segments) noexcept : segments_(segments) { segments_.added_.reset(); }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
  ~Opening() {
    if (!segments_.added_) return;
    const auto at = segments_.open_.find(*segments_.added_);
    if (at == segments_.open_.end() || at->second->users() != 0) return;
    if (!at->second->participant().can_leave()) return;
    segments_.leaving_.erase(at->first);
    segments_.open_.erase(at);
  }

 private:
  Segments& segments_;
};

Segment* Segments::find(const SegmentId& id) noexcept {
  const auto at = open_.find(id);
  return at == open_.end() ? nullptr : at->second.get();
}

Ref<Storage> Segments::storage_of(Segment& segment, uint32_t block, uint32_t generation, bool is_readonly) {
  auto use = std::make_unique<Use>(Use{&segment, block, segment.header().id});
  if (!is_readonly) segment.make_writable();
  if (!segment.use(block, generation)) {
    throw_error(Code::kNotFound,
                "the shared array is not there any more: every process that had it has let go "
                "of it");
  }
  const Block& b = segment.block(block);
  std::byte* const data = segment.data() + b.begin.load(std::memory_order_relaxed);
  const uint64_t nbytes = b.nbytes.load(std::memory_order_relaxed);
  if (Ref<Storage> living = Storage::find(data, nbytes, is_readonly ? Access::kRead : Access::kWrite)) {
    (void)segment.leave(block);  // not its last use
    return living;
  }
  try {
    Ref<Storage> storage =
        Storage::adopt({data, nbytes, data, nbytes, is_readonly, use.get(), end_use, &segment.lock(block)});
    (void)use.release();
    return storage;
  } catch (...) {
    end_use(use.release());
    throw;
  }
}

// A segment of its own, with blocks of these sizes one behind the other, of which the first one holds the
// array. The uses that this has begun are the caller's.
Segment& Segments::make_alone(const NamedArray& array, std::span<const uint64_t> sizes,
                              const SharedOptions& options) {
  uint64_t nbytes = 0;
  for (const uint64_t size : sizes) {
    if (__builtin_add_overflow(nbytes, round_up(std::max<uint64_t>(size, 1), kPage), &nbytes) ||
        nbytes > PTRDIFF_MAX) {
      throw_error(Code::kValue, sizes.size(), " blocks of shared memory do not fit into 63 bits");
    }
  }
  const SegmentPlan plan{options.name,           nbytes,      static_cast<uint32_t>(sizes.size()), &array,
                         options.has_huge_pages, options.node};
  std::unique_ptr<Segment> fresh = Segment::create(plan, Keeper::instance());
  const auto commit = [&] {
    os::commit(fresh->file(), fresh->header().data_at, fresh->data_nbytes(),
               concat(nbytes, " bytes of shared memory", options.has_huge_pages ? " in huge pages" : ""));
  };
  try {
    commit();
  } catch (const Error& e) {
    // Perhaps with what the pools keep for later.
    uint64_t idle_nbytes = 0;
    for (const auto& pool : pools_) {
      (void)pool->reclaim();
      idle_nbytes += pool->idle_nbytes();
      pool->trim(0);
    }
    if (e.code() != Code::kNoMemory || idle_nbytes == 0) throw;
    commit();
  }
  if (options.is_populated) os::populate(fresh->data(), fresh->data_nbytes(), true);
  uint64_t at = 0;
  uint32_t block = 0;
  for (const uint64_t size : sizes) {
    fresh->take_block(block++, at, std::max<uint64_t>(size, 1));
    at += round_up(std::max<uint64_t>(size, 1), kPage);
  }
  return add(std::move(fresh));
}

// The array on a block whose use has begun, prepared; the use becomes the storage's, or ends.
Ref<Array> Segments::take_over(Segment& segment, uint32_t block, DType dtype, Dims shape, uint32_t flags,
                               const SharedOptions& options) {
  struct End {
    Segments& self;
    Segment& segment;
    uint32_t block;
    ~End() {
      if (segment.leave(block)) self.note_left(segment.header().id, block);
    }
  } const end{*this, segment, block};
  const Block& b = segment.block(block);
  if (options.prepare) options.prepare(segment.data() + b.begin.load(std::memory_order_relaxed));
  const uint32_t generation = b.generation.load(std::memory_order_relaxed);
  return Array::over(storage_of(segment, block, generation, false), dtype, shape, flags);
}

// Locks lock_ and the name, and runs run(lock) then; once more, if that gives nothing. Forks wait for it, so
// no child has the lock. make: the name's file where there is none; else run() finds that the name is absent.
template <class Run>
Ref<Array> Segments::with_name(const std::string& name, NameLock::Make make, Run run) {
  const Deadline deadline(kNameTimeoutNs);
  std::optional<Waiter> waiter;
  while (true) {
    {
      const std::scoped_lock locked(lock_);
      if (!std::exchange(has_cleaned_names_, true)) (void)remove_names_of_the_dead();
      NameLock lock(name, make);
      if (lock.state() != NameLock::State::kBusy) {
        sweep_some();
        if (Ref<Array> array = run(lock)) return array;
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

// True: the name is for a new segment, because nobody has it, or uses what has it. False: another process is
// faster.
bool Segments::request_name(const std::string& name, NameLock* lock) {
  if (open_named(name, *lock, true, Code::kValue) != nullptr) {
    throw_error(Code::kValue, "shared memory named '", name,
                "' exists already: attach to it, or choose another name");
  }
  return !lock->is_kept() || lock->renew();
}

// What create() makes, in a segment that gets the name when it is complete. Requires: lock_ is not held.
template <class Create>
Ref<Array> Segments::create_named(const std::string& name, Create create) {
  return with_name(name, NameLock::Make::kYes, [&](NameLock& lock) {
    if (!request_name(name, &lock)) return Ref<Array>();
    Ref<Array> array = create();
    Segment& segment = *use_of(*array)->segment;
    segment.keep_name(lock.keep(segment.header().id, segment.file().fd()));
    return array;
  });
}

Ref<Array> Segments::create(DType dtype, Dims shape, uint32_t flags, const SharedOptions& options) {
  check_dtype(dtype);
  const uint64_t nbytes = nbytes_of(dtype, shape, flags);
  if (!options.name.empty()) check_name(options.name);
  const auto create_alone = [&] {
    NamedArray array{};
    array.code = dtype.code;
    array.bits = dtype.bits;
    array.lanes = dtype.lanes;
    array.flags = flags & TENON_SUBBYTE_PADDED;
    array.ndim = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), array.shape);
    Segment& segment = make_alone(array, {&nbytes, 1}, options);
    return take_over(segment, 0, dtype, shape, flags, options);
  };
  if (!options.name.empty()) return create_named(options.name, create_alone);
  const std::scoped_lock locked(lock_);
  sweep_some();
  if (options.has_huge_pages || options.node >= 0 || nbytes > kLargestInPool) return create_alone();
  Segment* segment = nullptr;
  Pool::Place place;
  for (const auto& pool : pools_) {
    place = pool->allocate(nbytes);
    segment = &pool->segment();
    if (place.block != Segment::kNone) break;
  }
  if (place.block == Segment::kNone) {
    Pool& pool = new_pool(nbytes);
    place = pool.allocate(nbytes);
    segment = &pool.segment();
  }
  std::byte* const data = segment->data() + place.begin;
  if (options.is_populated) os::populate(data, nbytes, true);
  if ((flags & TENON_ZEROED) != 0 && !place.is_fresh) std::memset(data, 0, nbytes);
  return take_over(*segment, place.block, dtype, shape, flags, options);
}

Ref<Array> Segments::create_blocks(std::span<const uint64_t> sizes, const SharedOptions& options) {
  if (!options.name.empty()) check_name(options.name);
  if (sizes.empty() || sizes.size() > kMostBlocks) {
    throw_error(Code::kValue, sizes.size(), " blocks of shared memory: there may be 1 to ", kMostBlocks);
  }
  const auto create_all = [&] {
    NamedArray array{};
    array.code = TENON_UINT;
    array.bits = 8;
    array.lanes = 1;
    array.ndim = 1;
    array.shape[0] = static_cast<int64_t>(sizes[0]);
    Segment& segment = make_alone(array, sizes, options);
    for (uint32_t i = 1; i < sizes.size(); ++i) (void)segment.leave(i);
    return take_over(segment, 0, DType(TENON_UINT, 8), {array.shape, 1}, 0, options);
  };
  if (!options.name.empty()) return create_named(options.name, create_all);
  const std::scoped_lock locked(lock_);
  sweep_some();
  return create_all();
}

Ref<Array> Segments::sibling(const Array& first, uint32_t block) {
  const Use* const use = use_of(first);
  if (use == nullptr || use->block != 0 || block >= use->segment->header().blocks) {
    throw_error(Code::kValue, "the shared memory has no block ", block);
  }
  const std::scoped_lock locked(lock_);
  Segment& segment = *use->segment;
  const Block& b = segment.block(block);
  const auto n = static_cast<int64_t>(b.nbytes.load(std::memory_order_relaxed));
  const uint32_t generation = b.generation.load(std::memory_order_relaxed);
  return Array::over(storage_of(segment, block, generation, false), DType(TENON_UINT, 8), {&n, 1}, 0);
}

ProcessLock& Segments::lock_of(const Array& array) noexcept {
  return *static_cast<ProcessLock*>(array.storage().memory().gate);
}

Pool& Segments::new_pool(uint64_t nbytes) {
  const auto make = [&](uint64_t data_nbytes) {
    SegmentPlan plan;
    plan.data_nbytes = data_nbytes;
    plan.blocks = kMostBlocks;
    return Segment::create(plan, Keeper::instance());
  };
  std::unique_ptr<Segment> segment;
  try {
    segment = make(kPoolNbytes);
  } catch (const Error& e) {
    if (e.code() != Code::kNoMemory) throw;
    segment = make(std::max(kSmallPoolNbytes, round_up(nbytes, kSmallPoolNbytes)));
  }
  // First what may fail: a segment of this process that has no pool would be of no use to anybody.
  pools_.reserve(pools_.size() + 1);
  auto pool = std::make_unique<Pool>(*segment);
  (void)add(std::move(segment));
  return *pools_.emplace_back(std::move(pool));
}

// The memory file of a segment, as some process has it open; empty: nobody who can be seen has.
os::File Segments::find_file(const std::string& prefix, const os::Process& sender, int fd) {
  os::File file;
  if (os::start_of(sender.pid) == sender.start) file = os::open_memory_of(sender.pid, fd, prefix);
  if (file) return file;
  for (const os::Found& found : os::find_memory(prefix)) {
    file = os::open_memory_of(found.pid, found.fd, prefix);
    if (file) break;
  }
  return file;
}

// The segment of the name that some process uses; null: there is none.
Segment* Segments::open_named(const std::string& name, const NameLock& lock, bool is_writable,
                              Code unreachable) {
  if (!lock.is_kept()) return nullptr;
  const std::optional<NameRecord> record = lock.record();
  if (!record) {
    throw_error(Code::kValue, "the file '", lock.path(), "' of the name '", name,
                "' cannot be read: another version of Tenon keeps it");
  }
  Segment* const here = find(record->segment);
  if (here != nullptr) {
    reap_all(here->control());
    return is_empty(here->block(0).users) ? nullptr : here;
  }
  const std::string prefix = file_prefix(record->segment);
  os::File file;
  for (const NameUser& holder : record->holders) {
    if (holder.pid == 0) continue;
    // Also where its processes can be seen: their locks name threads by the numbers that they have there.
    if (holder.pid_namespace != os::pid_namespace()) {
      throw_error(unreachable, "the shared array named '", name,
                  "' belongs to processes of another PID namespace (another container?), as process ",
                  holder.pid, " there: it cannot be used from here");
    }
    if (os::start_of(holder.pid) == holder.start) file = os::open_memory_of(holder.pid, holder.fd, prefix);
    if (file) break;
  }
  if (!file) file = find_file(prefix, {}, -1);  // as a forked child has it, whose parent has ended
  if (!file) {
    throw_error(unreachable, "the processes that share an array named '", name,
                "' cannot be looked into, so that its memory cannot be reached: is /proc restricted?");
  }
  std::unique_ptr<Segment> segment = Segment::open(std::move(file), is_writable, Keeper::instance());
  reap_all(segment->control());
  return is_empty(segment->block(0).users) ? nullptr : &add(std::move(segment));
}

Ref<Array> Segments::attach(const std::string& name, bool is_readonly) {
  check_name(name);
  return with_name(name, NameLock::Make::kNo, [&](NameLock& lock) {
    const Opening opening(*this);
    Segment* const segment = lock.state() == NameLock::State::kLocked
                                 ? open_named(name, lock, !is_readonly, Code::kNotFound)
                                 : nullptr;
    if (segment == nullptr) {
      throw_error(Code::kNotFound, "no process of this user shares an array named '", name, "' (by '",
                  lock.path(), "'); is the one that makes it running?");
    }
    const NamedArray& array = segment->header().array;
    const uint32_t generation = segment->block(0).generation.load(std::memory_order_relaxed);
    Ref<Storage> storage = storage_of(*segment, 0, generation, is_readonly);
    if (!segment->keeps_name()) segment->keep_name(lock.keep(segment->header().id, segment->file().fd()));
    const Dims shape{array.shape, static_cast<size_t>(array.ndim)};
    const uint32_t flags = static_cast<uint32_t>(array.flags) | (is_readonly ? TENON_READONLY : 0);
    return Array::over(std::move(storage), DType(array.code, array.bits, array.lanes), shape, flags);
  });
}

bool Segments::is_shared(const Array& array) noexcept { return use_of(array) != nullptr; }

const Segments::Use& Segments::checked_use_of(const Array& array) {
  const Use* const use = use_of(array);
  if (use == nullptr) {
    throw_error(Code::kType, "the array of shape ", shape_text(array.shape()),
                " does not lie in shared memory: make it with shared=");
  }
  return *use;
}

std::string Segments::handle_of(const Array& array) {
  const Use* const use = &checked_use_of(array);
  Segment& segment = *use->segment;
  const Block& block = segment.block(use->block);
  Handle handle;
  handle.boot = os::boot();
  handle.pid_namespace = os::pid_namespace();
  handle.user = os::user();
  handle.sender = os::this_process();
  handle.fd = segment.file().fd();
  handle.segment = segment.header().id;
  handle.block = use->block;
  handle.generation = block.generation.load(std::memory_order_relaxed);
  handle.offset = array.data() - (segment.data() + block.begin.load(std::memory_order_relaxed));
  handle.dtype = array.dtype();
  handle.flags = array.desc().flags;
  handle.shape.assign(array.shape().begin(), array.shape().end());
  handle.strides.assign(array.strides().begin(), array.strides().end());
  handle.number = segment.send(use->block);
  try {
    return handle.encode();
  } catch (...) {
    segment.receive(use->block, handle.number);  // nobody else can
    throw;
  }
}

uint32_t Segments::revoke(const Array& array) {
  const Use& use = checked_use_of(array);
  return use.segment->revoke(use.block);
}

void Segments::limit(std::span<const std::byte> bytes, const HandleLimits& limits) {
  const Handle handle = Handle::decode(bytes);
  {
    const std::scoped_lock locked(lock_);
    Segment* const segment = find(handle.segment);
    if (handle.sender != os::this_process()) {
      throw_error(Code::kValue, "process ", handle.sender.pid, " has sent this handle, not this process, ",
                  os::this_process().pid);
    }
    if (segment == nullptr) return;  // it is gone, and with it what the handle has kept
    if (!segment->limit(handle.block, handle.number, limits)) {
      throw_error(
          Code::kValue, "this handle can have no limit, because ", kSent,
          " handles of the array were not opened yet when it was made, and only so many can have one: open "
          "some, or revoke them all (tn.revoke_handles, tenon_shared_revoke), and make it anew");
    }
  }
  nudge();
}

// The segment of a handle, opened here if it is not yet.
Segment& Segments::reach(const SegmentId& id, const os::Process& sender, int fd) {
  if (Segment* const here = find(id)) return *here;
  os::File file = find_file(file_prefix(id), sender, fd);
  if (!file) {
    throw_error(Code::kNotFound, "the shared array cannot be opened: no process has it any more (process ",
                sender.pid, " sent it)");
  }
  std::unique_ptr<Segment> segment = Segment::open(std::move(file), true, Keeper::instance());
  if (segment->header().id != id) {
    throw_error(Code::kValue,
                "this is no handle of a shared array: the memory file that it names is the segment ",
                text_of(segment->header().id));
  }
  if (segment->header().name[0] != '\0') segment->keep_name(keep_name(segment->header().name, id));
  return add(std::move(segment));
}

Ref<Array> Segments::open(std::span<const std::byte> bytes) {
  const Handle handle = Handle::decode(bytes);
  if (handle.boot != os::boot()) {
    throw_error(Code::kNotFound,
                "the shared array cannot be opened: it lies in the memory of another machine "
                "(or of an earlier run of this one); send a copy of it");
  }
  if (handle.user != os::user()) {
    throw_error(Code::kNotFound, "the shared array cannot be opened: it belongs to user ", handle.user,
                ", this process to ", os::user());
  }
  const std::scoped_lock locked(lock_);
  sweep_some();
  const Opening opening(*this);
  if (find(handle.segment) == nullptr && handle.pid_namespace != os::pid_namespace()) {
    throw_error(Code::kNotFound,
                "the shared array cannot be opened: it was sent from another PID namespace "
                "(another container?)");
  }
  Segment& segment = reach(handle.segment, handle.sender, handle.fd);
  const bool is_readonly = (handle.flags & TENON_READONLY) != 0 && !segment.is_writable();
  const Ref<Storage> storage = storage_of(segment, handle.block, handle.generation, is_readonly);
  const auto is_inside = handle.offset >= 0 && static_cast<uint64_t>(handle.offset) <= storage->nbytes();
  tenon_adoption adoption{};
  adoption.struct_size = sizeof adoption;
  adoption.flags = handle.flags & (TENON_READONLY | TENON_SUBBYTE_PADDED);
  adoption.data = storage->data() + (is_inside ? handle.offset : 0);
  adoption.device = {TENON_CPU, 0};
  adoption.ndim = static_cast<int32_t>(handle.shape.size());
  adoption.dtype = handle.dtype;
  adoption.shape = handle.shape.data();
  adoption.strides = handle.strides.data();
  Ref<Array> array = is_inside ? Array::alias(adoption) : Ref<Array>();
  if (!array && is_inside && std::find(handle.shape.begin(), handle.shape.end(), 0) != handle.shape.end()) {
    array = Array::over(storage, handle.dtype, handle.shape, adoption.flags);
  }
  if (array) {
    segment.receive(handle.block, handle.number);
    return array;
  }
  throw_error(Code::kValue,
              "this is no handle of a shared array: its elements do not lie in the memory that it "
              "names");
}

void Segments::before_fork() noexcept {
  try {
    (void)os::boot();  // whoever asks for it first, has it when this returns
  } catch (const std::exception&) {
    // Nobody has.
  }
  lock_.lock();
  look_at_forks();
  Fork fork;
  for (const auto& [id, segment] : open_) {
    const Participant::Reserved place = segment->before_fork();
    try {
      if (place.index != Participant::kNone) fork.places.emplace_back(id, place);
    } catch (const std::bad_alloc&) {
      // Of this place the age will say that the child has not come.
    }
  }
  if (fork.places.empty() || forks_.size() == kMostForks) return;
  if (!os::make_pipe(&fork.reader, &fork_writer_)) return;
  try {
    forks_.push_back(std::move(fork));
  } catch (const std::bad_alloc&) {
    fork_writer_ = os::File();
  }
}

void Segments::after_fork() noexcept {
  for (const auto& [id, segment] : open_) segment->after_fork();
  fork_writer_ = os::File();
  look_at_forks();
  const bool is_awaited = !forks_.empty();
  lock_.unlock();
  if (is_awaited) nudge();
}

void Segments::become_child() noexcept {
  forget_watch();
  pools_.clear();  // they are the parent's to give away
  for (const auto& [id, segment] : open_) segment->become_child();
  forks_.clear();
  fork_writer_ = os::File();  // last: the parent sees that this child has come
  leaving_.merge(staying_);
  lock_.unlock();
}

// Gives back the places of children that have ended before they took them, and of forks that have failed.
void Segments::look_at_forks() noexcept {
  std::erase_if(forks_, [this](const Fork& fork) {
    if (!os::has_no_writer(fork.reader)) return false;
    for (const auto& [id, place] : fork.places) {
      if (Segment* const segment = find(id)) segment->participant().free_reserved(place);
    }
    return true;
  });
}

// The names of what no other process uses. After another end of the process the next one removes them.
void Segments::remove_names_at_exit() {
  Segments& self = instance();
  constexpr int kTries = 20;
  std::unique_lock locked(self.lock_, std::defer_lock);
  for (int i = 0; i < kTries && !locked.try_lock(); ++i) sleep_for_a_moment();
  if (!locked.owns_lock()) return;
  for (const auto& [id, segment] : self.open_) {
    if (!segment->keeps_name()) continue;
    reap_all(segment->control());
    const uint32_t own = segment->participant().index();
    bool is_used = false;
    visit_bits(segment->block(0).users, [&](uint32_t p) { is_used |= p != own; });
    if (!is_used) remove_name(segment->header().name, id);
  }
}

}  // namespace tenon::impl
