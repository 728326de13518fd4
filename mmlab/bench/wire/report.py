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


def _side(rows: Mapping[tuple[str, str], Row], who: str) -> list[str]:
    encode, decode = rows[who, "encode"], rows[who, "decode"]
    return [
        _time(encode["median_us"]),
        _time(decode["median_us"]),
        _size(encode["header_nbytes"]),
        f"{encode['frames']:,}",
    ]


def _ratio(rows: Mapping[tuple[str, str], Row], who: str, what: str) -> str:
    return f"{rows[who, what]['ratio']:.3g}"


def nbytes_text(nbytes: int) -> str:
    """16 B, 4 KiB, 64 MiB: sizes that are powers of two in the sweep."""
    for unit in ("B", "KiB"):
        if nbytes < 1024:
            return f"{nbytes:g} {unit}"
        nbytes //= 1024
    return f"{nbytes} MiB"


def worst(rows: Sequence[Row]) -> list[str]:
    """The sweep in lines: for each form and direction, the ratio where mmlab does worst."""
    lines = []
    compared = [row for row in rows if row["who"] == PEER and row["ratio"] is not None]
    for form, what in dict.fromkeys((row["case"], row["what"]) for row in compared):
        mine = [row for row in compared if (row["case"], row["what"]) == (form, what)]
        found = max(mine, key=lambda row: float(row["ratio"] or 0))
        slower = sum(float(row["ratio_low"] or 0) > 1.05 for row in mine)
        nbytes = found["tensor_nbytes"]
        assert isinstance(nbytes, int)
        lines.append(
            f"{form:10s} {what}: worst of {len(mine)} ratios {found['ratio']:.3f} "
            f"[{found['ratio_low']:.3f}, {found['ratio_high']:.3f}] at {found['tensors']} x "
            f"{nbytes_text(nbytes)}; {slower} slower by more than 5 %"
        )
    return lines or [f"{len(rows)} rows measured; --peer vllm compares them, --json prints them"]


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
