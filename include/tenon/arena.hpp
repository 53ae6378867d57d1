// SPDX-License-Identifier: Apache-2.0
//
// C++ wrapper of arenas. tenon/share.h has the rules.
#ifndef TENON_ARENA_HPP_
#define TENON_ARENA_HPP_

#include <chrono>
#include <exception>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tenon/engine.hpp"
#include "tenon/field.hpp"
#include "tenon/share.hpp"

namespace tenon {
inline namespace api0 {

struct ArenaLayout {
  std::string name;
  std::vector<Field> fields;
};

class ArenaUse;

// One buffer that holds the arrays of one layout at a time. A reference-counted handle. Threads: as for
// handles of tenon.h.
class Arena {
 public:
  // In private memory of this process.
  static Arena create(std::span<const ArenaLayout> layouts) { return create(layouts, nullptr); }
  static Arena create_shared(std::span<const ArenaLayout> layouts, const SharedOptions& options = {}) {
    const tenon_shared_options raw = detail::raw_options(options);
    return create(layouts, &raw);
  }
  // Over the memory of an array, which it keeps alive.
  static Arena over(std::span<const ArenaLayout> layouts, const Array& buffer) {
    const Described described(layouts);
    return Arena(
        detail::call_for<tenon_arena*>(tenon_arena_over, described.size(), described.data(), buffer.get()));
  }
  // The arena of another process. memory: its memory, attached or opened here.
  static Arena open(const Array& memory) {
    return Arena(detail::call_for<tenon_arena*>(tenon_arena_open, memory.get()));
  }

  tenon_arena* get() const noexcept { return handle_.get(); }
  // The array to send to other processes; empty for an arena over an array.
  Array memory() const { return Array::steal(tenon_arena_memory(get())); }
  uint64_t nbytes() const noexcept { return tenon_arena_nbytes(get()); }
  uint64_t total_nbytes() const noexcept { return tenon_arena_total_nbytes(get()); }
  // The name of the current layout; "" before the first use.
  std::string active() const {
    const char* const name = tenon_arena_layout(get(), tenon_arena_active(get(), nullptr)).name;
    return name != nullptr ? name : "";
  }

  // Gives access to the arrays of a layout as long as the result exists. A write changes the layout if
  // necessary. flags: TENON_OVERWRITE, TENON_IGNORE_OWNER_DIED. Fails as tenon_arena_use.
  ArenaUse use(const std::string& layout, Access access = Access::kWrite, uint32_t flags = 0,
               std::chrono::nanoseconds timeout = default_timeout,
               std::source_location where = std::source_location::current()) const;

 private:
  class Described {
   public:
    explicit Described(std::span<const ArenaLayout> layouts) {
      for (const ArenaLayout& layout : layouts) fields_.push_back(detail::describe(layout.fields));
      for (size_t i = 0; i < layouts.size(); ++i) {
        layouts_.push_back(
            {layouts[i].name.c_str(), static_cast<int32_t>(fields_[i].size()), 0, fields_[i].data()});
      }
    }
    int32_t size() const noexcept { return static_cast<int32_t>(layouts_.size()); }
    const tenon_layout* data() const noexcept { return layouts_.data(); }

   private:
    std::vector<std::vector<tenon_field>> fields_;
    std::vector<tenon_layout> layouts_;
  };

  explicit Arena(tenon_arena* handle) : handle_(handle) {}
  static Arena create(std::span<const ArenaLayout> layouts, const tenon_shared_options* options) {
    const Described described(layouts);
    return Arena(
        detail::call_for<tenon_arena*>(tenon_arena_create, described.size(), described.data(), options));
  }

  detail::Handle<tenon_arena, tenon_arena_retain, tenon_arena_release> handle_;
};

// A lease of an arena with one layout.
class ArenaUse {
 public:
  ArenaUse(ArenaUse&&) = default;
  ArenaUse& operator=(ArenaUse&&) = delete;
  ~ArenaUse() {
    if (held_ == nullptr) return;
    if (is_write_ && std::uncaught_exceptions() > exceptions_) {
      (void)tenon_lease_fail(&held_->lease, "the scope that wrote the arena was left by an exception");
    } else {
      (void)tenon_lease_release(&held_->lease);
    }
  }

  // An array of the layout. Use it, and destroy its views, while this object exists. Fails with NOT_FOUND.
  Array array(std::string_view name) const {
    const int32_t n = tenon_arena_layout(arena_.get(), layout_).n;
    for (int32_t i = 0; i < n; ++i) {
      if (name != tenon_arena_field(arena_.get(), layout_, i).name) continue;
      return Array::steal(detail::call_for<tenon_array*>(tenon_arena_array, arena_.get(), layout_, i));
    }
    throw Error(TENON_ERR_NOT_FOUND, "the layout has no field '" + std::string(name) + "'");
  }

 private:
  friend class Arena;
  // The members that must not move.
  struct Held {
    explicit Held(const std::source_location& where) : site(where) {}
    tenon_lease lease = TENON_LEASE_INIT;
    detail::Site site;
  };

  ArenaUse(const Arena& arena, const std::string& layout, Access access, uint32_t flags,
           std::chrono::nanoseconds timeout, const std::source_location& where)
      : arena_(arena), held_(std::make_unique<Held>(where)), is_write_(access == Access::kWrite) {
    auto options = detail::sized<tenon_lease_options>();
    options.access = static_cast<int32_t>(access);
    options.flags = flags;
    options.timeout_ns = detail::timeout_ns(timeout);
    options.site = held_->site.text();
    call(tenon_arena_use, arena.get(), layout.c_str(), &options, &held_->lease);
    layout_ = tenon_arena_active(arena.get(), nullptr);
  }

  Arena arena_;
  std::unique_ptr<Held> held_;
  bool is_write_;
  int exceptions_ = std::uncaught_exceptions();
  int32_t layout_ = -1;
};

inline ArenaUse Arena::use(const std::string& layout, Access access, uint32_t flags,
                           std::chrono::nanoseconds timeout, std::source_location where) const {
  return ArenaUse(*this, layout, access, flags, timeout, where);
}

}  // namespace api0
}  // namespace tenon

#endif  // TENON_ARENA_HPP_
