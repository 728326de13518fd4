"""The figure of the README: what each way costs, in time and in memory, in one look.

Published figures are noted in words and never drawn on these axes: they were measured on another
machine, with another model, over a whole serving process.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmlab import shipped
from mmlab.measure.clocks import seconds_text
from mmlab.plots import rows as r
from mmlab.plots import style


def summary(rows: r.Rows, memory_rows: r.Rows, published: Sequence[r.Row] | None = None) -> Figure:
    """Delivery time and peak memory multiple of each strategy, for the largest sequential case.

    Without memory rows it is the time alone.
    """
    table, peaks = r.records(rows), r.records_or_none(memory_rows)
    sequential = [row for row in table if r.group(row) != r.MIX] or table
    case = r.groups(sequential)[-1]
    chosen = r.of(sequential, group=case)
    names = style.ordered([*r.strategies(chosen), *r.strategies(peaks)])
    payload = r.values(chosen, "payload_nbytes")
    size = f" ({r.amount(payload.max() / 1e6)} MB of pixels)" if payload.size else ""
    note = published_note(published or ())
    foot = 0.27 + 0.19 * bool(note)
    with matplotlib.rc_context(style.RC):  # type: ignore[arg-type]
        figure = style.new_figure(1.45 + foot + 0.66 * len(names), foot_in=foot)
        panels = figure.subplots(1, 2 if peaks else 1, sharey=True, squeeze=False)[0]
        style.heading(figure, f"What a request of {case}{size} costs on its way to the model")
        _times(panels[0], chosen, names)
        if peaks:
            _peaks(panels[1], peaks, names)
        style.stamp(figure, (note + "\n" if note else "") + r.footing(table))
    return figure


def _times(axes: Axes, chosen: Sequence[r.Row], names: Sequence[str]) -> None:
    mine = {name: r.of(chosen, strategy=name) for name in names}
    spreads = {name: r.spread(r.delivery(some)) for name, some in mine.items()}
    longest = float(np.nanmax([max(spread.high, spread.p50) for spread in spreads.values()]))
    factor, unit = r.time_unit(longest)
    for place, (name, spread) in enumerate(spreads.items()):
        if not spread.n:
            style.label(axes, 0.0, place, r.UNKNOWN)
            continue
        style.bar(axes, place, spread.p50 * factor, style.look(name))
        style.interval(axes, place, spread.low * factor, spread.high * factor)
        whole = r.spread(r.values(mine[name], "latency_s"))
        style.label(
            axes,
            max(spread.p50, spread.high) * factor,
            place,
            seconds_text(spread.p50),
            [f"of {seconds_text(whole.p50)} in all"],
        )
    axes.set_yticks(range(len(names)), list(names), fontsize=11)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_xlim(0, longest * factor * 1.38)
    axes.set_title("Time from processor to device")
    axes.set_xlabel(f"delivery ({unit}): processor's output to the device", fontsize=9.5)
    style.grid(axes, "x")


def _peaks(axes: Axes, peaks: Sequence[r.Row], names: Sequence[str]) -> None:
    longest = float(np.max([1.0, *r.values(peaks, "multiple")]))
    for place, name in enumerate(names):
        mine = r.of(peaks, strategy=name)
        both, front, engine = (
            r.spread(r.values(r.of(mine, process=process), "multiple"))
            for process in ("both", "frontend", "engine")
        )
        if not both.n:
            style.label(axes, 0.0, place, r.UNKNOWN)
            continue
        style.bar(axes, place, both.p50, style.look(name))
        style.interval(axes, place, both.low, both.high)
        apart = [f"frontend {r.multiple(front.p50)}", f"engine {r.multiple(engine.p50)}"]
        style.label(axes, max(both.p50, both.high), place, r.multiple(both.p50), apart)
    axes.axvline(1.0, color=style.INK, lw=0.9, ls=(0, (4, 3)), zorder=3)
    axes.set_xlim(0, longest * 1.42)
    axes.set_title("Peak memory of both processes")
    axes.set_xlabel("peak memory above idle / payload (x), dashed: 1x", fontsize=9.5)
    style.grid(axes, "x")


def read_published(path: str | os.PathLike[str] | None = None) -> list[r.Row]:
    """The published figures (source, what, config, case, metric, unit, value) that ship with mmlab.

    `path`: another file of that kind. Empty where the data is not installed.
    """
    data = shipped.folder("data")
    place = Path(path) if path else data / "published" / "published.csv" if data else None
    if place is None or not (path or place.is_file()):
        return []
    with place.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def published_note(published: Sequence[r.Row]) -> str:
    """One sentence on #16432's own figures for 16 images a prompt, or "" where they are not known.

    From its later table, in which both paths are fixed; at 32 images its baseline ran out of
    memory.
    """
    table = [row for row in published if "#16432 later table" in r.text(row, "source")]

    def value(config: str, metric: str) -> str:
        found = [
            r.text(row, "value")
            for row in table
            if r.text(row, "config") == config
            and r.text(row, "metric") == metric
            and "x 16 images" in r.text(row, "case")
        ]
        return found[0] if found else ""

    before, after = "main (baseline)", "#16432 + zero-copy"
    numbers = [value(c, m) for m in ("peak memory", "time") for c in (before, after)]
    if not all(numbers):
        return ""
    return (
        "For comparison, published with vllm#16432 "
        "(another machine, whole server, 2 prompts x 16 images): "
        "{} → {} GB at the peak, {} → {} s.".format(*numbers)
    )
