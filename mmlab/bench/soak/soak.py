"""The soak: frontend threads, one pipeline, minutes of load, and a quiet reading at each end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import msgspec

from mmlab.bench.soak.claims import broken
from mmlab.bench.soak.client import Client, Gate
from mmlab.bench.soak.draw import PATIENCE_S
from mmlab.bench.soak.items import Maker
from mmlab.bench.soak.readings import Reading, Row, Timeline, read, return_payload, undrained
from mmlab.bench.soak.tally import Counts, Tally
from mmlab.bench.soak.ticket import Aborter
from mmlab.errors import EngineError
from mmlab.measure import environment, now
from mmlab.pipeline import Pipeline
from mmlab.strategies import resolve

FIRST_S: Final = 60.0  # when the first reading is taken; earlier in a soak of less than 2 minutes
SAY_S: Final = 10.0
DRAIN_S: Final = 20.0  # until the engine has given everything back
Say = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    strategy: str
    seconds: float
    threads: int
    seed: int
    max_inflight_nbytes: int
    insecure_pickle: bool = False

    @property
    def first_s(self) -> float:
        return min(FIRST_S, self.seconds / 2)


class Result(msgspec.Struct, kw_only=True):
    """What was found; `broken` is empty where every claim held."""

    settings: Settings
    environment: dict[str, object]
    device: str
    rows: list[Row]
    readings: list[Reading]
    counts: Counts
    faults: list[str]
    broken: list[str]
    interrupted: bool = False


def soak(settings: Settings, say: Say) -> Result:
    """Run it. Ctrl-C ends it in order: what was found so far is returned, marked as interrupted."""
    return_payload()
    record: dict[str, object] = msgspec.to_builtins(environment.collect())
    tally = Tally(lambda text: say(f"FAULT {text}"))
    with Pipeline(
        "echo",
        resolve(settings.strategy),
        insecure_pickle=settings.insecure_pickle,
        max_inflight_nbytes=settings.max_inflight_nbytes,
        engine_threads=1,
    ) as pipe:
        load = f"{settings.threads} frontend threads, strategy {settings.strategy}"
        say(f"seed {settings.seed}: {load} ...")
        run = _Run(settings, pipe, tally, say)
        run.go()
        device = pipe.info.device
    return Result(
        settings=settings,
        environment=record,
        device=device,
        rows=run.timeline.rows,
        readings=run.readings,
        counts=tally.counts(),
        faults=tally.faults,
        broken=broken(tally.counts(), run.readings, tally.num_faults),
        interrupted=run.interrupted,
    )


class _Run:
    """One soak on a pipeline that is there."""

    def __init__(self, settings: Settings, pipe: Pipeline, tally: Tally, say: Say) -> None:
        self.readings: list[Reading] = []
        self.interrupted = False
        self._said = False
        self._settings = settings
        self._pipe = pipe
        self._tally = tally
        self._say = say
        self._begun = now()
        self._gate = Gate(settings.threads)
        self.timeline = Timeline(self._begun, pipe, tally, os.getpid())

    def go(self) -> None:
        settings = self._settings
        maker = Maker(settings.seed, settings.max_inflight_nbytes, self._pipe.arena)
        with ExitStack() as stack:
            aborter = stack.enter_context(Aborter())
            stack.enter_context(self.timeline)
            clients = [
                Client(i, settings.seed, self._pipe, maker, self._tally, self._gate, aborter)
                for i in range(settings.threads)
            ]
            for client in clients:
                client.start()
            try:
                self._load(settings.first_s)
                self._read(f"after {settings.first_s:.0f} s", aborter)
                self._gate.open()
                self._load(settings.seconds)
                self._read("at the end", aborter)
            except EngineError as error:
                self._tally.fault(f"the engine has ended: {error}")
            except KeyboardInterrupt:
                self.interrupted = self._tally.closing = True
                self._gate.close(0)  # no more requests
            finally:
                self._gate.open(over=True)
                for client in clients:
                    client.join(PATIENCE_S)

    def _load(self, until_s: float) -> None:
        """Let it run, and say how it stands now and then."""
        while (left := until_s - (now() - self._begun)) > 0 and not self._gate.over:
            time.sleep(min(left, SAY_S if self._said else 3.0))
            self._say(self._line())
            self._said = True

    def _read(self, name: str, aborter: Aborter) -> None:
        """Park all threads, wait until everything has come back, and read."""
        if self._gate.over:
            return
        if not self._gate.close(2 * PATIENCE_S):
            self._tally.fault(f"{name}: the threads did not come to rest")
        end = now() + DRAIN_S
        while now() < end and (undrained(self._pipe.stats()) or not aborter.idle()):
            time.sleep(0.05)
        # A last request: the engine lets go of what it served last, and says what it has rejected.
        self._pipe.submit_items(None).result(PATIENCE_S)
        time.sleep(0.2)
        with self.timeline.paused():
            self.readings.append(read(name, self._begun, self._pipe, os.getpid()))

    def _line(self) -> str:
        counts, rows = self._tally.counts(), self.timeline.rows
        text = (
            f"{counts.answered} answered, {counts.cancelled} cancelled, {counts.refused} refused, "
            f"{counts.timed_out} timed out"
        )
        if not rows or rows[-1].pss_frontend is None or rows[-1].pss_engine is None:
            return text
        last = rows[-1]
        return (
            f"{text}; PSS {rows[-1].pss_frontend / 1e6:.0f} + {rows[-1].pss_engine / 1e6:.0f} MB, "
            f"{last.requests_inflight} under way, {last.answered_per_s:.0f} answered/s"
        )
