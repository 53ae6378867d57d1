// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <exec/static_thread_pool.hpp>
#include <new>
#include <stdexec/execution.hpp>

#include "cases.h"
#include "layer.h"

namespace bench {
namespace {

// The state of each scheduled op lies in the op, so that the pool allocates nothing.
class Stdexec {
  template <auto kRun>
  struct Receiver {
    using receiver_concept = stdexec::receiver_t;
    void* op;
    void set_value() noexcept { kRun(op); }
    void set_stopped() noexcept {}
  };

  using Scheduler = decltype(std::declval<exec::static_thread_pool&>().get_scheduler());
  using Sender = decltype(stdexec::schedule(std::declval<Scheduler&>()));
  template <auto kRun>
  using State = stdexec::connect_result_t<Sender, Receiver<kRun>>;

 public:
  struct alignas(std::max_align_t) Slot {
    std::byte state[192];
  };

  explicit Stdexec(int workers) : pool_(static_cast<uint32_t>(workers)), scheduler_(pool_.get_scheduler()) {}

  template <auto kRun>
  void post(Slot& slot, void* op) {
    static_assert(sizeof(State<kRun>) <= sizeof(Slot) && alignof(State<kRun>) <= alignof(Slot));
    static_assert(std::is_trivially_destructible_v<State<kRun>>);
    auto* const state =
        ::new (slot.state) State<kRun>(stdexec::connect(stdexec::schedule(scheduler_), Receiver<kRun>{op}));
    stdexec::start(*state);
  }

 private:
  exec::static_thread_pool pool_;
  Scheduler scheduler_;
};

}  // namespace

const Contender layer_on_stdexec = contender<Layer<Stdexec>>("layer on stdexec");

}  // namespace bench
