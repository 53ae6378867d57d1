// SPDX-License-Identifier: Apache-2.0
//
// The state of the fake driver. All of it is guarded by one lock, State::lock, which copies hold while they
// run one step. It is never freed, as the scheduler's thread runs until the process ends.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "device/cuda_api.h"
#include "fake_cuda.h"
#include "further_api.h"

namespace tenon::fake {
using namespace tenon::impl::cuda;

// Results that Tenon itself does not name.
inline constexpr CUresult kMapFailed = 205;
inline constexpr CUresult kCaptureIsolation = 905;
inline constexpr CUresult kCaptureImplicit = 906;

inline constexpr size_t kPage = 4096;

#define TENON_FAKE_FUNCTIONS(X)                                                     \
  TENON_CUDA_FUNCTIONS(X)                                                           \
  TENON_CUDA_OPTIONAL_FUNCTIONS(X)                                                  \
  TENON_CUDA_FURTHER_FUNCTIONS(X)                                                   \
  X(cuCtxRecordEvent, cuCtxRecordEvent, CUresult(CUcontext context, CUevent event)) \
  X(cuGetProcAddress, cuGetProcAddress_v2, GetProcAddressV2)

#define TENON_FAKE_DECLARE(name, exported, ...) \
  extern "C" __attribute__((visibility("default"))) std::type_identity_t<__VA_ARGS__> exported;
TENON_FAKE_FUNCTIONS(TENON_FAKE_DECLARE)
TENON_FAKE_DECLARE(, cuGetProcAddress, GetProcAddress)

using Clock = std::chrono::steady_clock;
using Context = CUctx_st;
using Stream = CUstream_st;
using Event = CUevent_st;

// An event of several processes: one page of a memory file.
struct SharedRecords {
  std::atomic<uint64_t> issued = 0, done = 0;  // numbers of records
  std::atomic<int> pid = 0;                    // of the process that issued the last one
};

// One call of cuEventRecord: done when its stream has come to it.
struct Record {
  bool is_done = false;                             // of a record of this process
  std::shared_ptr<SharedRecords> shared = {};       // or null
  uint64_t number = 0;                              // in shared
  std::vector<std::shared_ptr<Record>> parts = {};  // of several streams: done when all are

  bool done() const;
  void complete();
};

// A graph that is being made of one stream or of several.
struct Capture {
  int mode = 0;
  uint64_t thread = 0;
  bool is_valid = true;
  uint64_t n_captured = 0;
};

// Work of one step or several, called with the lock, which a step may open meanwhile. kMore: to be called
// again.
inline constexpr CUresult kMore = -1;
using Step = std::function<CUresult(std::unique_lock<std::mutex>& lock)>;

struct Work {
  const char* name;
  Step step = {};                          // empty: nothing to do
  std::shared_ptr<Record> waits_for = {};  // it does not start before
  std::shared_ptr<Record> completes = {};
  uint64_t sequence = 0;
  std::optional<uint64_t> due = {};  // drawn when nothing else is in its way
};

enum class Kind { kDevice, kPool, kPinned, kRegistered, kManaged, kIpc, kMapped };

// Addresses [base, base + nbytes). The driver reaches the bytes at `bytes`.
struct Block {
  Kind kind;
  uintptr_t base;
  size_t nbytes;
  char* bytes;
  int device;
  uint64_t id;
  bool is_live = true;          // false: pool memory before its allocation has run, mappings without access
  bool is_being_freed = false;  // cuMemFreeAsync was called
  bool is_exported = false;
  int n_opened = 0;                  // kIpc
  std::string handle = {};           // kIpc: that it was opened by
  std::shared_ptr<void> owner = {};  // kIpc, kMapped: what keeps `bytes` mapped
};

// Addresses that blocks are taken from. Freed ones are used again as late as possible.
struct Arena {
  uintptr_t begin = 0;
  size_t nbytes = 0;
  size_t next = 0;
  char* bytes = nullptr;  // second mapping, or null
  int fd = -1;            // of the memory, or -1
  std::string cookie;     // name of the memory file

  bool contains(uintptr_t address) const { return address - begin < nbytes; }
};

struct Settings {
  int devices = 1, first = 0;
  size_t memory = size_t{1} << 30;
  uint64_t delay_us = 50, delay_calls = 0;
  int version = 12050;
  bool pools = true, vmm = true, ipc = true, registers = true, verbose = false, strict_end = false;
  std::set<std::string, std::less<>> missing;
};

struct Failure {
  std::string function;
  uint64_t n, seen;
  CUresult error;
};

struct State {
  std::mutex lock;
  std::condition_variable work, changed;        // for the scheduler; for threads that wait for it
  bool has_scheduler = false, is_busy = false;  // is_busy: a step runs with the lock open
  bool has_environment = false, is_initialised = false;
  int n_devices = 0;
  Settings settings;
  std::mt19937_64 random{1};
  std::vector<Failure> failures;
  std::set<std::string, std::less<>> held_calls;  // functions
  std::atomic<int> running_calls{0};
  bool has_ended = false;  // with strict_end, in exit()
  uint64_t copy_to_fail = 0;
  CUresult copy_error = 0;
  std::map<std::string, uint64_t, std::less<>> counts;
  std::deque<fake_cuda_entry> log;
  std::string problem;

