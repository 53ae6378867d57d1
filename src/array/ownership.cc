// SPDX-License-Identifier: Apache-2.0
#include "array/ownership.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "array/access.h"
#include "base/error.h"
#include "memory/known_memory.h"

namespace tenon::impl {
namespace {

Extent extent_of(const Storage& storage) noexcept {
  const auto begin = reinterpret_cast<uintptr_t>(storage.data());
  return {begin, begin + storage.nbytes()};
}

}  // namespace

void move_out(std::span<Array* const> arrays, const char* site, Memory* memories) {
  std::vector<RequestPart> parts;
  std::vector<Storage*> storages;
  parts.reserve(arrays.size());
  for (Array* array : arrays) {
    Storage& storage = array->storage();
    storages.push_back(&storage);
    if (storage.nbytes() == 0) continue;
    RequestPart& part = parts.emplace_back();
    part.home = &storage.home();
    part.extent = extent_of(storage);
    part.access = Access::kWrite;
  }
  const auto refuse = [&](const Conflict& conflict, auto is_it) {
    const auto at = std::ranges::find_if(arrays, is_it);
    throw_conflict(conflict, "move", at != arrays.end() ? *at : nullptr);
  };
  BlockingRequest request(HolderKind::kCall, parts);
  request.name = "move";
  request.site = site;
  request.owner = actor_of_task(0);
  request.since_ms = coarse_now_ms();
  Conflict conflict;
  if (!request.acquire(Deadline(-1), &conflict)) {
    refuse(conflict, [&](const Array* array) {
      return arrays.size() == 1 ||
             (conflict.part != nullptr && conflict.part->home == &array->storage().home());
    });
  }
  struct Release {
    Request& request;
    ~Release() { impl::release(request); }
  } const release{request};
  if (const Ref<Failure> failure = impl::failure_of(request)) throw OpFailure(failure);
  for (const Storage* storage : storages) {
    if (device::Event* const born = storage->born()) (void)born->synchronise();
  }
  if (const Storage* const held = KnownMemory::instance().take_out(storages, request, site, &conflict)) {
    refuse(conflict, [&](const Array* array) { return &array->storage() == held; });
  }
  for (size_t i = 0; i < storages.size(); ++i) memories[i] = storages[i]->memory();
}

Memory move_out(Array& array, const char* site) {
  Array* const arrays[] = {&array};
  Memory memory;
  move_out(arrays, site, &memory);
  return memory;
}

Ref<Array> renew(const Array& array) {
  const Storage& storage = array.storage();
  if (storage.moved_at() != nullptr) {
    Conflict conflict;
    conflict.reason = Conflict::Reason::kMoved;
    throw_conflict(conflict, "give new memory to", &array);
  }
  if (array.is_readonly()) {
    throw_error(Code::kBuffer, "a read-only array of shape ", shape_text(array.shape()),
                " cannot get new memory");
  }
  if (storage.is_shared()) {
    throw_error(Code::kLeaseConflict, "the array of shape ", shape_text(array.shape()),
                " cannot get new memory: other processes share what it has");
  }
  const bool is_all = array.data() == storage.data() && array.desc().nbytes == storage.nbytes();
  if (!is_all || !array.is_contiguous()) {
    throw_error(Code::kValue, "the array of shape ", shape_text(array.shape()),
                " cannot get new memory: it is a part of ", storage.nbytes(),
                " bytes, or not in C order; overwrite the whole of it");
  }
  {
    Queue& queue = lock_home(array.storage().home());
    const std::unique_lock lock(queue.lock, std::adopt_lock);
    if (const View* const view = queue.first_writer(array.extent())) {
      const Conflict conflict{Conflict::Reason::kHostView, nullptr, Holder::of(*view)};
      throw_conflict(conflict, "leave the old values of", &array);
    }
  }
  const tenon_device device = array.is_on_device() ? array.desc().device : tenon_device{TENON_CPU, 0};
  return Array::create(array.dtype(), array.shape(),
                       (array.desc().flags & TENON_SUBBYTE_PADDED) | TENON_ZEROED, device);
}

Ref<Array> unchecked(const Array& array) {
  if (Ref<Storage> storage = KnownMemory::instance().add_unchecked(array.storage())) {
    return Array::make(std::move(storage), array.layout());
  }
  Conflict conflict;
  conflict.reason =
      array.storage().moved_at() != nullptr ? Conflict::Reason::kMoved : Conflict::Reason::kNotHeld;
  throw_conflict(conflict, "use", &array);
}

}  // namespace tenon::impl
