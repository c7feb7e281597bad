"""The decisions of a broker, without I/O or a clock. The simulation runs these modules."""
