// SPDX-License-Identifier: Apache-2.0
//
// Streams, events and captures.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "fake.h"

namespace tenon::fake {
namespace {

thread_local int capture_mode = 0;  // of cuThreadExchangeStreamCaptureMode

Stream* make_stream(Context& context, bool is_blocking) {
  State& s = state();
  s.streams.push_back(std::make_unique<Stream>(Stream{.context = &context, .is_blocking = is_blocking}));
  s.streams.back()->priority = s.random();
  return s.streams.back().get();
}

CUresult wait_for(Call& call, const std::shared_ptr<Record>& record, const Context& context) {
  State& s = state();
  while (!record->done() && context.error == CUDA_SUCCESS) {
    if (go_on(call.lock)) continue;
    if (record->shared == nullptr && !counts_calls())
      s.changed.wait(call.lock);
    else
      s.changed.wait_for(call.lock, kPollOtherProcesses);
  }
  return context.error;
}

bool is_capturing(const Stream& stream) { return stream.capture != nullptr; }

// A blocking stream of the context captures, so that no work may go to the legacy stream.
Capture* implicit_capture(const Context& context) {
  for (auto& stream : state().streams) {
    if (is_ordered_with_legacy(*stream, context) && is_capturing(*stream)) return stream->capture.get();
  }
  return nullptr;
}

Event* find_event(CUevent handle) {
  auto found = state().events.find(handle);
  return found == state().events.end() ? nullptr : found->first;
}

// Null: the event has never been recorded.
std::shared_ptr<Record> last_record(const Event& event) {
  if (event.shared == nullptr) return event.last;
  return std::make_shared<Record>(Record{.shared = event.shared, .number = event.shared->issued.load()});
}

CUresult check_event(Event* event) {
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture == nullptr) return CUDA_SUCCESS;
  event->capture->is_valid = false;
  return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

// The moment of all streams of the context. A capture of one of them becomes invalid.
CUresult record_all(const Context& context, Record* record) {
  bool has_spoilt = false;
  for (auto& stream : state().streams) {
    if (stream->context != &context) continue;
    if (is_capturing(*stream)) {
      stream->capture->is_valid = false;
      has_spoilt = true;
    }
    if (stream->queue.empty()) continue;
    std::shared_ptr<Record>& last = stream->queue.back().completes;
    if (last == nullptr) last = std::make_shared<Record>();
    record->parts.push_back(last);
  }
  record->is_done = true;  // but for its parts
  return has_spoilt ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult spoil_capture_of(Stream& stream) {
  Capture* capture = is_capturing(stream) ? stream.capture.get() : nullptr;
  CUresult error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (&stream == stream.context->legacy) {
    capture = implicit_capture(*stream.context);
    error = kCaptureImplicit;
  }
  if (capture == nullptr) return CUDA_SUCCESS;
  capture->is_valid = false;
  return error;
}

uint64_t this_thread() {
  static std::atomic<uint64_t> n_threads = 0;
  thread_local uint64_t number = ++n_threads;
  return number;
}

void make_context(int device) {
  State& s = state();
  s.contexts.push_back(std::make_unique<Context>(Context{.device = device}));
  s.contexts.back()->legacy = make_stream(*s.contexts.back(), true);
}

void end_context(Context& context) {
  State& s = state();
  fail_context(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  context.error = CUDA_SUCCESS;
  context.legacy->capture.reset();
  size_t n_made = std::erase_if(s.streams, [&](const auto& stream) {
    return stream->context == &context && stream->is_made && !stream->is_destroyed;
  });
  s.counts["live.streams"] -= n_made;
  context.of_threads.clear();
  std::erase_if(s.streams, [&](const auto& stream) {
    return stream->context == &context && stream.get() != context.legacy;
  });
  auto is_ours = [&](const auto& event) { return event.second->context == &context; };
  s.counts["live.events"] -= std::erase_if(s.events, is_ours);
  for (auto block = s.blocks.begin(); block != s.blocks.end();) {
    uintptr_t base = (block++)->first;
    if (s.blocks.at(base).device == context.device) drop_block(base);
  }
}

Stream* find_stream(Context* context, CUstream handle) {
  auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= CU_STREAM_LEGACY) return context->legacy;
  if (number == CU_STREAM_PER_THREAD) {
    Stream*& stream = context->of_threads[this_thread()];
    if (stream == nullptr) stream = make_stream(*context, true);
    return stream;
  }
  for (auto& stream : state().streams) {
    if (stream.get() == handle && !stream->is_destroyed) return stream.get();
  }
  return nullptr;
}

bool spoil_captures() {
  bool has_spoilt = false;
  if (capture_mode == 2) return false;
  for (auto& stream : state().streams) {
    if (!is_capturing(*stream)) continue;
    Capture& capture = *stream->capture;
    bool is_ours = capture.thread == this_thread() && capture.mode != 2;
    bool is_everywhere = capture.mode == 0 && capture_mode == 0;
    if (!is_ours && !is_everywhere) continue;
    capture.is_valid = false;
    has_spoilt = true;
  }
  return has_spoilt;
}

// The functions of the driver.

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  TENON_FAKE_CALL(kContext);
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = make_stream(*call.context, flags == CU_STREAM_DEFAULT);
  (*stream)->is_made = true;
  ++s.counts["live.streams"];
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  TENON_FAKE_CALL(kDestroy);
  bool is_own = reinterpret_cast<uintptr_t>(handle) > CU_STREAM_PER_THREAD;
  Stream* stream = is_own ? find_stream(call.context, handle) : nullptr;
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->is_destroyed = true;
  stream->is_held = false;
  --s.counts["live.streams"];
  return call.failed;
}

CUresult cuStreamSynchronize(CUstream handle) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = find_stream(call.context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUresult error = spoil_capture_of(*stream);
  if (error != CUDA_SUCCESS) return error;
  if (spoil_captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto end = std::make_shared<Record>();
  Context& context = *stream->context;
  error = submit(*stream, {.name = "cuStreamSynchronize", .completes = end});
  return error == CUDA_SUCCESS ? wait_for(call, end, context) : error;
}

CUresult cuStreamQuery(CUstream handle) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = find_stream(call.context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUresult error = spoil_capture_of(*stream);
  if (error != CUDA_SUCCESS) return error;
  if (spoil_captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  bool is_idle = stream->queue.empty();
  if (stream == stream->context->legacy) {
    for (auto& other : s.streams) {
      is_idle = is_idle && (!is_ordered_with_legacy(*other, *stream->context) || other->queue.empty());
    }
  }
  return is_idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = find_stream(call.context, handle);
  Event* event = find_event(event_handle);
  if (stream == nullptr || event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  if (is_capturing(*stream) && event->capture != stream->capture) {
    stream->capture->is_valid = false;
    return kCaptureIsolation;
  }
  if (event->capture != nullptr && !is_capturing(*stream)) {
    stream->capture = event->capture;  // the stream joins
    return CUDA_SUCCESS;
  }
  std::shared_ptr<Record> record = last_record(*event);
  if (record == nullptr) return CUDA_SUCCESS;
  return submit(*stream, {.name = "cuStreamWaitEvent", .waits_for = record});
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = find_stream(call.context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream == call.context->legacy && implicit_capture(*call.context) != nullptr) return kCaptureImplicit;
  if (!is_capturing(*stream))
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
  else if (stream->capture->is_valid)
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  else
    *status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  TENON_FAKE_CALL(kNothing);
  if (*mode < 0 || *mode > 2) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  TENON_FAKE_CALL(kContext);
  bool is_shared = (flags & CU_EVENT_INTERPROCESS) != 0;
  if (flags > 7 || (is_shared && (flags & CU_EVENT_DISABLE_TIMING) == 0)) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<Event>(Event{.context = call.context, .flags = flags});
  *event = made.get();
  if (is_shared) {
    CUresult error = share_event(*made);
    if (error != CUDA_SUCCESS) return error;
  }
  s.events[made.get()] = std::move(made);
  ++s.counts["live.events"];
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  TENON_FAKE_CALL(kDestroy);
  Event* event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  s.events.erase(event);
  --s.counts["live.events"];
  return call.failed;
}

CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = find_stream(call.context, handle);
  Event* event = find_event(event_handle);
  if (stream == nullptr || event == nullptr || stream->context != event->context)
    return CUDA_ERROR_INVALID_HANDLE;
  auto record = std::make_shared<Record>();
  if (event->shared != nullptr && !is_capturing(*stream)) {
    *record = {.shared = event->shared, .number = event->shared->issued.load() + 1};
  }
  CUresult error = submit(*stream, {.name = "cuEventRecord", .completes = record});
  if (error != CUDA_SUCCESS) return error;
  event->capture = stream->capture;
  if (event->capture != nullptr) return CUDA_SUCCESS;
  event->last = record;
  if (event->shared != nullptr) {
    event->shared->pid = getpid();
    event->shared->issued = record->number;
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent handle) {
  TENON_FAKE_CALL(kContext);
  Event* event = find_event(handle);
  if (event == nullptr || event->context != context) return CUDA_ERROR_INVALID_HANDLE;
  if (context->error != CUDA_SUCCESS) return context->error;
  auto record = std::make_shared<Record>();
  const CUresult error = record_all(*context, record.get());
  if (error != CUDA_SUCCESS) return error;
  event->capture.reset();
  event->last = record;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  TENON_FAKE_CALL(kContext);
  auto record = std::make_shared<Record>();
  const CUresult error = record_all(*call.context, record.get());
  return error == CUDA_SUCCESS ? wait_for(call, record, *call.context) : error;
}

CUresult cuEventQuery(CUevent handle) {
  TENON_FAKE_CALL(kContext);
  Event* event = find_event(handle);
  CUresult error = check_event(event);
  if (error != CUDA_SUCCESS) return error;
  if (spoil_captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (event->context->error != CUDA_SUCCESS) return event->context->error;
  std::shared_ptr<Record> record = last_record(*event);
  if (record == nullptr || record->done()) return CUDA_SUCCESS;
  if (s.random() % 2 == 0) go_on(call.lock);  // its caller waits
  return CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  TENON_FAKE_CALL(kContext);
  Event* event = find_event(handle);
  CUresult error = check_event(event);
  if (error != CUDA_SUCCESS) return error;
  if (spoil_captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Context& context = *event->context;
  std::shared_ptr<Record> record = last_record(*event);
  return record == nullptr ? context.error : wait_for(call, record, context);
}

}  // namespace tenon::fake

using tenon::fake::Stream;

int fake_cuda_hold(void* handle) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = tenon::fake::find_stream(call.context, static_cast<tenon::fake::CUstream>(handle));
  if (stream == nullptr) return tenon::fake::CUDA_ERROR_INVALID_HANDLE;
  stream->is_held = true;
  return 0;
}

int fake_cuda_resume(void* handle) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = tenon::fake::find_stream(call.context, static_cast<tenon::fake::CUstream>(handle));
  if (stream == nullptr) return tenon::fake::CUDA_ERROR_INVALID_HANDLE;
  stream->is_held = false;
  s.work.notify_one();
  return 0;
}

int fake_cuda_launch(void* handle, int (*kernel)(void*), void* argument) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = tenon::fake::find_stream(call.context, static_cast<tenon::fake::CUstream>(handle));
  if (stream == nullptr) return tenon::fake::CUDA_ERROR_INVALID_HANDLE;
  return tenon::fake::submit(*stream, {"fake_cuda_launch", [=](std::unique_lock<std::mutex>& lock) {
                                         lock.unlock();
                                         int error = kernel(argument);
                                         lock.lock();
                                         return error;
                                       }});
}

int fake_cuda_begin_capture(void* handle, int mode) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = tenon::fake::find_stream(call.context, static_cast<tenon::fake::CUstream>(handle));
  if (stream == nullptr) return tenon::fake::CUDA_ERROR_INVALID_HANDLE;
  if (stream == call.context->legacy) return tenon::fake::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream->capture = std::make_shared<tenon::fake::Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = tenon::fake::this_thread();
  return 0;
}

int fake_cuda_end_capture(void* handle, uint64_t* n_captured) {
  TENON_FAKE_CALL(kContext);
  Stream* stream = tenon::fake::find_stream(call.context, static_cast<tenon::fake::CUstream>(handle));
  if (stream == nullptr || stream->capture == nullptr) return tenon::fake::CUDA_ERROR_INVALID_VALUE;
  auto capture = stream->capture;
  for (auto& joined : s.streams) {
    if (joined->capture == capture) joined->capture.reset();
  }
  if (n_captured != nullptr) *n_captured = capture->n_captured;
  return capture->is_valid ? 0 : tenon::fake::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}
