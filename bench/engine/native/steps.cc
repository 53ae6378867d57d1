// SPDX-License-Identifier: Apache-2.0
//
// Steps that one thread takes alone: uncontended leases, and waits for what is done.
#include <tenon/tenon.h>

#include <mutex>
#include <shared_mutex>
#include <stdexcept>

#include "base/clock.h"
#include "bench.h"
#include "sync/queue.h"
#include "sync/wait.h"

namespace bench {
namespace {

void check_status(tenon_status status, const tenon_error& error) {
  if (status != TENON_OK) throw std::runtime_error(error.message);
}

class Array {
 public:
  Array() {
    tenon_error error = TENON_ERROR_INIT;
    constexpr int64_t kShape[] = {8};
    check_status(tenon_array_create({TENON_FLOAT, 32, 1}, 1, kShape, {TENON_CPU, 0}, 0, &array_, &error),
                 error);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { tenon_array_release(array_); }
  tenon_array* get() const { return array_; }

 private:
  tenon_array* array_ = nullptr;
};

template <class F>
int64_t timed(int64_t n, F step) {
  const int64_t start = tenon::impl::now_ns();
  for (int64_t i = 0; i < n; ++i) step();
  return tenon::impl::now_ns() - start;
}

template <int32_t kAccess>
int64_t lease(int64_t n) {
  const Array array;
  tenon_lease held = TENON_LEASE_INIT;
  tenon_lease_options options = {};
  options.struct_size = sizeof options;
  options.access = kAccess;
  options.timeout_ns = -1;
  tenon_error error = TENON_ERROR_INIT;
  return timed(n, [&] {
    check_status(tenon_lease_acquire(&held, array.get(), &options, &error), error);
    tenon_lease_release(&held);
  });
}

// What lies under a lease: a request on one queue, without array, storage and the boundary of the C ABI.
int64_t request(int64_t n) {
  namespace impl = tenon::impl;
  impl::Queue queue;
  impl::Home home{&queue};
  impl::RequestPart part;
  part.home = &home;
  part.access = impl::Access::kWrite;
  return timed(n, [&] {
    impl::BlockingRequest request(impl::HolderKind::kLease, {&part, 1});
    request.owner = impl::current_actor();
    impl::Conflict conflict;
    if (!request.acquire(tenon::impl::Deadline(-1), &conflict))
      throw std::runtime_error("a free queue refused a request");
    impl::release(request);
  });
}

int64_t wait_for_op(int64_t n) {
  const Array array;
  tenon_work work = {};
  work.struct_size = sizeof work;
  work.run = [](void*, tenon_op* op) { tenon_op_complete(op); };
  const tenon_use use = {array.get(), TENON_WRITE, 0};
  tenon_error error = TENON_ERROR_INIT;
  tenon_op* op = nullptr;
  check_status(tenon_push(&work, 1, &use, &op, &error), error);
  check_status(tenon_op_wait(op, -1, &error), error);
  const int64_t elapsed = timed(n, [&] { check_status(tenon_op_wait(op, -1, &error), error); });
  tenon_op_release(op);
  return elapsed;
}

int64_t wait_for_array(int64_t n) {
  const Array array;
  tenon_error error = TENON_ERROR_INIT;
  return timed(n, [&] { check_status(tenon_array_wait(array.get(), TENON_READ, -1, &error), error); });
}

int64_t wait_for_all(int64_t n) {
  tenon_error error = TENON_ERROR_INIT;
  return timed(n, [&] { check_status(tenon_wait_all(-1, &error), error); });
}

int64_t mutex(int64_t n) {
  std::mutex m;
  return timed(n, [&] { const std::scoped_lock lock(m); });
}

int64_t shared_mutex(int64_t n) {
  std::shared_mutex m;
  return timed(n, [&] { const std::shared_lock lock(m); });
}

constexpr Step kSteps[] = {
    {"tenon_lease_acquire, _release: to write", lease<TENON_WRITE>},
    {"tenon_lease_acquire, _release: to read", lease<TENON_READ>},
    {"C++: a request on one queue", request},
    {"std::mutex", mutex},
    {"std::shared_mutex, shared", shared_mutex},
    {"tenon_op_wait: the op is done", wait_for_op},
    {"tenon_array_wait: the array is idle", wait_for_array},
    {"tenon_wait_all: nothing is unfinished", wait_for_all},
};

}  // namespace

std::span<const Step> steps() { return kSteps; }

}  // namespace bench
