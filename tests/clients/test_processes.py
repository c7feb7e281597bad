"""Ctrl-C, forks and the end of the process, in processes of their own: what producers have accepted is stored."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from dafka import Config, blocking
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
    try:
        interrupt_soon()
        consumer.next_record()
    except KeyboardInterrupt:
        print("interrupted")
    with blocking.open_producer("hello", config) as producer:
        producer.send(b"after")
    print(consumer.next_record(timeout_s=60).value)
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


RECORDS = 1000
SEND = f"""
import warnings
warnings.simplefilter("ignore", ResourceWarning)
alone = config.with_beacon(tower_sub=("tcp://127.0.0.1:1",), tower_pub=("tcp://127.0.0.1:1",))
alone = alone.with_producer(close_timeout_ms=300)
values = [b"%d" % number for number in range({RECORDS})]

def forget(topic="hello", config=config):
    producer = blocking.open_producer(topic, config)
    producer.send_many(values)
    return producer
"""

PROGRAMS = {
    "script end": ("producer = forget()", 0),
    "exception": ("producer = forget()\nraise ValueError", 1),
    "exit status": ("producer = forget()\nsys.exit(3)", 3),
    "collected": ("forget()", 0),
    "exception in block": ("with blocking.open_producer('hello', config) as producer:\n"
                           "    producer.send_many(values)\n    sys.exit(5)", 5),
    "thread": ("threading.Thread(target=forget).start()", 0),
    "sys.exit in a thread": ("def work():\n    global kept\n    kept = forget()\n    sys.exit(4)\n"
                             "threading.Thread(target=work).start()", 0),
    "daemon thread": ("def work():\n    global kept\n    kept = forget()\n    sent.set()\n    time.sleep(60)\n"
                      "sent = threading.Event()\nthreading.Thread(target=work, daemon=True).start()\nsent.wait()", 0),
    "atexit": ("import atexit\nproducer = blocking.open_producer('hello', config)\n"
               "atexit.register(producer.send_many, values)", 0),
    "loop end": ("async def main():\n    global kept\n    kept = await dafka.asyncio.open_producer('hello', config)\n"
                 "    await kept.send_many(values)\nasyncio.run(main())", 0),
    "loop end, collected": ("async def main():\n    kept = await dafka.asyncio.open_producer('hello', config)\n"
                            "    await kept.send_many(values)\nasyncio.run(main())", 0),
    "task cancelled by the loop's end": (
        "async def work(sent):\n    async with dafka.asyncio.open_producer('hello', config) as producer:\n"
        "        await producer.send_many(values)\n        sent.set()\n        await asyncio.sleep(60)\n"
        "async def main():\n    global task\n    sent = asyncio.Event()\n    task = asyncio.create_task(work(sent))\n"
        "    await sent.wait()\nasyncio.run(main())", 0),
    "forked by multiprocessing": (
        "import multiprocessing\ndef work():\n    global kept\n    kept = forget()\n"
        "child = multiprocessing.get_context('fork').Process(target=work)\nchild.start()\nchild.join()\n"
        "assert child.exitcode == 0", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_accepted_is_stored_when_the_program_ends(config: Config, name: str) -> None:
    program, status = PROGRAMS[name]
    done = run(config, SEND + program)
    assert done.returncode == status, done.stderr
    assert "dafka:" not in done.stderr
    with blocking.open_reader(["hello"], config) as reader:
        reader.wait_ready()
        assert list(reader.ends().values()) == [RECORDS], done.stderr


def reports(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("dafka:")]


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError", "del one, two"])
def test_what_could_not_be_stored_is_counted(config: Config, end: str) -> None:
    done = run(config, SEND + f"one = forget('tea', alone)\ntwo = forget('milk', alone)\n{end}\n")
    assert done.returncode == {"sys.exit(3)": 3, "raise ValueError": 1}.get(end, 0)
    cause = "no store has acknowledged them, and no tower is heard at tcp://127.0.0.1:1"
    assert sorted(reports(done)) == [
        f"dafka: {RECORDS} records of topic {topic} are not stored: {cause}" for topic in ("milk", "tea")
    ]


def test_what_could_not_be_stored_is_counted_after_a_loop(config: Config) -> None:
    done = run(
        config,
        SEND
        + """
async def main():
    producer = await dafka.asyncio.open_producer("tea", alone)
    await producer.send(b"1")
asyncio.run(main())
""",
    )
    (line,) = reports(done)
    assert (done.returncode, line.partition(":")[2].partition(":")[0]) == (0, " 1 record of topic tea is not stored")


def test_ctrl_c_ends_the_wait_at_the_end_and_the_records_are_counted(config: Config) -> None:
    done = run(
        config,
        SEND
        + """
def interrupt_end():
    threading.main_thread().join()
    interrupt()

producer = forget("tea", alone.with_producer(close_timeout_ms=3_600_000))
threading.Thread(target=interrupt_end, daemon=True).start()
""",
    )
    assert len(reports(done)) == 1
    assert done.returncode in (0, 130, -signal.SIGINT)


def test_records_in_a_spool_are_named_as_such(config: Config, tmp_path: object) -> None:
    done = run(config, SEND + f"producer = forget('tea', alone.with_producer(spool='sqlite:{tmp_path}/spool.db'))\n")
    (line,) = reports(done)
    assert line.startswith(f"dafka: {RECORDS} records of topic tea are only in the spool sqlite:{tmp_path}/spool.db; ")
    assert done.returncode == 0


def test_a_closed_producer_says_nothing(config: Config) -> None:
    done = run(config, SEND + "producer = forget()\nproducer.close()\nwarnings.simplefilter('error')\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_without_a_store_of_its_own_ends_with_it(config: Config) -> None:
    """A tower and a store that are left open in the same program store the records first."""
    done = run(
        config,
        SEND
        + """
own = config.with_tower(sub="tcp://127.0.0.1:*", pub="tcp://127.0.0.1:*")
tower = blocking.serve_tower(own)
own = own.with_beacon(tower_sub=(tower.sub_endpoint,), tower_pub=(tower.pub_endpoint,)).with_store(storage="memory:")
store = blocking.serve_store(own)
producer = forget("hello", own)
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
