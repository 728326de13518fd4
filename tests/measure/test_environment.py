"""The record of the machine: complete, documented, and made without a CUDA context."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import msgspec
import pytest
import torch

from mmlab.measure import environment


def test_every_value_is_there_and_documented() -> None:
    record = environment.collect()
    values = msgspec.to_builtins(record)
    assert set(values) == set(environment.ENVIRONMENT_DOCS)
    assert values["python"] == platform.python_version()
    assert values["torch"] == torch.__version__.split("+")[0]
    assert values["cores"] == len(os.sched_getaffinity(0))
    assert values["cpu"] and values["memory_nbytes"] > 1 << 28
    assert values["torch_threads"] == torch.get_num_threads()
    assert values["time"].endswith("+00:00")
    assert msgspec.json.decode(msgspec.json.encode(record), type=environment.Environment) == record


def test_describing_the_gpu_does_not_initialise_it() -> None:
    environment.collect()
    assert not torch.cuda.is_initialized()


def test_the_model_name_of_the_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nmodel name\t: Some CPU @ 3 GHz\nmodel name : other\n")
    assert environment._cpu_model(cpuinfo) == "Some CPU @ 3 GHz"
    assert environment._cpu_model(tmp_path / "none")  # another architecture: a word, not nothing


def test_a_file_outside_a_repository_has_no_revision(tmp_path: Path) -> None:
    assert environment._git_revision(tmp_path) is None
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert environment._git_revision(tmp_path) is None  # a repository that does not hold this file


def test_a_missing_shared_memory_folder_is_missing(tmp_path: Path) -> None:
    assert environment._shm(tmp_path / "none") is None
    assert environment._output(["false"]) is None
    assert environment._output(["/no/such/tool"]) is None


@pytest.mark.parametrize("limit", [1 << 16, None])
def test_the_limit_on_locked_memory(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    soft = environment.resource.RLIM_INFINITY if limit is None else limit
    monkeypatch.setattr(environment.resource, "getrlimit", lambda _: (soft, soft))
    assert environment._memlock() == limit
