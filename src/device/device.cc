// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "base/clock.h"
#include "base/futex.h"
#include "base/one_per_process.h"
#include "base/os.h"

namespace tenon::impl::device {
namespace {

struct HostName {
  const char* text;
  int32_t type;
};
constexpr HostName kHostNames[] = {{"cpu", TENON_CPU},
                                   {"cuda_host", TENON_CUDA_HOST},
                                   {"cuda_managed", TENON_CUDA_MANAGED},
                                   {"rocm_host", TENON_ROCM_HOST}};

// Plain counters.
constinit std::atomic<uint64_t> device_nbytes{0};
constinit std::atomic<uint64_t> pinned_nbytes{0};
constinit std::atomic<uint64_t> registered_nbytes{0};
constinit std::atomic<uint64_t> live_events{0};

constexpr tenon_device kFirst{TENON_CUDA, 0};
constexpr int32_t kMostDevices = 128;

// The devices of this process that have been opened.
struct Devices {
  std::mutex lock;  // while one is opened
  std::array<std::atomic<Device*>, kMostDevices> all{};
};

// Ranges of host memory that are registered, by their begin.
struct RegisteredRange {
  uintptr_t end = 0;
  uint64_t users = 0;
};
struct Registry {
  std::mutex lock;
  std::map<uintptr_t, RegisteredRange> ranges;  // guarded by lock
};

constexpr int64_t kExitNs = 1'000'000'000;

struct Exit {
  static constexpr uint32_t kHasBegun = 1u << 31;
  std::atomic<uint32_t> uses{0};  // a futex: the number of BeforeExit, and kHasBegun
};

void wait_in_exit() noexcept {
  Exit& exit = one_per_process<Exit>();
  const Deadline deadline(kExitNs);
  // pairs with: BeforeExit::~BeforeExit, "no call of the driver follows"
  uint32_t uses = exit.uses.fetch_or(Exit::kHasBegun, std::memory_order_acq_rel) | Exit::kHasBegun;
  while (uses != Exit::kHasBegun && !deadline.has_passed()) {
    (void)futex_wait_for(exit.uses, uses, std::max<int64_t>(deadline.left_ns(), 0));
    // pairs with: BeforeExit::~BeforeExit, "no call of the driver follows"
    uses = exit.uses.load(std::memory_order_acquire);
  }
}

// Once for the process, when the driver has been loaded: so this runs before the driver's own end.
void register_exit() noexcept {
  static constinit std::atomic<bool> is_registered{false};
  if (!is_registered.exchange(true, std::memory_order_relaxed)) (void)std::atexit(wait_in_exit);
}

}  // namespace

std::string text_of(tenon_device device) {
  if (device.type == TENON_CUDA) return concat("cuda:", device.id);
  for (const HostName& name : kHostNames) {
    if (name.type == device.type) return name.text;
  }
  return concat("device type ", device.type, ", id ", device.id);
}

tenon_device device_from_text(std::string_view text) {
  for (const HostName& name : kHostNames) {
    if (text == name.text) return {name.type, 0};
  }
  constexpr std::string_view kCuda = "cuda";
  if (text == kCuda) return kFirst;
  if (text.starts_with("cuda:")) {
    const std::string_view digits = text.substr(kCuda.size() + 1);
    int32_t ordinal = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (error == std::errc() && end == digits.data() + digits.size() && ordinal >= 0)
      return {TENON_CUDA, ordinal};
  }
  throw_error(Code::kValue, "device '", text,
              "' is unknown: known are 'cpu', 'cuda', 'cuda:N' and 'cuda_host'");
}

Error error_of(const Driver& driver, Status status, std::string_view doing) {
  return make_error(driver.is_no_memory(status) ? Code::kNoMemory : Code::kSystem, "cannot ", doing, ": ",
                    driver.text_of(status));
}

// ------------------------------------------------------------------------------------------- events

Status Event::note(Status status) noexcept {
  // pairs with: Event::is_done, "a moment of a stream has come"
  if (!device_.driver().is_pending(status)) result_.store(status, std::memory_order_release);
  return status;
}

Status Event::ask(Status (Driver::*question)(EventHandle) noexcept) noexcept {
  // pairs with: Event::note, "a moment of a stream has come"
  const Status known = result_.load(std::memory_order_acquire);
  if (known != kUnknown) return known;
  Status status = kOk;
  const Device::Current current(device_, &status);
  return note(status != kOk ? status : (device_.driver().*question)(handle_));
}

Status Event::query() noexcept { return ask(&Driver::query); }
Status Event::synchronise() noexcept { return ask(&Driver::synchronise); }

void Event::release() noexcept {
  if (!refs_.decrement()) return;
  live_events.fetch_sub(1, std::memory_order_relaxed);
  device_.give_event(handle_);
  delete this;
}

// --------------------------------------------------------------------------------------------- exit

BeforeExit::BeforeExit() noexcept {
  std::atomic<uint32_t>& uses = one_per_process<Exit>().uses;
  uint32_t seen = uses.load(std::memory_order_relaxed);
  while ((seen & Exit::kHasBegun) == 0 && !is_before_)
    is_before_ = uses.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed);
}

