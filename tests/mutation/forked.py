"""Runs pytest in a forked process, with limits of time and processor time."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

_POLL_S = 0.01


class Outcome(Enum):
    """The result of a process."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"


def run_forked(job: Callable[[], int], output: Path, wall_s: float, cpu_s: float) -> Outcome:
    """Run a job in a process of its own, and end whatever it leaves behind.

    Args:
        job: returns the exit status.
        output: gets the output of the process.
        wall_s: the time that it may take.
        cpu_s: the processor time that it may take.

    Returns:
        `PASSED` if the status is 0.
    """
    process = os.fork()
    if not process:
        _run_child(job, output, int(cpu_s) + 1)
    deadline = time.monotonic() + wall_s
    outcome = None
    while outcome is None:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended and os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGKILL}:
            outcome = Outcome.TIMEOUT
        elif ended:
            outcome = Outcome.PASSED if status == 0 else Outcome.FAILED
        elif time.monotonic() > deadline:
            outcome = Outcome.TIMEOUT
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
        else:
            time.sleep(_POLL_S)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    return outcome


def _run_child(job: Callable[[], int], output: Path, cpu_s: int) -> None:
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(target, descriptor)
        status = job()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def run_pytest(arguments: Sequence[str], plugins: Sequence[object]) -> int:
    """Run pytest in this process, with settings that suit mutants: nothing is kept, nothing is shrunk."""
    import pytest
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    common = ("-q", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    seeded = ("--hypothesis-profile=mutants", "--hypothesis-seed=0")
    return int(pytest.main([*common, *seeded, *arguments], plugins=list(plugins)))
