"""Peak resident memory of a moment: the kernel's high-water mark, reset before and read after."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Self


class Resident:
    """`reset()`, then something, then `peak()`: bytes, both 0 where the kernel does not tell.

    A context manager.
    """

    def __init__(self) -> None:
        self._files = ExitStack()
        enter = self._files.enter_context
        try:
            self._status, self._reset = (
                enter(open(f"/proc/self/{name}", mode, buffering=0))  # noqa: PTH123, SIM115
                for name, mode in (("status", "rb"), ("clear_refs", "wb"))
            )
            self._reset.write(b"5")
            self.works = True
        except OSError:
            self.works = False

    def reset(self) -> int:
        """Begin: the mark is now what is resident, which is returned."""
        if not self.works:
            return 0
        os.pwrite(self._reset.fileno(), b"5", 0)
        return self._read(b"VmRSS:")

    def peak(self) -> int:
        """The most that was resident at a time since `reset`."""
        return self._read(b"VmHWM:") if self.works else 0

    def _read(self, name: bytes) -> int:
        text = os.pread(self._status.fileno(), 1 << 14, 0)
        return int(text.split(name, 1)[1].split(None, 1)[0]) << 10

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()
