"""Peaks of memory: no moment missed, nothing counted twice, nothing made up."""

from __future__ import annotations

import pytest

from mmlab.bench import memory_trial
from mmlab.measure.memory import PssSample, PssSampler, Rss

MIB = 1 << 20


def rss(anonymous: int, high_water: int, *, file: int = 300, shared: int = 0) -> Rss:
    return Rss(anonymous * MIB, file * MIB, shared * MIB, high_water * MIB)


@pytest.mark.parametrize(
    ("sampled", "before", "after", "peak"),
    [
        (150, rss(100, 400), rss(110, 500), 200),  # 100 above idle, between two readings
        (150, rss(100, 400), rss(110, 520, file=320), 200),  # 20 of it are libraries
        (250, rss(100, 400), rss(110, 500), 250),  # the readings have seen more
        (150, rss(100, 400), rss(110, 500, shared=64), 150),  # shared: the mark is no PSS
        (150, None, rss(110, 500), 150),  # the mark could not be set
        (150, rss(100, 400), None, 150),
    ],
)
def test_the_peak_is_what_the_high_water_mark_says_where_it_can_speak(
    sampled: int, before: Rss | None, after: Rss | None, peak: int
) -> None:
    found = memory_trial.exact_peak(100 * MIB, sampled * MIB, before, after)
    assert found == peak * MIB


def test_without_a_reading_there_is_no_peak() -> None:
    assert memory_trial.exact_peak(100, None, rss(1, 1), rss(1, 1)) is None
    assert memory_trial.exact_peak(None, 100, rss(1, 1), rss(1, 1)) is None


def scripted(*readings: tuple[str, int | None, int | None]) -> PssSampler:
    """A sampler that has read these: (mark, frontend, engine), one a second."""
    sampler = PssSampler({"frontend": -1, "engine": -2})
    sampler._samples = [
        PssSample(float(second), name, value, mark)
        for second, (mark, *values) in enumerate(readings)
        for name, value in zip(("frontend", "engine"), values, strict=True)
    ]
    return sampler


def rows(sampler: PssSampler) -> dict[str, dict[str, object]]:
    processes, idle = {"frontend": -1, "engine": -2}, {"frontend": None, "engine": None}
    found = memory_trial.memory_rows(sampler, processes, idle, 10)
    return {str(row["process"]): dict(row) for row in found}


def test_both_is_the_highest_sum_of_one_moment() -> None:
    found = rows(scripted(("idle", 100, 200), ("", 140, 210), ("", 105, 260)))
    assert (found["frontend"]["multiple"], found["engine"]["multiple"]) == (4.0, 6.0)
    assert found["both"]["peak_pss"] == 365 and found["both"]["multiple"] == 6.5


def test_both_is_at_least_one_peak_beside_the_other_at_rest() -> None:
    sampler = scripted(("idle", 100, 200), ("", 90, 260))
    assert rows(sampler)["both"]["peak_pss"] == 360


def test_a_process_that_was_gone_leaves_its_row_missing() -> None:
    found = rows(scripted(("idle", 100, 200), ("", 140, 210), ("last", 100, None)))
    assert found["engine"]["peak_pss"] is None and found["engine"]["multiple"] is None
    assert found["both"]["multiple"] is None
    assert found["frontend"]["multiple"] == 4.0


def test_samples_keep_marks_and_changes_with_the_case_under_way() -> None:
    sampler = scripted(
        ("idle", 1, 1), ("a: start", 1, 1), ("", 1, 1), ("", 9 * MIB, 1), ("", 9 * MIB, None)
    )
    found = memory_trial.sample_rows(sampler.samples, [(1.0, "a", 7)])
    assert [(r["time_s"], r["process"], r["case"]) for r in found] == [
        (0.0, "frontend", ""),
        (0.0, "engine", ""),
        (1.0, "frontend", "a"),
        (1.0, "engine", "a"),
        (3.0, "frontend", "a"),
        (4.0, "engine", "a"),
    ]
    assert found[-1]["pss"] is None and found[-1]["payload_nbytes"] == 7
