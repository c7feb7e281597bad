"""The second form of beacons, in bytes. docs/reference/beacons.md shows the same examples."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from dafka.errors import WireError
from dafka.wire import DirectoryEntry, DirectoryPage, Pulse, Registration, Role, RoleChanges, encode_changes
from dafka.wire.directory import changes_topic, encode_pages, inbox_topic

UUID = "FC83322A248C4C30A13C28A5D5649931"
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
TOWER = bytes.fromhex("0102030405060708")

REGISTRATION = [
    b"A",
    bytes.fromhex("01 01 20") + UUID.encode() + bytes.fromhex("00 1B 59 50 04") + b"SCO*" + b"\x01M",
]
ENTRY = bytes.fromhex("00 39 20") + UUID.encode() + b"\x13tcp://10.0.0.7:7001" + b"\x00" + b"P" + b"\x01M"
CHANGES = [b"RP", b"\x01" + TOWER + bytes.fromhex("00 00 00 05") + b"+" + ENTRY]
PAGE = [
    b"I" + UUID.encode(),
    b"\x01" + TOWER + bytes.fromhex("01 00 00 02 53 00 00 00 02 50 00 00 00 05") + ENTRY,
]
PULSE = [b"T", b"\x01" + TOWER + bytes.fromhex("00 00 05 35 01 50 00 00 00 05 00 00 03 E8")]

NODE = DirectoryEntry(UUID, "tcp://10.0.0.7:7001", role=Role.PRODUCER)


def decode_page(frames: list[bytes]) -> DirectoryPage:
    return DirectoryPage.decode(frames, UUID)


def test_a_registration_in_bytes() -> None:
    wanted = (Role.STORE, Role.CONSUMER, Role.OBSERVER, Role.ANY)
    registration = Registration(UUID, "", 7001, Role.PRODUCER, wanted, asks_directory=True)
    assert registration.encode() == REGISTRATION
    assert Registration.decode(REGISTRATION) == registration


def test_changes_in_bytes() -> None:
    assert encode_changes(Role.PRODUCER, TOWER, 5, [(True, NODE.encode())]) == CHANGES
    assert RoleChanges.decode(CHANGES) == RoleChanges(Role.PRODUCER, TOWER, 5, ((True, NODE),))
    left = [CHANGES[0], CHANGES[1].replace(b"+", b"-")]
    assert RoleChanges.decode(left).changes == ((False, NODE),)


def test_a_page_in_bytes() -> None:
    numbers = {Role.STORE: 2, Role.PRODUCER: 5}
    assert list(encode_pages(UUID, TOWER, numbers, [NODE.encode()], 1000)) == [PAGE]
    assert decode_page(PAGE) == DirectoryPage(UUID, TOWER, 0, True, numbers, (NODE,))


def test_a_pulse_in_bytes() -> None:
    pulse = Pulse(TOWER, 1333, {Role.PRODUCER: 5}, 1000)
    assert pulse.encode() == PULSE
    assert Pulse.decode(PULSE) == pulse
    longest = Pulse.decode(Pulse(TOWER, 2**40, {}, 2**50).encode())
    assert (longest.interval_ms, longest.pause_ms) == (2**32 - 1, 2**32 - 1)
    assert Pulse.decode([b"T", PULSE[1][:-4]]) == Pulse(TOWER, 1333, {Role.PRODUCER: 5}, 0)
    more = bytes.fromhex("02 58 00 00 00 09 50 00 00 00 05")  # also of a role of a later version
    assert Pulse.decode([b"T", PULSE[1].replace(bytes.fromhex("01 50 00 00 00 05"), more)]) == pulse


def test_pages_are_limited_in_size_and_only_the_last_one_is_marked() -> None:
    entry = NODE.encode()
    pages = [decode_page(page) for page in encode_pages(UUID, TOWER, {}, [entry] * 5, 2 * len(entry))]
    found = [(page.index, page.is_last, len(page.entries)) for page in pages]
    assert found == [(0, False, 2), (1, False, 2), (2, True, 1)]
    for count, page_bytes_max, expected in ((0, 9, [0]), (2, 1, [1, 1]), (3, 3 * len(entry), [3])):
        pages = [decode_page(page) for page in encode_pages(UUID, TOWER, {}, [entry] * count, page_bytes_max)]
        assert [len(page.entries) for page in pages] == expected
        assert [page.is_last for page in pages] == [*[False] * (len(pages) - 1), True]


def test_an_entry_of_a_closed_cluster_has_a_key() -> None:
    closed = DirectoryEntry(UUID, "tcp://10.0.0.7:7001", KEY, Role.STORE)
    frames = encode_changes(Role.STORE, TOWER, 1, [(True, closed.encode())])
    assert RoleChanges.decode(frames, has_key=True).changes == ((True, closed),)
    with pytest.raises(WireError, match="key"):
        RoleChanges.decode(frames)
    with pytest.raises(WireError, match="key"):
        RoleChanges.decode(CHANGES, has_key=True)
    for wrong in (KEY[1:], KEY + "x", "~" + KEY[1:]):
        frames = encode_changes(Role.STORE, TOWER, 1, [(True, attrs.evolve(closed, key=wrong).encode())])
        with pytest.raises(WireError, match="40 characters of Z85"):
            RoleChanges.decode(frames, has_key=True)


def test_roles_of_later_versions_count_as_any() -> None:
    later = [b"A", REGISTRATION[1].replace(b"YP\x04", b"YX\x04").replace(b"YP", b"YX")]
    assert Registration.decode(later).role is Role.ANY
    unknown = [b"A", REGISTRATION[1].replace(b"SCO*", b"XSYS")]
    assert Registration.decode(unknown).wanted == (Role.ANY, Role.STORE)
    for flags, asks in ((0, False), (2, False), (3, True)):
        assert Registration.decode([b"A", b"\1%c" % flags + REGISTRATION[1][2:]]).asks_directory is asks
    changes = RoleChanges.decode([b"R*", CHANGES[1].replace(b"\x00P\x01M", b"\x00X\x01M")])
    assert [entry.role for _, entry in changes.changes] == [Role.ANY]


def test_fields_of_later_versions_are_ignored() -> None:
    assert Registration.decode([b"A", b"\x02" + REGISTRATION[1][1:] + b"more"]).address == UUID
    assert Pulse.decode([b"T", PULSE[1] + b"more"]).tower == TOWER
    longer = bytes.fromhex("00 3D") + ENTRY[2:] + b"more"
    assert RoleChanges.decode([b"RP", CHANGES[1].replace(ENTRY, longer)]).changes == ((True, NODE),)


def test_changes_of_an_unknown_kind_are_ignored() -> None:
    frames = [b"RP", CHANGES[1].replace(b"+", b"?") + b"+" + ENTRY]
    assert RoleChanges.decode(frames).changes == ((True, NODE),)


@pytest.mark.parametrize(
    ("decode", "frames"),
    [
        (Registration.decode, REGISTRATION),
        (RoleChanges.decode, CHANGES),
        (decode_page, PAGE),
        (Pulse.decode, PULSE),
    ],
)
def test_every_cut_is_rejected(decode: Callable[[list[bytes]], object], frames: list[bytes]) -> None:
    whole = {len(CHANGES[1]) - len(ENTRY) - 1, len(PAGE[1]) - len(ENTRY)}  # without an entry they are complete, too
    for length in range(len(frames[1])):
        if length in whole and decode in (RoleChanges.decode, decode_page):
            continue
        if decode == Pulse.decode and length == len(PULSE[1]) - 4:
            continue  # without the pause, which is optional
        with pytest.raises(WireError):
            decode([frames[0], frames[1][:length]])
    old = [frames[0], b"\0" + frames[1][1:]]
    topics = [b"", b"B", frames[0] + b"x", frames[0][:-1]]
    for wrong in (old, [], frames[1:], frames[:1], [*frames, b""], *([each, frames[1]] for each in topics)):
        with pytest.raises(WireError):
            decode(wrong)


@pytest.mark.parametrize(
    ("field", "was", "becomes"),
    [
        ("uuid", b"\x20" + UUID.encode(), b"\x00"),
        ("host", b"\x00\x1bYP", b"\x03a b\x1bYP"),
        ("port", b"\x1bY", b"\x00\x00"),
    ],
)
def test_an_invalid_field_of_a_registration_is_rejected(field: str, was: bytes, becomes: bytes) -> None:
    with pytest.raises(WireError) as caught:
        Registration.decode([b"A", REGISTRATION[1].replace(was, becomes)])
    assert caught.value.field == field


@pytest.mark.parametrize("endpoint", ["", "tcp://h", "ipc://h:80", "tcp://h:0", "tcp://a;b:80", "tcp://*:80"])
def test_an_invalid_endpoint_is_rejected(endpoint: str) -> None:
    frames = encode_changes(Role.STORE, TOWER, 1, [(True, DirectoryEntry(UUID, endpoint).encode())])
    with pytest.raises(WireError, match="endpoint"):
        RoleChanges.decode(frames)


def test_topics() -> None:
    assert inbox_topic("ME") == b"IME"
    assert changes_topic(Role.ANY) == b"R*"
