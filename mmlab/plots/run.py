"""All figures of one run, as files: what the quickstart and the report show."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from mmlab.plots import rows as r
from mmlab.plots import style
from mmlab.plots.latency import latency
from mmlab.plots.memory import memory
from mmlab.plots.stages import stages
from mmlab.plots.summary import read_published, summary

if TYPE_CHECKING:
    from IPython.display import Image, Markdown


def draw(rows: r.Rows, memory_rows: r.Rows, out_dir: str | os.PathLike[str]) -> dict[str, Path]:
    """Write every figure that these rows allow. Returns its PNG by name, in order."""
    table, peaks = r.records_or_none(rows), r.records_or_none(memory_rows)
    figures: dict[str, Callable[[], Figure]] = {}
    if table:
        figures["summary"] = lambda: summary(table, peaks, read_published())
        figures["latency"] = lambda: latency(table)
        figures["stages"] = lambda: stages(table)
    if peaks:
        figures["memory"] = lambda: memory(peaks, table or None)
    return {name: style.save(make(), out_dir, name) for name, make in figures.items()}


def picture(figures: dict[str, Path], name: str) -> Image | Markdown:
    """A drawn figure for a notebook's output, at the width it was made for."""
    from IPython.display import Image, Markdown

    if name not in figures:
        return Markdown(f"*{name}: not measured in this run.*")  # type: ignore[no-untyped-call]
    wide = round(style.WIDTH_IN * 100)
    return Image(filename=str(figures[name]), width=wide)  # type: ignore[no-untyped-call]
