// SPDX-License-Identifier: Apache-2.0
//
// The op that copies an array. Where a device takes part it is an op on a stream: its body submits the copy.
#include <new>
#include <optional>

#include "array/access.h"
#include "array/device_copy.h"
#include "base/error.h"
#include "device/completions.h"
#include "exec/engine.h"

namespace tenon::impl {
namespace {

using device::Device;
using device::Status;

Ref<Failure> failure_of(const Error& error, const Op& op) noexcept {
  return Failure::make(error.code(), error.what(), op.name, op.site);
}

// Lies in the memory of its op.
struct CopyWork {
  device::Completion completion;  // first: the call has its address
  Op* op = nullptr;
  Ref<Array> src;  // as it is broadcast
  Ref<Array> dst;
  Ref<Array> between;               // between the two; null: none
  std::optional<DeviceCopy> first;  // of the host: none
  std::optional<DeviceCopy> second;

  static void run(void* context, Op* op);
  static void drop(void* context) { static_cast<CopyWork*>(context)->~CopyWork(); }
  static void done(device::Completion* completion, Status status) {
    reinterpret_cast<CopyWork*>(completion)->op->end_submitted(status);
  }
  void plan();
  void run_on_host();
  Status submit(const Events& events) noexcept;
};

// Fails where a copy cannot be submitted as a whole.
void CopyWork::plan() {
  if (!src->is_on_device() && !dst->is_on_device()) return;
  const uint32_t padding = dst->desc().flags & TENON_SUBBYTE_PADDED;
  if (src->is_on_device() && dst->is_on_device() && src->extent().overlaps(dst->extent())) {
    between = Array::create(src->dtype(), src->shape(), padding, dst->desc().device);
    first.emplace(*src, *between);
    second.emplace(*between, *dst);
  } else if (src->is_on_device() || can_copy_on_device(*src, *dst)) {
    second.emplace(*src, *dst);
  } else {
    between = Array::create(dst->dtype(), dst->shape(), padding);  // the body of the op casts there
    second.emplace(*between, *dst);
  }
}

void CopyWork::run_on_host() {
  if (dst->size() != 0) copy_on_host(*src, between ? *between : *dst);
}

Status CopyWork::submit(const Events& events) noexcept {
  Device& device = second->device();
  const device::Stream stream = device.stream(second->stream_kind());
  if (const Status s = wait_for(device, stream, events)) return s;
  if (first) {
    if (const Status s = first->submit()) return s;
  }
  return second->submit();
}

void CopyWork::run(void* context, Op* op) {
  auto* const self = static_cast<CopyWork*>(context);
  Status status = device::kOk;
  try {
    if (!self->first && (self->between || !self->second)) self->run_on_host();
    if (!self->second) return op->complete();
    const device::BeforeExit before_exit;
    if (!before_exit) throw_error(Code::kSystem, "the process is in exit(): no copy is submitted any more");
    Device& device = self->second->device();
    const device::Stream stream = device.stream(self->second->stream_kind());
    Events events;
    add_events_before(*op, &events);
    add_events_of(*self->src, Access::kRead, nullptr, &events);
    add_events_of(*self->dst, Access::kWrite, nullptr, &events);
    if (self->between) add_events_of(*self->between, Access::kWrite, nullptr, &events);
    self->completion.event = device.make_event(stream);
    const Device::Current current(device);
    status = self->submit(events);
    // Also after a failure: what was submitted before it uses the memory.
    const Status recorded = device.record(*self->completion.event);
    if (status == device::kOk) status = recorded;
    if (status == device::kOk) return op->submit(&self->completion);
    if (recorded == device::kOk) (void)self->completion.event->synchronise();
    op->fail(
        failure_of(device.error_of(status, concat("copy elements on ", device::text_of(device.id()))), *op));
  } catch (const Error& e) {
    op->fail(failure_of(e, *op));
  } catch (const std::bad_alloc&) {
    op->fail(Failure::without_memory());
  }
}

void describe(const Array& array, Access access, RequestPart& part) {
  part.home = &array.storage().home();
  part.extent = array.extent();
  part.access = access;
  part.is_overwrite = access == Access::kWrite && array.is_dense();
}

constexpr const char* kStreamNames[device::kStreamKinds] = {"host to device", "device to host",
                                                            "on the device", "memory"};

[[gnu::cold]] trace::Span begin_span(const Op& op, const Array& src, const Array& dst,
                                     const std::optional<DeviceCopy>& submitted) noexcept {
  return trace::open(trace::SpanKind::kOp, op.number(), [&](trace::Record& record) {
    record.index = op.number();
    trace::SpanText(record.name) << op.name;
    trace::copy_end(record.site, op.site);
    trace::SpanText text(record.text);
    text << "reads ";
    describe(src, text);
    text << "; writes ";
    describe(dst, text);
    if (submitted) {
      trace::SpanText(record.stream) << device::text_of(submitted->device().id()) << ", "
                                     << kStreamNames[static_cast<size_t>(submitted->stream_kind())];
    }
  });
}

}  // namespace

Ref<Op> push_copy(Array& src, Array& dst, OnHost on_host, const char* name, const char* site) {
  const Ref<Array> source = copy_source(src, dst);
  const bool is_empty = dst.size() == 0;
  Ref<Op> op = Op::create({nullptr, CopyWork::run, CopyWork::drop}, is_empty ? 1 : 2,
                          name != nullptr ? name : "copy", site, sizeof(CopyWork));
  auto* const work = new (op->context()) CopyWork;
  struct Discard {
    Op* op;
    ~Discard() {
      if (op == nullptr) return;
      trace::drop(op->span(), op->number());
      CopyWork::drop(op->give_up());
    }
  } discard{op.get()};
  work->op = op.get();
  work->completion.done = CopyWork::done;
  work->src = source;
  work->dst = Ref<Array>::share(&dst);
  if (is_empty) {
    op->parts[0].home = &Engine::instance().loose_home();
  } else {
    work->plan();
    describe(src, Access::kRead, op->parts[0]);
    op->parts[0].is_for_host = work->between && !work->first;  // the body casts on the host
    describe(dst, Access::kWrite, op->parts[1]);
  }
  if (work->second) op->traits = Request::kOnStream;
  if (trace::is_on()) [[unlikely]]
    op->set_span(begin_span(*op, src, dst, work->second));
  Conflict conflict;
  if (!Engine::instance().push(op, on_host, &conflict)) {
    const bool is_source = !is_empty && conflict.part == &op->parts[0];
    throw_conflict(conflict, "push a copy of", is_source ? &src : &dst);
  }
  discard.op = nullptr;
  return op;
}

}  // namespace tenon::impl
