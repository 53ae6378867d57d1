// SPDX-License-Identifier: Apache-2.0
//
// Ops as the bindings see them: a handle, and where the result of the body goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "function.h"
#include "ndarray.h"
#include "python.h"
#include "values.h"

namespace tenon::python {

// The result of a body, made when it is asked for. Counted; made with one reference. Threads: made under the
// GIL.
class Result {
 public:
  Result() = default;
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  virtual nb::object get() const = 0;
  // What it keeps, for the garbage collector: borrowed; null: nothing that could be in a cycle.
  virtual PyObject* kept() const noexcept { return nullptr; }
  void retain() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    // pairs with: Result::release, "the last use of a result"
    if (refs_.fetch_sub(1, std::memory_order_release) != 1) return;
    // pairs with: Result::release, "the last use of a result"
    (void)refs_.load(std::memory_order_acquire);
    delete this;
  }

 protected:
  virtual ~Result() = default;

 private:
  std::atomic<uint32_t> refs_{1};
};

struct ReleaseResult {
  void operator()(Result* result) const noexcept { result->release(); }
};
using ResultRef = std::unique_ptr<Result, ReleaseResult>;

// A task of asyncio that waits for an op, in the graph of waits, until end().
class NativeAwait {
 public:
  NativeAwait(tenon_op* op, uint64_t task);
  NativeAwait(const NativeAwait&) = delete;
  NativeAwait& operator=(const NativeAwait&) = delete;
  ~NativeAwait() { end(); }
  void end() noexcept;
  // As NativeLease.report.
  std::string report(bool is_in_words);

 private:
  tenon_await await_ = TENON_AWAIT_INIT;
};

// A pushed op: the native part of tenon.Op, which derives from it.
class NativeOp {
 public:
  // result: null for an op whose result is None.
  NativeOp(tenon_op* op, ResultRef result) noexcept;
  NativeOp(NativeOp&& other) noexcept;
  NativeOp& operator=(NativeOp&&) = delete;
  ~NativeOp();

  // Seconds; nothing is thrown for a failure of the op itself.
  void wait(Seconds timeout) const;
  bool is_done() const noexcept { return tenon_op_is_done(op_) != 0; }
  // Requires: it is done and has not failed.
  nb::object result() const { return result_ != nullptr ? result_->get() : nb::none(); }
  // For the garbage collector. No other NativeOp has this result.
  PyObject* kept_result() const noexcept { return result_ != nullptr ? result_->kept() : nullptr; }
  void drop_result() noexcept { result_.reset(); }
  nb::object failure() const;
  void on_done(nb::object function) const;
  const nb::object& name() const noexcept { return name_; }
  void set_name(nb::object name) noexcept { name_ = std::move(name); }
  // Fails with DeadlockError.
  std::unique_ptr<NativeAwait> begin_await(uint64_t task) const {
    return std::make_unique<NativeAwait>(op_, task);
  }

 private:
  tenon_op* op_;
  ResultRef result_;
  nb::object name_;
};

// Arrays that get new memory, for an op that overwrites them: (array, an array on the new memory). The arrays
// of each pair are swapped when the op has been accepted. Under the GIL.
class Renewals {
 public:
  explicit Renewals(const nb::list& pairs);
  // The memory that an NDArray has for the op.
  Array memory_of(PyObject* array) const;
  // Throws LeaseConflict if the program has a writable view of the old memory: what it writes there would be
  // lost.
  void check() const;
  // Called at the beginning of the op's body and after its push; the first call swaps. No other thread runs
  // Python meanwhile.
  void accept();

 private:
  std::vector<std::pair<nb::object, nb::object>> pairs_;
};

// Work, and its context until that is accepted by a push.
struct OwnedWork {
  OwnedWork() = default;
  OwnedWork(OwnedWork&& other) noexcept : work(std::exchange(other.work, {})) {}
  OwnedWork& operator=(OwnedWork&&) = delete;
  ~OwnedWork() {
    if (work.context != nullptr) work.drop(work.context);
  }

  tenon_work work{};
};

// The uses of an op, and references to its arrays.
struct Uses {
  std::vector<tenon_use> uses;
  std::vector<Array> arrays;

  void add(Array array, Access access, uint32_t flags = 0);
};

// What a push says of its op besides the body.
struct Push {
  Uses uses;
  const char* name;
  int32_t on_conflict;
  Renewals* renewals;  // may be null

  // That of an NDArray, as the op will find it.
  Array memory_of(nb::handle array) const {
    return renewals != nullptr ? renewals->memory_of(array.ptr()) : share(array.ptr());
  }
};

// Pushes what work describes, with the line of the program that does so. Throws when it is refused.
NativeOp push(OwnedWork owned, const Push& push, ResultRef result);

// The NumPy array that was given to from_numpy() is a view of ordinary code for as long as anything holds it:
// throws LeaseConflict then. name: of the op.
void check_original(const tenon_use& use, const char* name);

// An argument for a body in Python. The memory stands in the place of an NDArray, which may get other memory
// before the op runs.
struct BodyArgument {
  nb::object value;             // null for an NDArray
  Array memory;                 // of an NDArray
  nb::object output;            // the NDArray, if the function may write to it; else null
  bool is_overwritten = false;  // the function writes every element of the output
};

struct PythonCall {
  nb::object function;
  nb::object keywords;  // a tuple of the names of the last arguments
  nb::object check;     // called before the function, or null
  std::vector<BodyArgument> arguments;
  std::unique_ptr<Renewals> renewals;  // or null
};

// body.cc. Sets the renewals of push.
NativeOp push_python(PythonCall call, Push push);

// native_bodies.cc: bodies without Python, which run without the GIL. arguments: as of a call; NDArrays whose
// memory is renewed stand for the new one. Throws what such a call throws.
NativeOp push_function(const Function& function, const std::vector<nb::object>& arguments, Push push);
// destination[...] = value, destination[...] = source, where NumPy does nothing but that: no error, no
// warning and no conversion that has a choice. The arrays are among the uses.
std::optional<NativeOp> push_fill(const Array& destination, nb::handle value, const Push& push);
std::optional<NativeOp> push_plain_copy(const Array& source, const Array& destination, const Push& push);

// devices.cc: a copy by a stream.
NativeOp push_copy(const Array& source, const Array& destination, const Push& push);

// What tenon/_sync/pushes.py calls: push.cc.
void add_pushes(nb::module_& module);

}  // namespace tenon::python
