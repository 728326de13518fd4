"""The memory of a pair of processes while messages go through it, read as often as the kernel can.

Shared memory is what lies in memory files and segments (a reading of PSS: a page that both have
touched counts half in each, so once in the sum), whoever made it and since whenever.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from mmlab.measure.memory import read_pss_and_shared

_EVERY_S = 0.001


@dataclass(frozen=True)
class Footprint:
    """Bytes of all processes together."""

    pss: int  # without the pages of files
    shared: int  # the part of it that is shared memory


def read(pids: Sequence[int]) -> Footprint | None:
    """Now; None where a process cannot be read."""
    found = [read_pss_and_shared(pid) for pid in pids]
    known = [reading for reading in found if reading is not None]
    if len(known) < len(pids):
        return None
    return Footprint(sum(pss for pss, _ in known), sum(shared for _, shared in known))


class Peak:
    """The highest readings within the block, `pss` and `shared` each for itself."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._found: list[Footprint | None] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mmlab-footprint", daemon=True)

    @property
    def found(self) -> Footprint | None:
        """None where a reading failed, since the peak may have been there."""
        known = [reading for reading in self._found if reading is not None]
        if not known or len(known) < len(self._found):
            return None
        return Footprint(max(r.pss for r in known), max(r.shared for r in known))

    def __enter__(self) -> Peak:
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
        self._found.append(read(self._pids))

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._found.append(read(self._pids))
