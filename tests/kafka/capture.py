"""Record the requests of real clients: `python -m tests.kafka.capture tests/kafka/requests.json`.

It keeps the first frame of each API and version of each client. The extra `test` has aiokafka and kafka-python;
confluent-kafka, and older versions of the others, are recorded by a Python in which they are installed, clients in
other languages with `--serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.recording_broker import TOPIC, RecordingBroker

PLAIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
USER = {"sasl_plain_username": "user", "sasl_plain_password": "password"}


def run_confluent(broker: RecordingBroker) -> None:
    confluent = importlib.import_module("confluent_kafka")
    administration = importlib.import_module("confluent_kafka.admin")
    servers = {"bootstrap.servers": broker.endpoint}
    producer = confluent.Producer({**servers, "enable.idempotence": True, "compression.type": "lz4"})
    producer.produce(TOPIC, b"value", key=b"key", headers=[("name", b"value")])
    assert producer.flush(20) == 0
    admin = administration.AdminClient(servers)
    requests: list[dict[Any, Any]] = [
        admin.create_topics([administration.NewTopic("made", num_partitions=1, replication_factor=1)]),
        admin.describe_configs([administration.ConfigResource("topic", TOPIC)]),
        admin.delete_topics(["made"]),
    ]
    for futures in requests:
        for each in futures.values():
            each.result(20)
    administer_with_confluent(broker, admin)
    admin.describe_consumer_groups(["g"])["g"].result(20)
    consumer = confluent.Consumer({**servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    message = consumer.poll(20)
    assert message is not None
    assert (message.value(), message.key()) == (b"value", b"key")
    consumer.commit(message, asynchronous=False)
    transactional = confluent.Producer({**servers, "transactional.id": "t"})
    transactional.init_transactions(20)
    transactional.begin_transaction()
    transactional.produce(TOPIC, b"value", key=b"key")
    positions = consumer.position([confluent.TopicPartition(TOPIC, 0)])
    transactional.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 20)
    transactional.commit_transaction(20)
    consumer.close()
    secure = confluent.Producer(
        {
            **servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "user",
            "sasl.password": "password",
        }
    )
    secure.list_topics(TOPIC, timeout=20)


def administer_with_confluent(broker: RecordingBroker, admin: Any) -> None:
    confluent = importlib.import_module("confluent_kafka")
    administration = importlib.import_module("confluent_kafka.admin")
    place = confluent.TopicPartition(TOPIC, 0, 0)
    entry = administration.ConfigEntry(
        "retention.ms", "1000", incremental_operation=administration.AlterConfigOpType.SET
    )
    results: list[Any] = [
        *admin.create_partitions([administration.NewPartitions(TOPIC, 2)]).values(),
        *admin.delete_records([place]).values(),
        *admin.alter_configs([administration.ConfigResource("topic", TOPIC, {"retention.ms": "1000"})]).values(),
        *admin.incremental_alter_configs(
            [administration.ConfigResource("topic", TOPIC, incremental_configs=[entry])]
        ).values(),
        *admin.list_offsets({place: administration.OffsetSpec.latest()}).values(),
        *admin.delete_consumer_groups(["g"]).values(),
        admin.describe_cluster(),
        admin.list_consumer_groups(),
    ]
    for each in results:
        each.result(20)


def run_aiokafka(broker: RecordingBroker) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=broker.endpoint, enable_idempotence=True, compression_type="gzip"
        ) as producer:
            await producer.send_and_wait(TOPIC, b"value", key=b"key")
        consumer = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=broker.endpoint, group_id="g", auto_offset_reset="earliest"
        )
        async with consumer:
            assert (await consumer.getone()).value == b"value"
            await consumer.commit()
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.endpoint)
        await admin.start()
        await admin.create_topics([NewTopic("made", 1, 1)])
        await admin.list_consumer_groups()
        await admin.close()
        transactional = AIOKafkaProducer(bootstrap_servers=broker.endpoint, transactional_id="t")
        async with transactional, transactional.transaction():
            await transactional.send_and_wait(TOPIC, b"value", key=b"key")
            await transactional.send_offsets_to_transaction({TopicPartition(TOPIC, 0): 1}, "g")
        async with AIOKafkaProducer(bootstrap_servers=broker.endpoint, **PLAIN, **USER) as secure:
            await secure.partitions_for(TOPIC)

    asyncio.run(run())


def run_old_kafka_python(broker: RecordingBroker) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    client = broker.client
    for version in ((0, 8, 2), (0, 9), (0, 10, 1), (0, 11)):
        broker.client = f"{client} for {'.'.join(map(str, version))}"
        options = {"bootstrap_servers": broker.endpoint, "api_version": version}
        producer = KafkaProducer(**options, compression_type="gzip")
        producer.send(TOPIC, b"value", key=b"key").get(20)
        producer.close()
        consumer = KafkaConsumer(TOPIC, **options, group_id="g", auto_offset_reset="earliest")
        assert next(consumer).value == b"value"
        consumer.commit()
        consumer.close()


def run_kafka_python(broker: RecordingBroker) -> None:
    if broker.client.startswith("kafka 2."):
        run_old_kafka_python(broker)
        return
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import NewTopic

    producer = KafkaProducer(bootstrap_servers=broker.endpoint, compression_type="snappy")
    producer.send(TOPIC, b"value", key=b"key").get(20)
    producer.close()
    consumer = KafkaConsumer(TOPIC, bootstrap_servers=broker.endpoint, group_id="g", auto_offset_reset="earliest")
    assert next(consumer).value == b"value"
    consumer.commit()
    consumer.close()
    admin = KafkaAdminClient(bootstrap_servers=broker.endpoint)
    admin.create_topics([NewTopic("made", 1, 1)])
    admin.describe_groups(["g"])
    admin.close()
    transactional = KafkaProducer(bootstrap_servers=broker.endpoint, transactional_id="t")
    transactional.init_transactions()
    transactional.begin_transaction()
    transactional.send(TOPIC, b"value", key=b"key").get(20)
    transactional.commit_transaction()
    transactional.close()
    secure = KafkaProducer(bootstrap_servers=broker.endpoint, **PLAIN, **USER)
    secure.partitions_for(TOPIC)
    secure.close()


CLIENTS: dict[str, Callable[[RecordingBroker], None]] = {
    "confluent_kafka": run_confluent,
    "aiokafka": run_aiokafka,
    "kafka": run_kafka_python,
}


def run_installed() -> list[RecordingBroker]:
    """Run the clients that are installed, each with a broker of its own."""
    brokers = []
    for package, run in CLIENTS.items():
        try:
            version = importlib.import_module(package).__version__
        except ImportError as error:
            print(f"{package}: {error}")
            continue
        broker = RecordingBroker(f"{package} {version}")
        run(broker)
        brokers.append(broker)
    return brokers


def serve(client: str) -> list[RecordingBroker]:
    """Serve a client that somebody else runs, until the standard input ends."""
    broker = RecordingBroker(client)
    print(broker.endpoint, flush=True)
    sys.stdin.read()
    return [broker]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="what other clients sent stays in this file")
    parser.add_argument("--serve", metavar="CLIENT", help="record the client with this name and version, run by hand")
    arguments = parser.parse_args()
    path: Path = arguments.path
    recorded = json.loads(path.read_text()) if path.exists() else []
    for broker in serve(arguments.serve) if arguments.serve else run_installed():
        recorded = [each for each in recorded if not each["client"].startswith(broker.name)]
        for (client, key, version), frame in broker.frames.items():
            recorded.append({"client": client, "api": ApiKey(key).name, "version": version, "frame": frame.hex()})
        print(f"{broker.name}: {len(broker.frames)} frames")
    recorded.sort(key=lambda each: (each["client"], ApiKey[each["api"]], each["version"]))
    path.write_text("[\n" + ",\n".join(map(json.dumps, recorded)) + "\n]\n")


if __name__ == "__main__":
    main()
