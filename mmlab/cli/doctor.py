"""`mmlab doctor`: what this machine is, and whether the main job could run on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import msgspec
import typer

from mmlab.cli.checkup import examine
from mmlab.cli.tables import table
from mmlab.measure import bandwidth, environment, hardware
from mmlab.measure.capacity import gib_text
from mmlab.staging.device import cuda_problem


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at this machine: hardware, limits, speed of its memory, versions; could `mmlab run` run?

    The second table says what is limited here and how to lift it. Exit code 1 if the main job could
    not run.
    """
    record, speed = environment.collect(), bandwidth.measure(cuda=cuda_problem() is None)
    checks = examine(record, speed)
    if as_json:
        found = {
            "environment": msgspec.to_builtins(record),
            "numa_nodes": hardware.numa_nodes(),
            "gb_per_s": asdict(speed),
            "checks": [asdict(check) for check in checks],
        }
        typer.echo(json.dumps(found, indent=2))
    else:
        rows = [(name, _text(name, value)) for name, value in _values(record)]
        rows += _measured(speed)
        typer.echo(table(("this machine", ""), rows, left=2))
        typer.echo("")
        lines = [(check.what, check.status, check.found) for check in checks]
        typer.echo(table(("could it run?", "", ""), lines, left=3))
    if any(check.status == "bad" for check in checks):
        raise typer.Exit(1)


def _values(record: environment.Environment) -> list[tuple[str, object]]:
    return list(msgspec.to_builtins(record).items())


def _text(name: str, value: object) -> str:
    if value is None:
        return "unlimited" if name == "memlock_nbytes" else "none"
    if name.endswith("_nbytes") and isinstance(value, int):
        return gib_text(value)
    return str(value)


def _measured(speed: bandwidth.Bandwidth) -> list[tuple[str, str]]:
    return [
        ("numa nodes", str(hardware.numa_nodes() or "not known")),
        ("memcpy", f"{speed.memcpy:.2f} GB/s, one thread, warm buffers of 64 MiB"),
        ("first touch", f"{speed.first_touch:.2f} GB/s: what fresh memory costs before any copy"),
        ("pinned to GPU", "no GPU" if speed.h2d is None else f"{speed.h2d:.1f} GB/s"),
    ]
