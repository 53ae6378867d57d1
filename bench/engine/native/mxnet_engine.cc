// SPDX-License-Identifier: Apache-2.0
//
// MXNet's engine, through the C API of its library: the variables are NDArrays. The library is opened when it
// is first asked for. A process has one engine, with as many workers as MXNET_CPU_WORKER_NTHREADS said then.
#include <dlfcn.h>

#include <array>
#include <stdexcept>
#include <vector>

#include "backlog.h"
#include "cases.h"

namespace bench {
namespace {

using Handle = void*;

struct Context {
  int32_t device_type = 1;  // CPU
  int32_t device_id = 0;
};

// The functions that are used, as mxnet/c_api.h declares them.
struct Library {
  const char* (*last_error)();
  int (*create)(const uint32_t* shape, uint32_t ndim, int device_type, int device_id, int is_delayed,
                Handle* out);
  int (*wait_to_read)(Handle);
  int (*wait_all)();
  int (*push)(void (*run)(void*, void*), void* parameter, void (*deleter)(void*), const Context*,
              Handle* reads, int n_reads, Handle* writes, int n_writes, const void* property, int priority,
              const char* name);
};

template <class F>
void find(void* library, const char* name, F** function) {
  *function = reinterpret_cast<F*>(dlsym(library, name));
  if (*function == nullptr) throw std::runtime_error(dlerror());
}

const Library& library() {
  static const Library all = [] {
    void* const opened = dlopen(TENON_BENCH_MXNET, RTLD_LAZY | RTLD_LOCAL);
    if (opened == nullptr) throw std::runtime_error(dlerror());
    Library found{};
    find(opened, "MXGetLastError", &found.last_error);
    find(opened, "MXNDArrayCreate", &found.create);
    find(opened, "MXNDArrayWaitToRead", &found.wait_to_read);
    find(opened, "MXNDArrayWaitAll", &found.wait_all);
    find(opened, "MXEnginePushSyncND", &found.push);
    return found;
  }();
  return all;
}

void check_status(int status) {
  if (status != 0) throw std::runtime_error(library().last_error());
}

// Made when first asked for, and kept, as those of Tenon.
std::span<const Handle> arrays(size_t n) {
  static std::vector<Handle> all;
  constexpr uint32_t kShape[] = {8};
  while (all.size() < n) {
    Handle array = nullptr;
    check_status(library().create(kShape, 1, 1, 0, 0, &array));
    all.push_back(array);
  }
  return {all.data(), n};
}

class MxNet {
 public:
  explicit MxNet(const Size& size) : arrays_(arrays(size_t(size.variables))), ops_(size_t(size.ops)) {}
  MxNet(const MxNet&) = delete;
  MxNet& operator=(const MxNet&) = delete;
  ~MxNet() { library().wait_all(); }

  template <class F>
  void session(F f) {
    f();
  }

  template <class Body>
  void push(void* context, Uses uses) {
    backlog_.begin();
    Op* const op = &ops_[next_++];
    *op = {this, context};
    std::array<Handle, kMostUses> reads;
    std::array<Handle, kMostUses> writes;
    int n_reads = 0;
    int n_writes = 0;
    for (const Use& use : uses) {
      const Handle array = arrays_[size_t(use.variable)];
      (use.is_write ? writes[size_t(n_writes++)] : reads[size_t(n_reads++)]) = array;
    }
    const Context cpu;
    check_status(library().push(&run<Body>, op, nullptr, &cpu, reads.data(), n_reads, writes.data(), n_writes,
                                nullptr, 0, nullptr));
  }

  template <class Body>
  void push_and_wait(void* context, Uses uses) {
    push<Body>(context, uses);
    check_status(library().wait_to_read(arrays_[size_t(uses.back().variable)]));
  }

  void wait_all() { check_status(library().wait_all()); }

 private:
  struct Op {
    MxNet* contender = nullptr;
    void* context = nullptr;
  };

  template <class Body>
  static void run(void*, void* parameter) {
    const Op op = *static_cast<Op*>(parameter);
    Body::run(op.context);
    op.contender->backlog_.end();
  }

  const std::span<const Handle> arrays_;
  std::vector<Op> ops_;
  size_t next_ = 0;
  Backlog backlog_;
};

int64_t wait_for_array(int64_t n) {
  const Handle array = arrays(1)[0];
  check_status(library().wait_to_read(array));
  const int64_t start = tenon::impl::now_ns();
  for (int64_t i = 0; i < n; ++i) check_status(library().wait_to_read(array));
  return tenon::impl::now_ns() - start;
}

}  // namespace

const Contender mxnet = contender<MxNet>("MXNet 1.9.1 (in this run)");
const Step mxnet_step = {"MXNet 1.9.1 (in this run): wait for an array that is ready", wait_for_array};

}  // namespace bench
