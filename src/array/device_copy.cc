// SPDX-License-Identifier: Apache-2.0
#include "array/device_copy.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "array/elements.h"
#include "array/elements_loop.h"
#include "base/error.h"
#include "sync/waiter.h"

namespace tenon::impl {
namespace {

using device::Device;
using device::Status;
using device::StreamKind;
using device::StridedCopy;
using device::StridedSet;

// What keeps memory on a device.
struct OwnedOnDevice {
  void* owner;
  Deleter deleter;
  Ref<device::Event> ordered;

  static void release(void* self) {
    const std::unique_ptr<OwnedOnDevice> owned(static_cast<OwnedOnDevice*>(self));
    owned->deleter(owned->owner);
  }
};

// The device whose stream does the work: that of the result, if both are on one.
tenon_device working_device(const Array& src, const Array& dst) noexcept {
  return dst.is_on_device() ? dst.desc().device : src.desc().device;
}

StreamKind stream_kind_for(const Array& src, const Array& dst) noexcept {
  if (!src.is_on_device()) return StreamKind::kToDevice;
  return dst.is_on_device() ? StreamKind::kOnDevice : StreamKind::kToHost;
}

// The nest of loops over the bytes of both, in its normal form.
Loop loop_over(const Array& dst, const Array& src) {
  Loop loop;
  loop.dst = dst.data();
  loop.src = src.data();
  if (!dst.is_byte_sized()) {
    loop.push({static_cast<int64_t>(dst.desc().nbytes), 1, 1});
  } else {
    const auto itemsize = static_cast<int64_t>(dst.desc().itemsize);
    for (size_t k = 0; k < dst.shape().size(); ++k)
      loop.push({dst.shape()[k], dst.strides()[k] * itemsize, src.strides()[k] * itemsize});
    loop.push({itemsize, 1, 1});
  }
  normalise(loop);
  return loop;
}

Axis take_axis(Loop& loop, int axis) {
  const Axis taken = loop.axes[axis];
  std::copy(loop.axes + axis + 1, loop.axes + loop.ndim, loop.axes + axis);
  --loop.ndim;
  return taken;
}

// The axis with the most steps of those that fit; -1: none.
template <class Fits>
int longest_axis(const Loop& loop, Fits fits) {
  int longest = -1;
  for (int k = 0; k < loop.ndim; ++k) {
    if (fits(loop.axes[k]) && (longest < 0 || loop.axes[k].n > loop.axes[longest].n)) longest = k;
  }
  return longest;
}

// Takes the axes that one call does out of the loop.
StridedCopy take_call(Loop& loop) {
  StridedCopy call;
  call.width = 1;
  if (loop.ndim > 0 && loop.axes[loop.ndim - 1].dst == 1 && loop.axes[loop.ndim - 1].src == 1)
    call.width = static_cast<size_t>(loop.axes[--loop.ndim].n);
  const auto width = static_cast<int64_t>(call.width);
  const int row = longest_axis(loop, [&](const Axis& a) { return a.dst >= width && a.src >= width; });
  if (row < 0) return call;
  const Axis rows = take_axis(loop, row);
  call.height = static_cast<size_t>(rows.n);
  call.dst.pitch = static_cast<size_t>(rows.dst);
  call.src.pitch = static_cast<size_t>(rows.src);
  const auto is_plane = [&](int64_t stride, int64_t pitch) {
    return stride % pitch == 0 && stride / pitch >= rows.n;
  };
  const int plane = longest_axis(
      loop, [&](const Axis& a) { return is_plane(a.dst, rows.dst) && is_plane(a.src, rows.src); });
  if (plane < 0) return call;
  const Axis planes = take_axis(loop, plane);
  call.depth = static_cast<size_t>(planes.n);
  call.dst.height = static_cast<size_t>(planes.dst / rows.dst);
  call.src.height = static_cast<size_t>(planes.src / rows.src);
  return call;
}

// 0: more than most.
size_t number_of_steps(const Loop& loop, size_t most) noexcept {
  size_t n = 1;
  for (int k = 0; k < loop.ndim; ++k) {
    if (__builtin_mul_overflow(n, static_cast<size_t>(loop.axes[k].n), &n) || n > most) return 0;
  }
  return n;
}

// Calls visit with the offsets in dst and src of each step of the loop.
template <class Visit>
void for_each_step(const Loop& loop, Visit visit) {
  const size_t n = number_of_steps(loop, SIZE_MAX);
  for (size_t i = 0; i < n; ++i) {
    int64_t dst = 0;
    int64_t src = 0;
    size_t rest = i;
    for (int k = loop.ndim - 1; k >= 0; --k) {
      const auto step = static_cast<int64_t>(rest % static_cast<size_t>(loop.axes[k].n));
      rest /= static_cast<size_t>(loop.axes[k].n);
      dst += step * loop.axes[k].dst;
      src += step * loop.axes[k].src;
    }
    visit(dst, src);
  }
}

// The calls that copy a loop; empty: too many.
std::vector<StridedCopy> calls_for(Loop loop) {
  StridedCopy call = take_call(loop);
  std::vector<StridedCopy> calls;
  const size_t n = number_of_steps(loop, DeviceCopy::kMostCalls);
  if (n == 0) return calls;
  calls.reserve(n);
  for_each_step(loop, [&](int64_t dst, int64_t src) {
    call.dst.address = loop.dst + dst;
    call.src.address = const_cast<std::byte*>(loop.src) + src;
    calls.push_back(call);
  });
  return calls;
}

bool has_same_elements(const Array& a, const Array& b) noexcept {
  return a.dtype() == b.dtype() && a.desc().itemsize == b.desc().itemsize;
}

[[noreturn]] void throw_needs_kernel(const Array& src, const Array& dst) {
  if (!has_same_elements(src, dst)) {
    throw_error(
        Code::kType, "cannot cast ", src.dtype().name(), " to ", dst.dtype().name(), " on ",
        device::text_of(working_device(src, dst)),
        ": that needs a kernel; let a framework do it, for example a.torch().to(dtype), or cast on the "
        "host");
  }
  throw_error(
      Code::kValue, "cannot copy shape ", shape_text(src.shape()), " with ", strides_text(src.strides()),
      " to ", strides_text(dst.strides()), " on ", device::text_of(working_device(src, dst)),
      ": that would take more than ", DeviceCopy::kMostCalls,
      " calls of the driver; let a framework do it with a kernel, for example a.torch().contiguous(), "
      "or copy it on the host");
}

// What a call of this thread does on a stream.
class StreamCall {
 public:
  StreamCall(Device& device, StreamKind kind)
      : device_(device), stream_(device.stream(kind)), end_(device.make_event(stream_)) {}

