"""The machine and the software under a measurement: every result row carries this record.

A number without its machine cannot be compared with anything. Nothing here makes a CUDA context:
the frontend must be able to describe the GPU and still leave it to the engine.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil
import torch

from mmlab import __version__
from mmlab.measure.capacity import limit_nbytes

_LIBRARIES = ("torch", "torchvision", "transformers", "numpy", "pyzmq", "msgspec")


class Environment(msgspec.Struct, frozen=True):
    """One machine at one moment; `ENVIRONMENT_DOCS` says what each value is."""

    time: str
    mmlab: str
    git: str | None
    python: str
    torch: str | None
    torchvision: str | None
    transformers: str | None
    numpy: str | None
    pyzmq: str | None
    msgspec: str | None
    platform: str
    cpu: str
    cores: int
    cores_physical: int | None
    memory_nbytes: int
    gpu: str | None
    gpu_count: int
    driver: str | None
    cuda: str | None
    memlock_nbytes: int | None
    shm_nbytes: int | None
    torch_threads: int
    omp_num_threads: str | None
    omp_wait_policy: str | None


ENVIRONMENT_DOCS: dict[str, str] = {
    "time": "start of the run, ISO 8601, UTC",
    "mmlab": "version of this package",
    "git": "commit of the checkout, '+' behind it where files differ from it",
    "python": "version of the interpreter",
    **{name: f"version of {name}; missing where it is not installed" for name in _LIBRARIES},
    "platform": "operating system, kernel and libc",
    "cpu": "model name of the processor",
    "cores": "logical cores that this process may use",
    "cores_physical": "physical cores of the machine",
    "memory_nbytes": "memory of the machine, or the cgroup's limit where that is lower",
    "gpu": "name of the first GPU; missing where there is none",
    "gpu_count": "number of GPUs",
    "driver": "version of the GPU's driver",
    "cuda": "CUDA version that torch was built for",
    "memlock_nbytes": "limit on locked memory (RLIMIT_MEMLOCK); missing: unlimited",
    "shm_nbytes": "size of /dev/shm; missing where there is none",
    "torch_threads": "torch's intra-op threads in the process that made this record",
    "omp_num_threads": "OMP_NUM_THREADS of the processes that were measured",
    "omp_wait_policy": "OMP_WAIT_POLICY of the processes that were measured",
}


def collect(variables: Mapping[str, str] = os.environ) -> Environment:
    """Reads everything afresh; well under a second. `variables`: of the processes to describe."""
    name, driver = _gpu()
    versions = {library: _version(library) for library in _LIBRARIES}
    return Environment(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        mmlab=__version__,
        git=_git_revision(Path(__file__).parent),
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu_model(),
        cores=core_count(),
        cores_physical=psutil.cpu_count(logical=False),
        memory_nbytes=limit_nbytes(),
        gpu=name,
        gpu_count=gpu_count(),
        driver=driver,
        cuda=torch.version.cuda,
        memlock_nbytes=_memlock(),
        shm_nbytes=_shm(),
        torch_threads=torch.get_num_threads(),
        omp_num_threads=variables.get("OMP_NUM_THREADS"),
        omp_wait_policy=variables.get("OMP_WAIT_POLICY"),
        **versions,
    )


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def core_count() -> int:
    """Logical cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    try:
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpu_count() -> int:
    """GPUs that torch would find, asked through the driver: makes no CUDA context here."""
    return torch.cuda.device_count()


def _gpu() -> tuple[str | None, str | None]:
    """(name of the first, driver) as the driver's own tool prints them."""
    tool = shutil.which("nvidia-smi") if gpu_count() else None
    query = "--query-gpu=name,driver_version"
    shown = _output([tool, query, "--format=csv,noheader"], timeout_s=20) if tool else None
    rows = [line.split(", ") for line in (shown or "").splitlines() if line.count(", ") == 1]
    if rows:
        return rows[0][0], rows[0][1]
    return ("unnamed GPU" if gpu_count() else None), None


def _git_revision(folder: Path) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    revision = _output([git, "-C", str(folder), "rev-parse", "HEAD"])
    if revision is None:
        return None
    tracked = _output([git, "-C", str(folder), "ls-files", "--error-unmatch", __file__])
    if tracked is None:  # installed somewhere below a repository of another kind
        return None
    changed = _output([git, "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return revision + ("+" if changed else "")


def _output(command: list[str], timeout_s: float = 5.0) -> str | None:
    """What the command prints, stripped; None where it fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _memlock() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _shm(path: Path = Path("/dev/shm")) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None
