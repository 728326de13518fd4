"""The tables that `mmlab bench staging` prints, from its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmlab.bench.staging.timing import Row
from mmlab.measure.clocks import seconds_text

Table = tuple[str, list[str], list[list[str]]]

NOTES = """\
stage: until `stage` returns, median (95 % interval of it); / memcpy: over one memcpy of the same
bytes between warm buffers, the fastest of three ways to do one, in the same round; copies: by the
CPU, of each byte: none where the batch exists already, side by side or as the only image."""
NOTES_GPU = """\
On a GPU what exists in ordinary memory is written into pinned memory all the same. ready: until
the batch is on the device; H2D: of the copies alone, between CUDA events; / plain: their time
over that of one plain copy of the same bytes from pinned memory."""


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """(title, head, lines) for each number of threads, a line a case and mode."""
    for threads in dict.fromkeys(row["torch_threads"] for row in rows):
        mine = [row for row in rows if row["torch_threads"] == threads]
        staged = [row for row in mine if row["table"] == "stage"]
        if not staged:
            continue
        gpu = any(row["over_plain"] is not None for row in staged)
        size = staged[0]["image_size"]
        title = (
            f"images 3 x {size} x {size}, torch threads: {threads}, "
            f"{staged[0]['rounds']} rounds, device {staged[0]['device']}"
        )
        head = ["images", "dtype", "items", "mode", "stage (95 %)", "/ memcpy (95 %)"]
        head += ["ready", "H2D GB/s", "/ plain"] if gpu else []
        yield title, [*head, "copies", "pinned"], [_line(row, gpu) for row in staged]


def overheads(rows: Sequence[Row]) -> list[str]:
    """A line for each mode and number of threads."""
    return [
        f"{row['images']} x 4 B, {row['mode']}, {row['copies']} copies, torch threads: "
        f"{row['torch_threads']}: "
        f"{_us(row['stage_s'])} us ({_us(row['stage_s_low'])}-{_us(row['stage_s_high'])})"
        for row in rows
        if row["table"] == "overhead"
    ]


def _line(row: Row, gpu: bool) -> list[str]:
    line = [
        f"{row['images']}",
        f"{row['dtype']}",
        f"{row['items']}",
        f"{row['mode']}",
        _time(row, "stage_s"),
        f"{_ratio(row['over_memcpy'])} "
        f"({_ratio(row['over_memcpy_low'])}-{_ratio(row['over_memcpy_high'])})",
    ]
    if gpu:
        line += [
            seconds_text(_f(row["ready_s"])),
            f"{_f(row['h2d_gb_per_s']):.3g}",
            _ratio(row["over_plain"]),
        ]
    return [*line, f"{row['copies']}", "yes" if row["pinned"] else "no"]


def _ratio(value: object) -> str:
    return f"{_f(value):.2f}"


def _time(row: Row, name: str) -> str:
    """`840 us (812-871)`: the interval in the unit of the value."""
    text = seconds_text(_f(row[name]))
    factor = {"ms": 1e3, "us": 1e6}.get(text.split()[-1], 1.0)
    low, high = (_f(row[f"{name}_{end}"]) * factor for end in ("low", "high"))
    return f"{text} ({low:.3g}-{high:.3g})"


def _us(value: object) -> str:
    return f"{_f(value) * 1e6:.0f}"


def _f(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)
