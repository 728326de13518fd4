"""How long a request takes, by strategy and case: in all, and from processor to device alone.

The right panel is there because the model dominates the left one on a CPU: what a strategy changes
is the delivery, and a figure of the total alone would hide a difference of ten times in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmlab.plots import rows as r
from mmlab.plots import style

Samples = Callable[[Iterable[r.Row]], r.Floats]


def latency(rows: r.Rows) -> Figure:
    """p50 with its 95 % interval (marker, bar) and p95 (dash) of each strategy in each case."""
    table = r.records(rows)
    names, groups = r.strategies(table), r.groups(table)
    alone = [group for group in groups if group != r.MIX]
    panels: list[tuple[str, str, list[str], Samples]] = []
    if alone:
        panels.append(("Whole request", "latency", alone, _whole))
    if r.MIX in groups:
        panels.append(("All at once", "latency", [r.MIX], _whole))
    panels.append(("Processor to device alone", "delivery", alone or groups, r.delivery))
    with matplotlib.rc_context(style.RC):  # type: ignore[arg-type]
        figure = style.new_figure(4.2, foot_in=0.46)
        widths = [max(len(panel[2]), 1.25) for panel in panels]
        axes = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
        for panel, (title, what, shown, take) in zip(axes, panels, strict=True):
            unit = _points(panel, table, names, shown, take)
            panel.set_title(title)
            means = ":\nprocessor's output to the device" if what == "delivery" else ""
            panel.set_ylabel(f"{what} ({unit}){means}")
        style.legend_above(figure, names, "points")
        marks = f"marker: p50 of {_samples(table)}, bar: its 95 % interval, dash: p95"
        style.stamp(figure, f"{marks}\n{r.footing(table)}")
    return figure


def _samples(table: Sequence[r.Row]) -> str:
    """`n = 5 samples`, or `n = 5 to 40 samples` where strategies or cases have different counts."""
    counts = Counter((r.text(row, "strategy"), r.group(row)) for row in table).values()
    least, most = min(counts), max(counts)
    said = f"{least}" if least == most else f"{least} to {most}"
    return f"n = {said} sample{'s' if most > 1 else ''}"


def _whole(rows: Iterable[r.Row]) -> r.Floats:
    return r.values(rows, "latency_s")


def _points(
    axes: Axes, table: Sequence[r.Row], names: Sequence[str], groups: Sequence[str], take: Samples
) -> str:
    """One marker for each strategy in each group. Returns the unit of the y axis."""
    spreads = {
        (name, group): r.spread(take(r.of(table, strategy=name, group=group)))
        for name in names
        for group in groups
    }
    medians = [spread.p50 for spread in spreads.values() if spread.n]
    factor, unit = r.time_unit(max(medians, default=1.0))
    size = 8.0 if len(names) <= 5 else 6.0
    step = min(0.8 / max(len(names), 1), 0.2)
    for (name, group), spread in spreads.items():
        if not spread.n:
            continue
        offset = (names.index(name) - (len(names) - 1) / 2) * step
        _point(axes, groups.index(group) + offset, spread, factor, style.look(name), size)
    positive = [value for value in medians if value > 0]
    wide = bool(positive) and max(positive) > 25 * min(positive)
    if wide:
        axes.set_yscale("log")
        _plain_ticks(axes)
    else:
        axes.set_ylim(bottom=0)
    ticks, what = _ticks(groups)
    axes.set_xticks(range(len(groups)), ticks)
    axes.set_xlabel(what)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    for edge in np.arange(len(groups) - 1) + 0.5:
        axes.axvline(edge, color="#e3e3e3", lw=0.8, zorder=0)
    style.grid(axes, "y")
    return unit


def _ticks(groups: Sequence[str]) -> tuple[list[str], str]:
    """Short tick labels and the label of the axis: "4", "8" ... where all cases are "n images"."""
    numbers = [group.removesuffix(" images").removesuffix(" image") for group in groups]
    if all(number.isdigit() for number in numbers):
        return numbers, "images in the request"
    if list(groups) == [r.MIX]:
        return [""], "whole workload"
    return [_wrapped(group) for group in groups], "request"


def _point(
    axes: Axes, x: float, spread: r.Spread, factor: float, look: style.Look, size: float
) -> None:
    p50, p95 = spread.p50 * factor, spread.p95 * factor
    if spread.n > 1:
        axes.plot([x, x], [p50, p95], color=look.colour, lw=0.9, zorder=2)
        axes.plot(x, p95, color=look.colour, marker="_", ms=size + 4, mew=1.5, zorder=2)
        axes.plot(
            [x, x],
            [spread.low * factor, spread.high * factor],
            color=look.colour,
            lw=3.2,
            alpha=0.55,
            solid_capstyle="butt",
            zorder=2,
        )
    axes.plot(x, p50, color=look.colour, marker=look.marker, ms=size, zorder=3)


def _plain_ticks(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _wrapped(label: str) -> str:
    """A case label on two lines where it is long: neighbours must not touch."""
    words = label.split()
    if len(label) <= 9 or len(words) < 2:
        return label
    cuts = range(1, len(words))
    best = min(cuts, key=lambda i: max(len(" ".join(words[:i])), len(" ".join(words[i:]))))
    return " ".join(words[:best]) + "\n" + " ".join(words[best:])
