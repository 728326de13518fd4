"""The clock that processes share, and the names and words made of times."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from mmlab.measure import Stopwatch, now, seconds_text, utc_stamp


def test_another_process_reads_the_same_clock() -> None:
    before = now()
    code = "import time; print(time.monotonic_ns() * 1e-9)"
    there = float(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
    assert before < there < now()


def test_a_stopwatch_adds_up_and_times_blocks_that_raise() -> None:
    watch = Stopwatch()
    with watch.span("a"):
        time.sleep(0.02)
    with pytest.raises(KeyError), watch.span("a"):
        time.sleep(0.02)
        raise KeyError
    watch.add("b", 1.5)
    assert 0.04 <= watch.seconds["a"] < 0.5
    assert watch.seconds["b"] == 1.5


def test_a_stopwatch_that_is_off_keeps_nothing() -> None:
    watch = Stopwatch(enabled=False)
    with watch.span("a"):
        pass
    watch.add("b", 1.0)
    assert watch.seconds == {}


def test_stamps_sort_by_time_and_are_names_of_folders() -> None:
    early = utc_stamp(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert early == "2026-01-02T03-04-05Z"
    assert early < utc_stamp()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00002, "20 us"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"),
        (0.00099999, "1 ms"),
        (59.97, "1 min 00 s"),
        (2.414, "2.41 s"),
        (59.9, "59.9 s"),
        (64.6, "1 min 05 s"),
        (3600, "60 min 00 s"),
    ],
)
def test_seconds_in_words(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