BeforeExit::~BeforeExit() {
  if (!is_before_) return;
  std::atomic<uint32_t>& uses = one_per_process<Exit>().uses;
  // pairs with: wait_in_exit, "no call of the driver follows"
  if (uses.fetch_sub(1, std::memory_order_release) == (Exit::kHasBegun | 1)) futex_wake_all(uses);
}

// ------------------------------------------------------------------------------------------ devices

Device::Current::Current(Device& device) {
  if (const Status s = device.driver_.enter(device.context_, &entry_))
    throw device.error_of(s, concat("use ", text_of(device.id_)));
  driver_ = &device.driver_;
}

Device::Current::Current(Device& device, Status* status) noexcept {
  *status = device.driver_.enter(device.context_, &entry_);
  if (*status == kOk) driver_ = &device.driver_;
}

int32_t Device::count(int32_t device_type) {
  Driver& driver = driver_of(device_type);
  int32_t n = 0;
  if (const Status s = driver.count(&n)) throw device::error_of(driver, s, "count the devices");
  return n;
}

Device& Device::of(tenon_device id) {
  Driver& driver = driver_of(id.type);
  Devices& devices = one_per_process<Devices>();
  const bool is_possible = id.id >= 0 && id.id < kMostDevices;
  if (is_possible) {
    // pairs with: Device::of, "a device is open"
    if (Device* const open = devices.all[static_cast<size_t>(id.id)].load(std::memory_order_acquire))
      return *open;
  }
  const int32_t n = count(id.type);
  if (!is_possible || id.id >= n) {
    throw_error(Code::kValue, "device '", text_of(id), "' does not exist: this process sees ", n,
                n == 1 ? " device" : " devices", " of ", driver.name());
  }
  const std::scoped_lock lock(devices.lock);
  std::atomic<Device*>& place = devices.all[static_cast<size_t>(id.id)];
  if (Device* const open = place.load(std::memory_order_relaxed)) return *open;
  auto* const made = new Device(id, driver);
  // pairs with: Device::of, "a device is open"
  place.store(made, std::memory_order_release);
  return *made;
}

tenon_device Device::holding(int32_t device_type, const void* address, bool is_empty) {
  Driver& driver = driver_of(device_type);
  PointerTraits traits;
  Status status = driver.describe(address, &traits);
  if (status != kOk || !traits.is_known) {  // a driver may need a context for it
    const Current current(of({device_type, 0}));
    status = driver.describe(address, &traits);
  }
  if (status == kOk && (traits.is_device || traits.is_managed)) return {device_type, traits.ordinal};
  if (is_empty) return {device_type, 0};
  if (status != kOk)
    throw device::error_of(driver, status, concat("ask which device holds ", address_text(address)));
  throw_error(Code::kBuffer, "the memory at ", address_text(address), " is not on a device of ",
              driver.name(), ": import it as memory of the host");
}

std::vector<Device*> Device::all_open(int32_t device_type) {
  Driver& driver = driver_of(device_type);
  const int32_t n = std::min(count(device_type), kMostDevices);
  std::vector<Device*> open;
  for (int32_t i = 0; i < n; ++i) {
    bool is_open = false;
    if (const Status s = driver.is_open(i, &is_open))
      throw device::error_of(driver, s, concat("ask for the state of ", text_of({device_type, i})));
    if (is_open) open.push_back(&of({device_type, i}));
  }
  return open;
}

Device& Device::for_host(int32_t device_type) {
  const std::vector<Device*> open = all_open(device_type);
  return open.empty() ? of({device_type, 0}) : *open.front();
}

