// SPDX-License-Identifier: Apache-2.0
#include "array/ownership.h"

#include <mutex>
#include <utility>

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

Memory move_out(Array& array, const char* site) {
  Storage& storage = array.storage();
  RequestPart part;
  part.home = &storage.home();
  part.extent = extent_of(storage);
  part.access = Access::kWrite;
  BlockingRequest request(HolderKind::kCall, {&part, storage.nbytes() != 0 ? size_t{1} : size_t{0}});
  request.name = "move";
  request.site = site;
  request.owner = actor_of_task(0);
  request.since_ms = coarse_now_ms();
  Conflict conflict;
  if (!request.acquire(Deadline(-1), &conflict)) throw_conflict(conflict, "move", &array);
  struct Release {
    Request& request;
    ~Release() { impl::release(request); }
  } const release{request};
  if (const Ref<Failure> failure = impl::failure_of(request)) throw OpFailure(failure);
  if (device::Event* const born = storage.born()) (void)born->synchronise();
  if (!KnownMemory::instance().take_out(storage, request, site, &conflict)) {
    throw_conflict(conflict, "move", &array);
  }
  return storage.memory();
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