  std::vector<std::unique_ptr<Context>> contexts;  // the primary one of each device, made once, never freed
  std::list<std::unique_ptr<Stream>> streams;      // those of contexts as well
  std::map<Event*, std::unique_ptr<Event>> events;
  std::map<uintptr_t, Block> blocks;
  std::vector<Arena> devices;            // memory of each device
  Arena pinned, addresses;               // pinned host memory; addresses for the memory of others
  std::map<uintptr_t, size_t> reserved;  // by cuMemAddressReserve
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<struct Physical>> physicals;
  uint64_t n_sequences = 0, n_ids = 0, n_calls = 0;
};

State& state();

// What every exported function begins with: counts the call, injects failures, looks whether the call is
// allowed. Holds the lock.
class Call {
 public:
  enum Needs {
    kNothing,
    kInit,     // cuInit
    kContext,  // a current context, which has not failed
    kUnsafe,   // as kContext; spoils a capture of a stream
    kDestroy   // as kContext; goes on if the context has failed, and returns that error
  };
  Call(const char* function, Needs needs);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  std::unique_lock<std::mutex> lock;
  CUresult error = CUDA_SUCCESS;
  CUresult failed = CUDA_SUCCESS;  // the context's error, for kDestroy
  Context* context = nullptr;
};

#define TENON_FAKE_CALL(needs)                                       \
  [[maybe_unused]] ::tenon::fake::State& s = ::tenon::fake::state(); \
  ::tenon::fake::Call call(__func__, ::tenon::fake::Call::needs);    \
  if (call.error != ::tenon::fake::CUDA_SUCCESS) return call.error

// An error in the program under test, or one that was asked for.
void note_problem(const std::string& text);
// Of a handle: null for one that is none. 0 and 1: the context's legacy stream, 2: that of this thread.
Stream* find_stream(Context* context, CUstream handle);
uint64_t this_thread();
CUresult submit(Stream& stream, Work work);
// What a synchronizing call on the stream, or work on the legacy stream, does to a capture; its error.
CUresult spoil_capture_of(Stream& stream);
// The streams that the legacy stream of the context is ordered with.
bool is_ordered_with_legacy(const Stream& stream, const Context& context);
inline constexpr std::chrono::microseconds kPollOtherProcesses{200};
// Makes the event one of several processes.
CUresult share_event(Event& event);
void fail_context(Context& context, CUresult error);
// Delays are counted in calls of the driver, and the threads that call run the work.
bool counts_calls();
// What each call begins with: with delay_calls, some of what is due runs.
void note_call(std::unique_lock<std::mutex>& lock);
// With delay_calls, in a thread that waits: runs a step, or lets the time of the next one come. False: there
// is none, or another thread runs one.
bool go_on(std::unique_lock<std::mutex>& lock);
// Marks captures invalid that a call of this thread forbids; whether there was one.
bool spoil_captures();
void make_context(int device);
void end_context(Context& context);

Block* find_block(uintptr_t address);
// Where the driver reaches these bytes; null if they are not in one live block, or pageable memory.
char* reach(uintptr_t address, size_t nbytes);
// Whether a call may name these bytes.
bool is_valid(uintptr_t address, size_t nbytes);
bool is_pageable(uintptr_t address);
bool is_device(const Block& block);
bool is_driver_address(uintptr_t address);
void make_arenas();
CUresult take_addresses(Arena& arena, size_t nbytes, size_t alignment, uintptr_t* address);
Block& add_block(Kind kind, uintptr_t base, size_t nbytes, char* bytes, int device);
void drop_block(uintptr_t base);
std::string text_of(uintptr_t address, size_t nbytes);

}  // namespace tenon::fake

namespace tenon::impl::cuda {

struct CUstream_st {
  tenon::fake::Context* context;
  bool is_blocking;  // ordered with the legacy stream
  uint64_t priority = 0;
  std::deque<tenon::fake::Work> queue = {};
  bool is_made = false;  // by cuStreamCreate
  bool is_held = false, is_destroyed = false;
  std::shared_ptr<tenon::fake::Capture> capture = {};
};

struct CUevent_st {
  tenon::fake::Context* context;
  unsigned flags;
  std::shared_ptr<tenon::fake::Record> last = {};           // null: never recorded
  std::shared_ptr<tenon::fake::Capture> capture = {};       // that it was last recorded in
  std::shared_ptr<tenon::fake::SharedRecords> shared = {};  // of an event of several processes
  int fd = -1;                                              // of shared, in the process that made it
};

struct CUctx_st {
  int device;
  int n_retained = 0;
  CUresult error = CUDA_SUCCESS;
  tenon::fake::Stream* legacy = nullptr;
  std::map<uint64_t, tenon::fake::Stream*> of_threads = {};
};

}  // namespace tenon::impl::cuda
