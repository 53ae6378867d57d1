// SPDX-License-Identifier: Apache-2.0
//
// engine.hpp - the part of tenon.hpp for leases and ops:
//
//     auto a = tenon::Array::empty<float>({1000});
//     tenon::push([](tenon::View<float, 1> out) { fill(out.span()); }, tenon::overwrite(a));
//     tenon::Op op = tenon::push([](tenon::View<const float, 1> in) { send(in.span()); }, tenon::read(a));
//     op.wait();
//
//     auto lease = a.write();
//     lease.view<float, 1>()(3) = 7;
//
// Functions throw tenon::Error, or tenon::OpError if an op has failed. docs/contract.md has the access rules.
#ifndef TENON_ENGINE_HPP_
#define TENON_ENGINE_HPP_

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tenon/tenon.h"
#include "tenon/tenon.hpp"

namespace tenon {
inline namespace api0 {

namespace detail {

// "loader.cc:12". A path that is too long is truncated at its beginning.
class Site {
 public:
  explicit Site(const std::source_location& where) noexcept {
    const char* const file = where.file_name();
    const size_t length = std::strlen(file);
    const size_t kept = std::min(length, sizeof text_ - 12);
    std::memcpy(text_, file + (length - kept), kept);
    text_[kept] = ':';
    *std::to_chars(text_ + kept + 1, text_ + sizeof text_ - 1, where.line()).ptr = '\0';
  }
  const char* text() const noexcept { return text_; }

 private:
  char text_[128];
};

}  // namespace detail

// ------------------------------------------------------------------------------------- leases

// A lease of an array, held from construction to release() or the end of the scope. Accesses of its thread to
// the array use the lease. Conflicting ops that are pushed meanwhile wait for it. If an exception leaves the
// scope of a write lease, the values are invalid until all of them are overwritten.
// It cannot be copied or moved, because the queue points to it: `auto lease = array.write();`. It allocates
// nothing. Threads: it belongs to the thread that took it. Any thread may call release, fail and detach.
class Lease {
 public:
  // Waits until the lease is granted. flags: TENON_OVERWRITE. Fails as tenon_lease_acquire.
  Lease(const Array& array, Access access, uint32_t flags = 0,
        std::chrono::nanoseconds timeout = default_timeout,
        std::source_location where = std::source_location::current())
      : array_(array), access_(access), site_(where) {
    auto options = detail::sized<tenon_lease_options>();
    options.access = static_cast<int32_t>(access);
    options.flags = flags;
    options.timeout_ns = detail::timeout_ns(timeout);
    options.site = site_.text();
    call(tenon_lease_acquire, &lease_, array.get(), &options);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    if (access_ == Access::kWrite && std::uncaught_exceptions() > exceptions_) {
      fail("the scope that wrote it was left by an exception");
    } else {
      (void)tenon_lease_release(&lease_);
    }
  }

  const Array& array() const noexcept { return array_; }

  // A typed view of the array. Destroy it before the lease is released. See Array::as.
  template <class T, size_t N, bool Checked = TENON_CHECKED_VIEWS>
  View<T, N, Checked> view() const {
    return array_.as<T, N, Checked>();
  }

  // Idempotent; never waits. Returns true if a view that was taken under the lease is still open. That view
  // continues the lease until it is destroyed: other threads wait for it.
  bool release() noexcept { return tenon_lease_release(&lease_) != 0; }
  // Releases a lease whose write was not completed; see above.
  void fail(const char* message) noexcept { (void)tenon_lease_fail(&lease_, message); }
  void fail(const std::string& message) noexcept { fail(message.c_str()); }
  // Removes the owner: any thread may release the lease, and deadlocks through it are not detected.
  void detach() noexcept { tenon_lease_detach(&lease_); }

 private:
  Array array_;
  Access access_;
  int exceptions_ = access_ == Access::kWrite ? std::uncaught_exceptions() : 0;
  detail::Site site_;
  tenon_lease lease_ = TENON_LEASE_INIT;
};

inline Lease Array::read(std::chrono::nanoseconds timeout, std::source_location where) const {
  return Lease(*this, Access::kRead, 0, timeout, where);
}
inline Lease Array::write(std::chrono::nanoseconds timeout, std::source_location where) const {
  return Lease(*this, Access::kWrite, 0, timeout, where);
}
inline Lease Array::overwrite(std::chrono::nanoseconds timeout, std::source_location where) const {
  return Lease(*this, Access::kWrite, TENON_OVERWRITE, timeout, where);
}

// ---------------------------------------------------------------------------------------- ops

// Work that was pushed. A default-constructed Op is empty and may only be assigned to, tested and destroyed.
// Destroying an Op has no effect on the work. Threads: as for handles of tenon.h.
class Op {
 public:
  Op() noexcept = default;
  // Takes over a reference that the caller owns.
  static Op steal(tenon_op* owned) noexcept {
    Op op;
    op.handle_ = decltype(handle_)(owned);
    return op;
  }

  tenon_op* get() const noexcept { return handle_.get(); }
  explicit operator bool() const noexcept { return get() != nullptr; }

  // Waits until the op is done. Without a timeout, this thread runs the op if it is ready. Fails with OpError
  // (the body, or memory that it reads, has failed), TIMEOUT, DEADLOCK, LEASE_CONFLICT (in the body of an
  // op).
  void wait(std::chrono::nanoseconds timeout = forever) const {
    call(tenon_op_wait, get(), detail::timeout_ns(timeout));
  }
  bool is_done() const noexcept { return tenon_op_is_done(get()) != 0; }
  // The reason why it has no result; empty if it is not done, or has succeeded.
  Failure failure() const { return Failure::steal(tenon_op_failure(get())); }

  // Calls function() once when the op is done, on the thread that ends it. If the op is already done, calls
  // it at once. An exception of function terminates the program. Fails with NO_MEMORY.
  template <class Function>
    requires std::invocable<Function&>
  void on_done(Function function) const {
    auto held = std::make_unique<Function>(std::move(function));
    const auto run = [](void* context) noexcept {
      const std::unique_ptr<Function> owned(static_cast<Function*>(context));
      (void)(*owned)();
    };
    call(tenon_op_on_done, get(), static_cast<void (*)(void*)>(run), static_cast<void*>(held.get()));
    (void)held.release();
  }

 private:
  detail::Handle<tenon_op, tenon_op_retain, tenon_op_release> handle_;
};

namespace detail {

// Fails an op with an exception.
inline void fail_with(tenon_op* op, const std::exception_ptr& cause) noexcept {
  std::unique_ptr<std::exception_ptr> payload;
  try {
    payload = std::make_unique<std::exception_ptr>(cause);
  } catch (const std::bad_alloc&) {
    // Without the payload: the text of the failure remains.
  }
  const auto fail = [&](int32_t op_code, const char* text) {
    const auto drop_payload = payload != nullptr ? drop<std::exception_ptr> : nullptr;
    tenon_op_fail(op, op_code, text, payload.release(), drop_payload);
  };
  try {
    std::rethrow_exception(cause);
  } catch (const Error& e) {
    fail(e.op_code(), e.what());
  } catch (const std::exception& e) {
    fail(0, e.what());
  } catch (...) {
    fail(0, "an exception that is no std::exception");
  }
}

}  // namespace detail

// Ends an op after its body has returned. As the last parameter of the body, it completes or fails the op
// later, on any thread. If it is destroyed without that, while the body does not run, the op fails. The first
// of complete, fail and an exception of the body takes effect; later ones have no effect. It can be moved,
// but not copied. Its holder may use the arrays of the op through Array::data() until the op is ended.
class Completion {
 public:
  Completion(Completion&&) noexcept = default;
  Completion& operator=(Completion&&) noexcept = default;

  void complete() noexcept {
    if (tenon_op* const op = take()) tenon_op_complete(op);
  }
  void fail(const char* message, int32_t op_code = 0) noexcept {
    if (tenon_op* const op = take()) tenon_op_fail(op, op_code, message, nullptr, nullptr);
  }
  void fail(const std::string& message, int32_t op_code = 0) noexcept { fail(message.c_str(), op_code); }
  // Fails the op with an exception, which becomes the cause.
  void fail(const std::exception_ptr& cause) noexcept {
    if (tenon_op* const op = take()) detail::fail_with(op, cause);
  }

 private:
  template <class Body, class Arrays>
  friend class PushedBody;

  // The op, until it has been ended. The token holds it, and the body holds it while it runs. The last
  // release fails an op that was not ended.
  struct State {
    explicit State(tenon_op* running) noexcept : op(running) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
      if (tenon_op* const left = take()) {
        tenon_op_fail(left, 0, "its completion was dropped: complete() or fail() was not called", nullptr,
                      nullptr);
      }
    }
    tenon_op* take() noexcept { return op.exchange(nullptr, std::memory_order_relaxed); }

    std::atomic<tenon_op*> op;
  };

  explicit Completion(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  tenon_op* take() noexcept {
    const std::shared_ptr<State> state = std::move(state_);
    return state != nullptr ? state->take() : nullptr;
  }

  std::shared_ptr<State> state_;
};

// The use of an array by an op: a parameter of push. where: the line of the program, for messages about the
// op.
template <Access kAccess>
struct Use {
  Array array;
  uint32_t flags;
  std::source_location where;
};

inline Use<Access::kRead> read(Array array, std::source_location where = std::source_location::current()) {
  return {std::move(array), 0, where};
}
// The op may read what it writes.
inline Use<Access::kWrite> write(Array array, std::source_location where = std::source_location::current()) {
  return {std::move(array), 0, where};
}
// The op writes every element before it reads any.
inline Use<Access::kWrite> overwrite(Array array,
                                     std::source_location where = std::source_location::current()) {
  return {std::move(array), TENON_OVERWRITE, where};
}

// The same without a type for the access, for a number of arrays that is known only at run time.
//     std::vector<tenon::AnyUse> uses;
//     for (const auto& part : parts) uses.push_back(tenon::read(part));
struct AnyUse {
  template <Access kAccess>
  AnyUse(Use<kAccess> use)  // NOLINT: implicit, so that read(), write() and overwrite() make it
      : array(std::move(use.array)), access(kAccess), flags(use.flags), where(use.where) {}

  Array array;
  Access access;
  uint32_t flags;
  std::source_location where;
};

// The behaviour if views of ordinary code conflict with an op.
enum class OnConflict : int32_t {
  kRaise = TENON_CONFLICT_RAISE,   // the push fails with LEASE_CONFLICT, and nothing is queued
  kWait = TENON_CONFLICT_WAIT,     // the op waits until the views are closed
  kIgnore = TENON_CONFLICT_IGNORE  // the caller promises not to use the views before the op is done
};

struct PushOptions {
  const char* name = "lambda";  // of the op, in messages
  OnConflict on_conflict = OnConflict::kRaise;
  std::source_location where = std::source_location::current();
};

namespace detail {

template <class... P>
struct BodyParameters {
  using Tuple = std::tuple<std::type_identity<P>...>;
  static constexpr size_t kCount = sizeof...(P);
  template <size_t I>
  using At = typename std::tuple_element_t<I, Tuple>::type;
};

// The parameters and the result of a function or of a class with one operator().
template <class C, class R, class... P>
std::pair<std::type_identity<R>, BodyParameters<P...>> signature_of(R (C::*)(P...));
template <class C, class R, class... P>
std::pair<std::type_identity<R>, BodyParameters<P...>> signature_of(R (C::*)(P...) const);
template <class R, class... P>
std::pair<std::type_identity<R>, BodyParameters<P...>> signature_of(R (*)(P...));

template <class Body>
struct SignatureOf;
template <class Body>
  requires requires { signature_of(&Body::operator()); }
struct SignatureOf<Body> {
  using Pair = decltype(signature_of(&Body::operator()));
};
template <class R, class... P>
struct SignatureOf<R (*)(P...)> {
  using Pair = decltype(signature_of(static_cast<R (*)(P...)>(nullptr)));
};
template <class R, class... P>
struct SignatureOf<R (*)(P...) noexcept> : SignatureOf<R (*)(P...)> {};

template <class Body>
concept HasSignature = requires { typename SignatureOf<Body>::Pair; };
template <class Body>
using ParametersOf = typename SignatureOf<Body>::Pair::second_type;
template <class Body>
using ResultOf = typename SignatureOf<Body>::Pair::first_type::type;

template <class Body>
constexpr bool takes_completion() {
  using P = ParametersOf<Body>;
  if constexpr (P::kCount > 0) {
    return std::is_same_v<std::remove_cvref_t<typename P::template At<P::kCount - 1>>, Completion>;
  }
  return false;
}

// A parameter of a body: how it is made from an array, and whether an array is valid for it.
template <class P>
struct Argument {
  static constexpr bool is_known = false;
};
template <>
struct Argument<Array> {
  static constexpr bool is_known = true;
  static constexpr Access kNeeds = Access::kRead;
  static const Array& from(const Array& array) noexcept { return array; }
  static void check(const Array&) noexcept {}
};
template <class T, size_t N, bool Checked>
struct Argument<View<T, N, Checked>> {
  static constexpr bool is_known = true;
  static constexpr Access kNeeds = std::is_const_v<T> ? Access::kRead : Access::kWrite;
  static View<T, N, Checked> from(const Array& array) { return View<T, N, Checked>(array); }
  static void check(const Array& array) { (void)View<T, N, Checked>::check(array); }
};

template <class P, Access kAccess>
void check_argument(const Array& array) {
  using A = Argument<std::remove_cvref_t<P>>;
  static_assert(A::is_known, "a body takes a View or const Array& for each use, then perhaps a Completion");
  if constexpr (A::is_known) {
    static_assert(A::kNeeds == Access::kRead || kAccess == Access::kWrite,
                  "read(array) is for View<const T, N>: use write(array) or overwrite(array)");
    A::check(array);
  }
}

}  // namespace detail

// The data of a pushed callable, until the op is done or the push is refused. Arrays: std::array, or
// std::vector if the number is known only at run time.
template <class Body, class Arrays>
class PushedBody {
 public:
  PushedBody(Body&& body, Arrays&& arrays) : body_(std::move(body)), arrays_(std::move(arrays)) {}

  // What comes out of it is the end of the thread, after which the engine fails the op.
  static void run(void* context, tenon_op* op) {
    auto& self = *static_cast<PushedBody*>(context);
    if constexpr (kIsAsynchronous) {
      self.start(op);
    } else {
      try {
        self.call_body();
        if (tenon_op_has_views(op) != 0) {
          throw Error(TENON_ERR_LEASE_ESCAPED,
                      "a view that the op's body took lives on after it: copy what is to be kept");
        }
      } catch (...) {
        const std::exception_ptr cause = std::current_exception();
        if (cause == nullptr) throw;  // the thread ends
        detail::fail_with(op, cause);
        return;
      }
      tenon_op_complete(op);
    }
  }
  static void drop(void* context) noexcept { delete static_cast<PushedBody*>(context); }

 private:
  using Parameters = detail::ParametersOf<Body>;
  static constexpr bool kIsAsynchronous = detail::takes_completion<Body>();
  static constexpr size_t kArguments = Parameters::kCount - (kIsAsynchronous ? 1 : 0);

  void start(tenon_op* op) {
    std::shared_ptr<Completion::State> state;
    try {
      state = std::make_shared<Completion::State>(op);
      call_body(Completion(state));
    } catch (...) {
      const std::exception_ptr cause = std::current_exception();
      tenon_op* const left = state != nullptr ? state->take() : op;
      if (cause == nullptr) throw;  // the thread ends
      if (left != nullptr) detail::fail_with(left, cause);
    }
  }

  template <size_t I>
  decltype(auto) argument() const {
    using Parameter = std::remove_cvref_t<typename Parameters::template At<I>>;
    if constexpr (std::is_same_v<Parameter, std::span<const Array>>) {
      return std::span<const Array>(arrays_);
    } else {
      return detail::Argument<Parameter>::from(arrays_[I]);
    }
  }

  template <class... Token>
  void call_body(Token&&... token) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      const auto run_body = [&] { return body_(argument<I>()..., std::forward<Token>(token)...); };
      if constexpr (std::is_void_v<detail::ResultOf<Body>>) {
        run_body();
      } else if (const int32_t status = run_body(); status != 0) {
        throw Error(TENON_ERR_OP, "its body returned " + std::to_string(status), status);
      }
    }(std::make_index_sequence<kArguments>());
  }

