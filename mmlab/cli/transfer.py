"""The body of `mmlab bench transfer`: options in, tables and files out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

import typer

from mmlab.bench.footing import footing
from mmlab.bench.transfer import launch, report, room
from mmlab.bench.transfer.__main__ import cases
from mmlab.bench.transfer.payload import DTYPES
from mmlab.bench.transfer.timing import Row
from mmlab.bench.transfer.ways import chosen
from mmlab.bench.wire.launch import PEERS, peer_python
from mmlab.cli.options import make_folder
from mmlab.cli.tables import table
from mmlab.errors import MMLabError, UsageError, unknown

MOST_IMAGES = 4096
T = TypeVar("T")


def transfer(
    *,
    images: str,
    dtypes: str,
    ways: str | None,
    peer: str | None,
    python: Path | None,
    image_size: int,
    seconds: float,
    seed: int,
    threads: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure, print, write. UsageError before anything is started."""
    if peer is not None and peer not in PEERS:
        raise unknown("peer", peer, PEERS)
    counts = _listed("--images", images, _count)
    kinds = _listed("--dtypes", dtypes, _dtype)
    wanted = chosen(None if ways is None else _listed("--ways", ways, str), peer is not None)
    plan = cases(counts, kinds, image_size)
    make_folder(out)
    found_python = peer_python(python) if peer else sys.executable
    room.check(plan, wanted)
    found: list[dict[str, object]] = []
    ended_by: BaseException | None = None
    try:
        for row in launch.run(
            found_python,
            peer=peer,
            ways=[way.name for way in wanted],
            images=counts,
            dtypes=kinds,
            image_size=image_size,
            seconds=seconds,
            seed=seed,
            threads=threads,
        ):
            found.append(row)
    except (KeyboardInterrupt, MMLabError) as error:
        ended_by = error  # what was measured so far is shown and kept
    head = {key: value for row in found if "way" not in row for key, value in row.items()}
    rows = cast("list[Row]", [row for row in found if "way" in row])
    everything = {"peer": head.get("peer"), "environment": head.get("environment"), "rows": rows}
    where = footing(head, "pyzmq")
    if out is not None and rows:
        _write(out, everything, rows, where)
    if as_json and (rows or ended_by is None):
        typer.echo(json.dumps(everything))
    elif rows:
        for title, columns, lines in report.tables(rows):
            typer.echo(f"{title}\n{table(columns, lines)}\n")
        typer.echo(f"{report.notes(rows)}\n\n{where}")
    if ended_by is not None:
        raise ended_by


def _write(out: Path, everything: object, rows: Sequence[Row], where: str) -> None:
    (out / "transfer.json").write_text(json.dumps(everything, indent=1))
    typer.echo(out / "transfer.json", err=True)
    from mmlab.plots import style
    from mmlab.plots.transfer import transfer as draw

    typer.echo(style.save(draw(rows, where), out, "transfer"), err=True)


def _listed(option: str, text: str, read: Callable[[str], T]) -> list[T]:
    """`1,8` -> the values, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"{option} {text!r}: wanted values with commas between them")
    return list(dict.fromkeys(read(part) for part in parts))


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_IMAGES:
        raise UsageError(f"--images {text!r}: wanted numbers from 1 to {MOST_IMAGES}")
    return int(text)


def _dtype(text: str) -> str:
    if text not in DTYPES:
        raise unknown("dtype", text, DTYPES)
    return text
