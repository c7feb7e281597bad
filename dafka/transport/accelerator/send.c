/* Send lists of frames, and runs of records. The headers of a run are written here. Large frames are lent to libzmq. */

#include "accelerator.h"

#include <stdatomic.h>

#define LOAN_BYTES_MIN 1024 /* smaller frames of a single message are copied */
#define INLINE_BYTES_MAX 33 /* libzmq stores frames up to this size in the message itself */
#define UNLOCKED_RECORDS_MIN 64 /* fewer records are not worth releasing the GIL */

/* Memory that libzmq reads without copying it: that of `owner`, and `piece`, which belongs to the loan. libzmq's threads
   return the frames without the GIL. When the last frame is returned, the loan is put on a stack, which the next call
   with the GIL empties. */
typedef struct Loan {
    struct Loan *next;
    PyObject *owner;
    char *piece;
    PyObject *tally; /* counts `tallied` bytes until the loan is released; NULL if nothing counts them */
    size_t tallied;
    atomic_size_t frames; /* LENDERS_SHARE less the returned frames; once closed, the frames not returned yet */
} Loan;

#define LENDERS_SHARE (SIZE_MAX / 2) /* keeps a loan from being released before `close_loan` */

static _Atomic(Loan *) returned_loans;

static void write_sequence(char *bytes, uint64_t sequence)
{
    for (int index = SEQUENCE_BYTES - 1; index >= 0; index--, sequence >>= 8)
        bytes[index] = (char)sequence;
}

static void release_frames(Loan *loan, size_t count)
{
    if (atomic_fetch_sub(&loan->frames, count) != count)
        return;
    loan->next = atomic_load(&returned_loans);
    while (!atomic_compare_exchange_weak(&returned_loans, &loan->next, loan))
        ;
}

static void return_frame(void *Py_UNUSED(data), void *hint)
{
    release_frames(hint, 1);
}

#define TALLY "dafka.transport.lent_bytes"

static void free_tally(PyObject *tally)
{
    free(PyCapsule_GetPointer(tally, TALLY));
}

PyObject *accelerator_open_tally(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    size_t *bytes = calloc(1, sizeof *bytes);
    PyObject *tally = bytes == NULL ? PyErr_NoMemory() : PyCapsule_New(bytes, TALLY, free_tally);
    if (tally == NULL)
        free(bytes);
    return tally;
}

PyObject *accelerator_count_lent(PyObject *Py_UNUSED(module), PyObject *tally)
{
    release_returned_loans();
    size_t *bytes = PyCapsule_GetPointer(tally, TALLY);
    return bytes == NULL ? NULL : PyLong_FromSize_t(*bytes);
}

/* Counts the bytes of a loan until it is released. The caller has checked that `tally` is one. */
static void tally_loan(Loan *loan, PyObject *tally, size_t size)
{
    Py_INCREF(tally);
    loan->tally = tally;
    loan->tallied = size;
    *(size_t *)PyCapsule_GetPointer(tally, TALLY) += size;
}

void release_returned_loans(void)
{
    Loan *loan = atomic_exchange(&returned_loans, NULL);
    while (loan != NULL) {
        Loan *next = loan->next;
        if (loan->tally != NULL)
            *(size_t *)PyCapsule_GetPointer(loan->tally, TALLY) -= loan->tallied;
        Py_XDECREF(loan->tally);
        Py_DECREF(loan->owner);
        free(loan->piece);
        free(loan);
        loan = next;
    }
}

/* Opens a loan of an object's memory and of a piece of this size. The caller closes it when all frames are lent. */
static Loan *open_loan(PyObject *owner, size_t piece_size)
{
    Loan *loan = malloc(sizeof *loan);
    char *piece = piece_size > 0 ? malloc(piece_size) : NULL;
    if (loan == NULL || (piece_size > 0 && piece == NULL)) {
        free(loan);
        free(piece);
        PyErr_NoMemory();
        return NULL;
    }
    Py_INCREF(owner);
    loan->owner = owner;
    loan->piece = piece;
    loan->tally = NULL;
    atomic_init(&loan->frames, LENDERS_SHARE);
    return loan;
}

