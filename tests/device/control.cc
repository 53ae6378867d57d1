// SPDX-License-Identifier: Apache-2.0
//
// What every call begins with, the settings, failures and counts, devices and contexts.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "fake.h"

namespace tenon::fake {
namespace {

std::atomic<int> initialised_by = 0;  // a process; CUDA does not survive a fork

thread_local std::vector<Context*> current_contexts;

struct Function {
  const char* name;  // for cuGetProcAddress
  const char* exported;
  void* address;
};

#define TENON_FAKE_ENTRY(name, exported, ...) {#name, #exported, reinterpret_cast<void*>(&exported)},
const Function kFunctions[] = {TENON_FAKE_FUNCTIONS(TENON_FAKE_ENTRY){
    "", "cuGetProcAddress", reinterpret_cast<void*>(&cuGetProcAddress)}};

// The version of CUDA that brought the function.
int version_of(std::string_view name) {
  static const std::map<std::string_view, int> versions = {{"cuMemAllocAsync", 11020},
                                                           {"cuMemFreeAsync", 11020},
                                                           {"cuDeviceGetDefaultMemPool", 11020},
                                                           {"cuMemPoolSetAttribute", 11020},
                                                           {"cuMemGetAllocationGranularity", 10020},
                                                           {"cuMemAddressReserve", 10020},
                                                           {"cuMemAddressFree", 10020},
                                                           {"cuMemCreate", 10020},
                                                           {"cuMemRelease", 10020},
                                                           {"cuMemMap", 10020},
                                                           {"cuMemUnmap", 10020},
                                                           {"cuMemSetAccess", 10020},
                                                           {"cuMemExportToShareableHandle", 10020},
                                                           {"cuMemImportFromShareableHandle", 10020},
                                                           {"cuStreamIsCapturing", 10000},
                                                           {"cuThreadExchangeStreamCaptureMode", 10010},
                                                           {"cuGetProcAddress", 11030},
                                                           {"cuCtxRecordEvent", 12050},
                                                           {"cuIpcOpenMemHandle", 11000},
                                                           {"cuDeviceGetUuid", 9020},
                                                           {"cuDeviceGetUuid_v2", 11040},
                                                           {"cuDevicePrimaryCtxRelease", 11000}};
  auto found = versions.find(name);
  return found == versions.end() ? 7000 : found->second;
}

bool is_exported(const char* name) {
  return std::any_of(std::begin(kFunctions), std::end(kFunctions),
                     [&](const Function& function) { return std::strcmp(function.exported, name) == 0; });
}

bool parse_failure(const std::string& text, bool is_copy) {
  char name[64] = "";
  unsigned long long n = 0;
  int error = 0;
  if (is_copy) {
    if (std::sscanf(text.c_str(), "%llu:%d", &n, &error) != 2) return false;
    state().copy_to_fail = n;
    state().copy_error = error;
    return true;
  }
  if (std::sscanf(text.c_str(), "%63[^:]:%llu:%d", name, &n, &error) != 3) return false;
  bool is_known = is_exported(name);
  if (is_known) state().failures.push_back({name, n, 0, error});
  return is_known;
}

bool take_setting(const std::string& key, const std::string& value) {
  State& s = state();
  Settings& set = s.settings;
  if (key == "fail" || key == "fail_copy") return parse_failure(value, key == "fail_copy");
  if (key == "missing") {
    for (size_t from = 0; from <= value.size();) {
      size_t end = std::min(value.find('+', from), value.size());
      set.missing.insert(value.substr(from, end - from));
      from = end + 1;
    }
    return true;
  }
  char* rest = nullptr;
  uint64_t number = std::strtoull(value.c_str(), &rest, 10);
  if (value.empty() || *rest != 0) return false;
  const std::map<std::string_view, bool*> flags = {
      {"pools", &set.pools},        {"vmm", &set.vmm},         {"ipc", &set.ipc},
      {"register", &set.registers}, {"verbose", &set.verbose}, {"strict_end", &set.strict_end}};
  const std::map<std::string_view, int*> numbers = {
      {"devices", &set.devices}, {"first", &set.first}, {"version", &set.version}};
  const std::map<std::string_view, uint64_t*> sizes = {
      {"memory", &set.memory}, {"delay_us", &set.delay_us}, {"delay_calls", &set.delay_calls}};
  if (auto flag = flags.find(key); flag != flags.end()) {
    *flag->second = number != 0;
  } else if (auto small = numbers.find(key); small != numbers.end()) {
    *small->second = static_cast<int>(number);
  } else if (auto size = sizes.find(key); size != sizes.end()) {
    *size->second = number;
  } else if (key == "seed") {
    s.random.seed(number);
  } else {
    return false;
  }
  return true;
}

bool configure(const std::string& text) {
  for (size_t from = 0; from < text.size();) {
    size_t end = std::min(text.find(',', from), text.size());
    size_t equals = text.find('=', from);
    if (equals >= end) return false;
    std::string key = text.substr(from, equals - from), value = text.substr(equals + 1, end - equals - 1);
    if (!take_setting(key, value)) return false;
    from = end + 1;
  }
  return true;
}

void take_environment() {
  State& s = state();
  if (std::exchange(s.has_environment, true)) return;
  const char* text = std::getenv("TENON_FAKE_CUDA");
  if (text != nullptr && !configure(text)) {
    std::fprintf(stderr, "TENON_FAKE_CUDA is not understood: %s\n", text);
    std::abort();
  }
}

CUresult injected(const char* function) {
  CUresult error = CUDA_SUCCESS;
  for (Failure& failure : state().failures) {
    if (failure.function != function) continue;
    ++failure.seen;
    if (failure.n == 0 || failure.n == failure.seen) error = failure.error;
  }
  return error;
}

CUresult find_function(const char* symbol, void** function, int version, int* status) {
  State& s = state();
  *function = nullptr;
  *status = 1;
  for (const Function& entry : kFunctions) {
    if (std::strcmp(entry.name, symbol) != 0 || s.settings.missing.contains(entry.name)) continue;
    if (version_of(entry.name) > s.settings.version) continue;
    *status = version_of(entry.name) > version ? 2 : 0;
    if (*status != 0) continue;
    *function = entry.address;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

const char* name_of(CUresult error) {
  static const std::map<CUresult, const char*> names = {
#define TENON_FAKE_NAME(name) {name, #name}
      TENON_FAKE_NAME(CUDA_SUCCESS),
      TENON_FAKE_NAME(CUDA_ERROR_INVALID_VALUE),
      TENON_FAKE_NAME(CUDA_ERROR_OUT_OF_MEMORY),
      TENON_FAKE_NAME(CUDA_ERROR_NOT_INITIALIZED),
      TENON_FAKE_NAME(CUDA_ERROR_NO_DEVICE),
      TENON_FAKE_NAME(CUDA_ERROR_INVALID_DEVICE),
      TENON_FAKE_NAME(CUDA_ERROR_INVALID_CONTEXT),
      TENON_FAKE_NAME(CUDA_ERROR_ALREADY_MAPPED),
      TENON_FAKE_NAME(CUDA_ERROR_OPERATING_SYSTEM),
      TENON_FAKE_NAME(CUDA_ERROR_INVALID_HANDLE),
      TENON_FAKE_NAME(CUDA_ERROR_NOT_FOUND),
      TENON_FAKE_NAME(CUDA_ERROR_NOT_READY),
      TENON_FAKE_NAME(CUDA_ERROR_ILLEGAL_ADDRESS),
      TENON_FAKE_NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED),
      TENON_FAKE_NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
      TENON_FAKE_NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
      TENON_FAKE_NAME(CUDA_ERROR_LAUNCH_FAILED),
      TENON_FAKE_NAME(CUDA_ERROR_NOT_PERMITTED),
      TENON_FAKE_NAME(CUDA_ERROR_NOT_SUPPORTED),
      TENON_FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
      TENON_FAKE_NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
      TENON_FAKE_NAME(CUDA_ERROR_CAPTURED_EVENT),
      TENON_FAKE_NAME(CUDA_ERROR_UNKNOWN),
      {kMapFailed, "CUDA_ERROR_MAP_FAILED"},
      {kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
      {kCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}};
  auto found = names.find(error);
  return found == names.end() ? nullptr : found->second;
}

// With strict_end.
[[noreturn]] void end_badly(const char* what, const char* function) {
  std::fprintf(stderr, "fake CUDA driver: %s%s\n", what, function);
  _exit(99);
}

void end_driver() {
  if (initialised_by != getpid() || !state().settings.strict_end) return;
  std::lock_guard lock(state().lock);
  state().has_ended = true;
  if (state().running_calls != 0) end_badly("the driver ends during a call", "");
}

bool is_device_ordinal(CUdevice device) { return device >= 0 && device < state().n_devices; }

CUresult write_uuid(const State& s, CUuuid* uuid, CUdevice device) {
  if (!is_device_ordinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = {"fake GPU"};
  uuid->bytes[15] = static_cast<char>(s.settings.first + device);
  return CUDA_SUCCESS;
}

}  // namespace

State& state() {
  static State& the_state = *new State;
  return the_state;
}

void note_problem(const std::string& text) {
  State& s = state();
  ++s.counts["problems"];
  s.problem = text;
  if (s.settings.verbose) std::fprintf(stderr, "fake CUDA driver: %s\n", text.c_str());
}

Call::Call(const char* function, Needs needs) {
  int pid = initialised_by.load();
  if (pid != 0 && pid != getpid()) {  // the lock may be held by a thread that does not exist here
    error = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  State& s = state();
  lock = std::unique_lock(s.lock);
  take_environment();
  if (s.has_ended) end_badly("after the end of the driver: ", function);
  ++s.counts[function];
  ++s.running_calls;
  s.changed.wait(lock, [&] { return !s.held_calls.contains(function); });
  note_call(lock);
  error = injected(function);
  if (error != CUDA_SUCCESS || needs == kNothing) return;
  if (!s.is_initialised) error = CUDA_ERROR_NOT_INITIALIZED;
  if (error != CUDA_SUCCESS || needs == kInit) return;
  if (current_contexts.empty()) {
    error = CUDA_ERROR_INVALID_CONTEXT;
    return;
  }
  context = current_contexts.back();
  if (context == nullptr)
    error = CUDA_ERROR_INVALID_CONTEXT;
  else if (context->n_retained == 0)
    error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  else if (needs == kDestroy)
    failed = context->error;
  else if (context->error != CUDA_SUCCESS)
    error = context->error;
  else if (needs == kUnsafe && spoil_captures())
    error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

Call::~Call() {
  if (lock.mutex() != nullptr) --state().running_calls;
}

// The functions of the driver: devices and contexts.

CUresult cuInit(unsigned flags) {
  TENON_FAKE_CALL(kNothing);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (s.settings.devices == 0) return CUDA_ERROR_NO_DEVICE;
  if (std::exchange(s.is_initialised, true)) return CUDA_SUCCESS;
  initialised_by = getpid();
  (void)std::atexit(end_driver);
  make_arenas();
  s.n_devices = s.settings.devices;
  for (int i = static_cast<int>(s.contexts.size()); i < s.n_devices; ++i) make_context(i);
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  TENON_FAKE_CALL(kNothing);
  *version = s.settings.version;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version, uint64_t /*flags*/,
                             CUdriverProcAddressQueryResult* status) {
  TENON_FAKE_CALL(kNothing);
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int result = 0;
  CUresult error = find_function(symbol, function, cuda_version, &result);
  if (status != nullptr) *status = result;
  return error;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int cuda_version, uint64_t /*flags*/) {
  TENON_FAKE_CALL(kNothing);
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int result = 0;
  return find_function(symbol, function, cuda_version, &result);
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  TENON_FAKE_CALL(kNothing);
  *text = name_of(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  TENON_FAKE_CALL(kNothing);
  static const std::map<CUresult, const char*> texts = {
      {CUDA_SUCCESS, "no error"},
      {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
      {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
      {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
      {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
      {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
      {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"}};
  auto found = texts.find(error);
  *text = found == texts.end() ? name_of(error) : found->second;
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  TENON_FAKE_CALL(kInit);
  *count = s.n_devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  TENON_FAKE_CALL(kInit);
  if (!is_device_ordinal(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  TENON_FAKE_CALL(kInit);
  if (!is_device_ordinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU %d", device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  TENON_FAKE_CALL(kInit);
  return write_uuid(s, uuid, device);
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  TENON_FAKE_CALL(kInit);
  return write_uuid(s, uuid, device);
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  TENON_FAKE_CALL(kInit);
  if (!is_device_ordinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  const Settings& set = s.settings;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 2; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 8; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: *value = set.registers; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = set.vmm; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = set.pools; break;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: *value = set.ipc; break;
    default:
      if (attribute <= 0 || attribute > 200) return CUDA_ERROR_INVALID_VALUE;
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  TENON_FAKE_CALL(kInit);
  if (!is_device_ordinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = s.contexts[static_cast<size_t>(device)].get();
  if ((*context)->n_retained++ == 0) ++s.counts["live.contexts"];
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  TENON_FAKE_CALL(kInit);
  if (!is_device_ordinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *is_active = s.contexts[static_cast<size_t>(device)]->n_retained != 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  TENON_FAKE_CALL(kInit);
  if (!is_device_ordinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& context = *s.contexts[static_cast<size_t>(device)];
  if (context.n_retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context.n_retained > 0) return CUDA_SUCCESS;
  s.changed.wait(call.lock, [&] { return !s.is_busy; });
  end_context(context);
  --s.counts["live.contexts"];
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  TENON_FAKE_CALL(kInit);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  current_contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  TENON_FAKE_CALL(kInit);
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = current_contexts.back();
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  TENON_FAKE_CALL(kInit);
  *context = current_contexts.empty() ? nullptr : current_contexts.back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  TENON_FAKE_CALL(kInit);
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current_contexts.back()->device;
  return CUDA_SUCCESS;
}

}  // namespace tenon::fake

using tenon::fake::state;

int fake_cuda_configure(const char* settings) {
  std::lock_guard lock(state().lock);
  tenon::fake::take_environment();
  state().work.notify_one();  // the clock may be another one
  return tenon::fake::configure(settings) ? 0 : -1;
}

void fake_cuda_reset() {
  tenon::fake::State& s = state();
  std::unique_lock lock(s.lock);
  s.changed.wait(lock, [&] { return !s.is_busy; });
  for (auto& context : s.contexts) {
    tenon::fake::end_context(*context);
    context->n_retained = 0;
  }
  while (!s.blocks.empty()) tenon::fake::drop_block(s.blocks.begin()->first);
  s.physicals.clear();
  s.reserved.clear();
  s.failures.clear();
  s.held_calls.clear();
  s.copy_to_fail = 0;
  s.counts.clear();
  s.log.clear();
  s.problem.clear();
  s.settings = {};
  s.random.seed(1);
  s.is_initialised = false;
  tenon::fake::current_contexts.clear();
}

int fake_cuda_fail(const char* function, uint64_t n, int error) {
  std::lock_guard lock(state().lock);
  if (function != nullptr) {
    return tenon::fake::parse_failure(
               std::string(function) + ":" + std::to_string(n) + ":" + std::to_string(error), false)
               ? 0
               : -1;
  }
  state().failures.clear();
  return 0;
}

int fake_cuda_hold_calls(const char* function) {
  std::lock_guard lock(state().lock);
  if (!tenon::fake::is_exported(function)) return -1;
  state().held_calls.insert(function);
  return 0;
}

void fake_cuda_release_calls() {
  std::lock_guard lock(state().lock);
  state().held_calls.clear();
  state().changed.notify_all();
}

void fake_cuda_fail_copy(uint64_t n, int error) {
  std::lock_guard lock(state().lock);
  state().copy_to_fail = n;
  state().copy_error = error;
}

uint64_t fake_cuda_count(const char* what) {
  std::lock_guard lock(state().lock);
  auto found = state().counts.find(what);
  return found == state().counts.end() ? 0 : found->second;
}

void fake_cuda_reset_counts() {
  std::lock_guard lock(state().lock);
  std::erase_if(state().counts, [](const auto& count) { return !count.first.starts_with("live."); });
}

void fake_cuda_last_problem(char* text, size_t size) {
  std::lock_guard lock(state().lock);
  std::snprintf(text, size, "%s", state().problem.c_str());
}

size_t fake_cuda_log(fake_cuda_entry* entries, size_t n) {
  std::lock_guard lock(state().lock);
  const auto& log = state().log;
  n = std::min(n, log.size());
  std::copy(log.end() - static_cast<ptrdiff_t>(n), log.end(), entries);
  return n;
}
