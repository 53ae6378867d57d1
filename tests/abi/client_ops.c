/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases, ops and what becomes of failures, as a stranger uses them.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "client.h"

static float* elements(tenon_array* array) { return (float*)tenon_array_describe(array)->data; }

static tenon_lease_options lease_for(int32_t access) {
  tenon_lease_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.access = access;
  options.timeout_ns = -1;
  options.site = "client_ops.c";
  return options;
}

/* A lease is held by its thread, seen by others, and given back once. */
static void leases(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_lease lease = TENON_LEASE_INIT, nested = TENON_LEASE_INIT;
  tenon_view view = TENON_VIEW_INIT;
  tenon_lease_options writing = lease_for(TENON_WRITE), reading = lease_for(TENON_READ);
  tenon_array *array = client_counting(2, 2), *fixed = NULL;
  tenon_holder holders[4];
  OK(tenon_array_readonly(array, &fixed, &error));
  FAILS(TENON_ERR_BUFFER, tenon_lease_acquire(&lease, fixed, &writing, &error));
  OK(tenon_lease_acquire(&lease, array, &writing, &error));
  FAILS(TENON_ERR_VALUE, tenon_lease_acquire(&lease, array, &writing, &error));
  CHECK(tenon_array_holders(array, 4, holders) == 1);
  CHECK(holders[0].kind == TENON_HOLDER_LEASE && holders[0].access == TENON_WRITE && holders[0].is_granted);
  CHECK(strcmp(holders[0].site, "client_ops.c") == 0);
  OK(tenon_lease_acquire(&nested, array, &reading, &error));
  CHECK(tenon_lease_release(&nested) == 0);
  elements(array)[0] = 5;
  CHECK(tenon_array_has_own_views(array) == 0);
  OK(tenon_view_open(&view, array, TENON_WRITE, NULL, &error));
  CHECK(tenon_array_has_own_views(array) == 1);
  CHECK(tenon_lease_release(&lease) != 0);
  CHECK(tenon_lease_release(&lease) == 0);
  CHECK(tenon_array_has_own_views(array) == 1 && tenon_array_has_own_views(fixed) == 1);
  CHECK(tenon_array_holders(array, 4, holders) == 1 && holders[0].kind == TENON_HOLDER_VIEW);
  OK(tenon_lease_acquire(&lease, array, &writing, &error));
  tenon_view_close(&view);
  CHECK(tenon_array_has_own_views(array) == 0);
  CHECK(tenon_lease_release(&lease) == 0);
  CHECK(tenon_array_holders(array, 4, holders) == 0);
  OK(tenon_lease_acquire(&lease, array, &reading, &error));
  tenon_lease_detach(&lease);
  reading = lease_for(TENON_WRITE);
  reading.timeout_ns = 1000000;
  FAILS(TENON_ERR_TIMEOUT, tenon_lease_acquire(&nested, array, &reading, &error));
  tenon_lease_release(&lease);
  tenon_array_release(fixed);
  tenon_array_release(array);
}

/* A call has several arrays at once, as long as it lasts. */
static void calls(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *from = client_counting(2, 2), *to = client_counting(2, 2), *fixed = NULL;
  tenon_use uses[2] = {{from, TENON_READ, 0}, {to, TENON_WRITE, 0}};
  tenon_holder holders[4];
  tenon_call* call = NULL;
  OK(tenon_call_begin("add", "client_ops.c", 2, uses, &call, &error));
  CHECK(tenon_array_holders(from, 4, holders) == 1 && holders[0].access == TENON_READ);
  CHECK(tenon_array_holders(to, 4, holders) == 1 && holders[0].access == TENON_WRITE);
  CHECK(strcmp(holders[0].name, "add") == 0 && strcmp(holders[0].site, "client_ops.c") == 0);
  tenon_call_end(call);
  tenon_call_end(NULL);
  CHECK(tenon_array_holders(from, 4, holders) == 0 && tenon_array_holders(to, 4, holders) == 0);
  OK(tenon_array_readonly(to, &fixed, &error));
  uses[1].array = fixed;
  FAILS(TENON_ERR_BUFFER, tenon_call_begin("add", NULL, 2, uses, &call, &error));
  tenon_array_release(fixed);
  tenon_array_release(from);
  tenon_array_release(to);
}

