/* Read the records of a batch into columns. Every length is checked against what is left before it is used. */

#include "records.h"

#include <stdarg.h>

#define NULL_LENGTH UINT32_MAX /* stands for None among the lengths of a column */

/* The records being read. */
typedef struct {
    State *state;
    const unsigned char *data;
    size_t size;
    size_t position;
} Reader;

/* A column being gathered: where each item is in the data, and its length. */
typedef struct {
    const unsigned char **items; /* NULL until a record has something for this column */
    PyObject *lengths;
    unsigned char *length;
    size_t bytes;
    size_t null_count;
} Column;

/* Sets BatchError(field, expected, offset), and returns -1. */
static int fail(Reader *reader, const char *field, size_t offset, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    PyObject *expected = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    if (expected == NULL)
        return -1;
    PyObject *error = PyObject_CallFunction(reader->state->batch_error, "sNn", field, expected, (Py_ssize_t)offset);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return -1;
}

static int read_long_varint(Reader *reader, size_t end, int bits, const char *field, int64_t *number)
{
    size_t start = reader->position;
    uint64_t found = 0;
    int shift = 0;
    while (reader->position < end) {
        unsigned char byte = reader->data[reader->position++];
        if (shift == 63 && byte > 1)
            return fail(reader, field, start, "a number of %d bits", bits);
        found |= (uint64_t)(byte & 0x7F) << shift;
        shift += 7;
        if (byte < 0x80) {
            if (bits == 32 && found >> 32)
                return fail(reader, field, start, "a number of %d bits", bits);
            *number = (int64_t)((found >> 1) ^ (0 - (found & 1)));
            return 0;
        }
        if (shift >= bits)
            return fail(reader, field, start, "a number of %d bits", bits);
    }
    return fail(reader, field, start, "a complete number");
}

static inline int read_varint(Reader *reader, size_t end, int bits, const char *field, int64_t *number)
{
    if (reader->position < end) {
        unsigned char byte = reader->data[reader->position];
        if (byte < 0x80) {
            reader->position++;
            *number = (byte >> 1) ^ -(int64_t)(byte & 1);
            return 0;
        }
    }
    return read_long_varint(reader, end, bits, field, number);
}

/* Reads a length that is at least `least` (0, or -1 for None) and at most what is left. */
static inline int read_size(Reader *reader, size_t end, int least, const char *field, int64_t *length)
{
    size_t start = reader->position;
    if (read_varint(reader, end, 32, field, length) < 0)
        return -1;
    if (*length < least || *length > (int64_t)(end - reader->position))
        return fail(reader, field, start, "a length from %d to %zu, not %lld", least, end - reader->position,
                    (long long)*length);
    return 0;
}

static int skip_headers(Reader *reader, size_t end)
{
    int64_t count, length;
    size_t start = reader->position;
    if (read_varint(reader, end, 32, "header count", &count) < 0)
        return -1;
    size_t most = (end - reader->position) / 2;
    if (count < 0 || count > (int64_t)most)
        return fail(reader, "header count", start, "a count from 0 to %zu, not %lld", most, (long long)count);
    for (; count > 0; count--) {
        if (read_size(reader, end, 0, "header name length", &length) < 0)
            return -1;
        reader->position += (size_t)length;
        if (read_size(reader, end, -1, "header value length", &length) < 0)
            return -1;
        reader->position += length > 0 ? (size_t)length : 0;
    }
    return 0;
}

static int open_column(Column *column, size_t count)
{
    column->items = PyMem_Malloc(count * sizeof *column->items);
    if (column->items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    column->lengths = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * LENGTH_BYTES));
    if (column->lengths == NULL)
        return -1;
    column->length = (unsigned char *)PyBytes_AsString(column->lengths);
    return 0;
}

static void close_column(Column *column)
{
    PyMem_Free(column->items);
    Py_CLEAR(column->lengths);
}

static inline void set_null(Column *column, size_t number)
{
    write_length(column->length + number * LENGTH_BYTES, NULL_LENGTH);
    column->null_count++;
}

static inline void set_bytes(Column *column, size_t number, const unsigned char *bytes, size_t size)
{
    column->items[number] = bytes;
    column->bytes += size;
    write_length(column->length + number * LENGTH_BYTES, (uint32_t)size);
}

/* Returns a list of bytes objects and None. */
static PyObject *column_list(Column *column, size_t count)
{
    PyObject *items = PyList_New((Py_ssize_t)count);
    if (items == NULL)
        return NULL;
    for (size_t number = 0; number < count; number++) {
        uint32_t length = read_length(column->length + number * LENGTH_BYTES);
        PyObject *item = Py_None;
        if (length == NULL_LENGTH)
            Py_INCREF(item);
        else
            item = PyBytes_FromStringAndSize((const char *)column->items[number], (Py_ssize_t)length);
        if (item == NULL || PyList_SetItem(items, (Py_ssize_t)number, item) < 0) {
            Py_DECREF(items);
            return NULL;
        }
    }
    return items;
}

