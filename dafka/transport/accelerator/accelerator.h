/* The transport's two loops, compiled: messages out of a ZeroMQ socket and into it, many in a call.

   `dafka/transport/pure.py` is the reference; a test compares the two. Python's stable ABI alone is used, and libzmq is
   not linked: its functions are looked up in the library that pyzmq has loaded. Nothing here blocks, and the
   interpreter's lock is held throughout (docs/accelerator.md says why). */

#ifndef DAFKA_ACCELERATOR_H
#define DAFKA_ACCELERATOR_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* From zmq.h, whose ABI these are. */
#define ZMQ_DONTWAIT 1
#define ZMQ_SNDMORE 2
typedef union {
    unsigned char octets[64];
    void *alignment;
} zmq_msg_t;

#define SEQUENCE_BYTES 8
#define LENGTH_BYTES 4 /* of each content, in packed ones */

/* What became of one frame or message. */
enum { GOT_NOTHING = 0, GOT_ONE = 1, FAILED = -1 };

/* The module's: libzmq's functions, and what Python gave to `connect`. */
typedef struct {
    int (*msg_init)(zmq_msg_t *);
    int (*msg_init_size)(zmq_msg_t *, size_t);
    int (*msg_init_data)(zmq_msg_t *, void *, size_t, void (*)(void *, void *), void *);
    int (*msg_send)(zmq_msg_t *, void *, int);
    int (*msg_recv)(zmq_msg_t *, void *, int);
    int (*msg_close)(zmq_msg_t *);
    int (*msg_more)(const zmq_msg_t *);
    void *(*msg_data)(zmq_msg_t *);
    size_t (*msg_size)(const zmq_msg_t *);
    int (*error_number)(void);
    void (*version)(int *, int *, int *);
    int is_open;
    PyObject *run_class;    /* EncodedRun(topic_frame, header_prefix, first_sequence, contents) */
    PyObject *packed_class; /* PackedContents(data, lengths) */
    PyObject *failure;      /* the exception for an error number of libzmq's */
    PyObject *topic_frame_name, *header_prefix_name, *first_sequence_name, *contents_name, *data_name, *lengths_name;
} State;

/* The state of a module that is connected to libzmq; else NULL, and an exception. */
State *opened_state(PyObject *module);

/* libzmq's socket, from pyzmq's `underlying`; NULL and an exception where there is none, or no longer. */
void *as_socket(State *state, PyObject *handle);

/* Sets pyzmq's exception for an error number of libzmq's. */
void raise_failure(State *state, int number);

/* Lets go of the bytes objects that libzmq has given back. */
void take_back_loans(void);

PyObject *accelerator_receive(PyObject *module, PyObject *arguments);
PyObject *accelerator_send(PyObject *module, PyObject *arguments);

#endif
