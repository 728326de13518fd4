"""How much memory processes really hold, read from the kernel while they run.

PSS ("proportional set size") counts a page that two processes map half in each, so that frontend
and engine may be added up. The kernel walks every page table for it, about 18 ms for a process
with torch loaded: hence a thread that reads at intervals, only the lines that are needed, and
never in a run that is timed. Pages of files are left out: they are libraries, hundreds of MB whose
share moves whenever some other process that uses torch starts or ends. A process that has ended
gives no reading: missing, not 0.

A peak between two readings is not seen. The kernel's own high-water mark of RSS misses none, but
counts shared memory in full in each process: the one is a check of the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from mmlab.measure.clocks import now


def read_pss(pid: int) -> int | None:
    """PSS in bytes without pages of files; None where it has ended, or may not be read."""
    try:
        with Path(f"/proc/{pid}/smaps_rollup").open("rb") as rollup:
            found = _kilobytes(rollup, (b"Pss:", b"Pss_File:"))
    except OSError:
        return None  # ENOENT and ESRCH: it has ended; EACCES: another user's
    whole = found.get(b"Pss:")
    return None if whole is None else (whole - found.get(b"Pss_File:", 0)) * 1024


def read_rss(pid: int) -> tuple[int, int] | None:
    """(RSS, its high-water mark) in bytes; None where the process has ended."""
    try:
        with Path(f"/proc/{pid}/status").open("rb") as status:
            found = _kilobytes(status, (b"VmRSS:", b"VmHWM:"))
    except OSError:
        return None
    if len(found) < 2:  # a zombie has no memory
        return None
    return found[b"VmRSS:"] * 1024, found[b"VmHWM:"] * 1024


def reset_high_water(pid: int) -> bool:
    """Sets the high-water mark of RSS to what it is now; False where that is not allowed."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _kilobytes(lines: Iterable[bytes], names: tuple[bytes, ...]) -> dict[bytes, int]:
    words = (line.split() for line in lines if line.startswith(names))
    return {word[0]: int(word[1]) for word in words}


@dataclass(frozen=True)
class PssSample:
    """One reading of one process. `mark` names the moment, or is "" for a periodic reading."""

    time_s: float  # on `clocks.now()`
    process: str
    pss_nbytes: int | None  # None: the process could not be read
    mark: str


class PssSampler:
    """Reads the PSS of named processes at intervals in a thread, and whenever `mark` is called.

    `processes` maps a name of your choice to a process id. A context manager; the samples stay
    readable after it ends. Marks before the work set the base, `peak` is the highest reading.
    """

    def __init__(self, processes: Mapping[str, int], *, interval_s: float = 0.2) -> None:
        if interval_s <= 0:
            raise ValueError(f"interval_s must be above 0, got {interval_s}")
        self._processes = dict(processes)
        self._interval_s = interval_s
        self._samples: list[PssSample] = []
        self._lock = threading.Lock()  # one reading at a time, so that readings stay in order
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mmlab-pss", daemon=True)

    def __enter__(self) -> PssSampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def mark(self, name: str) -> dict[str, int | None]:
        """Reads now, in the caller's thread; returns process -> bytes."""
        with self._lock:
            read = {
                process: PssSample(now(), process, read_pss(pid), name)
                for process, pid in self._processes.items()
            }
            self._samples.extend(read.values())
        return {process: sample.pss_nbytes for process, sample in read.items()}

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.mark("")

    @property
    def samples(self) -> list[PssSample]:
        """All readings so far, in order of time."""
        with self._lock:
            return list(self._samples)

    def base(self, process: str, mark: str) -> int | None:
        """The reading of the last mark of that name."""
        found = [s for s in self.samples if s.process == process and s.mark == mark]
        return found[-1].pss_nbytes if found else None

    def peak(self, process: str) -> int | None:
        """The highest reading; None where a reading failed, since the peak may have been there."""
        values = [s.pss_nbytes for s in self.samples if s.process == process]
        known = [value for value in values if value is not None]
        return max(known) if known and len(known) == len(values) else None

    def peak_sum(self) -> int | None:
        """The highest sum over all processes at one moment (each round of readings is one)."""
        samples, width = self.samples, len(self._processes)
        rounds = [samples[i : i + width] for i in range(0, len(samples), width)]
        sums = [
            sum(value for value in values if value is not None)
            for values in ([s.pss_nbytes for s in group] for group in rounds)
            if None not in values
        ]
        return max(sums) if sums and len(sums) == len(rounds) else None
