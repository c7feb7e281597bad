"""One log: the offsets of its records, its producers and its transactions."""
