// SPDX-License-Identifier: Apache-2.0
//
// One buffer that holds the arrays of one layout at one time and those of another one at another time. Which
// layout it is, is a part of what the buffer's lock guards.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "array/lease.h"
#include "base/ref.h"
#include "ipc/fields.h"
#include "ipc/segments.h"

namespace tenon::impl {

struct NamedFields {
  std::string name;
  Fields fields;
};

constexpr uint64_t kArenaMark = 0x31414E4552414E54;  // "TNARENA1"

// At the beginning of an arena's memory. Guarded by the lease of the data.
struct ArenaState {
  std::atomic<uint64_t> mark;
  std::atomic<uint64_t> generation;
  std::atomic<uint32_t> active;  // 1 for the first layout; 0: none yet
  uint32_t reserved;
  uint64_t description_nbytes;  // behind this
  uint64_t data_at;
};

// Of the description behind it. Fails with kValue.
std::vector<NamedFields> decode_layouts(std::span<const std::byte> description);

// Counted. Threads: any.
class Arena {
 public:
  // In new memory: shared with the options given, or this process' own (nullptr). Fails with kValue, kType,
  // kNoMemory, kSystem.
  static Ref<Arena> create(std::span<const tenon_layout> layouts, const SharedOptions* options);
  // Over a contiguous array, of at least as many bytes as the largest layout has. What the layout is, is
  // known to this object alone. Fails with kValue, kBuffer (read-only).
  static Ref<Arena> over(std::span<const tenon_layout> layouts, Ref<Array> buffer);
  // In the memory of another process' arena, that was attached or opened here. Fails with kValue (it holds
  // none).
  static Ref<Arena> of(Ref<Array> memory);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const std::vector<NamedFields>& layouts() const noexcept { return layouts_; }
  // -1: there is none of this name.
  int32_t find(std::string_view name) const noexcept;
  // Of the largest layout, and of all of them side by side.
  uint64_t nbytes() const noexcept { return nbytes_; }
  uint64_t total_nbytes() const noexcept;
  // All of it, to be sent or to be leased; null for one over a buffer.
  Array* memory() const noexcept { return memory_.get(); }
  // The bytes of the layouts.
  Array& data() const noexcept { return *data_; }

  // Takes the lease under which the arrays of this layout may be used: acquire and enter. Fails as these.
  void use(Lease* lease, int32_t layout, Access access, LeaseFlags flags, Actor owner, const char* site,
           const Deadline& deadline);
  // The same without waiting, as Lease::request; enter() is to follow once it has been granted.
  bool request(Lease* lease, Access access, LeaseFlags flags, Actor owner, const char* site,
               void (*done)(void* context), void* context);
  // Under a lease for writing makes the layout the one that the arena has, if it is not: then its elements
  // hold no values, and what failed before does not matter. For reading the arena must have it. Fails, and
  // releases the lease, as Lease::check, and with kLeaseConflict: another layout, or views of it that live
  // on.
  void enter(Lease* lease, int32_t layout);

  // The layout that it has, and how often it was changed; -1: none yet, or the memory is damaged. A hint
  // without a lease.
  int32_t active() const noexcept;
  uint64_t generation() const noexcept;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
  using State = ArenaState;

  Arena() = default;
  void lay_out(std::span<const tenon_layout> layouts);
  void change(int32_t layout);
  void check_users(int32_t layout) const;
  std::string active_name() const;
  std::string describe() const;

  std::vector<NamedFields> layouts_;
  uint64_t nbytes_ = 0;
  Ref<Array> memory_;
  Ref<Array> data_;
  State* state_ = nullptr;  // in the memory, or in own_state_
  std::unique_ptr<State> own_state_;
  RefCount refs_;
};

}  // namespace tenon::impl