  Body body_;
  Arrays arrays_;
};

namespace detail {

template <class Body>
constexpr void check_signature() {
  static_assert(HasSignature<Body>, "the parameters of a body have types, not auto");
  using Result = ResultOf<Body>;
  static_assert(std::is_void_v<Result> || (std::is_same_v<Result, int> && !takes_completion<Body>()),
                "the result of a body is void, or int where it takes no Completion");
}

// The parameters of a body that are made from arrays.
template <class Body>
inline constexpr size_t arguments_of = ParametersOf<Body>::kCount - (takes_completion<Body>() ? 1 : 0);

template <class Body, class Arrays>
Op push_body(const PushOptions& options, Body&& body, Arrays&& arrays, std::span<const tenon_use> uses) {
  const Site site(options.where);
  auto pushed = std::make_unique<PushedBody<Body, Arrays>>(std::move(body), std::move(arrays));
  auto work = detail::sized<tenon_work>();
  work.on_conflict = static_cast<int32_t>(options.on_conflict);
  work.context = pushed.get();
  work.run = PushedBody<Body, Arrays>::run;
  work.drop = PushedBody<Body, Arrays>::drop;
  work.name = options.name;
  work.site = site.text();
  tenon_op* op = nullptr;
  call(tenon_push, static_cast<const tenon_work*>(&work), static_cast<int32_t>(uses.size()), uses.data(),
       &op);
  (void)pushed.release();
  return Op::steal(op);
}

}  // namespace detail

