"""Run a cluster of broker processes with real clients of Kafka under faults, and check its promises.

    python -m tests.broker.cluster.chaos --minutes 60 --brokers 5 --logs 24 --rate 20000 --seed 1

The folder gets `timeline.txt` (faults, output of the nodes, problems), `summary.json`, the histories of the clients and
the storages. The exit status is 0 if every promise was kept, 1 if one was broken, and 2 for a mistake in the options.
docs/contributing/cluster-chaos.md describes it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from tests.broker.cluster.faults import FAULTS, PROCESS_FAULTS, plan
from tests.broker.cluster.network import find_obstacle
from tests.broker.cluster.run import Run, Size
from tests.chaos.signals import until_signal


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description="Run brokers under faults, and check their promises.")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are applied (5)")
    parser.add_argument("--brokers", type=int, default=5, help="brokers (5)")
    parser.add_argument("--logs", type=int, default=24, help="logs of the topic (24)")
    parser.add_argument("--replicas", type=int, default=3, help="replicas of each log (3)")
    parser.add_argument("--producers", type=int, default=4, help="idempotent producers (4)")
    parser.add_argument("--groups", type=int, default=2, help="groups of consumers, of two members each (2)")
    parser.add_argument("--rate", type=float, default=20_000, help="records per second of all producers (20000)")
    parser.add_argument("--value-bytes", type=int, default=100, help="the size of a record's value (100)")
    parser.add_argument("--availability", choices=("majority", "branch"), default="majority")
    parser.add_argument("--storage", choices=("filelog", "sqlite"), default="filelog", help="of the brokers (filelog)")
    parser.add_argument("--seed", type=int, help="determines the faults and their times (random)")
    parser.add_argument("--only", default="", metavar="FAULT,...", help=f"only these faults, of {', '.join(FAULTS)}")
    parser.add_argument("--folder", type=Path, help="where to keep all files (temporary, removed without problems)")
    found = parser.parse_args(arguments)
    unknown = [name for name in found.only.split(",") if name and name not in FAULTS]
    if unknown:
        parser.error(f"--only: expected one of {', '.join(FAULTS)}, not {unknown[0]!r}")
    if min(found.brokers, found.logs, found.replicas, found.producers) < 1 or found.minutes <= 0 or found.rate <= 0:
        parser.error("expected at least one broker, log, replica and producer, and a time and a rate above 0")
    if found.folder is not None and found.folder.is_dir() and any(found.folder.iterdir()):
        parser.error(f"--folder: expected an empty folder, but {found.folder} has files in it")
    return found


def report(result: dict[str, object]) -> str:
    """Return what a run has found, for people."""
    lines = [f"seed {result['seed']}, {result['seconds']} s, {result.get('records', 'not checked')}"]
    pauses = result.get("longest_pauses", [])
    assert isinstance(pauses, list)
    lines += [
        f"{each['pause_s']:>7.2f} s without acknowledgement (log {each['log']}): {each['fault']}" for each in pauses
    ]
    problems, late = result.get("problems", ["interrupted"]), result.get("late", [])
    assert isinstance(problems, list)
    assert isinstance(late, list)
    return "\n".join((*lines, *late, *(problems or ["no promise was broken"])))


def main() -> int:
    found = parse()
    seed = secrets.randbelow(2**32) if found.seed is None else found.seed
    obstacle = find_obstacle()
    only = [name for name in found.only.split(",") if name] or list(FAULTS)
    if obstacle:
        only = [name for name in only if name in PROCESS_FAULTS]
        print(f"{obstacle}: there will be no faults of the network", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="cluster-")) if found.folder is None else found.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    names = ("brokers", "logs", "replicas", "producers", "groups", "rate", "value_bytes", "availability", "storage")
    size = Size(**{name: getattr(found, name) for name in names}, is_split=not obstacle)
    faults = plan(seed, found.minutes * 60, only)
    print(f"seed {seed}, {len(faults)} faults, in {folder}", flush=True)
    run = Run(size, faults, folder, echo=sys.stdout)
    problems = trio.run(until_signal, run.run, found.minutes * 60)
    result = {"seed": seed, "arguments": sys.argv[1:], **run.result}
    (folder / "summary.json").write_text(json.dumps(result, indent=2) + "\n")
    print(report(result))
    if problems or run.late:
        return 1
    if found.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
