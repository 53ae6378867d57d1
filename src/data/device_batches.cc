// SPDX-License-Identifier: Apache-2.0
#include "data/device_batches.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "array/device_copy.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "device/completions.h"
#include "sync/requests.h"

namespace tenon::impl {
namespace {

constexpr int32_t kPinnedSlots = 2;  // one is filled while the other one is copied to the device

Ref<Slots> slots_on(tenon_device device, const Schema& schema, int32_t count) {
  SlotsPlan plan;
  plan.count = count;
  plan.slot_nbytes = round_up(schema.fields_nbytes(), kPage);
  plan.device = device;
  return Slots::create(plan);
}

// A free slot, waited for until the deadline; null: there is none.
Ref<Storage> take_storage(Slots& slots, const Deadline& deadline) {
  const int32_t slot = slots.take(slots.self(), deadline);
  return slot < 0 ? Ref<Storage>() : slots.lend_storage(slot);
}

}  // namespace

DeviceBatches::DeviceBatches(Ref<Schema> schema, Slots& host, tenon_device device, int32_t slots)
    : schema_(std::move(schema)), host_(Ref<Slots>::share(&host)), ring_(slots_on(device, *schema_, slots)) {
  if (host.lent() == 0) {
    try {
      host.pin();
      host_memory_ = HostMemory::kRegistered;
      return;
    } catch (const Error&) {
      // The driver refuses.
    }
  }
  try {
    pinned_ = slots_on({TENON_CUDA_HOST, 0}, *schema_, kPinnedSlots);
    host_memory_ = HostMemory::kStaged;
  } catch (const Error&) {
    // Copies are slower.
  }
}

DeviceBatches::~DeviceBatches() {
  if (host_memory_ != HostMemory::kRegistered || process_.is_child()) return;
  const Deadline deadline(kSecond);
  Conflict conflict;
  const auto is_done = [&](const Ref<Op>& copy) { return copy->wait(deadline, &conflict); };
  if (std::ranges::all_of(in_flight_, is_done)) host_->unpin();  // else with the end of the slots
}

DeviceBatches::Room DeviceBatches::take(int64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  Room room;
  if (pinned_ && !(room.pinned = take_storage(*pinned_, deadline))) return {};
  room.target = take_storage(*ring_, deadline);
  return room;
}

DeviceBatches::Room DeviceBatches::make() {
  Room room;
  room.target = Storage::allocate(ring_->slot_nbytes(), false, device());
  if (pinned_) room.pinned = take_storage(*pinned_, Deadline(0));
  room.is_beyond_ring = true;
  return room;
}

bool DeviceBatches::is_starved() const {
  for (int32_t slot = 0; slot < ring_->count(); ++slot) {
    const Ref<Storage> storage = Storage::find(ring_->data(slot), 1, Access::kWrite);
    if (!storage) return false;
    Queue& queue = lock_home(storage->home());
    const std::unique_lock lock(queue.lock, std::adopt_lock);
    for (const RequestPart* part = queue.first(); part != nullptr; part = part->next) {
      if (part->request->kind != HolderKind::kLease) return false;
    }
  }
  // What has left its queue a moment ago may still refer to its slot.
  return !device::Completions::instance().is_telling();
}

std::string DeviceBatches::held_text() const {
  const int32_t count = ring_->count();
  return concat(
      "all ", count, " device slots on ", device::text_of(device()),
      " hold delivered batches, or work on streams uses them. Let go of batches that are done with, "
      "and of arrays and tensors made from them; or use more device slots than ",
      count, "; or use on_starved=\"copy\"");
}

Ref<Batch> DeviceBatches::copy(const Batch& filled, Room room, std::vector<Ref<Op>>* copies) {
  const std::string name = concat("copy to ", device::text_of(device()));
  Ref<Batch> made = Batch::beside(filled, *schema_, std::move(room.target));
  Ref<Batch> pinned;
  if (room.pinned) pinned = Batch::beside(filled, *schema_, std::move(room.pinned));
  copies->reserve(2 * schema_->fields().size());
  std::erase_if(in_flight_, [](const Ref<Op>& copy) { return copy->is_done(); });
  const auto n = static_cast<int32_t>(schema_->fields().size());
  const auto push = [&](const Batch& from, const Batch& to, const char* op_name) {
    for (int32_t i = 0; i < n; ++i) {
      if (to.array(i)->size() == 0) continue;
      copies->push_back(push_copy(*from.array(i), *to.array(i), OnHost::kRaise, op_name, nullptr));
      in_flight_.push_back(copies->back());
    }
  };
  if (pinned) push(filled, *pinned, "copy to cuda_host");
  push(pinned ? *pinned : filled, *made, name.c_str());
  return made;
}

}  // namespace tenon::impl
