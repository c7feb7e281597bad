"""The metrics of the listener for HTTP and WebSocket."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

from dafka.http.server.metrics import COUNTERS, GAUGES, HttpMetrics
from dafka.operations.metrics import TopicLabels
from tests.cli.harness import Dafka
from tests.http.running import open_web

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "http.md"


def test_the_page_names_every_metric_with_its_labels() -> None:
    rows = dict(re.findall(r"^\| `(dafka_http_\w+)` \| ([^|]*) ?\|", PAGE.read_text("utf-8"), re.MULTILINE))
    described = {f"{name}_total": help_ for name, help_ in COUNTERS.items()} | GAUGES
    assert {name: labels.strip() for name, labels in rows.items()} == {
        name: ", ".join(f"`{label}`" for label in help_.labels) for name, help_ in described.items()
    }


async def test_metrics_count_what_clients_do() -> None:
    async with open_web() as web:
        assert web.broker.web is not None
        for value in (b"a", b"bb"):
            assert (await web.request("POST", "/topics/orders/records", value)).status == 200
        await web.get("/topics/orders/records")
        await web.get("/topics/none")
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for metric in HttpMetrics(web.broker.web).read(TopicLabels(10))
            for sample in metric.samples
        }
        assert found["dafka_http_requests_total", "POST", "/topics/{topic}/records"] == 2
        assert found["dafka_http_responses_total", "404"] == 1
        assert found["dafka_http_records_total", "produced", "orders"] == 2
        assert found["dafka_http_records_total", "consumed", "orders"] == 2
        assert found["dafka_http_bytes_total", "received"] > 300
        assert found["dafka_http_accepted_connections_total",] == 4


def test_a_broker_serves_them_beside_its_other_metrics(dafka: Dafka) -> None:
    up = dafka.start_up("--http", "127.0.0.1:0", "--storage", "memory:", "--metrics-listen", "127.0.0.1:0")
    lines = up.wait_output(4)
    url, metrics = (next(line.split()[-1] for line in lines if word in line) for word in ("HTTP", "metrics"))
    urllib.request.urlopen(f"{url}/topics", timeout=30).close()
    with urllib.request.urlopen(metrics, timeout=30) as answer:
        text = answer.read().decode()
    assert re.search(r'^dafka_http_requests_total\{.*route="/topics".*\} 1', text, re.MULTILINE), text
