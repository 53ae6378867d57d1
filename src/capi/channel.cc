// SPDX-License-Identifier: Apache-2.0
//
// The section "channels" of share.h.
#include "ipc/channel.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "capi/boundary.h"
#include "capi/lease.h"
#include "ipc/lazy_copy.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

struct tenon_lent {
  tenon_lent(os::File copy, uint64_t offset, uint64_t nbytes) noexcept
      : file(std::move(copy)), pages(file, offset, nbytes) {}
  tenon_lent(const tenon_lent&) = delete;
  tenon_lent& operator=(const tenon_lent&) = delete;
  ~tenon_lent() { LentMappings::instance().remove(pages); }

  const os::File file;
  PrivatePages pages;
};

namespace {

Channel* unwrap(tenon_channel* channel) { return reinterpret_cast<Channel*>(channel); }
const Channel* unwrap(const tenon_channel* channel) { return reinterpret_cast<const Channel*>(channel); }
Item* unwrap(tenon_item* item) { return reinterpret_cast<Item*>(item); }
tenon_channel* wrap(Ref<Channel> channel) noexcept {
  return reinterpret_cast<tenon_channel*>(channel.detach());
}
tenon_item* wrap(Ref<Item> item) noexcept { return reinterpret_cast<tenon_item*>(item.detach()); }

ChannelPlan plan_in(const tenon_channel_options& options) {
  check_struct_size(options.struct_size, sizeof options, "tenon_channel_options");
  if (options.mode < 0 || options.mode > TENON_CHANNEL_LATEST) {
    throw_error(Code::kValue, "mode is ", options.mode, ": it must be one of TENON_CHANNEL_*");
  }
  if (options.when_full < 0 || options.when_full > TENON_WHEN_FULL_KEEP) {
    throw_error(Code::kValue, "when_full is ", options.when_full, ": it must be one of TENON_WHEN_FULL_*");
  }
  if (options.slots < 1) throw_error(Code::kValue, "a channel needs at least one slot, not ", options.slots);
  return {static_cast<uint32_t>(options.slots), static_cast<ChannelMode>(options.mode),
          static_cast<WhenFull>(options.when_full)};
}

// For calls with which programs poll. attempt() returns false if the timeout is 0 and there is nothing to do.
// This becomes TIMEOUT without an exception, which would take longer than the rest.
template <class Attempt>
tenon_status guarded_poll(tenon_error* error, const char* nothing, Attempt attempt) noexcept {
  bool has_done = true;
  const tenon_status status = guarded(error, [&] { has_done = attempt(); });
  return status != TENON_OK || has_done ? status : report(error, TENON_ERR_TIMEOUT, nothing);
}

// False: there was none.
bool give(Ref<Item> item, tenon_item** out) noexcept {
  if (!item) return false;
  *out = wrap(std::move(item));
  return true;
}

Ref<Item> lend(tenon_channel* channel, uint64_t nbytes, int64_t timeout_ns, const char* site) {
  const bool will_retry = timeout_ns == TENON_WILL_RETRY;
  return unwrap(channel)->loan(Deadline::from_first_look(will_retry ? 0 : timeout_ns), site, nbytes,
                               will_retry);
}

constexpr const char* kNoItem = "no item is ready to be received from the channel";
constexpr const char* kNoRoom = "no slot of the channel is free to be loaned";
constexpr const char* kNoBytes = "no slot of the channel with so many bytes is free to be loaned";

}  // namespace

extern "C" {

tenon_status tenon_channel_create(int32_t n, const tenon_field* fields, const tenon_channel_options* options,
                                  const tenon_shared_options* shared, tenon_channel** out,
                                  tenon_error* error) {
  return guarded(error, [&] {
    not_null(options, "options");
    not_null(out, "out");
    *out = wrap(Channel::create(list_of(n, fields, "fields"), plan_in(*options),
                                shared_options_in(shared, "tenon_channel_create", TENON_OPEN_EXISTING)));
  });
}

tenon_status tenon_channel_create_bytes(const tenon_channel_options* options, uint64_t nbytes,
                                        uint64_t largest, const tenon_shared_options* shared,
                                        tenon_channel** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(options, "options");
    not_null(out, "out");
    if (nbytes == 0) throw_error(Code::kValue, "a channel of bytes needs some for its items, not 0");
    ChannelPlan plan = plan_in(*options);
    plan.budget_nbytes = nbytes;
    plan.largest_nbytes = largest;
    *out = wrap(Channel::create_bytes(
        plan, shared_options_in(shared, "tenon_channel_create_bytes", TENON_OPEN_EXISTING)));
  });
}

