"""What both processes of a pair are: single-threaded, silent on Ctrl-C, gone with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from mmlab.bench.transfer.packets import Usage
from mmlab.pipeline.lifecycle import keep_freed_memory

_PR_SET_PDEATHSIG = 1  # prctl.h


def follow_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """This process gets signal `number` when its parent ends. Linux; elsewhere nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


def begin(parent: int, threads: int, tuned: bool) -> bool:
    """First thing in a sender or receiver; whether malloc is told to keep its memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends us, once it has cleaned up
    follow_parent(parent)
    torch.set_num_threads(threads)
    return keep_freed_memory() if tuned else False


def settle() -> None:
    """All that is loaded by now stays: the collector need not look at it again."""
    gc.collect()
    gc.freeze()


def spawn(module: str, fds: Sequence[int], arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """`python -m module` with our pid and the numbers of `fds`, which are passed on."""
    return subprocess.Popen(
        [sys.executable, "-m", module, str(os.getpid()), *map(str, fds), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),  # what libraries print: standard output is for rows
        pass_fds=fds,
        cwd=Path.cwd(),
    )


def end(process: subprocess.Popen[bytes], patience_s: float = 3.0) -> None:
    """Wait until it has ended, which its closed line makes it do, and see to it."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def usage() -> tuple[float, int]:
    """CPU seconds and minor page faults of this process so far, all threads together."""
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def used(since: tuple[float, int]) -> Usage:
    """The same since then."""
    cpu, faults = usage()
    return Usage(cpu - since[0], faults - since[1])


def trim() -> None:
    """Give all freed memory back to the system, also where malloc is told to keep it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
