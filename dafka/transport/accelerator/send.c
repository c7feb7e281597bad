/* Sending: lists of frames, and runs of records whose headers are written here. Large contents are lent to libzmq. */

#include "accelerator.h"

#include <stdatomic.h>

#define LOAN_BYTES_MIN 8192 /* smaller frames are copied, as libzmq does once more before it writes them */

/* A bytes object that libzmq reads where it lies. libzmq's threads give it back without the interpreter's lock: they
   put it on a stack, and the next call that has the lock takes all of them. */
typedef struct Loan {
    struct Loan *next;
    PyObject *octets;
} Loan;

static _Atomic(Loan *) returned_loans;

static void write_sequence(char *octets, uint64_t sequence)
{
    for (int index = SEQUENCE_BYTES - 1; index >= 0; index--, sequence >>= 8)
        octets[index] = (char)sequence;
}

static void return_loan(void *Py_UNUSED(data), void *hint)
{
    Loan *loan = hint;
    loan->next = atomic_load(&returned_loans);
    while (!atomic_compare_exchange_weak(&returned_loans, &loan->next, loan))
        ;
}

void take_back_loans(void)
{
    Loan *loan = atomic_exchange(&returned_loans, NULL);
    while (loan != NULL) {
        Loan *next = loan->next;
        Py_DECREF(loan->octets);
        free(loan);
        loan = next;
    }
}

/* Sends a frame that has been made, or closes it. */
static int send_frame(State *state, void *socket, zmq_msg_t *frame, int flags)
{
    int sent = GOT_ONE;
    while (sent == GOT_ONE && state->msg_send(frame, socket, ZMQ_DONTWAIT | flags) < 0) {
        int number = state->error_number();
        if (number == EAGAIN) {
            sent = GOT_NOTHING;
        } else if (number != EINTR) {
            raise_failure(state, number);
            sent = FAILED;
        } else if (PyErr_CheckSignals() < 0) {
            sent = FAILED;
        } else {
            continue;
        }
        state->msg_close(frame);
    }
    return sent;
}

static int send_copy(State *state, void *socket, const char *data, size_t size, int flags)
{
    zmq_msg_t frame;
    if (state->msg_init_size(&frame, size) < 0) {
        PyErr_NoMemory();
        return FAILED;
    }
    memcpy(state->msg_data(&frame), data, size);
    return send_frame(state, socket, &frame, flags);
}

/* `data` lies in `octets`. */
static int send_loan(State *state, void *socket, PyObject *octets, char *data, size_t size, int flags)
{
    zmq_msg_t frame;
    Loan *loan = malloc(sizeof *loan);
    if (loan == NULL || state->msg_init_data(&frame, data, size, return_loan, loan) < 0) {
        free(loan);
        PyErr_NoMemory();
        return FAILED;
    }
    Py_INCREF(octets);
    loan->octets = octets;
    return send_frame(state, socket, &frame, flags);
}

static int send_part(State *state, void *socket, PyObject *octets, char *data, size_t size, int flags)
{
    return size >= LOAN_BYTES_MIN ? send_loan(state, socket, octets, data, size, flags)
                                  : send_copy(state, socket, data, size, flags);
}

static int send_bytes(State *state, void *socket, PyObject *octets, int flags)
{
    return send_part(state, socket, octets, PyBytes_AsString(octets), (size_t)PyBytes_Size(octets), flags);
}

/* A tuple of bytes objects, so that nothing can go wrong once a message's first frame is on its way. */
static PyObject *as_frames(PyObject *sequence)
{
    PyObject *frames = PySequence_Tuple(sequence);
    for (Py_ssize_t index = 0; frames != NULL && index < PyTuple_Size(frames); index++) {
        PyObject *frame = PyTuple_GetItem(frames, index);
        if (!PyBytes_Check(frame)) {
            PyErr_Format(PyExc_TypeError, "a frame is bytes, not %R", (PyObject *)Py_TYPE(frame));
            Py_CLEAR(frames);
        }
    }
    return frames;
}

static int send_message(State *state, void *socket, PyObject *message)
{
    PyObject *frames = as_frames(message);
    if (frames == NULL)
        return FAILED;
    Py_ssize_t last = PyTuple_Size(frames) - 1;
    int sent = GOT_ONE;
    if (last < 0) {
        PyErr_SetString(PyExc_IndexError, "a message has at least one frame");
        sent = FAILED;
    }
    for (Py_ssize_t index = 0; index <= last && sent == GOT_ONE; index++)
        sent = send_bytes(state, socket, PyTuple_GetItem(frames, index), index < last ? ZMQ_SNDMORE : 0);
    Py_DECREF(frames);
    return sent;
}

/* What is written of a run: its contents are a tuple of bytes objects, or packed. */
typedef struct {
    PyObject *topic; /* or None */
    char *header;
    size_t header_size;
    uint64_t sequence;
    PyObject *listed;
    PyObject *octets;
    PyObject *lengths;
    Py_ssize_t count;
} Records;

static size_t read_length(const char *octets)
{
    size_t length = 0;
    for (int index = 0; index < LENGTH_BYTES; index++)
        length = length << 8 | (unsigned char)octets[index];
    return length;
}