// Queues the op to[...] = from, and returns at once. Where a device takes part, the copy is made on a stream.
// Fails as tenon_push_copy.
inline Op push_copy(const PushOptions& options, const Array& from, const Array& to) {
  const detail::Site site(options.where);
  auto copy = detail::sized<tenon_copy_options>();
  copy.on_conflict = static_cast<int32_t>(options.on_conflict);
  copy.name = options.name;
  copy.site = site.text();
  return Op::steal(detail::call_for<tenon_op*>(tenon_push_copy, from.get(), to.get(),
                                               static_cast<const tenon_copy_options*>(&copy)));
}
inline Op push_copy(const Array& from, const Array& to,
                    std::source_location where = std::source_location::current()) {
  return push_copy(PushOptions{.name = "copy", .where = where}, from, to);
}

// Queues body as an op with the given uses of arrays, and returns at once. body is called once, on a thread
// of the engine, unless memory that it reads has failed. It is always destroyed once, before the op is done.
// Parameters of body: none; or for each use a View (of const elements if the op only reads) or a const
// Array&. A Completion may follow them if the op continues after the body has returned. Result of body: void,
// or an int that is not 0 for failure. An exception of any type is the failure of the op. So is
// pthread_exit, unless the body is noexcept, and a new thread takes the place of the ended one. On a thread
// of the caller (Op::wait, or an engine without threads of its own) the process ends with a message. The
// body may not wait, may not use other arrays and may not keep views. Fails with LEASE_CONFLICT, BUFFER (a
// write to a read-only array), TYPE and VALUE (an array that does not match the body's parameter), CLOSED.
template <class Body, Access... kAccess>
Op push(const PushOptions& options, Body body, Use<kAccess>... uses) {
  detail::check_signature<Body>();
  using Parameters = detail::ParametersOf<Body>;
  constexpr size_t kArguments = detail::arguments_of<Body>;
  constexpr size_t kUses = sizeof...(uses);
  static_assert(kArguments == 0 || kArguments == kUses, "a body takes one parameter for each use, or none");
  if constexpr (kArguments != 0) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      (detail::check_argument<typename Parameters::template At<I>, kAccess>(uses.array), ...);
    }(std::make_index_sequence<kUses>());
  }
  const std::array<tenon_use, kUses> described{
      tenon_use{uses.array.get(), static_cast<int32_t>(kAccess), uses.flags}...};
  return detail::push_body(options, std::move(body), std::array<Array, kUses>{std::move(uses.array)...},
                           described);
}

