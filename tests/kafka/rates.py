"""Measure how fast requests are read and responses written: `python -m tests.kafka.rates`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import FrameSplitter, RequestHeader, decode_request, encode_request, encode_response
from dafka.kafka.protocol.messages.logs import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

SECONDS = 0.3
SHAPES = [(1, 200), (1, 100_000), (16, 1_000)]


def rate(function: Callable[[], object]) -> int:
    """Return how often a function runs in a second: the best of three measurements."""
    best = 0.0
    for _ in range(3):
        count, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < SECONDS:
            for _ in range(100):
                function()
            count += 100
        best = max(best, count / elapsed)
    return round(best)


def produce_request(partitions: int, size: int) -> ProduceRequest:
    parts = [PartitionProduceData(index=index, records=bytes(size)) for index in range(partitions)]
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="orders", partition_data=parts)])


def produce_response() -> ProduceResponse:
    part = PartitionProduceResponse(index=0, error_code=0, base_offset=5, log_start_offset=0)
    return ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[part])])


def fetch_request() -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=7, partition_max_bytes=2**20)
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=[part])])


def fetch_response(partitions: int, records: bytes) -> FetchResponse:
    parts = [
        PartitionData(
            partition_index=index,
            error_code=0,
            high_watermark=5,
            last_stable_offset=5,
            log_start_offset=0,
            records=records,
        )
        for index in range(partitions)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=parts)])


def split_and_decode(splitter: FrameSplitter, sent: bytes) -> object:
    return decode_request(splitter.receive(sent)[0])


def build_and_encode(header: RequestHeader, partitions: int, records: bytes) -> bytes:
    return encode_response(header, fetch_response(partitions, records))


def main() -> None:
    for version in (7, 9):
        for partitions, size in SHAPES:
            sent = encode_request(produce_request(partitions, size), version, 1, "client")
            decoded = rate(partial(decode_request, sent[4:]))
            received = rate(partial(split_and_decode, FrameSplitter(), sent))
            print(f"Produce {version}, {partitions} x {size} bytes: {decoded:,}/s, with splitting {received:,}/s")
    for version in (11, 12):
        header = RequestHeader(ApiKey.FETCH, version, 1, "client")
        for partitions, size in [*SHAPES, (1, 2**20)]:
            written = rate(partial(build_and_encode, header, partitions, bytes(size)))
            print(f"Fetch response {version}, {partitions} x {size} bytes: {written:,}/s")
    frame = encode_request(fetch_request(), 12, 1, "client")[4:]
    print(f"Fetch request 12: {rate(partial(decode_request, frame)):,}/s")
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "client")
    print(f"Produce response 9: {rate(lambda: encode_response(header, produce_response())):,}/s")


if __name__ == "__main__":
    main()