tenon_status tenon_channel_open(tenon_array* memory, tenon_channel** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(memory, "memory");
    not_null(out, "out");
    *out = wrap(Channel::of(Ref<Array>::share(capi::unwrap(memory))));
  });
}

tenon_status tenon_channel_open_as(tenon_array* memory, uint32_t flags, tenon_channel** out,
                                   tenon_error* error) {
  return guarded(error, [&] {
    not_null(memory, "memory");
    not_null(out, "out");
    check_flags(flags, TENON_AWAIT_PRODUCERS | TENON_RECEIVE_LATEST, "tenon_channel_open_as");
    OpeningPlan opening;
    opening.awaits_crashed = (flags & TENON_AWAIT_PRODUCERS) != 0;
    opening.receives_latest = (flags & TENON_RECEIVE_LATEST) != 0;
    *out = wrap(Channel::of(Ref<Array>::share(capi::unwrap(memory)), opening));
  });
}

void tenon_channel_retain(tenon_channel* channel) { unwrap(channel)->retain(); }
void tenon_channel_release(tenon_channel* channel) {
  if (channel != nullptr) unwrap(channel)->release();
}

tenon_array* tenon_channel_memory(tenon_channel* channel) {
  return capi::wrap(Ref<Array>::share(&unwrap(channel)->memory()));
}

tenon_channel_options tenon_channel_describe(const tenon_channel* channel) {
  const ChannelPlan& plan = unwrap(channel)->plan();
  return {sizeof(tenon_channel_options), static_cast<int32_t>(plan.slots), static_cast<int32_t>(plan.mode),
          static_cast<int32_t>(plan.when_full)};
}

int32_t tenon_channel_field_count(const tenon_channel* channel) {
  return static_cast<int32_t>(unwrap(channel)->schema().fields().size());
}

tenon_field tenon_channel_field(const tenon_channel* channel, int32_t i) {
  if (i < 0 || i >= tenon_channel_field_count(channel)) return {};
  return unwrap(channel)->schema().fields()[static_cast<size_t>(i)].described();
}

tenon_status tenon_channel_loan(tenon_channel* channel, int64_t timeout_ns, const char* site,
                                tenon_item** out, tenon_error* error) {
  return guarded_poll(error, kNoRoom, [&] {
    not_null(channel, "channel");
    not_null(out, "out");
    return give(lend(channel, 0, timeout_ns, site), out);
  });
}

uint64_t tenon_channel_nbytes(const tenon_channel* channel, uint64_t* largest) {
  const ChannelPlan& plan = unwrap(channel)->plan();
  if (largest != nullptr) *largest = plan.largest_nbytes;
  return plan.budget_nbytes;
}

tenon_status tenon_channel_loan_bytes(tenon_channel* channel, uint64_t nbytes, int64_t timeout_ns,
                                      const char* site, tenon_item** out, tenon_error* error) {
  return guarded_poll(error, kNoBytes, [&] {
    not_null(channel, "channel");
    not_null(out, "out");
    if (!unwrap(channel)->plan().holds_bytes())
      throw_error(Code::kValue, "the items of the channel have fields: loan one without a number of bytes");
    return give(lend(channel, nbytes, timeout_ns, site), out);
  });
}

tenon_status tenon_item_set_nbytes(tenon_item* item, uint64_t nbytes, tenon_error* error) {
  return guarded(error, [&] { unwrap(not_null(item, "item"))->set_nbytes(nbytes); });
}

tenon_status tenon_item_send(tenon_item* item, tenon_error* error) {
  return guarded(error, [&] {
    Item& sent = *unwrap(not_null(item, "item"));
    sent.channel().send(sent);
  });
}

tenon_status tenon_channel_receive(tenon_channel* channel, int64_t timeout_ns, const char* site,
                                   tenon_item** out, tenon_error* error) {
  return guarded_poll(error, kNoItem, [&] {
    not_null(channel, "channel");
    not_null(out, "out");
    return give(unwrap(channel)->receive(Deadline::from_first_look(timeout_ns), site), out);
  });
}

