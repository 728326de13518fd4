"""What others have published, as it stands in `data/published/published.csv`, sources beside it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Final

from mmlab import shipped
from mmlab.errors import UsageError

DESCRIPTION: Final = "vllm#16432 description table"
LATER: Final = "vllm#16432 later table (2025-04-15; single threaded)"
PINNED: Final = "vllm#19169 discussion"
OUT_OF_MEMORY: Final = "out of memory"


@dataclass(frozen=True)
class Figure:
    """One published number. `value` is None where the source says that it ran out of memory."""

    source: str
    what: str
    config: str
    case: str
    metric: str
    unit: str
    value: float | None


def figures(source: str | None = None) -> list[Figure]:
    """All figures in the order of the file, or those of one source; UsageError without the file."""
    data = shipped.folder("data")
    path = None if data is None else data / "published" / "published.csv"
    if path is None or not path.is_file():
        raise UsageError("data/published/published.csv is not installed: reinstall mmlab")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file, strict=True) if row["source"] != "note"]
    return [_figure(row) for row in rows if source in (None, row["source"])]


def _figure(row: dict[str, str]) -> Figure:
    value = None if row["value"] == OUT_OF_MEMORY else float(row["value"])
    return Figure(
        row["source"],
        row["what"],
        row["config"],
        row["case"],
        row["metric"],
        row["unit"],
        value,
    )
