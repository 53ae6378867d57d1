// SPDX-License-Identifier: Apache-2.0
#include "array/access.h"

#include <exception>
#include <new>

#include "base/os.h"
#include "sync/report.h"

namespace tenon::impl {
namespace {

std::string name_of(const Array* array) {
  if (array == nullptr) return "memory";
  const uint64_t nbytes = array->storage().nbytes();
  if (array->shape().empty() && nbytes > array->desc().nbytes)
    return concat("an element of dtype ", array->dtype().name(), " of an array of ", nbytes, " bytes");
  return concat("the array of shape ", shape_text(array->shape()), " and dtype ", array->dtype().name());
}

}  // namespace

Error error_of(const Conflict& conflict, const char* doing, const Array* array) {
  const std::string what = concat("cannot ", doing, " ", name_of(array));
  // Only after a wait and if the caller can act on it, because finding the references to views takes long.
  const bool is_behind_view =
      conflict.holder.kind == HolderKind::kView &&
      (conflict.reason == Conflict::Reason::kTimeout || conflict.reason == Conflict::Reason::kDeadlock);
  const std::string holder = is_behind_view ? found_text_of(conflict.holder) : text_of(conflict.holder);
  const auto lease_conflict = [&what](const auto&... why) {
    return make_error(Code::kLeaseConflict, what, why...);
  };
  switch (conflict.reason) {
    case Conflict::Reason::kHostView: return lease_conflict(": ordinary code holds ", holder);
    case Conflict::Reason::kOwnLease:
      return lease_conflict(
          ": this code holds ", holder, ", which allows reading only",
          conflict.holder.kind == HolderKind::kOp ? ": name it in writes= of the push" : "");
    case Conflict::Reason::kUndeclared:
      return lease_conflict(
          " in the body of an op that has not declared it: name it in reads= of the push, or in writes= if "
          "the op writes to it");
    case Conflict::Reason::kMoved: {
      if (const Error* const why = array != nullptr ? array->why_lost() : nullptr) {
        return Error(why->code(), concat(what, ": ", why->what()), why->op_code());
      }
      const char* const at = array != nullptr ? array->storage().moved_at() : nullptr;
      return make_error(Code::kMoved, what, ": its memory was moved out",
                        at != nullptr && *at != '\0' ? concat(" at ", at) : "",
                        "; use what it was moved to, or import that again");
    }
    case Conflict::Reason::kHeld: return lease_conflict(": there is ", holder, "; end or drop that first");
    case Conflict::Reason::kShared:
      if (array != nullptr && array->storage().is_shared()) {
        return lease_conflict(": it is shared with other processes");
      }
      return lease_conflict(
          ": another array was imported over the same bytes, or uses them unchecked; drop that one first");
    case Conflict::Reason::kOnDevice:
      return make_error(Code::kBuffer, what, ": its memory is on ",
                        array != nullptr ? device::text_of(array->storage().device()) : "a device",
                        ", which the host cannot access: copy it to the host, a.to(\"cpu\"), or hand it to a "
                        "framework, a.torch()");
    case Conflict::Reason::kNoMemory: return make_error(Code::kNoMemory, what, ": no memory");
    case Conflict::Reason::kInBody: return lease_conflict(": the body of an op may not wait");
    case Conflict::Reason::kWaitsForHost:
      return lease_conflict(": it would wait for ", holder,
                            ", which itself waits for the views of ordinary code to be dropped");
    case Conflict::Reason::kTimeout:
      return make_error(Code::kTimeout, what, " in the time given", timeout_text(conflict.timeout_ns), ": ",
                        holder);
    case Conflict::Reason::kDeadlock:
      return make_error(
          Code::kDeadlock, what, ": it would wait for ever, behind ", holder,
          conflict.holder.kind == HolderKind::kView
              ? "; only the waiting code could end that: drop the view first, by `a.drop_views()` if a "
                "notebook or a traceback keeps it"
          : conflict.holder.kind == HolderKind::kProcess
              ? ", which in turn waits for what the waiting code itself holds: end that first"
              : ", which the waiting code itself holds: end that first");
    case Conflict::Reason::kInterrupted:
      return make_error(Code::kInterrupted, what, ": the wait was interrupted");
    case Conflict::Reason::kNoPossession:
      return make_error(
          Code::kLeaseConflict, "cannot take a view of ", name_of(array),
          ": other processes use it, too, so a view needs a lease: take it inside of `with a.read():` "
          "or `with a.write():`, or while a.lease() holds; a.copy() and np.array(a) copy it without one");
    case Conflict::Reason::kNotHeld: return lease_conflict(": ", kNotHeldText);
    case Conflict::Reason::kOwnerDied:
      return Error(Code::kOwnerDied,
                   concat(what, ": ", dead_owner_text(conflict.holder),
                          ", and may have left half of it: overwrite all of it (an arena: use(layout, "
                          "overwrite=True)), or repair it (on_owner_died=), or call the array's "
                          "clear_error() if it is good as it is"),
                   static_cast<int32_t>(conflict.holder.pid));
    case Conflict::Reason::kMemoryDied:
      return Error(
          Code::kOwnerDied,
          concat(what, ": its memory on ",
                 array != nullptr ? device::text_of(array->storage().device()) : "a device",
                 " was allocated by process ", conflict.holder.pid,
                 ", which has ended, so its elements are lost: drop the array, and keep the process that "
                 "creates such an array until the others are done"),
          static_cast<int32_t>(conflict.holder.pid));
    case Conflict::Reason::kTooMany:
      return lease_conflict(
          ": this process has as many leases of shared memory as there is room for (160 of one segment), "
          "and ",
          conflict.holder.pid != 0 ? concat("some of them wait behind ", text_of(conflict.holder))
                                   : std::string("holds all of them itself"),
          "; end some first");
    case Conflict::Reason::kNoPlace:
      return lease_conflict(
          ": this process was forked while there was no room for another process that uses the shared "
          "memory");
    case Conflict::Reason::kNoFile:
      return lease_conflict(", which this process has inherited without a right to it: ", os::kLostText);
    case Conflict::Reason::kInherited:
      if (conflict.holder.thread == 0) {
        return lease_conflict(
            ": this forked process has a view of it from before the fork, of a thread that it does not have: "
            "drop the view here first, or copy the array");
      }
      return lease_conflict(
          ": this forked process still has ", holder,
          ", from before the fork, and no right of its own to that memory: drop it here, and leave the block "
          "that has it, or fork outside of that block");
  }
  return make_error(Code::kInternal, what);
}

void check_value(const Array& array) {
  Storage& storage = array.storage();
  if (!storage.region().has_failures.load(std::memory_order_relaxed)) return;
  if (const Ref<Failure> failure = impl::failure_of(storage.home(), array.extent())) {
    throw OpFailure(failure);
  }
}

namespace {

// array: for messages; may be null.
[[gnu::noinline]] bool wait_to_open(View& view, bool may_weaken, const Array* array, Conflict* conflict) {
  const Ref<Array> keep =
      Ref<Array>::share(const_cast<Array*>(array));  // the caller's may be released meanwhile
  return impl::open_view(view, may_weaken, Deadline(-1), conflict);
}

// Requires that the storage lives until the view is closed. False: there is a conflict.
[[gnu::hot]] bool try_open_in(Storage& storage, Extent extent, View& view, Access access, const char* site,
                              bool may_weaken, const Array* array, Conflict* conflict) {
  view.home = &storage.home();
  const bool is_empty = extent.begin == extent.end;
  view.extent.begin = is_empty ? 0 : extent.begin;
  view.extent.end = is_empty ? 0 : extent.end;  // 0 to 0 conflicts with no request
  view.access = access;
  view.site = site;
  if (try_open_view(view, may_weaken, nullptr) != Appended::kGranted) [[unlikely]] {
    if (!wait_to_open(view, may_weaken, array, conflict)) return false;
  }
  if (view.is_overwriting || !storage.region().has_failures.load(std::memory_order_relaxed)) return true;
  const Ref<Failure> failure = impl::failure_of(storage.home(), extent);
  if (!failure) return true;
  impl::close_view(view);
  throw OpFailure(failure);
}

[[gnu::hot]] void open_in(Storage& storage, Extent extent, View& view, Access access, const char* site,
                          bool may_weaken, const Array* array) {
  Conflict conflict;
  if (!try_open_in(storage, extent, view, access, site, may_weaken, array, &conflict)) [[unlikely]]
    throw_conflict(conflict, infinitive(access), array);
}

}  // namespace

[[gnu::hot]] void open_view_of(const Array& array, View& view, Access access, const char* site) {
  open_in(array.storage(), array.extent(), view, access, site, false, &array);
}

HostView::HostView(Storage& storage, Access access) {
  const auto begin = reinterpret_cast<uintptr_t>(storage.data());
  open(storage, {begin, begin + storage.nbytes()}, access, nullptr, false, nullptr);
}

void HostView::open(const Array& array, Access access, const char* site, bool may_weaken) {
  open(array.storage(), array.extent(), access, site, may_weaken, &array);
}

void HostView::open_on(device::Device& device, device::Stream stream, const Array& array, Access access,
                       const char* site) {
  view_.device = &device;
  view_.stream = stream;
  view_.is_exported = true;
  open(array.storage(), array.extent(), access, site, false, &array);
}

bool HostView::try_open(const Array& array, Access access, const char* site, bool may_weaken,
                        Conflict* conflict) {
  return try_open(array.storage(), array.extent(), access, site, may_weaken, &array, conflict);
}

bool HostView::close(Request& rest) noexcept {
  Storage* const storage = storage_.exchange(nullptr, std::memory_order_relaxed);
  if (storage == nullptr) return false;
  impl::close_view(view_, rest);
  storage->release();
  return true;
}

[[gnu::hot]] void HostView::open(Storage& storage, Extent extent, Access access, const char* site,
                                 bool may_weaken, const Array* array) {
  Conflict conflict;
  if (!try_open(storage, extent, access, site, may_weaken, array, &conflict)) [[unlikely]]
    throw_conflict(conflict, infinitive(access), array);
}

[[gnu::hot]] bool HostView::try_open(Storage& storage, Extent extent, Access access, const char* site,
                                     bool may_weaken, const Array* array, Conflict* conflict) {
  // During a wait the caller's array may be released.
  Ref<Storage> kept = Ref<Storage>::share(&storage);
  if (!try_open_in(storage, extent, view_, access, site, may_weaken, array, conflict)) [[unlikely]]
    return false;
  storage_.store(kept.detach(), std::memory_order_relaxed);
  return true;
}

[[gnu::hot]] void HostView::close() noexcept {
  // If several threads close it, one of them gets the storage.
  Storage* const storage = storage_.exchange(nullptr, std::memory_order_relaxed);
  if (storage == nullptr) return;
  impl::close_view(view_);
  storage->release();
}

namespace {

// True if the part is that of this use. The parts of a request are not in the order of the uses.
bool is_of(const RequestPart& part, const HostCall::Use& use) {
  const Extent extent = use.array.extent();
  return part.home == &use.array.storage().home() && part.access == use.access &&
         part.extent.begin == extent.begin && part.extent.end == extent.end;
}

}  // namespace

HostCall::HostCall(const char* name, const char* site, std::span<const Use> uses)
    : many_(uses.size() > kFew ? std::make_unique<RequestPart[]>(uses.size()) : nullptr),
      request_(HolderKind::kCall, {}),
      exceptions_(std::uncaught_exceptions()) {
  auto* const parts = many_ != nullptr ? many_.get() : reinterpret_cast<RequestPart*>(few_.data());
  size_t n = 0;
  for (const Use& use : uses) {
    if (use.array.size() == 0) continue;
    RequestPart& part = *new (parts + n++) RequestPart;
    part.home = &use.array.storage().home();
    part.extent = use.array.extent();
    part.access = use.access;
    part.is_overwrite = use.is_overwrite;
  }
  request_.parts = std::span(parts, n);
  request_.site = site;
  request_.name = name;
  request_.owner = actor_of_task(0);
  request_.since_ms = coarse_now_ms();
  request_.heeds_gate_timeout = true;
  if (!request_.acquire_idle()) wait(uses);
  if (const Ref<Failure> failure = impl::failure_of(request_)) {
    impl::release(request_, false);
    throw OpFailure(failure);
  }
}

void HostCall::wait(std::span<const Use> uses) {
  Conflict conflict;
  if (request_.acquire_locked(Deadline(-1), &conflict)) return;
  const Use* refused = &uses.back();
  for (const Use& use : uses) {
    if (conflict.part != nullptr && is_of(*conflict.part, use)) refused = &use;
  }
  throw_conflict(conflict, infinitive(refused->access), &refused->array);
}

HostCall::~HostCall() {
  if (std::uncaught_exceptions() == exceptions_) impl::note_outcome(request_, {});
  impl::release(request_);
}

}  // namespace tenon::impl
