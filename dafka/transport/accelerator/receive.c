/* Receive messages as lists of frames, and consecutive records of a partition as one run. */

#include "accelerator.h"

#define HELD_FRAMES 3 /* the most frames of a RECORD */
#define OPEN_RUNS_MAX 8 /* runs of one header that may still grow, as in dafka/wire/batch.py */
#define PACKED_BYTES_MAX 4096 /* larger contents become objects immediately, since copying them twice takes time */

/* A message being received. Its first frames stay in libzmq's memory until it is known whether they belong to a run. */
typedef struct {
    zmq_msg_t frames[HELD_FRAMES];
    int count;
    int has_more;
} Message;

/* A growing buffer. */
typedef struct {
    char *bytes;
    size_t size;
    size_t capacity;
} Buffer;

/* A run being gathered: records with the same header, except for consecutive sequences. */
typedef struct {
    PyObject *topic;    /* NULL if the header is the first frame */
    PyObject *header;   /* the header of the first message, with its sequence */
    PyObject *contents; /* a list of large contents; NULL if they are in `packed` and `lengths` */
    Buffer packed;
    Buffer lengths;
    Py_ssize_t position; /* the index in the result */
    size_t previous;     /* the previous run of this header: its index in `runs` plus 1; 0 if there is none */
    uint64_t first_sequence;
    uint64_t last_sequence;
} Run;

typedef struct {
    PyObject *items;   /* the result; None at the position of each run until the end */
    PyObject *indexes; /* the index in `runs` of the last run of each header, by the header's key */
    Run *runs;
    size_t count;
    size_t capacity;
    size_t last; /* the index in `runs` of the run that grew last */
} Gathering;

static void open_message(State *state, Message *message)
{
    message->count = 0;
    message->has_more = 0;
    for (int index = 0; index < HELD_FRAMES; index++)
        state->msg_init(&message->frames[index]);
}

static void close_message(State *state, Message *message)
{
    for (int index = 0; index < HELD_FRAMES; index++)
        state->msg_close(&message->frames[index]);
}

/* Receives a frame into an initialized message. */
static int receive_frame(State *state, void *socket, zmq_msg_t *frame)
{
    while (state->msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
        int number = state->error_number();
        if (number == EAGAIN)
            return GOT_NOTHING;
        if (number != EINTR) {
            raise_failure(state, number);
            return FAILED;
        }
        if (PyErr_CheckSignals() < 0)
            return FAILED;
    }
    return GOT_ONE;
}

static int receive_frames(State *state, void *socket, Message *message)
{
    message->count = 0;
    do {
        int got = receive_frame(state, socket, &message->frames[message->count]);
        if (got != GOT_ONE)
            return got;
        message->has_more = state->msg_more(&message->frames[message->count++]);
    } while (message->has_more && message->count < HELD_FRAMES);
    return GOT_ONE;
}

static PyObject *frame_bytes(State *state, zmq_msg_t *frame)
{
    return PyBytes_FromStringAndSize(state->msg_data(frame), (Py_ssize_t)state->msg_size(frame));
}

