"""The roles' state machines, and what stands around each in a daemon: the driver, commits, delivery, the spool."""