/* Returns a column: None if it was never opened, packed contents if no item is None, otherwise a list. */
static PyObject *column_result(State *state, Column *column, size_t count)
{
    if (column->items == NULL) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    if (column->null_count > 0)
        return column_list(column, count);
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)column->bytes);
    if (data == NULL)
        return NULL;
    char *place = PyBytes_AsString(data);
    for (size_t number = 0; number < count; number++) {
        uint32_t length = read_length(column->length + number * LENGTH_BYTES);
        memcpy(place, column->items[number], length);
        place += length;
    }
    PyObject *contents = PyObject_CallFunctionObjArgs(state->packed_class, data, column->lengths, NULL);
    Py_DECREF(data);
    return contents;
}

/* All columns. Of records that are only scanned, none is opened. */
typedef struct {
    size_t count;
    int is_scan;
    Column values, keys, blocks;
    int64_t first_time;
    PyObject *times; /* NULL while all times are equal */
} Columns;

static int add_key(Columns *columns, size_t number, const unsigned char *key, int64_t length)
{
    Column *keys = &columns->keys;
    if (keys->items == NULL) {
        if (length < 0)
            return 0;
        if (open_column(keys, columns->count) < 0)
            return -1;
        for (size_t earlier = 0; earlier < number; earlier++)
            set_null(keys, earlier);
    }
    if (length < 0)
        set_null(keys, number);
    else
        set_bytes(keys, number, key, (size_t)length);
    return 0;
}

static int add_block(Columns *columns, size_t number, const unsigned char *block, size_t size)
{
    static const unsigned char no_headers[1] = {0};
    Column *blocks = &columns->blocks;
    if (blocks->items == NULL) {
        if (size == 1 && *block == 0)
            return 0;
        if (open_column(blocks, columns->count) < 0)
            return -1;
        for (size_t earlier = 0; earlier < number; earlier++)
            set_bytes(blocks, earlier, no_headers, 1);
    }
    set_bytes(blocks, number, block, size);
    return 0;
}

static int add_time(Columns *columns, size_t number, int64_t time)
{
    if (columns->times == NULL) {
        if (number == 0)
            columns->first_time = time;
        if (time == columns->first_time)
            return 0;
        columns->times = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(columns->count * sizeof time));
        if (columns->times == NULL)
            return -1;
        char *times = PyBytes_AsString(columns->times);
        for (size_t earlier = 0; earlier < number; earlier++)
            memcpy(times + earlier * sizeof time, &columns->first_time, sizeof time);
    }
    memcpy(PyBytes_AsString(columns->times) + number * sizeof time, &time, sizeof time);
    return 0;
}

/* Reads the record with this offset delta, whose number among all records is `number`. Returns 1, and reads no further,
   if the records are only scanned and this one has more than a value. */
static int read_record(Reader *reader, Columns *columns, size_t number, size_t offset_delta, int64_t base_timestamp)
{
    size_t first = reader->position;
    int64_t length, delta, found_delta, key_length, value_length, time;
    if (read_size(reader, reader->size, 0, "length", &length) < 0)
        return -1;
    size_t start = reader->position, end = start + (size_t)length;
    if (length == 0)
        return fail(reader, "attributes", start, "a complete number");
    if (reader->data[start] != 0)
        return fail(reader, "attributes", start, "0, not %d", reader->data[start]);
    reader->position++;
    if (read_varint(reader, end, 64, "timestamp delta", &delta) < 0)
        return -1;
    if (__builtin_add_overflow(base_timestamp, delta, &time))
        return fail(reader, "timestamp delta", start + 1, "a timestamp of 64 bits");
    size_t offset_at = reader->position;
    if (read_varint(reader, end, 32, "offset delta", &found_delta) < 0)
        return -1;
    if (found_delta != (int64_t)offset_delta)
        return fail(reader, "offset delta", offset_at, "%zu, not %lld", offset_delta, (long long)found_delta);
    if (read_size(reader, end, -1, "key length", &key_length) < 0)
        return -1;
    const unsigned char *key = reader->data + reader->position;
    reader->position += key_length > 0 ? (size_t)key_length : 0;
    if (read_size(reader, end, -1, "value length", &value_length) < 0)
        return -1;
    const unsigned char *value = reader->data + reader->position;
    reader->position += value_length > 0 ? (size_t)value_length : 0;
    size_t block_at = reader->position;
    if (skip_headers(reader, end) < 0)
        return -1;
    if (reader->position != end)
        return fail(reader, "length", first, "%zu, not %lld", reader->position - start, (long long)length);
    if (columns->is_scan) {
        if (value_length < 0 || key_length >= 0 || end - block_at != 1)
            return 1;
        columns->values.bytes += (size_t)value_length;
        return add_time(columns, number, time);
    }
    if (value_length < 0)
        set_null(&columns->values, number);
    else
        set_bytes(&columns->values, number, value, (size_t)value_length);
    if (add_key(columns, number, key, key_length) < 0
        || add_block(columns, number, reader->data + block_at, end - block_at) < 0)
        return -1;
    return add_time(columns, number, time);
}

