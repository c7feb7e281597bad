"""Frames and headers, and what clients send that is not quite as it should be."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.batches.varints import write_uvarint
from dafka.broker.core.error_codes import ErrorCode
from dafka.errors import UnsupportedRequestError, WireError
from dafka.kafka.protocol.apis import ADVERTISED, advertise
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import (
    FrameSplitter,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    encode_token,
    encode_unsupported,
    read_correlation_id,
)
from dafka.kafka.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from dafka.kafka.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest, ApiVersionsResponse
from dafka.kafka.protocol.messages.logs import (
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from dafka.kafka.protocol.messages.membership import HeartbeatRequest, HeartbeatResponse
from dafka.kafka.protocol.reading import ITEMS_MAX

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def frame_of(data: bytes) -> bytes:
    (frame,) = FrameSplitter().receive(data)
    return frame


UNKNOWN_TAGS = frame_of(encode_request(HEARTBEAT, 4, 7))[:-1] + b"\3" + b"\x63\0" * 3
THREE = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="", partitions=[])] * 3)
KEYS: list[list[str] | None] = [None, ["a"]]
NULL_AND_ONE = DescribeConfigsRequest(
    resources=[DescribeConfigsResource(resource_type=2, resource_name="", configuration_keys=each) for each in KEYS]
)


class TestFrameSplitter:
    @given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), min_size=1))
    def test_frames_arrive_whatever_the_chunks_are(self, frames: list[bytes], sizes: list[int]) -> None:
        stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
        splitter, received, number = FrameSplitter(), [], 0
        while stream:
            size = sizes[number % len(sizes)]
            received += splitter.receive(stream[:size])
            stream, number = stream[size:], number + 1
        assert received == frames
        assert splitter.pending_bytes == 0

    def test_sizes_are_limited_and_not_allocated(self) -> None:
        splitter = FrameSplitter(bytes_max=2**31 - 1)
        assert splitter.receive(struct.pack(">i", 2**31 - 1) + b"abc") == []
        assert splitter.pending_bytes == 7
        splitter = FrameSplitter(bytes_max=1)
        splitter.limit(2)
        assert splitter.receive(b"\0\0\0\2ab") == [b"ab"]

    @pytest.mark.parametrize("size", [-1, -(2**31), 101])
    def test_size_out_of_range(self, size: int) -> None:
        with pytest.raises(WireError, match=f"size: expected a frame of at most 100 bytes, not {size}"):
            FrameSplitter(bytes_max=100).receive(struct.pack(">i", size))


class TestHeaders:
    @pytest.mark.parametrize("client_id", [None, "", "größe"])
    @pytest.mark.parametrize("version", [3, 4])
    def test_round_trip(self, client_id: str | None, version: int) -> None:
        frame = frame_of(encode_request(HEARTBEAT, version, 77, client_id))
        header, request = decode_request(frame)
        assert header == RequestHeader(ApiKey.HEARTBEAT, version, 77, client_id)
        assert request == HEARTBEAT
        reply = frame_of(encode_response(header, HeartbeatResponse(error_code=27)))
        assert read_correlation_id(reply) == 77
        assert decode_response(reply, HeartbeatResponse, version) == HeartbeatResponse(error_code=27)

    @pytest.mark.parametrize(("version", "tags", "group"), [(0, "", "0001 67"), (4, "00", "02 67")])
    def test_layout(self, version: int, tags: str, group: str) -> None:
        """The name of the client keeps its length of two bytes."""
        header = bytes.fromhex(f"000c {version:04x} 00000007 0002 6d65 {tags} {group}")
        assert encode_request(HEARTBEAT, version, 7, "me")[4:].startswith(header)

    def test_tagged_fields_are_skipped_and_limited(self) -> None:
        frame = frame_of(encode_request(HEARTBEAT, 4, 7, "me"))
        with_tags = frame[:12] + b"\2\0\1x\x85\1\0" + frame[13:]
        assert decode_request(with_tags) == decode_request(frame)
        frame = bytes.fromhex("000c000400000007ffff") + write_uvarint(ITEMS_MAX + 1) + b"\x63\0" * (ITEMS_MAX + 1)
        with pytest.raises(WireError, match="header's tagged fields"):
            decode_request(frame + frame_of(encode_request(HEARTBEAT, 4, 7))[11:])

    @pytest.mark.parametrize(
        ("data", "field"),
        [
            ("", "request header"),
            ("000c0000000000", "request header"),
            ("000c000000000007", "client_id"),
            ("000c00000000000700ff61", "client_id"),
            ("000c0000000000070001ff", "client_id"),
            ("000c000400000007ffff", "header's tagged fields"),
            ("000c000400000007ffff01", "header's tagged fields"),
            ("000c000400000007ffff010005", "header's tagged fields"),
            ("000c000400000007ffffffffffff7f", "header's tagged fields"),
        ],
    )
    def test_malformed(self, data: str, field: str) -> None:
        with pytest.raises(WireError) as caught:
            decode_request(bytes.fromhex(data))
        assert caught.value.field == field

    def test_short_response(self) -> None:
        with pytest.raises(WireError, match="response header"):
            decode_response(b"\0\0\0", HeartbeatResponse, 0)


class TestApiVersions:
    def test_response_header_never_has_tags(self) -> None:
        header = RequestHeader(ApiKey.API_VERSIONS, 3, 5, None)
        frame = frame_of(encode_response(header, advertise([ApiKey.PRODUCE])))
        assert frame == bytes.fromhex("00000005 0000 02 0000 0000 000d 00 00000000 00")
        assert decode_response(frame, ApiVersionsResponse, 3) == advertise([ApiKey.PRODUCE])

    def test_newer_request_is_answered_in_version_0(self) -> None:
        """As in streamnative/kop#166 and redpanda-data/redpanda#296."""
        newer = frame_of(encode_request(ApiVersionsRequest(), 4, 5, "c"))
        newer = newer[:2] + b"\0\x63" + newer[4:] + b"fields of version 99"
        with pytest.raises(UnsupportedRequestError) as caught:
            decode_request(newer)
        answer = encode_unsupported(caught.value, [ApiKey.FETCH, ApiKey.API_VERSIONS])
        assert answer == bytes.fromhex("00000016 00000005 0023 00000002 0001 0000 0012 0012 0000 0004")

    def test_other_unsupported_requests_have_no_answer(self) -> None:
        with pytest.raises(
            UnsupportedRequestError, match="HEARTBEAT in versions 0-4, not key 12 in version 5"
        ) as caught:
            decode_request(bytes.fromhex("000c 0005 00000007 ffff 00"))
        assert encode_unsupported(caught.value, ADVERTISED) is None

    @pytest.mark.parametrize("key", [-1, 4, 67, 999])
    def test_unknown_api(self, key: int) -> None:
        with pytest.raises(UnsupportedRequestError, match="the key of an API that is offered") as caught:
            decode_request(struct.pack(">hhi", key, 0, 9))
        assert (caught.value.api_key, caught.value.correlation_id) == (key, 9)

    def test_advertised(self) -> None:
        assert advertise([], ErrorCode.UNSUPPORTED_VERSION) == ApiVersionsResponse(error_code=35, api_keys=[])


