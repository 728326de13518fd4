"""Room in /dev/shm, asked before anything is written there: the kernel's answer is a bus error."""

from __future__ import annotations

import os
from pathlib import Path

from mmlab.errors import TransportError
from mmlab.measure.capacity import gib_text

SHM = Path("/dev/shm")


def check_shm(nbytes: int) -> None:
    """TransportError, with both numbers, where named shared memory of that size does not fit."""
    found = os.statvfs(SHM)
    free = found.f_bavail * found.f_frsize
    if nbytes > free:
        raise TransportError(
            f"{SHM} has {gib_text(free)} free, {gib_text(nbytes)} are needed: mount it larger "
            "(docker: --shm-size), or leave this way out"
        )
