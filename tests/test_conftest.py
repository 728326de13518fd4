"""The test helpers themselves: a leak check that cannot see a leak would pass everything."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from multiprocessing import shared_memory
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Leftovers

pytest_plugins = ["pytester"]


def test_leftovers_name_each_kind_and_forget_what_is_freed(
    leftovers: Leftovers, tmp_path: Path
) -> None:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="left-thread")
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    number = os.open(tmp_path, os.O_RDONLY)
    shm = shared_memory.SharedMemory(create=True, size=64)
    try:
        found = leftovers(timeout=0)
        assert f"fd {number} -> {tmp_path}" in found
        assert "thread left-thread" in found
        assert any(f"pid={child.pid}," in line for line in found)
        assert f"shm /dev/shm/{shm.name}" in found
        assert leftovers("threads", timeout=0) == ["thread left-thread"]
    finally:
        os.close(number)
        child.communicate(b"\n", timeout=10)
        leave.set()
        thread.join()
        shm.close()
        shm.unlink()
    assert leftovers("threads", "processes", "shm") == []
    assert not [line for line in leftovers("fds", timeout=0) if str(tmp_path) in line]


def test_reset_begins_anew(leftovers: Leftovers, tmp_path: Path) -> None:
    with Path(tmp_path, "kept").open("w"):
        assert any("kept" in line for line in leftovers("fds", timeout=0))
        leftovers.reset()
        assert leftovers("fds", timeout=0) == []


def test_a_misspelt_kind_is_refused(leftovers: Leftovers) -> None:
    with pytest.raises(ValueError, match=r"unknown kinds \['fd'\]"):
        leftovers("fd")


def test_seed_is_another_for_each_test_and_set(seed: int, request: pytest.FixtureRequest) -> None:
    drawn = random.random()
    assert drawn == random.Random(seed).random()
    assert ("setup", "seed") in [section[:2] for section in request.node._report_sections]


def test_a_failure_says_its_seed_and_a_process_left_running_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMLAB_TEST_SEED", "7")
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyfile(
        """
        import subprocess, sys

        def test_wrong():
            assert False

        def test_leaves_a_child():
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1, passed=1, errors=1)
    result.stdout.fnmatch_lines(["the test left running: *", "MMLAB_TEST_SEED=7, of this test:*"])
