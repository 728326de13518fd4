"""What `mmlab run --full` does: every part in its turn, then the tables beside the published."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from mmlab.bench import validate
from mmlab.bench.full import job as full
from mmlab.bench.progress import to_stderr
from mmlab.bench.spec import RunSettings
from mmlab.cli import defaults
from mmlab.cli.tables import table
from mmlab.errors import MMLabError
from mmlab.measure.clocks import now, seconds_text, utc_stamp
from mmlab.measure.load import busy_now

_NOTES = """\
GB: peak memory of all processes, libraries and idle state included, by images a prompt; s: all
prompts of that size one after another, and all 15 at once (mix). Published figures are of another
model and machine: compare what grows with the square of the images and what does not."""


def job(settings: RunSettings, strategies: str, out: Path | None, *, as_json: bool) -> None:
    """`strategies`: of the part with `echo`, where some were named. UsageError before it starts."""
    start, busy = now(), busy_now()
    chosen = settings.strategies if strategies else full.all_strategies(settings.device)
    parts = full.parts(settings, chosen)
    for part in parts:
        validate.validate(part.settings)
    folder = out or validate.default_folder(Path(defaults.RUNS), utc_stamp())
    error: MMLabError | None = None
    with validate.new_folder(folder.expanduser().absolute()) as folder:
        to_stderr(f"mmlab: the tables of #16432 and #19169; results go to {folder}")
        if busy:
            to_stderr(busy)
        try:
            full.execute(parts, folder)
        except MMLabError as failed:
            error = failed
        written = full.write(folder)
    tables, remarks = full.tables(folder), full.remarks(folder)
    if as_json:
        found = {
            "folder": str(folder),
            "seconds": round(now() - start, 1),
            "tables": [{"title": t, "head": list(h), "rows": r} for t, h, r in tables],
            "remarks": remarks,
            "busy": busy,
        }
        typer.echo(json.dumps(found, indent=2))
    else:
        for title, head, rows in tables:
            typer.echo(f"\n{title}\n{table(head, rows)}")
        typer.echo(f"\n{_NOTES}")
        for line in [*remarks, *([busy] if busy else [])]:
            typer.echo(line)
        typer.echo(f"\nResults, after {seconds_text(now() - start)}: {written}")
    if error is not None:
        raise error
