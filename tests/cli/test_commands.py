"""The small commands, and how failures become exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mmlab
from mmlab import notebook
from mmlab.cli import checkup, main, tables
from mmlab.errors import EngineError
from mmlab.notebook import NotebookError


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == mmlab.__version__
    for arguments in ([], ["--help"], ["run", "--help"], ["-h"]):
        assert main(arguments) == 0
        assert "Usage: mmlab" in capsys.readouterr().out


def test_help_teaches_what_the_main_job_does(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for words in ("image processor", "same bytes", "--images ~/Pictures", "fresh"):
        assert words in text


def test_strategies_are_listed_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies"]) == 0
    table, _, foot = capsys.readouterr().out.partition("\n\n")
    names = [line.split()[0] for line in table.splitlines()[2:]]
    assert "inproc, ipc, tcp, arena, torch-shm" in foot
    assert main(["strategies", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in entries] == names
    assert names[0] == "pickle" and "msgpack" in names
    assert all(entry["copies"] and entry["stands_for"] for entry in entries)


def test_the_doctor_finds_this_machine_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "cores" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {check["status"] for check in found["checks"]} <= {"ok", "limited"}
    assert found["environment"]["cores"] >= 1


def test_the_doctor_says_what_is_missing_and_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(checkup._NEEDED, "no_such_package", "models")
    monkeypatch.setattr(checkup, "available_nbytes", lambda: 1 << 20)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "missing: no_such_package; pip install 'mmlab[models]'" in out
    assert "1 MiB available" in out


def failing_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(notebook, "execute", fail)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            NotebookError("cell 3: EngineError: gone, exit code 3", Path("x"), "EngineError"),
            1,
            "cell 3: EngineError: gone, exit code 3",
        ),
        (EngineError("gone\nfor good", 3), 1, "mmlab: gone for good"),
        (KeyboardInterrupt(), 130, "mmlab: interrupted"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    failing_with(error, monkeypatch)
    monkeypatch.chdir(tmp_path)
    for busy in (None, "the machine was busy"):
        monkeypatch.setattr("mmlab.cli.job.busy_now", lambda busy=busy: busy)
        assert main(["run"]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        announced, *said, last = captured.err.splitlines()
        assert "results go to" in announced and words in last
        assert said == ([busy] if busy else [])


def test_an_error_that_nobody_expected_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing_with(ZeroDivisionError("a bug"), monkeypatch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError):
        main(["run"])


def test_a_table_has_columns_of_equal_width() -> None:
    text = tables.table(("a", "bb"), [("x", "1"), ("longer", "22222")])
    assert text.splitlines() == [
        "a          bb",
        "------  -----",
        "x           1",
        "longer  22222",
    ]


def test_a_missing_number_is_said_to_be_missing() -> None:
    entry: dict[str, object] = {
        "strategy": "msgpack",
        "case": "4 images",
        "p50_s": 0.5,
        "p50_low_s": None,
        "p50_high_s": None,
        "p95_s": 0.6,
        "delivery_s": None,
        "n": 1,
        "payload_nbytes": 38_535_168,
        "images_per_s": 8.0,
        "images_per_s_mix": None,
        "peak_frontend": 1.26,
        "peak_engine": None,
        "peak_both": None,
    }
    text = tables.overview_table([entry])
    assert "  500 ms  " in text and "1.3x" in text and "missing" in text
    text = tables.overview_table([{**entry, "p50_low_s": 0.4567, "p50_high_s": 1.2}])
    assert "500 ms (457-1200)" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "38.5 MB" in text
    assert tables.overview_table([]) == "no timed trial"


def test_memory_that_was_not_measured_has_no_columns() -> None:
    numbers = dict.fromkeys(("p50_s", "p95_s", "delivery_s", "images_per_s"), 0.5)
    entry: dict[str, object] = {"strategy": "msgpack", "case": "4 images", **numbers, "n": 1}
    entry |= {"payload_nbytes": 1 << 20, "images_per_s_mix": 2.0}
    entry |= dict.fromkeys(("p50_low_s", "p50_high_s"))
    entry |= dict.fromkeys(("peak_frontend", "peak_engine", "peak_both"))
    text = tables.overview_table([entry])
    assert "frontend" not in text and "missing" not in text and "at once" in text
