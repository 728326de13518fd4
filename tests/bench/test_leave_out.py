"""A case that would not fit is left out and named; the rest of the trial is measured."""

from __future__ import annotations

import msgspec
import pytest

from mmlab.bench import headroom, run
from mmlab.bench.spec import RunSettings
from mmlab.errors import MMLabError
from mmlab.strategies import resolve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SETTINGS = RunSettings(
    strategies=("msgpack",),
    model="echo",
    scale=0.125,
    image_size=64,
    repeats=1,
    memory_trials=1,
    min_samples=1,
    max_inflight_nbytes=1 << 24,
    leave_out=True,
)


def needs(by_images: dict[int, int]) -> object:
    """An estimate of `by_images[the largest request]` bytes."""

    def needed(strategy: object, requests: list[object], **_: object) -> int:
        return by_images[max(r.num_images for r in requests)]  # type: ignore[attr-defined]

    return needed


def test_the_largest_cases_are_left_out_until_the_rest_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headroom, "needed_nbytes", needs({4: 900, 2: 300, 1: 100}))
    monkeypatch.setattr(run, "available_nbytes", lambda: 500)
    tables = run.run_trials(SETTINGS, log=lambda line: None)
    (trial,) = tables.trials
    assert trial["status"] == "ok" and trial["needed_nbytes"] == 300
    assert trial["reason"] == "left out, would not fit into memory: 4 images"
    for phase in ("sequential", "mix"):
        sent = [row for row in tables.results if row["phase"] == phase]
        assert {row["num_images"] for row in sent} == {1, 2}
        assert len(sent) == 14  # of 15 prompts
    assert {row["case"] for row in tables.samples} <= {"", "1 image", "2 images"}


def test_the_images_of_the_other_requests_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = msgspec.structs.replace(SETTINGS, memory_trials=0)
    whole = run.run_trials(timed, log=lambda line: None)
    monkeypatch.setattr(headroom, "needed_nbytes", needs({4: 900, 2: 900, 1: 100}))
    monkeypatch.setattr(run, "available_nbytes", lambda: 500)
    less = run.run_trials(timed, log=lambda line: None)
    known = {(row["request"], row["phase"]): row["checksum"] for row in whole.results}
    assert less.results
    for row in less.results:
        assert row["checksum"] == known[row["request"], row["phase"]]


def test_where_nothing_fits_the_trial_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "available_nbytes", lambda: 1)
    with pytest.raises(MMLabError, match="may need"):
        run.run_trials(SETTINGS, log=lambda line: None)


def test_the_estimate_of_pickle_is_the_reason_for_it() -> None:
    from mmlab.bench import workloads

    requests = workloads.get("doc-mix").requests(1.0)
    budget = 1 << 30
    needed = headroom.needed_nbytes(resolve("pickle"), requests, max_inflight_nbytes=budget)
    fewer = [request for request in requests if request.num_images < 32]
    less = headroom.needed_nbytes(resolve("pickle"), fewer, max_inflight_nbytes=budget)
    assert needed > 3 * less
