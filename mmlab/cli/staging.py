"""`mmlab bench staging`: options in, tables and a file out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from mmlab.cli.keeping import keep
from mmlab.cli.options import AsJson, Seed, make_folder
from mmlab.cli.tables import table
from mmlab.errors import UsageError, unknown

if TYPE_CHECKING:
    from mmlab.bench.staging.timing import Row

MOST_IMAGES, MOST_THREADS = 4096, 1024
T = TypeVar("T")


def staging(
    images: Annotated[str, typer.Option(metavar="N,N", help="Images in a batch.")] = "1,8,32",
    dtypes: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="Of the pixels.")
    ] = "float32,bfloat16,uint8",
    threads: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Of torch.", show_default="1, then torch's own number"),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")
    ] = "auto",
    image_size: Annotated[
        int, typer.Option(min=1, max=8192, help="Height and width of an image, in pixels.")
    ] = 896,
    rounds: Annotated[
        int, typer.Option(min=5, max=10_000, help="Turns of every mode, in each case.")
    ] = 15,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the rows into this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What does it cost to stage a batch, over one memcpy of its bytes?

    Staging writes images that lie apart into one buffer, from which a GPU copies. On a CPU the
    modes are pageable (fresh memory) and pool (reused); on a GPU also pin-after (two copies, what
    vLLM #19169 replaced), pinned (a fresh buffer each time) and direct (from registered memory,
    no CPU copy), and each copy to the device is set beside a plain one. All modes and the memcpy
    have their turn in every round; a ratio is taken within a round: 1.00 is a memcpy, less is
    faster. Images side by side are a batch already: no copy.

    Examples:

        mmlab bench staging --images 32 --dtypes bfloat16

        mmlab bench staging --threads 1 --rounds 40 --out runs/staging
    """
    from mmlab.bench.footing import footing
    from mmlab.bench.progress import to_stderr
    from mmlab.bench.staging import cases, report
    from mmlab.bench.staging.run import run
    from mmlab.staging import resolve_device

    counts = _listed("--images", images, lambda text: _count("--images", text, MOST_IMAGES))
    kinds = _listed("--dtypes", dtypes, lambda text: _dtype(text, cases.DTYPES))
    plan = cases.cases(counts, kinds, image_size)
    wanted = _threads(threads)
    target = resolve_device(device)
    make_folder(out)
    cases.check_room(plan)
    environment = _record()
    rows: list[Row] = []
    interrupted = False
    try:
        for row in run(plan, target, threads=wanted, rounds=rounds, seed=seed, log=to_stderr):
            rows.append(row)
    except KeyboardInterrupt:
        interrupted = True  # what was measured so far is shown and kept
    everything = {"environment": environment, "rows": rows}
    if as_json:
        typer.echo(json.dumps(everything))
    elif rows:
        for title, columns, lines in report.tables(rows):
            typer.echo(f"{title}\n{table(columns, lines, left=4)}\n")
        notes = [report.NOTES] if target.is_host else [report.NOTES, report.NOTES_GPU]
        where = footing({"environment": {**environment, "torch_threads": "as above"}}, "numpy")
        typer.echo("\n".join([*report.overheads(rows), *notes, "", where]))
    if out is not None and rows:
        keep(out / "staging.json", everything)
        typer.echo(out / "staging.json", err=True)
    if interrupted:
        raise KeyboardInterrupt


def _record() -> dict[str, object]:
    import msgspec

    from mmlab.measure import environment

    found: dict[str, object] = msgspec.to_builtins(environment.collect())
    return found


def _threads(text: str | None) -> list[int]:
    import torch

    if text is None:
        return list(dict.fromkeys([1, torch.get_num_threads()]))
    return _listed("--threads", text, lambda part: _count("--threads", part, MOST_THREADS))


def _listed(option: str, text: str, read: Callable[[str], T]) -> list[T]:
    """`1,8` -> the values, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"{option} {text!r}: wanted values with commas between them")
    return list(dict.fromkeys(read(part) for part in parts))


def _count(option: str, text: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise UsageError(f"{option} {text!r}: wanted numbers from 1 to {most}")
    return int(text)


def _dtype(text: str, known: Iterable[str]) -> str:
    if text not in known:
        raise unknown("dtype", text, known)
    return text
