"""The private directory that holds a pipeline's sockets: short, 0700, and never left behind.

Its owner holds a lock on a file inside. The lock goes with the owner's last descriptor, however it
ends, so the next start can tell a directory in use from one that a SIGKILL left: no guess by pid or
age, and right across containers that share a directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mmlab.errors import TransportError
from mmlab.transports.limits import is_descriptor_limit
from mmlab.transports.links import MAX_PATH

PREFIX = "mmlab-"
LOCK = "owner"
LONGEST_NAME = len("/owner.new")  # of the files inside
UNLOCKED_AGE = 60.0  # seconds after which a directory without a lock file counts as left behind


def _bases() -> list[Path]:
    """Where a directory may be made: the user's temporary directory first, then short ones."""
    wanted = ["/tmp", "/var/tmp", "/dev/shm"]
    with contextlib.suppress(OSError):  # raised where Python can write to none of its candidates
        wanted.insert(0, tempfile.gettempdir())
    return [Path(base) for base in dict.fromkeys(wanted)]


class PrivateDirectory:
    """A new directory that only this user can enter. `close` removes it with its sockets."""

    def __init__(self, bases: Sequence[Path] | None = None) -> None:
        reasons = []
        for base in _bases() if bases is None else bases:
            length = len(os.fsencode(base)) + 1 + len(PREFIX) + 8 + LONGEST_NAME
            if length > MAX_PATH:
                reasons.append(f"{base}: a socket there has {length} bytes, limit {MAX_PATH}")
                continue
            sweep(base)
            try:
                self.path, self._lock = _create(base)
            except OSError as error:
                if is_descriptor_limit(error):
                    raise
                reasons.append(f"{base}: {error.strerror}")
                continue
            return
        raise TransportError(
            "no directory for the sockets of a pipeline; set TMPDIR to a short path that can be "
            "written to. Tried " + "; ".join(reasons)
        )

    def close(self) -> None:
        """Idempotent."""
        if self._lock >= 0:
            remove(self.path)
            lock, self._lock = self._lock, -1
            os.close(lock)


def _create(base: Path) -> tuple[Path, int]:
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # mode 0700
    try:
        return path, _take_lock(path)
    except OSError:
        remove(path)
        raise


def _take_lock(path: Path) -> int:
    """Locked before it has its name, so that a sweep never sees it without its lock."""
    new = path / f"{LOCK}.new"
    fd = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    new.rename(path / LOCK)
    return fd


def remove(path: Path) -> None:
    """Remove a socket directory; the engine does it too when its owner is gone."""
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            with contextlib.suppress(OSError):
                entry.unlink()
        path.rmdir()


def sweep(base: Path) -> list[Path]:
    """Remove this user's directories in `base` whose owners are gone; returns them."""
    removed = []
    with contextlib.suppress(OSError):
        for path in base.glob(f"{PREFIX}*"):
            if _is_ours(path) and _is_left_behind(path):
                remove(path)
                removed.append(path)
    return removed


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        found = path.lstat()
        # Without the sticky bit, which Jupyter sets on directories that hold its sockets.
        mine = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o777 == 0o700
        return mine and stat.S_ISDIR(found.st_mode)
    return False


def _is_left_behind(path: Path) -> bool:
    try:
        fd = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            return time.time() - path.stat().st_mtime > UNLOCKED_AGE
        return False
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
