// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills of which a device takes part, by what its driver has: copies of up to three axes and sets
// of 1, 2 or 4 bytes. What would need a kernel fails with an error that names the call of a framework.
#pragma once

#include <vector>

#include "array/array.h"
#include "device/device.h"

namespace tenon::impl {

// How src is copied to dst. Knows their memory and keeps neither.
class DeviceCopy {
 public:
  // src already has the shape of dst, and one of the two at least is on a device. Fails with kType (a cast on
  // a device), kValue (more than kMostCalls calls of the driver), and as Device::of.
  DeviceCopy(const Array& src, const Array& dst);

  device::Device& device() const noexcept { return device_; }
  device::Lane lane() const noexcept { return lane_; }

  // Submits it to its stream. Requires that the device is current.
  device::Status submit() const noexcept;

  static constexpr size_t kMostCalls = 256;

 private:
  device::Device& device_;
  const device::Lane lane_;
  std::vector<device::StridedCopy> calls_;
};

// dst[...] = src in the calling thread, which returns when it is done. Requires: a call of this thread holds
// both. src is as copy_to broadcasts it. Casts, broadcasts and strides that no call of the driver has are
// done on the host where src or dst lies there. Fails as DeviceCopy.
void copy_with_device(const Array& src, const Array& dst);

// dst[...] = *value, which has the dtype of dst. Requires: a call of this thread holds dst.
void fill_on_device(const Array& dst, const std::byte* value);

// Streams of this device that will use the array wait until its memory may be used.
device::Status wait_until_born(device::Device& device, device::Stream stream, const Array& array) noexcept;

}  // namespace tenon::impl
