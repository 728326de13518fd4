"""A notebook's kernel that is killed takes its engine along, and the next one starts (R21, R28)."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from small_notebooks import write

from mmlab import KwargsItems, batched, notebook
from mmlab.pipeline import Pipeline

pytest.importorskip("papermill", reason="papermill is not installed")

START = """
import json, os, signal, sys
from pathlib import Path
import torch, mmlab
pipe = mmlab.Pipeline(model="echo", strategy="arena", max_inflight_nbytes=8 << 20, engine_threads=1)
pixels = torch.ones(4, 1 << 18)
items = mmlab.KwargsItems.from_processor({"x": pixels}, {"x": mmlab.batched("image")})
assert pipe.submit_items(items).result(10).checksum
pending = [pipe.submit_items(items) for _ in range(3)]
found = [os.getpid(), pipe.engine_pid, pipe.info.requests_endpoint.removeprefix("ipc://")]
draft = Path(out_dir, "draft")
draft.write_text(json.dumps(found))
draft.rename(Path(out_dir, "found.json"))
"""
WAIT = "import time; time.sleep(60)"


@pytest.fixture
def short() -> Iterator[Path]:
    """Where the kernel's pipelines have their sockets."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


def is_gone(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE or not process.is_running()
    return True


def seconds_until(met: Callable[[], bool], limit: float) -> float:
    begun = time.monotonic()
    while not met():
        assert time.monotonic() - begun < limit
        time.sleep(0.01)
    return time.monotonic() - begun


def test_a_killed_kernel_takes_its_engine_along(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    tempfile.gettempdir()  # ours stays where it is
    monkeypatch.setenv("TMPDIR", str(short))
    nb, out = write(tmp_path / "a.ipynb", START, WAIT), tmp_path / "out"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(notebook.execute, nb, {}, out, log=False)
        seconds_until((out / "found.json").exists, 40)
        kernel_pid, engine_pid, socket = json.loads((out / "found.json").read_text())
        kernel, engine = psutil.Process(kernel_pid), psutil.Process(engine_pid)
        assert Path(socket).parent.parent == short and not is_gone(engine)
        kernel.kill()
        assert seconds_until(lambda: is_gone(engine), 10) < 5
        with pytest.raises(notebook.NotebookError, match="its kernel ended"):
            running.result(20)
    assert not list(short.glob("mmlab-*"))
    assert not leftovers("processes", "shm")
    with Pipeline(model="echo", strategy="arena", max_inflight_nbytes=8 << 20) as pipe:
        items = KwargsItems.from_processor({"x": [1]}, {"x": batched("image")})
        assert pipe.submit_items(items).result(5).checksum
