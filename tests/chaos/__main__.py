"""Run a cluster of real processes for minutes or hours, disturb it, and check its promises.

    python -m tests.chaos --minutes 60 --stores 3 --producers 4 --consumers 2 --rate 20000

The folder gets `timeline.txt` (faults, output of the nodes, problems) and `summary.json`. The exit status is 0 if every
promise was kept, 1 if one was broken, and 2 for a mistake in the options. docs/contributing/chaos.md describes it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from tests.chaos.cluster import Size
from tests.chaos.faults import FAULTS, LOSSES, Lanes, Pace, plan
from tests.chaos.run import Run


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description="Run real processes under faults, and check promises.")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are applied (5)")
    parser.add_argument("--stores", type=int, default=3, help="stores; every second one is a file log (3)")
    parser.add_argument("--producers", type=int, default=4, help="producers; every second one has a spool (4)")
    parser.add_argument("--consumers", type=int, default=2, help="consumers; each reads all topics (2)")
    parser.add_argument("--rate", type=float, default=20_000, help="records per second of all producers (20000)")
    parser.add_argument("--seed", type=int, help="determines the faults and their times (random)")
    parser.add_argument("--only", default="", metavar="FAULT,...", help=f"only these faults, of {', '.join(FAULTS)}")
    parser.add_argument("--losses-every", type=float, default=Pace().losses_every_s, metavar="SECONDS")
    parser.add_argument("--folder", type=Path, help="where to keep all files (temporary, removed without problems)")
    found = parser.parse_args(arguments)
    unknown = [name for name in found.only.split(",") if name and name not in FAULTS]
    if unknown:
        parser.error(f"--only: expected one of {', '.join(FAULTS)}, not {unknown[0]!r}")
    if min(found.stores, found.producers, found.consumers) < 1 or found.minutes <= 0 or found.rate <= 0:
        parser.error("expected at least one store, producer and consumer, and a time and a rate above 0")
    if found.folder is not None and found.folder.is_dir() and any(found.folder.iterdir()):
        parser.error(f"--folder: expected an empty folder, but {found.folder} has files in it")
    return found


def make_lanes(found: argparse.Namespace, seed: int) -> Lanes:
    only = [name for name in found.only.split(",") if name] or list(FAULTS)
    if found.stores < 2:
        only = [name for name in only if name not in LOSSES]
    return plan(seed, Pace(losses_every_s=found.losses_every), found.minutes * 60, only)


async def until_signal(run: Run, length_s: float) -> list[str]:
    """Run until the end or Ctrl-C, which ends all processes and skips the checks. Return the problems."""
    problems = ["interrupted"]
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        problems = await run.run(length_s)
        nursery.cancel_scope.cancel()
    return problems


def main() -> int:
    found = parse()
    seed = secrets.randbelow(2**32) if found.seed is None else found.seed
    folder = Path(tempfile.mkdtemp(prefix="chaos-")) if found.folder is None else found.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    size = Size(stores=found.stores, producers=found.producers, consumers=found.consumers, rate=found.rate)
    lanes = make_lanes(found, seed)
    print(f"seed {seed}, {sum(map(len, lanes))} faults, in {folder}", flush=True)
    run = Run(size, lanes, folder, seed, echo=sys.stdout)
    problems = trio.run(until_signal, run, found.minutes * 60)
    summary = json.dumps({"seed": seed, "arguments": sys.argv[1:], **run.result}, indent=2)
    (folder / "summary.json").write_text(summary + "\n")
    print(summary)
    if found.folder is None and not problems:
        shutil.rmtree(folder)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