Device::Device(tenon_device id, Driver& driver) : id_(id), driver_(driver) {
  if (const Status s = driver_.open(id.id, &context_, &traits_))
    throw error_of(s, concat("open ", text_of(id)));
  const Current current(*this);
  for (Stream& stream : streams_) {
    if (const Status s = driver_.create_stream(&stream))
      throw error_of(s, concat("make a stream of ", text_of(id)));
  }
  register_exit();
}

uint64_t Device::free_nbytes() {
  uint64_t free = 0;
  const Current current(*this);
  if (const Status s = driver_.free_nbytes(&free))
    throw error_of(s, concat("ask for the memory of ", text_of(id_)));
  return free;
}

void* Device::allocate_in(Stream pool, size_t nbytes, bool is_zeroed, Ref<Event>* born) {
  const Current current(*this);
  const Stream order = stream(StreamKind::kMemory);
  void* address = nullptr;
  if (const Status s = driver_.allocate(nbytes, pool, &address)) {
    uint64_t free = 0;
    const bool is_known = driver_.is_no_memory(s) && driver_.free_nbytes(&free) == kOk;
    throw error_of(
        s, concat("allocate ", nbytes, " bytes on ", text_of(id_),
                  is_known ? concat(", where ", free, " of ", traits_.total_nbytes, " are free") : ""));
  }
  try {
    if (is_zeroed) {
      const StridedSet zero{address, 0, 1, nbytes, nbytes, 1};
      if (const Status s = driver_.set(zero, order))
        throw error_of(s, concat("zero memory of ", text_of(id_)));
    }
    if (is_zeroed || pool != nullptr) *born = record(order);
  } catch (...) {
    (void)driver_.free(address, pool);
    throw;
  }
  device_nbytes.fetch_add(nbytes, std::memory_order_relaxed);
  return address;
}

void Device::free_in(Stream pool, void* address, size_t nbytes) noexcept {
  device_nbytes.fetch_sub(nbytes, std::memory_order_relaxed);
  if (!is_usable()) return;  // it is the parent's
  const BeforeExit before_exit;
  if (!before_exit) return;  // the end of the process frees it
  Status status = kOk;
  const Current current(*this, &status);
  if (status == kOk) (void)driver_.free(address, pool);
}

EventHandle Device::take_event() {
  {
    const std::scoped_lock lock(lock_);
    if (!spare_events_.empty()) {
      EventHandle const handle = spare_events_.back();
      spare_events_.pop_back();
      return handle;
    }
    spare_events_.reserve(std::max(all_events_ + 1, 2 * all_events_));
    ++all_events_;
  }
  EventHandle handle = nullptr;
  const Status s = driver_.create_event(&handle);
  if (s == kOk) return handle;
  {
    const std::scoped_lock lock(lock_);
    --all_events_;
  }
  throw error_of(s, concat("make an event of ", text_of(id_)));
}

void Device::give_event(EventHandle handle) noexcept {
  if (!is_usable()) return;
  const std::scoped_lock lock(lock_);
  spare_events_.push_back(handle);  // has room
}

Ref<Event> Device::make_event(Stream stream) {
  const Current current(*this);
  EventHandle const handle = take_event();
  auto* const event = new (std::nothrow) Event(*this, handle, stream);
  if (event == nullptr) {
    give_event(handle);
    throw std::bad_alloc();
  }
  live_events.fetch_add(1, std::memory_order_relaxed);
  return Ref<Event>::adopt(event);
}

Ref<Event> Device::record(Stream stream) {
  Ref<Event> event = make_event(stream);
  const Current current(*this);
  if (const Status s = record(*event))
    throw error_of(s, concat("record an event on a stream of ", text_of(id_)));
  return event;
}

Status Device::record(Event& event) noexcept {
  const Status status = driver_.record(event.handle_, event.stream_);
  if (status != kOk) (void)driver_.synchronise_stream(event.stream_);
  return status;
}

bool Device::is_capturing(Stream stream) {
  const Current current(*this);
  bool is_capturing = false;
  if (const Status s = driver_.is_capturing(stream, &is_capturing))
    throw error_of(s, concat("ask for the state of a stream of ", text_of(id_)));
  return is_capturing;
}

// A stream that is ordered with the legacy one is found without harm to the capture.
Status Device::look_for_capture() noexcept {
  bool is_capturing = false;
  return driver_.is_capturing(driver_.stream_of(1), &is_capturing);
}

