/* SPDX-License-Identifier: Apache-2.0
 *
 * A C program that shares an arena with a Python program, by its name: arena_peer NAME attaches to it,
 * arena_peer NAME create makes it. Says a line when it has it; then takes one letter after another:
 *   f  adds 1 to all of features.A          c  fills counts.D with the sum of features.A, taken before
 *   h  holds counts until the next letter   q  ends */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static tenon_error error = TENON_ERROR_INIT;
static tenon_arena* arena = NULL;

static void need(tenon_status status) {
  if (status == TENON_OK) return;
  printf("error %d %s\n", (int)status, error.message);
  exit(1);
}

static void take(tenon_lease* lease, const char* layout, int32_t access) {
  tenon_lease_options options = {0};
  options.struct_size = sizeof options;
  options.access = access;
  options.timeout_ns = TENON_DEFAULT_TIMEOUT;
  options.site = "arena_peer.c";
  need(tenon_arena_use(arena, layout, &options, lease, &error));
}

static void* field(int32_t layout, int32_t which, int64_t* size) {
  tenon_array* array = NULL;
  void* data = NULL;
  need(tenon_arena_array(arena, layout, which, &array, &error));
  data = tenon_array_describe(array)->data;
  *size = tenon_array_describe(array)->size;
  tenon_array_release(array);
  return data;
}

static void make(const char* name) {
  const int64_t thousand[1] = {1000}, five[1] = {500};
  const tenon_dtype f4 = {TENON_FLOAT, 32, 1}, i4 = {TENON_INT, 32, 1};
  const tenon_field features[1] = {{"A", f4, 1, thousand}};
  const tenon_field counts[1] = {{"D", i4, 1, five}};
  const tenon_layout layouts[2] = {{"features", 1, 0, features}, {"counts", 1, 0, counts}};
  tenon_shared_options shared = {sizeof shared, 0, -1, 0, NULL, {0, 0}};
  shared.name = name;
  need(tenon_arena_create(2, layouts, &shared, &arena, &error));
}

int main(int argc, char** argv) {
  tenon_lease lease = TENON_LEASE_INIT;
  int64_t n = 0, i = 0;
  int letter = 0;
  if (argc < 2) return 2;
  if (argc > 2 && strcmp(argv[2], "create") == 0) {
    make(argv[1]);
  } else {
    tenon_array* memory = NULL;
    need(tenon_shared_attach(argv[1], 0, &memory, &error));
    need(tenon_arena_open(memory, &arena, &error));
    tenon_array_release(memory);
  }
  printf("has %d layouts of %d bytes\n", (int)tenon_arena_layout_count(arena),
         (int)tenon_arena_nbytes(arena));
  fflush(stdout);
  while ((letter = getchar()) != 'q' && letter != EOF) {
    if (letter == '\n') continue;
    tenon_lease_release(&lease);
    if (letter == 'f') {
      float* a = NULL;
      take(&lease, "features", TENON_WRITE);
      a = field(0, 0, &n);
      for (i = 0; i < n; ++i) a[i] += 1;
    } else if (letter == 'c') {
      const float* a = NULL;
      int32_t* d = NULL;
      float sum = 0;
      take(&lease, "features", TENON_READ);
      a = field(0, 0, &n);
      for (i = 0; i < n; ++i) sum += a[i];
      tenon_lease_release(&lease);
      take(&lease, "counts", TENON_WRITE);
      d = field(1, 0, &n);
      for (i = 0; i < n; ++i) d[i] = (int32_t)sum;
    } else if (letter == 'h') {
      take(&lease, "counts", TENON_WRITE);
      printf("holds\n");
      fflush(stdout);
      continue;
    }
    tenon_lease_release(&lease);
    printf("done %c\n", letter);
    fflush(stdout);
  }
  tenon_lease_release(&lease);
  tenon_arena_release(arena);
  return 0;
}
