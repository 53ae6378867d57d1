/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the C client share: checks that stop the program and say where, and the arrays that
 * several parts begin with. The client is C99 and sees the library only through its public headers.
 */
#ifndef TENON_TESTS_ABI_CLIENT_H_
#define TENON_TESTS_ABI_CLIENT_H_

#include <stdint.h>

#include "tenon/tenon.h"

/* Ends the program with a message unless condition holds. */
#define CHECK(condition) client_check((condition) != 0, #condition, __FILE__, __LINE__)

/* The call succeeds; its last argument is &error. */
#define OK(call) client_status((call), TENON_OK, &error, #call, __FILE__, __LINE__)

/* The call fails with this status, and error has the same code and a message. */
#define FAILS(status, call) client_status((call), (status), &error, #call, __FILE__, __LINE__)

void client_check(int holds, const char* text, const char* file, int line);
void client_status(tenon_status got, tenon_status wanted, tenon_error* error, const char* text,
                   const char* file, int line);

extern const tenon_dtype client_float32;
extern const tenon_dtype client_int32;
extern const tenon_device client_cpu;

/* A new float32 array of shape {rows, columns} with the elements 0, 1, 2, ... */
tenon_array* client_counting(int64_t rows, int64_t columns);

/* The element at an index (one entry for each axis) of a float32 array. */
float client_element(const tenon_array* array, const int64_t* index);

/* One function for each part; each leaves nothing behind. */
void client_names(void);
void client_arrays(void);
void client_views(void);
void client_exchange(void);
void client_ops(void);
void client_share(void);
void client_pool(void);
void client_plugins(void);

#endif /* TENON_TESTS_ABI_CLIENT_H_ */
