"""The sweep of `mmlab bench wire`: encode and decode times over the size of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from mmlab.bench.wire.report import nbytes_text
from mmlab.plots import style

Rows = Sequence[dict[str, str | int | float | None]]
_FORMS = {
    "one batch": "items of one batch",
    "separate": "items, a tensor each",
    "tensors": "a list of tensors",
}
_COUNTS = {1: ("#b4560a", "o"), 4: ("#efb32c", "s"), 16: ("#1789b5", "^"), 64: ("#12127a", "D")}


def sweep(rows: Rows, peer: str | None, where: str) -> Figure:
    """mmlab's time over the peer's by size, number and form; below 1 mmlab is faster.

    Without a peer: mmlab's times in microseconds. `where`: machine and versions, for the foot.
    """
    if peer is None:
        heading = "One message: time by size and number of tensors"
        drawn = [
            {**r, "ratio": r["median_us"], "ratio_low": r["low_us"], "ratio_high": r["high_us"]}
            for r in rows
        ]
    else:
        heading = f"One message: mmlab against {peer} (below 1: mmlab is faster)"
        drawn = [row for row in rows if row["ratio"] is not None]
    with matplotlib.rc_context(style.RC):  # type: ignore[arg-type]
        figure = style.new_figure(5.6)
        grid = figure.subplots(2, len(_FORMS), sharex=True, sharey=True)
        for column, (form, title) in enumerate(_FORMS.items()):
            for line, what in enumerate(("encode", "decode")):
                axes = grid[line][column]
                mine = [row for row in drawn if (row["case"], row["what"]) == (form, what)]
                _panel(axes, mine, compared=peer is not None)
                if line == 0:
                    axes.set_title(title)
                else:
                    axes.set_xlabel("size of a tensor (bytes)")
                if column == 0:
                    axes.set_ylabel(f"{what} time / {peer}'s" if peer else f"{what} time (us)")
        handles = [
            Line2D([], [], color=colour, marker=marker, label=f"{n} item{'s' if n > 1 else ''}")
            for n, (colour, marker) in _COUNTS.items()
        ]
        style.heading(figure, heading)
        figure.legend(handles=handles, loc="outside right upper", borderaxespad=0.2)
        style.stamp(figure, where)
    return figure


def _panel(axes: Axes, rows: Rows, *, compared: bool) -> None:
    for n, (colour, marker) in _COUNTS.items():
        mine = sorted((r for r in rows if r["tensors"] == n), key=lambda r: _f(r["tensor_nbytes"]))
        if not mine:
            continue
        size = [_f(r["tensor_nbytes"]) for r in mine]
        ratio = [_f(r["ratio"]) for r in mine]
        low = [_f(r["ratio"]) - _f(r["ratio_low"]) for r in mine]
        high = [_f(r["ratio_high"]) - _f(r["ratio"]) for r in mine]
        axes.errorbar(
            size, ratio, yerr=[low, high], color=colour, marker=marker, ms=4, lw=1.2, elinewidth=0.8
        )
    if compared:
        axes.axhline(1.0, color=style.INK, lw=0.9, ls=(0, (4, 3)))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_bytes))
    axes.set_xticks([16, 1 << 10, 1 << 16, 1 << 22])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(True)


def _f(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)


def _bytes(value: float, _: object) -> str:
    return nbytes_text(int(value))