/* A lease whose writing failed leaves memory without a value, until all of it is written. */
static void failed_leases(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_lease lease = TENON_LEASE_INIT;
  tenon_lease_options writing = lease_for(TENON_WRITE);
  tenon_array *array = client_counting(2, 2), *copy = NULL;
  tenon_failure* failure;
  OK(tenon_lease_acquire(&lease, array, &writing, &error));
  tenon_lease_fail(&lease, "the sensor went away");
  FAILS(TENON_ERR_OP, tenon_array_copy(array, client_float32, &copy, &error));
  failure = tenon_failure_last();
  CHECK(failure != NULL && strcmp(tenon_failure_message(failure), "the sensor went away") == 0);
  tenon_failure_release(failure);
  CHECK(tenon_failure_last() == NULL);
  CHECK(tenon_array_has_value(array) == 0);
  failure = tenon_array_failure(array);
  CHECK(failure != NULL && strcmp(tenon_failure_message(failure), "the sensor went away") == 0);
  CHECK(tenon_failure_code(failure) == 0 && tenon_failure_payload(failure, NULL) == NULL);
  CHECK(strcmp(tenon_failure_site(failure), "client_ops.c") == 0 && tenon_failure_op(failure)[0] != '\0');
  tenon_failure_release(failure);
  writing.flags = TENON_OVERWRITE;
  OK(tenon_lease_acquire(&lease, array, &writing, &error));
  tenon_lease_release(&lease);
  OK(tenon_array_copy(array, client_float32, &copy, &error));
  tenon_array_release(copy);
  OK(tenon_lease_acquire(&lease, array, &writing, &error));
  tenon_lease_fail(&lease, NULL);
  tenon_array_clear_error(array);
  CHECK(tenon_array_failure(array) == NULL && tenon_array_has_value(array) == 1);
  tenon_array_release(array);
}

typedef struct {
  float *from, *to;
  int32_t code;
  int runs, drops, failures;
} doubling;

static void count_failure(void* payload) { ((doubling*)payload)->failures++; }

static void double_it(void* context, tenon_op* op) {
  doubling* self = (doubling*)context;
  int i;
  self->runs++;
  for (i = 0; i < 4; i++) self->to[i] = 2 * self->from[i];
  CHECK(!tenon_op_has_views(op));
  if (self->code != 0) {
    tenon_op_fail(op, self->code, "cannot double", self, count_failure);
  } else {
    tenon_op_complete(op);
  }
}

static int32_t unseen;

static void note_unseen(tenon_failure* failure) {
  unseen += tenon_failure_code(failure);
  tenon_failure_release(failure);
}

static void count_drop(void* context) { ((doubling*)context)->drops++; }

static void count_call(void* context) { ++*(int*)context; }