/* The records of one batch, as an argument gives them. */
typedef struct {
    Py_buffer view;
    Py_ssize_t position, count;
    long long base_timestamp;
} Part;

static int read_part(State *state, Part *part, Columns *columns, size_t number)
{
    Reader reader = {state, part->view.buf, (size_t)part->view.len, (size_t)part->position};
    for (size_t delta = 0; delta < (size_t)part->count; delta++) {
        int status = read_record(&reader, columns, number + delta, delta, part->base_timestamp);
        if (status != 0)
            return status;
    }
    if (reader.position != reader.size)
        return fail(&reader, "records", reader.position, "their end, %zu bytes follow", reader.size - reader.position);
    return 0;
}

static PyObject *columns_result(State *state, Columns *columns)
{
    PyObject *values = column_result(state, &columns->values, columns->count);
    PyObject *keys = values == NULL ? NULL : column_result(state, &columns->keys, columns->count);
    PyObject *blocks = keys == NULL ? NULL : column_result(state, &columns->blocks, columns->count);
    PyObject *times = columns->times;
    if (times != NULL)
        Py_INCREF(times);
    else
        times = blocks == NULL ? NULL : PyLong_FromLongLong(columns->first_time);
    PyObject *result = blocks == NULL || times == NULL ? NULL : PyTuple_Pack(4, values, keys, blocks, times);
    Py_XDECREF(values);
    Py_XDECREF(keys);
    Py_XDECREF(blocks);
    Py_XDECREF(times);
    return result;
}

/* Returns the size of the values, and the times; None if a record has more than a value. */
static PyObject *scan_result(const Columns *columns, int status)
{
    if (status > 0)
        Py_RETURN_NONE;
    Py_ssize_t bytes = (Py_ssize_t)columns->values.bytes;
    if (columns->times != NULL)
        return Py_BuildValue("nO", bytes, columns->times);
    return Py_BuildValue("nL", bytes, (long long)columns->first_time);
}

static PyObject *read_parts(State *state, Part *parts, size_t part_count, int is_scan)
{
    Columns columns = {.is_scan = is_scan};
    for (size_t index = 0; index < part_count; index++)
        columns.count += (size_t)parts[index].count;
    PyObject *result = NULL;
    int status = is_scan ? 0 : open_column(&columns.values, columns.count);
    for (size_t index = 0, number = 0; index < part_count && status == 0; index++) {
        status = read_part(state, &parts[index], &columns, number);
        number += (size_t)parts[index].count;
    }
    if (status >= 0)
        result = is_scan ? scan_result(&columns, status) : columns_result(state, &columns);
    close_column(&columns.values);
    close_column(&columns.keys);
    close_column(&columns.blocks);
    Py_CLEAR(columns.times);
    return result;
}

static int open_part(PyObject *arguments, Part *part)
{
    if (!PyArg_ParseTuple(arguments, "y*nnL", &part->view, &part->position, &part->count, &part->base_timestamp))
        return -1;
    if (part->position >= 0 && part->position <= part->view.len && part->count >= 1
        && part->count <= (part->view.len - part->position) / RECORD_BYTES_MIN)
        return 0;
    PyBuffer_Release(&part->view);
    PyErr_SetString(PyExc_ValueError, "the data has no room for the records");
    return -1;
}

static PyObject *read_arguments(PyObject *module, PyObject *arguments, int is_scan)
{
    State *state = connected_state(module);
    Py_ssize_t size = PyTuple_Size(arguments), opened = 0;
    if (state == NULL)
        return NULL;
    if (size < 1) {
        PyErr_SetString(PyExc_TypeError, "expected at least one batch");
        return NULL;
    }
    Part *parts = PyMem_Malloc((size_t)size * sizeof *parts);
    if (parts == NULL)
        return PyErr_NoMemory();
    while (opened < size) {
        PyObject *argument = PyTuple_GetItem(arguments, opened);
        if (!PyTuple_Check(argument)) {
            PyErr_SetString(PyExc_TypeError, "expected a tuple for each batch");
            break;
        }
        if (open_part(argument, &parts[opened]) < 0)
            break;
        opened++;
    }
    PyObject *result = opened == size ? read_parts(state, parts, (size_t)size, is_scan) : NULL;
    while (opened > 0)
        PyBuffer_Release(&parts[--opened].view);
    PyMem_Free(parts);
    return result;
}

PyObject *accelerator_read_records(PyObject *module, PyObject *arguments)
{
    return read_arguments(module, arguments, 0);
}

PyObject *accelerator_scan_records(PyObject *module, PyObject *arguments)
{
    return read_arguments(module, arguments, 1);
}
