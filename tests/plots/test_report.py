"""Sentences computed from rows: right numbers, and no claim that the intervals do not bear out."""

from __future__ import annotations

import re

import numpy as np
import pytest
from plot_rows import memory_rows, result_rows

from mmlab import report


def test_the_headline_sets_the_dearest_beside_the_cheapest() -> None:
    said = report.headline(result_rows(), memory_rows())
    found = re.search(r"32 images \(308 MB of pixels\)", said)
    assert found, said
    cheap, dear = said.split(", and ")
    assert "with `msgpack`" in cheap
    assert "with `pickle`" in dear
    ratio = re.search(r"([\d.]+) times the time \(([\d.]+) to ([\d.]+)\)", dear)
    assert ratio, said
    value, low, high = (float(number) for number in ratio.groups())
    assert low < value < high
    assert value == pytest.approx(65, rel=0.1)  # as plot_rows sets it
    assert len(re.findall(r"times its size in memory", said)) == 2


def test_a_difference_within_the_noise_is_not_claimed() -> None:
    rows = result_rows(("msgpack", "arena"))
    assert "no more than the noise" in report.headline(rows, [])
    with_pickle = report.headline(rows + result_rows(("pickle",)), [])
    assert "no clear difference from it), and" in with_pickle
    assert report.answer(rows, []).count("shows no clear difference from it") == 2


def test_one_sample_gives_no_interval_and_says_so() -> None:
    rows = result_rows(repeats=1)
    assert "from too few samples for an interval" in report.headline(rows, memory_rows(repeats=1))
    said = report.answer(rows, memory_rows(repeats=1))
    assert "(one sample)" in said
    assert "one trial each, so without an interval" in said


def test_one_strategy_alone_is_not_compared_with_itself() -> None:
    said = report.headline(result_rows(("msgpack",)), [])
    assert "msgpack" in said
    assert "times" not in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("shift", "verdict"), [(2.0, "more"), (0.5, "less"), (1.0, "noise"), (1.01, "noise")]
)
def test_a_ratio_knows_its_sign_only_outside_the_noise(shift: float, verdict: str) -> None:
    samples = np.random.default_rng(1).normal(10, 0.5, 24)
    found = report.ratio(shift * np.sort(samples)[::2], np.sort(samples)[1::2])
    assert found.verdict == verdict
    assert found.low <= found.value <= found.high


def test_rows_that_disagree_are_reported_as_such() -> None:
    rows = result_rows(repeats=1, mix=False)
    assert report.delivered(rows).startswith("**Delivered**: 15 requests arrived as 15 different")
    wrong = [row | {"checksum": 1} if row["strategy"] == "pickle" else row for row in rows]
    assert "**Delivered: not the same.** 15 of 15" in report.delivered(wrong)
    assert "no number above counts" in report.answer(wrong, [])


def test_a_run_without_memory_says_that_it_was_not_measured() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert "\n**Memory**: not measured in this run.\n" in report.answer(result_rows(), [])
    rows, no_memory = pandas.DataFrame(result_rows()), pandas.DataFrame(memory_rows()).iloc[:0]
    table = report.table(rows, no_memory)
    assert "both" not in table
    assert "memory" not in table
    said = table + report.headline(rows, no_memory) + report.answer(rows, no_memory)
    assert "missing" not in said
    assert "nan" not in said


def test_a_table_without_the_mix_and_of_one_sample_has_no_empty_cells() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rows = result_rows(cases={"4 images": (4, 1)}, repeats=1, mix=False)
    said = report.table(pandas.DataFrame(rows), pandas.DataFrame(memory_rows()))
    assert "at once" not in said
    assert "| one sample |" in said
    assert "not measured" not in said


@pytest.mark.parametrize(
    ("skipped", "images", "said"),
    [
        (0, "", ""),
        (0, None, "**Images**: photographs that come with packages, not your own."),
        (0, "mine", "**Images**: your own, from `mine`. No file was skipped."),
        (1, "mine", "from `mine`. 1 file could not be decoded and was skipped."),
        (2, "", "**Images**: your own. 2 files could not be decoded and were skipped."),
    ],
)
def test_the_answer_says_whose_images_were_sent_and_how_many_files_were_skipped(
    skipped: int, images: str | None, said: str
) -> None:
    rows = [row | {"images_skipped": skipped} for row in result_rows(repeats=1)]
    found = report.answer(rows, [], images)
    assert said in found
    assert ("**Images**" in found) == bool(said)


def test_what_was_delivered_is_said_in_three_short_sentences() -> None:
    said = report.delivered(result_rows(repeats=1, mix=False))
    assert said == (
        "**Delivered**: 15 requests arrived as 15 different batches. They got 15 different "
        "answers. Their bytes and tokens were the same with all 3 strategies."
    )
    alone = report.delivered(result_rows(("msgpack",), repeats=1, mix=False))
    assert "With one strategy there is nothing to compare them with." in alone


def test_payloads_are_compared_each_with_its_own_and_other_answers_are_said() -> None:
    rows = result_rows(("msgpack", "arena"), repeats=1, mix=False)
    rows += [
        row
        | {"strategy": "half", "payload": "bfloat16", "checksum": int(str(row["checksum"])) + 99}
        for row in rows[:15]
    ]
    rows[-1]["token_ids"] = "[7]"
    said = report.delivered(rows)
    assert said.startswith("**Delivered**: 30 requests arrived as 30 different batches.")
    assert "with all strategies of one payload (1 of bfloat16, 2 of float32)" in said
    assert said.endswith("As bfloat16, 1 of 15 got another answer than as float32.")
    rows[-2]["checksum"] = 1
    rows.append(rows[-2] | {"checksum": 2, "strategy": "other half"})
    assert "**Delivered: not the same.** 1 of 30" in report.delivered(rows)


def test_the_table_has_a_line_for_each_strategy_in_the_fixed_order() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rows = pandas.DataFrame(result_rows(("msgpack", "pickle")))
    lines = report.table(rows, pandas.DataFrame(memory_rows(("msgpack", "pickle")))).splitlines()
    assert lines[0].startswith("| strategy | latency p50 |")
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| `pickle`", "| `msgpack`"]
    widths = {line.count("|") for line in lines[:4]}
    assert widths == {11}
    assert "| images/s, all at once |" in lines[0]
    assert "32 images" in lines[-1]
