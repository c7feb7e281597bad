/* Write the records of a batch from columns. */

#include "records.h"

#define BYTES_MAX (1 << 30) /* what all columns may have together: no length of a record can become too large */
#define OVERHEAD_BYTES_MAX 36 /* what a record takes beyond them: six numbers and a byte */

/* A column: packed contents, or any sequence. */
typedef struct {
    PyObject *data;    /* the contents one after the other; NULL for a sequence */
    PyObject *lengths; /* their lengths; for a sequence, a tuple of its items */
    const char *next;
    const unsigned char *next_length;
    Py_ssize_t index;
    Py_ssize_t count;
    size_t bytes;
} Column;

/* The next item of a column; `length` is -1 for None. */
typedef struct {
    const char *bytes;
    int64_t length;
} Item;

static void close_column(Column *column)
{
    Py_CLEAR(column->data);
    Py_CLEAR(column->lengths);
}

static int open_packed(State *state, Column *column, PyObject *contents)
{
    column->data = PyObject_GetAttr(contents, state->data_name);
    column->lengths = column->data == NULL ? NULL : PyObject_GetAttr(contents, state->lengths_name);
    if (column->lengths == NULL)
        return -1;
    char *data, *lengths;
    Py_ssize_t data_size, lengths_size;
    if (PyBytes_AsStringAndSize(column->data, &data, &data_size) < 0
        || PyBytes_AsStringAndSize(column->lengths, &lengths, &lengths_size) < 0)
        return -1;
    column->next = data;
    column->next_length = (const unsigned char *)lengths;
    column->count = lengths_size / LENGTH_BYTES;
    for (Py_ssize_t index = 0; index < column->count; index++)
        column->bytes += read_length(column->next_length + index * LENGTH_BYTES);
    if (column->bytes != (size_t)data_size) {
        PyErr_SetString(PyExc_ValueError, "the lengths of packed contents do not add up");
        return -1;
    }
    return 0;
}

static int open_sequence(Column *column, PyObject *sequence)
{
    column->lengths = PySequence_Tuple(sequence); /* cannot change while it is used */
    if (column->lengths == NULL)
        return -1;
    column->count = PyTuple_Size(column->lengths);
    for (Py_ssize_t index = 0; index < column->count; index++) {
        PyObject *item = PyTuple_GetItem(column->lengths, index);
        if (item == Py_None)
            continue;
        if (!PyBytes_CheckExact(item)) {
            PyErr_SetString(PyExc_TypeError, "expected bytes or None");
            return -1;
        }
        column->bytes += (size_t)PyBytes_Size(item);
    }
    return 0;
}

static int open_column(State *state, Column *column, PyObject *object)
{
    int is_packed = PyObject_IsInstance(object, state->packed_class);
    if (is_packed < 0)
        return -1;
    return is_packed ? open_packed(state, column, object) : open_sequence(column, object);
}

static inline Item next_item(Column *column)
{
    Item item = {NULL, -1};
    if (column->data != NULL) {
        item.bytes = column->next;
        item.length = read_length(column->next_length);
        column->next += item.length;
        column->next_length += LENGTH_BYTES;
    } else {
        PyObject *object = PyTuple_GetItem(column->lengths, column->index++);
        if (object != Py_None) {
            item.bytes = PyBytes_AsString(object);
            item.length = PyBytes_Size(object);
        }
    }
    return item;
}

static inline uint64_t zigzag(int64_t number)
{
    return (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0);
}

static inline size_t number_size(uint64_t number)
{
    size_t size = 1;
    while (number >>= 7)
        size++;
    return size;
}

static inline unsigned char *write_number(unsigned char *place, uint64_t number)
{
    while (number >= 0x80) {
        *place++ = (unsigned char)(number | 0x80);
        number >>= 7;
    }
    *place++ = (unsigned char)number;
    return place;
}

static inline size_t item_size(Item item)
{
    return item.length < 0 ? 1 : number_size(zigzag(item.length)) + (size_t)item.length;
}

