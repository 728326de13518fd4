"""Where the time of a request goes: its stages end to end, for each strategy.

Above the whole request, with the model; below the stages between processor and device on a scale of
their own, since they are what the strategies differ in.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mmlab.bench.summary import DELIVERY
from mmlab.measure.clocks import seconds_text
from mmlab.pipeline.messages import STAGES
from mmlab.plots import rows as r
from mmlab.plots import style

# Work that every strategy does alike is grey; the delivery has colours that darken on the way
# (none of them is a strategy's). Label, colour, hatch.
LOOKS: dict[str, tuple[str, str, str]] = {
    "processor": ("processor", "#d9d9d9", ""),
    "encode": ("encode", "#f6b48f", ""),
    "transport": ("transport", "#f37651", "//"),
    "decode": ("decode", "#e13342", ""),
    "reduce": ("reduce", "#a11a5b", "\\\\"),
    "h2d": ("copy to device", "#4c1d4b", ""),
    "encoder": ("vision encoder", "#b8b8b8", "--"),
    "prefill": ("prefill", "#8f8f8f", ""),
    "decode_tokens": ("decode tokens", "#6a6a6a", "||"),
}


_SUMS = (
    "The number at a bar is the sum of its stages' medians, not the median of the sum: "
    "it can differ from the median in the table."
)


def stages(rows: r.Rows, group: str | None = None) -> Figure:
    """Median seconds of each stage, stacked in the order of the journey, for one case.

    `group` names the case; the default is the sequential one with the most images, since in
    the mix a request's transport includes its waiting for the others.
    """
    table = r.records(rows)
    chosen = group if group is not None else _largest(table)
    table = r.records(r.of(table, group=chosen))
    names = r.strategies(table)
    medians = {name: _medians(r.of(table, strategy=name)) for name in names}
    with matplotlib.rc_context(style.RC):  # type: ignore[arg-type]
        figure = style.new_figure(2.1 + 0.72 * len(names), foot_in=0.46)
        above, below = figure.subplots(2, 1)
        _stack(above, medians, STAGES)
        above.set_title(f"One request, stage by stage ({chosen})")
        _stack(below, medians, DELIVERY)
        below.set_title("The coloured part alone: from the processor's output to the device")
        handles = [
            Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=label)
            for label, colour, hatch in LOOKS.values()
        ]
        figure.legend(handles=handles, loc="outside right upper", borderaxespad=0.6)
        style.stamp(figure, f"{_SUMS}\n{r.footing(table)}")
    return figure


def _largest(table: Sequence[r.Row]) -> str:
    found = r.groups(table)
    return [name for name in found if name != r.MIX][-1] if found != [r.MIX] else r.MIX


def _medians(table: Sequence[r.Row]) -> dict[str, float]:
    """Median seconds of each stage; a stage that no row has is missing."""
    found = {stage: r.values(table, f"{stage}_s") for stage in STAGES}
    return {stage: float(np.median(some)) for stage, some in found.items() if some.size}


def _stack(axes: Axes, medians: dict[str, dict[str, float]], shown: Sequence[str]) -> None:
    totals = {
        name: sum(seconds for stage, seconds in found.items() if stage in shown)
        for name, found in medians.items()
    }
    longest = max(totals.values(), default=0.0) or 1e-6
    factor, unit = r.time_unit(longest)
    for place, found in enumerate(medians.values()):
        left = 0.0
        for stage in shown:
            seconds = found.get(stage, 0.0)
            if seconds <= 0:
                continue
            _, colour, hatch = LOOKS[stage]
            axes.barh(
                place,
                seconds * factor,
                left=left * factor,
                height=0.62,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.5,
            )
            left += seconds
        axes.text(
            (left + 0.008 * longest) * factor,
            place,
            seconds_text(left),
            va="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(medians)), list(medians))
    axes.invert_yaxis()
    axes.set_xlim(0, longest * factor * 1.13)
    axes.set_xlabel(f"time ({unit})")
    style.grid(axes, "x")
