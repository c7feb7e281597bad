"""Ctrl-C, forks and the end of the process, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from dafka import Config
from tests.cli.forks import run_python

DEADLINE_S = 60

BEGIN = """
import warnings
warnings.simplefilter("error")
import asyncio, os, signal, sys, threading, time
import dafka, dafka.asyncio, trio
from dafka import blocking
signal.signal(signal.SIGINT, signal.default_int_handler)
config = dafka.Config.load().with_node(bind="tcp://127.0.0.1:*").with_consumer(offset_reset="earliest")

def interrupt():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)

def interrupt_soon():
    threading.Thread(target=interrupt).start()

def check_nothing_left():
    assert not [each for each in threading.enumerate() if each.name == "dafka"], threading.enumerate()
"""


def run(config: Config, program: str, **options: str) -> subprocess.CompletedProcess[str]:
    """Run a program in which every warning is an error."""
    (sub,), (pub,) = config.beacon.tower_sub, config.beacon.tower_pub
    environment = {**os.environ, "DAFKA_BEACON_TOWER_SUB": sub, "DAFKA_BEACON_TOWER_PUB": pub, **options}
    return run_python(BEGIN + program, environment, DEADLINE_S)


def check(config: Config, program: str, output: str = "") -> None:
    done = run(config, program)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", output)


def test_ctrl_c_ends_a_wait_and_loses_no_record(config: Config) -> None:
    check(
        config,
        """
with blocking.open_consumer(["hello"], config) as consumer:
    interrupt_soon()
    try:
        consumer.next_record()
    except KeyboardInterrupt:
        print("interrupted")
    with blocking.open_producer("hello", config) as producer:
        producer.send(b"after")
    print(consumer.next_record(timeout_s=30).value)
check_nothing_left()
""",
        "interrupted\nb'after'\n",
    )


@pytest.mark.parametrize(
    "program",
    [
        """
interrupt_soon()
with blocking.open_consumer(["hello"], config) as consumer:
    for record in consumer: pass
""",
        """
alone = config.with_beacon(tower_sub=("tcp://127.0.0.1:1",), tower_pub=("tcp://127.0.0.1:1",))
with blocking.open_producer("hello", alone) as producer:
    producer.send(b"nobody acknowledges")
    interrupt_soon()
""",
        """
interrupt_soon()
blocking.open_consumer(["hello"], config.with_consumer(offset_reset="latest").with_beacon(settle_ms=60_000))
""",
        """
async def main():
    async with dafka.asyncio.open_consumer(["hello"], config) as consumer:
        interrupt_soon()
        async for record in consumer: pass
asyncio.run(main())
""",
    ],
    ids=["iterating", "closing", "opening", "asyncio"],
)
def test_ctrl_c_ends_the_program_at_once(config: Config, program: str) -> None:
    done = run(config, program)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "Warning" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode in (1, 130, -signal.SIGINT)


def test_the_end_of_the_process_closes_what_is_open_and_warns(config: Config) -> None:
    done = run(
        config,
        """
import warnings
warnings.simplefilter("always")
consumer = blocking.open_consumer(["hello"], config)
producer = blocking.open_producer("hello", config)
producer.send(b"1")

def wait():
    try:
        consumer.next_record()
        consumer.next_record()
    except trio.ClosedResourceError:
        pass  # where the thread still runs by then

threading.Thread(target=wait, daemon=True).start()
producer.wait_stored()
""",
    )
    assert done.returncode == 0
    assert "ResourceWarning: unclosed consumer: use `with`, or call its close()" in done.stderr
    assert "ResourceWarning: unclosed producer: use `with`, or call its close()" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_forked_process_leaves_the_blocks_of_its_parent(config: Config) -> None:
    check(
        config,
        """
with blocking.open_consumer(["hello"], config) as consumer:
    child = os.fork()
if not child:
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7
check_nothing_left()
""",
    )


def test_processes_of_multiprocessing_use_the_library(config: Config) -> None:
    check(
        config,
        """
import multiprocessing

def work(number):
    with blocking.open_producer("hello", config) as producer:
        return producer.send(b"%d" % number)

with blocking.open_producer("hello", config) as producer:
    producer.send(b"parent")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(work, range(4)) == [0] * 4
        pool.close()
        pool.join()
""",
    )
