/* The extension module. */

#include "records.h"

#define INTERFACE 3 /* increased with every change that Python code depends on */

State *connected_state(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (state != NULL && (state->batch_error == NULL || state->packed_class == NULL)) {
        PyErr_SetString(PyExc_RuntimeError, "connect has not been called");
        return NULL;
    }
    return state;
}

static void replace_object(PyObject **field, PyObject *object)
{
    PyObject *former = *field;
    Py_INCREF(object);
    *field = object;
    Py_XDECREF(former);
}

PyDoc_STRVAR(connect_doc,
"connect(batch_error, packed_class, /)\n--\n\n"
"Set the exception for malformed records, and the class of packed contents.");

static PyObject *accelerator_connect(PyObject *module, PyObject *arguments)
{
    State *state = PyModule_GetState(module);
    PyObject *batch_error, *packed_class;
    if (state == NULL || !PyArg_ParseTuple(arguments, "OO", &batch_error, &packed_class))
        return NULL;
    replace_object(&state->batch_error, batch_error);
    replace_object(&state->packed_class, packed_class);
    Py_RETURN_NONE;
}

static int module_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->data_name = PyUnicode_InternFromString("data");
    state->lengths_name = PyUnicode_InternFromString("lengths");
    if (state->data_name == NULL || state->lengths_name == NULL)
        return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_VISIT(state->batch_error);
        Py_VISIT(state->packed_class);
    }
    return 0;
}

static int module_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_CLEAR(state->batch_error);
        Py_CLEAR(state->packed_class);
        Py_CLEAR(state->data_name);
        Py_CLEAR(state->lengths_name);
    }
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

PyDoc_STRVAR(read_records_doc,
"read_records(*batches, /)\n--\n\n"
"Return the values, keys, encoded headers and times of the records of batches, each (data, position, count,\n"
"base_timestamp). The times are one number if all are equal, otherwise bytes: native numbers of 64 bits. See\n"
"dafka/batches/reading.py.");

PyDoc_STRVAR(scan_records_doc,
"scan_records(*batches, /)\n--\n\n"
"Check records as `read_records` does, and return the size of their values and their times; None if a record has a key\n"
"or headers, or has no value.");

PyDoc_STRVAR(write_records_doc,
"write_records(values, keys, blocks, times, bytes_max, count_max, /)\n--\n\n"
"Return records as batches contain them: a list of (count, base_time, max_time, data). The times are None or a buffer\n"
"of native numbers of 64 bits. See dafka/batches/writing.py.");

PyDoc_STRVAR(pack_doc,
"pack(contents, /)\n--\n\n"
"Return bytes objects as packed contents. Raises TypeError if one is something else.");

static PyMethodDef functions[] = {
    {"connect", accelerator_connect, METH_VARARGS, connect_doc},
    {"read_records", accelerator_read_records, METH_VARARGS, read_records_doc},
    {"scan_records", accelerator_scan_records, METH_VARARGS, scan_records_doc},
    {"write_records", accelerator_write_records, METH_VARARGS, write_records_doc},
    {"pack", accelerator_pack, METH_O, pack_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_accelerator",
    .m_doc = "Read and write the records of batches; see dafka/batches/codec.py.",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__accelerator(void)
{
    return PyModuleDef_Init(&definition);
}
