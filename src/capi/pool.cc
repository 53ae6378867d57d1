// SPDX-License-Identifier: Apache-2.0
//
// pool.h of the C ABI.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "array/shape.h"
#include "base/os.h"
#include "capi/boundary.h"
#include "ipc/pool_links.h"
#include "ipc/pool_servers.h"
#include "ipc/tensor_pool.h"

using namespace tenon::impl;
using capi::check_flags;
using capi::check_struct_size;
using capi::guarded;
using capi::list_of;
using capi::not_null;

namespace {

TensorPool& unwrap(tenon_tensor_pool* pool) { return *reinterpret_cast<TensorPool*>(not_null(pool, "pool")); }

std::span<const std::byte> bytes_in(const void* data, uint64_t nbytes) {
  return {static_cast<const std::byte*>(not_null(data, "data")), nbytes};
}

std::span<Array* const> arrays_in(tenon_array* const* arrays, uint32_t n) {
  for (tenon_array* const array : list_of(static_cast<int32_t>(n), arrays, "arrays"))
    not_null(array, "array");
  return {reinterpret_cast<Array* const*>(arrays), n};
}

SendOptions options_in(const tenon_message_options* given) {
  SendOptions options;
  if (given == nullptr) return options;
  check_struct_size(given->struct_size, sizeof *given, "tenon_message_options");
  options.opens = given->opens;
  options.timeout_ns = given->timeout_ns;
  if (given->tag != nullptr) options.tag = given->tag;
  options.site = given->site;
  for (const uint32_t pid :
       list_of(static_cast<int32_t>(given->n_receivers), given->receivers, "receivers")) {
    const os::Process process = os::process_of(pid);
    if (process.start == 0) {
      throw_error(Code::kNotFound, "there is no process ", pid, " to receive a message");
    }
    options.receivers.push_back(process);
  }
  return options;
}

}  // namespace

extern "C" {

tenon_status tenon_tensor_pool_create(const tenon_pool_options* options, tenon_tensor_pool** out,
                                      tenon_error* error) {
  return guarded(error, [&] {
    not_null(options, "options");
    not_null(out, "out");
    check_struct_size(options->struct_size, sizeof *options, "tenon_pool_options");
    check_flags(options->flags, TENON_POOL_PINNED | TENON_POOL_NOTES_REFUSALS, "tenon_tensor_pool_create");
    TensorPoolOptions known;
    known.budget_nbytes = options->budget_nbytes;
    known.idle_nbytes = options->idle_nbytes;
    known.timeout_ns = options->timeout_ns;
    known.is_pinned = (options->flags & TENON_POOL_PINNED) != 0;
    known.notes_refusals = (options->flags & TENON_POOL_NOTES_REFUSALS) != 0;
    Ref<TensorPool> pool = TensorPool::create(known);
    *out = reinterpret_cast<tenon_tensor_pool*>(pool.detach());
  });
}

void tenon_tensor_pool_retain(tenon_tensor_pool* pool) { reinterpret_cast<TensorPool*>(pool)->retain(); }
void tenon_tensor_pool_release(tenon_tensor_pool* pool) {
  if (pool != nullptr) reinterpret_cast<TensorPool*>(pool)->release();
}

tenon_status tenon_tensor_pool_empty(tenon_tensor_pool* pool, tenon_dtype dtype, int32_t ndim,
                                     const int64_t* shape, int64_t timeout_ns, tenon_array** out,
                                     tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    *out = capi::wrap(unwrap(pool).empty(dtype, checked_shape(ndim, shape), timeout_ns));
  });
}

tenon_status tenon_tensor_pool_freeze(tenon_tensor_pool* pool, tenon_array* array, tenon_array** out,
                                      tenon_error* error) {
  return guarded(error, [&] {
    not_null(array, "array");
    not_null(out, "out");
    *out = capi::wrap(unwrap(pool).freeze(*capi::unwrap(array)));
  });
}

int32_t tenon_tensor_pool_owns(tenon_tensor_pool* pool, const tenon_array* array) {
  int32_t result = 0;
  (void)guarded(nullptr, [&] {
    not_null(array, "array");
    result = unwrap(pool).owns(*capi::unwrap(array));
  });
  return result;
}

uint64_t tenon_message_nbytes(tenon_array* const* arrays, uint32_t n) {
  return most_nbytes_of_message({reinterpret_cast<Array* const*>(arrays), n});
}

tenon_status tenon_tensor_pool_send(tenon_tensor_pool* pool, tenon_array* const* arrays, uint32_t n,
                                    const tenon_message_options* options, void* data, uint64_t room,
                                    uint64_t* nbytes, tenon_error* error) {
  return guarded(error, [&] {
    not_null(data, "data");
    not_null(nbytes, "nbytes");
    *nbytes =
        unwrap(pool).send(arrays_in(arrays, n), options_in(options), {static_cast<std::byte*>(data), room});
  });
}

tenon_status tenon_message_open(const void* data, uint64_t nbytes, uint32_t flags, tenon_array** arrays,
                                uint32_t room, uint32_t* n, tenon_error* error) {
  return guarded(error, [&] {
    const std::span<const std::byte> bytes = bytes_in(data, nbytes);
    not_null(n, "n");
    check_flags(flags, TENON_READONLY, "tenon_message_open");
    const uint32_t wanted = count_of_arrays(bytes);
    if (wanted > room || (wanted != 0 && arrays == nullptr)) {
      throw_error(Code::kValue, "the message has ", wanted, " arrays, and there is room for ",
                  arrays == nullptr ? 0 : room);
    }
    std::vector<Ref<Array>> opened = open_message(bytes, (flags & TENON_READONLY) != 0);
    for (size_t i = 0; i < opened.size(); ++i) arrays[i] = capi::wrap(std::move(opened[i]));
    *n = static_cast<uint32_t>(opened.size());
  });
}

