// SPDX-License-Identifier: Apache-2.0
#include <taskflow/taskflow.hpp>

#include "cases.h"
#include "layer.h"

namespace bench {
namespace {

class Taskflow {
 public:
  struct Slot {};

  explicit Taskflow(int workers) : executor_(size_t(workers)) {}
  Taskflow(const Taskflow&) = delete;
  Taskflow& operator=(const Taskflow&) = delete;
  ~Taskflow() { executor_.wait_for_all(); }

  template <auto kRun>
  void post(Slot&, void* op) {
    executor_.silent_async([op] { kRun(op); });
  }

 private:
  tf::Executor executor_;
};

}  // namespace

const Contender layer_on_taskflow = contender<Layer<Taskflow>>("layer on Taskflow");

}  // namespace bench
