/* SPDX-License-Identifier: Apache-2.0
 *
 * The C client's part on DLPack: it is a consumer of the library's exports and a producer for its
 * imports, with structs, deleters and flags of its own, for both structs.
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "tenon/dlpack.h"

/* A consumer keeps the tensor and not the array; it reads and writes by the strides of the tensor. */
static void exports(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *source = client_counting(2, 3), *turned = NULL;
  DLManagedTensorVersioned* tensor = NULL;
  const DLTensor* view;
  tenon_view_count count;
  OK(tenon_array_transpose(source, NULL, &turned, &error));
  OK(tenon_array_to_dlpack(turned, 0, NULL, &tensor, &error));
  count = tenon_array_views(source);
  CHECK(count.writers == 1 && count.readers == 0);
  tenon_array_release(turned);
  tenon_array_release(source);
  CHECK(tensor->version.major == DLPACK_MAJOR_VERSION && tensor->version.minor <= DLPACK_MINOR_VERSION);
  CHECK(tensor->flags == 0 && tensor->deleter != NULL);
  view = &tensor->dl_tensor;
  CHECK(view->device.device_type == kDLCPU && view->device.device_id == 0 && view->ndim == 2);
  CHECK(view->dtype.code == kDLFloat && view->dtype.bits == 32 && view->dtype.lanes == 1);
  CHECK(view->shape[0] == 3 && view->shape[1] == 2 && view->strides[0] == 1 && view->strides[1] == 3);
  CHECK(((float*)((char*)view->data + view->byte_offset))[2 * 1 + 1 * 3] == 5.0f);
  tensor->deleter(tensor);
}

static void exports_of_read_only_arrays(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *source = client_counting(2, 3), *fixed = NULL;
  DLManagedTensorVersioned* tensor = NULL;
  DLManagedTensor* legacy = NULL;
  OK(tenon_array_readonly(source, &fixed, &error));
  OK(tenon_array_to_dlpack(fixed, TENON_EXPORT_COPIED, NULL, &tensor, &error));
  CHECK(tensor->flags == (DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED));
  tensor->deleter(tensor);
  FAILS(TENON_ERR_BUFFER, tenon_array_to_dlpack_legacy(fixed, 0, NULL, &legacy, &error));
  CHECK(legacy == NULL);
  OK(tenon_array_to_dlpack_legacy(fixed, TENON_EXPORT_FOR_READ, NULL, &legacy, &error));
  CHECK(tenon_array_views(source).readers == 1 && tenon_array_views(source).writers == 0);
  CHECK(legacy->dl_tensor.ndim == 2 && legacy->dl_tensor.strides != NULL);
  legacy->deleter(legacy);
  CHECK(tenon_array_views(source).readers == 0);
  tenon_array_release(fixed);
  tenon_array_release(source);
}

/* The client's own producer. */
typedef struct {
  DLManagedTensorVersioned versioned;
  DLManagedTensor legacy;
  int64_t shape[2];
  float elements[8];
  int deletions;
} Producer;

static void count_versioned(DLManagedTensorVersioned* self) { ((Producer*)self->manager_ctx)->deletions++; }
static void count_legacy(DLManagedTensor* self) { ((Producer*)self->manager_ctx)->deletions++; }

/* Elements 2..7 as {2, 3}, without strides and with a byte offset. */
static void produce(Producer* producer) {
  DLTensor tensor;
  int i;
  memset(producer, 0, sizeof *producer);
  for (i = 0; i < 8; i++) producer->elements[i] = (float)i;
  producer->shape[0] = 2;
  producer->shape[1] = 3;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = producer->elements;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 2;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = producer->shape;
  tensor.byte_offset = 2 * sizeof(float);
  producer->versioned.version.major = DLPACK_MAJOR_VERSION;
  producer->versioned.version.minor = DLPACK_MINOR_VERSION;
  producer->versioned.manager_ctx = producer;
  producer->versioned.deleter = count_versioned;
  producer->versioned.dl_tensor = tensor;
  producer->legacy.manager_ctx = producer;
  producer->legacy.deleter = count_legacy;
  producer->legacy.dl_tensor = tensor;
}

static void imports(void) {
  tenon_error error = TENON_ERROR_INIT;
  Producer producer;
  tenon_array* array = NULL;
  const int64_t last[2] = {1, 2};
  produce(&producer);
  OK(tenon_array_from_dlpack(&producer.versioned, 0, &array, &error));
  CHECK(tenon_array_describe(array)->data == producer.elements + 2);
  CHECK(client_element(array, last) == 7.0f && tenon_array_describe(array)->flags == 0);
  CHECK(producer.deletions == 0);
  tenon_array_release(array);
  CHECK(producer.deletions == 1);

  produce(&producer);
  producer.versioned.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  OK(tenon_array_from_dlpack(&producer.versioned, 0, &array, &error));
  CHECK(tenon_array_describe(array)->flags == TENON_READONLY);
  tenon_array_release(array);

  produce(&producer);
  OK(tenon_array_from_dlpack_legacy(&producer.legacy, TENON_READONLY, &array, &error));
  CHECK(tenon_array_describe(array)->flags == TENON_READONLY && client_element(array, last) == 7.0f);
  tenon_array_release(array);
  CHECK(producer.deletions == 1);
}

/* A refused tensor is consumed too: its deleter has run once. */
static void refused_imports(void) {
  tenon_error error = TENON_ERROR_INIT;
  Producer producer;
  tenon_array* array = NULL;
  produce(&producer);
  producer.versioned.version.major = DLPACK_MAJOR_VERSION + 1;
  producer.versioned.dl_tensor.ndim = -5;
  FAILS(TENON_ERR_BUFFER, tenon_array_from_dlpack(&producer.versioned, 0, &array, &error));
  CHECK(producer.deletions == 1);
  produce(&producer);
  producer.legacy.dl_tensor.shape[0] = -2;
  FAILS(TENON_ERR_BUFFER, tenon_array_from_dlpack_legacy(&producer.legacy, 0, &array, &error));
  CHECK(producer.deletions == 1);
  produce(&producer);
  producer.versioned.dl_tensor.dtype.bits = 7;
  FAILS(TENON_ERR_TYPE, tenon_array_from_dlpack(&producer.versioned, 0, &array, &error));
  CHECK(producer.deletions == 1 && array == NULL);
}

/* An array that went out as a tensor and comes back is the same memory, not a second storage. */
static void round_trip(void) {
  tenon_error error = TENON_ERROR_INIT;
  tenon_array *source = client_counting(2, 3), *again = NULL;
  DLManagedTensorVersioned* tensor = NULL;
  tenon_statistics statistics;
  OK(tenon_array_to_dlpack(source, 0, NULL, &tensor, &error));
  OK(tenon_array_from_dlpack(tensor, 0, &again, &error));
  CHECK(tenon_array_describe(again)->data == tenon_array_describe(source)->data);
  memset(&statistics, 0, sizeof statistics);
  statistics.struct_size = sizeof statistics;
  tenon_statistics_get(&statistics);
  CHECK(statistics.regions == 1);
  tenon_array_release(source);
  tenon_array_release(again);
}

void client_exchange(void) {
  exports();
  exports_of_read_only_arrays();
  imports();
  refused_imports();
  round_trip();
}
