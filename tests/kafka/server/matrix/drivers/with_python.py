"""Drives a client of Python.

MODULE CLIENT write SERVERS FILE COMPRESSION=TOPIC...   writes the records of a file to each topic
MODULE CLIENT read SERVERS FOLDER COUNT TOPIC...        reads records of each topic, and writes them to FOLDER/TOPIC
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kafka.server.clients import CLIENTS, Message
from tests.kafka.server.matrix.record_files import Record, read_records, write_records


def main(name: str, action: str, servers: str, place: str, *rest: str) -> None:
    client = CLIENTS[name]
    if action == "write":
        messages = [Message(each.value, each.key, each.headers, each.timestamp) for each in read_records(place)]
        for each in rest:
            compression, _, topic = each.partition("=")
            client.write(servers, topic, messages, compression)
        return
    count, *topics = rest
    for topic in topics:
        found = client.read(servers, topic, int(count))
        records = [Record(each.timestamp, each.key, each.value, each.headers) for each in found]
        write_records(Path(place) / topic, records)


if __name__ == "__main__":
    main(*sys.argv[1:])