  void uses(const Array& array, Access access) { add_events_of(array, access, nullptr, &events_); }

  // Runs submit() after what the arrays wait for, and waits for its end.
  template <class Submit>
  void run(const char* doing, Submit submit) {
    const Device::Current current(device_);
    Status status = wait_for(device_, stream_, events_);
    if (status == device::kOk) status = submit();
    // Also after a failure: what was submitted before it uses the memory.
    Status ended = device_.record(*end_);
    if (ended == device::kOk) ended = sleep_until(*end_);
    if (status == device::kOk) status = ended;
    if (status != device::kOk)
      throw device_.error_of(status, concat(doing, " ", device::text_of(device_.id())));
  }

 private:
  Device& device_;
  const device::Stream stream_;
  const Ref<device::Event> end_;
  Events events_;
};

void run_copy(const Array& src, const Array& dst) {
  const DeviceCopy copy(src, dst);
  StreamCall call(copy.device(), copy.stream_kind());
  call.uses(src, Access::kRead);
  call.uses(dst, Access::kWrite);
  call.run("copy elements on", [&] { return copy.submit(); });
}

uint32_t padding_of(const Array& array) noexcept { return array.desc().flags & TENON_SUBBYTE_PADDED; }

// What a broadcast repeats, once: axes of stride 0 have length 1.
Ref<Array> without_repeats(const Array& array) {
  Layout layout = array.layout();
  DimBuffer shape;
  for (size_t k = 0; k < layout.shape.size(); ++k)
    shape.push(layout.strides[k] == 0 ? std::min<int64_t>(layout.shape[k], 1) : layout.shape[k]);
  layout.shape = shape.dims();
  return Array::make(Ref<Storage>::share(&array.storage()), layout);
}

// Sets of 1, 2 or 4 bytes. One value of that size that fills an element is set along whole rows; else each
// word of the elements is a column.
class FillCalls {
 public:
  FillCalls(const Array& dst, const std::byte* value) {
    const auto itemsize = static_cast<uint32_t>(dst.desc().itemsize);
    const uint32_t most = std::min(dst.dtype().alignment(), uint32_t{4});
    set_.unit = itemsize % 4 == 0 && most == 4 ? 4 : itemsize % 2 == 0 && most >= 2 ? 2 : 1;
    const bool is_uniform = std::equal(value + set_.unit, value + itemsize, value);
    loop_.dst = dst.data();
    loop_.src = dst.data();
    for (size_t k = 0; k < dst.shape().size(); ++k) {
      const int64_t stride = dst.strides()[k] * static_cast<int64_t>(itemsize);
      loop_.push({dst.shape()[k], stride, stride});
    }
    if (is_uniform) loop_.push({itemsize / set_.unit, set_.unit, set_.unit});
    normalise(loop_);
    set_.n = 1;
    if (is_uniform && loop_.ndim > 0 && loop_.axes[loop_.ndim - 1].dst == set_.unit)
      set_.n = static_cast<size_t>(loop_.axes[--loop_.ndim].n);
    const int row = longest_axis(loop_, [](const Axis&) { return true; });
    if (row >= 0) {
      const Axis rows = take_axis(loop_, row);
      set_.height = static_cast<size_t>(rows.n);
      set_.pitch = static_cast<size_t>(rows.dst);
    }
    words_ = is_uniform ? 1 : itemsize / set_.unit;
    for (uint32_t word = 0; word < words_; ++word) {
      std::memcpy(&values_.emplace_back(0), value + word * set_.unit, set_.unit);  // little-endian
    }
    if (number_of_steps(loop_, DeviceCopy::kMostCalls / words_) == 0) {
      throw_error(
          Code::kValue, "cannot fill shape ", shape_text(dst.shape()), " with ", strides_text(dst.strides()),
          " on ", device::text_of(dst.desc().device), ": that would take more than ", DeviceCopy::kMostCalls,
          " calls of the driver; let a framework do it with a kernel, for example a.torch().fill_(x)");
    }
  }

