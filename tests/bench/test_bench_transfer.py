"""`mmlab bench transfer`: rows of every way, batches that are equal, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from mmlab.bench.transfer import report
from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.pair import Pair
from mmlab.bench.transfer.timing import Samples, _row
from mmlab.bench.transfer.ways import NAMES, WAYS
from mmlab.bench.transfer.ways.shm import SHM
from mmlab.cli import main
from mmlab.errors import MMLabError
from mmlab.pipeline.directory import PrivateDirectory

if TYPE_CHECKING:
    from tests.conftest import Leftovers

OWN = [name for name in NAMES if not WAYS[name].peer]
SMALL = ["--image-size", "64", "--seconds", "0.05"]
ARENA = ["--ways", "arena", "--images", "1,2,3,4,5,6,7,8"]  # the fewest processes, many cases


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the socket directories of this test are; a short path, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.mark.timeout(240)  # six processes load torch
def test_the_command_measures_every_way(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, sockets: Path, leftovers: Leftovers
) -> None:
    options = ["--images", "2,1", "--dtypes", "bfloat16", "--sustained", "2"]
    options += ["--json", "--out", str(tmp_path)]
    assert main(["bench", "transfer", *SMALL, *options]) == 0
    out, err = capfd.readouterr()
    printed = json.loads(out)
    assert json.loads((tmp_path / "transfer.json").read_text()) == printed
    assert (tmp_path / "transfer.png").stat().st_size > 10_000
    assert printed["peer"] is None and printed["environment"]["torch_threads"] == 1
    assert printed["environment"]["malloc_tuned"] is True
    rows = printed["rows"]
    assert [(row["images"], row["way"]) for row in rows] == [(n, w) for n in (1, 2) for w in OWN]
    for row in rows:
        assert row["payload_nbytes"] == row["images"] * 3 * 64 * 64 * 2
        assert row["rounds"] >= 5 and row["messages"] == 5 * row["rounds"] and not row["error"]
        assert 0 < row["low_s"] <= row["median_s"] <= row["high_s"]
        assert row["over_memcpy_low"] <= row["over_memcpy"] <= row["over_memcpy_high"]
        assert row["over_vllm"] is None and row["cpu_s"] > 0 and row["extra_payloads"] >= 0
        assert row["copies"] == (6 * row["images"] + 1 if row["way"] == "pickle" else copied(row))
        assert (row["shared_payloads"] > 1) == row["way"].startswith("arena")
    streams = printed["sustained"]
    assert [(row["images"], row["way"]) for row in streams] == [(2, way) for way in OWN]
    assert all(row["rounds"] >= 5 and row["messages"] >= 4 * row["rounds"] for row in streams)
    asked = [(row["images"], row["way"], row["over_memcpy"]) for row in printed["requests"]]
    assert asked == [(n, way, None) for n in (0, 1) for way in ("msgpack", "arena")]
    assert [row["payload_nbytes"] for row in printed["requests"]] == [0, 0, 24576, 24576]
    assert {row["over_memcpy"] for row in rows if row["way"] == "memcpy"} == {1.0}
    assert err.startswith("about ") and "4 of 4" in err and not list(sockets.iterdir())
    assert not leftovers("processes", "shm")
    titles = [title for title, _, _ in report.tables([*rows, *streams, *printed["requests"]])]
    assert "bfloat16, 0.0492 MB, two in flight" in titles[2]
    assert titles[3].startswith("request of 100 token ids and nothing else")
    assert titles[4].startswith("request of 100 token ids and 1 image 3 x 64 x 64 bfloat16")
    assert titles[1].startswith("2 images 3 x 64 x 64 bfloat16, 0.0492 MB")
    _, head, lines = next(report.tables(rows))
    assert not any("vllm" in word for word in head) and {len(line) for line in lines} == {len(head)}


def copied(row: dict[str, object]) -> int:
    return WAYS[str(row["way"])].copies


def test_ctrl_c_shows_and_keeps_what_was_measured(
    tmp_path: Path, sockets: Path, leftovers: Leftovers
) -> None:
    command = ["mmlab.cli", "bench", "transfer", *SMALL, *ARENA, "--out", str(tmp_path)]
    job, below = begun(command, 3)  # the rows of 1 have been read for long
    with job:
        for process in (psutil.Process(job.pid), *below):  # as a terminal does
            process.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=30)
    assert job.returncode == 130
    assert err.splitlines()[-1] == "mmlab: interrupted" and "Traceback" not in err
    assert "1 image 3 x 64 x 64 float32" in out and "arena" in out
    kept = json.loads((tmp_path / "transfer.json").read_text())["rows"]
    assert [row["way"] for row in kept if row["images"] == 1] == ["memcpy", "arena"]
    assert len(below) == 3  # the controller and a pair
    assert not psutil.wait_procs(below, timeout=10)[1]
    assert not list(sockets.iterdir()) and not leftovers("shm")


def test_a_process_that_dies_is_an_error_and_takes_its_pair_along(
    sockets: Path, leftovers: Leftovers
) -> None:
    with Pair([WAYS["memcpy"], WAYS["arena"]], 1) as pair:
        sender, receiver = (psutil.Process(pid) for pid in pair.wait().pids)
        pair.prepare(Case(2, "uint8", 64, 3))
        assert len(pair.turn("arena", 4).seconds) == 4
        receiver.kill()
        with pytest.raises(MMLabError, match="by arena: the receiver"):
            pair.turn("arena", 4)
    assert not psutil.wait_procs([sender, receiver], timeout=10)[1]
    assert not list(sockets.iterdir()) and not leftovers("shm", "fds", "processes")


def test_a_way_that_fails_is_left_out_until_the_next_case_and_the_others_go_on(
    sockets: Path, leftovers: Leftovers
) -> None:
    case = Case(2, "uint8", 64, 3)
    with Pair([WAYS["memcpy"], WAYS["msgpack"], WAYS["segments"]], 1) as pair:
        old = [psutil.Process(pid) for pid in pair.wait().pids]
        pair.prepare(case)

        def dies() -> object:
            old[1].kill()
            return pair.turn("segments", 1)

        assert pair.attempt("segments", dies) is None
        assert "the receiver" in pair.failed["segments"] and pair.ways == ["memcpy", "msgpack"]
        assert not psutil.wait_procs(old, timeout=10)[1]
        assert pair.turn("msgpack", 2).receiver.cpu_s > 0
        pair.prepare(case)
        assert pair.ways == ["memcpy", "msgpack", "segments"] and not pair.failed
        assert len(pair.turn("segments", 2).seconds) == 2
    assert not list(sockets.iterdir()) and not leftovers("shm", "fds", "processes")


def test_what_was_measured_before_a_failure_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(*_: object, **__: object) -> Iterator[dict[str, object]]:
        samples = {way: Samples([0.5, 0.25], 2, 1.0) for way in ("memcpy", "vllm")}
        for way in samples:
            yield dict(_row(Case(2, "uint8", 64, 3), way, samples, None))
        yield dict(_row(Case(2, "uint8", 64, 3), "arena", {}, None, "no room"))
        raise MMLabError("the measurement ended")

    monkeypatch.setattr("mmlab.bench.transfer.launch.run", run)
    assert main(["bench", "transfer", "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "/ vllm" in out and "missing" in out and "mmlab: the measurement ended" in err
    assert "arena, 2 x uint8: no room" in out
    kept = json.loads((tmp_path / "transfer.json").read_text())["rows"]
    assert [(row["way"], row["median_s"]) for row in kept[2:]] == [("arena", None)]
    assert len(kept) == 3


def test_a_controller_that_is_killed_takes_its_pairs_along(
    sockets: Path, leftovers: Leftovers
) -> None:
    numbers = ["--images", *map(str, range(1, 9)), "--dtypes", "float32"]
    job, below = begun(["mmlab.bench.transfer", *SMALL, "--ways", "arena", *numbers], 1)
    with job:
        job.kill()
        job.communicate(timeout=10)
    assert len(below) == 2 and not psutil.wait_procs(below, timeout=10)[1]
    assert not leftovers("shm", "processes")


def test_segments_of_a_controller_that_is_killed_are_removed_by_the_next_start(
    sockets: Path, leftovers: Leftovers
) -> None:
    numbers = ["--images", *map(str, range(1, 9)), "--dtypes", "float32", "--image-size", "512"]
    arguments = ["--seconds", "0.05", "--ways", "segments", *numbers]
    job, below = begun(["mmlab.bench.transfer", *arguments], 2)
    with job:
        job.kill()
        job.communicate(timeout=10)
    assert not psutil.wait_procs(below, timeout=10)[1]
    PrivateDirectory([SHM]).close()
    assert not leftovers("shm", "processes")


def begun(arguments: list[str], case: int) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A job that has come to that case, and the processes below it."""
    pipe = subprocess.PIPE
    job = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=pipe, stderr=pipe, text=True, env=os.environ
    )
    assert job.stderr is not None
    assert any(f" {case} of " in line for line in job.stderr)
    return job, psutil.Process(job.pid).children(recursive=True)


