"""Progress lines: when, where, and how long still."""

from __future__ import annotations

from mmlab.bench.events import Progress
from mmlab.bench.progress import ProgressLog


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_lines_say_elapsed_where_and_how_long_still() -> None:
    clock, lines = Clock(), []
    told = ProgressLog(["time", "time", "memory"], lines.append, clock)
    told.start(0, "pickle, time, block 1")
    clock.time += 20
    told.end("ok")
    told.start(1, "msgpack, time, block 1")
    clock.time += 10
    told.end("failed", "engine died")
    told.start(2, "pickle, memory, block 1")
    assert lines == [
        "[   0.0 s] trial 1 of 3: pickle, time, block 1",
        "[  20.0 s]   pickle, time, block 1: done in 20 s",
        "[  20.0 s] trial 2 of 3: msgpack, time, block 1 (about 40 s left)",
        "[  30.0 s]   msgpack, time, block 1: failed: engine died",
        "[  30.0 s] trial 3 of 3: pickle, memory, block 1 (about 20 s left)",
    ]
    assert not any("\r" in line for line in lines)


def test_steps_are_told_only_after_some_silence() -> None:
    clock, lines = Clock(), []
    told = ProgressLog(["time"], lines.append, clock)
    told.start(0, "pickle")
    for number in range(30):
        clock.time += 1
        told.step(Progress("mix 1 image", number, 30))
    assert lines[1:] == [
        "[  10.0 s]   pickle: mix 1 image, 9 of 30",
        "[  20.0 s]   pickle: mix 1 image, 19 of 30",
        "[  30.0 s]   pickle: mix 1 image, 29 of 30",
    ]


def test_the_estimate_uses_trials_of_the_same_kind_where_it_can() -> None:
    clock = Clock()
    told = ProgressLog(["time", "memory", "time", "memory"], lambda _: None, clock)
    assert told.left_s() is None
    for order, seconds in ((0, 10.0), (1, 4.0)):
        told.start(order, "")
        clock.time += seconds
        told.end("ok")
    told.start(2, "")
    assert told.left_s() == 14.0
