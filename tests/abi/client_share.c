/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared arrays from C: made, named, sent, opened, leased. Two processes: tests/python and src/ipc. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

static void check_handles(void) {
  const int64_t shape[2] = {3, 4};
  const tenon_dtype f4 = {TENON_FLOAT, 32, 1};
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *array = NULL, *again = NULL, *plain = NULL;
  tenon_handle handle;
  uint32_t count = 0;
  int32_t is_kept = 0;
  CHECK(tenon_shared_create(f4, 2, shape, TENON_ZEROED, NULL, &array, &error) == TENON_OK);
  CHECK(tenon_array_is_shared(array));
  CHECK(tenon_shared_send(array, &handle, &error) == TENON_OK);
  CHECK(handle.nbytes > 0 && handle.nbytes <= TENON_MAX_HANDLE_NBYTES);
  CHECK(tenon_shared_open(handle.data, handle.nbytes, &again, &error) == TENON_OK);
  CHECK(tenon_array_describe(again)->data == tenon_array_describe(array)->data);
  CHECK(tenon_shared_open(handle.data, handle.nbytes - 1, &plain, &error) == TENON_ERR_VALUE &&
        plain == NULL);
  tenon_array_release(again);
  CHECK(tenon_shared_send(array, &handle, &error) == TENON_OK);
  CHECK(tenon_handle_limit(&handle, 0, 3600000000000, &error) == TENON_OK);
  CHECK(tenon_handle_limit(&handle, 0x7fffffff, -1, &error) == TENON_ERR_NOT_FOUND);
  CHECK(tenon_handle_is_unopened(handle.data, handle.nbytes) == 1);
  CHECK(tenon_handle_take_over(handle.data, handle.nbytes, 3600000000000, &is_kept, &error) == TENON_OK);
  CHECK(is_kept == 1);
  CHECK(tenon_shared_revoke(array, &count, &error) == TENON_OK && count == 1);
  CHECK(tenon_handle_is_unopened(handle.data, handle.nbytes) == 0);
  CHECK(tenon_handle_set_opens(&handle, 2, &error) == TENON_ERR_VALUE);
  CHECK(tenon_handle_take_over(handle.data, handle.nbytes, 0, &is_kept, &error) == TENON_OK && is_kept == 0);
  CHECK(tenon_shared_revoke(array, &count, &error) == TENON_OK && count == 0);
  CHECK(tenon_shared_send(array, &handle, &error) == TENON_OK);
  CHECK(tenon_handle_set_opens(&handle, 0xffff, &error) == TENON_ERR_VALUE);
  CHECK(tenon_handle_set_opens(&handle, 2, &error) == TENON_OK);
  for (int i = 0; i < 3; ++i) { /* one process counts once */
    CHECK(tenon_shared_open(handle.data, handle.nbytes, &again, &error) == TENON_OK);
    tenon_array_release(again);
  }
  CHECK(tenon_handle_is_unopened(handle.data, handle.nbytes) == 1);
  CHECK(tenon_shared_revoke(array, &count, &error) == TENON_OK && count == 1);
  tenon_array_release(array);
  CHECK(tenon_shared_open(handle.data, handle.nbytes, &plain, &error) == TENON_ERR_GONE ||
        plain != NULL); /* the memory is given back soon, not at once */
  tenon_array_release(plain);
  plain = NULL;
  handle.data[8] ^= 1; /* of another machine */
  CHECK(tenon_shared_receive(handle.data, handle.nbytes - 1, &plain, &error) == TENON_ERR_VALUE);
  CHECK(tenon_shared_receive(handle.data, handle.nbytes, &plain, &error) == TENON_OK);
  CHECK(tenon_array_describe(plain)->shape[1] == 4 && !tenon_array_is_shared(plain));
  CHECK(tenon_array_copy(plain, f4, &again, &error) == TENON_ERR_NOT_FOUND);
  tenon_array_release(plain);
  plain = NULL;
  CHECK(tenon_array_create(f4, 2, shape, (tenon_device){TENON_CPU, 0}, 0, &plain, &error) == TENON_OK);
  CHECK(!tenon_array_is_shared(plain));
  CHECK(tenon_shared_send(plain, &handle, &error) == TENON_ERR_TYPE);
  CHECK(tenon_shared_revoke(plain, NULL, &error) == TENON_ERR_TYPE);
  tenon_array_release(plain);
}

