/* SPDX-License-Identifier: Apache-2.0
 *
 * A function of an extension that uses a buffer of an object while it calls a function of Python's. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

/* Takes a buffer, copies its first half, calls between(), copies the second half, releases the buffer. Gives
 * a bytes object. For ctypes.PyDLL, which calls it with the GIL. */
__attribute__((visibility("default"))) PyObject* copy_in_halves(PyObject* object, PyObject* between) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) != 0) return NULL;
  PyObject* copied = PyBytes_FromStringAndSize(NULL, buffer.len);
  PyObject* answer = NULL;
  if (copied != NULL) {
    char* const to = PyBytes_AsString(copied);
    const Py_ssize_t half = buffer.len / 2;
    memcpy(to, buffer.buf, (size_t)half);
    answer = PyObject_CallNoArgs(between);
    memcpy(to + half, (const char*)buffer.buf + half, (size_t)(buffer.len - half));
  }
  PyBuffer_Release(&buffer);
  if (answer == NULL) Py_CLEAR(copied);
  Py_XDECREF(answer);
  return copied;
}
