// SPDX-License-Identifier: Apache-2.0
#include "data/slots.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "ipc/segments.h"

namespace tenon::impl {
namespace {

constexpr int32_t kMostSlots = SlotTable::kMostSlots;

// Writes to every page, so that no page fault follows.
bool populate(std::byte* memory, size_t nbytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(memory, nbytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;  // EINVAL: a kernel before 5.14
#endif
  std::memset(memory, 0, nbytes);
  return true;
}

std::string slots_text(int32_t count, size_t slot_nbytes) {
  return concat(count, count == 1 ? " slot of " : " slots of ", slot_nbytes, " bytes");
}

[[noreturn]] void fail(int32_t count, size_t slot_nbytes, const std::string& reason) {
  throw_error(Code::kNoMemory, slots_text(count, slot_nbytes), ": ", reason,
              "; use fewer slots or smaller batches");
}

// Memory of slots that exist and have not taken it yet, of all feeds.
constinit std::atomic<size_t> promised{0};

size_t checked_nbytes(const SlotsPlan& plan) {
  size_t nbytes = 0;
  if (plan.count < 1 || plan.count > kMostSlots - plan.spares) {
    throw_error(Code::kValue, "a feed with ", plan.count, " slots is not possible: it has 1 to ",
                kMostSlots - plan.spares);
  }
  const size_t most = static_cast<size_t>(plan.most) + static_cast<size_t>(plan.spares);
  if (__builtin_mul_overflow(most, plan.slot_nbytes, &nbytes) || nbytes > PTRDIFF_MAX) {
    throw_error(Code::kValue, most, " slots of ", plan.slot_nbytes, " bytes do not fit into 63 bits");
  }
  if (!plan.is_sparse && plan.device.type == TENON_CPU) {
    // Populating more than there is would wake the OOM killer instead of failing.
    os::check_room(
        promised.load(std::memory_order_relaxed) + static_cast<size_t>(plan.count) * plan.slot_nbytes,
        slots_text(plan.count, plan.slot_nbytes));
  }
  return nbytes;
}

// Addresses without memory.
std::byte* reserve(const SlotsPlan& plan, size_t nbytes) {
  void* const memory =
      mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail(plan.count, plan.slot_nbytes, std::strerror(errno));
  // Advice only: without huge pages the memory works all the same.
  if (nbytes >= kHugePage) (void)madvise(memory, nbytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Ref<Slots> Slots::create(const SlotsPlan& plan, const FeedHead& head, std::string_view schema) {
  SlotsPlan whole = plan;
  whole.most = std::max(std::min(plan.most, kMostSlots - plan.spares), plan.count);
  return Ref<Slots>::adopt(new Slots(whole, head, schema));
}

Slots::Slots(const SlotsPlan& plan, const FeedHead& head, std::string_view schema)
    : plan_(plan),
      nbytes_(checked_nbytes(plan)),
      links_(static_cast<size_t>(plan.most) + static_cast<size_t>(plan.spares)) {
  spares_.reserve(static_cast<size_t>(plan.spares));
  for (Link& link : links_) link.pool = this;
  try {
    const FeedHead whole = head_of(head, schema.size());
    if (plan.has_processes && plan.shared_name.empty()) {
      slots_at_ = whole.parts.nbytes;
      nbytes_ += slots_at_;
    }
    if (takes_memory()) {
      promised_ = static_cast<size_t>(plan.count) * plan.slot_nbytes;
      promised.fetch_add(promised_, std::memory_order_relaxed);
    }
    make_memory(whole, schema);
  } catch (...) {
    drop_memory();
    throw;
  }
  count_ = made_ = plan.count;
}

FeedHead Slots::head_of(FeedHead head, size_t schema_nbytes) const {
  const os::Process process = os::this_process();
  if (plan_.has_processes) head.flags |= kHasProcesses;
  head.magic = kFeedMagic;
  head.version = kFeedVersion;
  head.pid = process.pid;
  head.start = process.start;
  head.slots = plan_.count;
  head.most = most();
  head.parts = FeedLayout::of(head.most, head.loops, head.workers, head.layout.state_nbytes, schema_nbytes,
                              !plan_.shared_name.empty());
  return head;
}

void Slots::set_control(const FeedControl& control, uint32_t self) noexcept {
  const auto end_span = [](void* pool, int32_t slot) noexcept {
    auto& slots = *static_cast<Slots*>(pool);
    slots.end_span(slots.links_[static_cast<size_t>(slot)]);
  };
  static_cast<FreeSlots&>(*this) = FreeSlots(control, {end_span, this}, self);
  for (int32_t i = plan_.count; i < most(); ++i) table().set_aside(static_cast<uint32_t>(i));
  store(control.shared().made, static_cast<uint32_t>(plan_.count));
}

// No other process can attach before the name is taken.
void Slots::make_segment(FeedHead head, std::string_view schema) {
  FeedMemoryPlan plan;
  plan.name = plan_.shared_name;
  plan.slots = static_cast<uint32_t>(most());
  plan.control_nbytes = head.parts.nbytes;
  plan.slots_nbytes = nbytes_;
  shared_ = Segments::instance().create_feed(plan);
  segment_ = &Segments::feed_segment_of(*shared_);
  memory_ = segment_->bytes_of(1).data();
  head.file_at = segment_->header().data_at;
  head.slots_at = static_cast<uint64_t>(memory_ - segment_->bytes_of(0).data());
  head.nbytes = head.slots_at + nbytes_;
  file_at_ = head.file_at + head.slots_at;
  store(served()->noted, ServedState::kNoStates);  // until it is served
  served()->description_at = head.parts.schema_at;
  served()->description_nbytes = head.parts.schema_nbytes;
  // Where reapers of this process see it, too: each word has one address here.
  auto* const control = reinterpret_cast<std::byte*>(served());
  set_control(FeedControl::make(control, head, schema), segment_->participant().index());
}

void Slots::take_name() {
  const std::scoped_lock lock(growing_);
  Segments::instance().take_name(*shared_);
  Segments::instance().begin_name_use(*shared_);
  has_name_ = true;
}

void Slots::drop_name() noexcept {
  const std::scoped_lock lock(growing_);
  if (std::exchange(has_name_, false)) Segments::instance().end_name_use(*shared_);
}

void Slots::make_memory(const FeedHead& head, std::string_view schema) {
  if (!plan_.shared_name.empty()) return make_segment(head, schema);
  if (plan_.device.type == TENON_CUDA_HOST) {
    memory_ = static_cast<std::byte*>(device::allocate_pinned(nbytes_));
  } else if (!is_on_host()) {
    on_device_ = &device::Device::of(plan_.device);
    memory_ = static_cast<std::byte*>(on_device_->allocate(nbytes_, false, &born_));
  } else if (plan_.is_shared) {
    file_ = os::create_memory(plan_.has_processes ? kFeedFilePrefix : kSlotsFilePrefix, nbytes_, false);
    if (plan_.has_processes) os::commit(file_, 0, slots_at_, "the control part of a feed");
    memory_ = os::map(file_, 0, nbytes_, true, nbytes_ >= kHugePage ? kHugePage : kPage);
  } else {
    memory_ = reserve(plan_, nbytes_);
  }
  if (plan_.has_processes) {
    FeedHead in_file = head;
    in_file.nbytes = nbytes_;
    in_file.slots_at = slots_at_;
    return set_control(FeedControl::make(memory_, in_file, schema));
  }
  void* const memory = mmap(nullptr, head.parts.nbytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw_error(Code::kNoMemory, "the control part of a feed, ", head.parts.nbytes,
                " bytes: ", std::strerror(errno));
  }
  control_memory_ = static_cast<std::byte*>(memory);
  control_nbytes_ = head.parts.nbytes;
  set_control(FeedControl::make(control_memory_, head, schema));
}

void Slots::drop_memory() noexcept {
  promised.fetch_sub(promised_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  if (control_memory_ != nullptr) munmap(control_memory_, control_nbytes_);
  if (memory_ == nullptr) return;
  pins_.clear();
  if (shared_) return;
  if (plan_.device.type == TENON_CUDA_HOST) {
    device::free_pinned(memory_, nbytes_);
  } else if (!is_on_host()) {
    on_device_->free(memory_, nbytes_);
  } else {
    munmap(memory_, nbytes_);
  }
}

void Slots::pin() {
  const std::scoped_lock lock(growing_);
  if (plan_.is_sparse)
    throw_error(Code::kValue, "sparse slots cannot be pinned: that would take memory for all of them");
  const size_t nbytes = static_cast<size_t>(made_) * plan_.slot_nbytes;
  for (int32_t slot = 0; slot < made_; ++slot) take_memory(slot);  // else the driver would, without a check
  pins_.reserve(static_cast<size_t>(most() - made_) + 1);
  pins_.push_back(std::make_unique<device::Registration>(data(0), nbytes, false));
}

void Slots::unpin() noexcept {
  const std::scoped_lock lock(growing_);
  pins_.clear();
}

void Slots::take_memory(int32_t slot) {
  if (!takes_memory()) return;
  Link& link = links_[static_cast<size_t>(slot)];
  const std::scoped_lock lock(link.taking);
  if (link.has_memory) return;
  if (!has_memory_of_worker(link)) populate_slot(slot);
  note_memory(link);
}

void Slots::try_take_memory(int32_t slot) noexcept {
  if (!takes_memory() || !plan_.has_processes) return;
  Link& link = links_[static_cast<size_t>(slot)];
  const std::scoped_lock lock(link.taking);
  if (!link.has_memory && os::try_commit(file(), file_offset(slot), plan_.slot_nbytes)) note_memory(link);
}

void Slots::note_memory_of_workers() noexcept {
  if (promised_.load(std::memory_order_relaxed) == 0) return;
  for (int32_t slot = 0; slot < count(); ++slot) {
    Link& link = links_[static_cast<size_t>(slot)];
    if (!has_memory_of_worker(link)) continue;
    const std::scoped_lock lock(link.taking);
    if (!link.has_memory) note_memory(link);
  }
}

bool Slots::has_memory_of_worker(const Link& link) const noexcept {
  return look(control().record(static_cast<uint32_t>(&link - links_.data())).has_memory) != 0;
}

// Of a slot that was promised it. Requires taking.
void Slots::note_memory(Link& link) noexcept {
  link.has_memory = true;
  publish(control().record(static_cast<uint32_t>(&link - links_.data())).has_memory, 1U);
  promised.fetch_sub(plan_.slot_nbytes, std::memory_order_relaxed);
  promised_.fetch_sub(plan_.slot_nbytes, std::memory_order_relaxed);
}

void Slots::populate_slot(int32_t slot) {
  const size_t nbytes = plan_.slot_nbytes;
  if (plan_.is_shared) {
    os::commit(file(), file_offset(slot), nbytes, slots_text(1, nbytes));
    if (plan_.has_processes) return;  // map_slot() populates
  } else {
    os::check_room(nbytes, slots_text(1, nbytes));
  }
  if (!populate(data(slot), nbytes)) fail(1, nbytes, std::strerror(errno));
}

void Slots::commit(int32_t slot, uint64_t at, uint64_t nbytes) {
  const std::string what = concat("a batch of ", at + nbytes, " bytes");
  file() ? os::commit(file(), file_offset(slot) + at, nbytes, what) : os::check_room(nbytes, what);
  os::populate(data(slot) + at, nbytes, true);
}

// Requires growing_.
int32_t Slots::make_slot() {
  const int32_t slot = made_;
  if (takes_memory()) {
    populate_slot(slot);
    Link& link = links_[static_cast<size_t>(slot)];
    const std::scoped_lock lock(link.taking);
    link.has_memory = true;
    publish(control().record(static_cast<uint32_t>(slot)).has_memory, 1U);
  }
  if (!pins_.empty()) {
    try {
      pins_.push_back(std::make_unique<device::Registration>(data(slot), plan_.slot_nbytes, false));
    } catch (const std::exception&) {
      // Copies from this slot are slower.
    }
  }
  announce(control().shared().made,
           static_cast<uint32_t>(++made_));  // before its word: a look that ends before it is repeated
  return slot;
}

bool Slots::grow() {
  const std::scoped_lock lock(growing_);
  if (count() == plan_.most) return false;
  const int32_t slot = make_slot();
  count_.store(count() + 1, std::memory_order_relaxed);
  give(slot);
  return true;
}

int32_t Slots::take_spare() {
  const std::scoped_lock lock(growing_);
  if (!spares_.empty()) {
    const int32_t slot = spares_.back();
    spares_.pop_back();
    return slot;
  }
  return made_ - count() < plan_.spares ? make_slot() : kNone;
}

void Slots::give_spare(int32_t slot) noexcept {
  end_span(links_[static_cast<size_t>(slot)]);
  table().set_aside(static_cast<uint32_t>(slot));
  const std::scoped_lock lock(growing_);
  spares_.push_back(slot);  // there is room for all
}

Slots::~Slots() { drop_memory(); }

void Slots::end_span(Link& link) noexcept {
  trace::close(std::exchange(link.span, trace::kNoSpan), trace::key_of(&link), trace::SpanOutcome::kDone);
}

void Slots::begin_span(int32_t slot, uint32_t feed, uint64_t epoch, uint64_t index) noexcept {
  Link& link = links_[static_cast<size_t>(slot)];
  end_span(link);  // of a ticket that another process has dropped
  link.span = trace::open(trace::SpanKind::kSlot, trace::key_of(&link), [&](trace::Record& record) {
    record.group = feed;
    record.slot = slot;
    record.epoch = epoch;
    record.index = index;
  });
}

void Slots::note_span(int32_t slot, uint32_t feed, uint64_t epoch, uint64_t index, int64_t begun_ns,
                      int64_t ready_ns) noexcept {
  const Link& link = links_[static_cast<size_t>(slot)];
  if (link.span == trace::kNoSpan) {
    begin_span(slot, feed, epoch, index);
    trace::change(link.span, trace::key_of(&link),
                  [&](trace::Record& record) { record.at_ns[trace::kBegun] = begun_ns; });
  }
  trace::change(link.span, trace::key_of(&link),
                [&](trace::Record& record) { record.at_ns[trace::kReady] = ready_ns; });
}

void* Slots::lend(int32_t slot) noexcept {
  retain();
  lent_.fetch_add(1, std::memory_order_relaxed);
  return &links_[static_cast<size_t>(slot)];
}

Ref<Storage> Slots::lend_storage(int32_t slot) {
  Memory memory;
  memory.data = data(slot);
  memory.nbytes = plan_.slot_nbytes;
  memory.extent = memory.data;
  memory.extent_nbytes = memory.nbytes;
  memory.owner = lend(slot);
  memory.deleter = end_loan;
  memory.device = plan_.device;
  memory.born = born_.get();
  try {
    return Storage::adopt(memory);
  } catch (...) {
    end_loan(memory.owner);
    throw;
  }
}

void Slots::end_loan(void* owner) noexcept {
  auto* const link = static_cast<Link*>(owner);
  const Ref<Slots> pool = Ref<Slots>::adopt(link->pool);
  pool->lent_.fetch_sub(1, std::memory_order_relaxed);
  if (pool->process_.is_child()) return;  // the words are those of the parent, too
  pool->give(static_cast<int32_t>(link - pool->links_.data()));
}

}  // namespace tenon::impl