static void check_names(void) {
  const int64_t shape[1] = {5};
  const tenon_dtype i8 = {TENON_INT, 64, 1};
  tenon_shared_options options = {sizeof options, TENON_POPULATED, -1, 0, "tenon.abi_client", {TENON_CPU, 0}};
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *array = NULL, *attached = NULL;
  CHECK(tenon_shared_create(i8, 1, shape, TENON_ZEROED, &options, &array, &error) == TENON_OK);
  CHECK(tenon_shared_create(i8, 1, shape, 0, &options, &attached, &error) == TENON_ERR_VALUE);
  CHECK(strstr(error.message, "tenon.abi_client") != NULL);
  CHECK(tenon_shared_attach("tenon.abi_client", TENON_READONLY, &attached, &error) == TENON_OK);
  CHECK(tenon_array_describe(attached)->flags & TENON_READONLY);
  CHECK(tenon_array_describe(attached)->shape[0] == 5);
  tenon_array_release(attached);
  attached = NULL;
  CHECK(tenon_shared_attach("tenon.nobody", 0, &attached, &error) == TENON_ERR_NOT_FOUND);
  options.name = "a name";
  CHECK(tenon_shared_create(i8, 1, shape, 0, &options, &attached, &error) == TENON_ERR_VALUE);
  tenon_array_release(array);
}

static void check_turns(void) {
  const int64_t shape[1] = {5};
  const tenon_dtype i8 = {TENON_INT, 64, 1};
  tenon_error error = TENON_ERROR_INIT;
  tenon_array* array = NULL;
  tenon_view view = TENON_VIEW_INIT;
  tenon_lease lease = TENON_LEASE_INIT;
  tenon_lease_options options = {sizeof options,        TENON_WRITE, TENON_IGNORE_OWNER_DIED, 0, 0,
                                 TENON_DEFAULT_TIMEOUT, NULL};
  const int64_t before = tenon_set_lock_timeout(1000000000);
  CHECK(before == 5000000000);
  CHECK(tenon_shared_create(i8, 1, shape, TENON_ZEROED, NULL, &array, &error) == TENON_OK);
  CHECK(tenon_view_open(&view, array, TENON_READ, NULL, &error) == TENON_ERR_LEASE_CONFLICT);
  CHECK(tenon_lease_acquire(&lease, array, &options, &error) == TENON_OK);
  CHECK(tenon_view_open(&view, array, TENON_WRITE, NULL, &error) == TENON_OK);
  ((int64_t*)tenon_array_describe(array)->data)[4] = 4;
  tenon_view_close(&view);
  CHECK(tenon_lease_release(&lease) == 0);
  CHECK(tenon_set_lock_timeout(before) == 1000000000);
  tenon_array_release(array);
}

static void count_grants(void* context) { ++*(int*)context; }

/* As a task of an asynchronous program takes a layout: "features" is what the arena holds. */
static void check_requests(tenon_arena* arena) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_lease_options options = {sizeof options, TENON_WRITE, 0, 0, 0, TENON_DEFAULT_TIMEOUT, NULL};
  tenon_lease held = TENON_LEASE_INIT, lease = TENON_LEASE_INIT, reader = TENON_LEASE_INIT;
  int grants = 0, is_granted = 0;
  options.task = 6;
  CHECK(tenon_arena_request(arena, &options, &held, count_grants, &grants, &is_granted, &error) == TENON_OK);
  CHECK(is_granted == 1 && grants == 0);
  CHECK(tenon_arena_enter(arena, "features", &held, &error) == TENON_OK);
  options.task = 7;
  CHECK(tenon_arena_request(arena, &options, &lease, count_grants, &grants, &is_granted, &error) == TENON_OK);
  CHECK(is_granted == 0 && grants == 0);
  CHECK(tenon_lease_release(&held) == 0);
  CHECK(grants == 1);
  CHECK(tenon_arena_enter(arena, "sums", &lease, &error) == TENON_ERR_NOT_FOUND);
  options.access = TENON_READ;
  CHECK(tenon_arena_request(arena, &options, &reader, count_grants, &grants, &is_granted, &error) ==
        TENON_OK);
  CHECK(is_granted == 1); /* the other one is not held any more */
  CHECK(tenon_arena_enter(arena, "counts", &reader, &error) == TENON_ERR_LEASE_CONFLICT);
  CHECK(tenon_arena_enter(arena, "counts", &reader, &error) == TENON_ERR_VALUE); /* not held */
  CHECK(tenon_arena_request(arena, &options, &reader, NULL, NULL, &is_granted, &error) == TENON_ERR_VALUE);
}

