"""`mmlab run` as a user starts it, from somewhere else, to its end: good, failed, interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from processes import engines_below

from mmlab.bench import results

pytestmark = pytest.mark.timeout(180)

SMALL = ["--model", "echo", "--workload", "single", "--strategies", "msgpack"]


@contextmanager
def start(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The job, which is interrupted where the test fails before it has ended."""
    command = [sys.executable, "-m", "mmlab.cli", "run", *SMALL, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as job:
        try:
            yield job
        finally:
            if job.poll() is None:
                job.send_signal(signal.SIGINT)
                job.communicate(timeout=60)


def test_it_leaves_everything_and_prints_json_alone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    images = tmp_path / "in" / "pages"
    images.mkdir()
    (images / "torn.jpg").write_bytes(b"not a photograph")
    from mmlab.bench.images import _shipped_paths

    for path in _shipped_paths()[:3]:
        (images / path.name).write_bytes(path.read_bytes())
    arguments = ["--repeats", "1", "--images", "in/pages", "--json", "--out", "results here"]
    with start(tmp_path, *arguments) as job:
        stdout, stderr = job.communicate()
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


def wait_for(job: subprocess.Popen[str], text: str) -> None:
    assert job.stderr is not None
    assert any(text in line for line in job.stderr), f"the job ended without {text!r}"


def test_an_engine_that_dies_is_said_with_its_exit_code(tmp_path: Path) -> None:
    with start(tmp_path, "--repeats", "1", "--no-memory") as job:
        wait_for(job, "trial 1 of 1")
        while not (found := engines_below(job.pid)):
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
    with start(tmp_path, "--repeats", "50", "--no-memory") as job:
        wait_for(job, "trial 2 of 50")
        family = psutil.Process(job.pid).children(recursive=True)
        job.send_signal(signal.SIGINT)
        _, stderr = job.communicate(timeout=60)
    assert job.returncode == 130, stderr
    assert stderr.splitlines()[-1] == "mmlab: interrupted"
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(results.read(folder)) == 16
