"""The table of #16432 as a figure: peak memory by images a prompt, ours beside the published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from mmlab.bench.full.cases import SIZES, Line
from mmlab.plots import style

_PUBLISHED = (("#4a4a4a", "X"), ("#8f8d8b", "P"), ("#6cc8ee", "s"), ("#1789b5", "o"))


def pull_request(
    measured: Mapping[str, Sequence[Line]], published: Sequence[Line], where: str
) -> Figure:
    """A panel for each model that was measured, and one of the published lines.

    `measured`: model -> its lines; `where`: machine and versions, for the foot. A size that did not
    fit into memory ends its line.
    """
    panels = [*measured.items(), ("published (vLLM, Gemma 3, other machine)", published)]
    with matplotlib.rc_context(style.RC):  # type: ignore[arg-type]
        figure = style.new_figure(4.6)
        found = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (title, lines) in zip(found, panels, strict=True):
            ours = title in measured
            handles = [_draw(axes, line, ours, at) for at, line in enumerate(lines)]
            axes.set_title(f"measured here: {title}" if ours else title)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.set_xticks(SIZES)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel("images a prompt")
            axes.grid(True)
            axes.legend(handles=handles, loc="upper left", fontsize=8)
        found[0].set_ylabel("peak memory of all processes (GB)")
        style.heading(figure, "Memory by images a prompt, as in the table of vLLM #16432")
        style.stamp(figure, where)
    return figure


def _draw(axes: Axes, line: Line, ours: bool, at: int) -> Line2D:
    if ours:
        look = style.look(line.config)
        colour, marker, dashes = look.colour, look.marker, "-"
    else:
        (colour, marker), dashes = _PUBLISHED[at % len(_PUBLISHED)], "--"
    sizes = [size for size in SIZES if size in line.memory]
    (drawn,) = axes.plot(
        sizes,
        [line.memory[size] for size in sizes],
        color=colour,
        marker=marker,
        ms=5,
        lw=1.4,
        ls=dashes,
        label=line.config,
    )
    return drawn
