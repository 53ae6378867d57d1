// SPDX-License-Identifier: Apache-2.0
#include "share/arena.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "core/access.h"

namespace tenon::share {
namespace {

constexpr uint64_t kMark = 0x31414E4552414E54;  // "TNARENA1"
constexpr uint64_t kDataAlignment = 4096;
constexpr uint64_t kMostLayouts = 1024;

Ref<Array> slice(Array& bytes, uint64_t begin, uint64_t end) {
  const tenon_index index{TENON_INDEX_SLICE, 0, static_cast<int64_t>(begin), static_cast<int64_t>(end), 1};
  return tenon::index(bytes, {&index, 1});
}

Ref<Array> bytes_of(Array& array) {
  if (!array.is_contiguous()) throw_error(Code::kValue, "the buffer of an arena must lie in C order");
  const DType byte(TENON_UINT, 8);
  const int64_t n = static_cast<int64_t>(array.desc().nbytes);
  const Dims shape{&n, 1};
  return reinterpret(array, byte, &shape, 0);
}

}  // namespace

void Arena::lay_out(std::span<const tenon_layout> layouts) {
  if (layouts.empty()) throw_error(Code::kValue, "an arena needs at least one layout");
  if (layouts.size() > kMostLayouts) throw_error(Code::kValue, layouts.size(), " layouts are too many");
  for (const tenon_layout& given : layouts) {
    const std::string name = given.name != nullptr ? given.name : "";
    if (name.empty() || name.size() > kMostNameBytes) {
      throw_error(Code::kValue, "'", name, "' cannot name a layout: 1 to ", kMostNameBytes, " characters");
    }
    if (find(name) >= 0) throw_error(Code::kValue, "two layouts are named '", name, "'");
    if (given.n < 0 || (given.n > 0 && given.fields == nullptr)) {
      throw_error(Code::kValue, "layout '", name, "' has ", given.n, " fields, but no list of them");
    }
    layouts_.push_back(
        {name, Fields::lay_out({given.fields, static_cast<size_t>(given.n)}, concat("layout '", name, "'"))});
    nbytes_ = std::max(nbytes_, layouts_.back().fields.nbytes());
  }
}

std::string Arena::describe() const {
  std::string text;
  put(&text, layouts_.size());
  for (const NamedFields& layout : layouts_) {
    put(&text, layout.name);
    layout.fields.encode(&text);
  }
  return text;
}

Ref<Arena> Arena::create(std::span<const tenon_layout> layouts, const SharedOptions* options) {
  auto arena = Ref<Arena>::adopt(new Arena);
  arena->lay_out(layouts);
  const std::string description = arena->describe();
  const uint64_t data_at = round_up(sizeof(State) + description.size(), kDataAlignment);
  const auto n = static_cast<int64_t>(data_at + std::max<uint64_t>(arena->nbytes_, 1));
  const DType byte(TENON_UINT, 8);
  const Dims shape{&n, 1};
  // What is written here first, nobody else has yet: but for those who come by the name, and for them the
  // mark is written last.
  arena->memory_ = options != nullptr ? Segments::instance().create(byte, shape, TENON_ZEROED, *options)
                                      : Array::create(byte, shape, TENON_ZEROED);
  std::byte* const base = arena->memory_->data();
  std::memcpy(base + sizeof(State), description.data(), description.size());
  auto* const state = reinterpret_cast<State*>(base);
  state->description_nbytes = description.size();
  state->data_at = data_at;
  state->data_nbytes = arena->nbytes_;
  // pairs with: Arena::of, "the description of an arena"
  state->mark.store(kMark, std::memory_order_release);
  arena->state_ = state;
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
    for (const Part& part : layout.fields.parts()) (void)Fields::array_of(*arena->data_, part);  // aligned?
  }
  arena->own_state_ = std::make_unique<State>();
  arena->state_ = arena->own_state_.get();
  return arena;
}

