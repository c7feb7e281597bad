"""Makes the pictures of the console in docs/how-to/console.md, with a broker that runs on this machine.

python docs/console_screenshots.py [FOLDER]    needs Chromium, and the packages of `make .venv/dev`
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.http.console.browser import ServedBroker, open_browser, open_window, serve_broker

FOLDER = Path(__file__).parent / "how-to" / "console"

WIDE = {"width": 1280, "height": 800}
PAUSE_S = 0.25
"""How long after some records the next ones are published."""

WARM_UP_S = 20
"""How long records flow before the pictures, so that charts have lines."""

COLOURS = 128
"""The colours of a picture, so that its file is small."""

TOPICS = ("clicks", "orders", "payments", "sensor.humidity", "sensor.temperature")

PICTURES = {
    "overview-light": ("", "Overview", "light"),
    "overview-dark": ("", "Overview", "dark"),
    "records": ("topics/orders", "orders", "light"),
    "group": ("groups/billing", "billing", "light"),
}
"""The path, the heading and the colours of each picture."""


def sample_record(topic: str, number: int) -> dict[str, Any]:
    """Return a record that looks like one of a shop."""
    customer = {"id": 7000 + number * 37 % 211, "name": ("Ada", "Grace", "Edsger", "Barbara")[number % 4]}
    value = {
        "id": number,
        "amount": round(3.5 + number * 7919 % 20_000 / 100, 2),
        "currency": "EUR",
        "customer": customer,
    }
    return {"key": f"{topic}-{customer['id']}", "value": json.dumps(value), "headers": [["trace", f"{number:08x}"]]}


@contextmanager
def busy_broker() -> Iterator[ServedBroker]:
    """Run a broker to which records are published, and from which a group reads, during the block."""
    stopping = threading.Event()
    with tempfile.TemporaryDirectory() as folder, serve_broker(Path(folder) / "records") as broker:
        for topic in TOPICS:
            broker.create_topic(topic, log_count=3 if topic == "orders" else 1)
        threads = [threading.Thread(target=_publish, args=(broker, stopping))]
        threads += [threading.Thread(target=_consume, args=(broker, stopping, each)) for each in range(2)]
        for thread in threads:
            thread.start()
        nodes = [_run_node(broker, "store", "--storage", "memory:")]
        nodes += [_run_node(broker, "produce", topic) for topic in ("clicks", "payments")]
        nodes.append(_run_node(broker, "consume", "orders"))
        for node in nodes[1:3]:
            assert node.stdin is not None
            node.stdin.write(b"a record\n")
            node.stdin.flush()
        try:
            yield broker
        finally:
            stopping.set()
            for node in nodes:
                node.kill()
                node.communicate()
            for thread in threads:
                thread.join()


def _run_node(broker: ServedBroker, *command: str) -> subprocess.Popen[bytes]:
    beacon = broker.web.config.beacon
    towers = ["--tower-sub", beacon.tower_sub[0], "--tower-pub", beacon.tower_pub[0]]
    arguments = [sys.executable, "-m", "dafka", *command, *towers]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _publish(broker: ServedBroker, stopping: threading.Event) -> None:
    number = 0
    while not stopping.wait(PAUSE_S):
        for place, topic in enumerate(TOPICS):
            count = (30 + number * 7 % 23) // (place + 1)
            broker.publish(topic, [sample_record(topic, number + each) for each in range(count)])
        number += 60


def _consume(broker: ServedBroker, stopping: threading.Event, member: int) -> None:
    settings = {
        "bootstrap.servers": broker.web.broker.bootstrap_servers,
        "group.id": "billing",
        "client.id": f"billing-{member}",
    }
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 1500})
    consumer.subscribe(["orders", "payments"])
    while not stopping.is_set():
        consumer.poll(0.2)
    consumer.close()


def main(arguments: list[str]) -> None:
    """Make the pictures."""
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with busy_broker() as broker, open_browser() as browser:
        for name, (path, heading, theme) in PICTURES.items():
            with open_window(browser, broker.url) as window, window.emulating(viewport=WIDE, theme=theme):
                window.open(path, heading)
                if name == "records":
                    window.page.get_by_role("row").nth(3).click()
                window.page.wait_for_timeout(1000 * WARM_UP_S if name in {"overview-light", "group"} else 2500)
                window.page.screenshot(path=folder / f"{name}.png")
            with Image.open(folder / f"{name}.png") as picture:
                picture.convert("RGB").quantize(COLOURS).save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
