"""Whole runs with the real pipeline: interleaved, checked, on disk, whatever interrupts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mmlab.bench import checks, headroom, results, run, summary
from mmlab.bench.events import TrialError
from mmlab.bench.results import Tables
from mmlab.bench.spec import RunSettings
from mmlab.errors import UsageError

pytestmark = pytest.mark.timeout(180)  # each trial imports torch twice, in fresh processes

SMALL = RunSettings(
    strategies=("pickle", "msgpack"),
    model="echo",
    scale=0.125,
    image_size=448,
    repeats=1,
    memory_trials=1,
    engine_threads=1,
    frontend_threads=1,
)


def test_every_block_holds_every_strategy_in_an_order_of_its_own() -> None:
    settings = msgspec.structs.replace(SMALL, repeats=6, memory_trials=8)
    places = run.plan(settings)
    assert [place.order for place in places] == list(range(16))
    assert [place.kind for place in places] == ["both"] * 12 + ["memory"] * 4
    blocks = [tuple(p.strategy for p in places[i : i + 2]) for i in range(0, 16, 2)]
    assert all(set(block) == set(SMALL.strategies) for block in blocks)
    assert len(set(blocks)) == 2
    assert run.plan(settings) == places
    few = run.plan(msgspec.structs.replace(settings, memory_trials=1))
    assert [place.kind for place in few] == ["both"] * 2 + ["time"] * 10
    assert run.plan(msgspec.structs.replace(settings, seed=1)) != places


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tables, Path, list[str]]]:
    folder, lines = tmp_path_factory.mktemp("run"), list[str]()
    yield run.run_trials(SMALL, folder, run_id="x", log=lines.append), folder, lines


def test_all_strategies_deliver_the_same_bytes(
    small_run: tuple[Tables, Path, list[str]],
) -> None:
    tables, _, _ = small_run
    rows = tables.results
    by_strategy = {name: [r for r in rows if r["strategy"] == name] for name in SMALL.strategies}
    assert {len(found) for found in by_strategy.values()} == {18 + 15}  # one by one, then at once
    sequences = {
        name: [(r["phase"], r["request"], r["checksum"]) for r in found]
        for name, found in by_strategy.items()
    }
    assert sequences["pickle"] == sequences["msgpack"]
    assert len({r["checksum"] for r in by_strategy["pickle"]}) == 18  # all requests differ
    assert checks.verify(rows) == 18


def test_every_row_is_whole_and_on_disk(small_run: tuple[Tables, Path, list[str]]) -> None:
    tables, folder, _ = small_run
    frame = results.read(folder)
    assert len(frame) == len(tables.results)
    assert set(frame["run_id"]) == {"x"}
    assert set(frame["env_omp_wait_policy"]) == {os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    assert set(frame["device"]) == {"cpu"} and not frame["pinned"].any()
    assert (frame["latency_s"] > 0).all()
    assert set(frame["frontend_threads"]) == set(frame["engine_threads"]) == {1}  # as they were set
    for stage in ("encode", "transport", "decode", "reduce"):
        assert frame[f"{stage}_s"].notna().all()
    image = headroom.image_nbytes(448)
    assert (frame["payload_nbytes"] == frame["num_images"] * image).all()
    sequential = frame[(frame["phase"] == "sequential") & (frame["num_images"] == 4)]
    wire = sequential.groupby("strategy")["wire_nbytes"].max() / (4 * image)
    assert wire["pickle"] > 3.9  # every item drags the batch's storage along
    assert 1 <= wire["msgpack"] < 1.01
    assert (folder / "results.csv").read_text().count("\n") == len(frame) + 1
    assert (folder / "environment.json").is_file()


def test_enough_samples_of_each_case(small_run: tuple[Tables, Path, list[str]]) -> None:
    frame = results.frame("results", small_run[0].results)
    counts = frame[frame["phase"] == "sequential"].groupby(["strategy", "case"]).size()
    assert counts.min() >= SMALL.min_samples


def test_memory_is_in_multiples_of_the_payload(small_run: tuple[Tables, Path, list[str]]) -> None:
    tables, folder, _ = small_run
    peaks = summary.peaks(results.read(folder, "memory"))
    assert set(peaks) == set(SMALL.strategies)
    for strategy in SMALL.strategies:
        assert set(peaks[strategy]) == {"frontend", "engine", "both"}
        both = peaks[strategy]["both"]
        assert both is not None and both > 0.9  # the payload itself is among it
    samples = results.read(folder, "samples")
    assert set(samples["case"]) == {"", "1 image", "2 images", "4 images"}
    assert samples["pss"].notna().all()
    assert {trial["status"] for trial in tables.trials} == {"ok"}


def test_the_overview_has_a_line_for_each(small_run: tuple[Tables, Path, list[str]]) -> None:
    _, folder, _ = small_run
    entries = summary.overview(results.read(folder), results.read(folder, "memory"))
    assert [entry["strategy"] for entry in entries] == list(SMALL.strategies)
    assert {entry["case"] for entry in entries} == {"4 images"}


def test_progress_is_told_line_by_line(small_run: tuple[Tables, Path, list[str]]) -> None:
    lines = small_run[2]
    assert "trial 1 of 2" in lines[0] and "left" not in lines[0]
    (second,) = [line for line in lines if "trial 2 of 2" in line]
    assert " left)" in second
    assert "18 requests compared" in lines[-1]


def test_a_trial_that_would_not_fit_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "available_nbytes", lambda: 1 << 30)
    settings = msgspec.structs.replace(SMALL, strategies=("pickle",), memory_trials=0)
    with pytest.raises(TrialError, match=r"no trial could run: may need 1\.\d+ GiB, 1\.00 GiB are"):
        run.run_trials(settings, tmp_path, log=lambda _: None)
    (trial,) = results.read(tmp_path, "trials").to_dict("records")
    assert (trial["status"], trial["available_nbytes"]) == ("skipped", 1 << 30)


def test_a_failed_trial_is_recorded_and_raised(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SMALL, trial_timeout_s=0.3, memory_trials=0)
    with pytest.raises(TrialError, match="did not end within"):
        run.run_trials(settings, tmp_path, log=lambda _: None)
    assert list(results.read(tmp_path, "trials")["status"]) == ["failed"]
    going = msgspec.structs.replace(settings, keep_going=True)
    with pytest.raises(TrialError, match="did not end within"):
        run.run_trials(going, tmp_path, log=lambda _: None)
    assert list(results.read(tmp_path, "trials")["status"]) == ["failed"] * 2


def test_nothing_starts_with_a_wrong_setting(tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(SMALL, strategies=("msgpack", "zeromq"))
    with pytest.raises(UsageError, match="unknown strategy 'zeromq'"):
        run.run_trials(wrong, tmp_path / "new")
    assert not (tmp_path / "new").exists()
