// SPDX-License-Identifier: Apache-2.0
//
// Memory that other processes use, too. What its queue grants to this process has then to pass the gate, where
// the processes take turns.
#pragma once

#include <cstdint>

#include "engine/claims.h"

namespace tenon::engine {

// What lets this process use some bytes beside the other processes: a number of the gate's own, counted by the
// entries and views that stand on it.
using Pass = uint32_t;
constexpr Pass kNoPass = 0;
// Of what a forked child has inherited: it uses the memory without a pass.
constexpr Pass kInheritedPass = UINT32_MAX;

// One for each shared storage. Lives as long as the process.
// Threads: any. No function is called with a queue's lock held, but share().
class Gate {
 public:
  // Waits until this process may use the bytes of the entry; then entry.pass is set, with one reference. Else
  // the refusal says why not. owner: of the claim, for the search for deadlocks.
  virtual bool enter(const Claim& claim, Entry& entry, const Deadline& deadline,
                     Refusal* refusal) noexcept = 0;

  // The same without waiting. kWaiting: arrive_at_gates(claim, entry's failure) is called once, later, from a
  // thread of the gate's. kRefused as enter().
  virtual Appended request(Claim& claim, Entry& entry, Refusal* refusal) noexcept = 0;
  // Takes back what request() has left waiting. False: it is called, or will be.
  virtual bool cancel(Entry& entry) noexcept = 0;

  // Another reference to a pass.
  virtual void share(Pass pass) noexcept = 0;
  // Gives a reference back; with the last one other processes may use the bytes. Never waits for them.
  // has_written: what held it was an entry for writing.
  virtual void leave(Pass pass, bool has_written) noexcept = 0;

  // A claim that has to pass several gates does so in this order, which is the same in every process.
  virtual bool precedes(const Gate& other) const noexcept = 0;

  // Moves with every write of every process.
  virtual uint64_t version() noexcept = 0;

 protected:
  ~Gate() = default;
};

}  // namespace tenon::engine