/* Appends an object, and takes over the caller's reference. Fails if the object is NULL. */
static int append_new(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* Returns a message as a list of all its frames. Adds the size of the frames beyond HELD_FRAMES to `size`. */
static PyObject *message_list(State *state, void *socket, Message *message, size_t *size, size_t frame_bytes_min)
{
    PyObject *frames = PyList_New(0);
    if (frames == NULL)
        return NULL;
    for (int index = 0; index < message->count; index++)
        if (append_new(frames, frame_bytes(state, &message->frames[index])) < 0)
            goto failed;
    zmq_msg_t *next = &message->frames[0];
    while (message->has_more) {
        int got = receive_frame(state, socket, next);
        if (got == FAILED)
            goto failed;
        if (got == GOT_NOTHING)
            break;
        message->has_more = state->msg_more(next);
        *size += state->msg_size(next) + frame_bytes_min;
        if (append_new(frames, frame_bytes(state, next)) < 0)
            goto failed;
    }
    return frames;
failed:
    Py_DECREF(frames);
    return NULL;
}

/* Returns the index of the header frame of a message that may belong to a run; -1 if it cannot. */
static int header_index(State *state, Message *message)
{
    if (message->has_more || message->count < 2 || state->msg_size(&message->frames[0]) == 0)
        return -1;
    unsigned char command = *(unsigned char *)state->msg_data(&message->frames[0]);
    int index = message->count - 2;
    if ((command != 'M' && command != 'D') || state->msg_size(&message->frames[index]) <= SEQUENCE_BYTES)
        return -1;
    return index;
}

static int is_equal(PyObject *bytes, const char *data, size_t size)
{
    return (size_t)PyBytes_Size(bytes) >= size && memcmp(PyBytes_AsString(bytes), data, size) == 0;
}

static int is_of_run(const Run *run, const char *topic, size_t topic_size, const char *header, size_t header_size)
{
    if ((size_t)PyBytes_Size(run->header) != header_size || (run->topic == NULL) != (topic == NULL))
        return 0;
    if (topic != NULL && ((size_t)PyBytes_Size(run->topic) != topic_size || !is_equal(run->topic, topic, topic_size)))
        return 0;
    return is_equal(run->header, header, header_size - SEQUENCE_BYTES);
}

static uint64_t read_sequence(const char *bytes)
{
    uint64_t sequence = 0;
    for (int index = 0; index < SEQUENCE_BYTES; index++)
        sequence = sequence << 8 | (unsigned char)bytes[index];
    return sequence;
}

/* Returns a key unique to a header: the topic frame's length (all ones if there is none), that frame, the prefix. */
static PyObject *header_key(const char *topic, size_t topic_size, const char *header_prefix, size_t header_prefix_size)
{
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof(uint64_t) + topic_size + header_prefix_size));
    if (key != NULL) {
        char *bytes = PyBytes_AsString(key);
        uint64_t length = topic == NULL ? UINT64_MAX : topic_size;
        memcpy(bytes, &length, sizeof length);
        if (topic != NULL)
            memcpy(bytes + sizeof length, topic, topic_size);
        memcpy(bytes + sizeof length + topic_size, header_prefix, header_prefix_size);
    }
    return key;
}

/* Two buffers of a former run, kept for the next run, because growing new ones takes time. */
#define SPARE_BYTES_MAX (1 << 20)
static Buffer spares[2];

static void take_spare_buffer(Buffer *buffer, int which)
{
    *buffer = spares[which];
    buffer->size = 0;
    spares[which] = (Buffer){NULL, 0, 0};
}

static void release_buffer(Buffer *buffer, int which)
{
    if (spares[which].bytes == NULL && buffer->capacity <= SPARE_BYTES_MAX)
        spares[which] = *buffer;
    else
        free(buffer->bytes);
}

