"""`mmlab bench soak`: memory of both processes over the minutes, and what the arena held meanwhile.

The dashed lines are the two quiet readings: they must be at one height. What lies between them is
load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmlab.plots import style

MB = 1e6
BOTH, FRONTEND, ENGINE, ARENA = style.INK, "#1789b5", "#b4560a", "#efb32c"
PSS = "PSS: memory of a process without files, shared pages divided among those who share them"


def soak(result: Mapping[str, Any], where: str) -> Figure:
    """`result` as `soak.json` has it; `where`: machine, versions and date, for the foot."""
    rows = result["rows"]
    per_minute = 60.0 if rows[-1]["time_s"] >= 120 else 1.0
    with matplotlib.rc_context(style.RC):  # type: ignore[arg-type]
        figure = style.new_figure(5.6, foot_in=0.46)
        memory, load = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        x = [row["time_s"] / per_minute for row in rows]
        both = [_sum(row["pss_frontend"], row["pss_engine"]) for row in rows]
        _line(memory, x, both, BOTH, "both")
        _line(memory, x, [row["pss_frontend"] for row in rows], FRONTEND, "frontend")
        _line(memory, x, [row["pss_engine"] for row in rows], ENGINE, "engine")
        live = [row["arena_live_nbytes"] for row in rows]
        if any(n is not None for n in live):
            memory.fill_between(
                x, [(n or 0) / MB for n in live], color=ARENA, alpha=0.6, lw=0, label="arena, live"
            )
        for reading in result["readings"]:
            _reading(memory, reading, per_minute)
        memory.set_ylim(bottom=0)
        memory.set_ylabel("PSS (MB)")
        style.grid(memory, "y")
        load.fill_between(x, [row["answered_per_s"] for row in rows], color="#8f8d8b", lw=0)
        load.set_ylim(bottom=0)
        load.set_ylabel("answered / s")
        load.set_xlabel("minutes" if per_minute > 1 else "seconds")
        load.set_xlim(0, max(x))
        style.grid(load, "y")
        strategy, device = result["settings"]["strategy"], result["device"]
        style.heading(figure, f"{_minutes(rows)} of random load, {strategy}, engine on {device}")
        handles, _ = memory.get_legend_handles_labels()
        memory.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(handles)
        )
        style.stamp(figure, f"{PSS}\n{where}")
    return figure


def _line(
    axes: Axes, x: Sequence[float], values: Sequence[int | None], colour: str, label: str
) -> None:
    y = [float("nan") if value is None else value / MB for value in values]
    axes.plot(x, y, color=colour, lw=1.3, label=label)


def _reading(axes: Axes, reading: Mapping[str, Any], per_minute: float) -> None:
    """A mark at the moment, its height as a number."""
    pss = _sum(reading["frontend"]["pss"], reading["engine"]["pss"])
    if pss is None:
        return
    x = reading["time_s"] / per_minute
    axes.axhline(pss / MB, color=BOTH, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axes.plot([x], [pss / MB], "D", color="white", mec=BOTH, mew=1.6, ms=8, zorder=5, clip_on=False)
    early = x < axes.get_xlim()[1] / 2
    axes.annotate(
        f"quiet, {reading['name']}: {pss / MB:.1f} MB",
        (x, pss / MB),
        (8 if early else -8, -16),
        textcoords="offset points",
        ha="left" if early else "right",
        fontsize=9.5,
        fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
        zorder=6,
    )


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _minutes(rows: Sequence[Mapping[str, Any]]) -> str:
    seconds = rows[-1]["time_s"]
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
