// SPDX-License-Identifier: Apache-2.0
//
// Law: if any one allocation or system call of the library fails once, the program stays usable. Each
// scenario below runs with failure 1, 2, 3, ... until it ends without a failure. Each run has its own
// process, so that the steps of the first use can fail, too. Oracle, after each failure:
//   - the process lives, and the call ends: it has succeeded, or its error says what was wrong;
//   - the same scenario then succeeds at once, so no lock, name, turn or place is lost;
//   - then no storage, view, op, block, lease or handle is left; under LeakSanitizer, no memory either;
//   - another process gets the shared array for writing.
//
// Prints the number of allocations and calls of each scenario. Of the calls in a loop, three fail, with
// TENON_SOAK=1 all. TENON_FAULTS_FROM=n begins with failure n.
#include <execinfo.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "faults.h"
#include "ipc/segments.h"
#include "serving.h"
#include "tenon/arena.hpp"
#include "tenon/channel.hpp"
#include "tenon/dlpack.h"
#include "tenon/engine.hpp"
#include "tenon/feed.hpp"
#include "tenon/share.hpp"
#include "tenon/trace.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace {

namespace api = tenon::api0;
namespace impl = tenon::impl;
using api::Array;
using tenon::faults::Kind;
using namespace std::chrono_literals;

constexpr unsigned kWatchdogSeconds = 900;
constexpr long kMostFailures = 5000;  // a scenario that goes on for ever is a defect of this test

const api::DType kDouble = api::dtype_of<double>();

void expect(bool is_true, const char* what) {
  if (!is_true) throw api::Error(TENON_ERR_INTERNAL, what);
}

// ------------------------------------------------------------------------------ what another process shares

// A tensor pool, and messages of one array of bytes.
class Pool {
 public:
  Pool() {
    const tenon_pool_options options{sizeof options, 0, 8 << 20, 0, -1};
    api::call(tenon_tensor_pool_create, &options, &pool_);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    (void)tenon_tensor_pool_revoke(pool_, "scenario", nullptr, nullptr);
    tenon_tensor_pool_release(pool_);
  }

  Array filled(int64_t n, int value) const {
    const auto kByte = api::dtype_of<uint8_t>();
    tenon_array* made = nullptr;
    api::call(tenon_tensor_pool_empty, pool_, kByte, 1, &n, 0, &made);
    std::memset(tenon_array_describe(made)->data, value, static_cast<size_t>(n));
    return Array::steal(made);
  }
  Array frozen(const Array& x) const {
    tenon_array* made = nullptr;
    api::call(tenon_tensor_pool_freeze, pool_, x.get(), &made);
    return Array::steal(made);
  }
  // Returns the size of the message. If it fails, the array is as it was.
  size_t send(const Array& x, uint32_t opens, std::byte* out, size_t room) const {
    const tenon_message_options options{sizeof options, opens, -1, nullptr, 0, 0, "scenario", "faults:1"};
    tenon_array* const arrays[] = {x.get()};
    const int32_t owned = tenon_tensor_pool_owns(pool_, x.get());
    uint64_t nbytes = 0;
    try {
      api::call(tenon_tensor_pool_send, pool_, arrays, 1, &options, out, room, &nbytes);
    } catch (...) {
      expect(tenon_tensor_pool_owns(pool_, x.get()) == owned, "an array that was not sent stays");
      throw;
    }
    return nbytes;
  }
  // Returns how many messages there were.
  uint32_t revoke() const {
    uint32_t n = 0;
    api::call(tenon_tensor_pool_revoke, pool_, "scenario", &n);
    return n;
  }
  tenon_pool_stats stats() const {
    auto now = api::detail::sized<tenon_pool_stats>();
    api::call(tenon_tensor_pool_stats, pool_, &now);
    return now;
  }

 private:
  tenon_tensor_pool* pool_ = nullptr;
};

// Opens a message and looks at its bytes. An open that fails is not counted: the next one succeeds.
void open_message(const std::byte* message, size_t nbytes, uint32_t flags, int value) {
  const auto open = [&] {
    tenon_array* opened = nullptr;
    uint32_t n = 0;
    api::call(tenon_message_open, message, nbytes, flags, &opened, 1, &n);
    const Array x = Array::steal(opened);
    const auto* const bytes = static_cast<const uint8_t*>(tenon_array_describe(x.get())->data);
    expect(bytes[0] == value && bytes[x.nbytes() - 1] == value, "the bytes are those that were sent");
  };
  try {
    open();
  } catch (const api::Error& e) {
    open();
    expect(e.code() != TENON_ERR_GONE, "a message of a living sender has not gone");
    throw;
  }
}

