/* The extension module: its connection to libzmq, and the helpers that its functions share. */

#include "accelerator.h"

#include <dlfcn.h>

#define INTERFACE 7 /* increased with every change that Python code depends on */

void raise_failure(State *state, int number)
{
    PyObject *error = PyObject_CallFunction(state->failure, "i", number);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
}

State *opened_state(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (state != NULL && !state->is_open) {
        PyErr_SetString(PyExc_RuntimeError, "the accelerator has not been connected to libzmq");
        return NULL;
    }
    return state;
}

void *as_socket(State *state, PyObject *handle)
{
    void *socket = PyLong_AsVoidPtr(handle);
    if (socket == NULL && !PyErr_Occurred())
        raise_failure(state, ENOTSOCK);
    return socket;
}

static int look_up(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        PyErr_Format(PyExc_OSError, "pyzmq's library has no %s", name);
        return -1;
    }
    memcpy(function, &found, sizeof found);
    return 0;
}

static void replace_object(PyObject **field, PyObject *object)
{
    PyObject *former = *field;
    Py_INCREF(object);
    *field = object;
    Py_XDECREF(former);
}

PyDoc_STRVAR(connect_doc,
"connect(path, run_class, packed_class, failure, /)\n--\n\n"
"Look up libzmq's functions through the loaded library at `path`, and return its version, (major, minor, patch).\n"
"`run_class` creates runs, `packed_class` their contents, and `failure(number)` the exception for an error. Raise\n"
"OSError if a function is missing.");

static PyObject *accelerator_connect(PyObject *module, PyObject *arguments)
{
    State *state = PyModule_GetState(module);
    PyObject *run_class, *packed_class, *failure;
    const char *path;
    if (state == NULL || !PyArg_ParseTuple(arguments, "sOOO", &path, &run_class, &packed_class, &failure))
        return NULL;
    /* Never closed: pyzmq's module stays loaded until the process ends. */
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) {
        PyErr_Format(PyExc_OSError, "pyzmq's library is not loaded from %s", path);
        return NULL;
    }
    state->is_open = 0;
    if (look_up(library, "zmq_msg_init", &state->msg_init) < 0
        || look_up(library, "zmq_msg_init_size", &state->msg_init_size) < 0
        || look_up(library, "zmq_msg_init_data", &state->msg_init_data) < 0
        || look_up(library, "zmq_msg_send", &state->msg_send) < 0
        || look_up(library, "zmq_msg_recv", &state->msg_recv) < 0
        || look_up(library, "zmq_msg_close", &state->msg_close) < 0
        || look_up(library, "zmq_msg_more", &state->msg_more) < 0
        || look_up(library, "zmq_msg_get", &state->msg_get) < 0
        || look_up(library, "zmq_msg_data", &state->msg_data) < 0
        || look_up(library, "zmq_msg_size", &state->msg_size) < 0
        || look_up(library, "zmq_errno", &state->error_number) < 0
        || look_up(library, "zmq_version", &state->version) < 0)
        return NULL;
    replace_object(&state->run_class, run_class);
    replace_object(&state->packed_class, packed_class);
    replace_object(&state->failure, failure);
    state->is_open = 1;
    int major, minor, patch;
    state->version(&major, &minor, &patch);
    return Py_BuildValue("iii", major, minor, patch);
}

static int module_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->topic_frame_name = PyUnicode_InternFromString("topic_frame");
    state->header_prefix_name = PyUnicode_InternFromString("header_prefix");
    state->first_sequence_name = PyUnicode_InternFromString("first_sequence");
    state->contents_name = PyUnicode_InternFromString("contents");
    state->data_name = PyUnicode_InternFromString("data");
    state->lengths_name = PyUnicode_InternFromString("lengths");
    if (!state->topic_frame_name || !state->header_prefix_name || !state->first_sequence_name || !state->contents_name
        || !state->data_name || !state->lengths_name)
        return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_VISIT(state->run_class);
        Py_VISIT(state->packed_class);
        Py_VISIT(state->failure);
    }
    return 0;
}

static int module_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (state != NULL) {
        state->is_open = 0;
        Py_CLEAR(state->run_class);
        Py_CLEAR(state->packed_class);
        Py_CLEAR(state->failure);
        Py_CLEAR(state->topic_frame_name);
        Py_CLEAR(state->header_prefix_name);
        Py_CLEAR(state->first_sequence_name);
        Py_CLEAR(state->contents_name);
        Py_CLEAR(state->data_name);
        Py_CLEAR(state->lengths_name);
    }
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

PyDoc_STRVAR(receive_doc,
"receive(handle, count_max, items_max, bytes_max, frame_bytes, gathers_runs, /)\n--\n\n"
"Return up to `count_max` waiting messages, as up to `items_max` items. The message that reaches `bytes_max` bytes is\n"
"the last; each frame counts as `frame_bytes` more than its size. Each message is a list of frames. With\n"
"`gathers_runs`, consecutive records of a partition are one EncodedRun at the position of the first record.");

PyDoc_STRVAR(receive_sourced_doc,
"receive_sourced(handle, count_max, bytes_max, frame_bytes, /)\n--\n\n"
"Return up to `count_max` waiting messages as tuples: the descriptor that the message arrived on, or -1, and the list\n"
"of its frames. The limits are those of `receive`.");

PyDoc_STRVAR(send_doc,
"send(handle, messages, tally, /)\n--\n\n"
"Queue messages (sequences of frames, and EncodedRuns) without waiting, and return how many were queued. A message\n"
"that does not fit is dropped. The tally, or None, counts the large frames of messages that are not EncodedRuns.");

PyDoc_STRVAR(open_tally_doc,
"open_tally()\n--\n\n"
"Return a tally, which counts the bytes that libzmq has been lent and has not returned.");

PyDoc_STRVAR(count_lent_doc,
"count_lent(tally, /)\n--\n\n"
"Return the bytes that a tally counts.");

static PyMethodDef functions[] = {
    {"connect", accelerator_connect, METH_VARARGS, connect_doc},
    {"receive", accelerator_receive, METH_VARARGS, receive_doc},
    {"receive_sourced", accelerator_receive_sourced, METH_VARARGS, receive_sourced_doc},
    {"send", accelerator_send, METH_VARARGS, send_doc},
    {"open_tally", accelerator_open_tally, METH_NOARGS, open_tally_doc},
    {"count_lent", accelerator_count_lent, METH_O, count_lent_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_accelerator",
    .m_doc = "Receive and send ZeroMQ messages in batches; see dafka/transport/loops.py.",
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
