/* The loops of the transport in C: receive and send messages on a ZeroMQ socket, many in one call.

   `PureLoops` in `dafka/transport/loops.py` is the reference; a test compares the two. Only Python's stable ABI is used.
   libzmq is not linked: its functions are looked up in the library that pyzmq has loaded. No function blocks. The GIL is
   released only while a large run is sent (docs/explanation/accelerator.md explains why). */

#ifndef DAFKA_ACCELERATOR_H
#define DAFKA_ACCELERATOR_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Copied from zmq.h: libzmq's ABI. */
#define ZMQ_DONTWAIT 1
#define ZMQ_SNDMORE 2
#define ZMQ_SRCFD 2
typedef union {
    unsigned char bytes[64];
    void *alignment;
} zmq_msg_t;

#define SEQUENCE_BYTES 8
#define LENGTH_BYTES 4 /* the size of the length of each packed content */

/* The result of one frame or message. */
enum { GOT_NOTHING = 0, GOT_ONE = 1, FAILED = -1 };

/* The state of the module: libzmq's functions, and the arguments of `connect`. */
typedef struct {
    int (*msg_init)(zmq_msg_t *);
    int (*msg_init_size)(zmq_msg_t *, size_t);
    int (*msg_init_data)(zmq_msg_t *, void *, size_t, void (*)(void *, void *), void *);
    int (*msg_send)(zmq_msg_t *, void *, int);
    int (*msg_recv)(zmq_msg_t *, void *, int);
    int (*msg_close)(zmq_msg_t *);
    int (*msg_more)(const zmq_msg_t *);
    int (*msg_get)(const zmq_msg_t *, int);
    void *(*msg_data)(zmq_msg_t *);
    size_t (*msg_size)(const zmq_msg_t *);
    int (*error_number)(void);
    void (*version)(int *, int *, int *);
    int is_open;
    PyObject *run_class;    /* EncodedRun(topic_frame, header_prefix, first_sequence, contents) */
    PyObject *packed_class; /* PackedContents(data, lengths) */
    PyObject *failure;      /* returns the exception for an error number of libzmq */
    PyObject *topic_frame_name, *header_prefix_name, *first_sequence_name, *contents_name, *data_name, *lengths_name;
} State;

/* Returns the state of a module. If it is not connected to libzmq, sets an exception and returns NULL. */
State *opened_state(PyObject *module);

/* Returns libzmq's socket, from pyzmq's `Socket.underlying`. If it is closed, sets an exception and returns NULL. */
void *as_socket(State *state, PyObject *handle);

/* Sets pyzmq's exception for an error number of libzmq. */
void raise_failure(State *state, int number);

/* Releases the memory that was lent to libzmq and that it has returned. */
void release_returned_loans(void);

PyObject *accelerator_receive(PyObject *module, PyObject *arguments);
PyObject *accelerator_receive_sourced(PyObject *module, PyObject *arguments);
PyObject *accelerator_send(PyObject *module, PyObject *arguments);
PyObject *accelerator_open_tally(PyObject *module, PyObject *ignored);
PyObject *accelerator_count_lent(PyObject *module, PyObject *tally);

#endif
