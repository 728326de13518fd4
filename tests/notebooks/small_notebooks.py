"""Makes small notebooks for tests, as the JSON that JupyterLab writes."""

from __future__ import annotations

import json
from pathlib import Path

PARAMETERS = """\
size: int = 4  # number of images
name: str = "a"  # name of the run
rate: float = 0.5  # share that is kept
fast: bool = False  # skip the slow part
names: list[str] = []  # strategies; empty for all
limit: float | None = None  # upper bound
out_dir: str = ""  # where results go
"""


def write(path: Path, *code: str, parameters: str | None = PARAMETERS) -> Path:
    """A notebook at `path`: a heading, the parameters cell (unless None), and cells of code."""
    cells = [_cell("markdown", "# What does it cost?")]
    if parameters is not None:
        cells.append(_cell("code", parameters, tags=["parameters"]))
    cells += [_cell("code", source) for source in code]
    for number, cell in enumerate(cells):
        cell["id"] = f"c{number}"
    document = {
        "cells": cells,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(document))
    return path


def _cell(kind: str, source: str, tags: list[str] | None = None) -> dict[str, object]:
    cell: dict[str, object] = {
        "cell_type": kind,
        "metadata": {"tags": tags} if tags else {},
        "source": source.splitlines(keepends=True),
    }
    return cell | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def outputs(path: Path) -> str:
    """All stream output of an executed notebook."""
    document = json.loads(path.read_text())
    found = [o for cell in document["cells"] for o in cell.get("outputs", [])]
    return "".join("".join(o["text"]) for o in found if o["output_type"] == "stream")
