/* SPDX-License-Identifier: Apache-2.0
 *
 * What ctypes cannot do for the tests: threads that never heard of Python, calls after the interpreter has
 * ended, a DLPack producer whose deleter needs no Python, and slots of an exchange table that fail. Built by
 * native.py at run time. The names that begin with Py are found in the running interpreter.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void* PyExc_BufferError;
extern void* PyExc_ValueError;
extern void PyErr_SetString(void* type, const char* message);

typedef void (*call_t)(void* argument);

typedef struct job {
  call_t function;
  void* argument;
} job;

static void* run_job(void* at) {
  job* j = at;
  j->function(j->argument);
  return NULL;
}

/* function(argument) on a thread of its own, which is waited for. */
int call_on_thread(call_t function, void* argument) {
  job j = {function, argument};
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_job, &j) != 0) return -1;
  return pthread_join(thread, NULL);
}

/* functions[i](arguments[i]) for all i, each on its own thread, all released at the same moment. */
typedef struct race {
  pthread_barrier_t* barrier;
  job j;
} race;

static void* run_race(void* at) {
  race* r = at;
  pthread_barrier_wait(r->barrier);
  r->j.function(r->j.argument);
  return NULL;
}

int call_at_once(int n, call_t* functions, void** arguments) {
  pthread_barrier_t barrier;
  pthread_t* threads = malloc(sizeof *threads * (size_t)n);
  race* races = malloc(sizeof *races * (size_t)n);
  pthread_barrier_init(&barrier, NULL, (unsigned)n);
  for (int i = 0; i < n; ++i) {
    races[i] = (race){&barrier, {functions[i], arguments[i]}};
    if (pthread_create(&threads[i], NULL, run_race, &races[i]) != 0) abort();
  }
  for (int i = 0; i < n; ++i) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&barrier);
  free(threads);
  free(races);
  return 0;
}

/* A thread that waits for a byte on a pipe, runs the job and answers with a byte: it outlives the call. */
typedef struct sleeper {
  job j;
  int wake;
  int done;
} sleeper;

static void* run_sleeper(void* at) {
  sleeper* s = at;
  char byte;
  if (read(s->wake, &byte, 1) == 1) {
    s->j.function(s->j.argument);
    (void)!write(s->done, "d", 1);
  }
  free(s);
  return NULL;
}

int call_when_woken(call_t function, void* argument, int wake_fd, int done_fd) {
  sleeper* s = malloc(sizeof *s);
  *s = (sleeper){{function, argument}, wake_fd, done_fd};
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_sleeper, s) != 0) return -1;
  return pthread_detach(thread);
}

/* Jobs for after the interpreter's end: the C library runs them when the process exits. */
static job exit_jobs[64];
static int n_exit_jobs;

static void run_exit_jobs(void) {
  for (int i = 0; i < n_exit_jobs; ++i) exit_jobs[i].function(exit_jobs[i].argument);
}

int call_at_exit(call_t function, void* argument) {
  if (n_exit_jobs == 64) return -1;
  exit_jobs[n_exit_jobs] = (job){function, argument};
  return n_exit_jobs++ == 0 ? atexit(run_exit_jobs) : 0;
}

/* The same, each on a thread of its own. */
static void run_on_thread(void* at) { call_on_thread(((job*)at)->function, ((job*)at)->argument); }

int call_at_exit_on_thread(call_t function, void* argument) {
  job* j = malloc(sizeof *j);
  *j = (job){function, argument};
  return call_at_exit(run_on_thread, j);
}

/* ---------------------------------------------------------------------------------- a producer */

typedef struct tensor {
  uint32_t major, minor;
  void* context;
  void (*deleter)(struct tensor*);
  uint64_t flags;
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
  int64_t extents[2];
} tensor;

static atomic_long births, deaths;
long tensors_made(void) { return births; }
long tensors_deleted(void) { return deaths; }

static void delete_tensor(tensor* self) {
  atomic_fetch_add(&deaths, 1);
  free(self->data);
  memset(self, 0xdd, sizeof *self);
  free(self);
}

/* A versioned tensor of n floats that owns its memory. */
tensor* new_tensor(int64_t n) {
  tensor* self = calloc(1, sizeof *self);
  self->major = 1;
  self->deleter = delete_tensor;
  if (posix_memalign(&self->data, 64, n > 0 ? (size_t)n * 4 : 64) != 0) abort();
  memset(self->data, 0, (size_t)n * 4);
  self->device_type = 1;
  self->ndim = 1;
  self->code = 2;
  self->bits = 32;
  self->lanes = 1;
  self->extents[0] = n;
  self->extents[1] = 1;
  self->shape = &self->extents[0];
  self->strides = &self->extents[1];
  atomic_fetch_add(&births, 1);
  return self;
}

/* ------------------------------------------------------------- slots of an exchange table */

int slot_fails_with_buffer_error(void* object, void** out) {
  (void)object;
  (void)out;
  PyErr_SetString(PyExc_BufferError, "the table refuses");
  return -1;
}
int slot_fails_with_value_error(void* object, void** out) {
  (void)object;
  (void)out;
  PyErr_SetString(PyExc_ValueError, "the table is upset");
  return -1;
}
int slot_fails_without_error(void* object, void** out) {
  (void)object;
  (void)out;
  return -1;
}
int slot_gives_null(void* object, void** out) {
  (void)object;
  *out = NULL;
  return 0;
}
int slot_gives_tensor(void* object, void** out) {
  (void)object;
  *out = new_tensor(4);
  return 0;
}
int slot_gives_unknown_major(void* object, void** out) {
  (void)object;
  tensor* t = new_tensor(4);
  t->major = 7;
  *out = t;
  return 0;
}
int slot_gives_negative_shape(void* object, void** out) {
  (void)object;
  tensor* t = new_tensor(4);
  t->extents[0] = -4;
  *out = t;
  return 0;
}
