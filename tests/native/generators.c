/* SPDX-License-Identifier: Apache-2.0
 *
 * Generators and other functions for the Python tests of native functions and feeds. What a generator
 * writes follows from its arguments alone, so that a test can check every element. The gate holds threads
 * inside of the library until a test lets them go. Does not use Tenon.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { COLUMNS = 8 };

/* data (rows, 8), label (rows,): numbers that tell the batch, the row and the column. */
int fill(float* data, int64_t* label, size_t n, uint64_t index, uint64_t epoch) {
  for (size_t row = 0; row < n; ++row) {
    for (size_t column = 0; column < COLUMNS; ++column) {
      data[row * COLUMNS + column] = (float)(epoch * 10000 + index * 100 + row * 10 + column);
    }
    label[row] = (int64_t)(epoch * 10000 + index * 100 + row);
  }
  return 0;
}

int fill_seed(uint64_t* seeds, size_t n, uint64_t seed) {
  for (size_t row = 0; row < n; ++row) seeds[row] = seed + row;
  return 0;
}

/* A batch of large rows: only their first elements are written. */
int fill_label(int64_t* label, uint64_t index) {
  label[0] = (int64_t)index;
  return 0;
}

int fail_at(int64_t* label, uint64_t index, uint64_t epoch, uint64_t bad_index, int code) {
  label[0] = (int64_t)index;
  return epoch == 0 && index == bad_index ? code : 0;
}

/* Ends its thread where others return. */
int end_thread_at(int64_t* label, uint64_t index, uint64_t bad_index) {
  label[0] = (int64_t)index;
  if (index == bad_index) pthread_exit(NULL);
  return 0;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_open = true;
static int waiting = 0;
static int inside = 0;
static int most_inside = 0;

void set_gate(int open) {
  pthread_mutex_lock(&mutex);
  is_open = open != 0;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

void pass_gate(void) {
  pthread_mutex_lock(&mutex);
  ++waiting;
  pthread_cond_broadcast(&changed);
  while (!is_open) pthread_cond_wait(&changed, &mutex);
  --waiting;
  pthread_mutex_unlock(&mutex);
}

/* Returns when n threads wait at the closed gate. */
void await_waiting(int n) {
  pthread_mutex_lock(&mutex);
  while (waiting < n) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}

int fill_at_gate(int64_t* label, uint64_t index, uint64_t from) {
  if (index >= from) pass_gate();
  label[0] = (int64_t)index;
  return 0;
}

void write_at_gate(double* values, size_t n) {
  pass_gate();
  for (size_t i = 0; i < n; ++i) values[i] += 1;
}

/* Counts how many threads are inside at a time. */
int crowd(int64_t* label, uint64_t index) {
  pthread_mutex_lock(&mutex);
  if (++inside > most_inside) most_inside = inside;
  pthread_mutex_unlock(&mutex);
  nanosleep(&(struct timespec){0, 1000000}, NULL);  // others run meanwhile, also on a loaded machine
  pthread_mutex_lock(&mutex);
  --inside;
  pthread_mutex_unlock(&mutex);
  label[0] = (int64_t)index;
  return 0;
}

int32_t take_most_inside(void) {
  pthread_mutex_lock(&mutex);
  const int most = most_inside;
  most_inside = 0;
  pthread_mutex_unlock(&mutex);
  return most;
}

int scale(const float* source, float* destination, size_t n, float factor) {
  for (size_t i = 0; i < n; ++i) destination[i] = source[i] * factor;
  return 0;
}

int status(int code) { return code; }
int32_t number(int code) { return code; }
bool is_odd(unsigned x) { return x % 2 != 0; }
bool negated(bool x) { return !x; }
uint64_t largest(void) { return UINT64_MAX; }
double half(float x) { return x / 2.0; }
int8_t narrow(int8_t x) { return x; }
uint16_t wide(uint16_t x) { return x; }
int64_t is_null(const void* p) { return p == NULL; }
typedef struct {
  int64_t steps;
} counter_t;
uint64_t make_counter(void) { return (uint64_t)(uintptr_t)calloc(1, sizeof(counter_t)); }
void free_counter(counter_t* counter) { free(counter); }
int count_up(counter_t* counter, float* data, size_t n) {
  counter->steps++;
  for (size_t i = 0; i < n; ++i) data[i] = (float)counter->steps;
  return 0;
}
int64_t steps_of(const counter_t* counter) { return counter->steps; }

int64_t sum_bytes(const char* bytes, size_t n) {
  int64_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += (unsigned char)bytes[i];
  return sum;
}
void clear(void* bytes, size_t n) {
  for (size_t i = 0; i < n; ++i) ((unsigned char*)bytes)[i] = 0;
}