Status Device::record_all(Event& event) noexcept {
  Status status = kOk;
  const Current current(*this, &status);
  if (status == kOk) status = look_for_capture();
  return status != kOk ? status : driver_.record_context(event.handle_, context_);
}

Status Device::synchronise_all() noexcept {
  Status status = kOk;
  const Current current(*this, &status);
  if (status == kOk) status = look_for_capture();
  return status != kOk ? status : driver_.synchronise_context();
}

Ref<Event> Device::record_foreign(Stream stream, bool is_of_other_thread) {
  // No handle names the stream of another thread, but the legacy stream waits for all of those.
  if (is_of_other_thread && stream == driver_.stream_of(2)) stream = driver_.stream_of(1);
  if (is_capturing(stream)) return {};
  return record(stream);
}

Status Device::wait(Stream stream, Event& event) noexcept {
  // The handle of another library's stream may be that of a new one meanwhile.
  const bool is_own = std::ranges::find(streams_, stream) != streams_.end();
  if (event.is_done() || (is_own && event.stream() == stream && &event.device() == this)) return kOk;
  return driver_.wait(stream, event.handle_);
}

// --------------------------------------------------------------------------------------- pinned memory

void* allocate_pinned(size_t nbytes) {
  Device& device = Device::for_host(kFirst.type);
  const Device::Current current(device);
  void* address = nullptr;
  if (const Status s = device.driver().allocate_host(nbytes, &address))
    throw device.error_of(s, concat("allocate ", nbytes, " bytes of pinned memory"));
  pinned_nbytes.fetch_add(nbytes, std::memory_order_relaxed);
  return address;
}

void free_pinned(void* address, size_t nbytes) noexcept {
  pinned_nbytes.fetch_sub(nbytes, std::memory_order_relaxed);
  const BeforeExit before_exit;
  if (!before_exit) return;
  try {
    Device& device = Device::for_host(kFirst.type);
    const Device::Current current(device);
    (void)device.driver().free_host(address);
  } catch (const std::exception&) {
    // A forked child: it is the parent's.
  }
}

Registration::Registration(void* address, size_t nbytes, bool is_readonly) {
  const size_t page = os::page_nbytes();
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(address) + nbytes + page - 1) / page * page;
  Device& device = Device::for_host(kFirst.type);
  Registry& registry = one_per_process<Registry>();
  const std::scoped_lock lock(registry.lock);
  auto next = registry.ranges.upper_bound(begin);
  if (next != registry.ranges.begin()) {
    const auto before = std::prev(next);
    if (before->second.end >= end) {
      ++before->second.users;
      begin_ = before->first;
      return;
    }
  }
  const auto [made, is_new] = registry.ranges.emplace(begin, RegisteredRange{end, 1});
  if (!is_new) {
    throw_error(Code::kSystem, "cannot pin ", end - begin, " bytes at ", address_text(address),
                ": the first ", made->second.end - begin,
                " of them are pinned already; release that registration first");
  }
  Status s = kOk;
  {
    const Device::Current current(device, &s);
    if (s == kOk) s = device.driver().register_host(reinterpret_cast<void*>(begin), end - begin, is_readonly);
  }
  if (s != kOk) {
    registry.ranges.erase(made);
    throw device.error_of(s, concat("pin ", end - begin, " bytes at ", address_text(address)));
  }
  registered_nbytes.fetch_add(end - begin, std::memory_order_relaxed);
  begin_ = begin;
}

Registration::~Registration() {
  Registry& registry = one_per_process<Registry>();
  const std::scoped_lock lock(registry.lock);
  const auto range = registry.ranges.find(begin_);
  if (range == registry.ranges.end() || --range->second.users != 0) return;  // not there: a forked child
  registered_nbytes.fetch_sub(range->second.end - begin_, std::memory_order_relaxed);
  registry.ranges.erase(range);
  const BeforeExit before_exit;
  if (!before_exit) return;
  try {
    Device& device = Device::for_host(kFirst.type);
    const Device::Current current(device);
    (void)device.driver().unregister_host(reinterpret_cast<void*>(begin_));
  } catch (const std::exception&) {
    // The driver has gone, and the registration with it.
  }
}

Statistics statistics() noexcept {
  return {device_nbytes.load(std::memory_order_relaxed), pinned_nbytes.load(std::memory_order_relaxed),
          registered_nbytes.load(std::memory_order_relaxed), live_events.load(std::memory_order_relaxed)};
}

}  // namespace tenon::impl::device
