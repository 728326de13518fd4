"""The table that `mmlab bench wire` prints, from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmlab.bench.wire.cases import OWN, PEER, PLAIN
from mmlab.bench.wire.timing import Row


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and lines, one for each message; without a peer's rows there are no columns for it."""
    peer = any(row["who"] == PEER for row in rows)
    head = ["message", "encode", "decode", "header", "frames"]
    if peer:
        head += ["vllm encode", "decode", "header", "frames", "encode ratio", "decode ratio"]
    lines: list[list[str]] = []
    for case in dict.fromkeys(str(row["case"]) for row in rows):
        mine = {(str(r["who"]), str(r["what"])): r for r in rows if r["case"] == case}
        line = [case, *_side(mine, OWN)]
        if peer:
            line += [*_side(mine, PEER), *(_ratio(mine, PEER, w) for w in ("encode", "decode"))]
        lines.append(line)
        if (PLAIN, "encode") in mine:
            extra = ["  plain msgspec", *_side(mine, PLAIN)]
            if peer:
                ratios = [_ratio(mine, PLAIN, w) for w in ("encode", "decode")]
                extra += ["", "", "", "", *ratios]
            lines.append(extra)
    return head, lines


def whole_cases(rows: Sequence[Row], peer: bool) -> list[Row]:
    """The rows of messages that were measured to the end, which an interrupted one was not."""
    who = {OWN, PEER} if peer else {OWN}
    wanted = {(side, what) for side in who for what in ("encode", "decode")}
    found: dict[object, set[object]] = {}
    for row in rows:
        found.setdefault(_message(row), set()).add((row["who"], row["what"]))
    return [row for row in rows if wanted <= found[_message(row)]]


def _message(row: Row) -> tuple[object, ...]:
    return row["case"], row["tensors"], row["tensor_nbytes"]


def footing(head: Mapping[str, object]) -> str:
    """What was measured on what, in a line: from {"peer": ..., "environment": ...}."""
    found = head.get("environment")
    if not isinstance(found, dict):
        return "nothing was measured"
    parts = [
        f"{found['cpu']}, {found['cores']} cores, torch threads: {found['torch_threads']}",
        *(f"{name} {found[name]}" for name in ("torch", "msgspec", "mmlab")),
        *([str(head["peer"])] if head.get("peer") else []),
        f"{found['time'][:10]}",
        "medians of interleaved rounds, 95 % intervals",
    ]
    return " · ".join(parts)


def _side(rows: Mapping[tuple[str, str], Row], who: str) -> list[str]:
    encode, decode = rows[who, "encode"], rows[who, "decode"]
    return [
        _time(encode["median_us"]),
        _time(decode["median_us"]),
        _size(encode["header_nbytes"]),
        f"{encode['frames']:,}",
    ]


def _ratio(rows: Mapping[tuple[str, str], Row], who: str, what: str) -> str:
    row = rows[who, what]
    return f"{row['ratio']:.3g} [{row['ratio_low']:.2g}, {row['ratio_high']:.2g}]"


def _time(value: object) -> str:
    assert isinstance(value, float)
    if value < 1000:
        return f"{value:.3g} us"
    return f"{value / 1000:.3g} ms" if value < 1e6 else f"{value / 1e6:.3g} s"


def _size(value: object) -> str:
    assert isinstance(value, int)
    for unit in ("B", "KB", "MB"):
        if value < 1000 or unit == "MB":
            break
        value = round(value / 1000, 1)
    return f"{value:,g} {unit}"
