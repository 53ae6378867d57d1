// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills of which a device takes part, by what its driver has: copies of up to three axes and sets
// of 1, 2 or 4 bytes. What would need a kernel fails with an error that names the call of a framework.
#pragma once

#include <vector>

#include "array/array.h"
#include "device/device.h"
#include "exec/op.h"

namespace tenon::impl {

// How src is copied to dst. Knows their memory and keeps neither.
class DeviceCopy {
 public:
  // src already has the shape of dst, and one of the two at least is on a device. Fails with kType (a cast on
  // a device), kValue (more than kMostCalls calls of the driver), and as Device::of.
  DeviceCopy(const Array& src, const Array& dst);

  device::Device& device() const noexcept { return device_; }
  device::StreamKind stream_kind() const noexcept { return stream_kind_; }

  // Submits it to its stream. Requires that the device is current.
  device::Status submit() const noexcept;

  static constexpr size_t kMostCalls = 256;

 private:
  device::Device& device_;
  const device::StreamKind stream_kind_;
  std::vector<device::StridedCopy> calls_;
};

// dst[...] = src in the calling thread, which returns when it is done. Requires: a call of this thread holds
// both. src is as copy_to broadcasts it. Casts, broadcasts and strides that no call of the driver has are
// done on the host where src or dst lies there. Fails as DeviceCopy.
void copy_with_device(const Array& src, const Array& dst);

// Whether a DeviceCopy does it. Requires that src has the shape of dst.
bool can_copy_on_device(const Array& src, const Array& dst);
// Elements of arrays on the host.
void copy_on_host(const Array& src, const Array& dst);

// dst[...] = *value, which has the dtype of dst. Requires: a call of this thread holds dst.
void fill_on_device(const Array& dst, const std::byte* value);

// The caller sleeps until the event has come. Memory is in use until then, so nothing interrupts the sleep.
device::Status sleep_until(device::Event& event) noexcept;

// The caller sleeps until the work has ended that another library had submitted. Fails with kSystem.
void wait_for_producer(device::Event& ordered);
// As Array::adopt. ordered: the moment from which on the memory may be used; null: at once.
Ref<Array> adopt_ordered(tenon_adoption adoption, Ref<device::Event> ordered);
// tenon_array_adopt_on. Fails as Array::adopt and Device::of, and with kBuffer if the stream captures a
// graph.
Ref<Array> adopt_on_stream(tenon_adoption adoption, int64_t stream);

// Adds the moments from which on a stream may use the array, beside what stands in its queue: its memory is
// there, and the streams on which open views use the bytes have come so far as now. Fails as Device::record.
void add_events_of(const Array& array, Access access, const View* self, Events* events);

// The stream waits for all of them. The device must be current.
device::Status wait_for(device::Device& device, device::Stream stream, const Events& events) noexcept;

// Pushes the op dst[...] = src. name: null: "copy". Fails as copy_to and Engine::push (if there is a
// conflict, with its error), and where work of the host would have to follow that of a device.
Ref<Op> push_copy(Array& src, Array& dst, OnHost on_host, const char* name, const char* site);

}  // namespace tenon::impl