static void check_arenas(void) {
  const int64_t seven[1] = {7}, three[1] = {3};
  const tenon_dtype f4 = {TENON_FLOAT, 32, 1}, i8 = {TENON_INT, 64, 1};
  const tenon_field features[2] = {{"A", f4, 1, seven}, {"B", f4, 0, NULL}};
  const tenon_field counts[1] = {{"D", i8, 1, three}};
  const tenon_layout layouts[2] = {{"features", 2, 0, features}, {"counts", 1, 0, counts}};
  tenon_shared_options shared = {sizeof shared, 0, -1, 0, NULL, {0, 0}};
  tenon_lease_options options = {sizeof options, TENON_WRITE, 0, 0, 0, TENON_DEFAULT_TIMEOUT, NULL};
  tenon_error error = TENON_ERROR_INIT;
  tenon_arena *arena = NULL, *again = NULL, *over = NULL, *none = NULL;
  tenon_array *memory = NULL, *a = NULL, *d = NULL, *data = NULL;
  tenon_lease lease = TENON_LEASE_INIT;
  uint64_t generation = 0;
  CHECK(tenon_arena_create(2, layouts, &shared, &arena, &error) == TENON_OK);
  CHECK(tenon_arena_nbytes(arena) == 68 && tenon_arena_total_nbytes(arena) == 68 + 24);
  CHECK(tenon_arena_layout_count(arena) == 2 && tenon_arena_layout(arena, 1).n == 1);
  CHECK(strcmp(tenon_arena_field(arena, 0, 1).name, "B") == 0);
  CHECK(tenon_arena_active(arena, NULL) == -1);
  memory = tenon_arena_memory(arena);
  CHECK(tenon_arena_open(memory, &again, &error) == TENON_OK);
  options.access = TENON_READ;
  CHECK(tenon_arena_use(arena, "counts", &options, &lease, &error) == TENON_ERR_LEASE_CONFLICT);
  CHECK(tenon_arena_use(arena, "sums", &options, &lease, &error) == TENON_ERR_NOT_FOUND);
  options.access = TENON_WRITE;
  CHECK(tenon_arena_use(arena, "counts", &options, &lease, &error) == TENON_OK);
  CHECK(tenon_arena_array(arena, 1, 0, &d, &error) == TENON_OK);
  CHECK(tenon_array_describe(d)->shape[0] == 3);
  CHECK(tenon_lease_release(&lease) == 0);
  CHECK(tenon_arena_active(again, &generation) == 1 && generation == 1);
  CHECK(tenon_arena_array(again, 0, 9, &a, &error) == TENON_ERR_INDEX && a == NULL);
  /* Writing that fails leaves no values: until another layout is written, or all of this one. */
  CHECK(tenon_arena_use(arena, "counts", &options, &lease, &error) == TENON_OK);
  (void)tenon_lease_fail(&lease, "no more");
  CHECK(tenon_arena_use(arena, "counts", &options, &lease, &error) == TENON_ERR_OP);
  CHECK(tenon_arena_use(arena, "features", &options, &lease, &error) == TENON_OK);
  CHECK(tenon_lease_release(&lease) == 0);
  CHECK(tenon_arena_active(again, &generation) == 0 && generation == 2);
  check_requests(arena);
  data = tenon_arena_data(arena);
  CHECK(tenon_array_describe(data)->nbytes == 68);
  CHECK(tenon_arena_over(2, layouts, data, &over, &error) == TENON_OK);
  CHECK(tenon_arena_memory(over) == NULL && tenon_arena_active(over, NULL) == -1);
  CHECK(tenon_arena_open(data, &none, &error) == TENON_ERR_VALUE && none == NULL);
  CHECK(strstr(error.message, "holds no arena") != NULL);
  tenon_arena_retain(arena);
  tenon_arena_release(arena);
  tenon_arena_release(over);
  tenon_arena_release(again);
  tenon_arena_release(arena);
  tenon_array_release(data);
  tenon_array_release(d);
  tenon_array_release(memory);
}

