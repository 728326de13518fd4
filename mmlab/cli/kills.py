"""The body of `mmlab bench kills`: options in, the matrix and its file out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

import typer

from mmlab.bench.footing import footing
from mmlab.bench.kills import matrix
from mmlab.bench.kills.plan import MODELS, STAGES, VICTIMS, trials, way
from mmlab.bench.kills.trial import Row
from mmlab.bench.progress import to_stderr
from mmlab.cli.keeping import keep
from mmlab.cli.options import make_folder
from mmlab.cli.tables import table
from mmlab.errors import MMLabError, UsageError, unknown


def kills(
    *,
    repeats: int,
    seed: int,
    strategy: str | None,
    model: str,
    stages: str | None,
    victims: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Kill, judge, print, write. UsageError before anything is started; exit code 1 for a trial
    that broke a limit or left something."""
    if strategy is not None:
        way(strategy)
    if model not in MODELS:
        raise unknown("model", model, MODELS)
    plan = trials(
        _listed("stage", stages, STAGES),
        _listed("victim", victims, VICTIMS),
        repeats=repeats,
        seed=seed,
        model=model,
        strategy=strategy,
    )
    make_folder(out)
    rows: list[Row] = []
    head = {"environment": matrix.record()}
    ended_by: BaseException | None = None
    try:
        for row in matrix.run(plan, to_stderr):
            rows.append(row)
            if out is not None:  # whatever ends this process, what was measured is there
                with contextlib.suppress(MMLabError):  # said at the end, if it is so still
                    keep(out / "kills.json", {**head, "rows": rows})
    except (KeyboardInterrupt, MMLabError) as error:
        ended_by = error
    if as_json:
        typer.echo(json.dumps({**head, "rows": rows}))
    elif rows:
        foot = footing(head, "pyzmq", "one trial after another")
        lines = [table(*matrix.table(rows), left=2), "", matrix.notes(rows), "", foot]
        typer.echo("\n".join(lines))
    if out is not None and rows:
        keep(out / "kills.json", {**head, "rows": rows})
        typer.echo(out / "kills.json", err=True)
    failed = matrix.failures(rows)
    if failed:
        typer.echo("\n".join(failed), err=True)
    if ended_by is not None:
        raise ended_by
    if failed:
        raise typer.Exit(1)


def _listed(kind: str, text: str | None, known: Iterable[str]) -> list[str]:
    """`a,b` -> names of the table, in its order; all of them without a choice."""
    names = list(known)
    if text is None:
        return names
    wanted = [part.strip() for part in text.split(",")]
    if not all(wanted):
        raise UsageError(f"--{kind}s {text!r}: wanted names with commas between them")
    for name in wanted:
        if name not in names:
            raise unknown(kind, name, names)
    return [name for name in names if name in wanted]
