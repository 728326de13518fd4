"""What a pipeline could leave on a machine, looked for from outside.

Every process of a trial has a temporary directory of the trial's own in its environment, which also
marks it: nothing that another program does at the same time is taken for a leak.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

SHM = Path("/dev/shm")
PROC = Path("/proc")
ARENA = "/memfd:mmlab-arena"
SETTLE_S = 2.0  # for what the kernel takes down after a process has ended


def wait_until(met: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def descriptors(pid: int) -> dict[str, str]:
    """The open files of a process: number -> target."""
    found = {}
    with suppress(OSError):
        for entry in os.listdir(PROC / str(pid) / "fd"):  # noqa: PTH208 (no descriptor is kept)
            with suppress(OSError):
                found[entry] = str((PROC / str(pid) / "fd" / entry).readlink())
    return found


def shm_names() -> set[str]:
    return set(os.listdir(SHM)) if SHM.is_dir() else set()  # noqa: PTH208


def processes_of(mark: Path) -> list[int]:
    """Those, not yet ended, whose environment has TMPDIR set to `mark`."""
    wanted = b"TMPDIR=" + os.fsencode(mark)
    return [
        int(folder.name)
        for folder in _processes()
        if wanted in (_read(folder / "environ") or b"").split(b"\0")
    ]


def arena_holders(inode: int) -> list[int]:
    """Processes that have an arena open or mapped."""
    found = []
    for folder in _processes():
        lines = (_read(folder / "maps") or b"").decode(errors="replace").splitlines()
        mapped = any(ARENA in line and int(line.split()[4]) == inode for line in lines)
        if mapped or any(
            target.startswith(ARENA) and _inode(folder / "fd" / number) == inode
            for number, target in descriptors(int(folder.name)).items()
        ):
            found.append(int(folder.name))
    return found


def leaks(mark: Path, shm_before: set[str], arena: int | None, spared: set[int]) -> list[str]:
    """Everything of the trial that is still there, after a moment to go; not processes `spared`."""

    def found() -> list[str]:
        said = [f"process {pid}" for pid in processes_of(mark) if pid not in spared]
        new = sorted(shm_names() - shm_before)
        said += [f"/dev/shm/{name}" for name in new if not _held_by_others(SHM / name, mark)]
        if arena is not None:
            said += [f"arena {arena} in process {pid}" for pid in arena_holders(arena)]
        return said

    last: list[str] = []

    def clean() -> bool:
        last[:] = found()
        return not last

    wait_until(clean, SETTLE_S)
    return last


def left_in(mark: Path) -> list[str]:
    """Names in the trial's temporary directory, but for the cache that torch keeps there."""
    names = sorted(path.name for path in mark.iterdir())
    return [name for name in names if not name.startswith("torchinductor_")]


def _held_by_others(path: Path, mark: Path) -> bool:
    """Whether a process that is none of the trial's maps or opens it, or something in it."""
    ours = set(processes_of(mark))
    for folder in _processes():
        if int(folder.name) in ours:
            continue
        if os.fsencode(path) in (_read(folder / "maps") or b""):
            return True
        if any(
            target == str(path) or target.startswith(f"{path}/")
            for target in descriptors(int(folder.name)).values()
        ):
            return True
    return not path.exists()  # asked last: who held it may have ended meanwhile


def _processes() -> Iterator[Path]:
    for name in os.listdir(PROC):  # noqa: PTH208
        if name.isdigit():
            yield PROC / name


def _read(path: Path) -> bytes | None:
    with suppress(OSError):
        return path.read_bytes()
    return None


def _inode(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None
