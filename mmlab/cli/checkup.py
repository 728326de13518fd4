"""What `mmlab doctor` looks at: each finding says what is limited here, and how to lift it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

from mmlab.arena import stream
from mmlab.bench import headroom, workloads
from mmlab.cli.defaults import SCALE, WORKLOAD
from mmlab.errors import MMLabError
from mmlab.measure import hardware
from mmlab.measure.bandwidth import Bandwidth
from mmlab.measure.capacity import available_nbytes, gib_text
from mmlab.measure.environment import Environment
from mmlab.measure.load import busy_now
from mmlab.staging.device import cuda_problem
from mmlab.strategies import REGISTRY

_NEEDED = {
    "transformers": "models",
    "torchvision": "models",
    "PIL": "models",
    "papermill": "notebooks",
    "pandas": "notebooks",
    "pyarrow": "notebooks",
    "scipy": "notebooks",
    "matplotlib": "notebooks",
    "nbconvert": "notebooks",
}
_SLOTS_NBYTES = 2 << 30  # eight of 256 MiB: what vLLM's ShmTensorArena takes in /dev/shm
_LINK_SHARE = 0.6  # of a link's raw rate; a pinned copy below it hints at a narrower way


@dataclass(frozen=True)
class Check:
    """One finding. `bad`: the main job cannot run; `limited`: it runs, with less to show."""

    what: str
    status: Literal["ok", "limited", "bad"]
    found: str


def examine(record: Environment, speed: Bandwidth) -> list[Check]:
    """All findings about the main job with its defaults."""
    return [
        _packages(),
        _photographs(),
        _notebook(),
        _memory(),
        _copies(),
        _load(),
        _numa(),
        _shm(record.shm_nbytes),
        _gpu(record),
        *_gpu_details(record, speed),
    ]


def _packages() -> Check:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return Check("packages", "ok", "all that the main job needs are installed")
    extras = ",".join(dict.fromkeys(_NEEDED[name] for name in missing))
    remedy = f"pip install 'mmlab[{extras}]'"
    return Check("packages", "bad", f"missing: {', '.join(missing)}; {remedy}")


def _photographs() -> Check:
    from mmlab.bench import images

    try:
        found = images.photographs()
    except (MMLabError, ImportError) as error:
        return Check("photographs", "bad", str(error))
    return Check("photographs", "ok", f"{len(found.sources)} ship with installed packages")


def _notebook() -> Check:
    try:
        from mmlab import notebook

        return Check("notebook", "ok", notebook.find("quickstart").name)
    except (MMLabError, ImportError) as error:
        return Check("notebook", "bad", str(error))


def _memory() -> Check:
    requests = workloads.get(WORKLOAD).requests(SCALE)
    needed = max(
        headroom.needed_nbytes(strategy, requests, max_inflight_nbytes=1 << 30, mix=True)
        for strategy in REGISTRY.values()
    )
    free = available_nbytes()
    text = f"{gib_text(free)} available, the main job may take {gib_text(needed)}"
    return Check("memory", "ok" if needed <= free else "bad", text)


def _copies() -> Check:
    if stream.compiled() is not None:
        return Check("large copies", "ok", "past the caches, into an arena or a batch")
    return Check(
        "large copies", "limited", "by NumPy, 1.5 times as long; pip install 'mmlab[fast]'"
    )


def _load() -> Check:
    busy = busy_now()
    return Check("load", "limited" if busy else "ok", busy or "the machine is quiet")


def _numa() -> Check:
    nodes = hardware.numa_nodes()
    if nodes is None or nodes == 1:
        return Check("NUMA", "ok", "one node" if nodes else "not known")
    return Check(
        "NUMA",
        "limited",
        f"{nodes} nodes: copies between them are slower and vary; keep a run on the GPU's own: "
        "numactl --cpunodebind=0 --membind=0 mmlab run",
    )


def _shm(nbytes: int | None) -> Check:
    """mmlab's own arena has no name there and needs none of it."""
    if nbytes is not None and nbytes >= _SLOTS_NBYTES:
        return Check("/dev/shm", "ok", f"{gib_text(nbytes)}; mmlab's arena does not need it")
    size = "none" if nbytes is None else gib_text(nbytes)
    return Check(
        "/dev/shm",
        "limited",
        f"{size}: enough for mmlab's arena, which does not use it; vllm-arena takes "
        f"{gib_text(_SLOTS_NBYTES)} there: docker run --shm-size=4g, or mount -o "
        "remount,size=4G /dev/shm",
    )


def _gpu(record: Environment) -> Check:
    problem = cuda_problem()
    if problem is None:
        return Check("GPU", "ok", f"{record.gpu_count} found, {record.gpu}")
    left_out = [name for name, strategy in REGISTRY.items() if strategy.needs_gpu]
    return Check("GPU", "limited", f"{problem}; left out: {', '.join(left_out)}")


def _gpu_details(record: Environment, speed: Bandwidth) -> list[Check]:
    """What only matters where there is one: the limit on locked memory, and its link."""
    if speed.h2d is None:
        return []
    found = [_memlock(record.memlock_nbytes)]
    link = hardware.gpu_link()
    if isinstance(link, str):
        return [*found, Check("PCIe link", "limited", link)]
    most = link.max_gb_per_s
    text = (
        f"generation {link.generation} x {link.width} now, {link.max_generation} x "
        f"{link.max_width} at most; a pinned copy runs at {speed.h2d:.1f} GB/s"
    )
    if link.width < link.max_width or (most is not None and speed.h2d < _LINK_SHARE * most):
        text += f" of {most:.1f}" if most is not None else ""
        return [
            *found,
            Check("PCIe link", "limited", f"{text}: look at the slot, the riser, the NUMA node"),
        ]
    return [*found, Check("PCIe link", "ok", text)]


def _memlock(nbytes: int | None) -> Check:
    if nbytes is None or nbytes >= 1 << 30:
        size = "unlimited" if nbytes is None else gib_text(nbytes)
        return Check("locked memory", "ok", size)
    return Check(
        "locked memory",
        "limited",
        f"{gib_text(nbytes)} (RLIMIT_MEMLOCK); where pinning fails for it: ulimit -l unlimited, or "
        "docker run --ulimit memlock=-1",
    )
