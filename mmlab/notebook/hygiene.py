"""What a committed notebook looks like: stripped of all that changes without a reason, and checked.

`strip` is what `make notebooks` calls; `problems` is what the tests ask of every notebook.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from pathlib import Path

from mmlab.errors import UsageError
from mmlab.notebook import cell as parameters_cell
from mmlab.notebook import finding

MAX_NBYTES = 300_000
MAX_CELL_LINES = 15
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_ABSOLUTE = re.compile(r"""["'](/[A-Za-z]|~/|[A-Za-z]:\\)""")


def strip(path: str | os.PathLike[str], keep_outputs: bool = False) -> bool:
    """Remove counts, timestamps, injected cells and (unless kept) outputs. True: file has changed.

    Cell ids stay as they are; a missing or repeated one is made from the cell's place and text.
    """
    file = Path(path)
    document = finding.load(file)
    seen: set[str] = set()
    cells: list[finding.Cell] = []
    for cell in document["cells"]:
        kept = [tag for tag in finding.tags(cell) if not tag.startswith("papermill-error")]
        if "injected-parameters" in kept or len(kept) < len(finding.tags(cell)):
            continue
        cell["metadata"] = {"tags": kept} if kept else {}
        cell["source"] = cell["source"].rstrip()
        cell["id"] = _cell_id(cell, len(cells), seen)
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            cell["outputs"] = [_output(o) for o in cell["outputs"]] if keep_outputs else []
        cells.append(cell)
    document["cells"] = cells
    document["metadata"] = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    document["nbformat_minor"] = 5
    lines = [{**cell, "source": cell["source"].splitlines(keepends=True)} for cell in cells]
    text = json.dumps({**document, "cells": lines}, indent=1, sort_keys=True, ensure_ascii=False)
    changed = file.read_text(encoding="utf-8") != text + "\n"
    if changed:
        file.write_text(text + "\n", encoding="utf-8")
    return changed


def _cell_id(cell: finding.Cell, place: int, seen: set[str]) -> str:
    found = cell.get("id", "")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", found) or found in seen:
        found = hashlib.sha256(f"{place}\n{cell['source']}".encode()).hexdigest()[:8]
    seen.add(found)
    return found


def _output(output: dict[str, object]) -> dict[str, object]:
    return output | {"execution_count": None} if "execution_count" in output else output


def problems(path: str | os.PathLike[str]) -> list[str]:
    """What is not as a committed notebook should be, one line each; empty where all is well."""
    file = Path(path)
    document = finding.load(file)
    found = [line for n, cell in enumerate(document["cells"]) for line in _of_cell(n, cell)]
    try:
        for parameter in parameters_cell.parameters(file).values():
            if not parameter.help:
                found.append(f"parameter {parameter.name} has no help comment")
    except UsageError as error:
        found.append(str(error))
    if document["metadata"].get("kernelspec") != KERNEL:
        found.append(f"kernelspec is {document['metadata'].get('kernelspec')}, wanted {KERNEL}")
    size = file.stat().st_size
    if size > MAX_NBYTES:
        found.append(f"{size:,} bytes, wanted at most {MAX_NBYTES:,}")
    return found


def _of_cell(number: int, cell: finding.Cell) -> list[str]:
    found, source = [], cell["source"]
    if _ABSOLUTE.search(source):
        found.append(f"cell {number} has an absolute path")
    if cell["cell_type"] != "code":
        return found
    if len([line for line in source.splitlines() if line.strip()]) > MAX_CELL_LINES:
        found.append(f"cell {number} has more than {MAX_CELL_LINES} lines")
    if cell["execution_count"] is not None:
        found.append(f"cell {number} has an execution count")
    if set(cell["metadata"]) - {"tags"}:
        found.append(f"cell {number} has metadata {sorted(cell['metadata'])}")
    if "parameters" in finding.tags(cell):
        for statement in ast.parse(source).body:
            if not isinstance(statement, ast.AnnAssign):
                found.append(f"parameter line {statement.lineno} has no type")
            if statement.end_lineno != statement.lineno:
                found.append(f"parameter line {statement.lineno} goes over several lines")
    return found
