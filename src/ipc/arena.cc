// SPDX-License-Identifier: Apache-2.0
#include "ipc/arena.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "array/access.h"
#include "base/bytes.h"
#include "base/error.h"
#include "ipc/layout.h"

namespace tenon::impl {
namespace {

constexpr uint64_t kDataAlignment = 4096;
constexpr uint64_t kMostLayouts = 1024;

[[noreturn]] void throw_damaged() { throw_error(Code::kValue, "the description of an arena is damaged"); }

Ref<Array> slice(Array& bytes, uint64_t begin, uint64_t end) {
  const tenon_index index{TENON_INDEX_SLICE, 0, static_cast<int64_t>(begin), static_cast<int64_t>(end), 1};
  return tenon::impl::index(bytes, {&index, 1});
}

Ref<Array> bytes_of(Array& array) {
  if (!array.is_contiguous()) throw_error(Code::kValue, "the buffer of an arena must lie in C order");
  const DType byte(TENON_UINT, 8);
  const int64_t n = static_cast<int64_t>(array.desc().nbytes);
  const Dims shape{&n, 1};
  return reinterpret(array, byte, &shape, 0);
}

}  // namespace

std::vector<NamedFields> decode_layouts(std::span<const std::byte> rest) {
  const uint64_t n = take_number(&rest);
  if (n == 0 || n > kMostLayouts) throw_damaged();
  std::vector<NamedFields> layouts;
  for (uint64_t i = 0; i < n; ++i) {
    std::string name = take_text(&rest);
    const bool is_known = std::ranges::find(layouts, name, &NamedFields::name) != layouts.end();
    if (name.empty() || name.find('\0') != std::string::npos || is_known) throw_damaged();
    layouts.push_back({std::move(name), Schema::decode(&rest)});
  }
  return layouts;
}

void Arena::lay_out(std::span<const tenon_layout> layouts) {
  if (layouts.empty()) throw_error(Code::kValue, "an arena needs at least one layout");
  if (layouts.size() > kMostLayouts) throw_error(Code::kValue, layouts.size(), " layouts are too many");
  for (const tenon_layout& given : layouts) {
    const std::string name = given.name != nullptr ? given.name : "";
    if (name.empty() || name.size() > kMostNameBytes) {
      throw_error(Code::kValue, "'", name, "' cannot name a layout: 1 to ", kMostNameBytes, " bytes");
    }
    if (find(name) >= 0) throw_error(Code::kValue, "two layouts are named '", name, "'");
    if (given.n < 0 || (given.n > 0 && given.fields == nullptr)) {
      throw_error(Code::kValue, "layout '", name, "' has ", given.n, " fields, but no list of them");
    }
    const std::span fields(given.fields, static_cast<size_t>(given.n));
    layouts_.push_back({name, Schema::make(fields, concat("layout '", name, "'"), kSharedRules)});
    nbytes_ = std::max(nbytes_, layouts_.back().fields->fields_nbytes());
  }
}

std::string Arena::describe() const {
  std::string text;
  put(&text, layouts_.size());
  for (const NamedFields& layout : layouts_) {
    put(&text, layout.name);
    layout.fields->encode(&text);
  }
  return text;
}

Ref<Arena> Arena::create(std::span<const tenon_layout> layouts, const SharedOptions* options) {
  auto arena = Ref<Arena>::adopt(new Arena);
  arena->lay_out(layouts);
  const std::string description = arena->describe();
  const uint64_t data_at = round_up(sizeof(ArenaState) + description.size(), kDataAlignment);
  const auto n = static_cast<int64_t>(data_at + std::max<uint64_t>(arena->nbytes_, 1));
  const DType byte(TENON_UINT, 8);
  const Dims shape{&n, 1};
  const auto prepare = [&](std::byte* base) {
    std::memcpy(base + sizeof(ArenaState), description.data(), description.size());
    auto* const state = new (base) ArenaState{};
    state->description_nbytes = description.size();
    state->data_at = data_at;
    state->mark.store(kArenaMark, std::memory_order_relaxed);
  };
  if (options != nullptr) {
    SharedOptions prepared = *options;
    prepared.prepare = prepare;
    arena->memory_ = Segments::instance().create(byte, shape, TENON_ZEROED, prepared);
  } else {
    arena->memory_ = Array::create(byte, shape, TENON_ZEROED);
    prepare(arena->memory_->data());
  }
  arena->state_ = reinterpret_cast<ArenaState*>(arena->memory_->data());
  arena->data_ = slice(*arena->memory_, data_at, static_cast<uint64_t>(n));
  return arena;
}

Ref<Arena> Arena::over(std::span<const tenon_layout> layouts, Ref<Array> buffer) {
  auto arena = Ref<Arena>::adopt(new Arena);
  arena->lay_out(layouts);
  if (buffer->is_readonly()) throw_error(Code::kBuffer, "the buffer of an arena must be writable");
  if (buffer->desc().nbytes < arena->nbytes_) {
    throw_error(Code::kValue, "the buffer has ", buffer->desc().nbytes, " bytes; the largest layout needs ",
                arena->nbytes_);
  }
  arena->data_ = bytes_of(*buffer);
  for (const NamedFields& layout : arena->layouts_) {
    for (const SchemaField& field : layout.fields->fields()) {
      try {
        (void)field.array_in(*arena->data_);
      } catch (const Error& e) {
        throw_error(e.code(), "field '", field.name, "' of layout '", layout.name,
                    "' cannot lie in this buffer: ", e.what());
      }
    }
  }
  arena->own_state_ = std::make_unique<ArenaState>();
  arena->state_ = arena->own_state_.get();
  return arena;
}

Ref<Arena> Arena::of(Ref<Array> memory) {
  auto arena = Ref<Arena>::adopt(new Arena);
  arena->memory_ = std::move(memory);
  const Array& bytes = *arena->memory_;
  bytes.check_memory();
  const uint64_t nbytes = bytes.desc().nbytes;
  auto* const state = reinterpret_cast<ArenaState*>(bytes.data());
  const bool has_room = !bytes.is_on_device() && bytes.shape().size() == 1 && bytes.desc().itemsize == 1 &&
                        bytes.is_contiguous() && nbytes > sizeof(ArenaState) &&
                        reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment == 0;
  if (!has_room || state->mark.load(std::memory_order_relaxed) != kArenaMark) {
    throw_error(Code::kValue, "the memory of this array of shape ", shape_text(bytes.shape()),
                " holds no arena");
  }
  // Copied before the checks: other processes may write them meanwhile.
  const uint64_t description_nbytes = state->description_nbytes, data_at = state->data_at;
  if (data_at > nbytes || data_at < sizeof(ArenaState) || data_at % kDataAlignment != 0 ||
      description_nbytes > data_at - sizeof(ArenaState)) {
    throw_damaged();
  }
  const std::vector<std::byte> copy(bytes.data() + sizeof(ArenaState),
                                    bytes.data() + sizeof(ArenaState) + description_nbytes);
  arena->layouts_ = decode_layouts(copy);
  for (const NamedFields& layout : arena->layouts_) {
    arena->nbytes_ = std::max(arena->nbytes_, layout.fields->fields_nbytes());
  }
  if (arena->nbytes_ > nbytes - data_at) {
    throw_error(Code::kValue, "an arena's layouts of ", arena->nbytes_, " bytes do not fit into ",
                nbytes - data_at);
  }
  arena->state_ = state;
  arena->data_ = slice(*arena->memory_, data_at, nbytes);
  return arena;
}

int32_t Arena::find(std::string_view name) const noexcept {
  const auto at = std::ranges::find(layouts_, name, &NamedFields::name);
  return at == layouts_.end() ? -1 : static_cast<int32_t>(at - layouts_.begin());
}

uint64_t Arena::total_nbytes() const noexcept {
  uint64_t total = 0;
  for (const NamedFields& layout : layouts_) total += layout.fields->fields_nbytes();
  return total;
}

int32_t Arena::active() const noexcept {
  const uint32_t active = state_->active.load(std::memory_order_relaxed);
  return active <= layouts_.size() ? static_cast<int32_t>(active) - 1 : -1;
}

uint64_t Arena::generation() const noexcept { return state_->generation.load(std::memory_order_relaxed); }

// Fails with kLeaseConflict if code still uses the current layout: through a view, or through another lease
// of the caller.
void Arena::check_users(int32_t layout) const {
  Holder holder;
  {
    const Extent extent = data_->extent();
    Queue& queue = lock_home(data_->storage().home());
    const std::unique_lock lock(queue.lock, std::adopt_lock);
    if (const View* const view = queue.host_conflict(Access::kWrite, extent)) {
      holder = Holder::of(*view);
    } else if (const RequestPart* const ended = queue.ended_conflict(Access::kWrite, extent)) {
      holder = Holder::of(*ended);
    } else {
      const RequestPart* first = queue.first();
      while (first != nullptr && !(first->is_granted && first->extent.overlaps(extent))) first = first->next;
      const RequestPart* second = first == nullptr ? nullptr : first->next;
      while (second != nullptr && !(second->is_granted && second->extent.overlaps(extent)))
        second = second->next;
      if (second == nullptr) return;  // only the caller's lease
      holder = Holder::of(*first);
    }
  }
  throw_error(Code::kLeaseConflict, "the arena cannot change to layout '",
              layouts_[static_cast<size_t>(layout)].name, "': it ", active_name(), ", and there is ",
              text_of(holder), "; end or drop that first");
}

std::string Arena::active_name() const {
  const int32_t now = active();
  return now >= 0 ? concat("holds '", layouts_[static_cast<size_t>(now)].name, "'") : "holds nothing yet";
}

void Arena::use(Lease* lease, int32_t layout, Access access, LeaseFlags flags, Actor owner, const char* site,
                const Deadline& deadline) {
  flags.accepts_failure = true;
  lease->acquire(*data_, access, flags, owner, site, deadline);
  enter(lease, layout);
}

bool Arena::request(Lease* lease, Access access, LeaseFlags flags, Actor owner, const char* site,
                    void (*done)(void* context), void* context) {
  flags.accepts_failure = true;
  return lease->request(*data_, access, flags, owner, site, done, context);
}

void Arena::enter(Lease* lease, int32_t layout) {
  lease->check();
  if (!lease->covers(*data_)) throw_error(Code::kValue, "this is no lease of all bytes of the arena");
  if (layout == active()) {
    lease->check_value();
    return;
  }
  try {
    if (lease->access() == Access::kRead) {
      throw_error(Code::kLeaseConflict, "layout '", layouts_[static_cast<size_t>(layout)].name,
                  "' cannot be read: the arena ", active_name(), "; a write lease of a layout changes to it");
    }
    check_users(layout);
  } catch (...) {
    lease->withdraw();
    throw;
  }
  change(layout);
  lease->declare_overwrite();
}

// If the process dies between the two stores, the arena keeps the old layout, and its bytes get a death.
void Arena::change(int32_t layout) {
  store(state_->generation, generation() + 1);
  store(state_->active, static_cast<uint32_t>(layout) + 1);
}

}  // namespace tenon::impl