def test_a_peer_that_is_not_installed_is_said_before_anything_is_measured(
    capfd: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--peer", "vllm", "--peer-python", sys.executable, "--images", "1"]
    assert main(["bench", "transfer", *arguments]) == 2
    out, err = capfd.readouterr()
    assert "vllm is not installed: `make peer`" in err and not out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peer", "vlm"], "unknown peer 'vlm': did you mean 'vllm'?"),
        (["--peer", "vllm", "--peer-python", "/nowhere/python"], "no such file"),
        (["--ways", "arean"], "unknown way 'arean': did you mean 'arena'?"),
        (["--ways", "arena,vllm"], "it needs --peer vllm"),
        (["--dtypes", "float16"], "unknown dtype 'float16'"),
        (["--images", "1,,2"], "commas"),
        (["--images", "0"], "from 1 to 4096"),
        (["--images", "1,8", "--sustained", "4"], "--sustained 4: it is not among the --images"),
        (["--sustained", "x"], "--sustained 'x': wanted numbers"),
        (["--images", "many"], "from 1 to 4096"),
        (["--seconds", "0"], "0.05"),
        (["--image-size", "0"], "greater than or equal to 1"),
    ],
)
def test_bad_options_are_named_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "transfer", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and not out


def test_what_does_not_fit_into_memory_is_refused_with_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "transfer", "--images", "4096,1", "--image-size", "8192"]) == 2
    out, err = capsys.readouterr()
    assert "4096 images float32 of 3072.00 GiB by 10 ways may take" in err and not out
    assert "GiB, available are" in err and "choose fewer --images" in err


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["bench", "transfer", "--out", str(tmp_path / "file")]) == 2
    out, err = capsys.readouterr()
    assert not out and "wanted a folder" in err
