"""What every test has: a seed to replay it, a hypothesis profile without clocks, and `leftovers`.

mmlab promises to leave nothing behind, so a test can ask what is new since it began: `leftovers()`
lists file descriptors, threads, child processes and names in /dev/shm. Child processes are looked
at after every test, asked or not, because one that lives on disturbs the tests after it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

# Time-outs are pytest-timeout's matter: a deadline for one example measures the machine's load.
settings.register_profile(
    "mmlab", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("mmlab")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has SIGINT ignored, here and in every process
    # that the tests start: then no Ctrl-C could ever arrive in the tests of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


KINDS = ("fds", "threads", "processes", "shm")
SHM = Path("/dev/shm")


def session_seed() -> int:
    """MMLAB_TEST_SEED: a number, or "random" for a new one each session; else always the same."""
    wanted = os.environ.get("MMLAB_TEST_SEED", "16432")
    return random.SystemRandom().randrange(2**31) if wanted == "random" else int(wanted)


SEED = session_seed()


def pytest_report_header() -> str:
    return f"seed: MMLAB_TEST_SEED={SEED}"


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seeds random, numpy and torch (what is loaded of them), each test differently; a failure
    prints the number."""
    value = zlib.crc32(request.node.nodeid.encode(), SEED)
    random.seed(value)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(value)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(value)
    request.node.add_report_section(
        "setup", "seed", f"MMLAB_TEST_SEED={SEED}, of this test: {value}"
    )
    return value


def open_fds() -> dict[str, str]:
    """Descriptor -> its target. The one that lists the folder is gone when its link is read."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 (Path.iterdir keeps its own descriptor)
        try:
            found[entry] = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115
        except FileNotFoundError:
            continue
    return found


def child_processes() -> dict[int, psutil.Process]:
    """Children and theirs, less the resource tracker, which multiprocessing keeps to the end."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() == psutil.STATUS_ZOMBIE or "resource_tracker" in " ".join(
                child.cmdline()
            ):
                continue
        except psutil.NoSuchProcess:
            continue
        found[child.pid] = child
    return found


def mapped_elsewhere(path: Path) -> bool:
    """Whether a process that is not ours maps it: then it is no leftover of this test."""
    ours = {os.getpid(), *child_processes()}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if int(maps.parent.name) not in ours and str(path) in maps.read_text():
                return True
        except OSError:
            continue
    return False


class Leftovers:
    """Call it for what is new since the test began, or since `reset()`; an empty list is nothing.

    It waits up to `timeout` seconds for things to go. Daemon threads count. No kinds: all.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin here: for what the test warmed up on purpose."""
        self.fds = open_fds()
        self.threads = set(threading.enumerate())
        self.processes = child_processes()
        self.shm = set(SHM.iterdir()) if SHM.is_dir() else set()

    def now(self, kinds: tuple[str, ...]) -> list[str]:
        found = []
        if "fds" in kinds:
            new = open_fds().items() - self.fds.items()
            found += [f"fd {number} -> {target}" for number, target in sorted(new)]
        if "threads" in kinds:
            found += [
                f"thread {thread.name}" for thread in set(threading.enumerate()) - self.threads
            ]
        if "processes" in kinds:
            found += [f"process {child}" for child in self.new_processes()]
        if "shm" in kinds and SHM.is_dir():
            new_names = sorted(set(SHM.iterdir()) - self.shm)
            found += [f"shm {path}" for path in new_names if not mapped_elsewhere(path)]
        return found

    def new_processes(self) -> list[psutil.Process]:
        return [child for pid, child in child_processes().items() if pid not in self.processes]

    def __call__(self, *kinds: str, timeout: float = 2.0) -> list[str]:
        if unknown := set(kinds) - set(KINDS):
            raise ValueError(f"unknown kinds {sorted(unknown)}: known are {KINDS}")
        end = time.monotonic() + timeout
        while (found := self.now(kinds or KINDS)) and time.monotonic() < end:
            time.sleep(0.02)
        return found


@pytest.fixture(autouse=True)
def leftovers() -> Iterator[Leftovers]:
    """`assert not leftovers("fds", "shm")`; child processes are always looked at, and ended."""
    found = Leftovers()
    yield found
    if left := found("processes"):
        for child in found.new_processes():
            child.kill()
        pytest.fail(f"the test left running: {', '.join(left)}", pytrace=False)