// The same for a number of arrays that is known only at run time. Parameters of body: none, or
// std::span<const Array> with the arrays in the order of the uses; a Completion may follow. Arrays that it
// writes must be named by write() or overwrite().
template <class Body>
Op push(const PushOptions& options, Body body, std::span<const AnyUse> uses) {
  detail::check_signature<Body>();
  constexpr size_t kArguments = detail::arguments_of<Body>;
  static_assert(kArguments <= 1,
                "a body takes std::span<const Array>, or nothing, then perhaps a Completion");
  if constexpr (kArguments == 1) {
    using Parameter = std::remove_cvref_t<typename detail::ParametersOf<Body>::template At<0>>;
    static_assert(std::is_same_v<Parameter, std::span<const Array>>,
                  "a body takes std::span<const Array>, or nothing, then perhaps a Completion");
  }
  std::vector<tenon_use> described;
  std::vector<Array> arrays;
  described.reserve(uses.size());
  arrays.reserve(uses.size());
  for (const AnyUse& use : uses) {
    described.push_back({use.array.get(), static_cast<int32_t>(use.access), use.flags});
    arrays.push_back(use.array);
  }
  return detail::push_body(options, std::move(body), std::move(arrays), described);
}

// The same. Messages name the line of the first use.
template <class Body, Access kFirst, Access... kAccess>
Op push(Body body, Use<kFirst> first, Use<kAccess>... uses) {
  const PushOptions options{.where = first.where};
  return push(options, std::move(body), std::move(first), std::move(uses)...);
}
template <class Body>
Op push(Body body, std::span<const AnyUse> uses) {
  PushOptions options;
  if (!uses.empty()) options.where = uses.front().where;
  return push(options, std::move(body), uses);
}
template <class Body>
  requires detail::HasSignature<Body>