static int is_readable(int fd) {
  struct pollfd poller = {fd, POLLIN, 0};
  return poll(&poller, 1, 0) == 1;
}

/* Readable until there is nothing to do; then again when there is. */
static void check_descriptors(void) {
  const tenon_field field = {"k", {TENON_INT, 64, 1}, 0, NULL};
  const tenon_channel_options options = {sizeof options, 1, TENON_CHANNEL_QUEUE, TENON_WHEN_FULL_RAISE};
  tenon_error error = TENON_ERROR_INIT;
  tenon_channel* channel = NULL;
  tenon_item *item = NULL, *received = NULL, *none = NULL;
  int32_t items = -1, again = -1, room = -1;
  struct pollfd poller = {-1, POLLIN, 0};
  CHECK(tenon_channel_create(1, &field, &options, NULL, &channel, &error) == TENON_OK);
  CHECK(tenon_channel_fd(channel, 7, &items, &error) == TENON_ERR_VALUE);
  CHECK(tenon_channel_fd(channel, TENON_READ, &items, &error) == TENON_OK);
  CHECK(tenon_channel_fd(channel, TENON_READ, &again, &error) == TENON_OK && again == items);
  CHECK(tenon_channel_fd(channel, TENON_WRITE, &room, &error) == TENON_OK && room != items);
  CHECK(is_readable(items) && is_readable(room));
  CHECK(tenon_channel_loan(channel, 0, NULL, &item, &error) == TENON_OK);
  while (is_readable(items) || is_readable(room)) { /* what is known already may be told late */
    CHECK(tenon_channel_receive(channel, 0, NULL, &none, &error) == TENON_ERR_TIMEOUT);
    CHECK(tenon_channel_loan(channel, 0, NULL, &none, &error) == TENON_ERR_LEASE_CONFLICT);
  }
  CHECK(tenon_item_send(item, &error) == TENON_OK);
  tenon_item_release(item);
  poller.fd = items;
  CHECK(poll(&poller, 1, 20000) == 1);
  CHECK(tenon_channel_receive(channel, 0, NULL, &received, &error) == TENON_OK);
  tenon_item_release(received);
  poller.fd = room;
  CHECK(poll(&poller, 1, 20000) == 1);
  CHECK(tenon_channel_loan(channel, 0, NULL, &item, &error) == TENON_OK);
  tenon_item_release(item);
  tenon_channel_close(channel);
  CHECK(is_readable(items) && is_readable(room));
  CHECK(tenon_channel_receive(channel, 0, NULL, &none, &error) == TENON_ERR_CLOSED);
  CHECK(is_readable(items));
  tenon_channel_release(channel);
}

