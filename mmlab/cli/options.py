"""Options that several commands of `mmlab bench` have, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmlab.errors import UsageError

Peer = Annotated[
    str | None, typer.Option(metavar="vllm", help="Measure an installed vLLM in the same run.")
]
PeerPython = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Python of the environment that has vLLM.",
        show_default=".venv-peer, as `make peer` makes it",
    ),
]
Seed = Annotated[int, typer.Option(help="Of the order of the measurements.")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write rows and plot into this folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Rows as JSON, not a table.")]


def make_folder(out: Path | None) -> None:
    """The folder of `--out`, made before anything is measured; UsageError where it cannot be."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}, wanted a folder") from error
