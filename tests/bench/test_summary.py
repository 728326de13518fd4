"""Percentiles, throughput and peaks of rows whose numbers are known."""

from __future__ import annotations

import numpy as np
import pytest
from bench_rows import memory_row, result_row

from mmlab.bench import results, summary


def latencies(values: list[float], **changes: object) -> list[results.Row]:
    return [
        result_row(latency_s=value, request=number, **changes)
        for number, value in enumerate(values)
    ]


def test_percentiles_with_intervals_around_them() -> None:
    values = [float(v) for v in np.random.default_rng(0).normal(10, 1, 200)]
    table = summary.summary(results.frame("results", latencies(values)))
    line = table[table["case"] == "2 images"].iloc[0]
    assert line["n"] == 200
    assert line["p50_s"] == pytest.approx(np.median(values))
    assert line["p95_s"] == pytest.approx(np.percentile(values, 95))
    assert line["p50_low_s"] < line["p50_s"] < line["p50_high_s"]
    assert line["p95_low_s"] < line["p95_s"] < line["p95_high_s"]
    assert 0.1 < line["p50_high_s"] - line["p50_low_s"] < 0.5  # 4 x 1.25 / sqrt(200) = 0.35


def test_the_interval_is_the_same_every_time_and_missing_for_one_sample() -> None:
    data = np.array([1.0, 2.0, 5.0, 9.0])
    assert summary.interval(data, summary.p50) == summary.interval(data, summary.p50)
    assert summary.interval(data[:1], summary.p50) == (None, None)
    assert summary.interval(np.array([3.0, 3.0]), summary.p50) == (3.0, 3.0)


def test_images_a_second_one_by_one_and_at_once() -> None:
    sequential = results.frame("results", latencies([1.0, 3.0]))
    assert summary.images_per_s(sequential, mix=False) == 1.0  # 4 images in 4 s
    rows = [
        *latencies([1.0, 4.0], phase="mix", repeat=0),
        *latencies([1.0, 2.0], phase="mix", repeat=1),
    ]
    assert summary.images_per_s(results.frame("results", rows), mix=True) == 1.5


def test_strategies_stand_in_their_fixed_order_and_phases_apart() -> None:
    rows = [
        *latencies([1.0], strategy="msgpack"),
        *latencies([2.0], strategy="pickle"),
        *latencies([3.0], strategy="pickle", phase="mix"),
    ]
    table = summary.summary(results.frame("results", rows))
    assert list(table["strategy"].unique()) == ["pickle", "msgpack"]
    mix = table[(table["phase"] == "mix") & (table["case"] == "all")]
    assert mix["p50_s"].tolist() == [3.0]
    assert table["delivery_s"].tolist() == [0.625] * 6  # five stages of 0.125 s


def test_a_stage_that_was_not_measured_is_missing() -> None:
    rows = latencies([1.0, 1.0], processor_s=None)
    table = summary.summary(results.frame("results", rows))
    assert table["processor_s"].isna().all()
    assert table["delivery_s"].notna().all()


def test_the_overview_takes_the_largest_case_and_the_peaks() -> None:
    rows = [
        *latencies([1.0, 1.2]),
        *latencies([5.0, 6.0], case="4 images", num_images=4, payload_nbytes=4000),
        *latencies([8.0], phase="mix"),
    ]
    peaks = [memory_row(), memory_row(process="frontend", peak_pss=None, multiple=None)]
    (entry,) = summary.overview(results.frame("results", rows), results.frame("memory", peaks))
    assert (entry["case"], entry["payload_nbytes"]) == ("4 images", 4000)
    assert entry["p50_s"] == 5.5
    assert entry["images_per_s_mix"] == 0.25
    assert (entry["peak_engine"], entry["peak_frontend"]) == (3.0, None)
    assert entry["peak_both"] is None  # never measured: missing too


def test_without_images_the_payload_says_what_is_largest_and_there_is_no_rate_of_images() -> None:
    rows = [
        *latencies([6.0, 7.0], case="30 s audio", num_images=0, payload_nbytes=3000),
        *latencies([2.0, 3.0], case="10 s audio", num_images=0, payload_nbytes=1000),
    ]
    frames = results.frame("results", rows), results.frame("memory", [memory_row()])
    (entry,) = summary.overview(*frames)
    assert (entry["case"], entry["images_per_s"]) == ("30 s audio", None)


def test_one_missing_peak_makes_the_median_missing() -> None:
    rows = [memory_row(), memory_row(repeat=1, peak_pss=None, multiple=None)]
    assert summary.peaks(results.frame("memory", rows)) == {"msgpack": {"engine": None}}
