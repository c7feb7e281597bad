"""Drives a client of Python.

MODULE CLIENT write SERVERS FILE COMPRESSION=TOPIC...   writes the records of a file to each topic
MODULE CLIENT read SERVERS FOLDER COUNT TOPIC...        reads records of each topic, and writes them to FOLDER/TOPIC
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kafka.server.clients import CLIENTS
from tests.kafka.server.matrix.record_files import read_records, write_records


def main(name: str, action: str, servers: str, place: str, *rest: str) -> None:
    client = CLIENTS[name]
    if action == "write":
        for each in rest:
            compression, _, topic = each.partition("=")
            client.write(servers, topic, read_records(place), compression)
        return
    count, *topics = rest
    for topic in topics:
        write_records(Path(place) / topic, client.read(servers, topic, int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