static void check_channels(void) {
  const int64_t four[1] = {4};
  const tenon_dtype f4 = {TENON_FLOAT, 32, 1}, i8 = {TENON_INT, 64, 1};
  const tenon_field fields[2] = {{"x", f4, 1, four}, {"k", i8, 0, NULL}};
  const tenon_channel_options options = {sizeof options, 2, TENON_CHANNEL_QUEUE, TENON_WHEN_FULL_WAIT};
  tenon_error error = TENON_ERROR_INIT;
  tenon_channel *channel = NULL, *again = NULL;
  tenon_item *item = NULL, *received = NULL;
  tenon_array *memory = NULL, *x = NULL;
  tenon_view view = TENON_VIEW_INIT;
  tenon_channel_statistics now;
  memset(&now, 0, sizeof now);
  now.struct_size = sizeof now;
  CHECK(tenon_channel_create(2, fields, &options, NULL, &channel, &error) == TENON_OK);
  CHECK(tenon_channel_describe(channel).slots == 2 && tenon_channel_field_count(channel) == 2);
  CHECK(strcmp(tenon_channel_field(channel, 1).name, "k") == 0);
  memory = tenon_channel_memory(channel);
  CHECK(tenon_channel_open(memory, &again, &error) == TENON_OK);
  tenon_channel_release(again);
  CHECK(tenon_channel_open_as(memory, 1u << 31, &again, &error) == TENON_ERR_VALUE);
  CHECK(tenon_channel_open_as(memory, TENON_AWAIT_PRODUCERS, &again, &error) == TENON_OK);
  CHECK(tenon_channel_join(again, &error) == TENON_OK);
  CHECK(tenon_channel_receive(again, 0, NULL, &received, &error) == TENON_ERR_TIMEOUT);
  CHECK(tenon_channel_wait(again, 1000000, &error) == TENON_ERR_TIMEOUT);
  CHECK(tenon_channel_loan(channel, 0, NULL, &item, &error) == TENON_OK);
  CHECK(tenon_item_drop(item, &error) == TENON_OK);
  CHECK(tenon_item_drop(item, &error) == TENON_ERR_VALUE);
  tenon_item_release(item);
  CHECK(tenon_channel_loan(channel, 0, NULL, &item, &error) == TENON_OK);
  CHECK(tenon_item_sequence(item) == 0);
  CHECK(tenon_item_array(item, 0, &x, &error) == TENON_OK);
  CHECK(tenon_item_array(item, 2, &memory, &error) == TENON_ERR_INDEX);
  CHECK(tenon_view_open(&view, x, TENON_WRITE, NULL, &error) == TENON_OK);
  ((float*)tenon_array_describe(x)->data)[3] = 3.5f;
  tenon_view_close(&view);
  tenon_array_release(x);
  CHECK(tenon_item_send(item, &error) == TENON_OK);
  CHECK(tenon_item_send(item, &error) == TENON_ERR_VALUE);
  tenon_item_release(item);
  CHECK(tenon_channel_receive(again, -1, NULL, &received, &error) == TENON_OK);
  CHECK(tenon_item_put_back(received, &error) == TENON_OK);
  CHECK(tenon_item_put_back(received, &error) == TENON_ERR_VALUE);
  tenon_item_release(received);
  CHECK(tenon_channel_receive(again, -1, NULL, &received, &error) == TENON_OK);
  tenon_item_retain(received);
  tenon_item_release(received);
  CHECK(tenon_item_sequence(received) == 1);
  CHECK(tenon_item_array(received, 0, &x, &error) == TENON_OK);
  tenon_item_release(received);
  CHECK(((const float*)tenon_array_describe(x)->data)[3] == 3.5f);
  tenon_channel_statistics_get(channel, &now);
  CHECK(now.sent == 1 && now.received == 1 && now.in_use == 1);
  CHECK(now.nbytes > 0 && now.used_nbytes > 0 && now.committed_nbytes >= now.used_nbytes);
  CHECK(now.largest_sent_nbytes > 0 && now.refused == 0);
  now.struct_size = (uint32_t)offsetof(tenon_channel_statistics, refused); /* of a client of ABI 0.6 */
  now.refused = 17;
  now.sent = 0;
  tenon_channel_statistics_get(channel, &now);
  CHECK(now.sent == 1 && now.refused == 17);
  now.struct_size -= 1;
  now.sent = 17;
  tenon_channel_statistics_get(channel, &now);
  CHECK(now.sent == 17);
  now.struct_size = sizeof now;
  tenon_array_release(x);
  tenon_channel_statistics_get(channel, &now);
  CHECK(now.in_use == 0);
  tenon_channel_retain(again);
  tenon_channel_release(again);
  tenon_channel_close(channel);
  CHECK(tenon_channel_receive(again, -1, NULL, &received, &error) == TENON_ERR_CLOSED);
  tenon_channel_close(again);
  tenon_channel_statistics_get(channel, &now);
  CHECK(now.consumers == 0);
  tenon_channel_release(again);
  tenon_channel_release(channel);
  tenon_array_release(memory);
}

