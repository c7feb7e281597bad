"""A broker in a process of its own, until it is killed: arguments are the storage and the port."""

from __future__ import annotations

import sys
import time

from tests.listener.fixtures import run_broker


def main() -> None:
    with run_broker(sys.argv[1], port=int(sys.argv[2])):
        print("ready", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()
