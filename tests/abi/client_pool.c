/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of tensor pools from C, in one process. Several processes: src/ipc/tensor_pool_test.cc. */
#define _DEFAULT_SOURCE
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

static tenon_tensor_pool* new_pool(uint64_t budget) {
  tenon_pool_options options = {sizeof options, 0, budget, budget, -1};
  tenon_tensor_pool* pool = NULL;
  tenon_error error = TENON_ERROR_INIT;
  OK(tenon_tensor_pool_create(&options, &pool, &error));
  options.flags = TENON_POOL_NOTES_REFUSALS << 1;
  FAILS(TENON_ERR_VALUE, tenon_tensor_pool_create(&options, &pool, &error));
  tenon_graph_capture_begin();
  tenon_graph_capture_end();
  tenon_tensor_pool_retain(pool);
  tenon_tensor_pool_release(pool);
  return pool;
}

static void check_messages(tenon_tensor_pool* pool) {
  const int64_t shape[2] = {3, 4};
  tenon_message_options options = {sizeof options, 2, -1, NULL, 0, 0, "request", "client.c:1"};
  tenon_pool_stats stats;
  tenon_array *array = NULL, *frozen = NULL, *opened[2] = {NULL, NULL};
  unsigned char message[1024], key[32], other[32];
  uint64_t nbytes = 0;
  uint32_t n = 0;
  int32_t is_kept = 0;
  tenon_error error = TENON_ERROR_INIT;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  OK(tenon_tensor_pool_empty(pool, client_float32, 2, shape, 0, &array, &error));
  CHECK(tenon_tensor_pool_owns(pool, array) == 1);
  CHECK(tenon_message_nbytes(&array, 1) <= sizeof message);
  FAILS(TENON_ERR_VALUE, tenon_tensor_pool_send(pool, &array, 1, &options, message, 8, &nbytes, &error));
  OK(tenon_tensor_pool_freeze(pool, array, &frozen, &error));
  FAILS(TENON_ERR_MOVED,
        tenon_tensor_pool_send(pool, &array, 1, &options, message, sizeof message, &nbytes, &error));
  CHECK(tenon_tensor_pool_owns(pool, frozen) == 2 && tenon_tensor_pool_owns(pool, array) == 0);
  OK(tenon_tensor_pool_send(pool, &frozen, 1, &options, message, sizeof message, &nbytes, &error));
  OK(tenon_tensor_pool_stats(pool, &stats, &error));
  CHECK(stats.messages == 1 && stats.blocks == 1 && stats.used_nbytes == 4096);
  CHECK(stats.sent == 1 && stats.unopened == 1 && stats.unopened_nbytes == 48 && stats.held == 0);
  OK(tenon_tensor_pool_note(pool, 2, 1, 300, &error));
  OK(tenon_tensor_pool_stats(pool, &stats, &error));
  CHECK(stats.refused == 2 && stats.inlined == 1 && stats.inlined_nbytes == 300);
  stats.struct_size = (uint32_t)offsetof(tenon_pool_stats, processes); /* of a client of ABI 0.6 */
  stats.sent = 17;
  OK(tenon_tensor_pool_stats(pool, &stats, &error));
  CHECK(stats.sent == 17 && stats.blocks == 1);
  stats.struct_size -= 1;
  FAILS(TENON_ERR_VALUE, tenon_tensor_pool_stats(pool, &stats, &error));
  OK(tenon_tensor_pool_key(pool, key, &error));
  OK(tenon_message_key(message, nbytes, other, &error));
  CHECK(memcmp(key, other, sizeof key) == 0);
  CHECK(tenon_message_is_unopened(message, nbytes) == 1);
  OK(tenon_message_take_over(message, nbytes, -1, &is_kept, &error));
  CHECK(is_kept == 1);
  FAILS(TENON_ERR_VALUE, tenon_message_open(message, nbytes, 0, opened, 0, &n, &error));
  OK(tenon_message_open(message, nbytes, TENON_READONLY, opened, 2, &n, &error));
  CHECK(n == 1 && tenon_array_describe(opened[0])->shape[1] == 4);
  CHECK(n <= nbytes / TENON_MESSAGE_NBYTES_PER_ARRAY);
  CHECK(tenon_array_describe(opened[0])->data == tenon_array_describe(frozen)->data);
  CHECK(tenon_tensor_pools_linger(0) == 1);
  OK(tenon_tensor_pool_revoke(pool, "request", &n, &error));
  CHECK(n == 1 && tenon_message_is_unopened(message, nbytes) == 0);
  OK(tenon_message_revoke(message, nbytes, &error));
  tenon_array_release(opened[0]);
  tenon_array_release(frozen);
  tenon_array_release(array);
  CHECK(tenon_message_open(message, nbytes, 0, opened, 2, &n, &error) == TENON_ERR_GONE);
  CHECK(error.op_code == TENON_GONE_REVOKED);
  FAILS(TENON_ERR_VALUE, tenon_message_open(message, nbytes - 1, 0, opened, 2, &n, &error));
}

/* A process that attaches to its own pool has it already. */
static void check_serving(tenon_tensor_pool* pool, uint32_t group) {
  char path[] = "/tmp/tenon-client-XXXXXX.socket";
  tenon_pool_server* server = NULL;
  tenon_pool_link* link = NULL;
  tenon_error error = TENON_ERROR_INIT;
  const int file = mkstemps(path, 7);
  CHECK(file >= 0 && close(file) == 0);
  FAILS(TENON_ERR_SYSTEM,
        tenon_tensor_pool_serve(pool, path, 8, TENON_NO_GROUP, &server, &error)); /* it is no socket */
  CHECK(unlink(path) == 0);
  FAILS(TENON_ERR_VALUE, tenon_tensor_pool_serve(pool, "", 8, TENON_NO_GROUP, &server, &error));
  FAILS(TENON_ERR_NOT_FOUND, tenon_pool_attach(path, -1, TENON_NO_GROUP, &link, &error));
  FAILS(TENON_ERR_VALUE,
        tenon_tensor_pool_serve(pool, path, 8, UINT32_MAX - 1, &server, &error)); /* not in it */
  FAILS(TENON_ERR_VALUE, tenon_pool_attach(path, -1, UINT32_MAX - 1, &link, &error));
  OK(tenon_tensor_pool_serve(pool, path, 8, group, &server, &error));
  OK(tenon_pool_attach(path, -1, group, &link, &error));
  OK(tenon_pool_link_offer(link, pool, &error));
  tenon_pool_server_retain(server);
  tenon_pool_server_release(server);
  tenon_pool_link_retain(link);
  tenon_pool_link_release(link);
  tenon_pool_link_release(link);
  tenon_pool_link_release(NULL);
  tenon_pool_server_release(server);
  tenon_pool_server_release(NULL);
  CHECK(access(path, F_OK) != 0);
}

void client_pool(void) {
  tenon_tensor_pool* pool = new_pool(1 << 20);
  check_messages(pool);
  check_serving(pool, TENON_NO_GROUP);
  check_serving(pool, (uint32_t)getegid());
  tenon_tensor_pool_release(pool);
}