tenon_status tenon_message_key(const void* data, uint64_t nbytes, unsigned char key[32], tenon_error* error) {
  return guarded(error, [&] {
    key_of_message(bytes_in(data, nbytes), reinterpret_cast<std::byte*>(not_null(key, "key")));
  });
}

tenon_status tenon_tensor_pool_key(tenon_tensor_pool* pool, unsigned char key[32], tenon_error* error) {
  return guarded(error, [&] { unwrap(pool).key(reinterpret_cast<std::byte*>(not_null(key, "key"))); });
}

tenon_status tenon_tensor_pool_revoke(tenon_tensor_pool* pool, const char* tag, uint32_t* count,
                                      tenon_error* error) {
  return guarded(error, [&] {
    const uint32_t n = unwrap(pool).revoke(not_null(tag, "tag"));
    if (count != nullptr) *count = n;
  });
}

tenon_status tenon_message_revoke(const void* data, uint64_t nbytes, tenon_error* error) {
  return guarded(error, [&] { revoke_message(bytes_in(data, nbytes)); });
}

tenon_status tenon_message_take_over(const void* data, uint64_t nbytes, int64_t timeout_ns, int32_t* is_kept,
                                     tenon_error* error) {
  return guarded(error, [&] {
    const bool has_it = take_over_message(bytes_in(data, nbytes), timeout_ns);
    if (is_kept != nullptr) *is_kept = has_it ? 1 : 0;
  });
}

int32_t tenon_message_is_unopened(const void* data, uint64_t nbytes) {
  bool is_unopened = false;
  (void)guarded(nullptr, [&] { is_unopened = is_unopened_message(bytes_in(data, nbytes)); });
  return is_unopened ? 1 : 0;
}

static_assert(TENON_NO_GROUP == os::kNoGroup);

tenon_status tenon_tensor_pool_serve(tenon_tensor_pool* pool, const char* path, int32_t backlog,
                                     uint32_t group, tenon_pool_server** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    unwrap(pool).check_process();
    Ref<PoolServer> server = PoolServer::create(unwrap(pool), not_null(path, "path"), backlog, group);
    *out = reinterpret_cast<tenon_pool_server*>(server.detach());
  });
}

void tenon_pool_server_retain(tenon_pool_server* server) { reinterpret_cast<PoolServer*>(server)->retain(); }
void tenon_pool_server_release(tenon_pool_server* server) {
  if (server != nullptr) reinterpret_cast<PoolServer*>(server)->release();
}

tenon_status tenon_pool_attach(const char* path, int64_t timeout_ns, uint32_t group, tenon_pool_link** out,
                               tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    Ref<PoolLink> link = PoolLink::attach(not_null(path, "path"), timeout_ns, group);
    *out = reinterpret_cast<tenon_pool_link*>(link.detach());
  });
}

void tenon_pool_link_retain(tenon_pool_link* link) { reinterpret_cast<PoolLink*>(link)->retain(); }
void tenon_pool_link_release(tenon_pool_link* link) {
  if (link != nullptr) reinterpret_cast<PoolLink*>(link)->release();
}

tenon_status tenon_pool_link_offer(tenon_pool_link* link, tenon_tensor_pool* pool, tenon_error* error) {
  return guarded(error, [&] { reinterpret_cast<PoolLink*>(not_null(link, "link"))->offer(unwrap(pool)); });
}

tenon_status tenon_tensor_pool_stats(tenon_tensor_pool* pool, tenon_pool_stats* out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    const uint32_t room = out->struct_size;
    check_struct_size(room, offsetof(tenon_pool_stats, processes), "tenon_pool_stats");
    const TensorPoolStats now = unwrap(pool).stats();
    tenon_pool_stats stats{};
    stats.struct_size = room;
    stats.blocks = now.blocks;
    stats.budget_nbytes = unwrap(pool).options().budget_nbytes;
    stats.used_nbytes = now.used_nbytes;
    stats.idle_nbytes = now.idle_nbytes;
    stats.committed_nbytes = now.committed_nbytes;
    stats.messages = now.messages;
    stats.waiting = now.waiting;
    stats.processes = now.processes;
    stats.unopened = now.unopened;
    stats.unopened_nbytes = now.unopened_nbytes;
    stats.held = now.held;
    stats.held_nbytes = now.held_nbytes;
    stats.sent = now.sent;
    stats.sent_nbytes = now.sent_nbytes;
    stats.opened = now.opened;
    stats.expired = now.expired;
    stats.revoked = now.revoked;
    stats.receivers_gone = now.receivers_gone;
    stats.inlined = now.inlined;
    stats.inlined_nbytes = now.inlined_nbytes;
    stats.refused = now.refused;
    stats.waits = now.waits;
    stats.waited_ns = now.waited_ns;
    std::memcpy(out, &stats, std::min<size_t>(room, sizeof stats));
  });
}

tenon_status tenon_tensor_pool_note(tenon_tensor_pool* pool, uint64_t refused, uint64_t inlined,
                                    uint64_t inlined_nbytes, tenon_error* error) {
  return guarded(error, [&] { unwrap(pool).note({refused, inlined, inlined_nbytes}); });
}

uint32_t tenon_tensor_pools_linger(int64_t timeout_ns) {
  uint32_t left = 0;
  (void)guarded(nullptr, [&] { left = linger_for_messages(timeout_ns); });
  return left;
}

}  // extern "C"
