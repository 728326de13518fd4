"""PSS readings: right in size, missing where a process is gone, and summed at one moment only."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time

import pytest

from mmlab.measure import memory
from mmlab.measure.memory import PssSample, PssSampler, read_pss

MIB = 1 << 20
_HOLD = "import sys; b = bytearray(64 << 20); b[::4096] = b'x' * (len(b) // 4096)\n"
_WAIT = "print('ready', flush=True); sys.stdin.read()"


def touched(nbytes: int) -> mmap.mmap:
    """Fresh pages from the kernel: what malloc gives may be pages that this process has already."""
    block = mmap.mmap(-1, nbytes)
    for at in range(0, nbytes, mmap.PAGESIZE):
        block[at] = 1
    return block


def holder() -> subprocess.Popen[bytes]:
    """A process that holds 64 MiB of touched memory until its stdin ends."""
    command = [sys.executable, "-c", _HOLD + _WAIT]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    return child


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def test_memory_of_another_process_is_seen() -> None:
    child = holder()
    try:
        pss = read_pss(child.pid)
        assert pss is not None and 64 * MIB < pss < 80 * MIB
    finally:
        end(child)
    assert read_pss(child.pid) is None  # missing, not 0


def test_the_sampler_finds_a_peak_between_marks() -> None:
    with PssSampler({"me": os.getpid()}, interval_s=0.02) as sampler:
        sampler.mark("idle")
        block = touched(64 * MIB)
        time.sleep(0.3)
        block.close()
        sampler.mark("after")
    base, peak = sampler.base("me", "idle"), sampler.peak("me")
    assert base is not None and peak is not None
    assert 63 * MIB < peak - base < 72 * MIB
    after = sampler.base("me", "after")
    assert after is not None and after - base < 8 * MIB
    assert len({s.time_s for s in sampler.samples}) == len(sampler.samples) > 4


def test_a_killed_process_has_no_peak_and_the_other_one_does() -> None:
    child = holder()
    with PssSampler({"me": os.getpid(), "engine": child.pid}, interval_s=10) as sampler:
        sampler.mark("idle")
        assert sampler.peak("engine") is not None
        assert sampler.peak_sum() is not None
        end(child)
        assert sampler.mark("last")["engine"] is None
    assert sampler.peak("engine") is None
    assert sampler.peak("me") is not None
    assert sampler.peak_sum() is None


def test_the_sum_is_of_one_moment_and_not_of_two_peaks() -> None:
    sampler = PssSampler({"a": 1, "b": 2})
    readings = [(10, 1), (2, 2), (1, 9)]
    sampler._samples = [
        PssSample(float(t), name, value, "")
        for t, pair in enumerate(readings)
        for name, value in zip("ab", pair, strict=True)
    ]
    assert (sampler.peak("a"), sampler.peak("b"), sampler.peak_sum()) == (10, 9, 11)


def test_the_high_water_mark_sees_what_was_there_for_a_moment() -> None:
    assert memory.reset_high_water(os.getpid())
    before = memory.read_rss(os.getpid())
    touched(64 * MIB).close()
    after = memory.read_rss(os.getpid())
    assert before is not None and after is not None
    assert before.high_water - before.total < 2 * MIB  # it was set to what there is
    assert 62 * MIB < after.high_water - before.total < 72 * MIB
    assert after.total - before.total < 8 * MIB


def test_without_shared_memory_the_fast_reading_is_the_kernels_own() -> None:
    """The counter of anonymous memory against the walk over all page tables."""
    child = holder()
    try:
        rss = memory.read_rss(child.pid)
        assert rss is not None and rss.private
        walked = memory._read(child.pid, "smaps_rollup", (b"Pss:", b"Pss_File:"))
        fast = read_pss(child.pid)
        assert fast is not None
        assert abs(fast - (walked[b"Pss:"] - walked[b"Pss_File:"])) < MIB
    finally:
        end(child)


def test_shared_memory_is_counted_once_over_two_processes() -> None:
    size = 64 * MIB
    fd = os.memfd_create("test")
    os.truncate(fd, size)
    code = (
        f"import mmap, sys; m = mmap.mmap({fd}, {size}); m[::4096] = b'x' * {size // 4096}\n"
        + _WAIT
    )
    before = read_pss(os.getpid())
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd]
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        alone = read_pss(child.pid)
        with mmap.mmap(fd, size) as region:
            sum(region[::4096])  # map every page here too
            ours, theirs = read_pss(os.getpid()), read_pss(child.pid)
            rss = memory.read_rss(child.pid)
            assert rss is not None and not rss.private
        assert before and alone and ours and theirs
        assert abs(alone - theirs - size // 2) < 4 * MIB
        assert abs((ours - before) + theirs - alone) < 8 * MIB
    finally:
        end(child)
        os.close(fd)


def test_a_process_that_is_gone_has_no_memory() -> None:
    child = holder()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert memory.read_rss(child.pid) is None and read_pss(child.pid) is None
    end(child)
    assert memory.read_rss(child.pid) is None and read_pss(child.pid) is None
    assert not memory.reset_high_water(child.pid)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        PssSampler({}, interval_s=0)
