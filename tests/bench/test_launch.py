"""Trials in fresh processes: their rows, and their ends, good and bad."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from processes import engines_below

from mmlab.bench import events
from mmlab.bench.events import Progress, TrialError
from mmlab.bench.launch import launch
from mmlab.bench.spec import RunSettings, TrialSpec, decode_spec
from mmlab.errors import EngineError, UsageError
from mmlab.pipeline.messages import STAGES

pytestmark = pytest.mark.timeout(120)  # each trial imports torch twice, in fresh processes

ECHO = TrialSpec(strategy="msgpack", workload="single", model="echo", image_size=64)


def test_a_spec_survives_the_way_to_another_process() -> None:
    settings = RunSettings(strategies=("pickle", "msgpack"), rounds=3, scale=0.5, images="a b")
    spec = settings.trial("msgpack", "memory", 2)
    assert (spec.first_repeat, spec.rounds, spec.block) == (6, 3, 2)
    assert decode_spec(msgspec.json.encode(spec)) == spec
    shared = set(RunSettings.__struct_fields__) & set(TrialSpec.__struct_fields__)
    assert {name: getattr(spec, name) for name in shared} == {
        name: getattr(settings, name) for name in shared
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"strategy": "msgpack", "batch_sizee": 8}', "batch_sizee.*known settings: strategy"),
        (b'{"strategy": "msgpack", "scale": "big"}', "scale"),
        (b"nonsense", "malformed"),
        (b"", "truncated"),
    ],
)
def test_a_misspelt_setting_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        decode_spec(text)


@pytest.mark.parametrize(
    "event",
    [
        Progress("mix", 1, 2),
        events.Result("results", {"a": None, "b": 2**64 - 1, "c": "x", "d": 0.5, "e": True}),
        events.Control((1, 2), ([1], [2])),
        events.Failure("EngineError", "gone", 3),
        events.Done(),
    ],
)
def test_events_are_one_line_each(event: events.Event) -> None:
    line = events.encode(event)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert events.decode(line) == event


def test_an_error_keeps_its_class_and_its_exit_code() -> None:
    told = events.failure(EngineError("the engine died\nwith a long story", 3))
    again = told.exception("strategy msgpack")
    assert isinstance(again, EngineError) and again.exit_code == 3
    assert str(again) == "strategy msgpack: the engine died"
    assert isinstance(events.failure(ZeroDivisionError("x")).exception("s"), TrialError)
    assert "test_launch.py" in raised_here().message


def raised_here() -> events.Failure:
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError as error:
        return events.failure(error)


def test_a_wrong_spec_is_told_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mmlab.bench.trial"],
        input=b'{"strategy": "msgpak"}',
        capture_output=True,
    )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"unknown strategy 'msgpak': did you mean 'msgpack'?" in done.stderr
    assert isinstance(events.decode(done.stdout), events.Failure)


def test_an_engine_that_is_killed_is_an_error_with_its_exit_code_and_no_peak_of_zero() -> None:
    def kill(progress: Progress) -> None:
        if progress.text.startswith("memory"):
            (engine,) = engines_below(os.getpid())
            engine.kill()

    spec = msgspec.structs.replace(ECHO, kind="memory", workload="doc-mix", scale=0.25)
    outcome = launch(spec, on_progress=kill)
    assert isinstance(outcome.error, EngineError)
    assert outcome.error.exit_code == -signal.SIGKILL
    assert "strategy msgpack" in str(outcome.error)
    rows = {row["process"]: row for row in outcome.rows["memory"]}
    assert rows["engine"]["peak_pss"] is None and rows["engine"]["multiple"] is None
    assert rows["both"]["peak_pss"] is None
    assert rows["frontend"]["peak_pss"] > rows["frontend"]["base_pss"] - (64 << 20)  # type: ignore[operator]
    last = {row["process"]: row["pss"] for row in outcome.rows["samples"] if row["mark"] == "last"}
    assert last["engine"] is None and last["frontend"] is not None


def test_the_real_model_answers_photographs_differently() -> None:
    """Gemma 3's own processor and architecture, one image a prompt: sequential, then at once."""
    spec = TrialSpec(strategy="msgpack", workload="multi", scale=0.25)
    outcome = launch(spec)
    assert outcome.error is None
    (control,) = outcome.controls
    assert control.answers[0] != control.answers[1]
    assert control.checksums[0] != control.checksums[1]
    rows = outcome.rows["results"]
    assert [row["phase"] for row in rows] == ["sequential"] * 4 + ["mix"] * 4
    answers = {(row["request"], row["checksum"], row["token_ids"]) for row in rows}
    assert len(answers) == 4  # in both phases the same
    assert len({token_ids for _, _, token_ids in answers}) > 1
    for row in rows:
        assert row["payload_nbytes"] == 3 * 896 * 896 * 4
        parts = [row[f"{stage}_s"] for stage in STAGES]
        assert all(isinstance(part, float) for part in parts)
        assert sum(parts) < row["latency_s"]  # type: ignore[arg-type, operator]
    started = outcome.rows["results"][0]
    assert started["processor_s"] > 0.001 and started["encoder_s"] > 0.001  # type: ignore[operator]


def test_a_trial_that_takes_too_long_is_ended() -> None:
    outcome = launch(ECHO, timeout_s=0.5)
    assert isinstance(outcome.error, TrialError)
    assert "did not end within" in str(outcome.error)


def test_a_trial_outlives_nobody(tmp_path: Path) -> None:
    """SIGKILL of the runner: the lifeline ends the frontend, and that ends the engine."""
    spec = tmp_path / "spec.json"
    spec.write_bytes(msgspec.json.encode(msgspec.structs.replace(ECHO, rounds=10_000)))
    code = (
        "import sys, os\n"
        "from mmlab.bench.launch import launch\n"
        "from mmlab.bench.spec import decode_spec\n"
        "say = lambda p: print(p.done, flush=True)\n"
        f"launch(decode_spec(open({str(spec)!r}, 'rb').read()), on_progress=say)\n"
    )
    runner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert runner.stdout is not None
    try:
        for line in runner.stdout:
            if int(line) > 3:
                break
        family = psutil.Process(runner.pid).children(recursive=True)
        assert len(family) >= 2  # frontend and engine
    finally:
        runner.kill()
        runner.communicate()
    _, alive = psutil.wait_procs(family, timeout=10)
    for process in alive:
        os.kill(process.pid, signal.SIGKILL)
    assert not alive
