"""What figures read from rows: groups in order, spreads, units, and missing values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from plot_rows import result_rows

from mmlab.plots import rows as r


def test_groups_come_by_number_of_images_and_the_mix_last() -> None:
    rows = result_rows(("msgpack",), repeats=1)[::-1]
    assert r.groups(rows) == ["4 images", "8 images", "16 images", "32 images", r.MIX]


def test_delivery_is_what_lies_between_processor_and_device() -> None:
    row = {f"{stage}_s": 1.0 for stage in ("encode", "transport", "decode", "reduce", "h2d")}
    row |= {"processor_s": 100.0, "encoder_s": 100.0, "prefill_s": 100.0, "decode_tokens_s": 100.0}
    assert r.delivery([row]) == pytest.approx([5.0])


def test_spread_has_the_median_inside_its_interval_and_is_the_same_each_time() -> None:
    samples = np.random.default_rng(3).normal(10, 1, 40)
    spread = r.spread(samples)
    assert spread.n == 40
    assert spread.p50 == np.median(samples)
    assert spread.low < spread.p50 < spread.high < spread.p95
    assert spread.high - spread.low < 1.0
    assert r.spread(samples) == spread


def test_one_sample_has_no_interval_and_none_is_missing() -> None:
    one = r.spread([2.0])
    assert (one.n, one.p50, one.low, one.high) == (1, 2.0, 2.0, 2.0)
    assert math.isnan(r.spread([]).p50)


@pytest.mark.parametrize(
    ("largest", "unit"), [(90.0, "s"), (1.0, "s"), (0.999, "ms"), (1e-3, "ms"), (9e-4, "µs")]
)
def test_times_are_drawn_in_a_unit_that_reads_well(largest: float, unit: str) -> None:
    assert r.time_unit(largest)[1] == unit


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *[(0.234, "0.23"), (9.99, "9.99"), (12.34, "12.3"), (118.2, "118"), (2061.0, "2,061")],
        (math.nan, "not measured"),
    ],
)
def test_numbers_have_three_digits(value: float, said: str) -> None:
    assert r.amount(value) == said
