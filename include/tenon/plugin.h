/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.h - for authors of generators: a shared library that fills batches, with a separate state for each
 * worker, a configuration and error texts. C99; no linking is needed. For C++: tenon/plugin.hpp.
 *
 *     static const tenon_plugin table = {sizeof(tenon_plugin), TENON_PLUGIN_ABI, TENON_PLUGIN_THREADSAFE,
 *                                        0, "digits", digits_open, digits_describe, digits_fill,
 *                                        digits_close, NULL, NULL};
 *     TENON_PLUGIN_EXPORT const tenon_plugin* tenon_plugin_table(void) { return &table; }
 *
 * Calls and threads:
 *
 *  - Each worker (a thread or a process) has its own state. It calls open before its first fill, then
 *    describe, then fill for one batch after another. Two calls with one state never run at the same time,
 *    so a state needs no lock.
 *  - Without TENON_PLUGIN_THREADSAFE there is one worker thread with one state. With it, several states are
 *    used at the same time, each by its own worker. Everything that they share (globals, other libraries)
 *    must be thread-safe.
 *  - A state with worker -1 is opened only for describe, in the thread that makes the generator: open,
 *    describe, close. fill is never called with it.
 *  - close is called once for every successful open, after the last fill of the state, when the feed is
 *    closed. The calling thread may be that of another worker.
 *  - A library is never unloaded.
 *
 * open, describe and fill return 0 on success; fill may also return TENON_NO_BATCH or TENON_END_OF_EPOCH.
 * Otherwise they may write the reason to message (message_size bytes including the NUL). A failure of fill or
 * open is raised at the position of its batch. A worker whose open has failed tries again at its next batch.
 * C++ exceptions must not leave any of the functions.
 *
 * \since 0.1
 */
#ifndef TENON_PLUGIN_H_
#define TENON_PLUGIN_H_

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tenon/request.h"
#include "tenon/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the table and of its structs. Since version 2, fill gets the request of all generators.
 * Since version 3, the table has save and restore. Libraries that were compiled for an earlier version still
 * run; those of a later version are refused. */
#define TENON_PLUGIN_ABI 3

/* Several states may be used at the same time. */
#define TENON_PLUGIN_THREADSAFE 1

/* A batch depends only on its index, seed and epoch, and not on the batches before it, so a feed can
 * continue at any batch. Since version 3. */
#define TENON_PLUGIN_IS_INDEXED 2

/* Exports the only symbol of the library, also if it is compiled with -fvisibility=hidden. */
#if defined(__GNUC__)
#define TENON_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define TENON_PLUGIN_EXPORT
#endif

/* A field of the batch. */
typedef struct tenon_plugin_field {
  const char* name;  /* an identifier */
  const char* dtype; /* "float32", "int64", "uint8", "bool", ... or NumPy's "f4", "i8", "u1" */
  int32_t ndim;      /* >= 1: axis 0 counts the rows; equal for all fields */
  const int64_t* shape;
} tenon_plugin_field;

/* The argument of open. It is valid as long as the state, with everything that it points to. */
typedef struct tenon_plugin_setup {
  uint32_t struct_size;
  int32_t worker;     /* counts from 0; -1: only for describe */
  uint64_t seed;      /* of the feed */
  const char* config; /* a JSON object; "{}" if the user gave none */
  /* The schema of the batches, with the long names of dtypes; NULL if only describe knows it. */
  const tenon_plugin_field* fields;
  int32_t n_fields;
  int32_t reserved;
} tenon_plugin_setup;

typedef struct tenon_plugin {
  uint32_t struct_size; /* struct_size and abi keep their offsets in every version */
  uint32_t abi;         /* TENON_PLUGIN_ABI */
  uint32_t flags;       /* TENON_PLUGIN_THREADSAFE, TENON_PLUGIN_IS_INDEXED */
  uint32_t reserved;    /* 0 */
  const char* name;     /* for messages; NULL: the name of the file */
  /* *state may stay NULL. If open fails, close is not called for the state. */
  int32_t (*open)(const tenon_plugin_setup* setup, void** state, char* message, size_t message_size);
  /* Returns the fields, which are valid until close. They must be equal for all states of one configuration.
   * describe may be NULL: then the user must give a schema. */
  int32_t (*describe)(void* state, const tenon_plugin_field** fields, int32_t* n_fields, char* message,
                      size_t message_size);
  tenon_fill_function fill; /* see tenon/request.h; the context is the state */
  void (*close)(void* state);
  /* Both or none, since version 3. A feed then saves the state with its position, and continues there. save
   * is called before the first fill and after each fill, also after one that failed. It writes at most size
   * bytes to bytes and their number to *nbytes; if the state has more, it writes only the number. restore
   * brings the state back to what save has written, maybe in another process. 0 or a code, as for fill. */
  int32_t (*save)(void* state, void* bytes, uint64_t size, uint64_t* nbytes, char* message,
                  size_t message_size);
  int32_t (*restore)(void* state, const void* bytes, uint64_t nbytes, char* message, size_t message_size);
} tenon_plugin;

/* The function that the library defines. The table must never be freed. */
TENON_PLUGIN_EXPORT const tenon_plugin* tenon_plugin_table(void);

/* ------------------------------------------------------------------------------- configuration
 *
 * These functions look up a key in the configuration, without a JSON library. Each returns 1 and the value, 0
 * if there is no such key (the value does not change, so set it to the default before), or -1 if the value
 * has another type or does not fit. */

static inline const char* tenon_plugin_past_blanks(const char* at) {
  while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') ++at;
  return at;
}

