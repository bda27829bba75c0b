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
  PyObject* kind;       // of a batch: tuple, list or dict
  PyObject* names;      // a tuple of the keys of a dict, in their order; None for others
  PyObject* tensor;     // `torch.Tensor`
  PyObject* is_nested;  // "is_nested"
  PyObject* data_ptr;   // "data_ptr"
  PyObject* are_alike;  // tells whether tensors are like the first batch's
  Column* columns;
  Py_ssize_t count;     // of tensors in a batch, at most MOST
} Packer;

enum {
  MOST = 64,        // tensors in a batch
  LONG = 1 << 20,   // bytes of a tensor that other threads do not wait for
};

// Whether a dict has these names in this order; its values go to `leaves`.
static int take_values(const Packer* self, PyObject* batch, PyObject** leaves) {
  if (PyDict_GET_SIZE(batch) != self->count) return 0;
  PyObject *key, *value;
  Py_ssize_t position = 0;
  for (Py_ssize_t i = 0; i < self->count && PyDict_Next(batch, &position, &key, &value); ++i) {
    PyObject* name = PyTuple_GET_ITEM(self->names, i);
    // To compare others may run code, which may change the batch.
    if (key != name && !(PyUnicode_CheckExact(key) && PyUnicode_Compare(key, name) == 0)) return 0;
    leaves[i] = value;
  }
  return 1;
}

// Whether a batch is of the kind and has as many items, which go to `leaves`.
static int take_apart(const Packer* self, PyObject* batch, PyObject** leaves) {
  if ((PyObject*)Py_TYPE(batch) != self->kind) return 0;
  if (self->names != Py_None) return take_values(self, batch, leaves);
  if (PySequence_Fast_GET_SIZE(batch) != self->count) return 0;
  memcpy(leaves, PySequence_Fast_ITEMS(batch), self->count * sizeof(PyObject*));
  return 1;
}

// Whether the items are tensors of torch's own type, with no attributes of the user's, and like the first batch's; -1
// for an error.
static int are_alike(const Packer* self, PyObject** leaves) {
  for (Py_ssize_t i = 0; i < self->count; ++i) {
    if ((PyObject*)Py_TYPE(leaves[i]) != self->tensor) return 0;
    PyObject* nested = PyObject_GetAttr(leaves[i], self->is_nested);
    if (nested == NULL) return -1;
    Py_DECREF(nested);
    if (nested != Py_False) return 0;
    PyObject* attributes = PyObject_GenericGetDict(leaves[i], NULL);
    if (attributes == NULL) return -1;
    Py_ssize_t held = PyDict_GET_SIZE(attributes);
    Py_DECREF(attributes);
    if (held > 0) return 0;
  }
  size_t count = (size_t)self->count | PY_VECTORCALL_ARGUMENTS_OFFSET;
  PyObject* alike = PyObject_Vectorcall(self->are_alike, leaves, count, NULL);
  if (alike == NULL) return -1;
  Py_DECREF(alike);
  return alike == Py_True;
}

static int copy_into_place(const Packer* self, PyObject** leaves, Py_ssize_t number) {
  for (Py_ssize_t i = 0; i < self->count; ++i) {
    const Column* column = &self->columns[i];
    PyObject* address = PyObject_CallMethodNoArgs(leaves[i], self->data_ptr);
    if (address == NULL) return -1;
    const void* source = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    if (column->bytes == 0) continue;
    if (source == NULL) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a tensor of the batch has no memory");
      return -1;
    }
    char* target = column->begin + number * column->step;
    if (column->bytes < LONG) {
      memcpy(target, source, column->bytes);
    } else {
      Py_BEGIN_ALLOW_THREADS
      memcpy(target, source, column->bytes);
      Py_END_ALLOW_THREADS
    }
  }
  return 0;
}

// packer(batch, number): whether the batch is like the others, and lies in the place of that number now.
static PyObject* pack(PyObject* object, PyObject* const* arguments, size_t flags, PyObject* names) {
  const Packer* self = (Packer*)object;
  if (PyVectorcall_NARGS(flags) != 2 || names != NULL) {
    PyErr_SetString(PyExc_TypeError, "a packer takes a batch and a number");
    return NULL;
  }
  Py_ssize_t number = PyLong_AsSsize_t(arguments[1]);
  if (number == -1 && PyErr_Occurred()) return NULL;
  PyObject* items[MOST + 1];
  PyObject** leaves = items + 1;  // who is called with them may use the place before them
  if (!take_apart(self, arguments[0], leaves)) Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < self->count; ++i) Py_INCREF(leaves[i]);
  int is_packed = are_alike(self, leaves);
  if (is_packed > 0 && copy_into_place(self, leaves, number) < 0) is_packed = -1;
  for (Py_ssize_t i = 0; i < self->count; ++i) Py_DECREF(leaves[i]);
  return is_packed < 0 ? NULL : PyBool_FromLong(is_packed);
}

static void forget(PyObject* object) {
  Packer* self = (Packer*)object;
  PyTypeObject* type = Py_TYPE(object);
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
  self->columns = PyMem_New(Column, self->count);
  if (self->is_nested == NULL || self->data_ptr == NULL || self->columns == NULL) {
    Py_DECREF(self);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
  }
  for (Py_ssize_t i = 0; i < self->count; ++i) {
    PyObject *begin, *column = PyList_GET_ITEM(columns, i);
    Py_ssize_t step, bytes;
    if (!PyArg_Parse(column, "(O!nn)", &PyLong_Type, &begin, &step, &bytes)) break;
    self->columns[i] = (Column){PyLong_AsVoidPtr(begin), step, bytes};
    if (PyErr_Occurred()) break;
  }
  if (self->count > MOST) PyErr_SetString(PyExc_ValueError, "a packer takes batches of at most MOST tensors");
  if (!PyErr_Occurred()) return (PyObject*)self;
  Py_DECREF(self);
  return NULL;
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Packer, call), READONLY, NULL},
    {NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, make}, {Py_tp_dealloc, forget}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, members}, {0, NULL},
};
static PyType_Spec spec = {
    .name = "lightning_sink.data.packing.Packer",
    .basicsize = sizeof(Packer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = slots,
};

static int fill(PyObject* module) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == NULL || PyModule_AddObject(module, "Packer", type) < 0) {
    Py_XDECREF(type);
    return -1;
  }
  return PyModule_AddIntConstant(module, "MOST", MOST);
}

// In two phases: one of a single phase is put into `sys.modules`, in the place of who has its name there.
static PyModuleDef_Slot phases[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "packing", .m_slots = phases};

PyMODINIT_FUNC PyInit_packing(void) { return PyModuleDef_Init(&definition); }