static inline unsigned char *write_item(unsigned char *place, Item item)
{
    place = write_number(place, zigzag(item.length));
    if (item.length > 0) {
        memcpy(place, item.bytes, (size_t)item.length);
        place += item.length;
    }
    return place;
}

/* The arguments of `write_records`. */
typedef struct {
    Column values, keys, blocks;
    int has_keys, has_blocks;
    const char *deltas; /* native numbers of 64 bits; NULL if all are 0 */
} Records;

static unsigned char *write_all(Records *records, unsigned char *place)
{
    static const char no_headers[1] = {0};
    for (Py_ssize_t number = 0; number < records->values.count; number++) {
        Item value = next_item(&records->values), key = {NULL, -1}, block = {no_headers, 1};
        int64_t delta = 0;
        if (records->has_keys)
            key = next_item(&records->keys);
        if (records->has_blocks)
            block = next_item(&records->blocks);
        if (records->deltas != NULL)
            memcpy(&delta, records->deltas + (size_t)number * sizeof delta, sizeof delta);
        size_t size = 1 + number_size(zigzag(delta)) + number_size(zigzag(number)) + item_size(key) + item_size(value)
                      + (size_t)block.length;
        place = write_number(place, zigzag((int64_t)size));
        *place++ = 0;
        place = write_number(place, zigzag(delta));
        place = write_number(place, zigzag(number));
        place = write_item(place, key);
        place = write_item(place, value);
        memcpy(place, block.bytes, (size_t)block.length);
        place += block.length;
    }
    return place;
}

static PyObject *write_columns(Records *records)
{
    size_t bytes = records->values.bytes + records->keys.bytes + records->blocks.bytes;
    if (bytes > BYTES_MAX) {
        PyErr_SetString(PyExc_ValueError, "the records are too large");
        return NULL;
    }
    size_t size_max = bytes + (size_t)records->values.count * OVERHEAD_BYTES_MAX;
    unsigned char *start = PyMem_Malloc(size_max);
    if (start == NULL)
        return PyErr_NoMemory();
    unsigned char *end = write_all(records, start);
    PyObject *result = PyBytes_FromStringAndSize((const char *)start, end - start);
    PyMem_Free(start);
    return result;
}

static int open_records(State *state, Records *records, PyObject *values, PyObject *keys, PyObject *blocks)
{
    records->has_keys = keys != Py_None;
    records->has_blocks = blocks != Py_None;
    if (open_column(state, &records->values, values) < 0
        || (records->has_keys && open_column(state, &records->keys, keys) < 0)
        || (records->has_blocks && open_column(state, &records->blocks, blocks) < 0))
        return -1;
    Py_ssize_t count = records->values.count;
    if ((records->has_keys && records->keys.count != count) || (records->has_blocks && records->blocks.count != count)
        || (records->has_blocks && records->blocks.data == NULL)) {
        PyErr_SetString(PyExc_ValueError, "the columns do not fit together");
        return -1;
    }
    return 0;
}

PyObject *accelerator_write_records(PyObject *module, PyObject *arguments)
{
    State *state = connected_state(module);
    PyObject *values, *keys, *blocks, *deltas, *result = NULL;
    if (state == NULL || !PyArg_ParseTuple(arguments, "OOOO", &values, &keys, &blocks, &deltas))
        return NULL;
    Records records = {0};
    Py_buffer view = {0};
    if (open_records(state, &records, values, keys, blocks) == 0
        && (deltas == Py_None || PyObject_GetBuffer(deltas, &view, PyBUF_SIMPLE) == 0)) {
        records.deltas = view.buf;
        if (records.deltas != NULL && view.len != records.values.count * (Py_ssize_t)sizeof(int64_t))
            PyErr_SetString(PyExc_ValueError, "the columns do not fit together");
        else
            result = write_columns(&records);
    }
    if (view.obj != NULL)
        PyBuffer_Release(&view);
    close_column(&records.values);
    close_column(&records.keys);
    close_column(&records.blocks);
    return result;
}
