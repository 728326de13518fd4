"""Making something aside: its errors are raised, and what nobody waits for is undone."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from mmlab.pipeline.aside import aside


def test_what_is_made_or_raised_comes_back() -> None:
    assert aside(lambda: 7, pytest.fail) == 7
    with pytest.raises(ValueError, match="no"):
        aside(lambda: int("no"), pytest.fail)


def test_an_interrupt_comes_at_once_and_what_is_made_then_is_undone() -> None:
    go, undone = threading.Event(), list[int]()

    def make() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        assert go.wait(10)
        return 7

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        aside(make, undone.append)
    assert time.monotonic() - begun < 5
    assert undone == []
    go.set()
    for _ in range(500):
        if undone:
            break
        time.sleep(0.01)
    assert undone == [7]