tenon_status tenon_item_drop(tenon_item* item, tenon_error* error) {
  return guarded(error, [&] {
    Item& dropped = *unwrap(not_null(item, "item"));
    dropped.channel().drop(dropped);
  });
}

tenon_status tenon_item_put_back(tenon_item* item, tenon_error* error) {
  return guarded(error, [&] {
    Item& received = *unwrap(not_null(item, "item"));
    received.channel().put_back(received);
  });
}

tenon_status tenon_channel_wait(tenon_channel* channel, int64_t timeout_ns, tenon_error* error) {
  return guarded_poll(error, kNoItem, [&] {
    return unwrap(not_null(channel, "channel"))->wait_for_item(Deadline::from_first_look(timeout_ns));
  });
}

tenon_status tenon_channel_fd(tenon_channel* channel, int32_t access, int32_t* out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(channel, "channel");
    not_null(out, "out");
    *out = unwrap(channel)->descriptor(checked_access(access));
  });
}

tenon_status tenon_array_lazy_copy(tenon_array* array, int32_t copy, tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    if (copy != TENON_COPY_IF_NEEDED && copy != TENON_COPY_NEVER)
      throw_error(Code::kValue, "tenon_array_lazy_copy: copy is ", copy, ", not a mode for it");
    Ref<Array> made = lazy_copy(*unwrap(array), copy == TENON_COPY_IF_NEEDED);
    *out = made ? capi::wrap(std::move(made)) : nullptr;
  });
}

tenon_status tenon_mapping_lend(int fd, uint64_t offset, const void* data, uint64_t nbytes, tenon_lent** out,
                                tenon_error* error) {
  return guarded(error, [&] {
    not_null(data, "data");
    not_null(out, "out");
    const auto is_at_page = [](uint64_t at) { return at % os::page_nbytes() == 0; };
    if (nbytes == 0 || !is_at_page(offset) || !is_at_page(reinterpret_cast<uintptr_t>(data)))
      throw_error(Code::kValue, "tenon_mapping_lend: ", nbytes, " bytes from byte ", offset,
                  " of a file are no mapping: a mapping begins with a page");
    auto lent = std::make_unique<tenon_lent>(os::copy_of(fd), offset, nbytes);
    if (!LentMappings::instance().add(static_cast<const std::byte*>(data), nbytes, {&lent->pages, 0, true}))
      throw_error(Code::kValue, "tenon_mapping_lend: the mapping is lent already");
    *out = lent.release();
  });
}

void tenon_lent_release(tenon_lent* lent) { delete lent; }

tenon_status tenon_item_array(tenon_item* item, int32_t field, tenon_array** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(item, "item");
    not_null(out, "out");
    *out = capi::wrap(unwrap(item)->array(field));
  });
}

uint64_t tenon_item_sequence(const tenon_item* item) {
  return reinterpret_cast<const Item*>(item)->sequence();
}
void tenon_item_retain(tenon_item* item) { unwrap(item)->retain(); }
void tenon_item_release(tenon_item* item) {
  if (item != nullptr) unwrap(item)->release();
}

tenon_status tenon_channel_join(tenon_channel* channel, tenon_error* error) {
  return guarded(error, [&] { unwrap(not_null(channel, "channel"))->join(); });
}
void tenon_channel_close(tenon_channel* channel) { unwrap(channel)->close(); }

void tenon_channel_statistics_get(tenon_channel* channel, tenon_channel_statistics* out) {
  const uint32_t room = out->struct_size;
  if (room < offsetof(tenon_channel_statistics, refused)) return;
  const ChannelStatistics now = unwrap(channel)->statistics();
  const tenon_channel_statistics all{room,
                                     static_cast<int32_t>(now.ready),
                                     static_cast<int32_t>(now.in_use),
                                     static_cast<int32_t>(now.producers),
                                     static_cast<int32_t>(now.consumers),
                                     0,
                                     now.sent,
                                     now.received,
                                     now.dropped,
                                     now.deaths,
                                     now.refused,
                                     now.nbytes,
                                     now.used_nbytes,
                                     now.committed_nbytes,
                                     now.largest_sent_nbytes};
  std::memcpy(out, &all, std::min<size_t>(room, sizeof all));
}

}  // extern "C"
