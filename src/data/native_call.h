// SPDX-License-Identifier: Apache-2.0
//
// Calls a C function of any prototype that data/prototype.h reads, without a foreign-function library.
//
// It works because with the calling conventions below an argument's place depends only on its class:
// integers and pointers fill the integer registers in order, floating-point numbers fill the
// floating-point registers in order, and the rest goes to the stack, 8 bytes each, in order. So a
// call that fills all registers of both kinds and enough stack words is right for every prototype: a
// callee does not read what it does not expect, and the caller cleans up the stack.
//   x86-64: System V ABI, AMD64 supplement 1.0, 3.2.3 "Parameter Passing": 6 integer, 8 SSE registers.
//   AArch64: AAPCS64 2024Q3, 6.8.2 "Parameter passing rules": 8 integer, 8 floating-point registers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data/prototype.h"
#include "tenon/tenon.h"

namespace tenon::impl {

// Immutable after construction: threads may share one. Owns nothing.
class NativeCall {
 public:
  // Fails with kSystem on machines with another calling convention.
  NativeCall(void* address, const Prototype& prototype);

  // arguments: one for each parameter, integers within the range of their type. Calls in this thread.
  // Integer results are sign- or zero-extended; without a result the value is 0. If the function ends its
  // thread, the unwinding passes where this_thread.may_end, and otherwise the process ends.
  tenon_value operator()(const tenon_value* arguments) const;

 private:
  using Invoke = uint64_t (*)(void* address, const uint64_t* words);

  // How an argument becomes a word, and which word.
  struct Step {
    bool is_float32;
    uint8_t word;
  };

  void* address_;
  std::string name_;
  Invoke invoke_;
  std::vector<Step> steps_;
  DType result_dtype_;
  bool is_void_;
};

}  // namespace tenon::impl
