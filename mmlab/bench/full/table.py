"""The table of #16432 and the line of #19169: measured lines first, published ones below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmlab.bench.full.cases import MAX, MIX, SIZES, Line
from mmlab.bench.full.published import DESCRIPTION, LATER, PINNED, Figure

HEAD = (
    "",
    *(f"{size} images GB" for size in SIZES),
    *(f"{prompts} x {images} s" for prompts, images in zip((8, 4, 2, 1), SIZES, strict=True)),
    "mix s",
)
ALL_PROMPTS = 15
NO_ROOM = "no room"
_MISSING = "-"
_OLD, _NEW = "pickle", "msgpack"  # what the published ratio compares


def published_lines(figures: Iterable[Figure]) -> dict[str, list[Line]]:
    """Source -> its lines, for the two tables of #16432."""
    found: dict[str, dict[str, Line]] = {}
    for figure in figures:
        if figure.source not in (DESCRIPTION, LATER):
            continue
        line = found.setdefault(figure.source, {}).setdefault(figure.config, Line(figure.config))
        if figure.value is None:
            line.no_room.add(images_of(figure.case))
        elif figure.metric == "peak memory":
            line.memory[images_of(figure.case)] = figure.value
        elif figure.case in (MAX, MIX):
            line.seconds[MIX if figure.case == MIX else SIZES[-1]] = figure.value
        else:
            line.seconds[images_of(figure.case)] = figure.value
    return {source: list(lines.values()) for source, lines in found.items()}


def images_of(case: str) -> int:
    """`4 images`, `8 prompts x 4 images` and `1 prompt x 32 images` -> images a prompt."""
    return int(case.rpartition(" ")[0].rpartition(" ")[2])


def cells(line: Line) -> list[str]:
    """A line as text, in the columns of HEAD."""
    mix = _number(line.seconds.get(MIX))
    if line.requests_in_mix and line.requests_in_mix < ALL_PROMPTS:
        mix += f" ({line.requests_in_mix} of {ALL_PROMPTS})"
    return [
        line.config,
        *(NO_ROOM if size in line.no_room else _number(line.memory.get(size)) for size in SIZES),
        *(_number(line.seconds.get(size)) for size in SIZES),
        mix,
    ]


def _number(value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratios(measured: Sequence[Line], published: Sequence[Line]) -> list[str]:
    """`pickle` over `msgpack` in memory, for every size that both could do, beside the published
    ratio of the same size."""
    ours = {line.config: line for line in measured}
    if _OLD not in ours or _NEW not in ours:
        return []
    theirs = {size: _published_ratio(published, size) for size in SIZES}
    said = []
    for size in SIZES:
        old, new = ours[_OLD].memory.get(size), ours[_NEW].memory.get(size)
        there = theirs[size]
        if old is None or new is None or there is None:
            continue
        said.append(
            f"{size} images: {_OLD} took {old / new:.1f} times the memory of {_NEW}; "
            f"published, before and after #16432: {there:.1f}"
        )
    return said


def _published_ratio(published: Sequence[Line], size: int) -> float | None:
    """The largest over the smallest of the description's table: before, and after, the change."""
    values = [line.memory[size] for line in published if size in line.memory]
    return max(values) / min(values) if len(values) > 1 else None


def pinned_lines(figures: Iterable[Figure]) -> list[tuple[str, str]]:
    """(what, gain in %) as published for #19169."""
    return [
        (figure.config, f"{figure.value:g} %")
        for figure in figures
        if figure.source == PINNED and figure.value is not None
    ]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    lines = [tuple(head), ("---", *("---:" for _ in head[1:])), *map(tuple, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
