"""How much memory processes really hold, read from the kernel while they run.

PSS ("proportional set size") counts a page that two processes map half in each, so that frontend
and engine may be added up. Pages of files are left out: they are libraries, hundreds of MB whose
share moves whenever some other process that uses torch starts or ends. Where a process shares no
memory, what is left is its anonymous memory, a counter that costs microseconds; else the kernel
walks every page table, about 18 ms for a process with torch loaded. A process that has ended gives
no reading: missing, not 0.

A peak between two readings is not seen. The kernel's own high-water mark of RSS misses none.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from mmlab.measure.clocks import now

_SEMAPHORES = 1 << 20


@dataclass(frozen=True)
class Rss:
    """Bytes of RSS by kind, and the highest that their sum has been."""

    anonymous: int
    file: int
    shared: int
    high_water: int

    @property
    def total(self) -> int:
        """RSS."""
        return self.anonymous + self.file + self.shared

    @property
    def private(self) -> bool:
        """True where no memory is shared with others, but for some page of a semaphore."""
        return self.shared < _SEMAPHORES


def read_rss(pid: int) -> Rss | None:
    """RSS of one process now; None where it has ended."""
    names = (b"RssAnon:", b"RssFile:", b"RssShmem:", b"VmHWM:")
    found = _read(pid, "status", names)
    if len(found) < len(names):  # it has ended, or is a zombie and has no memory
        return None
    return Rss(*(found[name] for name in names))


def read_pss(pid: int) -> int | None:
    """PSS in bytes without pages of files; None where the process has ended, or is another's."""
    found = read_pss_and_shared(pid)
    return None if found is None else found[0]


def read_pss_and_shared(pid: int) -> tuple[int, int] | None:
    """The same, and the part of it that is shared memory."""
    rss = read_rss(pid)
    if rss is None or rss.private:
        return None if rss is None else (rss.anonymous, 0)
    keys = (b"Pss:", b"Pss_File:", b"Pss_Shmem:")
    found = _read(pid, "smaps_rollup", keys)
    whole = found.get(b"Pss:")
    if whole is None:
        return None
    return whole - found.get(b"Pss_File:", 0), found.get(b"Pss_Shmem:", 0)


def reset_high_water(pid: int) -> bool:
    """Sets the high-water mark of RSS to what it is now; False where that is not allowed."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _read(pid: int, name: str, keys: tuple[bytes, ...]) -> dict[bytes, int]:
    """Bytes of the lines `key: n kB` of a file of /proc; empty where there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/{name}").read_bytes().splitlines()
    except OSError:
        return {}  # ENOENT and ESRCH: it has ended; EACCES: another user's
    words = (line.split() for line in lines if line.startswith(keys))
    return {word[0]: int(word[1]) * 1024 for word in words}


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
