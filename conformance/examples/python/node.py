"""A Dafka node: it announces itself to a tower, connects to all other nodes, and exchanges messages with them."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import zmq

from messages import Message, decode, encode

BEACON_S = 1.0
SILENCE_S = 4.0
BATCH_MAX = 1000


def receive(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    """Yield the messages that have arrived, but not too many at once, so that timers are not late."""
    with suppress(zmq.Again):
        for _ in range(BATCH_MAX):
            yield socket.recv_multipart(zmq.NOBLOCK)


class Node:
    """A node of any role: its four sockets, the peers that it knows, and its event loop."""

    def __init__(self, tower_sub: str, tower_pub: str) -> None:
        self.address = uuid.uuid4().hex.upper().encode()
        self.peers: dict[bytes, bytes] = {}  # the endpoint of each peer, by its address
        self.heard: dict[bytes, float] = {}  # the time of each peer's last beacon
        self.is_running = True
        self.poller = zmq.Poller()
        self.readers: dict[zmq.Socket[bytes] | int, Callable[[], None]] = {}
        self.timers: list[tuple[float, float, Callable[[], None]]] = []

        context = zmq.Context()
        self.publisher = context.socket(zmq.XPUB)
        self.publisher.xpub_verbose = 1  # by default, a second peer's subscription to the same messages is not reported
        self.publisher.sndhwm = 0  # by default, ZeroMQ drops messages if 1000 of them wait for a slow peer
        port = self.publisher.bind_to_random_port("tcp://*")
        self.subscriber = context.socket(zmq.SUB)
        self.subscriber.rcvhwm = 0
        self.beacon_publisher = context.socket(zmq.PUB)
        self.beacon_publisher.connect(tower_sub)
        self.beacon_subscriber = context.socket(zmq.SUB)
        self.beacon_subscriber.subscribe(b"")
        self.beacon_subscriber.connect(tower_pub)

        self.beacon = [b"B", self.address, b"", b"%d" % port]
        self.every(BEACON_S, self.send_beacon)
        self.watch(self.beacon_subscriber, self.receive_beacons)
        self.watch(self.subscriber, self.receive_messages)
        self.every(BEACON_S, self.leave_silent_peers)
        self.watch(self.publisher, self.receive_subscriptions)

    def watch(self, source: zmq.Socket[bytes] | int, read: Callable[[], None]) -> None:
        """Call a function whenever a socket or file can be read."""
        self.readers[source] = read
        self.poller.register(source, zmq.POLLIN)

    def every(self, interval_s: float, action: Callable[[], None]) -> None:
        """Call a function at a regular interval."""
        self.timers.append((time.monotonic() + interval_s, interval_s, action))

    def run(self) -> None:
        """Run the node until `is_running` is false."""
        while self.is_running:
            wait_s = min(due for due, _, _ in self.timers) - time.monotonic()
            for source, _ in self.poller.poll(max(0, int(wait_s * 1000))):
                self.readers[source]()
            now = time.monotonic()
            for index, (due, interval_s, action) in enumerate(self.timers):
                if due <= now:
                    self.timers[index] = (now + interval_s, interval_s, action)
                    action()

    def send_beacon(self) -> None:
        """Tell the tower this node's address and port. The tower adds the host, which is empty here."""
        self.beacon_publisher.send_multipart(self.beacon)

    def receive_beacons(self) -> None:
        """Learn of other nodes from the tower."""
        for frames in receive(self.beacon_subscriber):
            if frames == [b"W"]:  # the tower's welcome: it receives beacons from now on
                self.send_beacon()
            elif len(frames) == 3 and frames[0] == b"B" and frames[1] != self.address:
                self.meet(frames[1], frames[2])

    def meet(self, address: bytes, endpoint: bytes) -> None:
        """Connect to a peer, unless this node is connected to it."""
        if self.peers.get(address) != endpoint:
            try:
                self.subscriber.connect(endpoint.decode())
            except (zmq.ZMQError, UnicodeDecodeError):
                return  # not an endpoint
            self.leave(address)
            self.peers[address] = endpoint
            self.send_beacon()  # so that the peer need not wait for the next regular one
        self.heard[address] = time.monotonic()

    def leave(self, address: bytes) -> None:
        """Forget a peer."""
        endpoint = self.peers.pop(address, None)
        self.heard.pop(address, None)
        if endpoint is not None and endpoint not in self.peers.values():
            self.subscriber.disconnect(endpoint.decode())

    def send(self, message: Message) -> None:
        """Publish a message to the peers that subscribe to its command and topic."""
        self.publisher.send_multipart(encode(message))

    def receive_messages(self) -> None:
        """Call the method for each message: `on_fetch` for FETCH. Messages without a method are discarded."""
        for frames in receive(self.subscriber):
            message = decode(frames)
            if message is not None:
                handle = getattr(self, "on_" + message.name.lower().replace("-", "_"), None)
                if handle is not None:
                    handle(message)

    def leave_silent_peers(self) -> None:
        """Disconnect from the peers that have sent no beacon for some time."""
        now = time.monotonic()
        for address in [address for address, heard in self.heard.items() if heard + SILENCE_S < now]:
            self.leave(address)

    def receive_subscriptions(self) -> None:
        """Learn what peers subscribe to: a subscription is the byte 1 and a prefix."""
        for frames in receive(self.publisher):
            if frames[0][:1] == b"\x01":
                self.on_subscription(frames[0][1:])

    def on_subscription(self, prefix: bytes) -> None:
        """Do nothing. Roles that send something to a new subscriber override this."""