Op push(Body body, std::source_location where = std::source_location::current()) {
  return push(PushOptions{.where = where}, std::move(body));
}

// ------------------------------------------------------------------------------------- engine

// Waits until all ops are done, and runs ops meanwhile. Does not throw for failed ops; see take_failure().
// Fails with TIMEOUT, DEADLOCK, LEASE_CONFLICT (in the body of an op).
inline void wait_all(std::chrono::nanoseconds timeout = forever) {
  call(tenon_wait_all, detail::timeout_ns(timeout));
}

// Takes the oldest failure; empty if there is none.
inline Failure take_failure() { return Failure::steal(tenon_failures_take()); }

// Selects the engine. name: "pool", "inline", "seeded:N" or "default". workers: 0 means one for each
// processor. Waits for all ops first. Fails with VALUE, TIMEOUT, DEADLOCK, LEASE_CONFLICT (in the body of an
// op), SYSTEM.
inline void set_engine(const char* name, int32_t workers = 0) { call(tenon_engine_set, name, workers); }
inline void set_engine(const std::string& name, int32_t workers = 0) { set_engine(name.c_str(), workers); }

inline std::string engine_name() {
  char buffer[64];
  tenon_engine_name(buffer, sizeof buffer);
  return buffer;
}

}  // namespace api0
}  // namespace tenon

#endif  // TENON_ENGINE_HPP_
