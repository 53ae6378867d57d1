// SPDX-License-Identifier: Apache-2.0
//
// Tenon as its users have it: through the C ABI of the library that is installed.
#include <tenon/tenon.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <vector>

#include "cases.h"

namespace bench {
namespace {

void check_status(tenon_status status, const tenon_error& error) {
  if (status != TENON_OK) throw std::runtime_error(error.message);
}

// Made when first asked for, and kept: to make as many as one case needs takes longer than a turn.
std::span<tenon_array* const> arrays(size_t n) {
  static std::vector<tenon_array*> all;
  constexpr int64_t kShape[] = {8};
  tenon_error error = TENON_ERROR_INIT;
  while (all.size() < n) {
    tenon_array* array = nullptr;
    check_status(tenon_array_create({TENON_FLOAT, 32, 1}, 1, kShape, {TENON_CPU, 0}, 0, &array, &error),
                 error);
    all.push_back(array);
  }
  return {all.data(), n};
}

constexpr char kPool[] = "pool";
constexpr char kInline[] = "inline";

// One at a time: the engine is the process'.
template <const char* kExecutor>
class Tenon {
 public:
  explicit Tenon(const Size& size) : arrays_(arrays(size_t(size.variables))) {
    tenon_error error = TENON_ERROR_INIT;
    check_status(tenon_engine_set(kExecutor, size.workers, &error), error);
  }
  Tenon(const Tenon&) = delete;
  Tenon& operator=(const Tenon&) = delete;
  ~Tenon() { tenon_engine_set(kInline, 0, nullptr); }  // ends the threads

  template <class F>
  void session(F f) {
    f();
  }

  template <class Body>
  void push(void* context, Uses uses) {
    push_op<Body>(context, uses, nullptr);
  }

  template <class Body>
  void push_and_wait(void* context, Uses uses) {
    tenon_op* op = nullptr;
    push_op<Body>(context, uses, &op);
    tenon_error error = TENON_ERROR_INIT;
    check_status(tenon_op_wait(op, -1, &error), error);
    tenon_op_release(op);
  }

  void wait_all() {
    tenon_error error = TENON_ERROR_INIT;
    check_status(tenon_wait_all(-1, &error), error);
  }

 private:
  template <class Body>
  void push_op(void* context, Uses uses, tenon_op** out) {
    std::array<tenon_use, kMostUses> described;
    int32_t n = 0;
    for (const Use& use : uses) {
      const int32_t access = use.is_write ? TENON_WRITE : TENON_READ;
      described[size_t(n++)] = {arrays_[size_t(use.variable)], access, TENON_BORROWED};
    }
    tenon_work work = {};
    work.struct_size = sizeof work;
    work.context = context;
    work.run = [](void* of_body, tenon_op* done) {
      Body::run(of_body);
      tenon_op_complete(done);
    };
    tenon_error error = TENON_ERROR_INIT;
    check_status(tenon_push(&work, n, described.data(), out, &error), error);
  }

  const std::span<tenon_array* const> arrays_;
};

// The only worker is busy with something else, so that the waiter for an op runs it. Not for wait_all().
class TenonBusy : public Tenon<kPool> {
 public:
  explicit TenonBusy(const Size& size) : Tenon<kPool>({1, size.variables + 1, size.ops}) {
    const Use last{size.variables, true};
    push<BusyBody>(&is_free_, {&last, 1});
  }
  ~TenonBusy() {
    is_free_.store(true, std::memory_order_relaxed);
    is_free_.notify_all();
    wait_all();
  }

 private:
  struct BusyBody {
    static void run(void* context) noexcept {
      static_cast<std::atomic<bool>*>(context)->wait(false, std::memory_order_relaxed);
    }
  };

  std::atomic<bool> is_free_{false};
};

constexpr Contender kContenders[] = {
    contender<Tenon<kPool>>("Tenon, pool"),
    contender<Tenon<kInline>>("Tenon, inline"),
    contender<TenonBusy>("Tenon, its worker busy"),
};

}  // namespace

std::span<const Contender> tenon_contenders() { return kContenders; }

}  // namespace bench
