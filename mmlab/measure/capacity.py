"""How much memory there is, and how much may still be taken: the machine's, within the cgroup's.

A container's limit is not in /proc/meminfo, and who goes over it is killed rather than refused.
"""

from __future__ import annotations

from pathlib import Path

import psutil

_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


def available_nbytes() -> int:
    """Memory that may still be taken: what the kernel has to give, within this cgroup's limit."""
    return min([int(psutil.virtual_memory().available), *_cgroup_headroom()])


def limit_nbytes() -> int:
    """All the memory there is for this process: the machine's, or the cgroup's limit."""
    limits = [limit for limit, _ in _cgroup_usage()]
    return min([int(psutil.virtual_memory().total), *limits])


def _cgroup_headroom() -> list[int]:
    return [max(0, limit - used) for limit, used in _cgroup_usage()]


def _cgroup_usage(
    proc: Path = Path("/proc/self"), root: Path = Path("/sys/fs/cgroup")
) -> list[tuple[int, int]]:
    """(limit, used less reclaimable page cache) of every level that limits this process."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[tuple[int, int]] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = (
                root / "memory",
                (
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_inactive_file",
                ),
            )
        else:
            continue
        folder = base / path.lstrip("/")
        for level in [folder, *folder.parents]:
            usage = _usage_of(level, *names)
            if usage is not None:
                found.append(usage)
            if level == base:
                break
    return found


def _usage_of(level: Path, limit: str, used: str, cache: str) -> tuple[int, int] | None:
    try:
        most, now_used = (level / limit).read_text().strip(), int((level / used).read_text())
        rows = [row.split() for row in (level / "memory.stat").read_text().splitlines()]
    except (OSError, ValueError):
        return None
    if most == "max" or int(most) >= _UNLIMITED:
        return None
    cached = sum(int(row[1]) for row in rows if row[0] == cache)
    return int(most), max(0, now_used - cached)


def gib_text(nbytes: float) -> str:
    """`1.50 GiB`, `38.5 MiB`."""
    if nbytes >= 1 << 30:
        return f"{nbytes / (1 << 30):.2f} GiB"
    return f"{nbytes / (1 << 20):.3g} MiB"
