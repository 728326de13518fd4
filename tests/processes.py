"""Finding the processes of a pipeline from outside."""

from __future__ import annotations

from contextlib import suppress

import psutil


def engines_below(pid: int) -> list[psutil.Process]:
    """The engines among all descendants of `pid`; none while they have not started.

    By their command line: a job also starts short-lived commands that describe the machine.
    """
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "mmlab.pipeline.child" in process.cmdline():
                found.append(process)
    return found