/* The position after the value that begins here: a string, a number, a word, a list or an object. */
static inline const char* tenon_plugin_past_value(const char* at) {
  int depth = 0;
  do {
    at = tenon_plugin_past_blanks(at);
    if (*at == '\0') return at;
    if (*at == '"') {
      for (++at; *at != '\0' && *at != '"'; ++at) {
        if (*at == '\\' && at[1] != '\0') ++at;
      }
      if (*at != '\0') ++at;
    } else if (*at == '{' || *at == '[') {
      ++depth;
      ++at;
    } else if (*at == '}' || *at == ']') {
      --depth;
      ++at;
    } else if (*at == ',' || *at == ':') {
      ++at;
    } else {
      at += strcspn(at, " \t\r\n,:\"{}[]");
    }
  } while (depth > 0);
  return at;
}

/* The text that begins with the value of the key, or NULL. Keys with escapes are not found. */
static inline const char* tenon_plugin_find(const char* config, const char* key) {
  const size_t key_size = strlen(key);
  const char* at = tenon_plugin_past_blanks(config);
  if (*at++ != '{') return NULL;
  for (;;) {
    const char* name = tenon_plugin_past_blanks(at);
    if (*name == ',') name = tenon_plugin_past_blanks(name + 1);
    if (*name != '"') return NULL;
    at = tenon_plugin_past_value(name);
    const char* const name_end = at - 1;
    at = tenon_plugin_past_blanks(at);
    if (*at != ':') return NULL;
    at = tenon_plugin_past_blanks(at + 1);
    if ((size_t)(name_end - (name + 1)) == key_size && memcmp(name + 1, key, key_size) == 0) return at;
    at = tenon_plugin_past_value(at);
  }
}

static inline int tenon_plugin_integer(const char* config, const char* key, int64_t* value) {
  const char* const at = tenon_plugin_find(config, key);
  char* end = NULL;
  long long found;
  if (at == NULL) return 0;
  if (*at != '-' && (*at < '0' || *at > '9')) return -1;
  errno = 0;
  found = strtoll(at, &end, 10);
  if (errno != 0 || end != tenon_plugin_past_value(at)) return -1;
  *value = found;
  return 1;
}

/* The decimal separator is a point, as in JSON. strtod must run in a locale that uses a point, too. */
static inline int tenon_plugin_number(const char* config, const char* key, double* value) {
  const char* const at = tenon_plugin_find(config, key);
  char* end = NULL;
  double found;
  if (at == NULL) return 0;
  if (*at != '-' && (*at < '0' || *at > '9')) return -1;
  found = strtod(at, &end);
  if (end != tenon_plugin_past_value(at)) return -1;
  *value = found;
  return 1;
}

static inline int tenon_plugin_boolean(const char* config, const char* key, int* value) {
  const char* const at = tenon_plugin_find(config, key);
  if (at == NULL) return 0;
  if (strncmp(at, "true", 4) != 0 && strncmp(at, "false", 5) != 0) return -1;
  *value = *at == 't';
  return 1;
}

/* Four hexadecimal digits, or -1. */
static inline int32_t tenon_plugin_hex4(const char* digits) {
  int32_t value = 0;
  int i;
  for (i = 0; i < 4; ++i) {
    const char c = digits[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/* Writes one character as 1 to 4 bytes of UTF-8; returns the number of bytes. */
static inline int tenon_plugin_encode(int32_t character, char* out) {
  const int n = character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
  static const unsigned char heads[5] = {0, 0x00, 0xC0, 0xE0, 0xF0};
  int i;
  for (i = n - 1; i > 0; --i) {
    out[i] = (char)(0x80 | (character & 0x3F));
    character >>= 6;
  }
  out[0] = (char)(heads[n] | character);
  return n;
}

/* The next character of a string: writes its bytes in UTF-8 (at most 4) and returns their number, 0 at the
 * end of the string, or -1 if the string is malformed. */
static inline int tenon_plugin_character(const char** at, char* bytes) {
  static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  const char* c = *at;
  int32_t character, low = -1;
  if (*c == '"') return 0;
  if (*c == '\0') return -1;
  if (*c != '\\') {
    bytes[0] = *c;
    *at = c + 1;
    return 1;
  }
  ++c;
  if (*c != '\0' && strchr(names, *c) != NULL) {
    bytes[0] = meanings[strchr(names, *c) - names];
    *at = c + 1;
    return 1;
  }
  if (*c != 'u' || (character = tenon_plugin_hex4(c + 1)) <= 0) return -1;
  c += 5;
  if (character >= 0xD800 && character <= 0xDFFF) { /* one half of a pair */
    if (character < 0xDC00 && c[0] == '\\' && c[1] == 'u') low = tenon_plugin_hex4(c + 2);
    if (low < 0xDC00 || low > 0xDFFF) return -1;
    character = 0x10000 + ((character - 0xD800) << 10) + (low - 0xDC00);
    c += 6;
  }
  *at = c;
  return tenon_plugin_encode(character, bytes);
}

/* The string in UTF-8 with a NUL. size: the size of value, at least 1. After a failure, value may contain a
 * part of the string. */
static inline int tenon_plugin_string(const char* config, const char* key, char* value, size_t size) {
  const char* at = tenon_plugin_find(config, key);
  size_t length = 0;
  char bytes[4];
  int n;
  if (at == NULL) return 0;
  if (*at++ != '"') return -1;
  while ((n = tenon_plugin_character(&at, bytes)) > 0) {
    if (length + (size_t)n >= size) return -1;
    memcpy(value + length, bytes, (size_t)n);
    length += (size_t)n;
  }
  if (n < 0) return -1;
  value[length] = '\0';
  return 1;
}

#ifdef __cplusplus
}
#endif

#endif /* TENON_PLUGIN_H_ */
