// SPDX-License-Identifier: Apache-2.0
//
// The section "ops" of tenon.h.
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "array/access.h"
#include "array/lease.h"
#include "capi/boundary.h"
#include "capi/lease.h"
#include "exec/engine.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

namespace {

Op* unwrap(tenon_op* op) noexcept { return reinterpret_cast<Op*>(op); }
const Op* unwrap(const tenon_op* op) noexcept { return reinterpret_cast<const Op*>(op); }
tenon_op* wrap(Op* op) noexcept { return reinterpret_cast<tenon_op*>(op); }
const Failure* unwrap(const tenon_failure* failure) noexcept {
  return reinterpret_cast<const Failure*>(failure);
}
tenon_failure* wrap(Ref<Failure> failure) noexcept {
  return reinterpret_cast<tenon_failure*>(failure.detach());
}
tenon_failure* wrap_seen(Ref<Failure> failure) noexcept {
  if (failure) failure->mark_seen();
  return wrap(std::move(failure));
}

// The work of a caller in C and the arrays that it keeps. It is in the memory of its op.
struct PushedWork {
  void* context;
  void (*run_body)(void* context, tenon_op* op);
  void (*drop_context)(void* context);
  size_t n;
  Array* arrays[];  // references

  static void run(void* context, Op* op) {
    const auto& self = *static_cast<PushedWork*>(context);
    self.run_body(self.context, wrap(op));
  }
  static void drop(void* context) {
    auto* const self = static_cast<PushedWork*>(context);
    if (self->drop_context != nullptr) self->drop_context(self->context);
    self->release_arrays();
  }
  void release_arrays() noexcept {
    for (size_t i = 0; i < n; ++i) arrays[i]->release();
  }
};

// The flags of work, which callers from before 0.6 do not have.
uint32_t flags_of(const tenon_work& work) noexcept {
  return work.struct_size >= sizeof work ? work.flags : 0;
}

// A task that waits for an op. Zero memory is one that has not begun.
struct Await {
  Ref<Op> op;
  WaitNode node;
};

Await* unwrap(tenon_await* await) noexcept { return reinterpret_cast<Await*>(await); }
static_assert(sizeof(Await) <= sizeof(tenon_await) && alignof(Await) <= alignof(tenon_await));

void describe(const tenon_use& use, RequestPart& part) {
  const Array& array = *capi::unwrap(use.array);
  part.home = &array.storage().home();
  part.extent = array.extent();
  part.access = checked_access(use.access);
  part.is_overwrite = (use.flags & TENON_OVERWRITE) != 0 && array.is_dense();
}

// The uses of a call, if its arguments are valid.
std::span<const tenon_use> checked_uses(const tenon_work* work, int32_t n, const tenon_use* uses) {
  not_null(work, "work");
  check_struct_size(work->struct_size, offsetof(tenon_work, flags), "tenon_work");
  check_flags(flags_of(*work), TENON_NEEDS_LOCK, "tenon_work");
  not_null(reinterpret_cast<const void*>(work->run), "work->run");
  if (n < 0) throw_error(Code::kValue, "n is ", n, ": the number of uses cannot be negative");
  if (n > 0) not_null(uses, "uses");
  return {uses, static_cast<size_t>(n)};
}

void check(const tenon_work& work, const tenon_use& use) {
  const Array& array = *capi::unwrap(not_null(use.array, "array of a use"));
  check_flags(use.flags, TENON_OVERWRITE | TENON_BORROWED, "tenon_use");
  if (checked_access(use.access) == Access::kRead || !array.is_readonly()) return;
  throw_error(Code::kBuffer, "op '", work.name != nullptr ? work.name : "",
              "' cannot write the array of shape ", shape_text(array.shape()), ": it is read-only");
}

bool is_borrowed(const tenon_use& use) noexcept { return (use.flags & TENON_BORROWED) != 0; }

Ref<Op> make_op(const tenon_work& work, std::span<const tenon_use> uses) {
  size_t n = 0, n_kept = 0;
  for (const tenon_use& use : uses) {
    check(work, use);
    n += capi::unwrap(use.array)->size() != 0 ? 1 : 0;
    n_kept += is_borrowed(use) ? 0 : 1;
  }
  Ref<Op> op = Op::create({nullptr, PushedWork::run, PushedWork::drop}, std::max<size_t>(n, 1), work.name,
                          work.site, sizeof(PushedWork) + n_kept * sizeof(Array*));
  if (n == 0) op->parts[0].home = &Engine::instance().loose_home();
  if ((flags_of(work) & TENON_NEEDS_LOCK) != 0) op->traits = Request::kNeedsLock;
  auto* const pushed = new (op->context()) PushedWork{work.context, work.run, work.drop, n_kept};
  RequestPart* part = op->parts.data();
  Array** kept = pushed->arrays;
  for (const tenon_use& use : uses) {
    Array* const array = capi::unwrap(use.array);
    if (!is_borrowed(use)) {
      array->retain();
      *kept++ = array;
    }
    if (array->size() != 0) describe(use, *part++);
  }
  return op;
}

[[gnu::cold]] trace::Span begin_span(const Op& op, std::span<const tenon_use> uses) noexcept {
  return trace::open(trace::SpanKind::kOp, op.number(), [&](trace::Record& record) {
    record.index = op.number();
    trace::SpanText(record.name) << (op.name != nullptr ? op.name : "");
    trace::copy_end(record.site, op.site);
    trace::SpanText text(record.text);
    const char* before = "";
    for (const tenon_use& use : uses) {
      text << std::exchange(before, "; ") << third_person(static_cast<Access>(use.access)) << " ";
      describe(*capi::unwrap(use.array), text);
    }
  });
}

// The array of the conflict; null: not known.
const Array* array_in_question(const Conflict& conflict, std::span<const tenon_use> uses) {
  for (const tenon_use& use : uses) {
    const Array* const array = capi::unwrap(use.array);
    if (conflict.part != nullptr && conflict.part->home == &array->storage().home()) return array;
  }
  return nullptr;
}

}  // namespace

