"""The figure of `mmlab bench transfer`: a panel a dtype, a line a way, units on every axis."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmlab.bench.transfer.ways import NAMES
from mmlab.plots import style
from mmlab.plots.transfer import transfer


def rows(dtypes: tuple[str, ...], sizes: tuple[int, ...]) -> list[dict[str, object]]:
    return [
        {
            "way": way,
            "dtype": dtype,
            "images": n,
            "image_size": 896,
            "median_s": 1e-3 * n * (k + 1),
            "low_s": 0.9e-3 * n * (k + 1),
            "high_s": 1.2e-3 * n * (k + 1),
        }
        for dtype in dtypes
        for k, way in enumerate(NAMES)
        for n in sizes
    ]


@pytest.mark.parametrize("dtypes", [("float32",), ("float32", "bfloat16", "uint8")])
def test_every_way_has_a_line_and_the_limit_a_dashed_one(
    dtypes: tuple[str, ...], tmp_path: Path
) -> None:
    figure = transfer(rows(dtypes, (1, 4, 8, 16, 32)), "a machine")  # type: ignore[arg-type]
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(dtypes)
    for axes in figure.axes:
        assert axes.get_xlabel() == "images in a message"
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert len(axes.containers) == len(NAMES)
        limit, *others = (container.lines[0] for container in axes.containers)
        assert limit.get_linestyle() == "--" and limit.get_marker() == "None"
        looks = {
            (line.get_color(), line.get_marker(), line.get_markerfacecolor()) for line in others
        }
        assert len(looks) == len(others)
    assert figure.axes[0].get_ylabel() == "encode to batch (ms)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(NAMES)
    assert style.save(figure, tmp_path, "transfer").stat().st_size > 10_000


def test_one_size_is_drawn_too(tmp_path: Path) -> None:
    figure = transfer(rows(("uint8",), (8,)), "a machine")  # type: ignore[arg-type]
    assert style.save(figure, tmp_path, "one").stat().st_size > 5_000