static void check_channels_of_bytes(void) {
  const tenon_channel_options options = {sizeof options, 4, TENON_CHANNEL_QUEUE, TENON_WHEN_FULL_WAIT};
  tenon_error error = TENON_ERROR_INIT;
  tenon_channel* channel = NULL;
  tenon_item *item = NULL, *received = NULL;
  tenon_array* bytes = NULL;
  uint64_t largest = 0;
  CHECK(tenon_channel_create_bytes(&options, 0, 0, NULL, &channel, &error) == TENON_ERR_VALUE);
  CHECK(tenon_channel_create_bytes(&options, 1 << 20, 1 << 19, NULL, &channel, &error) == TENON_OK);
  CHECK(tenon_channel_nbytes(channel, &largest) == 1 << 20 && largest == 1 << 19);
  CHECK(tenon_channel_loan_bytes(channel, (1 << 19) + 1, 0, NULL, &item, &error) == TENON_ERR_VALUE);
  CHECK(tenon_channel_loan_bytes(channel, 100, 0, NULL, &item, &error) == TENON_OK);
  CHECK(tenon_item_set_nbytes(item, 100000, &error) == TENON_OK);
  CHECK(tenon_item_array(item, 0, &bytes, &error) == TENON_OK);
  memset(tenon_array_describe(bytes)->data, 7, 100000);
  tenon_array_release(bytes);
  CHECK(tenon_item_send(item, &error) == TENON_OK);
  CHECK(tenon_item_set_nbytes(item, 1, &error) == TENON_ERR_VALUE);
  tenon_item_release(item);
  CHECK(tenon_channel_receive(channel, 0, NULL, &received, &error) == TENON_OK);
  CHECK(tenon_item_array(received, 0, &bytes, &error) == TENON_OK);
  tenon_item_release(received);
  CHECK(tenon_array_describe(bytes)->nbytes == 100000);
  CHECK(((const char*)tenon_array_describe(bytes)->data)[99999] == 7);
  tenon_array_release(bytes);
  tenon_channel_release(channel);
}

static void check_observers(void) {
  const int64_t shape[1] = {5};
  const tenon_dtype i8 = {TENON_INT, 64, 1};
  const tenon_shared_options options = {sizeof options, 0, -1, 0, "tenon.abi_observed", {0, 0}};
  tenon_error error = TENON_ERROR_INIT;
  tenon_array* array = NULL;
  char* text = NULL;
  CHECK(tenon_shared_create(i8, 1, shape, TENON_ZEROED, &options, &array, &error) == TENON_OK);
  CHECK(tenon_shared_describe(&text, &error) == TENON_OK);
  CHECK(strstr(text, "\"name\": \"tenon.abi_observed\"") != NULL);
  tenon_text_free(text);
  tenon_text_free(NULL);
  CHECK(tenon_shared_collect(&text, &error) == TENON_OK);
  CHECK(strstr(text, "\"name\": \"tenon.abi_observed\"") != NULL);
  tenon_text_free(text);
  CHECK(tenon_shared_describe(NULL, &error) == TENON_ERR_VALUE);
  tenon_array_release(array);
}

static void count_call(void* context) { ++*(int*)context; }

