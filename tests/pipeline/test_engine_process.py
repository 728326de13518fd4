"""Starting, watching and ending the engine's process, with engines that misbehave."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pipeline_parts import engine_config

from mmlab import EngineError
from mmlab.pipeline import Pipeline, directory, process
from mmlab.pipeline.process import TAIL_NBYTES, EngineProcess

# What an engine says to be ready, without mmlab: these engines start in 50 ms.
READY = """
import msgspec, os, signal, socket, sys, time
control = socket.socket(fileno=int(sys.argv[1]))
control.recv(1 << 17)
control.send(msgspec.msgpack.encode({"type": "ready", "pid": os.getpid(), "device": "cpu",
    "pinned": False, "torch_threads": 1, "malloc_tuned": True, "requests_endpoint": "",
    "replies_endpoint": "", "start_s": {}}))
"""
Start = Callable[[str], EngineProcess]


@pytest.fixture
def deaths() -> list[EngineError]:
    return []


@pytest.fixture
def start(
    monkeypatch: pytest.MonkeyPatch, deaths: list[EngineError], leftovers: Callable[..., list[str]]
) -> Iterator[Start]:
    """Starts `code` as an engine; in the end all are stopped and nothing of them is left."""
    started: list[EngineProcess] = []

    def start(code: str) -> EngineProcess:
        monkeypatch.setattr(process, "ENGINE_ARGS", ("-c", code))
        started.append(EngineProcess(engine_config(), deaths.append))
        return started[-1]

    yield start
    for engine in started:
        engine.stop()
        engine.stop()
        assert engine.exit_code is not None
    assert not leftovers("fds", "threads", "processes")


def test_an_engine_that_ends_during_start_is_reported_with_its_exit_code(start: Start) -> None:
    begun = time.monotonic()
    engine = start("import sys; print('no such weights', file=sys.stderr); sys.exit(3)")
    with pytest.raises(EngineError, match=r"(?s)exit code 3 during start.*no such weights") as got:
        engine.wait_ready(60)
    assert got.value.exit_code == 3
    assert time.monotonic() - begun < 2


def test_an_engine_killed_during_start_is_named_by_its_signal(start: Start) -> None:
    engine = start("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(EngineError, match=r"killed by SIGSEGV during start") as got:
        engine.wait_ready(60)
    assert got.value.exit_code == -signal.SIGSEGV


def test_an_engine_that_sleeps_is_ended_after_the_timeout(start: Start) -> None:
    engine = start("import time; time.sleep(600)")
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"not ready within 0\.3 s and has been ended") as got:
        engine.wait_ready(0.3)
    assert got.value.exit_code == -signal.SIGKILL
    assert time.monotonic() - begun < 2


def test_a_start_error_comes_with_its_traceback(start: Start) -> None:
    code = READY.split("control.send", 1)[0] + (
        'control.send(msgspec.msgpack.encode({"type": "failed", "error": "OSError",'
        ' "message": "no config.json", "trace": "Traceback ... line 7"}))\nsys.exit(1)'
    )
    with pytest.raises(EngineError, match=r"(?s)OSError: no config.json.*line 7") as got:
        start(code).wait_ready(60)
    assert got.value.exit_code == 1


def test_only_the_end_of_its_output_is_kept(start: Start) -> None:
    engine = start("import sys; sys.stderr.write('x' * 200_000 + 'the end'); sys.exit(4)")
    with pytest.raises(EngineError, match="the end"):
        engine.wait_ready(60)
    assert len(engine.output()) == TAIL_NBYTES


def test_what_it_prints_does_not_reach_our_stdout(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = start(READY + "print('for stdout', flush=True); control.recv(100)")
    engine.wait_ready(60)
    engine.stop()
    assert engine.output() == "for stdout\n"
    assert capfd.readouterr() == ("", "")


def test_death_is_told_once_with_the_exit_code(start: Start, deaths: list[EngineError]) -> None:
    engine = start(READY + "time.sleep(600)")
    engine.wait_ready(60)
    begun = time.monotonic()
    engine._signal(signal.SIGKILL)
    while not deaths and time.monotonic() - begun < 5:
        time.sleep(0.005)
    assert time.monotonic() - begun < 2
    assert [death.exit_code for death in deaths] == [-9]
    assert "killed by SIGKILL (exit code -9)" in str(deaths[0])


def test_stopping_asks_first(start: Start) -> None:
    engine = start(READY + "sys.exit(5 if control.recv(100) else 6)")
    engine.wait_ready(60)
    engine.stop()
    assert engine.exit_code == 5


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ("time.sleep(600)", -signal.SIGTERM),
        ("signal.signal(15, signal.SIG_IGN); time.sleep(600)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSTOP)", -signal.SIGKILL),
    ],
    ids=["deaf", "ignores SIGTERM", "stopped"],
)
def test_stopping_takes_what_it_takes_in_bounded_time(
    start: Start, monkeypatch: pytest.MonkeyPatch, rest: str, code: int
) -> None:
    monkeypatch.setattr(process, "STOP_S", 0.3)
    monkeypatch.setattr(process, "TERM_S", 0.3)
    engine = start(READY + "control.close();" + rest)
    engine.wait_ready(60)
    time.sleep(0.1)
    begun = time.monotonic()
    engine.stop()
    assert engine.exit_code == code
    assert time.monotonic() - begun < 2


def test_the_whole_of_stopping_stays_under_five_seconds() -> None:
    assert process.STOP_S + process.TERM_S < 3


def test_no_interpreter_is_an_engine_error(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    monkeypatch.setattr(process.sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match="cannot start an engine with /nowhere/python"):
        EngineProcess(engine_config(), lambda error: None)
    assert not leftovers("fds", "threads")


@pytest.mark.parametrize(
    ("code", "timeout", "message"),
    [
        ("import sys; sys.exit(3)", 60, "exit code 3 during start"),
        ("import time; time.sleep(600)", 0.3, "not ready within"),
        (
            READY.replace('_endpoint": ""', '_endpoint": "ipc:///nowhere/req"') + "time.sleep(600)",
            1.0,
            r"was ready, but did not answer within 1\.0 s",
        ),
    ],
    ids=["ends", "sleeps", "is deaf"],
)
def test_a_pipeline_that_cannot_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    leftovers: Callable[..., list[str]],
    tmp_path: Path,
    code: str,
    timeout: float,
    message: str,
) -> None:
    monkeypatch.setattr(process, "ENGINE_ARGS", ("-c", code))
    monkeypatch.setattr(process, "STOP_S", 0.1)
    monkeypatch.setattr(directory, "_bases", lambda: [tmp_path])
    begun = time.monotonic()
    with pytest.raises(EngineError, match=message):
        Pipeline(model="echo", start_timeout=timeout)
    assert time.monotonic() - begun < 3
    assert not leftovers("fds", "threads", "processes")
    assert not list(tmp_path.iterdir())


def test_stop_may_be_called_from_the_watching_thread(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    """A future's callback that closes the pipeline runs there."""
    monkeypatch.setattr(process, "ENGINE_ARGS", ("-c", "import sys; sys.exit(3)"))
    stopped = threading.Event()
    made: list[EngineProcess] = []

    def on_exit(error: EngineError) -> None:
        while not made:
            time.sleep(0.01)
        made[0].stop()
        stopped.set()

    made.append(EngineProcess(engine_config(), on_exit))
    assert stopped.wait(10)
    assert not leftovers("fds", "threads", "processes")
