"""One look for every figure: a strategy has the same colour, marker and place wherever it appears.

The colours come in families (greys pickle, blues msgpack, ambers arena, greens the real vLLM) and
keep a distance from each other for the three kinds of colour blindness; on a greyscale print the
hatch (bars) and the marker (points) still tell them apart. Figures are plain `Figure` objects:
no pyplot, so no global state, no backend to choose and nothing to close.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator


@dataclass(frozen=True)
class Look:
    """How one strategy is drawn, in points (marker) and in bars (hatch)."""

    colour: str
    marker: str
    hatch: str


# The order is DESIGN's: it is the order of every legend, table and axis.
LOOKS: dict[str, Look] = {
    "pickle": Look("#4a4a4a", "X", ""),
    "pickle-batch": Look("#8f8d8b", "P", "xx"),
    "msgpack-inline": Look("#6cc8ee", "s", "//"),
    "msgpack": Look("#1789b5", "o", ".."),
    "msgpack-pinned": Look("#4050d8", "^", "\\\\"),
    "msgpack-pool": Look("#12127a", "D", "--"),
    "torch-shm": Look("#d8a0bd", "v", "oo"),
    "arena": Look("#efb32c", "p", "++"),
    "arena-direct": Look("#b4560a", "h", "||"),
    "arena-uint8": Look("#790c0c", "*", "//.."),
    "vllm": Look("#237a45", "<", "\\\\.."),
    "vllm-tuned": Look("#97d98a", ">", "/-"),
    "vllm-arena": Look("#02332a", "d", "**"),
}
ORDER: tuple[str, ...] = tuple(LOOKS)
_OTHER = (Look("#a04fb8", "2", "O"), Look("#c9b3d1", "H", "\\-"), Look("#5c1f6e", "1", "+."))

INK = "#222222"
FAINT = "#6b6b6b"
WIDTH_IN = 9.0  # at 100 px an inch this is the width GitHub gives a README
DPI = 180
RC: dict[str, object] = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.labelsize": 10.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#8a8a8a",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "mmlab",  # the same figure gives the same file
}


def look(strategy: str) -> Look:
    """The fixed look of a strategy; a name that mmlab does not ship gets a purple one."""
    found = LOOKS.get(strategy)
    return found if found is not None else _OTHER[sum(strategy.encode()) % len(_OTHER)]


def ordered(names: Iterable[str]) -> list[str]:
    """Each name once: the known ones in the fixed order, then all others by name."""
    place = {name: number for number, name in enumerate(ORDER)}
    return sorted(set(names), key=lambda name: (place.get(name, len(place)), name))


def new_figure(height_in: float, width_in: float = WIDTH_IN, foot_in: float = 0.27) -> Figure:
    """An empty figure with room for the stamp at its foot."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    engine = figure.get_layout_engine()
    assert engine is not None
    foot = foot_in / height_in
    engine.set(rect=(0.0, foot, 1.0, 1.0 - foot), h_pad=0.05, w_pad=0.08)  # type: ignore[call-arg]
    return figure


def stamp(figure: Figure, text: str) -> None:
    """Write where and when the rows were measured, in small type at the foot."""
    foot = 0.06 / figure.get_size_inches()[1]
    figure.text(0.01, foot, text, ha="left", va="bottom", fontsize=7.5, color=FAINT)


def heading(figure: Figure, text: str) -> None:
    """What the whole figure shows, over its panels."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=11.5, fontweight="bold")


def label(axes: Axes, x: float, y: float, strong: str, faint: Sequence[str] = ()) -> None:
    """Text behind the end of a bar: the value, and below it what else belongs to it."""
    lines = [(strong, INK, "bold"), *((line, FAINT, "normal") for line in faint)]
    for number, (words, colour, weight) in enumerate(lines):
        below = (number - (len(lines) - 1) / 2) * 11.5
        axes.annotate(
            words,
            (x, y),
            (6, -below),
            textcoords="offset points",
            va="center_baseline",
            fontsize=9.5,
            fontweight=weight,
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.4},
            zorder=4,
        )


def legend_above(figure: Figure, strategies: Sequence[str], kind: str) -> None:
    """One legend over the whole figure, in the fixed order; `kind` is "points" or "bars"."""
    handles: list[Artist] = []
    for name in strategies:
        style = look(name)
        if kind == "bars":
            handles.append(
                Patch(facecolor=style.colour, edgecolor="white", hatch=style.hatch, label=name)
            )
        else:
            handles.append(
                Line2D([], [], color=style.colour, marker=style.marker, ls="", ms=8, label=name)
            )
    columns = min(len(handles), 6) or 1
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        columnspacing=1.4,
        handletextpad=0.5,
        borderaxespad=0.2,
    )


def grid(axes: Axes, axis: str) -> None:
    """Faint lines along one axis ("x" or "y"), under the data."""
    axes.grid(True, axis="x" if axis == "x" else "y")
    along = axes.xaxis if axis == "x" else axes.yaxis
    if along.get_scale() == "linear":
        along.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def bar(axes: Axes, place: float, length: float, look: Look, height: float = 0.62) -> None:
    """A horizontal bar in a strategy's colour and hatch."""
    axes.barh(
        place,
        length,
        height=height,
        color=look.colour,
        hatch=look.hatch,
        edgecolor="white",
        linewidth=0.5,
    )


def interval(axes: Axes, place: float, low: float, high: float) -> None:
    """An interval over a bar, dark on a light edge so that it shows on every colour."""
    if high <= low:
        return
    for colour, wide in (("white", 3.6), (INK, 1.4)):
        axes.plot([low, high], [place, place], color=colour, lw=wide, solid_capstyle="butt")
    axes.plot([low, high], [place, place], "|", color=INK, ms=8, mew=1.4)


def save(figure: Figure, out_dir: str | os.PathLike[str], name: str) -> Path:
    """Write `name.png` (256 colours, so that a notebook of figures stays small) and `name.svg`.

    Returns the path of the PNG.
    """
    from PIL import Image

    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    png = folder / f"{name}.png"
    with matplotlib.rc_context(RC):  # type: ignore[arg-type]
        figure.savefig(folder / f"{name}.svg", format="svg", metadata={"Date": None})
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI)
    with Image.open(buffer) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        small.save(png, optimize=True, dpi=(DPI, DPI))
    return png
