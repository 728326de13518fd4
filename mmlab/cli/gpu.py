"""`mmlab bench gpu`: verify on the GPU at hand what the package promises about one."""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mmlab.bench.progress import ProgressLog
from mmlab.cli.defaults import RUNS
from mmlab.cli.keeping import keep
from mmlab.cli.options import make_folder
from mmlab.cli.tables import table
from mmlab.measure import environment
from mmlab.measure.clocks import utc_stamp

if TYPE_CHECKING:
    from mmlab.bench.gpu.findings import Finding

HEAD = ("check", "got", "wanted", "ok")
HUNG_S = 60.0  # behind the budget: a check that hangs is shown where it does, and ended


def gpu(
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON of all findings.",
            show_default=f"{RUNS}/gpu-check-<UTC time>.json",
        ),
    ] = None,
    budget_s: Annotated[
        float, typer.Option(min=1, help="Seconds in all; what does not fit any more is skipped.")
    ] = 220.0,
    seed: Annotated[int, typer.Option(min=0, help="Of bytes and images.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Findings as JSON, not a table.")] = False,
) -> None:
    """Does staging keep its promises on this GPU: bytes, overlap, bandwidth, bounds?

    Exit code 1 where one is broken. Without a GPU it says so and ends with 0.

    Examples:

        mmlab bench gpu

        mmlab bench gpu --budget-s 100 --out gpu.json
    """
    from mmlab.bench.gpu.checks import all_checks, settle
    from mmlab.bench.gpu.context import Context
    from mmlab.bench.gpu.findings import failed, records, rows, run_checks
    from mmlab.staging import resolve_device
    from mmlab.staging.device import cuda_problem

    problem = cuda_problem()
    if problem is not None:
        typer.echo(json.dumps({"skipped": problem}) if as_json else f"skipped: {problem}")
        return
    path = out if out is not None else Path(RUNS) / f"gpu-check-{utc_stamp()}.json"
    make_folder(path.parent)
    head = {
        "environment": msgspec.to_builtins(environment.collect()),
        "budget_s": budget_s,
        "seed": seed,
    }

    def store(findings: Sequence[Finding]) -> None:
        """After every check, so that a machine which is taken away leaves what was found."""
        keep(path, {**head, "findings": records(findings)})

    progress = ProgressLog([])
    context = Context(resolve_device("cuda"), seed=seed, say=progress.say)
    faulthandler.dump_traceback_later(budget_s + HUNG_S, exit=True, file=sys.__stderr__ or 2)
    try:
        findings = run_checks(
            all_checks(),
            context,
            budget_s=budget_s,
            clock=time.monotonic,
            tell=store,
            settle=settle,
        )
    finally:
        faulthandler.cancel_dump_traceback_later()
    broken = failed(findings)
    if as_json:
        typer.echo(json.dumps({**head, "findings": records(findings)}))
    else:
        typer.echo(table(HEAD, rows(findings), left=len(HEAD)))
        typer.echo(f"\n{verdict(findings)}")
    typer.echo(path, err=True)
    if broken:
        raise typer.Exit(1)


def verdict(findings: Sequence[Finding]) -> str:
    """One line: how many were as promised, and what was not looked at."""
    from mmlab.bench.gpu.findings import failed

    judged = [finding for finding in findings if finding.ok is not None]
    broken = failed(findings)
    skipped = [finding.name for finding in findings if finding.got.startswith("skipped")]
    line = f"{len(judged) - len(broken)} of {len(judged)} as promised"
    if broken:
        line += f"; not: {', '.join(broken)}"
    if skipped:
        line += f"; skipped: {', '.join(skipped)}"
    return line
