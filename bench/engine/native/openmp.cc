// SPDX-License-Identifier: Apache-2.0
//
// Tasks of OpenMP with depend: the dependencies are those of the language, nothing of the layer's. The thread
// that pushes is one of the team and runs tasks while it waits.
#include <omp.h>

#include <memory>

#include "cases.h"

namespace bench {
namespace {

class OpenMp {
 public:
  explicit OpenMp(const Size& size)
      : threads_(size.workers + 1), variables_(std::make_unique<char[]>(size_t(size.variables))) {}
  OpenMp(const OpenMp&) = delete;
  OpenMp& operator=(const OpenMp&) = delete;
  ~OpenMp() { omp_pause_resource_all(omp_pause_hard); }

  template <class F>
  void session(F f) {
#pragma omp parallel num_threads(threads_)
#pragma omp single
    f();
  }

  template <class Body>
  void push(void* context, Uses uses) {
    char* const written = &variables_[size_t(uses.back().variable)];
    if (uses.size() == 1) {
#pragma omp task firstprivate(context) depend(inout : *written)
      Body::run(context);
      return;
    }
    const char* const a = &variables_[size_t(uses[0].variable)];
    const char* const b = &variables_[size_t(uses[1].variable)];
#pragma omp task firstprivate(context) depend(in : *a, *b) depend(inout : *written)
    Body::run(context);
  }

  template <class Body>
  void push_and_wait(void* context, Uses uses) {
    push<Body>(context, uses);
    wait_all();
  }

  void wait_all() {
#pragma omp taskwait
  }

 private:
  const int threads_;
  const std::unique_ptr<char[]> variables_;  // depend looks at their addresses only
};

}  // namespace

const Contender openmp = contender<OpenMp>("OpenMP depend");

}  // namespace bench
