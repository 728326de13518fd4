"""Everything about a run that can be known before it starts, checked in one place.

A run takes minutes. A name that is misspelt, a folder without images or a request that can never be
sent must be said in the first second, before any process exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmlab.bench import headroom, media, workloads
from mmlab.bench.families import check_modalities, family_of
from mmlab.bench.spec import RunSettings
from mmlab.errors import UsageError, unknown
from mmlab.staging.device import cuda_problem
from mmlab.strategies import REGISTRY, resolve

_BOUNDS = {
    "repeats": (1, 1000),
    "rounds": (1, 1000),
    "min_samples": (1, 10_000),
    "memory_trials": (0, 1000),
    "seed": (0, (1 << 63) - 1),
    "max_new_tokens": (1, 1 << 16),
    "max_inflight_nbytes": (1, 1 << 50),
    "image_size": (1, 1 << 14),
}
_CLAIM = ".mmlab-run"  # in a folder that a run is writing to


def validate(settings: RunSettings) -> list[tuple[Path, str]]:
    """UsageError, in one line with what is known, for the first setting that cannot work here.

    Returns the media files that cannot be decoded and will be skipped: (file, why).
    """
    check_strategies(settings.strategies, settings.device)
    workload = workloads.get(settings.workload)
    requests = workload.requests(settings.scale)
    check_model(settings.model)
    check_modalities(workload.name, requests, settings.model)
    check_device(settings.device)
    for name, (least, most) in _BOUNDS.items():
        if (value := getattr(settings, name)) < least:
            raise UsageError(f"{name} must be at least {least}, got {value}")
        if value > most:
            raise UsageError(f"{name} must be at most {most}, got {value}")
    for name in ("engine_threads", "frontend_threads"):
        if (threads := getattr(settings, name)) is not None and threads < 1:
            raise UsageError(f"{name} must be at least 1, got {threads}")
    for payload in {resolve(name).payload for name in settings.strategies}:
        reason = headroom.refused_by_budget(
            requests,
            settings.max_inflight_nbytes,
            settings.image_size,
            payload,
            family_of(settings.model),
        )
        if reason is not None:
            where = f"workload {workload.name!r} at scale {settings.scale:g}"
            raise UsageError(f"{where}: {reason}")
    return media.load(workload, settings.images, strict=settings.strict).skipped


def check_strategies(names: tuple[str, ...], device: str) -> None:
    """Known, each named once, and none that needs a GPU which will not be used."""
    if not names:
        raise UsageError(f"no strategy given; known: {', '.join(REGISTRY)}")
    for name in names:
        strategy = resolve(name)
        problem = "device 'cpu' was asked for" if device == "cpu" else cuda_problem()
        if strategy.needs_gpu and problem:
            raise UsageError(f"strategy {name!r} needs a GPU: {problem}")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UsageError(f"strategy {sorted(twice)[0]!r} is given twice")


def check_model(name: str) -> None:
    """A preset, `echo`, a folder with a checkpoint of a known family, or an id of the hub."""
    family_of(name)


def check_device(name: str) -> None:
    """`auto`, `cpu`, or a CUDA device that is there. Makes no CUDA context."""
    if name in ("auto", "cpu"):
        return
    if not re.fullmatch(r"cuda(:\d+)?", name):
        if name.lower().startswith("gpu"):
            raise UsageError(f"unknown device {name!r}: a GPU is called 'cuda', or 'cuda:0'")
        raise unknown("device", name, ["auto", "cpu", "cuda", "cuda:0"])
    problem = cuda_problem()
    if problem:
        raise UsageError(f"device {name!r}: {problem}; use 'auto' or 'cpu'")
    import torch

    index, count = int(name.partition(":")[2] or 0), torch.cuda.device_count()
    if index >= count:
        raise UsageError(f"device {name!r}: this machine has {count} (cuda:0 to cuda:{count - 1})")


def default_strategies(device: str = "auto") -> tuple[str, ...]:
    """The strategies that make sense on this machine, in their order, less those that are only
    taken when asked for by name."""
    gpu = device != "cpu" and cuda_problem() is None
    return tuple(
        name
        for name, strategy in REGISTRY.items()
        if strategy.by_default and (gpu or not strategy.needs_gpu)
    )


def parse_strategies(text: str, device: str = "auto") -> tuple[str, ...]:
    """`"pickle, msgpack"` -> names; "" or "all" stands for `default_strategies`."""
    names = tuple(part for part in re.split(r"[,\s]+", text.strip()) if part)
    return default_strategies(device) if names in ((), ("all",)) else names


def default_folder(parent: Path, name: str) -> Path:
    """`parent/name`, or with a number where another run has taken that."""
    for number in range(1, 1000):
        path = parent / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return path
    raise UsageError(f"'{parent / name}' and 998 more folders like it exist already")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """The folder of one run, claimed until the end of the block so that no two runs share it.

    UsageError where results cannot go: a file, a folder that has something in it, no rights.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"output folder '{path}' is a file")
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"output folder '{path}' is not empty: results would mix")
    try:
        path.mkdir(parents=True, exist_ok=True)
        claim = path / _CLAIM
        claim.touch(exist_ok=False)
    except FileExistsError as error:
        raise UsageError(f"output folder '{path}': another run is writing to it") from error
    except OSError as error:
        raise UsageError(f"output folder '{path}': {error.strerror}") from error
    try:
        yield path
    finally:
        claim.unlink(missing_ok=True)