static void close_loan(Loan *loan, size_t frames_lent)
{
    release_frames(loan, LENDERS_SHARE - frames_lent);
}

/* Sends a frame, or closes it. Returns 0, or libzmq's error number. */
static int send_frame(State *state, void *socket, zmq_msg_t *frame, int flags)
{
    while (state->msg_send(frame, socket, ZMQ_DONTWAIT | flags) < 0) {
        int number = state->error_number();
        if (number == EINTR)
            continue; /* Python handles the signal after this call, which does not block */
        state->msg_close(frame);
        return number;
    }
    return 0;
}

static int send_copy(State *state, void *socket, const char *data, size_t size, int flags)
{
    zmq_msg_t frame;
    if (state->msg_init_size(&frame, size) < 0)
        return ENOMEM;
    memcpy(state->msg_data(&frame), data, size);
    return send_frame(state, socket, &frame, flags);
}

/* Sends memory that belongs to a loan as a frame. Adds 1 to `lent` if libzmq will return the frame. */
static int send_lent(State *state, void *socket, Loan *loan, size_t *lent, char *data, size_t size, int flags)
{
    zmq_msg_t frame;
    if (size <= INLINE_BYTES_MAX)
        return send_copy(state, socket, data, size, flags);
    if (state->msg_init_data(&frame, data, size, return_frame, loan) < 0)
        return ENOMEM;
    *lent += 1;
    return send_frame(state, socket, &frame, flags);
}

/* Sends a frame of a single message. A tally that is not NULL counts what is lent. */
static int send_bytes(State *state, void *socket, PyObject *bytes, int flags, PyObject *tally)
{
    char *data = PyBytes_AsString(bytes);
    size_t size = (size_t)PyBytes_Size(bytes), lent = 0;
    if (size < LOAN_BYTES_MIN)
        return send_copy(state, socket, data, size, flags);
    Loan *loan = open_loan(bytes, 0);
    if (loan == NULL)
        return ENOMEM;
    if (tally != NULL)
        tally_loan(loan, tally, size);
    int number = send_lent(state, socket, loan, &lent, data, size, flags);
    close_loan(loan, lent);
    return number;
}

/* Returns the result of a message by libzmq's error number, or 0. If it is FAILED, sets an exception. */
static int send_result(State *state, int number)
{
    if (number == 0)
        return GOT_ONE;
    if (number == EAGAIN)
        return GOT_NOTHING;
    if (number == ENOMEM)
        PyErr_NoMemory();
    else
        raise_failure(state, number);
    return FAILED;
}

/* Returns a tuple of bytes objects, so that nothing can fail once the first frame of a message is sent. */
static PyObject *as_frames(PyObject *sequence)
{
    PyObject *frames = PySequence_Tuple(sequence);
    for (Py_ssize_t index = 0; frames != NULL && index < PyTuple_Size(frames); index++) {
        PyObject *frame = PyTuple_GetItem(frames, index);
        if (!PyBytes_Check(frame)) {
            PyErr_Format(PyExc_TypeError, "expected bytes as a frame, not %R", (PyObject *)Py_TYPE(frame));
            Py_CLEAR(frames);
        }
    }
    return frames;
}

static int send_message(State *state, void *socket, PyObject *message, PyObject *tally)
{
    PyObject *frames = as_frames(message);
    if (frames == NULL)
        return FAILED;
    Py_ssize_t last = PyTuple_Size(frames) - 1;
    int sent = GOT_ONE;
    if (last < 0) {
        PyErr_SetString(PyExc_IndexError, "expected at least one frame in a message");
        sent = FAILED;
    }
    for (Py_ssize_t index = 0; index <= last && sent == GOT_ONE; index++) {
        int flags = index < last ? ZMQ_SNDMORE : 0;
        sent = send_result(state, send_bytes(state, socket, PyTuple_GetItem(frames, index), flags, tally));
    }
    Py_DECREF(frames);
    return sent;
}

typedef struct {
    char *data;
    size_t size;
} Slice;

