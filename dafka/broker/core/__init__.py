"""What a broker decides: no I/O, no clock. The simulation plays these modules."""
