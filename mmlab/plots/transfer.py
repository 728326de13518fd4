"""`mmlab bench transfer`: time of a message over the number of images, a line a way."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from mmlab.plots import style

Rows = Sequence[dict[str, str | int | float | None]]
LIMIT = "memcpy"
# Ways that are no strategies take the look of one, as its variants: dotted with an open marker.
_LIKE = {
    "pickle5": "pickle",
    "msgpack-untuned": "msgpack",
    "arena-in-place": "arena",
    "vllm-inline": "vllm",
    "vllm-torch-shm": "torch-shm",
}
_OWN = {"segments": style.Look("#8c8c8c", "8", ""), "vllm-store": style.Look("#a04fb8", "H", "")}


def transfer(rows: Rows, where: str) -> Figure:
    """A panel for each dtype. `where`: machine and versions, for the foot."""
    dtypes = list(dict.fromkeys(str(row["dtype"]) for row in rows))
    ways = list(dict.fromkeys(str(row["way"]) for row in rows))
    sizes = sorted({_f(row["images"]) for row in rows})
    with matplotlib.rc_context(style.RC):  # type: ignore[arg-type]
        figure = style.new_figure(4.9)
        panels = figure.subplots(1, len(dtypes), sharex=True, sharey=True, squeeze=False)[0]
        for axes, dtype in zip(panels, dtypes, strict=True):
            for way in ways:
                _line(axes, way, [r for r in rows if (r["way"], r["dtype"]) == (way, dtype)])
            axes.set_title(dtype)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(sizes)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel("images in a message")
            axes.grid(True)
        panels[0].set_ylabel("encode to batch (ms)")
        size = rows[0]["image_size"]
        style.heading(figure, f"One message of n images 3 x {size} x {size}, to another process")
        handles = [Line2D([], [], label=way, **_look(way)) for way in ways]  # type: ignore[arg-type]
        figure.legend(handles=handles, loc="outside right upper", borderaxespad=0.2)
        style.stamp(figure, where)
    return figure


def _line(axes: Axes, way: str, rows: Rows) -> None:
    mine = sorted(rows, key=lambda row: _f(row["images"]))
    middle = [_f(row["median_s"]) * 1e3 for row in mine]
    low = [_f(row["median_s"]) * 1e3 - _f(row["low_s"]) * 1e3 for row in mine]
    high = [_f(row["high_s"]) * 1e3 - _f(row["median_s"]) * 1e3 for row in mine]
    axes.errorbar(
        [_f(row["images"]) for row in mine],
        middle,
        yerr=[[max(0.0, x) for x in low], [max(0.0, x) for x in high]],
        elinewidth=0.8,
        **_look(way),  # type: ignore[arg-type]
    )


def _look(way: str) -> dict[str, object]:
    if way == LIMIT:
        return {"color": style.INK, "ls": (0, (4, 3)), "lw": 1.1}
    found = _OWN.get(way) or style.look(_LIKE.get(way, way))
    look: dict[str, object] = {"color": found.colour, "marker": found.marker, "ms": 5, "lw": 1.4}
    if way in _LIKE:
        look |= {"ls": (0, (1, 1.5)), "mfc": "white"}
    return look


def _f(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)
