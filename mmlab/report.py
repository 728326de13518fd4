"""Answers in sentences, computed from the rows of a run: no number here is ever typed by hand.

A difference is claimed only where its interval leaves no doubt about its sign. Where it does not,
the sentence says that there is no clear difference, and where there is one sample, that there is no
interval at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mmlab.bench import checks, summary
from mmlab.measure.clocks import seconds_text
from mmlab.plots import rows as r

if TYPE_CHECKING:
    import pandas as pd

_RESAMPLES = 4000
_PROCESSES = ("frontend", "engine", "both")
_ENOUGH = 4  # from fewer, a bootstrap claims one difference in ten where there is none


@dataclass(frozen=True)
class Ratio:
    """How many times as much one strategy takes as another, with a bootstrap 95 % interval."""

    value: float
    low: float
    high: float
    known: bool  # False: too few samples for an interval

    @property
    def verdict(self) -> str:
        """ "more", "less", "noise" (the interval has 1 in it) or "unknown"."""
        if not self.known:
            return "unknown"
        return "more" if self.low > 1 else "less" if self.high < 1 else "noise"


def ratio(samples: r.Floats, base: r.Floats) -> Ratio:
    """Ratio of the medians. An interval needs `_ENOUGH` samples on each side."""
    value = float(summary.p50(samples) / summary.p50(base))
    if min(samples.size, base.size) < _ENOUGH:
        return Ratio(value, value, value, False)
    rng = np.random.default_rng(0)

    def medians(some: r.Floats) -> r.Floats:
        return summary.p50(rng.choice(some, size=(_RESAMPLES, some.size)))

    low, high = np.percentile(medians(samples) / medians(base), [2.5, 97.5])
    return Ratio(value, float(low), float(high), True)


def headline(rows: r.Rows, memory_rows: r.Rows) -> str:
    """The answer in one sentence: the dearest way beside the cheapest, in time and memory."""
    chosen, case, size = _largest(rows)
    times = {name: r.delivery(r.of(chosen, strategy=name)) for name in r.strategies(chosen)}
    by_time = sorted(times, key=lambda name: float(summary.p50(times[name])))
    best, worst = by_time[0], by_time[-1]

    def cost(name: str) -> str:
        peak = _peak(memory_rows, name).p50
        held = f" and {r.amount(peak)} times its size in memory" if np.isfinite(peak) else ""
        return f"{seconds_text(r.spread(times[name]).p50)}{held} with `{name}`"

    alike = [
        f"`{name}`"
        for name in times
        if name not in (best, worst) and ratio(times[name], times[best]).verdict == "noise"
    ]
    beside = f" ({' and '.join(alike)}: no clear difference from it)" if alike else ""
    said = (
        f"> To bring a request of {case} ({r.amount(size)} MB of pixels) from the processor to the "
        f"device ({r.device(chosen[0])}) costs {cost(best)}{beside}"
    )
    if best == worst:
        return said + "."
    found = ratio(times[worst], times[best])
    end = {
        "more": f"{r.amount(found.value)} times the time ({r.amount(found.low)} to "
        f"{r.amount(found.high)})",
        "unknown": f"{r.amount(found.value)} times the time, from too few samples for an interval",
    }.get(found.verdict, "the times differ by no more than the noise of this run")
    return f"{said}, and {cost(worst)}: {end}."


def answer(rows: r.Rows, memory_rows: r.Rows, images: str | None = "") -> str:
    """What each way costs, as Markdown: delivery, the whole request, memory, and the check.

    `images`: the folder of images of the run, None for the shipped ones, "" where it is not known.
    """
    chosen, case, size = _largest(rows)
    mine = {name: r.of(chosen, strategy=name) for name in r.strategies(chosen)}
    lines = [
        f"**From processor to device**, {case} a request ({r.amount(size)} MB of pixels): "
        + _compared({name: r.delivery(some) for name, some in mine.items()}),
        "**The whole request**, image processor and model with it: "
        + _compared({name: r.values(some, "latency_s") for name, some in mine.items()}),
        _peaks(memory_rows),
        delivered(r.records(rows)),
        whose(r.records(rows), images),
    ]
    return "\n\n".join(line for line in lines if line)


def _largest(rows: r.Rows) -> tuple[list[r.Row], str, float]:
    """The rows of the largest case sent one at a time, its name, and its payload in MB."""
    table = r.records(rows)
    sequential = [row for row in table if r.group(row) != r.MIX] or table
    case = r.groups(sequential)[-1]
    chosen = r.of(sequential, group=case)
    return chosen, case, float(r.values(chosen, "payload_nbytes").max()) / 1e6


def delivered(rows: Sequence[r.Row]) -> str:
    """Whether all strategies delivered the same, counted in the rows themselves."""
    seen: dict[tuple[str, ...], set[tuple[str, str]]] = {}
    payloads: dict[str, set[str]] = {}
    for row in rows:
        key = tuple(r.text(row, name) for name in ("payload", "repeat", "request", "seed", "case"))
        seen.setdefault(key, set()).add((r.text(row, "checksum"), r.text(row, "token_ids")))
        payloads.setdefault(key[0], set()).add(r.text(row, "strategy"))
    apart = sum(len(found) > 1 for found in seen.values())
    if apart:
        return (
            f"**Delivered: not the same.** {apart} of {len(seen)} requests arrived with other bytes"
            " or were answered with other tokens by strategy: no number above counts."
        )
    batches = {checksum for found in seen.values() for checksum, _ in found}
    answers = {tokens for found in seen.values() for _, tokens in found} - {"", "[]"}
    said = f"They got {len(answers)} different answers." if answers else "No model answered them."
    same = "bytes and tokens were" if answers else "bytes were"
    number = len(r.strategies(rows))
    compared = f"Their {same} the same with all {number} strategies."
    if len(payloads) > 1:
        of_each = ", ".join(f"{len(names)} of {p}" for p, names in sorted(payloads.items()))
        compared = f"Their {same} the same with all strategies of one payload ({of_each})."
        for payload, (differ, both) in sorted(checks.other_tokens(rows).items()):
            compared += f" As {payload}, {differ} of {both} got another answer than as float32."
    return (
        f"**Delivered**: {len(seen)} requests arrived as {len(batches)} different batches. {said} "
        + (compared if number > 1 else "With one strategy there is nothing to compare them with.")
    )


def whose(rows: Sequence[r.Row], images: str | None = "") -> str:
    """Whose images were sent, and how many files were skipped; "" where nothing is known of it."""
    skipped = int(max([0.0, *r.values(rows, "images_skipped")]))
    if not skipped and images == "":
        return ""
    if not skipped and images is None:
        return "**Images**: photographs that come with packages, not your own."
    said = f"**Images**: your own{f', from `{images}`' if images else ''}. "
    if not skipped:
        return said + "No file was skipped."
    files, were = ("file", "was") if skipped == 1 else ("files", "were")
    return f"{said}{skipped} {files} could not be decoded and {were} skipped."


def _compared(samples: dict[str, r.Floats]) -> str:
    """The one with the lowest median, and every other as a multiple of it."""
    best = min(samples, key=lambda name: float(summary.p50(samples[name])))
    spread = r.spread(samples[best])
    around = _range(spread.low, spread.high) if spread.n > 1 else "one sample"
    parts = [f"`{best}` takes {seconds_text(spread.p50)} ({around})"]
    for name, values in samples.items():
        if name != best:
            parts.append(f"`{name}` {_times(ratio(values, samples[best]))}")
    return "; ".join(parts) + "."


def _times(found: Ratio) -> str:
    """`takes 2.1 times as long (2.0 to 2.3)`, or what keeps one from saying so."""
    value = f"{r.amount(found.value)} times as long"
    if found.verdict == "unknown":
        return f"took {value}, from too few samples for an interval"
    around = f"{r.amount(found.low)} to {r.amount(found.high)}"
    if found.verdict == "noise":
        return f"shows no clear difference from it ({around} times as long)"
    return f"takes {value} ({around})"


def _peak(memory_rows: r.Rows, strategy: str) -> r.Spread:
    both = r.of(r.records_or_none(memory_rows), process="both", strategy=strategy)
    return r.spread(r.values(both, "multiple"))


def _peaks(memory_rows: r.Rows) -> str:
    both = r.of(r.records_or_none(memory_rows), process="both")
    if not both:
        return "**Memory**: not measured in this run."
    spreads = {name: _peak(both, name) for name in r.strategies(both)}
    trials = max(spread.n for spread in spreads.values())
    parts = [
        f"`{name}` {r.amount(spread.p50)}"
        + (f" ({r.amount(spread.low)} to {r.amount(spread.high)})" if spread.n > 1 else "")
        for name, spread in spreads.items()
    ]
    note = f"{trials} trials each" if trials > 1 else "one trial each, so without an interval"
    return (
        "**Memory** of both processes together at its peak, above idle, in sizes of the largest "
        f"request: {', '.join(parts)} ({note})."
    )


def table(rows: pd.DataFrame, memory: pd.DataFrame) -> str:
    """The overview as a Markdown table: the largest case one at a time, the mix, and the peaks.

    Columns that no strategy has a value for are left out.
    """
    entries = summary.overview(rows, memory)
    columns = {
        "strategy": [f"`{entry['strategy']}`" for entry in entries],
        "latency p50": [_seconds(entry["p50_s"]) for entry in entries],
        "95 % interval": [_range(entry["p50_low_s"], entry["p50_high_s"]) for entry in entries],
        "p95": [_seconds(entry["p95_s"]) for entry in entries],
        "delivery": [_seconds(entry["delivery_s"]) for entry in entries],
        "images/s": [_plain(entry["images_per_s"]) for entry in entries],
    }
    notes = "images/s: the whole workload, one request at a time"
    if any(entry["images_per_s_mix"] is not None for entry in entries):
        columns[f"images/s, {r.MIX}"] = [_plain(entry["images_per_s_mix"]) for entry in entries]
        notes += f", and {r.MIX}"
    if any(entry[f"peak_{name}"] is not None for name in _PROCESSES for entry in entries):
        for name in _PROCESSES:
            columns[name] = [_plain(entry[f"peak_{name}"], "x") for entry in entries]
        notes += (
            "; frontend, engine, both: peak memory above idle over the largest payload, "
            "both of them at one moment"
        )
    lines = [tuple(columns), ("---", *("---:" for _ in list(columns)[1:]))]
    lines += zip(*columns.values(), strict=True)
    grid = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    first = entries[0]
    payload = f"{r.amount(float(str(first['payload_nbytes'])) / 1e6)} MB of pixels"
    return (
        f"{grid}\n\n*latency and delivery (encode to device): requests of {first['case']} "
        f"({payload}), one at a time; {notes}.*"
    )


def _seconds(value: object) -> str:
    return seconds_text(value) if isinstance(value, int | float) else r.UNKNOWN


def _range(low: object, high: object) -> str:
    """`5.36 to 21.5 ms`: the unit once where both have the same."""
    if low is None or high is None:
        return "one sample"
    ends = [_seconds(low), _seconds(high)]
    unit = ends[1].rpartition(" ")[2]
    if "min" not in ends[0] and ends[0].endswith(f" {unit}"):
        ends[0] = ends[0].removesuffix(f" {unit}")
    return " to ".join(dict.fromkeys(ends))


def _plain(value: object, unit: str = "") -> str:
    return f"{r.amount(value)}{unit}" if isinstance(value, int | float) else r.UNKNOWN