Ref<Arena> Arena::of(Ref<Array> memory) {
  auto arena = Ref<Arena>::adopt(new Arena);
  arena->memory_ = std::move(memory);
  const Array& bytes = *arena->memory_;
  const uint64_t nbytes = bytes.desc().nbytes;
  auto* const state = reinterpret_cast<State*>(bytes.data());
  const bool has_room = bytes.shape().size() == 1 && bytes.desc().itemsize == 1 && nbytes > sizeof(State);
  // pairs with: Arena::create, "the description of an arena"
  if (!has_room || state->mark.load(std::memory_order_acquire) != kMark) {
    throw_error(Code::kValue, "this shared memory of shape ", shape_text(bytes.shape()), " holds no arena");
  }
  // Copied first: others may write them meanwhile.
  const uint64_t description_nbytes = state->description_nbytes, data_at = state->data_at;
  if (data_at > nbytes || description_nbytes > data_at - sizeof(State) || data_at < sizeof(State)) {
    throw_error(Code::kValue, "the description of an arena is damaged");
  }
  const std::vector<std::byte> copy(bytes.data() + sizeof(State),
                                    bytes.data() + sizeof(State) + description_nbytes);
  std::span<const std::byte> rest(copy);
  const uint64_t n = take_number(&rest);
  if (n == 0 || n > kMostLayouts) throw_error(Code::kValue, "the description of an arena is damaged");
  for (uint64_t i = 0; i < n; ++i) {
    std::string name = take_text(&rest);
    arena->layouts_.push_back({std::move(name), Fields::decode(&rest)});
    arena->nbytes_ = std::max(arena->nbytes_, arena->layouts_.back().fields.nbytes());
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
  for (const NamedFields& layout : layouts_) total += layout.fields.nbytes();
  return total;
}

int32_t Arena::active() const noexcept {
  return static_cast<int32_t>(state_->active.load(std::memory_order_relaxed)) - 1;
}

uint64_t Arena::generation() const noexcept { return state_->generation.load(std::memory_order_relaxed); }

// Whoever still uses the layout that is left would see the bytes of the other one: views that live on, and
// the leases under which the caller's own was taken.
void Arena::check_users(int32_t layout) const {
  engine::Obstacle obstacle;
  {
    const engine::Extent extent = data_->extent();
    engine::Queue& queue = engine::lock_home(data_->storage().home());
    const std::unique_lock lock(queue.lock, std::adopt_lock);
    if (const engine::View* const view = queue.host_conflict(engine::Mode::kWrite, extent)) {
      obstacle = engine::Obstacle::of(*view);
    } else {
      const engine::Entry* first = queue.first();
      while (first != nullptr && !(first->is_granted && first->extent.overlaps(extent))) first = first->next;
      const engine::Entry* second = first == nullptr ? nullptr : first->next;
      while (second != nullptr && !(second->is_granted && second->extent.overlaps(extent)))
        second = second->next;
      if (second == nullptr) return;  // the caller's own alone
      obstacle = engine::Obstacle::of(*first);
    }
  }
  const int32_t now = active();
  throw_error(Code::kLeaseConflict, "the arena cannot change to layout '",
              layouts_[static_cast<size_t>(layout)].name, "': there is ", text_of(obstacle), " on layout '",
              now >= 0 ? layouts_[static_cast<size_t>(now)].name : "", "'; end or drop that first");
}

void Arena::use(Lease* lease, int32_t layout, Access access, const LeaseFlags& flags, engine::Actor owner,
                const char* site, const Deadline& deadline) {
  lease->acquire(*data_, access, flags, owner, site, deadline);
  const int32_t now = active();
  if (now == layout) return;
  try {
    if (access == Access::kRead) {
      const std::string holds = now >= 0 && now < static_cast<int32_t>(layouts_.size())
                                    ? concat("holds '", layouts_[static_cast<size_t>(now)].name, "'")
                                    : "holds nothing yet";
      throw_error(Code::kLeaseConflict, "layout '", layouts_[static_cast<size_t>(layout)].name,
                  "' cannot be read: the arena ", holds, "; who writes it, changes the layout");
    }
    check_users(layout);
  } catch (...) {
    (void)lease->release();
    throw;
  }
  state_->generation.store(generation() + 1, std::memory_order_relaxed);
  state_->active.store(static_cast<uint32_t>(layout) + 1, std::memory_order_relaxed);
}

}  // namespace tenon::share