/* The frames of a run. All but `contents` are in memory that belongs to the loan. */
typedef struct {
    Slice topic; /* NULL if the header is the first frame */
    Slice headers; /* all headers, one after the other; `size` is that of one */
    Slice header_prefix;
    Slice *contents;
    size_t count;
    uint64_t first_sequence;
} Records;

static Slice slice_of(PyObject *bytes)
{
    return (Slice){PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes)};
}

static size_t read_length(const char *bytes)
{
    size_t length = 0;
    for (int index = 0; index < LENGTH_BYTES; index++)
        length = length << 8 | (unsigned char)bytes[index];
    return length;
}

static Slice *allocate_contents(size_t count)
{
    Slice *contents = malloc((count ? count : 1) * sizeof *contents);
    if (contents == NULL)
        PyErr_NoMemory();
    return contents;
}

/* Locates the contents in a tuple of bytes objects. */
static int find_listed(PyObject *listed, Records *records)
{
    records->count = (size_t)PyTuple_Size(listed);
    records->contents = allocate_contents(records->count);
    for (size_t index = 0; records->contents != NULL && index < records->count; index++)
        records->contents[index] = slice_of(PyTuple_GetItem(listed, (Py_ssize_t)index));
    return records->contents == NULL ? -1 : 0;
}

/* Locates the contents in packed bytes by their lengths, which must add up. */
static int find_packed(PyObject *bytes, PyObject *lengths, Records *records)
{
    if (!PyBytes_Check(bytes) || !PyBytes_Check(lengths)) {
        PyErr_SetString(PyExc_TypeError, "expected bytes as packed contents and as their lengths");
        return -1;
    }
    Slice rest = slice_of(bytes);
    records->count = (size_t)PyBytes_Size(lengths) / LENGTH_BYTES;
    records->contents = allocate_contents(records->count);
    if (records->contents == NULL)
        return -1;
    for (size_t index = 0; index < records->count; index++) {
        size_t size = read_length(PyBytes_AsString(lengths) + LENGTH_BYTES * index);
        if (size > rest.size) {
            rest.size = 1;
            break;
        }
        records->contents[index] = (Slice){rest.data, size};
        rest.data += size;
        rest.size -= size;
    }
    if (rest.size != 0) {
        PyErr_SetString(PyExc_ValueError, "the lengths of packed contents do not add up");
        return -1;
    }
    return 0;
}

/* Locates a run's contents. Returns the object that holds them, or NULL. */
static PyObject *find_contents(State *state, PyObject *contents, Records *records)
{
    if ((PyObject *)Py_TYPE(contents) != state->packed_class) {
        PyObject *listed = as_frames(contents);
        if (listed != NULL && find_listed(listed, records) < 0)
            Py_CLEAR(listed);
        return listed;
    }
    PyObject *bytes = PyObject_GetAttr(contents, state->data_name);
    PyObject *lengths = PyObject_GetAttr(contents, state->lengths_name);
    if (bytes == NULL || lengths == NULL || find_packed(bytes, lengths, records) < 0)
        Py_CLEAR(bytes);
    Py_XDECREF(lengths);
    return bytes;
}

/* Sends all records, and counts those that were queued. Returns 0, or libzmq's error number. Does not need the GIL. */
static int send_records(State *state, void *socket, const Records *records, Loan *loan, size_t *lent, size_t *sent)
{
    for (size_t index = 0; index < records->count; index++) {
        char *header = records->headers.data + index * records->headers.size;
        Slice content = records->contents[index];
        int number = 0;
        memcpy(header, records->header_prefix.data, records->header_prefix.size);
        write_sequence(header + records->header_prefix.size, records->first_sequence + index);
        if (records->topic.data != NULL)
            number = send_lent(state, socket, loan, lent, records->topic.data, records->topic.size, ZMQ_SNDMORE);
        if (number == 0)
            number = send_lent(state, socket, loan, lent, header, records->headers.size, ZMQ_SNDMORE);
        if (number == 0)
            number = send_lent(state, socket, loan, lent, content.data, content.size, 0);
        if (number != 0 && number != EAGAIN)
            return number;
        *sent += number == 0;
    }
    return 0;
}

