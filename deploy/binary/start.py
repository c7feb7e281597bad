"""The program in the binary. Its process is a child of the one that has unpacked it; see dafka.spec."""

import ctypes
import os
import signal
import sys

from dafka._entry import main

PR_SET_PDEATHSIG = 1

if sys.platform == "linux":
    # SIGKILL cannot be passed on, and a node that lives on would keep its storage and its ports.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.environ.get("WATCHDOG_PID") == str(os.getppid()):
    os.environ["WATCHDOG_PID"] = str(os.getpid())
main()
