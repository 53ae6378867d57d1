// SPDX-License-Identifier: Apache-2.0
//
// Tenon's executor without the engine above it: what it costs to run a task on another thread at all. Tasks
// lie ready in an array and are told of no dependencies, so it stands only beside cases that have none.
#include "exec/executor.h"

#include <memory>
#include <vector>

#include "backlog.h"
#include "cases.h"

namespace bench {
namespace {

class TenonExecutor {
 public:
  explicit TenonExecutor(const Size& size)
      : tasks_(size_t(size.ops)), executor_(tenon::impl::make_executor("pool", size.workers)) {}
  TenonExecutor(const TenonExecutor&) = delete;
  TenonExecutor& operator=(const TenonExecutor&) = delete;
  ~TenonExecutor() { executor_->stop(); }

  template <class F>
  void session(F f) {
    f();
  }

  template <class Body>
  void push(void* context, Uses) {
    backlog_.begin();
    Task& task = tasks_[n_++];
    task.body = &Body::run;
    task.context = context;
    task.backlog = &backlog_;
    executor_->post(&task);
  }

  template <class Body>
  void push_and_wait(void* context, Uses uses) {
    push<Body>(context, uses);
    wait_all();
  }

  void wait_all() { backlog_.wait_until(0); }

 private:
  struct Task final : tenon::impl::Task {
    void (*body)(void* context) = nullptr;
    void* context = nullptr;
    Backlog* backlog = nullptr;

    tenon::impl::Task* run() noexcept override {
      body(context);
      backlog->end();
      return nullptr;
    }
  };

  std::vector<Task> tasks_;
  size_t n_ = 0;
  Backlog backlog_;
  const std::unique_ptr<tenon::impl::Executor> executor_;
};

}  // namespace

const Contender tenon_executor = contender<TenonExecutor>("Tenon's executor alone");

}  // namespace bench
