"""SIGKILL at every stage: the survivor notices, nothing is left, a new pipeline starts (R21)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmlab.arena import Arena
from mmlab.bench.kills import matrix, traces, trial
from mmlab.bench.kills.plan import DETECT_S, STAGES, VICTIMS, WAYS, Trial, draw, trials
from mmlab.bench.kills.processes import adopting_orphans
from mmlab.bench.kills.trial import Row
from mmlab.cli import main


def killed(stage: str, victim: str, seed: int, model: str = "echo") -> Row:
    """A new pipeline is started for one victim of each stage only, another one at each: time."""
    started = list(VICTIMS)[list(STAGES).index(stage) % len(VICTIMS)]
    return trial.run(draw(stage, victim, seed, model, None), restart=victim == started)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("stage", STAGES)
def test_whoever_is_killed_the_other_notices_and_nothing_is_left(
    stage: str, seed: int, leftovers: Callable[..., list[str]]
) -> None:
    with adopting_orphans(), ThreadPoolExecutor(len(VICTIMS)) as pool:
        rows = dict(zip(VICTIMS, pool.map(lambda v: killed(stage, v, seed), VICTIMS), strict=True))
    for row in rows.values():
        assert row["ok"], json.dumps(row)
    assert rows["frontend"]["exit_codes"] == {"engine": 71}
    assert rows["engine"]["exit_codes"] == {"frontend": 0}
    assert sum(row["restart_s"] is not None for row in rows.values()) == 1
    assert not leftovers("fds", "processes")


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_real_prefill_of_ten_seconds_does_not_keep_an_engine_without_its_frontend(
    seed: int,
) -> None:
    pytest.importorskip("transformers")
    with adopting_orphans():
        row = killed("in-model", "frontend", seed, "gemma3-tiny")
    assert row["ok"], json.dumps(row)
    assert row["exit_codes"] == {"engine": 71}


def test_a_trial_is_drawn_again_by_the_options_that_it_names() -> None:
    plan = trials(list(STAGES), list(VICTIMS), repeats=9, seed=5, model="echo", strategy=None)
    assert len(plan) == 9 * len(STAGES) * len(VICTIMS)
    for one in plan:
        named = dict(zip(*[iter(one.again.split())] * 2, strict=True))
        assert named["--repeats"] == "1"
        again = trials(
            [named["--stages"]],
            [named["--victims"]],
            repeats=1,
            seed=int(named["--seed"]),
            model=named["--model"],
            strategy=named["--strategy"],
        )
        assert again == [one]
    assert {one.strategy for one in plan} == set(WAYS)
    assert {one.engine_first for one in plan} == {True, False}
    assert {one.call for one in plan if one.stage == "mid-send"} == set(range(1, 9))


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that looks like one of a trial's, and holds an arena's descriptor."""
    with Arena(4096) as arena:
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            pass_fds=[arena.fileno()],
        )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process, tmp_path
        process.kill()


def test_what_is_left_is_seen(
    marked: tuple[subprocess.Popen[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, mark = marked
    monkeypatch.setattr(traces, "SETTLE_S", 0.1)
    name = f"kills-test-{os.getpid()}"
    before = traces.shm_names()
    arena = next(
        path.stat().st_ino
        for path in Path(f"/proc/{process.pid}/fd").iterdir()
        if str(path.readlink()).startswith(traces.ARENA)
    )
    (traces.SHM / name).touch()
    try:
        found = traces.leaks(mark, before, arena, set())
    finally:
        (traces.SHM / name).unlink()
    wanted = [f"process {process.pid}", f"/dev/shm/{name}", f"arena {arena} in process"]
    assert [text for text in wanted if not any(line.startswith(text) for line in found)] == []
    assert len(found) == 3
    process.kill()
    process.wait()
    assert traces.leaks(mark, before, arena, set()) == []


def test_what_others_have_in_shared_memory_is_no_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the socket directory of another program that has no room in its temporary one."""
    monkeypatch.setattr(traces, "SETTLE_S", 0.1)
    before = traces.shm_names()
    with tempfile.TemporaryDirectory(prefix="kills-test-", dir=traces.SHM) as folder:
        with (Path(folder) / "owner").open("w"):
            assert traces.leaks(tmp_path, before, None, set()) == []
        assert traces.leaks(tmp_path, before, None, set()) == [folder]


def result(one: Trial, **changes: object) -> Row:
    """A row as `trial.run` makes it."""
    limits = [DETECT_S[role] for role in VICTIMS[one.victim].watched]
    row: Row = {
        "stage": one.stage,
        "victim": one.victim,
        "model": one.model,
        "strategy": one.strategy,
        "seed": one.seed,
        "ok": True,
        "detect_s": 0.25 if limits else None,
        "detect_limit_s": limits[0] if limits else None,
        "restart_s": 1.5,
        "close_s": None,
        "exit_codes": {"engine": 71},
        "directory_left_to_next_start": one.victim == "both",
        "leaks": [],
        "problems": [],
        "again": one.again,
    }
    return row | changes


SMALL = ["bench", "kills", "--stages", "queued,mid-send", "--victims", "both,engine"]


def test_a_limit_that_is_broken_ends_with_exit_code_1_and_names_the_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(one: Trial) -> Row:
        if (one.stage, one.victim, one.seed) == ("queued", "engine", 8):
            return result(one, ok=False, problems=["frontend: 2.50 s after the kill"], detect_s=2.5)
        return result(one)

    monkeypatch.setattr(trial, "run", run)
    arguments = [*SMALL, "--repeats", "2", "--seed", "7", "--out", str(tmp_path)]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()[2:6]]
    assert [line[:4] for line in lines] == [
        ["mid-send", "engine", "2", "0"],
        ["mid-send", "both", "2", "0"],
        ["queued", "engine", "2", "1"],
        ["queued", "both", "2", "0"],
    ]
    assert "1.375 s  2.500 s    2 s" in out and "4 of\n8 trials left one" in out
    again = "again: mmlab bench kills --stages queued --victims engine --model echo --strategy"
    assert again in err and "--seed 8 --repeats 1" in err and "2.50 s after the kill" in err
    written = json.loads((tmp_path / "kills.json").read_text())
    assert len(written["rows"]) == 8 and written["environment"]["pyzmq"]


def test_ctrl_c_shows_and_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    count = iter(range(9))

    def run(one: Trial) -> Row:
        if next(count) == 2:
            raise KeyboardInterrupt
        return result(one)

    monkeypatch.setattr(trial, "run", run)
    assert main([*SMALL, "--out", str(tmp_path)]) == 130
    out, err = capsys.readouterr()
    assert "mid-send  engine" in out and err.splitlines()[-1] == "mmlab: interrupted"
    assert len(json.loads((tmp_path / "kills.json").read_text())["rows"]) == 2


def test_a_leak_is_a_failure_too() -> None:
    one = draw("queued", "engine", 0, "echo", "arena")
    rows = [result(one), result(one, ok=False, leaks=["process 7"])]
    assert len(matrix.failures(rows)) == 1 and "process 7" in matrix.failures(rows)[0]
    assert matrix.table(rows)[1][0][2:4] == ["2", "1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stages", "queud"], "unknown stage 'queud': did you mean 'queued'?"),
        (["--victims", "engine,,both"], "commas"),
        (["--victims", "model"], "unknown victim 'model'"),
        (["--strategy", "pickle"], "unknown strategy 'pickle'"),
        (["--model", "gemma"], "unknown model 'gemma'"),
        (["--repeats", "0"], "greater than or equal to 1"),
    ],
)
def test_bad_options_are_named_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "kills", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and not out
