// SPDX-License-Identifier: Apache-2.0
//
// How Segments makes and opens handles.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ipc/handle.h"
#include "ipc/segments.h"

namespace tenon::impl {

std::string Segments::handle_of(const Array& array) {
  const BlockUse* const use = &checked_use_of(array);
  Segment& segment = *use->segment;
  ArrayHandle handle;
  handle.boot = os::boot();
  handle.pid_namespace = os::pid_namespace();
  handle.user = os::user();
  const os::Process self = os::this_process();
  handle.pid = self.pid;
  handle.start = self.start;
  handle.fd = segment.file().fd();
  handle.segment = segment.header().id;
  handle.block = use->block;
  handle.generation = segment.block(use->block).generation.load(std::memory_order_relaxed);
  handle.offset = array.data() - segment.data_of(use->block);
  handle.dtype = array.dtype();
  handle.flags = array.desc().flags;
  handle.ndim = array.desc().ndim;
  handle.shape.assign(array.shape().begin(), array.shape().end());
  handle.strides.assign(array.strides().begin(), array.strides().end());
  handle.number = segment.send(use->block);
  try {
    return handle.encode();
  } catch (...) {
    segment.receive(use->block, handle.number);  // no process will open it
    throw;
  }
}

uint32_t Segments::revoke(const Array& array) {
  const BlockUse& use = checked_use_of(array);
  return use.segment->revoke(use.block);
}

void Segments::limit(std::span<const std::byte> bytes, const HandleLimits& limits) {
  const ArrayHandle handle = ArrayHandle::decode(bytes);
  {
    const std::scoped_lock locked(lock_);
    Segment* const segment = open_.find(handle.segment);
    if (handle.sender() != os::this_process()) {
      throw_error(Code::kValue, "process ", handle.pid, " has sent this handle, not this process, ",
                  os::this_process().pid);
    }
    if (segment == nullptr) return;  // it is closed, and the handle keeps nothing
    if (!segment->limit(handle.block, handle.number, limits)) {
      throw_error(
          Code::kValue, "this handle cannot have a limit: it was made when ", kSent,
          " other handles of the array were unopened, and no more can have limits; open some, or revoke them "
          "all (tn.revoke_handles, tenon_shared_revoke), and make the handle again");
    }
  }
  nudge();
}

Ref<Array> Segments::open(std::span<const std::byte> bytes) {
  const ArrayHandle handle = ArrayHandle::decode(bytes);
  return open(handle, [&](Segment& segment) { segment.receive(handle.block, handle.number); });
}

Ref<Array> Segments::open_or_lose(std::span<const std::byte> bytes) {
  try {
    return open(bytes);
  } catch (const Error& why) {
    const ArrayHandle handle = ArrayHandle::decode(bytes);
    check_dtype(handle.dtype);
    const uint32_t flags = handle.flags & (TENON_READONLY | TENON_SUBBYTE_PADDED);
    return Array::lost(handle.dtype, handle.shape, flags, {TENON_CPU, 0}, why);
  }
}

bool Segments::take_over(std::span<const std::byte> bytes, const HandleLimits& limits) {
  const ArrayHandle handle = ArrayHandle::decode(bytes);
  bool is_taken = false;
  const Ref<Array> array = open(
      handle, [&](Segment& segment) { is_taken = segment.take_over(handle.block, handle.number, limits); });
  if (is_taken) nudge();
  return is_taken;
}

bool Segments::is_unopened(std::span<const std::byte> bytes) {
  const ArrayHandle handle = ArrayHandle::decode(bytes);
  const std::scoped_lock locked(lock_);
  const Segment* const segment = open_.find(handle.segment);
  return segment != nullptr && segment->is_unopened(handle.block, handle.number);
}

// The handle stays unopened. The result lies on the segment.
// Calls then while this process uses the block: the array may be of another owner that has lent the memory.
Ref<Array> Segments::open(const ArrayHandle& handle, const std::function<void(Segment&)>& then) {
  if (handle.boot != os::boot()) {
    throw_error(Code::kNotFound,
                "the shared array cannot be opened: it lies in the memory of another machine, or was lost at "
                "a restart of this one; send a copy of it");
  }
  if (handle.user != os::user()) {
    throw_error(Code::kNotFound, "the shared array cannot be opened: it belongs to user ", handle.user,
                ", this process to user ", os::user());
  }
  std::unique_lock locked(lock_);
  sweep_some();
  OpenSegments::CloseUnused opened(open_);
  if (open_.find(handle.segment) == nullptr && handle.pid_namespace != os::pid_namespace()) {
    throw_error(Code::kNotFound,
                "the shared array cannot be opened: it was sent from another PID namespace "
                "(another container?)");
  }
  Segment& segment = reach(handle.segment, handle.sender(), handle.fd, opened);
  if (segment.is_tensor_pool()) throw_error(Code::kValue, "this handle names the memory of a tensor pool");
  const bool is_readonly = (handle.flags & TENON_READONLY) != 0 && !segment.is_writable();
  Use use = begin_use(segment, handle.block, handle.generation, is_readonly);
  open_memory(*use, locked);
  const Ref<Storage> storage = storage_of(std::move(use), is_readonly);
  const Ref<Array> array =
      array_on(storage, handle.offset, handle.dtype, handle.flags & (TENON_READONLY | TENON_SUBBYTE_PADDED),
               handle.shape, handle.strides);
  if (array) {
    then(segment);
    return array;
  }
  throw_error(Code::kValue,
              "this is not a handle of a shared array: its elements do not lie in the memory that it names");
}

}  // namespace tenon::impl
