/* Write the records of batches from columns. */

#include "records.h"

#define BYTES_MAX (1 << 30) /* what all columns may have together: no length of a record can become too large */

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
    const char *times; /* native numbers of 64 bits; NULL if all are equal */
    size_t bytes_max;
    Py_ssize_t count_max;
} Records;

/* What a batch begins with, and how much of the records it takes. */
typedef struct {
    Py_ssize_t first, count;
    int64_t base_time, max_time;
    size_t size; /* when written, in bytes */
} Batch;

/* One record. */
typedef struct {
    Item key, value, block;
    int64_t time;
} Record;

static inline Record next_record(Records *records, Py_ssize_t number)
{
    static const char no_headers[1] = {0};
    Record record = {{NULL, -1}, next_item(&records->values), {no_headers, 1}, 0};
    if (records->has_keys)
        record.key = next_item(&records->keys);
    if (records->has_blocks)
        record.block = next_item(&records->blocks);
    if (records->times != NULL)
        memcpy(&record.time, records->times + (size_t)number * sizeof record.time, sizeof record.time);
    return record;
}

/* Returns the size of a record after the length that it begins with. */
static inline size_t body_size(const Record *record, int64_t delta, Py_ssize_t offset_delta)
{
    return 1 + number_size(zigzag(delta)) + number_size(zigzag(offset_delta)) + item_size(record->key)
           + item_size(record->value) + (size_t)record->block.length;
}

static inline size_t content_size(const Records *records, const Record *record)
{
    return (size_t)(record->key.length > 0 ? record->key.length : 0)
           + (size_t)(record->value.length > 0 ? record->value.length : 0)
           + (records->has_blocks ? (size_t)record->block.length : 0);
}

/* Returns the batch that begins with a record: as many records as the limits allow, but at least one. The time of each
   must be a number of 64 bits after the first one's. Takes a copy, since the columns are read again to be written. */
static Batch plan_batch(Records records, Py_ssize_t first)
{
    Batch batch = {first, 0, 0, 0, 0};
    size_t contents = 0;
    while (first + batch.count < records.values.count && batch.count < records.count_max) {
        Record record = next_record(&records, first + batch.count);
        int64_t delta = 0;
        contents += content_size(&records, &record);
        if (batch.count == 0)
            batch.base_time = batch.max_time = record.time;
        else if (contents > records.bytes_max || __builtin_sub_overflow(record.time, batch.base_time, &delta))
            break;
        size_t size = body_size(&record, delta, batch.count);
        batch.size += number_size(zigzag((int64_t)size)) + size;
        if (record.time > batch.max_time)
            batch.max_time = record.time;
        batch.count++;
    }
    return batch;
}

static void write_batch(Records *records, const Batch *batch, unsigned char *place)
{
    for (Py_ssize_t number = 0; number < batch->count; number++) {
        Record record = next_record(records, batch->first + number);
        int64_t delta = record.time - batch->base_time;
        place = write_number(place, zigzag((int64_t)body_size(&record, delta, number)));
        *place++ = 0;
        place = write_number(place, zigzag(delta));
        place = write_number(place, zigzag(number));
        place = write_item(place, record.key);
        place = write_item(place, record.value);
        memcpy(place, record.block.bytes, (size_t)record.block.length);
        place += record.block.length;
    }
}

static int add_batch(PyObject *batches, Records *records, const Batch *batch)
{
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)batch->size);
    if (data == NULL)
        return -1;
    write_batch(records, batch, (unsigned char *)PyBytes_AsString(data));
    PyObject *item
        = Py_BuildValue("nLLN", batch->count, (long long)batch->base_time, (long long)batch->max_time, data);
    if (item == NULL)
        return -1;
    int status = PyList_Append(batches, item);
    Py_DECREF(item);
    return status;
}

static PyObject *write_columns(Records *records)
{
    if (records->values.bytes + records->keys.bytes + records->blocks.bytes > BYTES_MAX) {
        PyErr_SetString(PyExc_ValueError, "the records are too large");
        return NULL;
    }
    PyObject *batches = PyList_New(0);
    for (Py_ssize_t first = 0; batches != NULL && first < records->values.count;) {
        Batch batch = plan_batch(*records, first);
        if (add_batch(batches, records, &batch) < 0)
            Py_CLEAR(batches);
        first += batch.count;
    }
    return batches;
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
    PyObject *values, *keys, *blocks, *times, *result = NULL;
    Py_ssize_t bytes_max, count_max;
    if (state == NULL
        || !PyArg_ParseTuple(arguments, "OOOOnn", &values, &keys, &blocks, &times, &bytes_max, &count_max))
        return NULL;
    if (bytes_max < 0 || count_max < 1) {
        PyErr_SetString(PyExc_ValueError, "expected limits that a record fits in");
        return NULL;
    }
    Records records = {.bytes_max = (size_t)bytes_max, .count_max = count_max};
    Py_buffer view = {0};
    if (open_records(state, &records, values, keys, blocks) == 0
        && (times == Py_None || PyObject_GetBuffer(times, &view, PyBUF_SIMPLE) == 0)) {
        records.times = view.buf;
        if (records.times != NULL && view.len != records.values.count * (Py_ssize_t)sizeof(int64_t))
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

/* Packs a list of bytes objects. */

PyObject *accelerator_pack(PyObject *module, PyObject *contents)
{
    State *state = connected_state(module);
    if (state == NULL)
        return NULL;
    Column column = {0};
    PyObject *data = NULL, *lengths = NULL, *packed = NULL;
    if (open_sequence(&column, contents) < 0)
        goto done;
    data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)column.bytes);
    lengths = PyBytes_FromStringAndSize(NULL, column.count * LENGTH_BYTES);
    if (data == NULL || lengths == NULL)
        goto done;
    char *place = PyBytes_AsString(data);
    unsigned char *length = (unsigned char *)PyBytes_AsString(lengths);
    for (Py_ssize_t index = 0; index < column.count; index++) {
        Item item = next_item(&column);
        if (item.length < 0 || item.length > UINT32_MAX) {
            PyErr_SetString(PyExc_TypeError, "expected bytes");
            goto done;
        }
        memcpy(place, item.bytes, (size_t)item.length);
        place += item.length;
        write_length(length, (uint32_t)item.length);
        length += LENGTH_BYTES;
    }
    packed = PyObject_CallFunctionObjArgs(state->packed_class, data, lengths, NULL);
done:
    Py_XDECREF(data);
    Py_XDECREF(lengths);
    close_column(&column);
    return packed;
}
