"""Where the files are that ship with mmlab: in the repository, or inside an installed wheel.

A wheel carries them within the package; an editable install reads them from the repository, so that
no copy of them can grow old.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent


def folder(name: Literal["data", "notebooks"]) -> Path | None:
    """The folder of that name; None where it was not installed."""
    for place in (_PACKAGE / f"_{name}", _PACKAGE.parent / name):
        if place.is_dir():
            return place
    return None
