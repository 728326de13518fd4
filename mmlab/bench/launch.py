"""Runs one trial in fresh processes and collects what it tells, whatever becomes of it.

The trial gets a session of its own, so that Ctrl-C reaches the run and not half of its children,
and a lifeline on its standard input, so that it ends even if this process is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

import msgspec

from mmlab.bench import events
from mmlab.bench.events import Row, TrialError
from mmlab.bench.spec import TrialSpec
from mmlab.errors import MMLabError

_GRACE_S = 5.0  # for frontend and engine to end by themselves once the lifeline is cut


@dataclass
class Outcome:
    """What one trial left: its rows by table, and the error that ended it early, if one did."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    controls: list[events.Control] = field(default_factory=list)
    error: MMLabError | None = None


def launch(
    spec: TrialSpec,
    *,
    on_progress: Callable[[events.Progress], None] = lambda _: None,
    timeout_s: float = 1800.0,
) -> Outcome:
    """Blocks until the trial has ended and all its processes are gone. Never raises for a trial."""
    outcome, where = Outcome(), f"strategy {spec.strategy}"
    command = [sys.executable, "-m", "mmlab.bench.trial", "--lifeline", "-"]
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env=trial_variables(),
        )
        assert child.stdin is not None and child.stdout is not None
        expired = threading.Event()
        timer = threading.Timer(timeout_s, _expire, (child, expired))
        timer.daemon = True
        timer.start()
        ended_well = False
        try:
            child.stdin.write(msgspec.json.encode(spec) + b"\n")
            child.stdin.flush()
            for line in child.stdout:
                event = events.decode(line)
                ended_well = isinstance(event, events.Done)
                _take(event, outcome, where, on_progress)
        except (TrialError, BrokenPipeError) as error:
            outcome.error = outcome.error or TrialError(f"{where}: {error}")
        finally:
            timer.cancel()
            _end(child, at_once=not ended_well)
        if outcome.error is None and not (ended_well and child.returncode == 0):
            reason = f"did not end within {timeout_s:.0f} s" if expired.is_set() else _how(child)
            outcome.error = TrialError(f"{where}: the trial {reason}{_tail(stderr)}")
    return outcome


def trial_variables() -> dict[str, str]:
    """Environment variables of a trial; a value of the user's own stays.

    OpenMP's threads sleep when they wait: as many spinning ones as cores in each of two processes
    take three to five times the time as soon as anything else runs on the machine.
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}


def _take(
    event: events.Event,
    outcome: Outcome,
    where: str,
    on_progress: Callable[[events.Progress], None],
) -> None:
    if isinstance(event, events.Result):
        outcome.rows.setdefault(event.table, []).append(event.row)
    elif isinstance(event, events.Progress):
        on_progress(event)
    elif isinstance(event, events.Control):
        outcome.controls.append(event)
    elif isinstance(event, events.Failure):
        outcome.error = event.exception(where)


def _end(child: subprocess.Popen[bytes], *, at_once: bool) -> None:
    """Lets a trial that is done end, cuts the lifeline, waits, and kills what is left of it."""
    assert child.stdin is not None and child.stdout is not None
    if not at_once:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
    with suppress(BrokenPipeError):
        child.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_S)
    _kill(child)
    child.wait()
    child.stdout.close()


def _expire(child: subprocess.Popen[bytes], expired: threading.Event) -> None:
    expired.set()
    _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the whole session: the trial's id is the group's as long as it is not reaped."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _how(child: subprocess.Popen[bytes]) -> str:
    code = child.returncode
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code} and without a result"


def _tail(stderr: IO[bytes]) -> str:
    stderr.seek(0)
    lines = stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
    return f"; it said: {lines[-1]}" if lines else ""
