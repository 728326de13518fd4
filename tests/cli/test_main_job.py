"""`mmlab run` as a user starts it, from somewhere else, to its end: good, failed, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mmlab.bench import results

pytestmark = pytest.mark.timeout(180)

SMALL = ["--model", "echo", "--workload", "single", "--strategies", "msgpack"]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mmlab.cli", "run", *SMALL, *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_it_leaves_everything_and_prints_json_alone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    images = tmp_path / "in" / "pages"
    images.mkdir()
    (images / "torn.jpg").write_bytes(b"not a photograph")
    from mmlab.bench.images import _shipped_paths

    for path in _shipped_paths()[:3]:
        (images / path.name).write_bytes(path.read_bytes())
    arguments = ["--repeats", "1", "--images", "in/pages", "--json", "--out", "results here"]
    stdout, stderr = (job := start(tmp_path, *arguments)).communicate()
    assert job.returncode == 0, stderr
    summary = json.loads(stdout)  # and nothing else
    folder = Path(summary["folder"])
    assert folder == tmp_path / "results here"
    assert summary["images_skipped"] == 1 and "torn.jpg" in stderr
    (entry,) = summary["strategies"]
    assert entry["strategy"] == "msgpack" and entry["p50_s"] > 0 and entry["peak_engine"] > 0.5
    names = {path.name for path in folder.iterdir()}
    wanted = {"00_quickstart.ipynb", "report.html", "results.parquet", "results.csv"}
    assert wanted | {"environment.json", "memory.parquet", "trials.csv"} <= names
    assert any(name.endswith(".png") for name in names)
    assert "trial 1 of 1" in stderr and "requests compared" in stderr
    rows = results.read(folder)
    assert set(rows["strategy"]) == {"msgpack"} and len(rows) == 16
    assert not (tmp_path / "runs").exists()


def engines(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes below the trial that is running."""
    family = psutil.Process(job.pid).children(recursive=True)
    trials = [p for p in family if "mmlab.bench.trial" in " ".join(p.cmdline())]
    return [child for trial in trials for child in trial.children()]


def test_an_engine_that_dies_is_said_with_its_exit_code(tmp_path: Path) -> None:
    job = start(tmp_path, "--repeats", "1", "--no-memory")
    assert job.stderr is not None
    for line in job.stderr:
        if "trial 1 of 1" in line:
            break
    while not (found := engines(job)):
        assert job.poll() is None
    found[0].kill()
    stdout, stderr = job.communicate()
    assert job.returncode == 1
    assert stdout == ""
    last = stderr.splitlines()[-1]
    assert last.startswith("mmlab: ") and "EngineError" in last and str(-signal.SIGKILL) in last
    (folder,) = (tmp_path / "runs").iterdir()
    assert list(results.read(folder, "trials")["status"]) == ["failed"]


def test_ctrl_c_keeps_what_was_finished_and_leaves_nobody_behind(tmp_path: Path) -> None:
    job = start(tmp_path, "--repeats", "50", "--no-memory")
    assert job.stderr is not None
    for line in job.stderr:
        if "trial 2 of 50" in line:
            break
    family = psutil.Process(job.pid).children(recursive=True)
    os.kill(job.pid, signal.SIGINT)
    _, stderr = job.communicate(timeout=60)
    assert job.returncode == 130, stderr
    assert stderr.splitlines()[-1] == "mmlab: interrupted"
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(results.read(folder)) == 16
