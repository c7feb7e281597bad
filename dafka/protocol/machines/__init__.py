"""The state machines of the roles, the `Node` that runs one of them, and the queues of stores and consumers."""
