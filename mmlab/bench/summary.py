"""From rows to the few numbers of a table: percentiles with intervals, throughput, stages, peaks.

Everything here is derived and can be derived again from the raw rows. Intervals are percentile
bootstraps of 95 % with a fixed seed; a single sample has none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mmlab.pipeline.messages import STAGES

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
DELIVERY = ("encode", "transport", "decode", "reduce", "h2d")  # what a strategy is about
_RESAMPLES = 2000
_BY_SIZE = ["num_images", "payload_nbytes"]


def p50(values: Floats, axis: int = -1) -> Floats:
    """The median."""
    return np.asarray(np.median(values, axis=axis))


def p95(values: Floats, axis: int = -1) -> Floats:
    """The 95th percentile, between the two nearest samples where it falls between them."""
    return np.asarray(np.percentile(values, 95, axis=axis))


def interval(
    values: Floats, statistic: Callable[..., Floats], seed: int = 0
) -> tuple[float, float] | tuple[None, None]:
    """Bootstrap 95 % interval of a statistic; (None, None) for fewer than two samples."""
    if values.size < 2:
        return None, None
    from scipy import stats

    found = stats.bootstrap(
        (values,),
        statistic,
        n_resamples=_RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line for each strategy, phase and case ("all": every case together), in order of `rows`.

    Columns: n, images_per_s, latency p50 / p95 with `_low` and `_high`, the median of every stage
    and `delivery_s`, the median of the stages from encode to the device.
    """
    import pandas as pd

    lines: list[dict[str, object]] = []
    for strategy in _in_order(rows):
        mine = rows[rows["strategy"] == strategy]
        for phase, of_phase in mine.groupby("phase", sort=False):
            cases = of_phase.sort_values(_BY_SIZE, kind="stable").groupby("case", sort=False)
            for case, group in [("all", of_phase), *cases]:
                lines.append(
                    {"strategy": strategy, "phase": phase, "case": case, **_line(group, phase)}
                )
    return pd.DataFrame(lines)


def _in_order(rows: pd.DataFrame) -> list[str]:
    from mmlab.strategies import REGISTRY

    found = list(rows["strategy"].unique())
    return sorted(found, key=lambda name: list(REGISTRY).index(name) if name in REGISTRY else 99)


def _line(group: pd.DataFrame, phase: Hashable) -> dict[str, object]:
    latency = group["latency_s"].to_numpy(dtype=np.float64)
    line: dict[str, object] = {
        "n": len(group),
        "num_images": int(group["num_images"].max()),
        "payload_nbytes": int(group["payload_nbytes"].max()),
        "images_per_s": images_per_s(group, mix=phase == "mix"),
    }
    for name, statistic in (("p50", p50), ("p95", p95)):
        low, high = interval(latency, statistic)
        line[f"{name}_s"] = float(statistic(latency))
        line[f"{name}_low_s"], line[f"{name}_high_s"] = low, high
    for stage in STAGES:
        line[f"{stage}_s"] = _median(group[f"{stage}_s"].to_numpy(dtype=np.float64))
    delivery = np.sum([group[f"{s}_s"].to_numpy(dtype=np.float64) for s in DELIVERY], axis=0)
    line["delivery_s"] = _median(delivery)
    return line


def images_per_s(group: pd.DataFrame, *, mix: bool) -> float | None:
    """Sequential: images over summed latency. Mix: over the last latency; median of repeats. None
    where requests carry something else."""
    if not group["num_images"].any():
        return None
    if not mix:
        return float(group["num_images"].sum() / group["latency_s"].sum())
    repeats = group.groupby("repeat")
    return float((repeats["num_images"].sum() / repeats["latency_s"].max()).median())


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else None


def peaks(memory: pd.DataFrame) -> dict[str, dict[str, float | None]]:
    """strategy -> process -> median multiple of the payload; None where it is missing."""
    found: dict[str, dict[str, float | None]] = {}
    for (strategy, process), group in memory.groupby(["strategy", "process"], sort=False):
        values = group["multiple"].to_numpy(dtype=np.float64)
        missing = bool(np.isnan(values).any())
        found.setdefault(str(strategy), {})[str(process)] = None if missing else _median(values)
    return found


def overview(rows: pd.DataFrame, memory: pd.DataFrame) -> list[dict[str, object]]:
    """One entry for each strategy: its largest case one by one, the mix, peaks of memory."""
    table, multiples = summary(rows), peaks(memory)
    entries: list[dict[str, object]] = []
    for strategy in _in_order(rows):
        mine = table[(table["strategy"] == strategy) & (table["case"] != "all")]
        one_by_one = mine[mine["phase"] == "sequential"]
        big = one_by_one.sort_values(_BY_SIZE, kind="stable").iloc[-1]
        whole = table[(table["strategy"] == strategy) & (table["case"] == "all")]
        rates = dict(zip(whole["phase"], map(_plain, whole["images_per_s"]), strict=True))
        keys = ("p50_s", "p50_low_s", "p50_high_s", "p95_s", "delivery_s", "n", "payload_nbytes")
        entries.append(
            {
                "strategy": strategy,
                "case": str(big["case"]),
                **{key: _plain(big[key]) for key in keys},
                "images_per_s": rates.get("sequential"),
                "images_per_s_mix": rates.get("mix"),
                **{
                    f"peak_{process}": multiples.get(strategy, {}).get(process)
                    for process in ("frontend", "engine", "both")
                },
            }
        )
    return entries


def _plain(value: object) -> float | int | None:
    """A numpy scalar as Python's own; None where it is missing."""
    number = value.item() if isinstance(value, np.generic) else value
    if number is None or number != number:
        return None
    assert isinstance(number, int | float)
    return number
