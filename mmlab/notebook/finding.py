"""Where the notebooks are: in the repository, or inside an installed wheel."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypedDict, cast

from mmlab import shipped
from mmlab.errors import UsageError, unknown
from mmlab.measure.clocks import utc_stamp


class Cell(TypedDict):
    """A cell of a notebook file; `load` joins a `source` that is a list of lines."""

    cell_type: str
    id: str
    metadata: dict[str, object]
    source: str
    outputs: list[dict[str, object]]
    execution_count: int | None


class Document(TypedDict):
    """A notebook file of format 4."""

    cells: list[Cell]
    metadata: dict[str, object]
    nbformat: int
    nbformat_minor: int


def available() -> dict[str, Path]:
    """The notebooks that ship with mmlab, by name ("00_quickstart"), in order."""
    folder = shipped.folder("notebooks")
    found = sorted(folder.glob("[0-9]*.ipynb")) if folder else []
    return {path.stem: path for path in found}


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a notebook: a path to one, its name, or its name without number ("quickstart").

    UsageError where there is none.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    name = str(name_or_path)
    if path.suffix == ".ipynb" or path.name != name:
        raise UsageError(
            f"no notebook at {name}: wanted a file, or one of {', '.join(available())}"
        )
    ours = available()
    if name in ours:
        return ours[name]
    matches = [found for stem, found in ours.items() if name in stem.split("_", 1)]
    if len(matches) == 1:
        return matches[0]
    raise unknown("notebook", name, ours)


def load(path: str | os.PathLike[str]) -> Document:
    """Read a notebook file. UsageError where it is none, or of a format before 4."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a notebook: {error}") from error
    if not isinstance(document, dict) or document.get("nbformat") != 4:
        raise UsageError(f"{path} is no notebook of format 4: open and save it in JupyterLab")
    for cell in document.get("cells", []):
        if isinstance(cell.get("source"), list):
            cell["source"] = "".join(cell["source"])
    return cast(Document, document)


def tags(cell: Cell) -> list[str]:
    """The tags of a cell."""
    found = cell.get("metadata", {}).get("tags", [])
    return [str(tag) for tag in found] if isinstance(found, list) else []


def title(path: str | os.PathLike[str]) -> str:
    """The question of a notebook: its first heading; its name where it has none."""
    for cell in load(path)["cells"]:
        for line in cell["source"].splitlines():
            if cell["cell_type"] == "markdown" and line.startswith("# "):
                return line[2:].strip()
    return Path(path).stem


def run_dir(out_dir: str | os.PathLike[str] = "") -> Path:
    """The folder of a run, made if need be: `out_dir`, or `runs/<UTC time>` where it is "".

    Opened in JupyterLab a notebook runs in `notebooks/`; `runs` is then beside that folder.
    """
    here = Path.cwd()
    base = here.parent if here.name == "notebooks" else here
    folder = Path(out_dir) if str(out_dir) else base / "runs" / utc_stamp()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
