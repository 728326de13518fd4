"""`mmlab doctor`: what this machine is, and whether the main job could run on it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import msgspec
import typer

from mmlab.arena import stream
from mmlab.bench import headroom, workloads
from mmlab.cli.defaults import SCALE, WORKLOAD
from mmlab.cli.tables import table
from mmlab.errors import MMLabError
from mmlab.measure import environment
from mmlab.measure.capacity import available_nbytes, gib_text
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


@dataclass(frozen=True)
class Check:
    """One finding. `bad`: the main job cannot run; `limited`: it runs, with less to show."""

    what: str
    status: Literal["ok", "limited", "bad"]
    found: str


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at this machine: hardware, limits, versions, and whether `mmlab run` could run here.

    Exit code 1 if it could not.
    """
    record, checks = environment.collect(), examine()
    if as_json:
        found = {"environment": msgspec.to_builtins(record), "checks": [asdict(c) for c in checks]}
        typer.echo(json.dumps(found, indent=2))
    else:
        rows = [(name, _text(name, value)) for name, value in _values(record)]
        typer.echo(table(("this machine", ""), rows, left=2))
        typer.echo("")
        lines = [(check.what, check.status, check.found) for check in checks]
        typer.echo(table(("could it run?", "", ""), lines, left=3))
    if any(check.status == "bad" for check in checks):
        raise typer.Exit(1)


def examine() -> list[Check]:
    """All findings about the main job with its defaults."""
    return [_packages(), _photographs(), _notebook(), _memory(), _copies(), _gpu()]


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


def _gpu() -> Check:
    from mmlab.staging.device import cuda_problem

    problem = cuda_problem()
    if problem is None:
        return Check("GPU", "ok", f"{environment.gpu_count()} found")
    left_out = [name for name, strategy in REGISTRY.items() if strategy.needs_gpu]
    return Check("GPU", "limited", f"{problem}; left out: {', '.join(left_out)}")


def _values(record: environment.Environment) -> list[tuple[str, object]]:
    return list(msgspec.to_builtins(record).items())


def _text(name: str, value: object) -> str:
    if value is None:
        return "unlimited" if name == "memlock_nbytes" else "none"
    if name.endswith("_nbytes") and isinstance(value, int):
        return gib_text(value)
    return str(value)
