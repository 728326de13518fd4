"""Whoever dies, the other one notices, and nothing is left behind (R21, R28, S05, S07)."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pipeline_parts import images, script, socket_directory, wait_for

from mmlab import EngineError
from mmlab.pipeline import Pipeline
from mmlab.pipeline.directory import PrivateDirectory

REPORT = """
import json, os, signal, sys
from pathlib import Path
import mmlab
from mmlab.pipeline import Pipeline

def report(pipeline):
    endpoint = pipeline.info.requests_endpoint.removeprefix("ipc://")
    print(json.dumps([pipeline.engine_pid, endpoint]), flush=True)
"""


def reported_pid(frontend: subprocess.Popen[str]) -> tuple[int, Path]:
    """The engine, and the directory of its sockets, of a frontend that said so."""
    import json

    assert frontend.stdout is not None and frontend.stderr is not None
    line = frontend.stdout.readline()
    assert line, frontend.stderr.read()
    pid, endpoint = json.loads(line)
    return pid, Path(endpoint).parent


def reported(frontend: subprocess.Popen[str]) -> tuple[psutil.Process, Path]:
    pid, directory = reported_pid(frontend)
    return psutil.Process(pid), directory


def rest_of(frontend: subprocess.Popen[str]) -> tuple[str, str]:
    """What else it writes to stdout and stderr until it ends."""
    assert frontend.stdout is not None and frontend.stderr is not None
    output, errors = frontend.stdout.read(), frontend.stderr.read()
    frontend.wait()
    return output, errors


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@contextmanager
def frontend(code: str, *arguments: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """A frontend process; ended with the test, and the engine with it."""
    with script(code, *arguments, **settings) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def kill_later() -> Iterator[Callable[[psutil.Process], None]]:
    """Ends a process with the test: its parent is gone, so nobody else would."""
    processes: list[psutil.Process] = []
    yield processes.append
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # psutil checks that the pid is still the same process


def test_a_killed_engine_fails_every_future_within_two_seconds() -> None:
    with Pipeline(model="echo", max_inflight_nbytes=1 << 20) as pipeline:
        directory = socket_directory(pipeline)
        os.kill(pipeline.engine_pid, signal.SIGSTOP)
        pending = [pipeline.submit_items(images(1)) for _ in range(3)]
        large = images(1, shape=(3, 290, 290))
        pending.append(pipeline.submit_items(large))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(pipeline.submit_items, large)
            assert wait_for(lambda: pipeline.stats()["waiting"] == 1)
            begun = time.monotonic()
            os.kill(pipeline.engine_pid, signal.SIGKILL)
            for future in [*pending, waiting]:
                error = future.exception(2)
                assert isinstance(error, EngineError)
                assert error.exit_code == -9 and "SIGKILL" in str(error)
        assert time.monotonic() - begun < 2
        assert pipeline.stats()["nbytes_inflight"] == 0
        with pytest.raises(EngineError, match="SIGKILL") as later:
            pipeline.submit_items(images(1))
        assert later.value.exit_code == -9
        begun = time.monotonic()
    assert time.monotonic() - begun < 1 and not directory.exists()


ORPHAN = (
    REPORT
    + """
from mmlab.pipeline import process
# An engine whose main thread computes for ever and never gives the interpreter away for long.
process.ENGINE_ARGS = ("-P", "-c", '''
import sys
from mmlab.pipeline import child, worker
def serve(*arguments):
    print("computing", flush=True)
    while True:
        sum(range(1000))
worker.Worker.serve = serve
sys.exit(child.main(sys.argv[1:]))
''')
del sys.modules["__main__"]  # as good as a notebook's, which no child can import
pipeline = Pipeline(model="echo")
pipeline.submit_items(None)
while "computing" not in pipeline.engine_output:
    pass
if os.fork() == 0:  # a copy of the frontend, which holds copies of all its descriptors
    try:
        pipeline.submit_items(None)
    except mmlab.TransportError as error:
        assert "fork" in str(error)
        pipeline.close()  # not its own to close
        print(os.getpid(), flush=True)
        signal.pause()
    os._exit(1)
