"""`mmlab strategies`: what there is to compare."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from mmlab.cli.tables import table
from mmlab.strategies import REGISTRY
from mmlab.transports import REGISTRY as TRANSPORTS


def strategies(
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the strategies: ways from the processor's output to the batch on the device.

    Copies: how often each payload byte is moved by a CPU on that way, sockets included. In Python
    `Pipeline(strategy, transport=NAME)` takes another transport and leaves the rest as it is.
    """
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(s) for s in REGISTRY.values()], indent=2))
        return
    head = ("name", "payload", "serializer", "transport", "staging", "copies", "GPU", "stands for")
    rows = [
        (
            s.name,
            s.payload,
            s.serializer,
            s.transport,
            s.staging,
            s.copies,
            "needed" if s.needs_gpu else "-",
            s.stands_for,
        )
        for s in REGISTRY.values()
    ]
    typer.echo(table(head, rows, left=len(head)))
    named = [s.name for s in REGISTRY.values() if not s.by_default]
    typer.echo(f"\nTransports: {', '.join(TRANSPORTS)}.")
    typer.echo(f"`mmlab run` takes these only where they are named: {', '.join(named)}.")
