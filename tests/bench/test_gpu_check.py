"""`mmlab bench gpu` where no GPU is needed: the runner, the thresholds, the table, the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from mmlab import cli
from mmlab.bench.gpu import checks, encoder, normalizing, processes, speed, waiting
from mmlab.bench.gpu.context import Context
from mmlab.bench.gpu.findings import Check, Finding, failed, records, rows, run_checks
from mmlab.cli.gpu import verdict
from mmlab.pixels import Step
from mmlab.staging import HostDevice, device

MIB = 1 << 20


class Clock:
    """Moves only when a check says how long it took."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def finding(name: str, ok: bool | None = True) -> Finding:
    return Finding(name, "got", "wanted", ok)


def check(name: str, clock: Clock, took: float = 1.0, seconds: float = 1.0) -> Check:
    def run(context: Context) -> Iterator[Finding]:
        clock.now += took
        yield finding(name)

    return Check(name, run, seconds)


def test_one_check_that_raises_is_a_failed_row_and_the_rest_goes_on() -> None:
    clock = Clock()

    def broken(context: Context) -> Iterator[Finding]:
        yield finding("before the error")
        raise RuntimeError("CUDA error: out of memory\nand a long explanation")

    found = run_checks(
        [Check("broken", broken, 1), check("after", clock)],
        Context(HostDevice()),
        budget_s=10,
        clock=clock,
    )
    assert [f.name for f in found] == ["before the error", "broken", "after"]
    assert [f.ok for f in found] == [True, False, True]
    assert found[1].got == "RuntimeError: CUDA error: out of memory"
    assert "long explanation" in str(found[1].values["error"])
    assert failed(found) == ["broken"]


def test_what_shows_late_is_blamed_on_the_check_before() -> None:
    clock = Clock()
    errors = iter([RuntimeError("illegal address"), None])

    def settle() -> None:
        if (error := next(errors)) is not None:
            raise error

    found = run_checks(
        [check("first", clock), check("second", clock)],
        Context(HostDevice()),
        budget_s=10,
        clock=clock,
        settle=settle,
    )
    assert [(f.name, f.ok) for f in found] == [("first", True), ("first", False), ("second", True)]
    assert found[1].wanted == "no exception afterwards"


def test_what_does_not_fit_into_the_budget_is_skipped_and_said() -> None:
    clock = Clock()
    told: list[int] = []
    found = run_checks(
        [
            check("slow", clock, took=7, seconds=5),
            check("large", clock, seconds=4),
            check("small", clock, seconds=3),
        ],
        Context(HostDevice()),
        budget_s=10,
        clock=clock,
        tell=lambda findings: told.append(len(findings)),
    )
    assert [(f.name, f.ok) for f in found] == [("slow", True), ("large", None), ("small", True)]
    assert found[1].got == "skipped: may take 4 s, 3 s of budget left"
    assert told == [1, 2, 3]  # the file is written after each
    assert verdict(found) == "2 of 2 as promised; skipped: large"


def test_rows_verdict_and_json_tell_failed_from_shown() -> None:
    found = [finding("a"), finding("b", False), finding("c", None)]
    assert [row[3] for row in rows(found)] == ["ok", "FAILED", "-"]
    assert verdict(found) == "1 of 2 as promised; not: b"
    assert json.loads(json.dumps(records(found)))[1] == {
        "name": "b",
        "got": "got",
        "wanted": "wanted",
        "ok": False,
        "values": {},
    }


def test_all_checks_fit_into_less_than_six_minutes_even_if_each_takes_its_most() -> None:
    listed = checks.all_checks()
    assert len({check.name for check in listed}) == len(listed) == 12
    assert sum(check.seconds for check in listed) < 360


def ok_of(findings: Iterator[Finding] | Sequence[Finding]) -> list[bool | None]:
    return [f.ok for f in findings]


@pytest.mark.parametrize(("seconds", "ok"), [(0.0010, True), (0.0011, True), (0.0012, False)])
def test_pool_and_direct_need_nine_tenths_of_the_plain_copy(seconds: float, ok: bool) -> None:
    times = {
        "plain": [0.001, 0.001, 5.0],  # one slow round moves no median
        "pageable": [0.01] * 3,
        "pool": [seconds] * 3,
        "direct": [seconds] * 3,
    }
    found = list(speed.judge_bandwidth(16, 16 * MIB, times))
    assert [(f.name, f.ok) for f in found] == [
        ("pageable, 16 MiB", None),
        ("pool, 16 MiB", ok),
        ("direct, 16 MiB", ok),
    ]
    assert found[0].got == "1.7 of 16.8 GB/s, 0.10"


@pytest.mark.parametrize(
    ("host", "event", "link", "ok"),
    [
        (0.0205, 0.02, 63.0, [True, True]),
        (0.0225, 0.02, 63.0, [False, True]),
        (0.0001, 0.02, 63.0, [False, False]),  # submission only, S12
        (0.0101, 0.01, 63.0, [True, False]),
        (0.0101, 0.01, None, [True, None]),
        (0.01, 0.0, 63.0, [False, False]),
    ],
)
def test_the_reported_time_is_the_copy_and_no_faster_than_the_link(
    host: float, event: float, link: float | None, ok: list[bool | None]
) -> None:
    found = list(speed.judge_reported(1 << 30, [1e-4], [host], [event], link, "PCIe"))
    if event == 0:
        assert found[0].ok is False
    else:
        assert ok_of(found) == ok