os.read(os.open(sys.argv[1], os.O_RDONLY), 1)
report(pipeline)
signal.pause()
"""
)


def test_a_killed_frontend_takes_its_engine_along_whatever_that_computes(
    tmp_path: Path, kill_later: Callable[[psutil.Process], None]
) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    before = set(Path("/dev/shm").iterdir())
    with frontend(ORPHAN, str(fifo)) as killed:
        assert killed.stdout is not None and killed.stderr is not None
        line = killed.stdout.readline()
        assert line, killed.stderr.read()
        fork = psutil.Process(int(line))
        kill_later(fork)
        fifo.write_text("x")
        engine, directory = reported(killed)
        kill_later(engine)
        assert engine.is_running() and directory.exists()
        killed.kill()
        killed.wait()
        begun = time.monotonic()
        assert wait_for(lambda: is_gone(engine), 10)
        assert time.monotonic() - begun < 5
        assert fork.is_running()  # though this copy of the frontend still holds its descriptors
    assert wait_for(lambda: not directory.exists())
    assert not set(Path("/dev/shm").iterdir()) - before


def test_what_both_left_when_both_were_killed_is_removed_by_the_next_start(
    kill_later: Callable[[psutil.Process], None],
) -> None:
    with frontend(REPORT + "report(Pipeline(model='echo')); signal.pause()") as killed:
        engine, directory = reported(killed)
        kill_later(engine)
        engine.suspend()
        killed.kill()
        killed.wait()
        engine.kill()
        assert wait_for(lambda: is_gone(engine))
    assert directory.exists()
    PrivateDirectory().close()
    assert not directory.exists()


PLAIN = (
    REPORT
    + """
pipeline = Pipeline(model="echo")
assert "torch_of_the_working_directory" not in sys.modules
items = mmlab.KwargsItems.from_processor({"x": [1]}, {"x": mmlab.batched("image")})
assert pipeline.submit_items(items).result(10).checksum
report(pipeline)
print("end of the script")
"""
)


def test_a_script_without_a_main_guard_runs_once_and_may_forget_to_close(tmp_path: Path) -> None:
    """In a working directory that shadows torch, with a TMPDIR too long for a socket."""
    long = tmp_path / ("t" * 120)
    long.mkdir()
    (tmp_path / "torch.py").write_text("raise ImportError('torch of the working directory')")
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "plain.py").write_text(PLAIN)
    begun = time.monotonic()
    with frontend(str(folder / "plain.py"), how="file", cwd=str(tmp_path), TMPDIR=str(long)) as run:
        engine, directory = reported_pid(run)  # which may be gone already: the script ends here
        assert len(str(directory / "req")) <= 107 and not str(directory).startswith(str(long))
        output, errors = rest_of(run)
        assert (run.returncode, output, errors) == (0, "end of the script\n", "")
    deadline = time.monotonic() + 5
    while psutil.pid_exists(engine) and time.monotonic() < deadline:
        time.sleep(0.02)  # whoever adopted it has yet to take its exit code
    assert not psutil.pid_exists(engine)
    assert not directory.exists() and not list(long.iterdir())
    assert time.monotonic() - begun < 40


INTERRUPTED = (
    REPORT
    + """
with Pipeline(model="echo") as pipeline:
    os.kill(pipeline.engine_pid, signal.SIGSTOP)
    future = pipeline.submit_items(None)
    os.kill(pipeline.engine_pid, signal.SIGCONT)
    future.result()
    try:
        report(pipeline)  # from here on the signal may come
        signal.pause()
    finally:
        pipeline.close()
        print(pipeline._link.process.exit_code, flush=True)
"""
)


def test_ctrl_c_reaches_the_frontend_which_ends_the_engine_in_order() -> None:
    with frontend(INTERRUPTED, session="yes") as run:
        engine, directory = reported(run)
        os.killpg(run.pid, signal.SIGINT)
        output, errors = rest_of(run)
    assert run.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
    assert output == "0\n"  # it was asked to stop and did; the signal has not reached it
    assert is_gone(engine) and not directory.exists()


def test_a_forgotten_pipeline_is_closed_but_not_while_somebody_waits(
    leftovers: Callable[..., list[str]],
) -> None:
    pipeline = Pipeline(model="echo")
    engine, directory = psutil.Process(pipeline.engine_pid), socket_directory(pipeline)
    engine.suspend()
    future = pipeline.submit_items(images(1))
    del pipeline
    gc.collect()
    assert engine.is_running()
    engine.resume()
    assert future.result(5).checksum
    del future
    gc.collect()
    assert wait_for(lambda: is_gone(engine)) and wait_for(lambda: not directory.exists())
    assert not leftovers("fds", "threads", "processes")


@pytest.mark.gpu
def test_a_pipeline_starts_after_this_process_has_used_cuda() -> None:
    import torch

    if torch.cuda.device_count() == 0:
        pytest.skip("no CUDA device")
    torch.ones(1, device="cuda")
    with Pipeline(model="echo", strategy="msgpack-pinned") as pipeline:
        reply = pipeline.submit_items(images(2)).result(20)
    assert reply.pinned and reply.device.startswith("cuda")
