"""The tables that `mmlab bench transfer` prints, from its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmlab.bench.transfer.timing import Row
from mmlab.bench.transfer.ways import WAYS
from mmlab.measure.clocks import seconds_text


def tables(rows: Sequence[Row]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """(title, head, lines) for each size and dtype, a line a way."""
    peer = any(row["over_vllm"] is not None for row in rows)
    head = ["way", "time (95 %)", "GB/s", "/ memcpy", *(["/ vllm"] if peer else [])]
    head += ["extra payloads", "copies", "faults/MB", "CPU s/GB"]
    for dtype, images in dict.fromkeys((row["dtype"], row["images"]) for row in rows):
        mine = [row for row in rows if (row["dtype"], row["images"]) == (dtype, images)]
        first = mine[0]
        size = first["image_size"]
        noun = "image" if images == 1 else "images"
        megabytes = f"{_f(first['payload_nbytes']) / 1e6:.3g} MB"
        title = f"{images} {noun} 3 x {size} x {size} {dtype}, {megabytes}"
        yield f"{title}, {first['rounds']} rounds", head, [_line(row, peer) for row in mine]


def notes(rows: Sequence[Row]) -> str:
    """What the columns are, and what the ways stand for."""
    names = dict.fromkeys(str(row["way"]) for row in rows)
    width = max(len(name) for name in names)
    return "\n".join(
        [
            *(f"{name:{width}}  {WAYS[name].stands_for}" for name in names),
            "time: from encode in one process until the batch exists in the other and is",
            "acknowledged; / memcpy, / vllm: that time over theirs in the same round; extra",
            "payloads: peak memory (PSS) of both processes over idle, in payloads (what malloc",
            "keeps of earlier frames, if below 32 MiB, counts as idle); faults: minor page faults",
            "of both; CPU: of both, with the freeing of the batch.",
        ]
    )


def _line(row: Row, peer: bool) -> list[str]:
    faults = _f(row["sender_faults_per_mb"]) + _f(row["receiver_faults_per_mb"])
    extra = row["extra_payloads"]
    return [
        str(row["way"]),
        f"{seconds_text(_f(row['median_s']))} ({_ms(row['low_s'])}-{_ms(row['high_s'])} ms)",
        f"{_f(row['gb_per_s']):.3g}",
        f"{_f(row['over_memcpy']):.3g}",
        *([f"{_f(row['over_vllm']):.3g}"] if peer else []),
        "missing" if extra is None else f"{_f(extra):.2f}",
        str(row["copies"]),
        f"{faults:.3g}" if faults >= 0.01 else "0",
        f"{_f(row['cpu_s_per_gb']):.3g}",
    ]


def _ms(value: object) -> str:
    return f"{_f(value) * 1e3:.3g}"


def _f(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)
