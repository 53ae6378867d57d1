// SPDX-License-Identifier: Apache-2.0
#include "share/segments.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "core/fork.h"
#include "core/known_memory.h"
#include "share/handle.h"
#include "share/process_lock.h"

namespace tenon::share {
namespace {

// Addresses, not memory: a pool grows into them.
constexpr uint64_t kPoolNbytes = uint64_t{4} << 30;
constexpr uint64_t kSmallPoolNbytes = uint64_t{256} << 20;  // where addresses are short
constexpr uint64_t kLargestInPool = uint64_t{1} << 30;

constexpr std::chrono::milliseconds kSweepAgain{1000}, kSweepWhenBusy{1};

// A storage's use of a block.
struct Use {
  Segment* segment;
  uint32_t block;
};

void end_use(void* owner) {
  auto* const use = static_cast<Use*>(owner);
  (void)use->segment->leave(use->block);
  delete use;
  Segments::nudge();
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
    return self.sweep() ? kSweepAgain : std::chrono::milliseconds{0};
  } catch (const std::exception&) {
    return kSweepAgain;
  }
}

// True: something is left to be looked at later.
bool Segments::sweep() {
  bool is_unfinished = false;
  for (const auto& pool : pools_) is_unfinished |= pool->reclaim();
  for (auto at = open_.begin(); at != open_.end();) {
    Segment& segment = *at->second;
    if (segment.users() != 0 || is_pool(segment) || !segment.participant().can_leave()) {
      ++at;
      continue;
    }
    // What comes by a handle from a process that lives, comes again.
    const bool comes_again = segment.header().has_named_array == 0 && segment.is_creator_alive();
    if (comes_again || segment.has_sent()) {
      is_unfinished = true;
      ++at;
      continue;
    }
    at = open_.erase(at);
  }
  return is_unfinished;
}

bool Segments::is_pool(const Segment& segment) const noexcept {
  return std::any_of(pools_.begin(), pools_.end(), [&](const auto& p) { return &p->segment() == &segment; });
}

Segment& Segments::add(std::unique_ptr<Segment> segment) {
  const SegmentId id = segment->header().id;
  const auto [at, is_new] = open_.try_emplace(id, std::move(segment));
  if (!is_new) throw_error(Code::kValue, "two memory files say that they are the segment ", text_of(id));
  return *at->second;
}

Segment* Segments::find(const SegmentId& id) noexcept {
  const auto at = open_.find(id);
  return at == open_.end() ? nullptr : at->second.get();
}

Ref<Storage> Segments::storage_of(Segment& segment, uint32_t block, uint32_t generation, bool is_readonly) {
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
    (void)segment.leave(block);
    return living;
  }
  auto use = std::make_unique<Use>(Use{&segment, block});
  try {
    Ref<Storage> storage =
        Storage::adopt({data, nbytes, data, nbytes, is_readonly, use.get(), end_use, &segment.lock(block)});
    (void)use.release();
    return storage;
  } catch (...) {
    (void)segment.leave(block);
    throw;
  }
}

// A segment of its own, with blocks of these sizes one behind the other, of which the first one holds the
// array. The uses that this has begun are the caller's.
Segment& Segments::make_alone(const NamedArray& array, std::span<const uint64_t> sizes,
                              const SharedOptions& options) {
  if (!options.name.empty()) {
    bool is_taken = false;
    (void)open_named(options.name, true, &is_taken);
    if (is_taken) {
      throw_error(Code::kValue, "shared memory named '", options.name,
                  "' exists already: attach to it, or choose another name");
    }
  }
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
  for (const uint64_t size : sizes) {
    (void)fresh->take_block(at, std::max<uint64_t>(size, 1));
    at += round_up(std::max<uint64_t>(size, 1), kPage);
  }
  return add(std::move(fresh));
}

// The array on a block whose use has begun, prepared; the use becomes the storage's, or ends.
Ref<Array> Segments::take_over(Segment& segment, uint32_t block, DType dtype, Dims shape, uint32_t flags,
                               const SharedOptions& options) {
  struct End {
    Segment& segment;
    uint32_t block;
    ~End() { (void)segment.leave(block); }
  } const end{segment, block};
  const Block& b = segment.block(block);
  if (options.prepare) options.prepare(segment.data() + b.begin.load(std::memory_order_relaxed));
  const uint32_t generation = b.generation.load(std::memory_order_relaxed);
  return Array::over(storage_of(segment, block, generation, false), dtype, shape, flags);
}

Ref<Array> Segments::create(DType dtype, Dims shape, uint32_t flags, const SharedOptions& options) {
  check_dtype(dtype);
  const uint64_t nbytes = nbytes_of(dtype, shape, flags);
  if (!options.name.empty()) check_name(options.name);
  std::unique_ptr<os::NameLock> name_lock;
  if (!options.name.empty()) name_lock = std::make_unique<os::NameLock>(options.name);
  const std::scoped_lock locked(lock_);
  (void)sweep();
  if (!options.name.empty() || options.has_huge_pages || options.node >= 0 || nbytes > kLargestInPool) {
    NamedArray array{};
    array.code = dtype.code;
    array.bits = dtype.bits;
    array.lanes = dtype.lanes;
    array.flags = flags & TENON_SUBBYTE_PADDED;
    array.ndim = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), array.shape);
    Segment& segment = make_alone(array, {&nbytes, 1}, options);
    return take_over(segment, 0, dtype, shape, flags, options);
  }
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
  std::unique_ptr<os::NameLock> name_lock;
  if (!options.name.empty()) name_lock = std::make_unique<os::NameLock>(options.name);
  const std::scoped_lock locked(lock_);
  (void)sweep();
  NamedArray array{};
  array.code = TENON_UINT;
  array.bits = 8;
  array.lanes = 1;
  array.ndim = 1;
  array.shape[0] = static_cast<int64_t>(sizes[0]);
  Segment& segment = make_alone(array, sizes, options);
  for (uint32_t i = 1; i < sizes.size(); ++i) (void)segment.leave(i);
  return take_over(segment, 0, DType(TENON_UINT, 8), {array.shape, 1}, 0, options);
}

