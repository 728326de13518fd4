"""The soak as CI runs it: a minute, whose every figure is looked at; and how it ends early."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mmlab.cli import main

COMMAND = [sys.executable, "-m", "mmlab.cli", "bench", "soak"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_of_everything_leaves_nothing_over(seed: int, tmp_path: Path) -> None:
    """In a process of its own: what tests before it left in memory is not the soak's."""
    job = subprocess.run(
        [*COMMAND, "--minutes", "1", "--seed", str(seed), "--json", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert job.returncode == 0, job.stderr
    found = json.loads(job.stdout)
    assert found["broken"] == found["faults"] == [] and not found["interrupted"]
    counts = found["counts"]
    ends = [counts[name] for name in ("answered", "cancelled", "refused", "timed_out")]
    assert all(ends) and sum(ends) == counts["submitted"]
    assert counts["cancelled"] == counts["cancels_granted"] and counts["cancels_late"]
    assert (
        counts["answered"] > 100
        and counts["payload_nbytes"] > found["readings"][0]["stats"]["nbytes_budget"]
    )
    first, last = found["readings"]
    assert last["stats"]["arena_waits"] or counts["timed_out"]  # it was full
    for process in ("frontend", "engine"):
        for what in ("descriptors", "threads"):
            assert first[process][what] == last[process][what] != {}
    pss = [sum(reading[p]["pss"] for p in ("frontend", "engine")) for reading in (first, last)]
    assert abs(pss[1] / pss[0] - 1) <= 0.02
    for reading in (first, last):
        assert reading["stats"]["arena_live_nbytes"] == reading["stats"]["arena_leases"] == 0
        assert reading["stats"]["arena_stale_returns"] == 0
    rows = found["rows"]
    assert len(rows) > 20 and max(row["arena_live_nbytes"] for row in rows) > 0
    assert json.loads((tmp_path / "soak.json").read_text()) == found
    assert (tmp_path / "soak.png").stat().st_size > 10_000
    assert f"seed {seed}" in job.stderr and "answered/s" in job.stderr


def test_ctrl_c_ends_it_in_order_and_keeps_the_rows(tmp_path: Path) -> None:
    command = [*COMMAND, "--out", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as job:
        assert job.stderr is not None
        assert any("answered/s" in line for line in job.stderr)
        below = psutil.Process(job.pid).children(recursive=True)
        job.send_signal(signal.SIGINT)  # the engine has a session of its own
        out, err = job.communicate(timeout=40)
    assert job.returncode == 130
    assert err.splitlines()[-1] == "mmlab: interrupted" and "Traceback" not in err
    assert "interrupted: no claim was checked" in out
    kept = json.loads((tmp_path / "soak.json").read_text())
    assert kept["interrupted"] and kept["rows"] and kept["faults"] == []
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive


def test_an_engine_that_dies_is_a_broken_claim(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    command = [*COMMAND, "--minutes", "5", "--json", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as job:
        assert job.stderr is not None
        assert any("answered/s" in line for line in job.stderr)
        for process in psutil.Process(job.pid).children(recursive=True):
            process.kill()
        out, err = job.communicate(timeout=40)
    assert job.returncode == 1 and "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("mmlab: soak: ") and "faults" in last and "0 quiet readings" in last
    found = json.loads(out)
    assert found["broken"] and any("EngineError" in text for text in found["faults"])


@pytest.mark.parametrize("strategy", ["arena", "msgpack"])
def test_one_request_can_be_sent_again(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "soak", "--strategy", strategy, "--seed", "3", "--request", "1/2"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "seed=3, thread=1, number=2" in printed and "B came as they were sent" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--request", "12"], "wanted THREAD/NUMBER"),
        (["--max-inflight-nbytes", "10MB"], "wanted 80000000 B or more"),
        (["--strategy", "aren"], "did you mean 'arena'?"),
        (["--minutes", "0"], "0.05"),
    ],
)
def test_bad_options_of_a_soak_are_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "soak", *arguments]) == 2
    assert said in capsys.readouterr().err
