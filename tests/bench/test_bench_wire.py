"""`mmlab bench wire`: rows that say who, what and how long; a peer only where there is one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mmlab.bench.wire import Case, measure
from mmlab.bench.wire.cases import flat_case, shared_case, sweep_case, sweep_cases, text_case
from mmlab.bench.wire.report import table
from mmlab.cli import main
from mmlab.plots import style
from mmlab.plots.wire import sweep


def compared(form: str = "one batch", n: int = 1, nbytes: int = 16) -> list[dict[str, object]]:
    """Rows of a case with a peer: the peer is mmlab again, so that ratios are near 1."""
    case = sweep_case(form, n, nbytes, None)
    for what in ("encode", "decode"):
        case.ops["vllm", what] = case.ops["mmlab", what]
    for sizes in (case.header_nbytes, case.payload_nbytes, case.frames):
        sizes["vllm"] = sizes["mmlab"]
    return [dict(row) for row in measure(case, seconds=0.2)]


def test_the_command_prints_rows_without_a_peer(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "wire", "--seconds", "0.05", "--json"]) == 0
    out, err = capfd.readouterr()
    printed = json.loads(out)
    assert printed["peer"] is None
    assert {row["who"] for row in printed["rows"]} == {"mmlab", "msgspec"}
    assert {row["ratio"] for row in printed["rows"] if row["who"] == "mmlab"} == {None}
    assert all(row["median_us"] > 0 and row["rounds"] >= 5 for row in printed["rows"])
    assert printed["environment"]["torch_threads"] == 1 and printed["environment"]["cpu"]
    assert "9 of 9" in err  # progress, for those who wait


def test_ctrl_c_shows_and_keeps_what_was_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mmlab.cli", "bench", "wire", "--out", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as job:
        assert job.stderr is not None
        assert any("3 of 9" in line for line in job.stderr)
        below = psutil.Process(job.pid).children(recursive=True)
        for process in (psutil.Process(job.pid), *below):  # as a terminal does
            process.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=30)
    assert job.returncode == 130
    assert err.splitlines()[-1] == "mmlab: interrupted" and "Traceback" not in err
    assert "text-only request" in out and "32 images bf16" in out
    kept = json.loads((tmp_path / "wire.json").read_text())
    assert {row["case"] for row in kept["rows"]} >= {"text-only request", "32 images bf16, batched"}
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive


def test_a_peer_that_is_not_installed_is_said_before_anything_is_measured(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "wire", "--peer", "vllm", "--peer-python", sys.executable]) == 2
    out, err = capfd.readouterr()
    assert "make peer" in err and not out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peer", "vlm"], "unknown peer 'vlm': did you mean 'vllm'?"),
        (["--peer", "vllm", "--peer-python", "/nowhere/python"], "no such file"),
        (["--seconds", "0"], "0.05"),
    ],
)
def test_bad_options_are_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "wire", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_headers_say_a_column_once() -> None:
    small, large = flat_case(64, None), flat_case(4096, None)
    assert large.header_nbytes["mmlab"] <= 64 * 1.3 * small.header_nbytes["mmlab"]
    assert shared_case(64, 1 << 20, None).payload_nbytes["mmlab"] == 1 << 20


def test_a_case_times_both_directions_of_both_sides_and_their_ratio() -> None:
    rows = compared()
    assert [(row["who"], row["what"]) for row in rows] == [
        ("mmlab", "encode"),
        ("mmlab", "decode"),
        ("vllm", "encode"),
        ("vllm", "decode"),
    ]
    for row in rows[2:]:
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]  # type: ignore[operator]


def test_the_table_has_peer_columns_only_with_a_peer() -> None:
    head, lines = table(measure(text_case(None), seconds=0.1))
    assert "vllm encode" not in head and "plain msgspec" in lines[1][0]
    assert {len(line) for line in lines} == {len(head)}
    head, lines = table(compared())  # type: ignore[arg-type]
    assert head[-1] == "decode ratio" and len(lines[0]) == len(head)


def test_the_sweep_covers_1_to_64_items_of_16_bytes_to_64_mib() -> None:
    cases: list[Case] = [build() for build in sweep_cases(None, largest=1 << 12)]
    assert {case.name for case in cases} == {"one batch", "separate", "tensors"}
    assert {case.tensors for case in cases} == {1, 4, 16, 64}
    assert {case.tensor_nbytes for case in cases} == {16, 64, 256, 1024, 4096}
    assert max(1 << n for n in range(4, 28, 2) if 1 << n <= 64 << 20) == 64 << 20


def test_the_sweep_is_drawn_with_its_units(tmp_path: Path) -> None:
    rows = [row for form in ("one batch", "separate", "tensors") for row in compared(form)]
    figure = sweep(rows, "vLLM 0.33.0", "a machine")  # type: ignore[arg-type]
    labels = {axes.get_xlabel() for axes in figure.axes} | {a.get_ylabel() for a in figure.axes}
    assert {"size of a tensor (bytes)", "encode time / vLLM 0.33.0's"} <= labels
    assert style.save(figure, tmp_path, "sweep").stat().st_size > 10_000
    alone = sweep(rows, None, "a machine")  # type: ignore[arg-type]
    assert "encode time (us)" in {axes.get_ylabel() for axes in alone.axes}
    assert style.save(alone, tmp_path, "alone").stat().st_size > 10_000


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(["bench", "wire", "--out", str(path)]) == 2
        out, err = capsys.readouterr()
        assert not out and "wanted a folder" in err and "of 9" not in err
