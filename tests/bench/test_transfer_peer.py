"""The ways of a real vLLM, where one is installed: equal batches, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest

import mmlab
from mmlab.bench.transfer.ways import NAMES, WAYS
from tests.conftest import Leftovers

PYTHON = Path(mmlab.__file__).parents[1] / ".venv-peer" / "bin" / "python"
PEERS = [name for name in NAMES if WAYS[name].pair == "vllm"]


@pytest.mark.skipif(not PYTHON.exists(), reason="needs vLLM: make peer")
@pytest.mark.timeout(400)  # two processes load vLLM
def test_vllm_ways_are_measured_and_a_sigkill_leaves_nothing_of_theirs(
    leftovers: Leftovers,
) -> None:
    """Every message's first is compared by its checksum, or its way has an error."""
    options = ["--peer", "vllm", "--image-size", "64", "--seconds", "0.05", "--sustained", "1"]
    options += ["--images", *map(str, range(1, 7)), "--dtypes", "bfloat16", "--ways", *PEERS]
    root = Path(mmlab.__file__).parents[1]
    job = subprocess.Popen(
        [str(PYTHON), "-m", "mmlab.bench.transfer", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
    )
    assert job.stdout is not None
    rows: list[dict[str, object]] = []
    with job:
        for line in job.stdout:
            found = json.loads(line)
            rows += [found] if "way" in found else []
            if found.get("images") == 3:
                break
        below = psutil.Process(job.pid).children(recursive=True)
        job.kill()
    messages = [row for row in rows if row["table"] == "messages" and row["images"] == 1]
    assert [row["way"] for row in messages] == ["memcpy", *PEERS]
    assert [row["error"] for row in rows] == [None] * len(rows)
    assert {row["way"] for row in rows if row["table"] == "sustained"} == {"memcpy", *PEERS}
    assert len(below) >= 2 and not psutil.wait_procs(below, timeout=20)[1]
    found = leftovers("shm", "processes", timeout=10)
    assert not [what for what in found if "process" in what or "mmlab-store" in what]