// A process that has shared arrays before a scenario begins, and that takes leases of them afterwards.
class Neighbour {
 public:
  // What it tells the others.
  struct Told {
    size_t handle_nbytes;
    std::byte handle[TENON_MAX_HANDLE_NBYTES];
    size_t message_nbytes;  // of a tensor pool: an array of 1 MiB of ones
    std::byte message[1024];
    char name[64];
    int to, from;  // descriptors: a letter for it, and its answer
  };

  // While this exists, the neighbour has a write lease on the array of the handle.
  class Hold {
   public:
    explicit Hold(const Told& told) : told_(told) {
      expect(ask(told, 'h') == 'y', "the neighbour has a lease");
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() { (void)ask(told_, 'g'); }

   private:
    const Told& told_;
  };

  Neighbour() {
    told_ = static_cast<Told*>(
        mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    int to[2], from[2];
    if (told_ == MAP_FAILED || pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) abort();
    const pid_t tester = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != tester) _exit(1);
      close(to[1]);
      close(from[0]);
      serve(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    told_->to = to[1];
    told_->from = from[0];
    char letter = 0;
    if (read(told_->from, &letter, 1) != 1) abort();
  }
  ~Neighbour() {
    close(told_->to);
    (void)waitpid(pid_, nullptr, 0);
    close(told_->from);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  const Told& told() const { return *told_; }
  // Whether it gets both arrays for writing, each within 5 s.
  bool gets_its_arrays() const { return ask(*told_, '?') == 'y'; }

 private:
  // '?': whether it gets the arrays; 'h': hold one; 'g': release it. Uses the system calls directly, which
  // never fail on demand.
  static char ask(const Told& told, char letter) {
    const bool is_asked = syscall(SYS_write, told.to, &letter, 1) == 1;
    return is_asked && syscall(SYS_read, told.from, &letter, 1) == 1 ? letter : 'n';
  }

  [[noreturn]] void serve(int in, int out) const {
    api::SharedOptions options;
    options.name = "faults_test." + std::to_string(getpid());
    const Array named = api::zeros_shared({100}, kDouble, options),
                unnamed = api::zeros_shared({100}, kDouble);
    const std::vector<std::byte> handle = api::send(unnamed);
    std::memcpy(told_->handle, handle.data(), handle.size());
    told_->handle_nbytes = handle.size();
    std::memcpy(told_->name, options.name.c_str(), options.name.size() + 1);
    const Pool pool;
    const Array sent = pool.filled(1 << 20, 1);
    told_->message_nbytes = pool.send(sent, 0, told_->message, sizeof told_->message);
    char letter = '!';
    std::optional<api::Lease> held;
    while (::write(out, &letter, 1) == 1 && ::read(in, &letter, 1) == 1) {
      try {
        held.reset();
        if (letter == '?') {
          for (const Array& a : {named, unnamed}) {
            const api::Lease lease(a, api::Access::kWrite, TENON_OVERWRITE, 5s);
          }
        } else if (letter == 'h') {
          held.emplace(unnamed, api::Access::kWrite, TENON_OVERWRITE, 5s);
        }
        letter = 'y';
      } catch (const api::Error&) {
        letter = 'n';
      }
    }
    _exit(0);
  }

  Told* told_ = nullptr;
  pid_t pid_ = 0;
};

// ------------------------------------------------------------------------------------------- the scenarios

using Scenario = std::function<void(const Neighbour::Told&)>;

void make_array(const Neighbour::Told&) {
  const Array a = Array::zeros<double>({100, 3});
  const Array big = Array::empty<double>({200'000});
  const api::Index items[] = {api::slice(2, 50)};
  a.index(items).copy_to(Array::zeros<double>({48, 3}));
}

void import_memory(const Neighbour::Told&) {
  std::vector<double> x(1000), y(1000);
  const Array a = Array::borrow(x.data(), {1000});
  const Array again = Array::borrow(x.data() + 10, {100});  // joins the same account
  const Array b = Array::adopt(std::move(y));
  const api::HostView view(b, api::Access::kWrite);
}

void exchange_dlpack(const Neighbour::Told&) {
  const Array a = Array::zeros<double>({4, 5});
  Array::from_dlpack(a.to_dlpack());
  DLManagedTensorVersioned* const tensor = a.to_dlpack();
  tensor->deleter(tensor);
}

void lease(const Neighbour::Told&) {
  const Array a = Array::zeros<double>({100});
  {
    const api::Lease writing = a.write();
    writing.view<double, 1>()(0) = 1;
    const api::Lease nested = a.read();
  }
  {
    std::optional<api::Lease> writing(std::in_place, a, api::Access::kWrite);
    const api::HostView kept(a, api::Access::kWrite);
    writing.reset();
    const api::Lease next = a.write();
    expect(next.view<double, 1>()(0) == 1, "the kept view continues the lease of this thread");
  }
  const api::Lease reading = a.read();
  expect(reading.view<const double, 1>()(0) == 1, "the value is there");
}

void push_and_run(const Neighbour::Told&) {
  const Array a = Array::zeros<int64_t>({1}), b = Array::zeros<int64_t>({1});
  api::Op op;
  for (int i = 0; i < 8; ++i) {
    op = api::push([](api::View<int64_t, 1> x, api::View<const int64_t, 1>) { x(0) += 1; }, api::write(a),
                   api::read(b));
  }
  op.wait();
  const int64_t value = a.as<const int64_t, 1>()(0);
  expect(value == 8, "every op has run once");
}

struct Stop {};

template <class Use>
void expect_failed(const char* what, const Use& use) {
  try {
    use();
  } catch (const api::OpError&) {
    return;
  }
  expect(false, what);
}

// For a process that has neither pushed an op nor forked, so that it has not used the engine.
void fail_and_fork() {
  const Array a = Array::zeros<int64_t>({1}), b = Array::zeros<int64_t>({1});
  try {
    const api::Lease writing = a.write();
    throw Stop();
  } catch (const Stop&) {
  }
  expect_failed("the lease has failed", [&] { (void)a.read(); });
  const api::Lease held = b.read();
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  int status = -1;
  if (pid > 0) (void)waitpid(pid, &status, 0);
  expect(status == 0, "the child of the fork lives on");
}

void fail_to_write(const Neighbour::Told&) {
  const auto stop = [](api::View<int64_t, 1>) { throw Stop(); };
  const Array a = Array::zeros<int64_t>({1});
  expect_failed("the op has failed", [&] { api::push(stop, api::write(a)).wait(); });
}

// The failure can also happen in the child. Memory that the parent's ops were to write holds no value there:
// to read the old one would be worse than the end of the process.
void fork_with_work(const Neighbour::Told&) {
  const Array a = Array::zeros<int64_t>({4}), shared = api::zeros_shared({100}, kDouble);
  std::vector<api::Op> ops;
  pid_t pid = -1;
  {
    const api::Lease held = a.read();
    for (int i = 0; i < 3; ++i) {
      ops.push_back(api::push([i](api::View<int64_t, 1> x) { x(i) += 1; }, api::write(a)));
    }
    pid = fork();
    if (pid == 0) {
      try {
        (void)a.as<const int64_t, 1>()(0);
        _exit(1);
      } catch (const std::exception&) {
        _exit(0);
      }
    }
  }
  int status = -1;
  if (pid > 0) (void)waitpid(pid, &status, 0);
  for (const api::Op& op : ops) op.wait();
  expect(pid > 0, "there is a child");
  expect(!WIFSIGNALED(status), "the child of the fork lives on");
  expect(status == 0, "the child does not read what was to be overwritten");
}

void engine_of_one_thread(const Neighbour::Told&) {
  api::call(tenon_engine_set, "pool", 1);
  const Array a = Array::zeros<int64_t>({1});
  api::push([](api::View<int64_t, 1> x) { x(0) = 1; }, api::write(a)).wait();
}

void create_shared(const Neighbour::Told&) {
  const Array a = api::zeros_shared({1000}, kDouble);
  a.write().view<double, 1>()(0) = 1;
  (void)api::push([](api::View<double, 1> x) { x(0) += 1; }, api::write(a)).wait();
  expect(a.read().view<const double, 1>()(0) == 2, "the values are there");
}

void create_named(const Neighbour::Told&) {
  api::SharedOptions options;
  options.name = "faults_test.own." + std::to_string(getpid());
  {
    const Array a = api::zeros_shared({1000}, kDouble, options);
    a.write().view<double, 1>()(0) = 1;
  }
  // The mutex owner closes the segment and removes its name.
  const auto end = std::chrono::steady_clock::now() + 10s;
  for (bool is_open = true; is_open && std::chrono::steady_clock::now() < end;) {
    impl::Segments::nudge();
    std::this_thread::sleep_for(1ms);
    is_open = false;
    impl::Segments::instance().visit([&](impl::Segment&) { is_open = true; });
  }
}

void attach_named(const Neighbour::Told& neighbour) {
  const Array a = api::attach(neighbour.name);
  a.write().view<double, 1>()(0) = 1;
}

void open_handle(const Neighbour::Told& neighbour) {
  const Array a = api::open({neighbour.handle, neighbour.handle_nbytes});
  a.write().view<double, 1>()(0) = 1;
}

// A thread of the library waits for the other process meanwhile.
void push_behind_neighbour(const Neighbour::Told& neighbour) {
  const Array a = api::open({neighbour.handle, neighbour.handle_nbytes});
  api::Op op;
  {
    const Neighbour::Hold hold(neighbour);
    op = api::push([](api::View<double, 1> x) { x(0) = 1; }, api::write(a));
  }
  op.wait();
}

void send_handle(const Neighbour::Told&) {
  const Array a = api::zeros_shared({1000}, kDouble);
  tenon_handle handle;
  api::call(tenon_shared_send, a.get(), &handle);
  const auto open = [&] {
    (void)api::open({reinterpret_cast<const std::byte*>(handle.data), handle.nbytes});
  };
  try {
    open();
  } catch (...) {
    open();  // a handle that no process has opened would keep the array
    throw;
  }
}

void send_message(const Neighbour::Told&) {
  const Pool pool;
  std::byte message[1024];
  const Array x = pool.filled(1 << 20, 7), y = pool.filled(1 << 20, 8);
  open_message(message, pool.send(x, 1, message, sizeof message), 0, 7);
  open_message(message, pool.send(pool.frozen(y), 2, message, sizeof message), 0, 8);
}

void revoke_messages(const Neighbour::Told&) {
  const Pool pool;
  std::byte first[1024], second[1024];
  const Array frozen = pool.frozen(pool.filled(1 << 20, 7));
  const size_t nbytes = pool.send(frozen, 0, first, sizeof first);
  (void)pool.send(frozen, 0, second, sizeof second);
  (void)pool.send(pool.filled(1 << 20, 8), 1, second, sizeof second);
  expect(pool.stats().messages == 3, "they have not ended");
  try {
    api::call(tenon_message_revoke, first, nbytes);
  } catch (...) {
    expect(tenon_message_is_unopened(first, nbytes) == 1, "a message that was not revoked stays");
    throw;
  }
  expect(tenon_message_is_unopened(first, nbytes) == 0, "it has ended");
  expect(pool.revoke() == 2, "the others have ended");
  const tenon_pool_stats stats = pool.stats();
  expect(stats.messages == 0 && stats.blocks == 1, "only the frozen array is left");
}

void open_neighbours_message(const Neighbour::Told& neighbour) {
  for (const uint32_t flags : {uint32_t{TENON_READONLY}, 0U}) {
    open_message(neighbour.message, neighbour.message_nbytes, flags, 1);
  }
  int32_t is_kept = 0;
  api::call(tenon_message_take_over, neighbour.message, neighbour.message_nbytes, -1, &is_kept);
  expect(is_kept == 1, "this process keeps the message");
}

void use_channel(const Neighbour::Told&) {
  const std::vector<api::Field> fields{api::field<double>("x", {100})};
  const api::Channel channel = api::Channel::create(fields, 3);
  api::Item loan = channel.loan(5s);
  loan.array(0).as<double, 1>()(0) = 1;
  loan.send();
  const std::optional<api::Item> got = channel.receive(5s);
  expect(got.has_value() && got->array(0).as<const double, 1>()(0) == 1, "what was sent has come");
}

void watch_channel(const Neighbour::Told&) {
  const std::vector<api::Field> fields{api::field<double>("x", {100})};
  const api::Channel channel = api::Channel::create(fields, 3);
  expect(channel.descriptor() >= 0, "there is a descriptor");
}

void use_arena(const Neighbour::Told&) {
  const std::vector<api::ArenaLayout> layouts{{"a", {api::field<double>("x", {100})}},
                                              {"b", {api::field<float>("y", {300})}}};
  const api::Arena arena = api::Arena::create_shared(layouts);
  {
    const api::ArenaUse use = arena.use("a", api::Access::kWrite);
  }
  {
    const api::ArenaUse use = arena.use("b", api::Access::kWrite);
  }
}

int fill(double* x, uint64_t index) {
  x[0] = static_cast<double>(index);
  return 0;
}

void run_feed(const Neighbour::Told&) {
  const api::Schema schema{api::field<double>("x", {10})};
  const api::Function function =
      api::Function::from_address(reinterpret_cast<void*>(fill), "int fill(double *x, uint64_t index)", true);
  api::Feed feed(function.bind(schema, {}), schema, {.workers = 2, .batches = 4});
  uint64_t n = 0;
  for (const api::Batch batch : feed.epoch()) {
    expect(batch["x"].as<const double, 1>()(0) == static_cast<double>(n), "each batch holds its own number");
    ++n;
  }
  expect(n == 4, "every batch has come");
}

void trace_session(const Neighbour::Told& neighbour) {
  api::Trace trace("/dev/null", 100);
  push_and_run(neighbour);
  (void)trace.stop();
}

void describe_and_collect(const Neighbour::Told&) {
  (void)api::describe_shared();
  (void)api::collect_shared();
}

struct Case {
  const char* name;
  void (*run)(const Neighbour::Told&);
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};
constexpr Case kCases[] = {
    {"MakeArray", make_array},
    {"ImportMemory", import_memory},
    {"ExchangeDlpack", exchange_dlpack},
    {"Lease", lease},
    {"PushAndRun", push_and_run},
    {"ForkWithWork", fork_with_work},
    {"FailToWrite", fail_to_write},
    {"EngineOfOneThread", engine_of_one_thread},
    {"CreateShared", create_shared},
    {"CreateNamed", create_named},
    {"AttachNamed", attach_named},
    {"OpenHandle", open_handle},
    {"PushBehindNeighbour", push_behind_neighbour},
    {"SendHandle", send_handle},
    {"SendMessage", send_message},
    {"RevokeMessage", revoke_messages},
    {"OpenMessage", open_neighbours_message},
    {"UseChannel", use_channel},
    {"WatchChannel", watch_channel},
    {"UseArena", use_arena},
    {"RunFeed", run_feed},
    {"ServeFeed", [](const Neighbour::Told&) { tenon::faults::serve_feed(); }},
    {"ServePool", [](const Neighbour::Told&) { tenon::faults::serve_pool(); }},
    {"TraceSession", trace_session},
    {"DescribeAndCollect", describe_and_collect},
};

// --------------------------------------------------------------------------------- one run with one failure

// The result of the child process, in memory that its parent reads.
struct Report {
  bool has_failed;    // the call, if one was to fail
  bool is_complete;   // the child has come to its end
  long calls;         // that were counted
  char call[32];      // that has failed
  char message[512];  // of the error that it led to; "": none
  char problem[640];  // "": the law holds
};

void note(Report& report, const std::string& problem) {
  if (report.problem[0] == '\0') {
    (void)std::snprintf(report.problem, sizeof report.problem, "%s", problem.c_str());
  }
}

// What is wrong with the error of the current exception; "": it is clear.
std::string reason_why_unclear(Kind kind, Report& report) {
  try {
    throw;
  } catch (const api::OpError& e) {
    (void)std::snprintf(report.message, sizeof report.message, "%s", e.what());
    return e.what()[0] != '\0' ? "" : "an error without a message";
  } catch (const api::Error& e) {
    (void)std::snprintf(report.message, sizeof report.message, "%s", e.what());
    if (e.code() == TENON_ERR_INTERNAL) return std::string("an error without a reason: ") + e.what();
    // A failed system call may also appear as its result: that a name does not exist.
    const bool is_of_memory = e.code() == TENON_ERR_NO_MEMORY || e.code() == TENON_ERR_SYSTEM;
    if (kind == Kind::kMemory && !is_of_memory) return std::string("it blames something else: ") + e.what();
    return e.what()[0] != '\0' ? "" : "an error without a message";
  } catch (const std::bad_alloc&) {  // of a container of the scenario itself
    return "";
  } catch (const std::exception& e) {
    return std::string("an exception that is none of the library's: ") + e.what();
  }
}

std::string what_is_left() {
  tenon_statistics now{};
  now.struct_size = sizeof now;
  tenon_statistics_get(&now);
  using impl::look;
  uint32_t grants = 0, blocks = 0, sent = 0;
  impl::Segments::instance().visit([&](impl::Segment& segment) {
    const impl::Control& control = segment.control();
    for (uint32_t p = 0; p < control.used_places(); ++p) {
      if (!control.has_place(p)) continue;
      const impl::Place& place = control.place(p);
      if (look(place.pid) != static_cast<uint32_t>(getpid())) continue;
      for (const impl::Grant& r : place.grants) grants += look(r.state) != 0 ? 1 : 0;
    }
    if (segment.header().creator_pid != static_cast<uint32_t>(getpid())) return;
    for (uint32_t i = 0; i < control.used_blocks(); ++i) {
      const impl::Block& block = control.block(i);
      blocks += look(block.state) == impl::BlockState::kUsed ? 1 : 0;
    }
    for (uint32_t i = 0; i < control.used_messages(); ++i) {
      const uint64_t word = look(control.message(i).word);
      sent += impl::MessageWord::status(word) == impl::MessageStatus::kLive ? 1 : 0;
    }
  });
  const bool is_clean = now.storages == 0 && now.regions == 0 && now.heap_nbytes == 0 && now.views == 0 &&
                        tenon_engine_unfinished() == 0 && grants == 0 && blocks == 0 && sent == 0;
  if (is_clean) return "";
  return tenon::impl::concat(now.storages, " storages, ", now.regions, " regions, ", now.heap_nbytes,
                             " bytes, ", now.views, " views, ", tenon_engine_unfinished(), " ops, ", grants,
                             " leases, ", blocks, " blocks, ", sent, " handles are left");
}

// The child: runs the scenario with failure n, then without a failure; then nothing is left.
void attempt(const Case& scenario, Kind kind, long n, const Neighbour::Told& told, Report& report) {
  tenon::faults::arm(kind, n, std::getenv("TENON_SOAK") != nullptr ? 0 : 3);
  std::string unclear;
  try {
    scenario.run(told);
  } catch (...) {
    unclear = reason_why_unclear(kind, report);
  }
  report.calls = tenon::faults::disarm();
  if (const char* const call = tenon::faults::failed_call()) {
    report.has_failed = true;
    (void)std::snprintf(report.call, sizeof report.call, "%s", call);
  } else if (report.message[0] != '\0') {
    note(report, tenon::impl::concat("it fails where nothing was made to fail: ", report.message));
  }
  if (!unclear.empty()) note(report, unclear);
  while (api::take_failure()) continue;
  try {
    scenario.run(told);
  } catch (const std::exception& e) {
    note(report, tenon::impl::concat("it does not work afterwards: ", e.what()));
  }
  while (api::take_failure()) continue;
  impl::Segments::nudge();
  // The mutex owner soon frees what no process uses.
  std::string left = what_is_left();
  const auto end = std::chrono::steady_clock::now() + 120s;
  while (!left.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
    left = what_is_left();
  }
  if (!left.empty()) note(report, left);
#if defined(__SANITIZE_ADDRESS__)
  if (__lsan_do_recoverable_leak_check() != 0) note(report, "memory has leaked (see above)");
#endif
  report.is_complete = true;
}

// A memory file of the test, into which a child writes its messages.
int details = -1;

void show_failure() {
  constexpr char kText[] = "the call that failed was made at:\n";
  (void)!::write(details, kText, sizeof kText - 1);
  tenon::faults::print_backtrace(details);
}

void show_failure_and_die(int signal) {
  show_failure();
  constexpr char kText[] = "the signal came at:\n";
  (void)!::write(details, kText, sizeof kText - 1);
  void* callers[32];
  backtrace_symbols_fd(callers, backtrace(callers, 32), details);
  (void)::signal(signal, SIG_DFL);
  (void)raise(signal);
}

std::string take_details() {
  char text[8192];
  const ssize_t n = pread(details, text, sizeof text, 0);
  (void)!ftruncate(details, 0);
  (void)lseek(details, 0, SEEK_SET);
  return {text, n > 0 ? static_cast<size_t>(n) : 0};
}

class EachFailure : public testing::TestWithParam<Case> {
 protected:
  // Runs the scenario with each failure of a kind. Returns how many there are.
  long run_all(Kind kind) {
    const char* const from = std::getenv("TENON_FAULTS_FROM");
    for (long n = from != nullptr ? std::atol(from) : 1; n < kMostFailures; ++n) {
      const Report report = run_one(kind, n);
      if (!report.has_failed && report.is_complete) return report.calls;
    }
    ADD_FAILURE() << "there is no end";
    return kMostFailures;
  }

 private:
  Report run_one(Kind kind, long n) {
    *report_ = {};
    if (details < 0) details = memfd_create("details", MFD_CLOEXEC);
    const pid_t pid = fork();
    if (pid == 0) {
      for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGALRM})
        (void)::signal(signal, show_failure_and_die);
      (void)alarm(kWatchdogSeconds);
      attempt(GetParam(), kind, n, neighbour_.told(), *report_);
      if (report_->problem[0] != '\0') show_failure();
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    const std::string where = tenon::impl::concat("failure ", n, ", of ", report_->call, " (\"",
                                                  report_->message, "\")\n", take_details());
    if (WIFSIGNALED(status)) {
      ADD_FAILURE() << "the process " << (WTERMSIG(status) == SIGALRM ? "hangs" : strsignal(WTERMSIG(status)))
                    << ": " << where;
      report_->has_failed = true;  // go on with the next one
    } else {
      EXPECT_EQ(status, 0) << where;
      EXPECT_STREQ(report_->problem, "") << where;
    }
    EXPECT_TRUE(neighbour_.gets_its_arrays()) << "a lease is lost for other processes: " << where;
    return *report_;
  }

  Neighbour neighbour_;
  Report* report_ = static_cast<Report*>(
      mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
};

TEST_P(EachFailure, OfAnAllocationLeavesTheProgramWhole) {
  const long n = run_all(Kind::kMemory);
  std::printf("%s: %ld allocations\n", GetParam().name, n);
}

TEST_P(EachFailure, OfASystemCallLeavesTheProgramWhole) {
  const long n = run_all(Kind::kSystem);
  std::printf("%s: %ld system calls\n", GetParam().name, n);
}

INSTANTIATE_TEST_SUITE_P(Faults, EachFailure, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& c) { return std::string(c.param.name); });

// Each failure needs a new program: a forked child has used the engine.
constexpr const char* kNewProgram = "--fail-and-fork";
enum NewProgramEnd { kHasFailed, kHasNotFailed };

NewProgramEnd run_new_program(long n) {
  (void)alarm(kWatchdogSeconds);
  tenon::faults::arm(Kind::kMemory, n, 0);
  try {
    fail_and_fork();
  } catch (const std::exception&) {
  }
  (void)tenon::faults::disarm();
  return tenon::faults::failed_call() != nullptr ? kHasFailed : kHasNotFailed;
}

TEST(Faults, OfAnAllocationInAProcessWithoutOpsLeavesItWhole) {
  for (long n = 1; n < kMostFailures; ++n) {
    std::string number = std::to_string(n), option = kNewProgram, self = "/proc/self/exe";
    char* words[] = {self.data(), option.data(), number.data(), nullptr};
    pid_t pid = -1;
    ASSERT_EQ(posix_spawn(&pid, self.c_str(), nullptr, nullptr, words, environ), 0);
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status)) << "failure " << n << " ends it: " << strsignal(WTERMSIG(status));
    if (WEXITSTATUS(status) == kHasNotFailed) return;
    ASSERT_EQ(WEXITSTATUS(status), kHasFailed);
  }
  ADD_FAILURE() << "there is no end";
}

}  // namespace

int main(int count, char** words) {
  if (count == 3 && std::strcmp(words[1], kNewProgram) == 0) return run_new_program(std::atol(words[2]));
  testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