def test_token_has_only_its_size() -> None:
    assert frame_of(encode_token(b"v=signature")) == b"v=signature"


class TestRequests:
    def test_what_librdkafka_sends_is_read(self) -> None:
        """librdkafka 2.16 pads Metadata."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
        frame = frame_of(encode_request(request, 9, 1, "rdkafka"))
        assert decode_request(frame + bytes(4)) == decode_request(frame)
        # As in confluentinc/librdkafka#4870.
        fetch = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[])
        for version in (12, 13, 18):
            assert decode_request(frame_of(encode_request(fetch, version, 1)))[1] == fetch

    def test_records_are_views_of_the_frame(self) -> None:
        part = PartitionProduceData(index=0, records=b"batch")
        topic = TopicProduceData(name="orders", partition_data=[part])
        frame = frame_of(encode_request(ProduceRequest(acks=1, timeout_ms=0, topic_data=[topic]), 9, 1))
        _, request = decode_request(frame)
        assert isinstance(request, ProduceRequest)
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert records.obj is frame
        assert bytes(records) == b"batch"

    def test_items_are_limited_by_default(self) -> None:
        topics = [FetchTopic(topic="", partitions=[])] * ITEMS_MAX
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics)
        frame = frame_of(encode_request(request, 12, 1))
        assert decode_request(frame)[1] == request
        topics.append(topics[0])
        limit = rf"FetchRequest\.topics .* a count from 0 to {ITEMS_MAX}, not {ITEMS_MAX + 1}"
        with pytest.raises(WireError, match=limit):
            decode_request(frame_of(encode_request(request, 12, 1)))

    @pytest.mark.parametrize(
        ("frame", "items", "refusal"),
        [
            (frame_of(encode_request(THREE, 11, 1)), 3, r"topics .* a count from 0 to 2, not 3"),
            (frame_of(encode_request(NULL_AND_ONE, 4, 1)), 3, r"configuration_keys .* a count from 0 to 0, not 1"),
            (UNKNOWN_TAGS, 3, r"HeartbeatRequest\.tagged fields .* a count from 0 to 2, not 3"),
        ],
        ids=["all arrays count", "null arrays do not raise the limit", "unknown tags"],
    )
    def test_items_are_limited(self, frame: bytes, items: int, refusal: str) -> None:
        decode_request(frame, items_max=items)
        with pytest.raises(WireError, match=refusal):
            decode_request(frame, items_max=items - 1)

    @pytest.mark.parametrize("number", ["ffffffff1f", "ffffffff7f", "808080808000"])
    def test_unsigned_numbers_have_32_bits(self, number: str) -> None:
        frame = frame_of(encode_request(HEARTBEAT, 4, 7))[:-1] + b"\1" + bytes.fromhex(number)
        with pytest.raises(WireError, match="a number of 32 bits"):
            decode_request(frame + bytes(9))

    def test_unknown_tags_are_skipped(self) -> None:
        frame = frame_of(encode_request(HEARTBEAT, 4, 7))
        for tagged in (frame[:-1] + b"\2\x63\3abc\x64\0", UNKNOWN_TAGS):
            assert decode_request(tagged) == decode_request(frame)

    def test_known_tag_must_have_its_size(self) -> None:
        frame = frame_of(encode_request(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], cluster_id="me"), 12, 7))
        assert frame.endswith(b"\1\0\3\3me")
        with pytest.raises(WireError, match=r"FetchRequest\.cluster_id at byte .* its end at byte"):
            decode_request(frame[:-4] + b"\4\3me\0")

    @pytest.mark.parametrize("count", ["ffffffff", "80000000", "7fffffff", "00000002"])
    def test_count_without_room(self, count: str) -> None:
        start = frame_of(encode_request(MetadataRequest(topics=[]), 0, 1))[:-4]
        with pytest.raises(WireError, match=r"MetadataRequest.topics at byte 14: expected a count from 0 to 1, not"):
            decode_request(start + bytes.fromhex(count) + b"\0\1a")