Ref<Array> Segments::sibling(const Array& first, uint32_t block) {
  const auto* const use = static_cast<const Use*>(first.storage().owner_with(end_use));
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
  pools_.reserve(pools_.size() + 1);
  Segment& added = add(std::move(segment));
  pools_.push_back(std::make_unique<Pool>(added));
  return *pools_.back();
}

// The segment of this name that some process uses; null: there is none. is_taken: there is one. What cannot
// be read, as that of another version, counts where there is nothing else.
Segment* Segments::open_named(const std::string& name, bool is_writable, bool* is_taken) {
  *is_taken = false;
  std::exception_ptr unreadable;
  for (const os::Found& found : os::find_memory(kFilePrefix)) {
    constexpr size_t kIdEnd = 6 + 32;  // of "tenon:" and the id
    if (found.name.size() <= kIdEnd || found.name.substr(kIdEnd) != ":" + name) continue;
    const auto here = std::find_if(open_.begin(), open_.end(), [&](const auto& entry) {
      return found.name.rfind(file_prefix(entry.first), 0) == 0;
    });
    if (here != open_.end()) {
      reap_all(here->second->control());
      if (is_empty(here->second->block(0).users)) continue;
      *is_taken = true;
      return here->second.get();
    }
    os::File file = os::open_memory_of(found.pid, found.fd, found.name);
    if (!file || !os::is_sealed(file)) continue;  // it is being made, or its maker has died over it
    std::unique_ptr<Segment> segment;
    try {
      segment = Segment::open(std::move(file), is_writable, Keeper::instance());
    } catch (const Error& e) {
      if (e.code() != Code::kValue) throw;
      unreadable = std::current_exception();
      continue;
    }
    reap_all(segment->control());
    if (is_empty(segment->block(0).users)) continue;
    *is_taken = true;
    return &add(std::move(segment));
  }
  if (unreadable) std::rethrow_exception(unreadable);
  return nullptr;
}

Ref<Array> Segments::attach(const std::string& name, bool is_readonly) {
  check_name(name);
  const os::NameLock name_lock(name);
  const std::scoped_lock locked(lock_);
  (void)sweep();
  bool is_taken = false;
  Segment* const segment = open_named(name, !is_readonly, &is_taken);
  if (segment == nullptr) {
    throw_error(Code::kNotFound, "no process of this user shares an array named '", name,
                "' (in this PID namespace); is the one that makes it running?");
  }
  const NamedArray& array = segment->header().array;
  const uint32_t generation = segment->block(0).generation.load(std::memory_order_relaxed);
  Ref<Storage> storage = storage_of(*segment, 0, generation, is_readonly);
  const Dims shape{array.shape, static_cast<size_t>(array.ndim)};
  const uint32_t flags = static_cast<uint32_t>(array.flags) | (is_readonly ? TENON_READONLY : 0);
  return Array::over(std::move(storage), DType(array.code, array.bits, array.lanes), shape, flags);
}

bool Segments::is_shared(const Array& array) noexcept {
  return array.storage().owner_with(end_use) != nullptr;
}

std::string Segments::handle_of(const Array& array) {
  const auto* const use = static_cast<const Use*>(array.storage().owner_with(end_use));
  if (use == nullptr) {
    throw_error(Code::kType, "the array of shape ", shape_text(array.shape()),
                " does not lie in shared memory: make it with shared=");
  }
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
  return handle.encode();
}

// The segment of a handle, opened here if it is not yet.
Segment& Segments::reach(const SegmentId& id, const os::Process& sender, int fd) {
  if (Segment* const here = find(id)) return *here;
  const std::string prefix = file_prefix(id);
  os::File file;
  if (os::start_of(sender.pid) == sender.start) file = os::open_memory_of(sender.pid, fd, prefix);
  if (!file) {
    for (const os::Found& found : os::find_memory(prefix)) {
      file = os::open_memory_of(found.pid, found.fd, prefix);
      if (file) break;
    }
  }
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
  (void)sweep();
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
  } catch (const Error&) {
    // Nobody has.
  }
  lock_.lock();
  for (const auto& [id, segment] : open_) segment->before_fork();
}

void Segments::after_fork() noexcept {
  for (const auto& [id, segment] : open_) segment->after_fork();
  lock_.unlock();
}

void Segments::become_child() noexcept {
  pools_.clear();  // they are the parent's to give away
  for (const auto& [id, segment] : open_) segment->become_child();
  lock_.unlock();
}

}  // namespace tenon::share