@pytest.mark.parametrize(
    ("told", "link"),
    [
        ("NVIDIA H200, 5, 16\n", 63.008),
        ("NVIDIA A, 3, 8\nNVIDIA H200, 5, 16\n", 63.008),
        ("NVIDIA A, [N/A], [N/A]\n", None),
        ("NVIDIA GH200 480GB, 5, 16\n", None),
        ("", None),
        (None, None),
        ("Failed to initialize NVML", None),
    ],
)
def test_the_link_is_what_the_driver_says_or_unknown(told: str | None, link: float | None) -> None:
    found, name = speed.link_bandwidth(told)
    assert (found is None) == (link is None) and name
    if link is not None:
        assert found == pytest.approx(link)
        assert name == "PCIe 5 x16"


def test_overlap_is_what_lies_in_the_compute_of_the_batch_before() -> None:
    computes = [(1.0, 5.0), (6.0, 10.0), (11.0, 15.0)]
    inside = [(0.0, 0.9), (1.0, 2.0), (5.95, 6.95), (11.1, 12.0)]
    found = waiting.judge_overlap(inside, computes)
    assert found.ok and found.values["inside"] == pytest.approx([1.0, 0.95, 1.0])
    between = [(0.0, 0.9), (5.0, 6.0), (10.0, 11.0), (15.0, 16.0)]
    assert waiting.judge_overlap(between, computes).ok is False
    assert waiting.judge_overlap([], []).ok is False
    assert waiting.shared((0, 2), (1, 5)) == 1
    assert waiting.shared((0, 1), (2, 3)) == 0


def test_ulps_count_the_numbers_between() -> None:
    one = torch.tensor([1.0, -1.0, 0.0])
    up = torch.nextafter(one, torch.tensor(9.0))
    assert normalizing.ulps(one, one) == 0
    assert normalizing.ulps(up, one) == 1
    assert normalizing.ulps(torch.tensor([1e-45]), torch.tensor([-1e-45])) == 2
    assert normalizing.ulps(torch.tensor([0.0]), torch.tensor([-0.0])) == 0


def test_the_steps_of_another_processor_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert normalizing._judge(Context(HostDevice()), "x", (Step("div", (255.0,)),)).ok
    answers = iter([torch.zeros(3, 16, 16), torch.full((3, 16, 16), 3e-45)])
    monkeypatch.setattr(normalizing.pixels, "apply", lambda *_: next(answers))
    assert normalizing._judge(Context(HostDevice()), "x", ()).got == "2 ulp"


def test_tokens_of_all_strategies_must_be_those_of_the_first() -> None:
    same = {"msgpack": [[1, 2], [3]], "arena-direct": [[1, 2], [3]]}
    assert processes.judge_tokens(same).ok
    other = processes.judge_tokens({**same, "msgpack-pool": [[1, 2], [4]]})
    assert (other.ok, other.got) == (False, "others by msgpack-pool")
    assert processes.judge_tokens({"msgpack": [[]], "arena-direct": [[]]}).ok is False


def test_throughput_is_compared_with_pageable_in_the_same_round() -> None:
    times = {
        "pageable": [1.0, 2.0, 4.0],
        "pin-after": [2.02, 4.04, 8.08],
        "pinned": [2.0, 4.0, 8.0],
        "pool": [0.99, 1.98, 3.96],
        "direct": [1.1, 2.2, 4.4],
    }
    found = list(encoder.judge_throughput(16, times))
    assert ok_of(found) == [None, None, None, True, False]
    assert found[2].got == "4.0, -50.0%, +1.0% over pin-after"
    assert found[3].got == "8.1, +1.0%"
    assert found[3].values["gain"] == pytest.approx(1 / 99)


def test_without_a_gpu_it_says_so_in_one_line_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device, "cuda_problem", lambda: "no GPU in this test")
    assert cli.main(["bench", "gpu"]) == 0
    assert capsys.readouterr().out == "skipped: no GPU in this test\n"
    assert cli.main(["bench", "gpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"skipped": "no GPU in this test"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ok", [True, False])
def test_table_file_and_exit_code(
    ok: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """With checks of this test and the CPU in place of the GPU: all else is the command's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device, "cuda_problem", lambda: None)
    monkeypatch.setattr("mmlab.staging.resolve_device", lambda name: HostDevice())
    monkeypatch.setattr(checks, "settle", lambda: None)
    listed = [Check("one", lambda context: iter([finding("one", ok)]), 1)]
    monkeypatch.setattr(checks, "all_checks", lambda: listed)
    assert cli.main(["bench", "gpu"]) == (0 if ok else 1)
    shown = capsys.readouterr()
    (path,) = tmp_path.glob("runs/gpu-check-*Z.json")
    assert path.name in shown.err
    assert shown.out.splitlines()[2].split() == ["one", "got", "wanted", "ok" if ok else "FAILED"]
    written = json.loads(path.read_text())
    assert written["environment"]["torch"] and written["budget_s"] == 220
    assert written["findings"][0]["ok"] is ok
    named = tmp_path / "here" / "gpu.json"
    cli.main(["bench", "gpu", "--out", str(named), "--json"])
    assert (
        json.loads(capsys.readouterr().out)["findings"] == json.loads(named.read_text())["findings"]
    )
