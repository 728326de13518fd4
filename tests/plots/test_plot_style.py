"""Colours, markers and order are fixed, told apart by colour-blind readers and in greyscale."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from mmlab import plots
from mmlab.plots import style

# In the order of the design: renaming or reordering one changes every figure ever drawn.
NAMES = [
    *("pickle", "pickle-batch", "msgpack-inline", "msgpack", "msgpack-pinned", "msgpack-pool"),
    *("torch-shm", "arena", "arena-direct", "arena-uint8", "vllm", "vllm-tuned", "vllm-arena"),
]

# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB: the rows of each matrix.
SIGHT = {
    "full": (1, 0, 0, 0, 1, 0, 0, 0, 1),
    "deuteranopia": (
        *(0.367322, 0.860646, -0.227968),
        *(0.280085, 0.672501, 0.047413),
        *(-0.011820, 0.042940, 0.968881),
    ),
    "protanopia": (
        *(0.152286, 1.052583, -0.204868),
        *(0.114503, 0.786281, 0.099216),
        *(-0.003882, -0.048116, 1.051998),
    ),
    "tritanopia": (
        *(1.255528, -0.076749, -0.178779),
        *(-0.078411, 0.930809, 0.147602),
        *(0.004733, 0.691367, 0.303900),
    ),
}
TO_XYZ = (
    *(0.4124564, 0.3575761, 0.1804375),
    *(0.2126729, 0.7151522, 0.0721750),
    *(0.0193339, 0.1191920, 0.9503041),
)


def _lab(colour: str, sight: str) -> npt.NDArray[np.float64]:
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.reshape(SIGHT[sight], (3, 3)) @ linear, 0, 1)
    xyz = np.reshape(TO_XYZ, (3, 3)) @ linear / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_every_named_strategy_has_a_look_in_the_fixed_order() -> None:
    assert list(plots.ORDER) == NAMES
    assert plots.ordered(["msgpack", "mine", "pickle", "arena", "msgpack"]) == [
        "pickle",
        "msgpack",
        "arena",
        "mine",
    ]


@pytest.mark.parametrize("sight", list(SIGHT))
def test_colours_keep_their_distance_for_every_kind_of_sight(sight: str) -> None:
    labs = {name: _lab(look.colour, sight) for name, look in plots.LOOKS.items()}
    nearest = min(
        (float(np.linalg.norm(labs[a] - labs[b])), a, b) for a, b in itertools.combinations(labs, 2)
    )
    assert nearest[0] >= 12, nearest


def test_greyscale_is_told_apart_by_marker_and_hatch() -> None:
    assert len({look.marker for look in plots.LOOKS.values()}) == len(NAMES)
    assert len({look.hatch for look in plots.LOOKS.values()}) == len(NAMES)


def test_the_three_that_run_everywhere_differ_in_grey_alone() -> None:
    grey = [_lab(plots.look(n).colour, "full")[0] for n in ("pickle", "msgpack-inline", "msgpack")]
    assert min(abs(a - b) for a, b in itertools.combinations(grey, 2)) >= 15


def test_an_unknown_strategy_has_a_look_that_is_no_others_and_stays_the_same() -> None:
    assert plots.look("mine") == plots.look("mine")
    assert plots.look("mine").colour not in {look.colour for look in plots.LOOKS.values()}


def test_save_writes_a_small_png_for_github_and_an_svg_that_is_the_same_each_time(
    tmp_path: Path,
) -> None:
    def draw(folder: Path) -> Path:
        figure = style.new_figure(2.0)
        figure.subplots().plot([0, 1], [0, 1])
        style.stamp(figure, "CPU · 2026-11-30")
        return plots.save(figure, folder, "line")

    first, second = draw(tmp_path / "a"), draw(tmp_path / "b")
    assert first == tmp_path / "a" / "line.png"
    with Image.open(first) as image:
        assert image.format == "PNG"
        assert image.width >= 1600  # sharp at GitHub's 900 px on a dense screen
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".svg").read_text() == second.with_suffix(".svg").read_text()
