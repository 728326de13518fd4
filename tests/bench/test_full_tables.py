"""The tables of the two pull requests: published lines as they stand, ours from known rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from bench_rows import result_row

from mmlab.bench import results
from mmlab.bench.full import job, published, table
from mmlab.bench.full.cases import MIX, Line, lines, peaks_by_case
from mmlab.bench.spec import RunSettings
from mmlab.plots import style
from mmlab.plots.pull_request import pull_request
from mmlab.staging import device
from mmlab.strategies import REGISTRY

GB = 10**9


def sample(time_s: float, process: str, case: str, pss: int | None, **more: object) -> results.Row:
    row: results.Row = {"schema": 1, "run_id": "r", "strategy": "msgpack", "repeat": 0}
    row |= {"time_s": time_s, "process": process, "case": case, "payload_nbytes": 1, "mark": ""}
    return {**row, "pss": pss, **more}  # type: ignore[dict-item]


def test_the_published_tables_stand_as_in_the_file() -> None:
    found = table.published_lines(published.figures())
    first = {line.config: line for line in found[published.DESCRIPTION]}
    assert first["baseline (zero-copy disabled)"].memory == {4: 3.55, 8: 5.11, 16: 9.96, 32: 22.54}
    assert first["#16432 (zero-copy disabled)"].seconds == {32: 14.4, MIX: 36.3}
    later = {line.config: line for line in found[published.LATER]}
    assert later["main (baseline)"].no_room == {32}
    assert later["#16432 + zero-copy"].seconds == {4: 10.7, 8: 9.1, 16: 10.0, 32: 12.0}
    assert ("VisionArena-Chat (mean of 3 noisy runs)", "0.3 %") in table.pinned_lines(
        published.figures(published.PINNED)
    )


def test_a_peak_is_of_both_processes_at_one_moment() -> None:
    rows = [
        sample(0.0, "frontend", "", 100),
        sample(0.0, "engine", "", 50),
        sample(1.0, "frontend", "4 images", 400),  # the engine still holds 50
        sample(2.0, "frontend", "4 images", 100),
        sample(2.5, "engine", "4 images", 500),
        sample(3.0, "engine", "8 images", 900),
    ]
    assert peaks_by_case(results.frame("samples", rows)) == {"4 images": 600, "8 images": 1000}


def test_a_process_that_could_not_be_read_gives_no_peak() -> None:
    rows = [
        sample(0.0, "frontend", "4 images", 400),
        sample(0.0, "engine", "4 images", None),
        sample(1.0, "engine", "4 images", 500),
    ]
    assert peaks_by_case(results.frame("samples", rows)) == {"4 images": None}


def rows_of(strategy: str, images: int, prompts: int, seconds: float) -> list[results.Row]:
    return [
        result_row(
            strategy=strategy,
            case=f"{images} images",
            num_images=images,
            request=number,
            latency_s=seconds,
        )
        for number in range(prompts)
    ]


def test_a_size_that_only_others_were_sent_had_no_room() -> None:
    timed = [
        *rows_of("msgpack", 4, 8, 0.5),
        *rows_of("msgpack", 32, 1, 7.0),
        *rows_of("pickle", 4, 8, 1.0),
        result_row(strategy="pickle", case="4 images", num_images=4, phase="mix", latency_s=9.0),
    ]
    old, new = lines(results.frame("results", timed), results.frame("samples", []))
    assert (old.config, new.config) == ("pickle", "msgpack")
    assert new.seconds == {4: 4.0, 32: 7.0} and new.t_max == 7.0 and not new.no_room
    assert old.seconds == {4: 8.0, MIX: 9.0} and old.no_room == {32} and old.t_max is None
    text = dict(zip(table.HEAD, table.cells(old), strict=True))
    assert text["32 images GB"] == "no room" and text["8 images GB"] == "-"
    assert text["mix s"] == "9.00 (1 of 15)"


def test_the_ratio_is_taken_where_both_could_do_it() -> None:
    ours = [Line("pickle", {4: 3.0, 16: 8.0}), Line("msgpack", {4: 1.5, 16: 2.0, 32: 4.0})]
    theirs = table.published_lines(published.figures())[published.DESCRIPTION]
    four, sixteen = table.ratios(ours, theirs)
    assert "pickle took 2.0 times" in four and "published, before and after #16432: 1.1" in four
    assert "pickle took 4.0 times" in sixteen and "2.1" in sixteen
    assert table.ratios(ours[1:], theirs) == []


def test_every_way_of_float32_that_can_run_here_is_taken() -> None:
    names = job.all_strategies("cpu")
    assert {"pickle", "msgpack", "arena"} <= set(names) <= set(REGISTRY)
    assert "arena-uint8" not in names and "msgpack-pinned" not in names


def test_the_parts_are_at_full_size_and_leave_out_what_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = RunSettings(strategies=("msgpack",), seed=3, device="auto")
    monkeypatch.setattr(job, "cuda_problem", lambda: "none")
    echo, tiny = job.parts(base, ("msgpack", "arena"))
    assert echo.settings.strategies == ("msgpack", "arena") and echo.settings.model == "echo"
    assert tiny.settings.strategies == job.WITH_MODEL and tiny.settings.model == job.TINY
    for part in (echo, tiny):
        assert part.settings.scale == 1 and part.settings.seed == 3 and part.settings.leave_out
    monkeypatch.setattr(job, "cuda_problem", lambda: None)
    assert job.parts(base, ("msgpack",))[2].settings.workload == "multi"
    assert device.cuda_problem is not None


def test_the_figure_has_a_panel_for_each_model_and_the_published() -> None:
    theirs = table.published_lines(published.figures())[published.DESCRIPTION]
    ours = {"echo": [Line("msgpack", {4: 1.0, 8: 1.2, 16: 1.5, 32: 2.0})]}
    figure = pull_request(ours, theirs, "a machine")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[0] == "measured here: echo" and titles[1].startswith("published")
    assert all(axes.get_xlabel() for axes in figure.axes) and figure.axes[0].get_ylabel()
    (line,) = figure.axes[0].lines
    assert line.get_color() == style.look("msgpack").colour


def test_what_was_measured_is_written_beside_what_was_published(tmp_path: Path) -> None:
    folder = tmp_path / "echo"
    folder.mkdir()
    timed = [*rows_of("pickle", 4, 8, 1.0), *rows_of("msgpack", 4, 8, 0.5)]
    held = [
        sample(0.0, process, "4 images", nbytes, strategy=strategy)
        for strategy, nbytes in (("pickle", 2 * GB), ("msgpack", GB))
        for process in ("frontend", "engine")
    ]
    results.write(folder, results.Tables(results=timed, samples=held))
    text = job.write(tmp_path).read_text()
    assert "| pickle | 4.00 |" in text and "| msgpack | 2.00 |" in text
    assert "22.5" in text and "echo, 4 images: pickle took 2.0 times" in text
    assert (tmp_path / "pull_requests.png").stat().st_size > 10_000
    assert isinstance(results.read(folder), pd.DataFrame)
