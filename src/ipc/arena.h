// SPDX-License-Identifier: Apache-2.0
//
// One buffer that holds the arrays of one layout at a time. The lock of the buffer also guards which layout
// is the current one.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "array/lease.h"
#include "base/ref.h"
#include "ipc/schema.h"
#include "ipc/segments.h"

namespace tenon::impl {

struct NamedFields {
  std::string name;
  Ref<Schema> fields;
};

constexpr uint64_t kArenaMark = 0x31414E4552414E54;  // "TNARENA1"

// The beginning of an arena's memory. Guarded by the lease of the data.
struct ArenaState {
  std::atomic<uint64_t> mark;
  std::atomic<uint64_t> generation;
  std::atomic<uint32_t> active;  // 1: the first layout; 0: none yet
  uint32_t reserved;
  uint64_t description_nbytes;  // the description follows this struct
  uint64_t data_at;
};

// Reads the description. Fails with kValue.
std::vector<NamedFields> decode_layouts(std::span<const std::byte> description);

// Reference-counted. Threads: any.
class Arena {
 public:
  // In new memory, which is shared with these options, or not shared (nullptr). Fails with kValue, kType,
  // kNoMemory, kSystem.
  static Ref<Arena> create(std::span<const tenon_layout> layouts, const SharedOptions* options);
  // Over a contiguous array that has at least the size of the largest layout. Only this object knows the
  // current layout. Fails with kValue, kBuffer (read-only).
  static Ref<Arena> over(std::span<const tenon_layout> layouts, Ref<Array> buffer);
  // Opens the arena in memory that was attached or opened. Fails with kValue (it contains no arena).
  static Ref<Arena> of(Ref<Array> memory);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const std::vector<NamedFields>& layouts() const noexcept { return layouts_; }
  // -1: there is no layout of this name.
  int32_t find(std::string_view name) const noexcept;
  // The size of the largest layout, and the sum of the sizes of all.
  uint64_t nbytes() const noexcept { return nbytes_; }
  uint64_t total_nbytes() const noexcept;
  // The whole memory, to be sent; null: the arena lies over a buffer.
  Array* memory() const noexcept { return memory_.get(); }
  // The bytes of the layouts.
  Array& data() const noexcept { return *data_; }

  // Takes the lease under which the arrays of this layout may be used. Fails as Lease::acquire and enter().
  void use(Lease* lease, int32_t layout, Access access, LeaseFlags flags, Actor owner, const char* site,
           const Deadline& deadline);
  // The same without waiting, as Lease::request. The caller must call enter() after the lease was granted.
  bool request(Lease* lease, Access access, LeaseFlags flags, Actor owner, const char* site,
               void (*done)(void* context), void* context);
  // With a write lease, changes the current layout if it is another one: then the elements have no values,
  // and earlier failures are cleared. With a read lease, the arena must have the layout. Fails, and releases
  // the lease, as Lease::check, and with kLeaseConflict: the arena has another layout, or views of that
  // layout exist.
  void enter(Lease* lease, int32_t layout);

  // The current layout (-1: none yet, or the memory is damaged), and the number of changes. Without a lease
  // they are only hints.
  int32_t active() const noexcept;
  uint64_t generation() const noexcept;

  void retain() noexcept { refs_.increment(); }
  void release() noexcept {
    if (refs_.decrement()) delete this;
  }

 private:
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
  ArenaState* state_ = nullptr;  // in the memory, or in own_state_
  std::unique_ptr<ArenaState> own_state_;
  RefCount refs_;
};

}  // namespace tenon::impl
