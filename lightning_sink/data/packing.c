// Puts batches into their places: what is done for each of very many, without the interpreter's part of it.
//
// `packing.py` compiles this, and does the same in Python where that cannot be done. It uses nothing but Python's own
// interface: of a tensor it asks what Python would ask.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <string.h>
#include <structmember.h>

typedef struct {
  char* begin;       // where the first batch's tensor goes
  Py_ssize_t step;   // bytes from one batch's to the next one's
  Py_ssize_t bytes;  // of each
} Column;

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* kind;        // of a batch: tuple, list or dict
  PyObject* names;       // a tuple of the keys of a dict, in their order; None for others
  PyObject* tensor;      // `torch.Tensor`
  PyObject* is_nested;   // "is_nested"
  PyObject* data_ptr;    // "data_ptr"
  PyObject* are_alike;   // tells whether tensors are like the first batch's
  PyObject** leaves;     // the items of the present batch; one place before them is free
  Column* columns;
  Py_ssize_t count;      // of tensors in a batch
} Packer;

// Whether a dict has these names in this order; its values go to `leaves`.
static int take_values(Packer* self, PyObject* batch) {
  if (PyDict_GET_SIZE(batch) != self->count) return 0;
  PyObject *key, *value;
  Py_ssize_t position = 0;
  for (Py_ssize_t i = 0; i < self->count && PyDict_Next(batch, &position, &key, &value); ++i) {
    PyObject* name = PyTuple_GET_ITEM(self->names, i);
    // To compare others may run code, which may change the batch.
    if (key != name && !(PyUnicode_CheckExact(key) && PyUnicode_Compare(key, name) == 0)) return 0;
    self->leaves[i] = value;
  }
  return 1;
}

// Whether a batch is of the kind and has as many items, which go to `leaves`.
static int take_apart(Packer* self, PyObject* batch) {
  if ((PyObject*)Py_TYPE(batch) != self->kind) return 0;
  if (self->names != Py_None) return take_values(self, batch);
  if (PySequence_Fast_GET_SIZE(batch) != self->count) return 0;
  memcpy(self->leaves, PySequence_Fast_ITEMS(batch), self->count * sizeof(PyObject*));
  return 1;
}

// Whether the items are tensors of torch's own type, with no attributes of the user's, and like the first batch's; -1
// for an error.
static int are_alike(Packer* self) {
  for (Py_ssize_t i = 0; i < self->count; ++i) {
    if ((PyObject*)Py_TYPE(self->leaves[i]) != self->tensor) return 0;
    PyObject* nested = PyObject_GetAttr(self->leaves[i], self->is_nested);
    if (nested == NULL) return -1;
    Py_DECREF(nested);
    if (nested != Py_False) return 0;
    PyObject* attributes = PyObject_GenericGetDict(self->leaves[i], NULL);
    if (attributes == NULL) return -1;
    Py_ssize_t held = PyDict_GET_SIZE(attributes);
    Py_DECREF(attributes);
    if (held > 0) return 0;
  }
  size_t count = (size_t)self->count | PY_VECTORCALL_ARGUMENTS_OFFSET;
  PyObject* alike = PyObject_Vectorcall(self->are_alike, self->leaves, count, NULL);
  if (alike == NULL) return -1;
  Py_DECREF(alike);
  return alike == Py_True;
}

static int copy_into_place(Packer* self, Py_ssize_t number) {
  for (Py_ssize_t i = 0; i < self->count; ++i) {
    PyObject* address = PyObject_CallMethodNoArgs(self->leaves[i], self->data_ptr);
    if (address == NULL) return -1;
    void* source = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    if (source == NULL && PyErr_Occurred()) return -1;
    const Column* column = &self->columns[i];
    if (column->bytes > 0) memcpy(column->begin + number * column->step, source, column->bytes);
  }
  return 0;
}

// packer(batch, number): whether the batch is like the others, and lies in the place of that number now.
static PyObject* pack(PyObject* object, PyObject* const* arguments, size_t flags, PyObject* names) {
  Packer* self = (Packer*)object;
  if (PyVectorcall_NARGS(flags) != 2 || names != NULL) {
    PyErr_SetString(PyExc_TypeError, "a packer takes a batch and a number");
    return NULL;
  }
  Py_ssize_t number = PyLong_AsSsize_t(arguments[1]);
  if (number == -1 && PyErr_Occurred()) return NULL;
  if (!take_apart(self, arguments[0])) Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < self->count; ++i) Py_INCREF(self->leaves[i]);
  int is_packed = are_alike(self);
  if (is_packed > 0 && copy_into_place(self, number) < 0) is_packed = -1;
  for (Py_ssize_t i = 0; i < self->count; ++i) Py_DECREF(self->leaves[i]);
  return is_packed < 0 ? NULL : PyBool_FromLong(is_packed);
}

static void forget(PyObject* object) {
  Packer* self = (Packer*)object;
  PyTypeObject* type = Py_TYPE(object);
  if (self->leaves != NULL) PyMem_Free(self->leaves - 1);
  PyMem_Free(self->columns);
  Py_XDECREF(self->kind);
  Py_XDECREF(self->names);
  Py_XDECREF(self->tensor);
  Py_XDECREF(self->is_nested);
  Py_XDECREF(self->data_ptr);
  Py_XDECREF(self->are_alike);
  type->tp_free(object);
  Py_DECREF(type);
}

// Packer(kind, names, tensor, are_alike, [(begin, step, bytes), ...])
static PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* Py_UNUSED(keywords)) {
  PyObject *kind, *names, *tensor, *are_alike, *columns;
  if (!PyArg_ParseTuple(arguments, "OOOOO!", &kind, &names, &tensor, &are_alike, &PyList_Type, &columns)) return NULL;
  Packer* self = (Packer*)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  self->call = pack;
  Py_INCREF(kind), self->kind = kind;
  Py_INCREF(names), self->names = names;
  Py_INCREF(tensor), self->tensor = tensor;
  Py_INCREF(are_alike), self->are_alike = are_alike;
  self->is_nested = PyUnicode_InternFromString("is_nested");
  self->data_ptr = PyUnicode_InternFromString("data_ptr");
  self->count = PyList_GET_SIZE(columns);
  PyObject** leaves = PyMem_New(PyObject*, self->count + 1);
  self->leaves = leaves == NULL ? NULL : leaves + 1;
  self->columns = PyMem_New(Column, self->count);
  if (self->is_nested == NULL || self->data_ptr == NULL || leaves == NULL || self->columns == NULL) {
    Py_DECREF(self);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
  }
  for (Py_ssize_t i = 0; i < self->count; ++i) {
    PyObject* begin;
    Column* column = &self->columns[i];
    if (!PyArg_ParseTuple(PyList_GET_ITEM(columns, i), "O!nn", &PyLong_Type, &begin, &column->step, &column->bytes)) {
      Py_DECREF(self);
      return NULL;
    }
    column->begin = PyLong_AsVoidPtr(begin);
  }
  return (PyObject*)self;
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Packer, call), READONLY, NULL},
    {NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, make}, {Py_tp_dealloc, forget}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, members}, {0, NULL},
};
static PyType_Spec spec = {
    .name = "packing.Packer",
    .basicsize = sizeof(Packer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = slots,
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "packing", .m_size = -1};

PyMODINIT_FUNC PyInit_packing(void) {
  PyObject* module = PyModule_Create(&definition);
  PyObject* type = PyType_FromSpec(&spec);
  if (module == NULL || type == NULL || PyModule_AddObject(module, "Packer", type) < 0) return NULL;
  return module;
}
