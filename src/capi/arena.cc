// SPDX-License-Identifier: Apache-2.0
//
// The section "arenas" of share.h.
#include "ipc/arena.h"

#include "capi/boundary.h"
#include "capi/lease.h"

using namespace tenon::impl;        // NOLINT(google-build-using-namespace)
using namespace tenon::impl::capi;  // NOLINT(google-build-using-namespace)

namespace {

Arena* unwrap(tenon_arena* arena) { return reinterpret_cast<Arena*>(arena); }
const Arena* unwrap(const tenon_arena* arena) { return reinterpret_cast<const Arena*>(arena); }
tenon_arena* wrap(Ref<Arena> arena) noexcept { return reinterpret_cast<tenon_arena*>(arena.detach()); }

// Fails with kNotFound.
int32_t index_of(const Arena& arena, const char* layout) {
  const int32_t index = arena.find(layout);
  if (index >= 0) return index;
  std::string names;
  for (const auto& known : arena.layouts()) names += (names.empty() ? "" : ", ") + known.name;
  throw_error(Code::kNotFound, "the arena has no layout '", layout, "', but ", names);
}

// nullptr: there is no such layout.
const NamedFields* find(const tenon_arena* arena, int32_t layout) noexcept {
  const auto& layouts = unwrap(arena)->layouts();
  return layout >= 0 && layout < static_cast<int32_t>(layouts.size()) ? &layouts[static_cast<size_t>(layout)]
                                                                      : nullptr;
}

// nullptr: there is no such field.
const SchemaField* find(const tenon_arena* arena, int32_t layout, int32_t field) noexcept {
  const NamedFields* const found = find(arena, layout);
  const bool is_there =
      found != nullptr && field >= 0 && field < static_cast<int32_t>(found->fields->fields().size());
  return is_there ? &found->fields->fields()[static_cast<size_t>(field)] : nullptr;
}

}  // namespace

extern "C" {

tenon_status tenon_arena_create(int32_t n, const tenon_layout* layouts, const tenon_shared_options* options,
                                tenon_arena** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(out, "out");
    SharedOptions shared;
    if (options != nullptr) shared = shared_options_in(options, "tenon_arena_create");
    *out = wrap(Arena::create(list_of(n, layouts, "layouts"), options != nullptr ? &shared : nullptr));
  });
}

tenon_status tenon_arena_over(int32_t n, const tenon_layout* layouts, tenon_array* buffer, tenon_arena** out,
                              tenon_error* error) {
  return guarded(error, [&] {
    not_null(buffer, "buffer");
    not_null(out, "out");
    *out = wrap(Arena::over(list_of(n, layouts, "layouts"), Ref<Array>::share(capi::unwrap(buffer))));
  });
}

tenon_status tenon_arena_open(tenon_array* memory, tenon_arena** out, tenon_error* error) {
  return guarded(error, [&] {
    not_null(memory, "memory");
    not_null(out, "out");
    *out = wrap(Arena::of(Ref<Array>::share(capi::unwrap(memory))));
  });
}

void tenon_arena_retain(tenon_arena* arena) { unwrap(arena)->retain(); }
void tenon_arena_release(tenon_arena* arena) {
  if (arena != nullptr) unwrap(arena)->release();
}

tenon_array* tenon_arena_memory(tenon_arena* arena) {
  Array* const memory = unwrap(arena)->memory();
  return memory == nullptr ? nullptr : capi::wrap(Ref<Array>::share(memory));
}

tenon_array* tenon_arena_data(tenon_arena* arena) {
  return capi::wrap(Ref<Array>::share(&unwrap(arena)->data()));
}

uint64_t tenon_arena_nbytes(const tenon_arena* arena) { return unwrap(arena)->nbytes(); }
uint64_t tenon_arena_total_nbytes(const tenon_arena* arena) { return unwrap(arena)->total_nbytes(); }

int32_t tenon_arena_layout_count(const tenon_arena* arena) {
  return static_cast<int32_t>(unwrap(arena)->layouts().size());
}

tenon_layout tenon_arena_layout(const tenon_arena* arena, int32_t layout) {
  const NamedFields* const found = find(arena, layout);
  if (found == nullptr) return {};
  return {found->name.c_str(), static_cast<int32_t>(found->fields->fields().size()), 0, nullptr};
}

tenon_field tenon_arena_field(const tenon_arena* arena, int32_t layout, int32_t field) {
  const SchemaField* const found = find(arena, layout, field);
  if (found == nullptr) return {};
  return found->described();
}

int32_t tenon_arena_active(const tenon_arena* arena, uint64_t* generation) {
  if (generation != nullptr) *generation = unwrap(arena)->generation();
  return unwrap(arena)->active();
}

tenon_status tenon_arena_use(tenon_arena* arena, const char* layout, const tenon_lease_options* options,
                             tenon_lease* lease, tenon_error* error) {
  return guarded(error, [&] {
    not_null(arena, "arena");
    not_null(layout, "layout");
    const LeaseRequest request = lease_request(lease, options, "tenon_arena_use");
    const int32_t index = index_of(*unwrap(arena), layout);
    unwrap(arena)->use(lease_in(lease), index, request.access, request.flags, request.owner, options->site,
                       Deadline(options->timeout_ns));
  });
}

tenon_status tenon_arena_request(tenon_arena* arena, const tenon_lease_options* options, tenon_lease* lease,
                                 void (*done)(void*), void* context, int32_t* is_granted,
                                 tenon_error* error) {
  return guarded(error, [&] {
    not_null(arena, "arena");
    const LeaseRequest request = lease_request(lease, options, "tenon_arena_request");
    not_null(reinterpret_cast<const void*>(done), "done");
    not_null(is_granted, "is_granted");
    const bool is_held = unwrap(arena)->request(lease_in(lease), request.access, request.flags, request.owner,
                                                options->site, done, context);
    *is_granted = is_held ? 1 : 0;
  });
}

tenon_status tenon_arena_enter(tenon_arena* arena, const char* layout, tenon_lease* lease,
                               tenon_error* error) {
  return guarded(error, [&] {
    not_null(arena, "arena");
    not_null(layout, "layout");
    not_null(lease, "lease");
    auto* const held = reinterpret_cast<Lease*>(lease);
    const int32_t index = unwrap(arena)->find(layout);
    if (index < 0) held->withdraw();
    unwrap(arena)->enter(held, index_of(*unwrap(arena), layout));
  });
}

tenon_status tenon_arena_array(tenon_arena* arena, int32_t layout, int32_t field, tenon_array** out,
                               tenon_error* error) {
  return guarded(error, [&] {
    not_null(arena, "arena");
    not_null(out, "out");
    const SchemaField* const found = find(arena, layout, field);
    if (found == nullptr) {
      throw_error(Code::kIndex, "the arena has no field ", field, " in a layout ", layout);
    }
    *out = capi::wrap(found->array_in(unwrap(arena)->data()));
  });
}

}  // extern "C"
