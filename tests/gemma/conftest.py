"""One frontend and one engine for all tests of this folder, and photographs to show them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mmlab.gemma import load_engine, load_frontend
from mmlab.gemma.gemma3.model import Gemma3Engine
from mmlab.gemma.gemma3.processor import Gemma3Frontend


@pytest.fixture(scope="session")
def frontend() -> Gemma3Frontend:
    found = load_frontend("gemma3-tiny")
    assert isinstance(found, Gemma3Frontend)
    return found


@pytest.fixture(scope="session")
def engine() -> Gemma3Engine:
    found = load_engine("gemma3-tiny", "cpu")
    assert isinstance(found, Gemma3Engine)
    return found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Thin layers gain little by two threads, and lose much where others use the cores too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def photographs() -> list[npt.NDArray[np.uint8]]:
    """Nine different real ones, each (h, w, 3) or (h, w)."""
    data = pytest.importorskip("skimage.data", reason="photographs come with the extra 'data'")
    image = pytest.importorskip("PIL.Image")
    cbook = pytest.importorskip("matplotlib.cbook", reason="one comes with matplotlib")
    names = ("astronaut", "coffee", "chelsea", "rocket", "retina", "hubble_deep_field")
    found = [getattr(data, name)() for name in (*names, "immunohistochemistry", "camera")]
    with cbook.get_sample_data("grace_hopper.jpg") as file:
        found.append(np.array(image.open(file)))
    return found
