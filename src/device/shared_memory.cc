// SPDX-License-Identifier: Apache-2.0
#include "device/shared_memory.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"

namespace tenon::impl::device {
namespace {

// The driver puts smaller allocations into common blocks of this size, and a handle opens the whole block.
constexpr uint64_t kBlock = uint64_t{2} << 20;

std::string text_of(const DeviceUuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid.bytes[i] >> 4];
    text += kDigits[uuid.bytes[i] & 15];
  }
  return text;
}

DeviceUuid uuid_of(Driver& driver, tenon_device device) {
  DeviceUuid uuid;
  if (const Status s = driver.uuid_of(device.id, &uuid))
    throw error_of(driver, s, concat("ask for the UUID of ", device::text_of(device)));
  return uuid;
}

// The number of a device may differ between processes (CUDA_VISIBLE_DEVICES).
tenon_device device_with(int32_t type, const DeviceUuid& uuid) {
  Driver& driver = driver_of(type);
  const int32_t n = Device::count(type);
  for (int32_t i = 0; i < n; ++i) {
    if (uuid_of(driver, {type, i}) == uuid) return {type, i};
  }
  throw_error(Code::kNotFound, "the shared array cannot be opened: its memory is on the device ",
              text_of(uuid), ", which is none of the ", n, " devices of ", driver.name(),
              " that this process sees (CUDA_VISIBLE_DEVICES?); send a copy on the host");
}

}  // namespace

std::unique_ptr<SharedMemory> SharedMemory::create(tenon_device id, uint64_t nbytes, bool is_zeroed) {
  Device& device = Device::of(id);
  std::unique_ptr<SharedMemory> memory(new SharedMemory(device, true));
  SharedMemoryRecord& record = memory->record_;
  record.type = id.type;
  record.device = uuid_of(device.driver(), id);
  record.nbytes = round_up(std::max<uint64_t>(nbytes, 1), kBlock);
  Ref<Event> born;
  memory->data_ = device.allocate_alone(record.nbytes, is_zeroed, &born);
  // No event tells the streams of other processes.
  const Status ended = born ? born->synchronise() : kOk;
  const Device::Current current(device);
  if (ended != kOk) {
    (void)device.driver().synchronise_stream(device.stream(StreamKind::kMemory));  // before it is freed
    throw device.error_of(ended, concat("zero memory of ", device::text_of(id)));
  }
  if (const Status s = device.driver().export_memory(memory->data_, &record.handle))
    throw device.error_of(s, concat("share memory of ", device::text_of(id), " with other processes"));
  return memory;
}

std::unique_ptr<SharedMemory> SharedMemory::open(const SharedMemoryRecord& record) {
  if (record.type != TENON_CUDA) {
    throw_error(Code::kValue, "this is no shared memory that Tenon can use: it lies on device type ",
                record.type);
  }
  Device& device = Device::of(device_with(record.type, record.device));
  std::unique_ptr<SharedMemory> memory(new SharedMemory(device, false));
  memory->record_ = record;
  const Device::Current current(device);
  if (const Status s = device.driver().open_memory(record.handle, &memory->data_))
    throw device.error_of(s, concat("open memory of another process on ", device::text_of(device.id())));
  return memory;
}

SharedMemory::~SharedMemory() {
  if (data_ == nullptr) return;
  if (is_own_) device_.free_alone(data_, record_.nbytes);
  if (is_own_ || !device_.is_usable()) return;
  Status status = kOk;
  const Device::Current current(device_, &status);
  if (status == kOk) (void)device_.driver().close_memory(data_);
}

}  // namespace tenon::impl::device
