"""The command line of a driver.

MODULE write SERVERS FILE COMPRESSION=TOPIC...   writes the records of a file to each topic
MODULE read SERVERS FOLDER COUNT TOPIC...        reads records of each topic, and writes them to FOLDER/TOPIC
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.kafka.server.matrix.record_files import Record, read_records, write_records

DEADLINE_S = 300.0
"""How long a driver may take for one topic."""


def run(write: Callable[[str, str, str, list[Record]], None], read: Callable[[str, str, int], list[Record]]) -> None:
    """Do what the command line says."""
    action, servers, place, *rest = sys.argv[1:]
    if action == "write":
        records = read_records(place)
        for each in rest:
            compression, _, topic = each.partition("=")
            write(servers, topic, compression, records)
        return
    count, *topics = rest
    for topic in topics:
        write_records(Path(place) / topic, read(servers, topic, int(count)))