/* The memory file of another library, which promises that nobody writes to it meanwhile. */
static void check_lazy_copies(void) {
  const int64_t shape[1] = {1 << 20};
  tenon_error error = TENON_ERROR_INIT;
  tenon_adoption adoption;
  tenon_array *array = NULL, *copy = NULL, *plain = NULL;
  tenon_lent *lent = NULL, *again = NULL;
  tenon_view view = TENON_VIEW_INIT;
  int calls = 0;
  const int fd = memfd_create("lent", MFD_CLOEXEC);
  unsigned char* data;
  CHECK(fd >= 0 && ftruncate(fd, shape[0]) == 0);
  data = mmap(NULL, (size_t)shape[0], PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(data != MAP_FAILED);
  data[5] = 7;
  CHECK(tenon_mapping_lend(fd, 0, data, (uint64_t)shape[0], &lent, &error) == TENON_OK);
  CHECK(tenon_mapping_lend(fd, 0, data, (uint64_t)shape[0], &again, &error) == TENON_ERR_VALUE);
  memset(&adoption, 0, sizeof adoption);
  adoption.struct_size = sizeof adoption;
  adoption.flags = TENON_READONLY;
  adoption.data = data;
  adoption.device = client_cpu;
  adoption.ndim = 1;
  adoption.dtype = (tenon_dtype){TENON_UINT, 8, 1};
  adoption.shape = shape;
  adoption.owner = &calls;
  adoption.deleter = count_call;
  CHECK(tenon_array_adopt(&adoption, &array, &error) == TENON_OK);
  CHECK(tenon_array_lazy_copy(array, TENON_COPY_NEVER, &copy, &error) == TENON_OK && copy != NULL);
  CHECK(tenon_view_open(&view, copy, TENON_WRITE, NULL, &error) == TENON_OK);
  ((unsigned char*)tenon_array_describe(copy)->data)[5] = 8;
  CHECK(data[5] == 7);
  tenon_view_close(&view);
  tenon_array_release(array);
  CHECK(calls == 0); /* the lazy copy keeps it */
  tenon_array_release(copy);
  CHECK(calls == 1);
  tenon_lent_release(lent);
  CHECK(tenon_array_create(client_float32, 1, (const int64_t[1]){4}, client_cpu, 0, &plain, &error) ==
        TENON_OK);
  copy = NULL;
  CHECK(tenon_array_lazy_copy(plain, TENON_COPY_IF_NEEDED, &copy, &error) == TENON_OK && copy == NULL);
  tenon_array_release(plain);
  CHECK(munmap(data, (size_t)shape[0]) == 0 && close(fd) == 0);
}

/* A lease that a dead writer has refused is used again for other memory: nothing remains of the refusal. */
static void check_refused_leases(void) {
  const int64_t shape[1] = {4};
  tenon_error error = TENON_ERROR_INIT;
  tenon_lease holder = TENON_LEASE_INIT, lease = TENON_LEASE_INIT;
  tenon_lease_options options;
  tenon_array *shared = NULL, *array = client_counting(1, 4);
  int32_t is_granted = 0;
  int called = 0;
  pid_t child;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.access = TENON_WRITE;
  options.timeout_ns = -1;
  CHECK(tenon_shared_create(client_float32, 1, shape, TENON_ZEROED, NULL, &shared, &error) == TENON_OK);
  child = fork();
  if (child == 0) _exit(tenon_lease_acquire(&holder, shared, &options, &error));
  CHECK(child > 0 && waitpid(child, NULL, 0) == child);
  FAILS(TENON_ERR_OWNER_DIED,
        tenon_lease_request(&lease, shared, &options, count_call, &called, &is_granted, &error));
  options.task = 1;
  OK(tenon_lease_request(&holder, array, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 1);
  options.task = 2;
  OK(tenon_lease_request(&lease, array, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 0 && tenon_lease_release(&holder) == 0 && called == 1);
  OK(tenon_lease_check(&lease, &error));
  CHECK(tenon_array_holders(array, 0, NULL) == 1);
  CHECK(tenon_lease_release(&lease) == 0);
  tenon_array_release(array);
  tenon_array_release(shared);
}

void client_share(void) {
  check_observers();
  check_lazy_copies();
  check_channels();
  check_channels_of_bytes();
  check_descriptors();
  check_arenas();
  check_handles();
  check_names();
  check_turns();
  check_refused_leases();
}
