// SPDX-License-Identifier: Apache-2.0
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <new>
#include <optional>

#include "cases.h"
#include "layer.h"

namespace bench {
namespace {

// An arena of its own, without a place for the thread that pushes.
class Tbb {
 public:
  struct Slot {};

  explicit Tbb(int workers)
      : scheduler_(tbb::attach{}),
        threads_(std::in_place, tbb::global_control::max_allowed_parallelism, size_t(workers) + 1),
        arena_(std::in_place, workers, 0) {
    arena_->initialize();
  }
  Tbb(const Tbb&) = delete;
  Tbb& operator=(const Tbb&) = delete;
  ~Tbb() {
    arena_.reset();
    threads_.reset();
    tbb::finalize(scheduler_, std::nothrow);
  }

  template <auto kRun>
  void post(Slot&, void* op) {
    arena_->enqueue([op] { kRun(op); });
  }

 private:
  tbb::task_scheduler_handle scheduler_;
  std::optional<tbb::global_control> threads_;
  std::optional<tbb::task_arena> arena_;
};

}  // namespace

const Contender layer_on_tbb = contender<Layer<Tbb>>("layer on oneTBB");

}  // namespace bench