static char *extend(Buffer *buffer, size_t size)
{
    if (buffer->bytes == NULL || buffer->capacity - buffer->size < size) {
        size_t capacity = 2 * (buffer->size + size) + 64;
        char *bytes = realloc(buffer->bytes, capacity);
        if (bytes == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        buffer->bytes = bytes;
        buffer->capacity = capacity;
    }
    buffer->size += size;
    return buffer->bytes + buffer->size - size;
}

static int pack(Run *run, const char *data, size_t size)
{
    char *bytes = extend(&run->packed, size);
    char *length = bytes == NULL ? NULL : extend(&run->lengths, LENGTH_BYTES);
    if (length == NULL)
        return -1;
    memcpy(bytes, data, size);
    for (int index = LENGTH_BYTES - 1; index >= 0; index--, size >>= 8)
        length[index] = (char)size;
    return 0;
}

/* Begins a run with the header of this message. The caller adds the content. */
static int begin_run(Gathering *gathering, const char *topic, size_t topic_size, const char *header, size_t header_size,
                     int is_packed, size_t previous)
{
    if (gathering->count == gathering->capacity) {
        size_t capacity = gathering->capacity ? 4 * gathering->capacity : 16;
        Run *runs = realloc(gathering->runs, capacity * sizeof(Run));
        if (runs == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        gathering->runs = runs;
        gathering->capacity = capacity;
    }
    Run *run = &gathering->runs[gathering->count];
    memset(run, 0, sizeof *run);
    gathering->last = gathering->count++;
    run->position = PyList_Size(gathering->items);
    run->previous = previous;
    run->first_sequence = read_sequence(header + header_size - SEQUENCE_BYTES);
    run->header = PyBytes_FromStringAndSize(header, (Py_ssize_t)header_size);
    run->contents = is_packed ? NULL : PyList_New(0);
    take_spare_buffer(&run->packed, 0);
    take_spare_buffer(&run->lengths, 1);
    if (topic != NULL)
        run->topic = PyBytes_FromStringAndSize(topic, (Py_ssize_t)topic_size);
    if (run->header == NULL || (!is_packed && run->contents == NULL) || (topic != NULL && run->topic == NULL))
        return -1;
    return PyList_Append(gathering->items, Py_None);
}

static int continues(const Run *run, uint64_t sequence, int is_packed)
{
    return run->last_sequence != UINT64_MAX && sequence == run->last_sequence + 1
           && (run->contents == NULL) == is_packed;
}

/* Finds the run that a message continues, and sets `gathering->last` to it. Returns 1 if there is one. Otherwise returns
   0 and sets `previous` to the last run of the header, as in Run. A header may have several runs: when several nodes
   answer a FETCH, their messages have the same header and arrive interleaved. */
static int find_run(Gathering *gathering, PyObject *key, uint64_t sequence, int is_packed, size_t *previous)
{
    *previous = 0;
    PyObject *index = PyDict_GetItemWithError(gathering->indexes, key);
    if (index == NULL)
        return PyErr_Occurred() ? -1 : 0;
    *previous = PyLong_AsSize_t(index) + 1;
    size_t candidate = *previous;
    for (int count = 0; candidate && count < OPEN_RUNS_MAX; count++) {
        if (continues(&gathering->runs[candidate - 1], sequence, is_packed)) {
            gathering->last = candidate - 1;
            return 1;
        }
        candidate = gathering->runs[candidate - 1].previous;
    }
    return 0;
}

static int remember_run(Gathering *gathering, PyObject *key)
{
    PyObject *index = PyLong_FromSize_t(gathering->last);
    int failed = index == NULL || PyDict_SetItem(gathering->indexes, key, index) < 0;
    Py_XDECREF(index);
    return failed ? -1 : 0;
}

static int gather(State *state, Gathering *gathering, Message *message, int index)
{
    zmq_msg_t *frames = message->frames;
    const char *topic = index == 0 ? NULL : state->msg_data(&frames[0]);
    size_t topic_size = index == 0 ? 0 : state->msg_size(&frames[0]);
    const char *header = state->msg_data(&frames[index]);
    size_t header_size = state->msg_size(&frames[index]);
    uint64_t sequence = read_sequence(header + header_size - SEQUENCE_BYTES);
    size_t size = state->msg_size(&frames[index + 1]);
    int is_packed = size <= PACKED_BYTES_MAX;
    Run *run = gathering->count ? &gathering->runs[gathering->last] : NULL;
    if (run == NULL || !is_of_run(run, topic, topic_size, header, header_size)
        || !continues(run, sequence, is_packed)) {
        PyObject *key = header_key(topic, topic_size, header, header_size - SEQUENCE_BYTES);
        size_t previous = 0;
        int found = key == NULL ? -1 : find_run(gathering, key, sequence, is_packed, &previous);
        if (found == 0
            && (begin_run(gathering, topic, topic_size, header, header_size, is_packed, previous) < 0
                || remember_run(gathering, key) < 0))
            found = -1;
        Py_XDECREF(key);
        if (found < 0)
            return -1;
        run = &gathering->runs[gathering->last];
    }
    run->last_sequence = sequence;
    if (is_packed)
        return pack(run, state->msg_data(&frames[index + 1]), size);
    return append_new(run->contents, frame_bytes(state, &frames[index + 1]));
}

static PyObject *buffer_bytes(const Buffer *buffer)
{
    return PyBytes_FromStringAndSize(buffer->bytes, (Py_ssize_t)buffer->size);
}

static PyObject *run_contents(State *state, const Run *run)
{
    if (run->contents != NULL) {
        Py_INCREF(run->contents);
        return run->contents;
    }
    PyObject *bytes = buffer_bytes(&run->packed);
    PyObject *lengths = buffer_bytes(&run->lengths);
    PyObject *contents = NULL;
    if (bytes != NULL && lengths != NULL)
        contents = PyObject_CallFunctionObjArgs(state->packed_class, bytes, lengths, NULL);
    Py_XDECREF(bytes);
    Py_XDECREF(lengths);
    return contents;
}

/* Returns the frames of the only message of a run. */
static PyObject *single_frames(const Run *run)
{
    PyObject *content = run->contents == NULL ? buffer_bytes(&run->packed) : PyList_GetItem(run->contents, 0);
    PyObject *frames = content == NULL ? NULL : PyList_New(0);
    if (frames != NULL
        && ((run->topic != NULL && PyList_Append(frames, run->topic) < 0) || PyList_Append(frames, run->header) < 0
            || PyList_Append(frames, content) < 0))
        Py_CLEAR(frames);
    if (run->contents == NULL)
        Py_XDECREF(content);
    return frames;
}

/* Returns the Python object for a run: an EncodedRun, or the frames of its only message. */
static PyObject *run_item(State *state, const Run *run)
{
    if (run->first_sequence == run->last_sequence)
        return single_frames(run);
    Py_ssize_t header_prefix_size = PyBytes_Size(run->header) - SEQUENCE_BYTES;
    PyObject *topic = run->topic == NULL ? Py_None : run->topic;
    PyObject *header_prefix = PyBytes_FromStringAndSize(PyBytes_AsString(run->header), header_prefix_size);
    PyObject *first = PyLong_FromUnsignedLongLong(run->first_sequence);
    PyObject *contents = run_contents(state, run);
    PyObject *item = NULL;
    if (header_prefix != NULL && first != NULL && contents != NULL)
        item = PyObject_CallFunctionObjArgs(state->run_class, topic, header_prefix, first, contents, NULL);
    Py_XDECREF(header_prefix);
    Py_XDECREF(first);
    Py_XDECREF(contents);
    return item;
}

static int place_runs(State *state, Gathering *gathering)
{
    for (size_t index = 0; index < gathering->count; index++) {
        PyObject *item = run_item(state, &gathering->runs[index]);
        if (item == NULL || PyList_SetItem(gathering->items, gathering->runs[index].position, item) < 0)
            return -1;
    }
    return 0;
}

static int drain(State *state, void *socket, Gathering *gathering, Message *message, Py_ssize_t count_max,
                 Py_ssize_t items_max, size_t bytes_max, size_t frame_bytes_min, int gathers_runs)
{
    size_t size = 0;
    for (Py_ssize_t count = 0;
         count < count_max && size < bytes_max && PyList_Size(gathering->items) < items_max; count++) {
        int got = receive_frames(state, socket, message);
        if (got != GOT_ONE)
            return got;
        for (int index = 0; index < message->count; index++)
            size += state->msg_size(&message->frames[index]) + frame_bytes_min;
        int index = gathers_runs ? header_index(state, message) : -1;
        int failed = index >= 0 ? gather(state, gathering, message, index)
                                : append_new(gathering->items,
                                             message_list(state, socket, message, &size, frame_bytes_min));
        if (failed < 0)
            return FAILED;
    }
    return GOT_ONE;
}

/* Returns the socket of a handle to receive from. Returns NULL with an exception set if an argument is invalid. */
static void *socket_to_receive_from(State *state, PyObject *handle, Py_ssize_t bytes_max, Py_ssize_t frame_bytes_min)
{
    if (bytes_max >= 0 && frame_bytes_min >= 0)
        return as_socket(state, handle);
    PyErr_SetString(PyExc_ValueError, "expected numbers of bytes that are not negative");
    return NULL;
}

PyObject *accelerator_receive(PyObject *module, PyObject *arguments)
{
    State *state = opened_state(module);
    PyObject *handle;
    Py_ssize_t count_max, items_max, bytes_max, frame_bytes_min;
    int gathers_runs;
    if (state == NULL
        || !PyArg_ParseTuple(arguments, "Onnnnp", &handle, &count_max, &items_max, &bytes_max, &frame_bytes_min,
                             &gathers_runs))
        return NULL;
    void *socket = socket_to_receive_from(state, handle, bytes_max, frame_bytes_min);
    if (socket == NULL)
        return NULL;
    release_returned_loans();
    Gathering gathering = {.items = PyList_New(0), .indexes = PyDict_New()};
    Message message;
    open_message(state, &message);
    int failed = gathering.items == NULL || gathering.indexes == NULL
                 || drain(state, socket, &gathering, &message, count_max, items_max, (size_t)bytes_max,
                          (size_t)frame_bytes_min, gathers_runs) == FAILED
                 || place_runs(state, &gathering) < 0;
    close_message(state, &message);
    for (size_t index = 0; index < gathering.count; index++) {
        Py_XDECREF(gathering.runs[index].topic);
        Py_XDECREF(gathering.runs[index].header);
        Py_XDECREF(gathering.runs[index].contents);
        release_buffer(&gathering.runs[index].packed, 0);
        release_buffer(&gathering.runs[index].lengths, 1);
    }
    free(gathering.runs);
    Py_XDECREF(gathering.indexes);
    if (failed)
        Py_CLEAR(gathering.items);
    return gathering.items;
}

/* Returns (descriptor, frames) for the message just received; the descriptor is -1 if libzmq does not know it. */
static PyObject *sourced_item(State *state, void *socket, Message *message, size_t *size, size_t frame_bytes_min)
{
    int descriptor = state->msg_get(&message->frames[0], ZMQ_SRCFD);
    PyObject *frames = message_list(state, socket, message, size, frame_bytes_min);
    return frames == NULL ? NULL : Py_BuildValue("iN", descriptor, frames);
}

PyObject *accelerator_receive_sourced(PyObject *module, PyObject *arguments)
{
    State *state = opened_state(module);
    PyObject *handle;
    Py_ssize_t count_max, bytes_max, frame_bytes_min;
    if (state == NULL || !PyArg_ParseTuple(arguments, "Onnn", &handle, &count_max, &bytes_max, &frame_bytes_min))
        return NULL;
    void *socket = socket_to_receive_from(state, handle, bytes_max, frame_bytes_min);
    if (socket == NULL)
        return NULL;
    PyObject *items = PyList_New(0);
    Message message;
    open_message(state, &message);
    size_t size = 0;
    int failed = items == NULL;
    for (Py_ssize_t count = 0; !failed && count < count_max && size < (size_t)bytes_max; count++) {
        int got = receive_frames(state, socket, &message);
        if (got != GOT_ONE) {
            failed = got == FAILED;
            break;
        }
        for (int index = 0; index < message.count; index++)
            size += state->msg_size(&message.frames[index]) + frame_bytes_min;
        failed = append_new(items, sourced_item(state, socket, &message, &size, frame_bytes_min)) < 0;
    }
    close_message(state, &message);
    if (failed)
        Py_CLEAR(items);
    return items;
}
