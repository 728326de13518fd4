"""Figures from result rows: each function reads rows and returns a `Figure`, `save` writes it.

figure = plots.latency(rows)
plots.save(figure, out_dir, "latency")      # latency.png and latency.svg
"""

from mmlab.plots.latency import latency
from mmlab.plots.memory import memory
from mmlab.plots.run import draw, picture
from mmlab.plots.stages import stages
from mmlab.plots.style import LOOKS, ORDER, Look, look, ordered, save
from mmlab.plots.summary import published_note, read_published, summary

__all__ = [
    "LOOKS",
    "ORDER",
    "Look",
    "draw",
    "latency",
    "look",
    "memory",
    "ordered",
    "picture",
    "published_note",
    "read_published",
    "save",
    "stages",
    "summary",
]
