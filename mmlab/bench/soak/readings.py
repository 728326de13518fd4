"""What the two processes hold: a row every second, and exact readings while nothing is under way.

Memory that malloc keeps for later is no leak: this process gives it back, payload at once and the
rest before an exact reading. The engine is told to keep what it frees, so its reading is the most
it has needed so far.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from mmlab.bench.soak.tally import Tally
from mmlab.bench.transfer.process import trim
from mmlab.measure import now, read_pss
from mmlab.pipeline import Pipeline

M_MMAP_THRESHOLD: Final = -3  # of malloc.h
PAYLOAD_NBYTES: Final = 128 << 10
EVERY_S: Final = 1.0
DRAINED: Final = (  # of `Pipeline.stats`: 0 where nothing is under way
    "requests_inflight",
    "nbytes_inflight",
    "nbytes_abandoned",
    "waiting",
    "frames_unreleased",
    "arena_live_nbytes",
    "arena_leases",
)


class Row(msgspec.Struct, frozen=True):
    """One moment under load. PSS in bytes, without pages of files; None: could not be read."""

    time_s: float
    pss_frontend: int | None
    pss_engine: int | None
    arena_live_nbytes: int | None  # None: the strategy has no arena
    requests_inflight: int
    nbytes_inflight: int
    answered_per_s: float


class Held(msgspec.Struct, frozen=True):
    """What a process holds."""

    pss: int | None
    descriptors: dict[str, int]  # by what they are: `socket`, `anon_inode:[eventfd]`, a path
    threads: dict[str, int]  # by their names

    @property
    def num_descriptors(self) -> int:
        return sum(self.descriptors.values())

    @property
    def num_threads(self) -> int:
        return sum(self.threads.values())


class Reading(msgspec.Struct, frozen=True):
    """One quiet moment. `stats`: those of the pipeline."""

    name: str
    time_s: float
    frontend: Held
    engine: Held
    stats: dict[str, float]

    @property
    def pss(self) -> int | None:
        """Of both, each shared page counted once."""
        a, b = self.frontend.pss, self.engine.pss
        return None if a is None or b is None else a + b


def return_payload() -> None:
    """From now on this process maps blocks from 128 KiB on for themselves, and unmaps them.

    glibc else raises that limit to 32 MiB by and by: then some small block that lives on keeps the
    pages around it, and readings differ by chance by more than a leak would make.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, PAYLOAD_NBYTES)


def held(pid: int) -> Held:
    """Everything empty where the process has ended."""
    pss = read_pss(pid)
    return Held(
        pss,
        _counted(Path(f"/proc/{pid}/fd"), lambda path: str(path.readlink()).split(":[")[0]),
        _counted(Path(f"/proc/{pid}/task"), lambda path: (path / "comm").read_text().strip()),
    )


def read(name: str, begun: float, pipe: Pipeline, own_pid: int) -> Reading:
    """Free what is garbage, then read."""
    trim()
    return Reading(name, now() - begun, held(own_pid), held(pipe.engine_pid), dict(pipe.stats()))


def undrained(stats: dict[str, float]) -> dict[str, float]:
    """What of `DRAINED` is not 0."""
    return {name: stats[name] for name in DRAINED if stats.get(name)}


class Timeline:
    """Appends a row every second in a thread of its own. A context manager."""

    def __init__(self, begun: float, pipe: Pipeline, tally: Tally, own_pid: int) -> None:
        self.rows: list[Row] = []
        self._begun = begun
        self._pipe = pipe
        self._tally = tally
        self._pid = own_pid
        self._last = (now(), 0)
        self._reading = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak-rows", daemon=True)

    def __enter__(self) -> Timeline:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No row meanwhile: its own open files would be counted with the rest."""
        with self._reading:
            yield

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            with self._reading:
                self.rows.append(self._row())

    def _row(self) -> Row:
        stats, answered, moment = self._pipe.stats(), self._tally.counts().answered, now()
        before, self._last = self._last, (moment, answered)
        live = stats.get("arena_live_nbytes")
        return Row(
            time_s=moment - self._begun,
            pss_frontend=read_pss(self._pid),
            pss_engine=read_pss(self._pipe.engine_pid),
            arena_live_nbytes=None if live is None else int(live),
            requests_inflight=int(stats["requests_inflight"]),
            nbytes_inflight=int(stats["nbytes_inflight"]),
            answered_per_s=(answered - before[1]) / max(1e-9, moment - before[0]),
        )


def _counted(folder: Path, what: Callable[[Path], str]) -> dict[str, int]:
    found: dict[str, int] = {}
    try:
        paths = list(folder.iterdir())
    except OSError:
        return found
    for path in paths:
        try:
            name = what(path)
        except OSError:  # closed meanwhile, as the one that listed them
            continue
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))
