"""What the arena's tests share: scripts for other interpreters, and what their children run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mmlab.arena import Arena, ArenaHandle, Descriptor, Lease
from mmlab.arena.memfd import attach

MIB = 1 << 20
KIB = 1 << 10

HEAD = """
import gc, os, resource, socket, sys, time
import numpy as np
from mmlab.arena import *
from mmlab.arena import memfd
from mmlab.errors import *
MIB = 1 << 20
"""


def script(
    body: str, *arguments: object, fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run `body` in an interpreter of its own, which is no multiprocessing child."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + body, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=50,
        pass_fds=fds,
        cwd=Path(__file__).parent,
    )


def write_at_spawn(handle: ArenaHandle, offset: int, value: int) -> None:
    """In a spawned child: map read-write, write one page, exit."""
    assert not os.get_inheritable(handle.fileno())
    np.frombuffer(attach(handle.fileno(), writable=True), np.uint8)[offset : offset + 4096] = value


def described(arena: Arena, lease: Lease) -> Descriptor:
    """All of a lease's own extents."""
    extents = [(extent.offset, extent.nbytes) for extent in lease.extents]
    return Descriptor(arena.id, lease.number, lease.generation, extents)


def sent(arena: Arena, nbytes: int, fill: int, readers: int = 1) -> Descriptor:
    """A message of one extent of `nbytes` bytes `fill`, on its way to `readers` readers."""
    with arena.reserve(nbytes, timeout=5) as lease:
        lease.array()[:] = fill
        lease.expect(readers)
        return described(arena, lease)
