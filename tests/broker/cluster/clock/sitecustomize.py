"""Sets the clock of a Python process that has this folder in PYTHONPATH: by as many seconds as a file says at present.

`CLUSTER_CLOCK` names the file, which has a floating point number of eight bytes. Clocks for durations stay as they are.
"""

import mmap
import os
import struct
import time
from pathlib import Path

_true_time, _true_time_ns = time.time, time.time_ns

with Path(os.environ["CLUSTER_CLOCK"]).open("rb") as _file:
    _offset = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)


def _ahead_s() -> float:
    return float(struct.unpack_from("=d", _offset)[0])


time.time = lambda: _true_time() + _ahead_s()
time.time_ns = lambda: _true_time_ns() + int(_ahead_s() * 1e9)
