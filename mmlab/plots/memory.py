"""How much memory a strategy needs at its peak, as a multiple of the payload it carries.

The multiple says what the bytes cannot: 1x is the payload once. Frontend and engine peak at
different moments, so "both" is the highest sum at one moment and not the sum of the peaks.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmlab.plots import rows as r
from mmlab.plots import style

PSS = "PSS: memory of a process, shared pages divided among those who share them"
PANELS = {
    "frontend": "Frontend",
    "engine": "Engine",
    "both": "Both at one moment",
}


def memory(rows: r.Rows, stamp_from: r.Rows | None = None) -> Figure:
    """Peak PSS above the baseline over the payload, by strategy and process; median of the trials.

    `stamp_from`: result rows of the same run, since memory rows do not say which device it was.
    """
    table = r.records(rows)
    names = r.strategies(table)
    shown = [process for process in PANELS if r.of(table, process=process)] or list(PANELS)
    longest = float(np.max([1.0, *r.values(table, "multiple")]))
    payload = r.values(table, "payload_nbytes")
    size = f" of {r.amount(payload.max() / 1e6)} MB" if payload.size else ""
    with matplotlib.rc_context(style.RC):  # type: ignore[arg-type]
        figure = style.new_figure(1.8 + 0.4 * len(names), foot_in=0.46)
        panels = figure.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False)[0]
        for axes, process in zip(panels, shown, strict=True):
            bars(axes, r.of(table, process=process), names, longest)
            axes.set_title(PANELS[process])
            axes.set_xlabel("peak PSS / payload (x), dashed: 1x")
        style.heading(figure, f"Peak memory above idle, as a multiple of the payload{size}")
        footing = r.footing(r.records(stamp_from) if stamp_from is not None else table)
        style.stamp(figure, f"{PSS}\n{footing}")
    return figure


def bars(axes: Axes, table: Sequence[r.Row], names: Sequence[str], longest: float) -> None:
    """One bar for each strategy, labelled with its multiple; the interval is drawn over it."""
    for place, name in enumerate(names):
        mine = r.of(table, strategy=name)
        spread, look = r.spread(r.values(mine, "multiple")), style.look(name)
        if not spread.n:
            axes.text(0.02 * longest, place, r.UNKNOWN, va="center", fontsize=9, color=style.FAINT)
            continue
        style.bar(axes, place, spread.p50, look)
        style.interval(axes, place, spread.low, spread.high)
        style.label(axes, max(spread.p50, spread.high), place, r.multiple(spread.p50))
    axes.axvline(1.0, color=style.INK, lw=0.9, ls=(0, (4, 3)), zorder=3)
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, longest * 1.25)
    style.grid(axes, "x")
