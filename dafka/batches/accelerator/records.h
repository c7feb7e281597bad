/* The records of a batch in C: read into columns, and written from columns.

   `dafka/batches/reading.py` and `dafka/batches/writing.py` are the reference; tests compare the two. Only Python's
   stable ABI is used. The GIL is held: a batch takes a fraction of a millisecond. */

#ifndef DAFKA_RECORDS_H
#define DAFKA_RECORDS_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define LENGTH_BYTES 4     /* the size of the length of each packed content */
#define RECORD_BYTES_MIN 7 /* a length, and six fields of one byte */

/* The state of the module: the arguments of `connect`. */
typedef struct {
    PyObject *batch_error;  /* BatchError(field, expected, offset) */
    PyObject *packed_class; /* PackedContents(data, lengths) */
    PyObject *data_name, *lengths_name;
} State;

/* Returns the state of a module. If it is not connected, sets an exception and returns NULL. */
State *connected_state(PyObject *module);

static inline void write_length(unsigned char *place, uint32_t length)
{
    place[0] = (unsigned char)(length >> 24);
    place[1] = (unsigned char)(length >> 16);
    place[2] = (unsigned char)(length >> 8);
    place[3] = (unsigned char)length;
}

static inline uint32_t read_length(const unsigned char *place)
{
    return (uint32_t)place[0] << 24 | (uint32_t)place[1] << 16 | (uint32_t)place[2] << 8 | place[3];
}

PyObject *accelerator_read_records(PyObject *module, PyObject *arguments);
PyObject *accelerator_scan_records(PyObject *module, PyObject *arguments);
PyObject *accelerator_write_records(PyObject *module, PyObject *arguments);
PyObject *accelerator_pack(PyObject *module, PyObject *contents);

#endif