extern "C" {

tenon_status tenon_push(const tenon_work* work, int32_t n, const tenon_use* uses, tenon_op** out,
                        tenon_error* error) {
  return guarded(error, [&] {
    const std::span<const tenon_use> used = checked_uses(work, n, uses);
    const OnHost on_host = on_host_from(work->on_conflict);
    Ref<Op> op = make_op(*work, used);
    if (trace::is_on()) [[unlikely]]
      op->set_span(begin_span(*op, used));
    Conflict conflict;
    try {
      if (!Engine::instance().push(op, on_host, &conflict)) {
        throw_conflict(conflict, "push an op on", array_in_question(conflict, used));
      }
    } catch (...) {
      trace::drop(op->span(), op->number());
      static_cast<PushedWork*>(op->give_up())->release_arrays();
      throw;
    }
    if (out != nullptr) *out = wrap(op.detach());
  });
}

void tenon_op_complete(tenon_op* op) { unwrap(op)->complete(); }

void tenon_op_fail(tenon_op* op, int32_t op_code, const char* message, void* payload,
                   void (*drop_payload)(void*)) {
  Op& self = *unwrap(op);
  self.fail(Failure::make(Code::kOp, message != nullptr ? message : "", self.name, self.site, op_code,
                          payload, drop_payload));
}

int32_t tenon_op_has_views(const tenon_op* op) { return has_views(*unwrap(op)) ? 1 : 0; }

void tenon_op_retain(tenon_op* op) { unwrap(op)->retain(); }

void tenon_op_release(tenon_op* op) {
  if (op != nullptr) unwrap(op)->release();
}

int32_t tenon_op_is_done(const tenon_op* op) { return unwrap(op)->is_done() ? 1 : 0; }

tenon_status tenon_op_wait(tenon_op* op, int64_t timeout_ns, tenon_error* error) {
  return guarded(error, [&] {
    Op& self = *unwrap(not_null(op, "op"));
    Conflict conflict;
    if (!self.wait(Deadline(timeout_ns), &conflict)) throw_conflict(conflict, "wait for an op on", nullptr);
    if (self.failure()) throw OpFailure(self.failure());
  });
}

tenon_status tenon_op_on_done(tenon_op* op, void (*done)(void*), void* context, tenon_error* error) {
  struct TaskCall : DoneCall {
    void (*done)(void*);
    void* context_of_caller;
  };
  return guarded(error, [&] {
    not_null(op, "op");
    not_null(reinterpret_cast<const void*>(done), "done");
    auto* const call = new TaskCall;
    call->done = done;
    call->context_of_caller = context;
    call->context = call;
    call->call = [](void* self) {
      const std::unique_ptr<TaskCall> owned(static_cast<TaskCall*>(self));
      owned->done(owned->context_of_caller);
    };
    unwrap(op)->call_when_done(call);
  });
}

tenon_status tenon_await_begin(tenon_await* await, tenon_op* op, uint64_t task, tenon_error* error) {
  return guarded(error, [&] {
    not_null(await, "await");
    Op& self = *unwrap(not_null(op, "op"));
    if (unwrap(await)->op) throw_error(Code::kValue, "the await has begun already: end it first");
    if (self.is_done()) return;
    Conflict conflict;
    conflict.reason = Conflict::Reason::kInBody;
    if (this_thread.running != 0) throw_conflict(conflict, "wait for an op on", nullptr);
    auto* const fresh = new (await) Await;
    fresh->op = Ref<Op>::share(&self);
    fresh->node.actor = actor_of_task(task);
    fresh->node.is_thread = false;
    fresh->node.request = &self;
    WaitGraph& graph = WaitGraph::instance();
    graph.enter(&fresh->node);
    if (!graph.is_deadlock(fresh->node, &conflict.holder)) return;
    tenon_await_end(await);
    conflict.reason = Conflict::Reason::kDeadlock;
    throw_conflict(conflict, "wait for an op on", nullptr);
  });
}

void tenon_await_end(tenon_await* await) {
  if (await == nullptr || !unwrap(await)->op) return;
  WaitGraph::instance().leave(&unwrap(await)->node);
  unwrap(await)->op = {};
}

int32_t tenon_await_report(tenon_await* await, char* text, size_t size) {
  const bool has_begun = await != nullptr && unwrap(await)->op;
  return report_wait(has_begun ? &unwrap(await)->node : nullptr, text, size);
}

int32_t tenon_engine_help(void) {
  if (Engine::instance().has_own_threads()) return -1;
  return help() ? 1 : 0;
}

tenon_status tenon_wait_all(int64_t timeout_ns, tenon_error* error) {
  return guarded(error, [&] {
    Conflict conflict;
    if (Engine::instance().wait_all(Deadline(timeout_ns), &conflict)) return;
    throw_conflict(conflict, "wait for all ops on", nullptr);
  });
}

tenon_status tenon_array_wait(tenon_array* array, int32_t access, int64_t timeout_ns, tenon_error* error) {
  return guarded(error, [&] {
    Lease lease;
    LeaseFlags flags;
    flags.is_wait = true;
    lease.acquire(*capi::unwrap(not_null(array, "array")), checked_access(access), flags, current_actor(),
                  nullptr, Deadline(timeout_ns));
    lease.withdraw();
  });
}

tenon_failure* tenon_op_failure(tenon_op* op) {
  return unwrap(op)->is_done() ? wrap_seen(unwrap(op)->failure()) : nullptr;
}

tenon_failure* tenon_array_failure(tenon_array* array) {
  const Array& self = *capi::unwrap(array);
  return wrap_seen(failure_of(self.storage().home(), self.extent()));
}

int32_t tenon_array_has_value(tenon_array* array) {
  const Array& self = *capi::unwrap(array);
  return failure_of(self.storage().home(), self.extent()) ? 0 : 1;
}

void tenon_set_failure_hook(void (*report)(tenon_failure* failure)) {
  set_failure_hook(reinterpret_cast<FailureHook>(report));
}

void tenon_failures_report(void) { Failures::instance().report_rest(); }

tenon_failure* tenon_failures_take(void) { return wrap(Failures::instance().take()); }

void tenon_failure_release(tenon_failure* failure) {
  if (failure != nullptr) reinterpret_cast<Failure*>(failure)->release();
}

const char* tenon_failure_message(const tenon_failure* failure) { return unwrap(failure)->message.c_str(); }

const char* tenon_failure_op(const tenon_failure* failure) { return unwrap(failure)->op.c_str(); }

const char* tenon_failure_site(const tenon_failure* failure) { return unwrap(failure)->site.c_str(); }

int32_t tenon_failure_code(const tenon_failure* failure) { return unwrap(failure)->op_code; }

void* tenon_failure_payload(const tenon_failure* failure, void (*drop_payload)(void*)) {
  return unwrap(failure)->payload_with(drop_payload);
}

void tenon_array_clear_error(tenon_array* array) { (void)tenon_array_make_consistent(array, nullptr); }

tenon_status tenon_array_make_consistent(tenon_array* array, tenon_error* error) {
  return guarded(error, [&] {
    const Array& self = *capi::unwrap(not_null(array, "array"));
    Conflict conflict;
    if (clear_failures(self.storage().home(), self.extent(), &conflict)) return;
    throw_conflict(conflict, "clear the error of", &self);
  });
}

tenon_status tenon_engine_set(const char* name, int32_t workers, tenon_error* error) {
  return guarded(error, [&] { Engine::instance().set_executor(not_null(name, "name"), workers); });
}

void tenon_engine_name(char* buffer, size_t size) {
  copy_text("", buffer, size);
  (void)guarded(nullptr, [&] { copy_text(Engine::instance().executor_name(), buffer, size); });
}

void tenon_engine_set_limits(uint64_t ops, uint64_t nbytes) {
  Engine& engine = Engine::instance();
  engine.set_limits(ops != TENON_KEEP ? ops : engine.limit(),
                    nbytes != TENON_KEEP ? nbytes : engine.byte_limit());
}

uint64_t tenon_engine_unfinished(void) { return Engine::instance().unfinished(); }

tenon_status tenon_engine_wait_for_bodies(int64_t timeout_ns, tenon_error* error) {
  return guarded(error, [&] {
    if (!Engine::instance().wait_for_bodies(Deadline(timeout_ns))) {
      throw_error(Code::kTimeout, "bodies of ops still run");
    }
  });
}

tenon_status tenon_engine_shut_down(int64_t timeout_ns, tenon_error* error) {
  return guarded(error, [&] {
    Conflict conflict;
    if (Engine::instance().shut_down(Deadline(timeout_ns), &conflict)) return;
    throw_conflict(conflict, "end all ops on", nullptr);
  });
}

}  // extern "C"
