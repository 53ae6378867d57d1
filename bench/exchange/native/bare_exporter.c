/* SPDX-License-Identifier: Apache-2.0
 *
 * BareExporter(source): the least that an object can do to lend its memory through the buffer protocol and to
 * learn when the last borrower has gone. It counts its exports in plain integers; nothing more. This is the
 * peer of np.asarray(ndarray): what an exporter costs that promises nothing about write access.
 *
 * It lends the memory of `source`, which it keeps.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

typedef struct {
  PyObject_HEAD Py_buffer lent; /* what every consumer gets; taken from the source once */
  Py_ssize_t open;
  Py_ssize_t taken;
} BareExporter;

static int get_buffer(PyObject* object, Py_buffer* view, int flags) {
  BareExporter* self = (BareExporter*)object;
  if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES) {
    PyErr_SetString(PyExc_BufferError, "this exporter serves consumers that take strides");
    view->obj = NULL;
    return -1;
  }
  *view = self->lent;
  if ((flags & PyBUF_FORMAT) != PyBUF_FORMAT) view->format = NULL;
  view->obj = Py_NewRef(object);
  view->internal = NULL;
  ++self->open;
  ++self->taken;
  return 0;
}

static void release_buffer(PyObject* object, Py_buffer* view) {
  (void)view;
  --((BareExporter*)object)->open;
}

static PyObject* new_exporter(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  PyObject* source;
  if (keywords != NULL) return PyErr_Format(PyExc_TypeError, "BareExporter() takes no keywords");
  if (!PyArg_ParseTuple(arguments, "O", &source)) return NULL;
  BareExporter* self = (BareExporter*)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  if (PyObject_GetBuffer(source, &self->lent, PyBUF_FULL) < 0) {
    Py_DECREF(self);
    return NULL;
  }
  return (PyObject*)self;
}

static void dealloc(PyObject* object) {
  PyBuffer_Release(&((BareExporter*)object)->lent);
  Py_TYPE(object)->tp_free(object);
}

static PyObject* counts(PyObject* object, PyObject* unused) {
  (void)unused;
  BareExporter* self = (BareExporter*)object;
  return Py_BuildValue("nn", self->open, self->taken);
}

static PyMethodDef methods[] = {
    {"counts", counts, METH_NOARGS, "(buffers that are open, buffers ever taken)"},
    {NULL, NULL, 0, NULL},
};

static PyBufferProcs buffer_procs = {get_buffer, release_buffer};

static PyTypeObject bare_exporter_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "bare_exporter.BareExporter",
    .tp_doc = "BareExporter(source): lends the memory of source and counts.",
    .tp_basicsize = sizeof(BareExporter),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new_exporter,
    .tp_dealloc = dealloc,
    .tp_methods = methods,
    .tp_as_buffer = &buffer_procs,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "bare_exporter",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit_bare_exporter(void) {
  PyObject* self = PyModule_Create(&module);
  if (self == NULL || PyModule_AddType(self, &bare_exporter_type) < 0) return NULL;
  return self;
}