/* A task's request is granted at once, or later, or taken back; waits of a task for itself are seen. */
static void requests(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_lease lease = TENON_LEASE_INIT, second = TENON_LEASE_INIT;
  tenon_lease_options options = lease_for(TENON_WRITE);
  tenon_array *array = client_counting(2, 2), *other = client_counting(2, 2);
  int32_t is_granted = 0;
  int called = 0;
  options.task = 1;
  OK(tenon_lease_request(&lease, array, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 1 && called == 0);
  OK(tenon_lease_check(&lease, &error));
  options.task = 2;
  OK(tenon_lease_request(&second, array, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 0 && called == 0);
  FAILS(TENON_ERR_VALUE, tenon_lease_check(&second, &error));
  FAILS(TENON_ERR_VALUE,
        tenon_lease_request(&second, array, &options, count_call, &called, &is_granted, &error));
  CHECK(tenon_array_holders(array, 0, NULL) == 2);
  CHECK(tenon_lease_cancel(&second) != 0);
  CHECK(tenon_array_holders(array, 0, NULL) == 1);

  OK(tenon_lease_request(&second, array, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 0);
  CHECK(tenon_lease_fail(&lease, "lost") == 0 && called == 1);
  FAILS(TENON_ERR_OP, tenon_lease_check(&second, &error));
  CHECK(tenon_array_holders(array, 0, NULL) == 0);
  FAILS(TENON_ERR_VALUE, tenon_array_make_consistent(NULL, &error));
  FAILS(TENON_ERR_OP, tenon_array_wait(array, TENON_READ, 0, &error));
  OK(tenon_array_make_consistent(array, &error));
  OK(tenon_array_wait(array, TENON_READ, 0, &error));

  /* Two tasks that wait for each other. */
  options.task = 1;
  OK(tenon_lease_request(&lease, array, &options, count_call, &called, &is_granted, &error));
  options.task = 2;
  OK(tenon_lease_request(&second, other, &options, count_call, &called, &is_granted, &error));
  {
    tenon_lease third = TENON_LEASE_INIT, fourth = TENON_LEASE_INIT;
    OK(tenon_lease_request(&third, array, &options, count_call, &called, &is_granted, &error));
    CHECK(is_granted == 0);
    options.task = 1;
    FAILS(TENON_ERR_DEADLOCK,
          tenon_lease_request(&fourth, other, &options, count_call, &called, &is_granted, &error));
    CHECK(tenon_lease_release(&lease) == 0 && called == 2);
    /* Granted in the moment in which it is taken back. */
    CHECK(tenon_lease_cancel(&third) == 0);
    CHECK(tenon_lease_release(&third) == 0);
  }
  tenon_lease_release(&second);
  CHECK(tenon_array_holders(array, 0, NULL) == 0 && tenon_array_holders(other, 0, NULL) == 0);
  tenon_array_release(other);
  tenon_array_release(array);
}

/* A lease is used again after any use, also at another address: nothing remains of the last use. */
static void reused_leases(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_lease lease = TENON_LEASE_INIT, nested = TENON_LEASE_INIT, moved;
  tenon_lease_options options = lease_for(TENON_WRITE);
  tenon_array *array = client_counting(2, 2), *empty = client_counting(0, 2);
  int32_t is_granted = 0;
  int called = 0;
  options.timeout_ns = 0;
  OK(tenon_lease_acquire(&lease, array, &options, &error));
  tenon_lease_detach(&lease);
  CHECK(tenon_lease_release(&lease) == 0);
  OK(tenon_lease_acquire(&lease, array, &options, &error));
  OK(tenon_lease_acquire(&nested, array, &options, &error)); /* it has an owner again, this thread */
  CHECK(tenon_lease_release(&nested) == 0 && tenon_lease_release(&lease) == 0);
  OK(tenon_lease_acquire(&lease, empty, &options, &error));
  CHECK(tenon_lease_release(&lease) == 0);
  OK(tenon_lease_acquire(&lease, array, &options, &error));
  CHECK(tenon_array_holders(array, 0, NULL) == 1);
  CHECK(tenon_lease_release(&lease) == 0);
  OK(tenon_lease_request(&lease, array, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 1 && tenon_lease_release(&lease) == 0);
  options.task = 1;
  OK(tenon_lease_request(&nested, array, &options, count_call, &called, &is_granted, &error));
  options.task = 2;
  OK(tenon_lease_request(&lease, array, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 0 && tenon_lease_cancel(&lease) == 1); /* it was waiting */
  OK(tenon_lease_request(&lease, empty, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 1 && tenon_lease_release(&lease) == 0);
  FAILS(TENON_ERR_DEADLOCK, tenon_lease_acquire(&lease, array, &options, &error));
  OK(tenon_lease_request(&lease, empty, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 1 && tenon_lease_release(&lease) == 0 && tenon_lease_release(&nested) == 0);
  options.task = 0;
  moved = lease;
  memset(&lease, 0, sizeof lease);
  OK(tenon_lease_acquire(&moved, array, &options, &error));
  CHECK(tenon_array_holders(array, 0, NULL) == 1);
  OK(tenon_lease_acquire(&lease, array, &options, &error));
  CHECK(tenon_array_holders(array, 0, NULL) == 2);
  CHECK(tenon_lease_release(&lease) == 0 && tenon_lease_release(&moved) == 0);
  CHECK(tenon_array_holders(array, 0, NULL) == 0 && called == 0);
  tenon_array_release(empty);
  tenon_array_release(array);
}

static tenon_work work_of(doubling* context) {
  tenon_work work;
  memset(&work, 0, sizeof work);
  work.struct_size = sizeof work;
  work.context = context;
  work.run = double_it;
  work.drop = count_drop;
  work.name = "double";
  work.site = "client_ops.c";
  return work;
}

static int freed;

static void note_freed(void* owner) {
  (void)owner;
  freed++;
}

/* Four elements whose end note_freed() counts. */
static tenon_array* adopted(float* memory) {
  tenon_error error = TENON_ERROR_INIT;
  const int64_t shape[1] = {4};
  tenon_adoption adoption;
  tenon_array* array = NULL;
  memset(&adoption, 0, sizeof adoption);
  adoption.struct_size = sizeof adoption;
  adoption.data = memory;
  adoption.dtype = client_float32;
  adoption.device = client_cpu;
  adoption.ndim = 1;
  adoption.shape = shape;
  adoption.owner = memory;
  adoption.deleter = note_freed;
  OK(tenon_array_adopt(&adoption, &array, &error));
  return array;
}

/* An op keeps the arrays that are not borrowed, and releases no others. */
static void borrowed_arrays(void) {
  static float memory[3][4] = {{1, 2, 3, 4}};
  tenon_error error = TENON_ERROR_INIT;
  doubling context;
  tenon_work work = work_of(&context);
  tenon_array *from = adopted(memory[0]), *to = adopted(memory[1]), *rest = adopted(memory[2]);
  tenon_use uses[3] = {
      {from, TENON_READ, TENON_BORROWED}, {rest, TENON_READ, 0}, {to, TENON_WRITE, TENON_BORROWED}};
  tenon_op* op = NULL;
  memset(&context, 0, sizeof context);
  context.from = memory[0];
  context.to = memory[1];
  freed = 0;
  uses[0].flags = 1u << 31;
  FAILS(TENON_ERR_VALUE, tenon_push(&work, 3, uses, &op, &error));
  uses[0].flags = TENON_BORROWED;
  OK(tenon_push(&work, 3, uses, &op, &error));
  tenon_array_release(rest);
  OK(tenon_op_wait(op, -1, &error));
  tenon_op_release(op);
  CHECK(memory[1][3] == 8 && freed == 1);
  tenon_array_release(from);
  tenon_array_release(to);
  CHECK(freed == 3);
  freed = 0;
}

static int searches, reports;
static uint64_t task_here;
static char last_report[512];

static void find_variable(const tenon_holder* holder, const void* begin, const void* end, char* text,
                          size_t size) {
  ++searches;
  CHECK(holder->kind == TENON_HOLDER_VIEW || holder->kind == TENON_HOLDER_LEASE);
  CHECK((const char*)end - (const char*)begin == 16 && size > 64 && text[0] == '\0');
  strncpy(text, "variable `x` of main (client_ops.c:1)", size);
}

static uint64_t get_task(void) { return task_here; }

static void note_report(const char* text) {
  ++reports;
  strncpy(last_report, text, sizeof last_report - 1);
}

/* A task that must not sleep is told of what it waits for, and of a view that outlived its lease, once. */
static void reports_of_tasks(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_lease lease = TENON_LEASE_INIT, second = TENON_LEASE_INIT;
  tenon_lease_options options = lease_for(TENON_WRITE);
  tenon_view view = TENON_VIEW_INIT;
  tenon_wait_hooks hooks;
  tenon_array* array = client_counting(2, 2);
  char text[512] = "as it was", few[5];
  int32_t is_granted = 0;
  int called = 0;
  memset(&hooks, 0, sizeof hooks);
  hooks.struct_size = sizeof hooks;
  hooks.report = note_report;
  hooks.current_task = get_task;
  tenon_set_wait_hooks(&hooks);
  tenon_set_view_finder(find_variable);
  searches = reports = 0;
  CHECK(tenon_next_report(tenon_set_report_period(0)) == 2 * tenon_next_report(0));

  options.task = task_here = 1;
  options.site = "first.c:1";
  OK(tenon_lease_request(&lease, array, &options, count_call, &called, &is_granted, &error));
  OK(tenon_lease_check(&lease, &error));
  options.task = task_here = 2;
  CHECK(tenon_lease_report(&second, text, sizeof text) == 0 && text[0] == '\0');
  OK(tenon_lease_request(&second, array, &options, count_call, &called, &is_granted, &error));
  CHECK(is_granted == 0 && tenon_lease_report(&second, text, sizeof text) == 1);
  CHECK(strstr(text, "a lease for writing, taken at first.c:1 by thread ") == text && searches == 0);
  CHECK(tenon_lease_report(&second, few, sizeof few) == 1 && strcmp(few, "a le") == 0);
  CHECK(tenon_lease_report(&second, NULL, 0) == 0 && reports == 0);
  task_here = 1;
  OK(tenon_view_open(&view, array, TENON_WRITE, "view.c:2", &error));
  CHECK(tenon_lease_report(&second, text, sizeof text) == 1 && searches == 1);
  CHECK(strstr(text, "; its view is kept by: variable `x` of main (client_ops.c:1)") != NULL);

  CHECK(tenon_lease_release(&lease) == 1 && called == 0);
  CHECK(tenon_lease_report(&second, NULL, 0) == 0 && reports == 1);
  CHECK(strstr(last_report, "a writable view of it, taken at view.c:2 by thread ") == last_report);
  CHECK(strstr(last_report, " outlived its block and keeps others waiting; it is kept by: variable `x`") !=
        NULL);
  CHECK(tenon_lease_report(&second, text, sizeof text) == 1 && reports == 1);
  CHECK(strstr(text, "a writable view of it, taken at view.c:2 by thread ") == text);
  CHECK(strstr(text, "; it is kept by: variable `x` of main (client_ops.c:1)") != NULL);
  task_here = 2;
  CHECK(tenon_array_wait(array, TENON_READ, 1000000000, &error) == TENON_ERR_DEADLOCK);
  CHECK(strstr(error.message, "it is kept by: variable `x`") != NULL);
  tenon_view_close(&view);
  CHECK(called == 1 && tenon_lease_report(&second, text, sizeof text) == 0 && text[0] == '\0');
  OK(tenon_lease_check(&second, &error));
  CHECK(tenon_lease_report(&second, text, sizeof text) == 0);
  tenon_lease_release(&second);
  CHECK(tenon_lease_report(NULL, text, sizeof text) == 0);

  tenon_set_view_finder(NULL);
  memset(&hooks, 0, sizeof hooks);
  hooks.struct_size = sizeof hooks;
  tenon_set_wait_hooks(&hooks);
  tenon_array_release(array);
}

static void ops(const char* engine) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *from = client_counting(2, 2), *to = client_counting(2, 2);
  tenon_use uses[2];
  doubling context;
  tenon_work work = work_of(&context);
  tenon_op* op = NULL;
  tenon_view view = TENON_VIEW_INIT;
  tenon_failure* failure;
  tenon_lease lease = TENON_LEASE_INIT;
  tenon_lease_options writing = lease_for(TENON_WRITE);
  tenon_await await = TENON_AWAIT_INIT;
  char name[16], text[512] = "as it was";
  int32_t is_granted = 0;
  int called = 0;
  writing.task = 1;
  OK(tenon_engine_set(engine, 2, &error));
  tenon_engine_name(name, sizeof name);
  CHECK(strcmp(name, engine) == 0);
  tenon_engine_set_limits(100, TENON_KEEP);
  memset(&context, 0, sizeof context);
  context.from = elements(from);
  context.to = elements(to);
  memset(uses, 0, sizeof uses);
  uses[0].array = from;
  uses[0].access = TENON_READ;
  uses[1].array = to;
  uses[1].access = TENON_WRITE;
  uses[1].flags = TENON_OVERWRITE;

  /* A task that waits behind its own lease is told; another one waits. */
  OK(tenon_lease_request(&lease, to, &writing, count_call, &called, &is_granted, &error));
  OK(tenon_push(&work, 2, uses, &op, &error));
  FAILS(TENON_ERR_DEADLOCK, tenon_await_begin(&await, op, 1, &error));
  CHECK(tenon_await_report(&await, text, sizeof text) == 0 && text[0] == '\0');
  OK(tenon_await_begin(&await, op, 2, &error));
  CHECK(tenon_await_report(&await, text, sizeof text) == 1);
  CHECK(strstr(text, "the op 'double' that ") == text);
  CHECK(strstr(text, ", which waits for a lease for writing, taken") != NULL);
  FAILS(TENON_ERR_VALUE, tenon_await_begin(&await, op, 2, &error));
  tenon_lease_release(&lease);
  CHECK((tenon_engine_help() == 1) == (strcmp(engine, "seeded:3") == 0));
  tenon_await_end(&await);
  CHECK(tenon_await_report(&await, text, sizeof text) == 0 && tenon_await_report(NULL, NULL, 0) == 0);
  tenon_await_end(&await);
  tenon_op_retain(op);
  tenon_op_release(op);
  OK(tenon_op_wait(op, -1, &error));
  CHECK(tenon_op_is_done(op) && tenon_op_failure(op) == NULL);
  OK(tenon_op_on_done(op, count_call, &called, &error));
  CHECK(called == 1 && context.runs == 1 && context.drops == 1);
  CHECK(elements(to)[3] == 6);
  tenon_op_release(op);

  /* A view of ordinary code conflicts, and nothing is queued. */
  OK(tenon_view_open(&view, to, TENON_WRITE, "loader.c:7", &error));
  CHECK(tenon_push(&work, 2, uses, &op, &error) == TENON_ERR_LEASE_CONFLICT);
  CHECK(strstr(error.message, "loader.c:7") != NULL);
  CHECK(context.drops == 1);
  work.on_conflict = TENON_CONFLICT_IGNORE;
  OK(tenon_push(&work, 2, uses, NULL, &error));
  OK(tenon_wait_all(-1, &error));
  CHECK(context.runs == 2 && tenon_engine_unfinished() == 0);
  tenon_view_close(&view);
  work.on_conflict = TENON_CONFLICT_RAISE;

  /* A failure is what every reader gets until an overwrite. */
  context.code = 7;
  OK(tenon_push(&work, 2, uses, &op, &error));
  CHECK(tenon_op_wait(op, -1, &error) == TENON_ERR_OP && error.op_code == 7);
  failure = tenon_failures_take();
  CHECK(failure != NULL && tenon_failure_code(failure) == 7);
  tenon_failure_release(failure);
  failure = tenon_op_failure(op);
  CHECK(strcmp(tenon_failure_op(failure), "double") == 0);
  CHECK(tenon_failure_payload(failure, count_failure) == &context);
  CHECK(tenon_failure_payload(failure, count_drop) == NULL);
  tenon_failure_release(failure);
  tenon_op_release(op);
  CHECK(tenon_array_wait(to, TENON_READ, -1, &error) == TENON_ERR_OP);
  context.code = 0;
  work.flags = 98;
  FAILS(TENON_ERR_VALUE, tenon_push(&work, 2, uses, NULL, &error));
  work.struct_size = offsetof(tenon_work, flags); /* of a caller that does not know the flags */
  OK(tenon_push(&work, 2, uses, NULL, &error));
  OK(tenon_array_wait(to, TENON_READ, -1, &error));
  work.struct_size = sizeof work;
  work.flags = 0;
  CHECK(context.runs == 4 && context.drops == 4);

  /* The payload goes with the last that holds it: the thread's last error, and the engine that ran it. */
  CHECK(context.failures == 0);
  tenon_failure_release(tenon_failure_last());
  OK(tenon_engine_set("inline", 0, &error));
  CHECK(context.failures == 1);

  /* A failure that no code has seen is reported once, when the memory without a value is gone. */
  unseen = 0;
  tenon_set_failure_hook(note_unseen);
  context.code = 8;
  OK(tenon_push(&work, 2, uses, NULL, &error));
  CHECK(unseen == 0);
  tenon_array_release(to);
  CHECK(unseen == 8);
  failure = tenon_failures_take();
  CHECK(failure != NULL && tenon_failure_code(failure) == 8);
  tenon_failure_release(failure);

  /* At the end of a process also that of memory which is still there. */
  to = client_counting(2, 2);
  uses[1].array = to;
  context.to = elements(to);
  context.code = 9;
  OK(tenon_push(&work, 2, uses, NULL, &error));
  CHECK(unseen == 8);
  tenon_failures_report();
  CHECK(unseen == 8 + 9);
  tenon_set_failure_hook(NULL);
  failure = tenon_failures_take();
  CHECK(failure != NULL && tenon_failure_code(failure) == 9);
  tenon_failure_release(failure);
  tenon_array_release(to);
  CHECK(context.failures == 3);
  tenon_array_release(from);
}

/* A trace keeps what goes on between its begin and its end; one runs at a time. */
static void traces(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_lease lease = TENON_LEASE_INIT;
  tenon_lease_options writing = lease_for(TENON_WRITE);
  tenon_array* array = client_counting(2, 2);
  tenon_trace_counts counts = {7, 7};
  FAILS(TENON_ERR_VALUE, tenon_trace_begin(NULL, 1, &error));
  FAILS(TENON_ERR_VALUE, tenon_trace_begin("/dev/null", 0, &error));
  FAILS(TENON_ERR_NOT_FOUND, tenon_trace_begin("/no/such/folder/run.json", 1, &error));
  FAILS(TENON_ERR_VALUE, tenon_trace_end(&counts, &error));
  OK(tenon_trace_begin("/dev/null", 1, &error));
  FAILS(TENON_ERR_VALUE, tenon_trace_begin("/dev/null", TENON_TRACE_CAPACITY, &error));
  OK(tenon_lease_acquire(&lease, array, &writing, &error));
  tenon_lease_release(&lease);
  OK(tenon_lease_acquire(&lease, array, &writing, &error));
  OK(tenon_trace_end(&counts, &error));
  CHECK(counts.events == 1 && counts.lost == 1);
  tenon_lease_release(&lease);
  OK(tenon_trace_begin("/dev/null", 1, &error));
  OK(tenon_trace_end(NULL, &error));
  tenon_array_release(array);
}

static void* nothing(void) { return NULL; }

void client_ops(void) {
  tenon_wait_hooks hooks;
  tenon_error error = TENON_ERROR_INIT;
  doubling context;
  tenon_work work = work_of(&context);
  memset(&hooks, 0, sizeof hooks);
  hooks.struct_size = sizeof hooks;
  hooks.begin = nothing;
  tenon_set_wait_hooks(&hooks);
  leases();
  calls();
  failed_leases();
  requests();
  reused_leases();
  borrowed_arrays();
  reports_of_tasks();
  traces();
  ops("pool");
  ops("inline");
  ops("seeded:3");
  OK(tenon_engine_wait_for_bodies(0, &error));
  OK(tenon_engine_shut_down(-1, &error));
  FAILS(TENON_ERR_CLOSED, tenon_push(&work, 0, NULL, NULL, &error));
}