/* Reads the contents, and sees that what is packed is whole. */
static int read_contents(State *state, PyObject *contents, Records *records)
{
    if ((PyObject *)Py_TYPE(contents) != state->packed_class) {
        records->listed = as_frames(contents);
        records->count = records->listed == NULL ? 0 : PyTuple_Size(records->listed);
        return records->listed == NULL ? -1 : 0;
    }
    records->octets = PyObject_GetAttr(contents, state->octets_name);
    records->lengths = PyObject_GetAttr(contents, state->lengths_name);
    if (records->octets == NULL || records->lengths == NULL)
        return -1;
    if (!PyBytes_Check(records->octets) || !PyBytes_Check(records->lengths)) {
        PyErr_SetString(PyExc_TypeError, "packed contents are bytes");
        return -1;
    }
    records->count = PyBytes_Size(records->lengths) / LENGTH_BYTES;
    const char *lengths = PyBytes_AsString(records->lengths);
    size_t size = 0;
    for (Py_ssize_t index = 0; index < records->count; index++)
        size += read_length(lengths + LENGTH_BYTES * index);
    if (size != (size_t)PyBytes_Size(records->octets)) {
        PyErr_SetString(PyExc_ValueError, "the lengths of packed contents do not add up");
        return -1;
    }
    return 0;
}

static int send_records(State *state, void *socket, const Records *records, Py_ssize_t *sent_count)
{
    char *packed = records->listed == NULL ? PyBytes_AsString(records->octets) : NULL;
    const char *lengths = records->listed == NULL ? PyBytes_AsString(records->lengths) : NULL;
    for (Py_ssize_t index = 0; index < records->count; index++) {
        write_sequence(records->header + records->header_size - SEQUENCE_BYTES, records->sequence + (uint64_t)index);
        int sent = GOT_ONE;
        if (records->topic != Py_None)
            sent = send_bytes(state, socket, records->topic, ZMQ_SNDMORE);
        if (sent == GOT_ONE)
            sent = send_copy(state, socket, records->header, records->header_size, ZMQ_SNDMORE);
        if (records->listed != NULL) {
            if (sent == GOT_ONE)
                sent = send_bytes(state, socket, PyTuple_GetItem(records->listed, index), 0);
        } else {
            size_t size = read_length(lengths + LENGTH_BYTES * index);
            if (sent == GOT_ONE)
                sent = send_part(state, socket, records->octets, packed, size, 0);
            packed += size;
        }
        if (sent == FAILED)
            return -1;
        *sent_count += sent;
    }
    return 0;
}

static int send_run(State *state, void *socket, PyObject *run, Py_ssize_t *sent_count)
{
    int result = -1;
    Records records = {.topic = PyObject_GetAttr(run, state->topic_frame_name)};
    PyObject *stem = PyObject_GetAttr(run, state->stem_name);
    PyObject *first = PyObject_GetAttr(run, state->first_sequence_name);
    PyObject *contents = PyObject_GetAttr(run, state->contents_name);
    if (records.topic == NULL || stem == NULL || first == NULL || contents == NULL
        || read_contents(state, contents, &records) < 0)
        goto done;
    if (!PyBytes_Check(stem) || !(records.topic == Py_None || PyBytes_Check(records.topic))) {
        PyErr_SetString(PyExc_TypeError, "the topic frame and the stem of a run are bytes");
        goto done;
    }
    records.sequence = PyLong_AsUnsignedLongLong(first);
    if (records.sequence == UINT64_MAX && PyErr_Occurred())
        goto done;
    if (records.count > 0 && (uint64_t)records.count - 1 > UINT64_MAX - records.sequence) {
        PyErr_SetString(PyExc_OverflowError, "the run goes beyond the last sequence that a header can hold");
        goto done;
    }
    size_t stem_size = (size_t)PyBytes_Size(stem);
    records.header_size = stem_size + SEQUENCE_BYTES;
    records.header = malloc(records.header_size);
    if (records.header == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    memcpy(records.header, PyBytes_AsString(stem), stem_size);
    result = send_records(state, socket, &records, sent_count);
done:
    free(records.header);
    Py_XDECREF(records.topic);
    Py_XDECREF(records.listed);
    Py_XDECREF(records.octets);
    Py_XDECREF(records.lengths);
    Py_XDECREF(stem);
    Py_XDECREF(first);
    Py_XDECREF(contents);
    return result;
}

PyObject *accelerator_send(PyObject *module, PyObject *arguments)
{
    State *state = opened_state(module);
    PyObject *handle, *messages;
    if (state == NULL || !PyArg_ParseTuple(arguments, "OO", &handle, &messages))
        return NULL;
    void *socket = as_socket(state, handle);
    PyObject *iterator = socket == NULL ? NULL : PyObject_GetIter(messages);
    if (iterator == NULL)
        return NULL;
    take_back_loans();
    Py_ssize_t count = 0;
    PyObject *item;
    while ((item = PyIter_Next(iterator)) != NULL) {
        int failed;
        if ((PyObject *)Py_TYPE(item) == state->run_class) {
            failed = send_run(state, socket, item, &count) < 0;
        } else {
            int sent = send_message(state, socket, item);
            failed = sent == FAILED;
            count += sent == GOT_ONE;
        }
        Py_DECREF(item);
        if (failed)
            break;
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(count);
}
