// SPDX-License-Identifier: Apache-2.0
#include "array/dlpack_export.h"

#include <algorithm>
#include <new>
#include <string>

#include "array/access.h"
#include "array/device_copy.h"
#include "base/error.h"
#include "device/completions.h"

namespace tenon::impl::dlpack {
namespace {

DLTensor describe(const Array& array) {
  const tenon_array_desc& desc = array.desc();
  DLTensor tensor;
  tensor.data = desc.size == 0 ? nullptr : desc.data;
  tensor.device = {static_cast<DLDeviceType>(desc.device.type), desc.device.id};
  tensor.ndim = desc.ndim;
  tensor.dtype = {desc.dtype.code, desc.dtype.bits, desc.dtype.lanes};
  tensor.shape = const_cast<int64_t*>(desc.shape);
  tensor.strides = const_cast<int64_t*>(desc.strides);
  tensor.byte_offset = 0;
  return tensor;
}

// A read-only array is exported with the flag that says so.
Access access_of(const Array& source, uint32_t flags) noexcept {
  return source.is_readonly() || (flags & TENON_EXPORT_FOR_READ) != 0 ? Access::kRead : Access::kWrite;
}

// Tensor is one of the two structs of DLPack.
template <class Tensor>
struct Export {
  Tensor tensor;
  const Ref<Array> array;
  View view;

  Export(Array& source, uint32_t flags, const char* site) : tensor{}, array(Ref<Array>::share(&source)) {
    view.is_exported = true;
    open_view_of(source, view, access_of(source, flags), site);
    tensor.dl_tensor = describe(source);
    tensor.manager_ctx = this;
    tensor.deleter = [](Tensor* self) {
      if (self != nullptr) delete static_cast<Export*>(self->manager_ctx);
    };
  }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
  ~Export() { close_view(view); }
};

// What a consumer has submitted to its stream when its export ends. It stands in the queue until it is done.
class Rest final : public Request {
 public:
  Rest() noexcept : Request(HolderKind::kCall, {&part_, 1}) {
    name = "DLPack export";
    traits = kOnStream;
    is_detached.store(true, std::memory_order_relaxed);
  }
  void become_ready() noexcept override {}
  void refuse_at_gates(const Conflict&) noexcept override {}
  device::Event* event() const noexcept override { return completion_->event.get(); }

  void begin(const device::Completion* completion) noexcept {
    completion_ = completion;
    owner.number = actor_of_task(0).number;  // for messages
    since_ms = coarse_now_ms();
  }
  void end(device::Status status) noexcept {
    if (status != device::kOk) note_outcome(*this, failure_of(status));
    impl::release(*this);
  }

 private:
  Ref<Failure> failure_of(device::Status status) const noexcept {
    const device::Device& device = event()->device();
    std::string text;
    try {
      text = concat("work that a consumer had given to ", device::text_of(device.id()),
                    " failed: ", device.driver().text_of(status));
    } catch (const std::bad_alloc&) {
      // It fails without the reason.
    }
    return Failure::make(Code::kSystem, text.c_str(), name, nullptr);
  }

  RequestPart part_;
  const device::Completion* completion_ = nullptr;
};

// An export of memory on a device or of managed memory, for a consumer that uses it on a stream.
template <class Tensor>
struct StreamExport {
  Tensor tensor;
  Ref<Array> array;
  HostView view;
  device::Device& device;
  const device::Stream stream;  // null: the consumer orders its work itself
  const uint32_t thread;
  Rest rest;
  struct End : device::Completion {
    StreamExport* owner = nullptr;
  } end;

  StreamExport(Array& source, uint32_t flags, int64_t number, const char* site)
      : tensor{},
        array(Ref<Array>::share(&source)),
        device(device::Device::of({TENON_CUDA, source.desc().device.id})),
        stream(number != TENON_STREAM_NONE ? device.driver().stream_of(number) : nullptr),
        thread(this_thread_id()) {
    const Access access = access_of(source, flags);
    view.open_on(device, stream, source, access, site);
    if (stream != nullptr && source.size() != 0) order(access);
    tensor.dl_tensor = describe(source);
    tensor.manager_ctx = this;
    tensor.deleter = [](Tensor* self) {
      if (self != nullptr) static_cast<StreamExport*>(self->manager_ctx)->finish();
    };
    end.owner = this;
    end.done = [](device::Completion* completion, device::Status status) {
      StreamExport* const owner = static_cast<End*>(completion)->owner;
      owner->rest.end(status);
      delete owner;
    };
  }
  StreamExport(const StreamExport&) = delete;
  StreamExport& operator=(const StreamExport&) = delete;

