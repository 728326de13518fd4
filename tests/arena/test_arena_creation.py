"""An arena is created whole or refused with numbers; nothing kills the process that asked."""

from __future__ import annotations

import fcntl
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from arena_parts import MIB, script

from mmlab.arena import Arena, ArenaReader, memfd
from mmlab.errors import TransportError, UsageError
from mmlab.measure import capacity

if TYPE_CHECKING:
    from tests.conftest import Leftovers


def test_a_small_file_size_limit_is_an_error_with_numbers_and_no_signal() -> None:
    done = script(
        """
resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, 4 * MIB))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    Arena(8 * MIB)
except TransportError as error:
    print(error)
with Arena(2 * MIB) as arena:
    print("lives", arena.size)
"""
    )
    assert done.returncode == 0, done.stderr
    assert f"{8 * MIB} B needed" in done.stdout and f"{4 * MIB} B (RLIMIT_FSIZE)" in done.stdout
    assert f"lives {2 * MIB}" in done.stdout


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_limit_is_compared_before_memory_is_taken(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch, leftovers: Leftovers
) -> None:
    """Room for 80 MiB: an arena of 8 MiB and its reserve fit, one of 32 MiB does not."""
    limit, used, cache = 400 * MIB, 330 * MIB, 10 * MIB
    files = {
        1: {
            "proc/cgroup": "4:memory:/box\n",
            "fs/memory/box/memory.limit_in_bytes": f"{limit}\n",
            "fs/memory/box/memory.usage_in_bytes": f"{used}\n",
            "fs/memory/box/memory.stat": f"total_inactive_file {cache}\n",
        },
        2: {
            "proc/cgroup": "0::/box\n",
            "fs/box/memory.max": f"{limit}\n",
            "fs/box/memory.current": f"{used}\n",
            "fs/box/memory.stat": f"inactive_file {cache}\n",
        },
    }
    for name, text in files[version].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    read = capacity._cgroup_usage
    monkeypatch.setattr(capacity, "_cgroup_usage", lambda: read(tmp_path / "proc", tmp_path / "fs"))
    taken: list[int] = []
    fallocate = os.posix_fallocate
    monkeypatch.setattr(
        os, "posix_fallocate", lambda fd, at, n: (taken.append(n), fallocate(fd, at, n))[1]
    )
    with pytest.raises(TransportError, match=rf"{32 * MIB} B needed.* {80 * MIB} B are free"):
        Arena(32 * MIB)
    assert not taken and not leftovers("fds")
    with Arena(8 * MIB):
        assert taken == [8 * MIB]


def test_what_is_free_is_looked_at_again_while_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch, leftovers: Leftovers
) -> None:
    """Somebody else takes memory meanwhile: an error half-way, and what was taken is free again."""
    monkeypatch.setattr(memfd, "CHUNK", MIB)
    answers = iter([memfd.RESERVE + 4 * MIB, memfd.RESERVE + 4 * MIB, memfd.RESERVE + MIB])
    with pytest.raises(TransportError, match=f"{3 * MIB} B of them still to be taken"):
        Arena(4 * MIB, available=lambda: next(answers))
    assert not leftovers("fds")


def test_an_arena_larger_than_the_machine_is_refused() -> None:
    with pytest.raises(TransportError, match=r"B needed .* B are free"):
        Arena(capacity.available_nbytes() + MIB)
    with pytest.raises(TransportError, match="B needed"):
        Arena(1 << 70)


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, True])
def test_a_size_that_is_none_is_refused(nbytes: int) -> None:
    with pytest.raises(UsageError, match="wanted 1 or more"):
        Arena(nbytes)


def test_what_the_kernel_refuses_names_the_numbers(
    monkeypatch: pytest.MonkeyPatch, leftovers: Leftovers
) -> None:
    def full(fd: int, at: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TransportError, match=rf"{MIB} B \(.*No space.*\); \d+ B are free"):
        Arena(MIB)
    assert not leftovers("fds")


def test_nothing_can_change_its_size_or_its_seals() -> None:
    with Arena(MIB + 1) as arena:
        assert arena.size == MIB + 4096
        fd = arena.fileno()
        for nbytes in (0, MIB, 2 * MIB):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, nbytes)
        with pytest.raises(PermissionError):
            os.posix_fallocate(fd, arena.size, 4096)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert not os.get_inheritable(fd)


def test_every_page_is_there_before_the_first_use_on_both_sides() -> None:
    with Arena(8 * MIB) as arena, ArenaReader(arena.fileno(), print) as reader:
        assert os.fstat(arena.fileno()).st_blocks * 512 == 8 * MIB
        lease = arena.reserve(8 * MIB)
        views = reader._whole
        assert views is not None
        lease.array()[:100] = 0  # numpy's own memory
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        lease.array()[:] = 1
        written = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for at in range(0, 8 * MIB, 4096):
            assert views[at] == 1
        read = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        assert written - before < 50 and read - written < 50  # a fault maps 16 pages: 128 of them


def test_an_older_kernel_has_the_pages_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memfd, "MADV_POPULATE_WRITE", 9999)  # EINVAL, as before Linux 5.14
    with Arena(4 * MIB) as arena:
        lease = arena.reserve(4 * MIB)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        lease.array()[:] = 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100  # of 1024


def test_only_a_sealed_memfd_is_attached(tmp_path: Path) -> None:
    unsealed = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, MIB)
    pipe = os.pipe()
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)
    with path.open("rb") as file:
        for fd, why in (
            *((unsealed, "seals 0x0"), (pipe[0], "no memory file")),
            *((file.fileno(), "no memfd"), (9999, "no memfd")),
        ):
            with pytest.raises(TransportError, match=why):
                ArenaReader(fd, print)
    for fd in (unsealed, *pipe):
        os.close(fd)


def test_memory_that_is_not_there_is_not_taken_for_its_owner() -> None:
    fd = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 64 * MIB)
    os.posix_fallocate(fd, 0, MIB)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, memfd._seals())
    with pytest.raises(TransportError, match=f"{64 * MIB} B, of which {MIB} B are there"):
        ArenaReader(fd, print)
    assert os.fstat(fd).st_blocks * 512 == MIB
    os.close(fd)


def test_elsewhere_the_error_names_ipc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(TransportError, match=r"darwin; use the transport 'ipc'"):
        Arena(MIB)
    monkeypatch.undo()
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(TransportError, match="'ipc'"):
        ArenaReader(0, print)
