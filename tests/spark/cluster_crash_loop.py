"""Kill a query that reads a running cluster again and again while records flow, then check what it has written.

    python -m tests.spark.cluster_crash_loop [ROUNDS]

The kill comes at a random moment after the query's first micro-batch. Each round starts a Java process.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from dafka import Producer
from dafka.spark.session import make_session
from tests.roles.helpers import contents
from tests.spark.cluster import RunningCluster, run_cluster
from tests.spark.cluster_query import follow_cluster, read_sink, run_program, wait_batches
from tests.spark.fixtures import SETTINGS

RECORDS_PER_S = 1000


def publish_on(cluster: RunningCluster, producer: Producer, is_done: threading.Event) -> None:
    while not is_done.wait(0.1):
        cluster.send(producer, RECORDS_PER_S // 10)


def main(rounds: int) -> None:
    is_done = threading.Event()
    with tempfile.TemporaryDirectory() as name, run_cluster() as cluster:
        folder = Path(name)
        with cluster.store(f"sqlite:{folder}/orders.db"), cluster.producer() as producer:
            publishing = threading.Thread(target=publish_on, args=(cluster, producer, is_done))
            publishing.start()
            try:
                for each in range(rounds):
                    with run_program(cluster.towers, folder) as process:
                        wait_batches(process, 1, folder / "log")
                        time.sleep(random.uniform(0, 3))
                    print(f"killed {each + 1} times; {producer.statistics().records} records so far", flush=True)
            finally:
                is_done.set()
                publishing.join()
            session = make_session("checking", "local[2]", SETTINGS)
            query = follow_cluster(session, cluster.towers, folder, 10**9, availableNow=True)
            query.awaitTermination()
            count = producer.statistics().records
            expected = {producer.partition.address: list(enumerate(contents(0, count)))}
            assert read_sink(session, folder) == expected, "records are missing or duplicated"
            print(f"{count} records, each exactly once, after {rounds} kills", flush=True)
            session.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
