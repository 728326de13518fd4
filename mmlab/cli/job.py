"""What `mmlab run` does with its settings: check, execute the notebook, read the rows, tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer

from mmlab import notebook
from mmlab.bench import results, summary, validate
from mmlab.bench.progress import to_stderr
from mmlab.bench.spec import RunSettings
from mmlab.cli import defaults
from mmlab.cli.tables import overview_table
from mmlab.errors import UsageError
from mmlab.measure.clocks import now, seconds_text, utc_stamp
from mmlab.measure.load import busy_now


def main_job(
    settings: RunSettings, extra: Sequence[str], out: Path | None, *, as_json: bool
) -> None:
    """UsageError before anything has been started, NotebookError where the job failed."""
    start, source, busy = now(), notebook.find(defaults.NOTEBOOK), busy_now()
    settings, parameters = _parameters(source, settings, extra)
    undecodable = validate.validate(settings)
    folder = out or validate.default_folder(Path(defaults.RUNS), utc_stamp())
    with validate.new_folder(folder.expanduser().absolute()) as folder:
        to_stderr(_announcement(settings, folder))
        if busy:
            to_stderr(busy)
        executed = notebook.execute(source, parameters, folder)
        report = notebook.to_html(executed)
    rows, memory = results.read(folder), results.read(folder, "memory")
    overview = summary.overview(rows, memory) if len(rows) else []
    skipped = _not_run(folder)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "folder": str(folder),
                    "report": str(report),
                    "seconds": round(now() - start, 1),
                    "settings": msgspec.to_builtins(settings),
                    "strategies": overview,
                    "not_run": skipped,
                    "images_skipped": int(rows["images_skipped"].max()) if len(rows) else 0,
                    "busy": busy,
                    "environment": json.loads((folder / "environment.json").read_text()),
                },
                indent=2,
            )
        )
        return
    typer.echo("")
    typer.echo(overview_table(overview))
    if undecodable:
        typer.echo(f"images: {len(undecodable)} of the files in {settings.images} were skipped")
    for line in skipped:
        typer.echo(f"not run: {line['strategy']} ({line['kind']}): {line['reason']}")
    if busy:
        typer.echo(busy)
    typer.echo(f"\nResults, after {seconds_text(now() - start)}: {_short(folder)}")
    typer.echo(f"Report: {_short(report)}")


def _parameters(
    source: Path, settings: RunSettings, extra: Sequence[str]
) -> tuple[RunSettings, dict[str, object]]:
    """Settings with the extra ones in place, and all of them as parameters of the notebook.

    The notebook need not have a parameter for a setting that is left at its default.
    """
    given: dict[str, str] = {}
    for text in extra:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"parameter {text!r}: wanted NAME=VALUE")
        given[name.strip()] = value.strip()
    typed = notebook.from_text(source, given)
    fields = RunSettings.__struct_fields__
    known = notebook.parameters(source)
    values = msgspec.to_builtins(settings) | {k: v for k, v in typed.items() if k in fields}
    try:
        settings = msgspec.convert(values, RunSettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"parameter: {error}") from error
    plain = msgspec.to_builtins(RunSettings(strategies=()))
    passed = {k: v for k, v in values.items() if k in known or v != plain[k]}
    rest = {k: v for k, v in typed.items() if k not in fields}
    parameters: dict[str, object] = passed | rest
    notebook.check(source, parameters)
    return settings, parameters


def _announcement(settings: RunSettings, folder: Path) -> str:
    source = f", images of {settings.images}" if settings.images else ""
    return (
        f"mmlab: {', '.join(settings.strategies)} on {settings.workload} x {settings.scale:g}"
        f"{source}, with {settings.model}; results go to {_short(folder)}"
    )


def _not_run(folder: Path) -> list[dict[str, str]]:
    """Trials that were skipped, with their reasons."""
    trials = results.read(folder, "trials")
    chosen = trials[trials["status"] != "ok"][["strategy", "kind", "status", "reason"]]
    return [{str(k): str(v) for k, v in row.items()} for row in chosen.to_dict("records")]


def _short(path: Path) -> str:
    """Relative to where the user is, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