 private:
  // What the consumer submits from now on comes after what uses the memory now.
  void order(Access access) {
    Events events;
    add_events_in(array->storage().home(), access, array->extent(), &events);
    if (!device.is_capturing(stream)) {
      add_events_of(*array, access, &view.view(), &events);
      const device::Device::Current current(device);
      if (const device::Status s = wait_for(device, stream, events))
        throw device.error_of(s, concat("order work on ", device::text_of(device.id())));
      return;
    }
    // A graph cannot wait for what was submitted outside of it.
    if (device::Event* const born = array->storage().born())
      events.push_back(Ref<device::Event>::share(born));
    for (const Ref<device::Event>& event : events) {
      if (!device.driver().is_pending(event->query())) continue;
      throw_error(Code::kBuffer, "cannot export the array of shape ", shape_text(array->shape()),
                  " to a stream of ", device::text_of(device.id()),
                  " that captures a graph: work on the array is not done; wait for it before the capture "
                  "begins, or export the array before");
    }
  }

  void finish() noexcept {
    if (stream != nullptr && array->size() != 0 && device.is_usable()) {
      try {
        end.event = device.record_foreign(stream, thread != this_thread_id());
      } catch (const std::exception&) {
        // The stream has failed or is gone, and its work with it.
      }
    }
    rest.begin(&end);
    end.is_armed.store(false, std::memory_order_relaxed);
    // First, so that it is told of before those that go on then.
    if (!end.event || !device::Completions::instance().add(&end)) {
      if (end.event) (void)end.event->synchronise();
      delete this;
      return;
    }
    (void)view.close(rest);
    // pairs with: Completions::tell, "the body of an op on a stream has returned"
    end.is_armed.store(true, std::memory_order_release);
  }
};

// Of the two kinds of export that of this array. stream: 0 for an export to the host.
template <class Tensor>
Tensor* make_export(Array& array, uint32_t flags, int64_t stream, const char* site) {
  const bool is_ordered = stream != TENON_STREAM_NONE && device::has_streams(array.desc().device);
  if (stream == 0 || !(is_ordered || array.is_on_device()))
    return &(new Export<Tensor>(array, flags, site))->tensor;
  return &(new StreamExport<Tensor>(array, flags, stream, site))->tensor;
}

}  // namespace

DLManagedTensorVersioned* export_versioned(Array& array, uint32_t flags, const char* site, int64_t stream) {
  auto* const tensor = make_export<DLManagedTensorVersioned>(array, flags, stream, site);
  tensor->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  if (array.is_readonly()) tensor->flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
  if ((flags & TENON_EXPORT_COPIED) != 0) tensor->flags |= DLPACK_FLAG_BITMASK_IS_COPIED;
  if ((array.desc().flags & TENON_SUBBYTE_PADDED) != 0) {
    tensor->flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
  }
  return tensor;
}

DLManagedTensor* export_legacy(Array& array, uint32_t flags, const char* site, int64_t stream) {
  if (array.is_readonly() && (flags & TENON_EXPORT_FOR_READ) == 0) {
    throw_error(Code::kBuffer,
                "a read-only array cannot be exported in the legacy DLPack struct, which cannot say so: "
                "ask for version 1.0 or later, or ",
                kHowToWrite);
  }
  if ((array.desc().flags & TENON_SUBBYTE_PADDED) != 0) {
    throw_error(Code::kBuffer, "padded ", array.dtype().name(),
                " elements cannot be exported in the legacy DLPack struct: ask for version 1.1 or later");
  }
  if (!array.is_contiguous() || std::ranges::equal(array.strides(), c_strides(array.shape()).dims()))
    return make_export<DLManagedTensor>(array, flags, stream, site);
  // MXNet takes any other stride of an axis of length 1 for a gap.
  return make_export<DLManagedTensor>(*reshape(array, array.shape(), TENON_COPY_NEVER), flags, stream, site);
}

}  // namespace tenon::impl::dlpack
