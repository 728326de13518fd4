"""Is the machine busy with something else? Then times are those of a shared one, and it is said."""

from __future__ import annotations

import os

from mmlab.measure.environment import core_count

BUSY = 0.5  # runnable processes for each core, before a measurement has begun


def busy_text(load: float, cores: int) -> str | None:
    """What to tell who is about to measure; None on a machine that is free enough."""
    if load <= BUSY * cores:
        return None
    return (
        f"the machine was busy before this began (load {load:.1f} on {cores} "
        f"core{'s' if cores != 1 else ''}): times are higher, and may rank differently, than on a "
        "quiet one"
    )


def busy_now() -> str | None:
    """The same, of the last minute here; None where the system does not tell."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return None
    return busy_text(load, core_count())
