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
from mmlab.bench.transfer.payload import DTYPES
from mmlab.bench.transfer.plan import cases, duration_text, estimate_s, requests
from mmlab.bench.transfer.timing import Row
from mmlab.bench.transfer.ways import chosen
from mmlab.bench.wire.launch import PEERS, peer_python
from mmlab.cli.keeping import keep
from mmlab.cli.options import make_folder
from mmlab.cli.tables import table
from mmlab.errors import MMLabError, UsageError, unknown

MOST_IMAGES = 4096
SUSTAINED = 8  # images, where nobody says how many
_LISTS = {"rows": "messages", "sustained": "sustained", "requests": "requests"}
T = TypeVar("T")


def transfer(
    *,
    images: str,
    dtypes: str,
    ways: str | None,
    sustained: str | None,
    full: bool,
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
    streamed = _streamed(sustained, counts, full)
    plan = [*cases(counts, kinds, image_size), *requests(kinds, image_size)]
    make_folder(out)
    found_python = peer_python(python) if peer else sys.executable
    room.check(plan, wanted, full)
    about = duration_text(estimate_s(plan, streamed, wanted, seconds, full))
    typer.echo(f"about {about} for {len(plan)} messages by {len(wanted)} ways", err=True)
    found: list[dict[str, object]] = []
    ended_by: BaseException | None = None
    try:
        for row in launch.run(
            found_python,
            peer=peer,
            ways=[way.name for way in wanted if not way.request],
            images=counts,
            sustained=streamed,
            full=full,
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
    everything = {key: head.get(key) for key in ("peer", "environment")}
    everything |= {name: [r for r in rows if r["table"] == kind] for name, kind in _LISTS.items()}
    where = footing(head, "pyzmq")
    if as_json and (rows or ended_by is None):
        typer.echo(json.dumps(everything))
    elif rows:
        for title, columns, lines in report.tables(rows):
            typer.echo(f"{title}\n{table(columns, lines)}\n")
        foot = [*report.failures(rows), report.notes(rows), "", where]
        typer.echo("\n".join(foot))
    if out is not None and rows:
        _write(out, everything, rows, where)
    if ended_by is not None:
        raise ended_by


def _write(out: Path, everything: object, rows: Sequence[Row], where: str) -> None:
    keep(out / "transfer.json", everything)
    typer.echo(out / "transfer.json", err=True)
    from mmlab.plots import style
    from mmlab.plots.transfer import transfer as draw

    messages = [row for row in rows if row["table"] == "messages" and not row["error"]]
    if messages:
        typer.echo(style.save(draw(messages, where), out, "transfer"), err=True)


def _listed(option: str, text: str, read: Callable[[str], T]) -> list[T]:
    """`1,8` -> the values, each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"{option} {text!r}: wanted values with commas between them")
    return list(dict.fromkeys(read(part) for part in parts))


def _count(text: str, option: str = "--images") -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_IMAGES:
        raise UsageError(f"{option} {text!r}: wanted numbers from 1 to {MOST_IMAGES}")
    return int(text)


def _streamed(text: str | None, images: Sequence[int], full: bool) -> list[int]:
    """The numbers of images with a sustained table: the named ones, or all, none, or 8."""
    if text is None:
        return list(images) if full else [n for n in images if n == SUSTAINED]
    if text == "none":
        return []
    found = _listed("--sustained", text, lambda part: _count(part, "--sustained"))
    for count in found:
        if count not in images:
            raise UsageError(f"--sustained {count}: it is not among the --images")
    return found


def _dtype(text: str) -> str:
    if text not in DTYPES:
        raise unknown("dtype", text, DTYPES)
    return text