/* Lends the parts of a run to libzmq, and sends it. */
static int lend_records(State *state, void *socket, PyObject *topic, PyObject *owner, Records *records, size_t *sent)
{
    size_t topic_size = topic == Py_None ? 0 : (size_t)PyBytes_Size(topic), lent = 0;
    records->headers.size = records->header_prefix.size + SEQUENCE_BYTES;
    Loan *loan = open_loan(owner, topic_size + records->count * records->headers.size + 1);
    if (loan == NULL)
        return -1;
    records->headers.data = loan->piece + topic_size;
    if (topic != Py_None) {
        records->topic = (Slice){loan->piece, topic_size};
        memcpy(loan->piece, PyBytes_AsString(topic), topic_size);
    }
    int number;
    if (records->count < UNLOCKED_RECORDS_MIN) {
        number = send_records(state, socket, records, loan, &lent, sent);
    } else {
        Py_BEGIN_ALLOW_THREADS
        number = send_records(state, socket, records, loan, &lent, sent);
        Py_END_ALLOW_THREADS
    }
    close_loan(loan, lent);
    return send_result(state, number) == FAILED ? -1 : 0;
}

static int send_run(State *state, void *socket, PyObject *run, size_t *sent)
{
    int result = -1;
    Records records = {.contents = NULL};
    PyObject *topic = PyObject_GetAttr(run, state->topic_frame_name);
    PyObject *header_prefix = PyObject_GetAttr(run, state->header_prefix_name);
    PyObject *first = PyObject_GetAttr(run, state->first_sequence_name);
    PyObject *contents = PyObject_GetAttr(run, state->contents_name);
    PyObject *owner = NULL;
    if (topic == NULL || header_prefix == NULL || first == NULL || contents == NULL)
        goto done;
    if (!PyBytes_Check(header_prefix) || !(topic == Py_None || PyBytes_Check(topic))) {
        PyErr_SetString(PyExc_TypeError, "expected bytes as the topic frame and the header prefix of a run");
        goto done;
    }
    records.header_prefix = slice_of(header_prefix);
    records.first_sequence = PyLong_AsUnsignedLongLong(first);
    if (records.first_sequence == UINT64_MAX && PyErr_Occurred())
        goto done;
    owner = find_contents(state, contents, &records);
    if (owner == NULL)
        goto done;
    if (records.count > 0 && records.count - 1 > UINT64_MAX - records.first_sequence) {
        PyErr_SetString(PyExc_OverflowError, "the run goes beyond the last sequence that a header can hold");
        goto done;
    }
    result = lend_records(state, socket, topic, owner, &records, sent);
done:
    free(records.contents);
    Py_XDECREF(topic);
    Py_XDECREF(header_prefix);
    Py_XDECREF(first);
    Py_XDECREF(contents);
    Py_XDECREF(owner);
    return result;
}

PyObject *accelerator_send(PyObject *module, PyObject *arguments)
{
    State *state = opened_state(module);
    PyObject *handle, *messages, *tally;
    if (state == NULL || !PyArg_ParseTuple(arguments, "OOO", &handle, &messages, &tally))
        return NULL;
    if (tally == Py_None)
        tally = NULL;
    else if (PyCapsule_GetPointer(tally, TALLY) == NULL)
        return NULL;
    void *socket = as_socket(state, handle);
    PyObject *iterator = socket == NULL ? NULL : PyObject_GetIter(messages);
    if (iterator == NULL)
        return NULL;
    release_returned_loans();
    size_t count = 0;
    PyObject *item;
    while ((item = PyIter_Next(iterator)) != NULL) {
        int failed;
        if ((PyObject *)Py_TYPE(item) == state->run_class) {
            failed = send_run(state, socket, item, &count) < 0;
        } else {
            int sent = send_message(state, socket, item, tally);
            failed = sent == FAILED;
            count += sent == GOT_ONE;
        }
        Py_DECREF(item);
        if (failed)
            break;
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(count);
}