  Status submit(Device& device) const noexcept {
    Status status = device::kOk;
    for_each_step(loop_, [&](int64_t offset, int64_t) {
      StridedSet set = set_;
      for (uint32_t word = 0; word < words_ && status == device::kOk; ++word) {
        set.address = loop_.dst + offset + word * set_.unit;
        set.value = values_[word];
        status = device.driver().set(set, device.stream(StreamKind::kOnDevice));
      }
    });
    return status;
  }

 private:
  Loop loop_;  // what no call does by itself
  StridedSet set_;
  uint32_t words_ = 1;
  std::vector<uint32_t> values_;
};

bool do_overlap(const Array& a, const Array& b) noexcept { return a.extent().overlaps(b.extent()); }

}  // namespace

DeviceCopy::DeviceCopy(const Array& src, const Array& dst)
    : device_(Device::of(working_device(src, dst))), stream_kind_(stream_kind_for(src, dst)) {
  if (has_same_elements(src, dst)) calls_ = calls_for(loop_over(dst, src));
  if (calls_.empty()) throw_needs_kernel(src, dst);
  for (StridedCopy& call : calls_) {
    call.dst.is_host = !dst.is_on_device();
    call.src.is_host = !src.is_on_device();
  }
}

Status DeviceCopy::submit() const noexcept {
  for (const StridedCopy& call : calls_) {
    if (const Status s = device_.driver().copy(call, device_.stream(stream_kind_))) return s;
  }
  return device::kOk;
}

Status sleep_until(device::Event& event) noexcept {
  const Status early = event.query();
  if (!event.device().driver().is_pending(early)) return early;
  const Waiter gives_lock_away;
  return event.synchronise();
}

void wait_for_producer(device::Event& ordered) {
  if (const Status s = sleep_until(ordered))
    throw ordered.device().error_of(s, "wait for the producer of an array on a device");
}

Ref<Array> adopt_ordered(tenon_adoption adoption, Ref<device::Event> ordered) {
  if (!ordered) return Array::adopt(adoption);
  if (adoption.deleter == nullptr) {  // nothing would keep the event either
    wait_for_producer(*ordered);
    return Array::adopt(adoption);
  }
  std::unique_ptr<OwnedOnDevice> owned(
      new OwnedOnDevice{adoption.owner, adoption.deleter, std::move(ordered)});
  adoption.owner = owned.get();
  adoption.deleter = OwnedOnDevice::release;
  Ref<Array> array = Array::adopt(adoption, owned->ordered.get());
  (void)owned.release();
  return array;
}

Ref<Array> adopt_on_stream(tenon_adoption adoption, int64_t stream) {
  if (!device::is_device_memory(adoption.device)) return Array::adopt(adoption);
  bool is_empty = false;
  for (int32_t i = 0; i < adoption.ndim && adoption.shape != nullptr; ++i)
    is_empty = is_empty || adoption.shape[i] == 0;
  if (adoption.device.id == TENON_DEVICE_OF_MEMORY)
    adoption.device = Device::holding(adoption.device.type, adoption.data, is_empty);
  if (is_empty || stream == TENON_STREAM_NONE) return Array::adopt(adoption);
  Device& device = Device::of(adoption.device);
  Ref<device::Event> ordered = device.record_foreign(device.driver().stream_of(stream), false);
  if (!ordered) {
    throw_error(Code::kBuffer, "cannot import memory on ", device::text_of(device.id()),
                " while its stream captures a graph: import it before the capture begins");
  }
  Ref<Array> known = Array::alias(adoption);
  if (!known) return adopt_ordered(adoption, std::move(ordered));
  wait_for_producer(*ordered);
  if (adoption.deleter != nullptr) adoption.deleter(adoption.owner);
  return known;
}

void add_events_of(const Array& array, Access access, const View* self, Events* events) {
  if (!device::has_streams(array.desc().device)) return;
  Storage& storage = array.storage();
  if (device::Event* const born = storage.born()) events->push_back(Ref<device::Event>::share(born));
  for (const UsedStream& used : streams_of_views(storage.home(), access, array.extent(), self)) {
    Ref<device::Event> now = used.device->record_foreign(used.stream, used.thread != this_thread_id());
    if (now) events->push_back(std::move(now));
  }
  // Last: an export that ends meanwhile is no view any more, but has left a submitted part.
  add_events_in(storage.home(), access, array.extent(), events);
}

Status wait_for(Device& device, device::Stream stream, const Events& events) noexcept {
  for (const Ref<device::Event>& event : events) {
    if (const Status s = device.wait(stream, *event)) return s;
  }
  return device::kOk;
}

bool can_copy_on_device(const Array& src, const Array& dst) {
  return has_same_elements(src, dst) && !calls_for(loop_over(dst, src)).empty();
}

void copy_on_host(const Array& src, const Array& dst) {
  if (!dst.is_byte_sized()) {  // packed: in C order, of one dtype
    std::memmove(dst.data(), src.data(), src.desc().nbytes);
    return;
  }
  DimBuffer src_strides;
  DimBuffer dst_strides;
  for (int64_t stride : src.strides()) src_strides.push(stride * static_cast<int64_t>(src.desc().itemsize));
  for (int64_t stride : dst.strides()) dst_strides.push(stride * static_cast<int64_t>(dst.desc().itemsize));
  copy_elements({dst.data(), dst.dtype(), dst.desc().ndim, dst.desc().shape, dst_strides.values.data()},
                {src.data(), src.dtype(), src.desc().ndim, src.desc().shape, src_strides.values.data()});
}

void copy_with_device(const Array& src, const Array& dst) {
  if (dst.size() == 0) return;
  if (src.is_on_device() && dst.is_on_device()) {
    if (!do_overlap(src, dst)) return run_copy(src, dst);
    const Ref<Array> between = Array::create(src.dtype(), src.shape(), padding_of(src), dst.desc().device);
    run_copy(src, *between);
    return run_copy(*between, dst);
  }
  if (can_copy_on_device(src, dst)) return run_copy(src, dst);
  if (dst.is_on_device()) {
    const Ref<Array> between = Array::create(dst.dtype(), dst.shape(), padding_of(dst));
    copy_on_host(src, *between);
    return run_copy(*between, dst);
  }
  const Ref<Array> once = without_repeats(src);
  const Ref<Array> between = Array::create(src.dtype(), once->shape(), padding_of(src));
  run_copy(*once, *between);
  copy_on_host(*broadcast(*between, dst.shape()), dst);
}

void fill_on_device(const Array& dst, const std::byte* value) {
  if (dst.size() == 0) return;
  const FillCalls fill(dst, value);
  Device& device = Device::of(dst.desc().device);
  StreamCall call(device, StreamKind::kOnDevice);
  call.uses(dst, Access::kWrite);
  call.run("fill elements on", [&] { return fill.submit(device); });
}

}  // namespace tenon::impl
