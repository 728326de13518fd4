"""The tables that `mmlab bench transfer` prints, from its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmlab.bench.transfer.timing import Row
from mmlab.bench.transfer.ways import WAYS
from mmlab.measure.clocks import seconds_text

Table = tuple[str, list[str], list[list[str]]]
_AFTER = {"messages": "", "sustained": ", two in flight", "requests": ""}


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """(title, head, lines) for each kind of measurement, size and dtype, a line a way."""
    peer = any(row["over_vllm"] is not None for row in rows)
    for kind in _AFTER:
        of_kind = [row for row in rows if row["table"] == kind]
        for case in dict.fromkeys((row["dtype"], row["images"]) for row in of_kind):
            mine = [row for row in of_kind if (row["dtype"], row["images"]) == case]
            measured = [row for row in mine if not row["error"]]
            lines = [_line(row, peer) for row in measured]
            yield _title(mine, kind), _head(kind, peer), lines


def failures(rows: Sequence[Row]) -> list[str]:
    """A line for each way that was left out or has failed."""
    found = []
    for row in rows:
        if row["error"]:
            what = f"{row['way']}, {row['images']} x {row['dtype']}{_AFTER[str(row['table'])]}"
            found.append(f"{what}: {row['error']}")
    return found


def notes(rows: Sequence[Row]) -> str:
    """What the columns are, and what the ways stand for."""
    names = dict.fromkeys(str(row["way"]) for row in rows)
    width = max(len(name) for name in names)
    return "\n".join(
        [
            *(f"{name:{width}}  {WAYS[name].stands_for}" for name in names),
            "time: from encode in one process until the batch exists in the other and is",
            "acknowledged; two in flight: time of a stream over its messages, with the building of",
            "each; / memcpy, / vllm: that time over theirs in the same round; extra: peak memory",
            "(PSS, each shared page once) of both processes over idle, in payloads (what malloc",
            "keeps of earlier frames, if below 32 MiB, counts as idle); shared: peak of their",
            "shared memory, in payloads, with what stands there when idle, an arena or a ring;",
            "copies: declared, of a payload byte, two of a socket among them; faults: minor page",
            "faults, of the sender + of the receiver; CPU: of both, with the freeing of the batch.",
        ]
    )


def _title(rows: Sequence[Row], kind: str) -> str:
    first = rows[0]
    rounds = f"{max(int(_f(row['rounds'])) for row in rows)} rounds"
    size, images = first["image_size"], first["images"]
    text = f"request of {first['tokens']} token ids"
    if not images:
        return f"{text} and nothing else, {rounds}"
    megabytes = f"{_f(first['payload_nbytes']) / 1e6:.3g} MB"
    noun = "image" if images == 1 else "images"
    batch = f"{images} {noun} 3 x {size} x {size} {first['dtype']}, {megabytes}"
    if kind == "requests":
        batch = f"{text} and {batch}"
    return f"{batch}{_AFTER[kind]}, {rounds}"


def _head(kind: str, peer: bool) -> list[str]:
    head = ["way", "time (95 %)", "GB/s"]
    head += [] if kind == "requests" else ["/ memcpy"]
    head += ["/ vllm (95 %)"] if peer else []
    if kind == "requests":
        return [*head, "CPU us"]
    head += ["extra", "shared", "copies"] if kind == "messages" else []
    return [*head, "faults/MB", "CPU s/GB"]


def _line(row: Row, peer: bool) -> list[str]:
    kind = row["table"]
    line = [
        str(row["way"]),
        f"{seconds_text(_f(row['median_s']))} ({_ms(row['low_s'])}-{_ms(row['high_s'])} ms)",
        _number(row["gb_per_s"]),
    ]
    line += [] if kind == "requests" else [_number(row["over_memcpy"])]
    if peer and row["over_vllm"] is not None:
        low, high = _number(row["over_vllm_low"]), _number(row["over_vllm_high"])
        line.append(f"{_number(row['over_vllm'])} ({low}-{high})")
    elif peer:
        line.append("")
    if kind == "requests":
        return [*line, f"{_f(row['cpu_s']) * 1e6:.0f}"]
    if kind == "messages":
        sizes = [row["extra_payloads"], row["shared_payloads"]]
        line += ["missing" if size is None else f"{_f(size):.2f}" for size in sizes]
        line.append(str(row["copies"]))
    faults = [_faults(row["sender_faults_per_mb"]), _faults(row["receiver_faults_per_mb"])]
    return [*line, " + ".join(faults), _number(row["cpu_s_per_gb"])]


def _faults(value: object) -> str:
    return f"{_f(value):.3g}" if _f(value) >= 0.01 else "0"


def _number(value: object) -> str:
    return "" if value is None else f"{_f(value):.3g}"


def _ms(value: object) -> str:
    return f"{_f(value) * 1e3:.3g}"


def _f(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)
