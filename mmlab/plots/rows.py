"""Reading result rows for a figure: which strategies and cases there are, and how far they spread.

A figure sees nothing but rows (a pandas DataFrame or any iterable of dicts with the columns of
`mmlab.bench.results`), so it can be drawn again from a file, on another machine, years later.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mmlab.bench import summary
from mmlab.bench.summary import DELIVERY
from mmlab.errors import UsageError
from mmlab.plots import style

Row = Mapping[str, object]
Floats = npt.NDArray[np.float64]

MIX = "all at once"  # the one name that readers see for the phase "mix"
UNKNOWN = "not measured"


class Frame(Protocol):
    """The little of a pandas DataFrame that is needed here."""

    def to_dict(self, orient: str) -> list[dict[Hashable, object]]: ...


Rows = Frame | Iterable[Row]


@dataclass(frozen=True)
class Spread:
    """Median with its bootstrap 95 % interval, and the 95th percentile, of `n` samples."""

    n: int
    p50: float
    low: float
    high: float
    p95: float


def records(rows: Rows) -> list[Row]:
    """Rows as a list of mappings; UsageError when there are none (there is nothing to draw)."""
    found = records_or_none(rows)
    if not found:
        raise UsageError("no rows to draw: got 0, wanted at least 1 (did the trials run?)")
    return found


def records_or_none(rows: Rows) -> list[Row]:
    """Rows as a list of mappings, empty where a run measured nothing of the kind."""
    convert = getattr(rows, "to_dict", None)
    return list(convert("records")) if callable(convert) else list(rows)  # type: ignore[arg-type]


def number(row: Row, column: str) -> float:
    """The value as a float; nan where it is missing: a missing sample is missing, not 0."""
    value = row.get(column)
    return float(value) if isinstance(value, int | float | np.number) else float("nan")


def text(row: Row, column: str) -> str:
    """The value as text; "" where it is missing."""
    value = row.get(column)
    return "" if value is None or value != value else str(value)


def values(rows: Iterable[Row], column: str) -> Floats:
    """All values of a column that are there."""
    found = np.array([number(row, column) for row in rows], dtype=np.float64)
    return found[np.isfinite(found)]


def delivery(rows: Iterable[Row]) -> Floats:
    """Seconds from the processor's output to the device, of the rows that have all its stages."""
    sums = [sum(number(row, f"{stage}_s") for stage in DELIVERY) for row in rows]
    return np.array([value for value in sums if np.isfinite(value)], dtype=np.float64)


def strategies(rows: Iterable[Row]) -> list[str]:
    """The strategies that occur, in the fixed order."""
    return style.ordered(text(row, "strategy") for row in rows)


def group(row: Row) -> str:
    """Where a row stands on an axis: its case, or `MIX` if all requests were in flight together."""
    return MIX if text(row, "phase") == "mix" else text(row, "case")


def groups(rows: Iterable[Row]) -> list[str]:
    """The groups that occur, by number of images; `MIX` comes last."""
    images: dict[str, float] = {}
    for row in rows:
        size = float("inf") if text(row, "phase") == "mix" else number(row, "num_images")
        images[group(row)] = max(size, images.get(group(row), 0.0))
    return sorted(images, key=lambda name: images[name])


def of(rows: Iterable[Row], **wanted: str) -> list[Row]:
    """The rows whose columns have these values; `group` may be asked for as well."""

    def fits(row: Row) -> bool:
        return all(
            (group(row) if column == "group" else text(row, column)) == value
            for column, value in wanted.items()
        )

    return [row for row in rows if fits(row)]


def spread(samples: Sequence[float] | Floats) -> Spread:
    """Median, interval and p95. One sample has no interval: low and high are then the sample."""
    data = np.asarray(samples, dtype=np.float64)
    if data.size == 0:
        nothing = float("nan")
        return Spread(0, nothing, nothing, nothing, nothing)
    median = float(summary.p50(data))
    low, high = summary.interval(data, summary.p50)
    return Spread(
        data.size,
        median,
        median if low is None else low,
        median if high is None else high,
        float(summary.p95(data)),
    )


def time_unit(largest_s: float) -> tuple[float, str]:
    """Factor and name of the unit in which times up to `largest_s` read well."""
    for limit, factor, name in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms")):
        if largest_s >= limit:
            return factor, name
    return 1e6, "µs"


def amount(value: float) -> str:
    """A number at the precision a figure can show: 0.34, 1.5, 12.3, 118, 2,061."""
    if not np.isfinite(value):
        return UNKNOWN
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def multiple(value: float) -> str:
    """`2.1x`, a multiple of the payload."""
    return f"{amount(value)}x" if np.isfinite(value) else UNKNOWN


def footing(rows: Sequence[Row]) -> str:
    """Device, versions and date of the rows, for the stamp of a figure."""
    machines = list(dict.fromkeys(device(row) for row in rows))
    parts = machines if len(machines) == 1 else [f"{len(machines)} machines: {'; '.join(machines)}"]
    for label, column in (("model ", "model"), ("torch ", "env_torch"), ("mmlab ", "env_mmlab")):
        found = list(dict.fromkeys(text(row, column) for row in rows))
        parts += [label + "/".join(found)] if any(found) else []
    dates = sorted({text(row, "env_time")[:10] for row in rows} - {""})
    parts += [dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"] if dates else []
    return " · ".join(parts)


def device(row: Row) -> str:
    """The machine of a row in words: what computes, and whether host memory was pinned."""
    where, cores = text(row, "device"), number(row, "env_cores")
    gpu = where.startswith("cuda")
    chip = text(row, "env_gpu") if gpu else text(row, "env_cpu")
    words = " ".join(part for part in (where.upper(), chip) if part) or "unknown device"
    if not gpu and np.isfinite(cores):
        words += f", {cores:.0f} core{'s' if cores != 1 else ''}"
    pinned = {"True": ", pinned host memory", "False": ", pageable host memory"}.get(
        text(row, "pinned"), ""
    )
    return words + pinned
