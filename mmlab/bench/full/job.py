"""`mmlab run --full`: the workload of #16432 at full size, and what the two changes published.

128 different images of 896 x 896, 8 prompts of 4 to 1 of 32, then all 15 at once: with `echo`,
where nothing but the way counts, and with a model. On a GPU also #19169: several images a prompt,
stacked into pageable or pinned memory. Sizes that do not fit into memory are left out and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mmlab.bench import results, run, summary
from mmlab.bench.full import published, table
from mmlab.bench.full.cases import Line, lines
from mmlab.bench.progress import Log, to_stderr
from mmlab.bench.spec import ECHO, RunSettings
from mmlab.errors import MMLabError
from mmlab.staging.device import cuda_problem
from mmlab.strategies import REGISTRY

WITH_MODEL: Final = ("pickle", "msgpack", "arena")
STAGED: Final = ("msgpack", "msgpack-pinned", "msgpack-pool", "arena-direct")
TINY: Final = "gemma3-tiny"
LARGE: Final = "gemma3-4b"
TABLE: Final = "pull_requests"  # .md, .png, .svg


@dataclass(frozen=True)
class Part:
    """One run of the job, in a folder of its own."""

    name: str
    settings: RunSettings


def parts(base: RunSettings, strategies: Sequence[str]) -> list[Part]:
    """The runs, from what the user chose: seed, images, device, budget. `strategies`: of `echo`."""
    plain = msgspec.structs.replace(
        base,
        workload="doc-mix",
        repeats=1,
        memory_trials=1,
        min_samples=1,
        keep_going=True,
        leave_out=True,
    )
    found = [
        Part("echo", msgspec.structs.replace(plain, strategies=tuple(strategies), model=ECHO)),
        Part(TINY, msgspec.structs.replace(plain, strategies=WITH_MODEL, model=TINY)),
    ]
    if base.device != "cpu" and cuda_problem() is None:
        staged = msgspec.structs.replace(
            plain, strategies=STAGED, model=LARGE, workload="multi", repeats=3, memory_trials=0
        )
        found.append(Part(LARGE, staged))
    return found


def all_strategies(device: str) -> tuple[str, ...]:
    """Every way of float32 that this machine can run, those that unpickle too."""
    gpu = device != "cpu" and cuda_problem() is None
    return tuple(
        name
        for name, strategy in REGISTRY.items()
        if (gpu or not strategy.needs_gpu) and strategy.payload == "float32"
    )


def execute(chosen: Sequence[Part], folder: Path, log: Log = to_stderr) -> None:
    """Runs every part into a folder below `folder`. What was finished stays on Ctrl-C.

    A part that fails lets the others run; the first error is raised at the end.
    """
    first_error: MMLabError | None = None
    for part in chosen:
        log(f"{part.name}: {', '.join(part.settings.strategies)}")
        try:
            run.run_trials(part.settings, folder / part.name, log=log)
        except MMLabError as error:
            log(f"{part.name}: {error}")
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def measured(folder: Path) -> dict[str, list[Line]]:
    """Model -> lines of #16432's table, from the folders of the parts that are there."""
    return {
        name: lines(results.read(folder / name), results.read(folder / name, "samples"))
        for name in ("echo", TINY)
        if (folder / name / "results.parquet").is_file()
    }


def tables(folder: Path) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """(title, head, rows): measured by model, then as published, then #19169's."""
    found: list[tuple[str, Sequence[str], list[list[str]]]] = []
    for model, ours in measured(folder).items():
        rows = [table.cells(line) for line in ours]
        found.append((f"measured here, {model}", table.HEAD, rows))
    for source, theirs in table.published_lines(published.figures()).items():
        found.append((f"published: {source}", table.HEAD, [table.cells(line) for line in theirs]))
    head = ("#19169: stacking into pinned memory", "throughput")
    if (folder / LARGE / "results.parquet").is_file():
        found.append((f"measured here, {LARGE}", head, _gains(folder / LARGE)))
    rows = [[what, gain] for what, gain in table.pinned_lines(published.figures())]
    found.append(("published: gain by pinned memory", head, rows))
    return found


def _gains(folder: Path) -> list[list[str]]:
    """Images a second of each way of staging, over pageable memory."""
    overview = summary.overview(results.read(folder), results.read(folder, "memory"))
    rate = {str(entry["strategy"]): entry["images_per_s"] for entry in overview}
    base = rate.get(STAGED[0])
    if not isinstance(base, float):
        return []
    return [
        [f"{name} over {STAGED[0]}", f"{(value / base - 1) * 100:+.1f} %"]
        for name, value in rate.items()
        if isinstance(value, float) and name != STAGED[0]
    ]


def remarks(folder: Path) -> list[str]:
    """Ratios beside the published ones, and what was left out."""
    source = table.published_lines(published.figures())[published.DESCRIPTION]
    said = [
        f"{model}, {line}"
        for model, ours in measured(folder).items()
        for line in table.ratios(ours, source)
    ]
    for path in sorted(folder.glob("*/trials.parquet")):
        trials = results.read(path.parent, "trials")
        for row in trials[trials["reason"] != ""].itertuples():
            said.append(f"{path.parent.name}, {row.strategy}: {row.status}: {row.reason}")
    return list(dict.fromkeys(said))


def write(folder: Path) -> Path:
    """The tables as Markdown and as a figure, in `folder`; returns the Markdown's path."""
    from mmlab.plots import rows as plotted
    from mmlab.plots import style
    from mmlab.plots.pull_request import pull_request

    text = ["# The tables of vLLM #16432 and #19169\n"]
    for title, head, rows in tables(folder):
        text.append(f"## {title}\n\n{table.markdown(head, rows)}\n")
    text += [f"- {line}" for line in remarks(folder)]
    source = table.published_lines(published.figures())[published.DESCRIPTION]
    ours = measured(folder)
    if ours:
        where = plotted.footing(plotted.records(results.read(folder / next(iter(ours)))))
        style.save(pull_request(ours, source, where), folder, TABLE)
        text.insert(1, f"![memory by images a prompt]({TABLE}.png)\n")
    path = folder / f"{TABLE}.md"
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path
