"""The body of `mmlab bench soak`: options in, figures and files out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import typer

from mmlab.bench.footing import footing
from mmlab.bench.progress import ProgressLog
from mmlab.bench.soak import report
from mmlab.bench.soak.draw import LARGEST
from mmlab.bench.soak.single import single
from mmlab.bench.soak.soak import Result, Settings, soak
from mmlab.cli.keeping import keep
from mmlab.cli.options import make_folder
from mmlab.cli.sizes import parse_nbytes
from mmlab.cli.tables import table
from mmlab.errors import MMLabError, UsageError
from mmlab.strategies import resolve

FEWEST_NBYTES = 2 * LARGEST  # of the budget: two of the largest, with what else they carry


def run_soak(
    *,
    minutes: float,
    threads: int,
    strategy: str,
    seed: int,
    max_inflight_nbytes: str,
    request: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run, print, write. UsageError before anything is started; MMLabError for a broken claim."""
    budget = parse_nbytes(max_inflight_nbytes)
    if budget < FEWEST_NBYTES:
        raise UsageError(
            f"--max-inflight-nbytes {max_inflight_nbytes}: wanted {FEWEST_NBYTES} B or more, room "
            "for two of the largest requests"
        )
    settings = Settings(
        strategy=resolve(strategy).name,
        seconds=60 * minutes,
        threads=threads,
        seed=seed,
        max_inflight_nbytes=budget,
        insecure_pickle=resolve(strategy).insecure,
    )
    if request is not None:
        typer.echo(single(settings, *_request(request)))
        return
    make_folder(out)
    result = soak(settings, ProgressLog([]).say)
    _show(result, out, as_json)
    if result.interrupted:
        raise KeyboardInterrupt
    if result.broken:
        raise MMLabError(f"soak: {'; '.join(result.broken)}")


def _show(result: Result, out: Path | None, as_json: bool) -> None:
    everything = msgspec.to_builtins(result)
    where = footing(everything | {"peer": result.device}, "pyzmq", how=_how(result))
    if as_json:
        typer.echo(json.dumps(everything))
    else:
        _print(result, where)
    if out is not None:
        keep(out / "soak.json", everything)
        typer.echo(out / "soak.json", err=True)
        if result.rows:
            from mmlab.plots import style
            from mmlab.plots.soak import soak as draw

            typer.echo(style.save(draw(everything, where), out, "soak"), err=True)


def _print(result: Result, where: str) -> None:
    typer.echo(f"{report.sums(result)}\n")
    if result.readings:
        typer.echo(f"{table(report.HEAD, report.lines(result))}\n")
    if result.interrupted:
        typer.echo("interrupted: no claim was checked")
    else:
        typer.echo("\n".join(report.verdict(result)))
    typer.echo(f"\n{where}")


def _how(result: Result) -> str:
    s = result.settings
    return f"seed {s.seed}, {s.threads} frontend threads, {s.max_inflight_nbytes >> 20} MiB budget"


def _request(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    if found is None:
        raise UsageError(f"--request {text!r}: wanted THREAD/NUMBER, as a fault is printed")
    return int(found[1]), int(found[2])
