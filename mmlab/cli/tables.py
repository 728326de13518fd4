"""Small tables for the terminal: columns as wide as their content, numbers to the right."""

from __future__ import annotations

from collections.abc import Sequence

from mmlab.measure.clocks import seconds_text


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lines of equal columns; the first `left` columns start at the left, the others end right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        parts = [
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(cells[0]), rule, *(line(row) for row in cells[1:])])


def overview_table(overview: Sequence[dict[str, object]]) -> str:
    """The short table at the end of a run, from `bench.summary.overview`."""
    if not overview:
        return "no timed trial"
    first = overview[0]
    peaks = [f"peak_{process}" for process in ("frontend", "engine", "both")]
    if all(entry[peak] is None for entry in overview for peak in peaks):
        peaks = []  # memory was not measured
    head = ["strategy", "latency p50 (95 %)", "p95", "delivery", "images/s", "at once"]
    head += [peak.removeprefix("peak_") for peak in peaks]
    rows = [
        [
            str(entry["strategy"]),
            _with_interval(entry["p50_s"], entry["p50_low_s"], entry["p50_high_s"]),
            _seconds(entry["p95_s"]),
            _seconds(entry["delivery_s"]),
            _number(entry["images_per_s"]),
            _number(entry["images_per_s_mix"]),
            *(_times(entry[peak]) for peak in peaks),
        ]
        for entry in overview
    ]
    payload = _megabytes(first["payload_nbytes"])
    notes = (
        f"latency, delivery: requests of {first['case']} ({payload}), one at a time; in\n"
        "brackets: bootstrap 95 % interval of the median; delivery: median of encode to device.\n"
        "images/s: requests one at a time; at once: images/s with all prompts at once.\n"
    )
    if peaks:
        notes += (
            f"frontend, engine: peak memory (PSS) above idle, as multiples of {payload};\n"
            "both: peak of their sum, less than the sum of their peaks.\n"
        )
    return f"{table(head, rows)}\n{notes}"


def _seconds(value: object) -> str:
    return seconds_text(value) if isinstance(value, int | float) else "missing"


def _with_interval(value: object, low: object, high: object) -> str:
    """`586 ms (535-614)`: the interval in the unit of the value."""
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return _seconds(value)
    text = _seconds(value)
    factor = {"ms": 1e3, "us": 1e6}.get(text.split()[-1], 1.0)
    return f"{text} ({_digits(low * factor)}-{_digits(high * factor)})"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "-"


def _times(value: object) -> str:
    return f"{value:.1f}x" if isinstance(value, int | float) else "missing"


def _megabytes(value: object) -> str:
    return f"{value / 1e6:.1f} MB" if isinstance(value, int | float) else "unknown size"
