"""What a trial may take: pickle grows with the square of the images, the others do not."""

from __future__ import annotations

import pytest

from mmlab.bench import headroom, workloads
from mmlab.strategies import REGISTRY

GIB = 1 << 30


def needed(strategy: str, scale: float, *, mix: bool = False) -> float:
    requests = workloads.get("doc-mix").requests(scale)
    nbytes = headroom.needed_nbytes(REGISTRY[strategy], requests, max_inflight_nbytes=GIB, mix=mix)
    return (nbytes - headroom.PROCESSES_NBYTES) / GIB


def test_pickle_at_full_size_needs_what_was_published_and_more() -> None:
    assert needed("pickle", 1.0) > 22.5  # its peak in #16432, for 32 images
    assert needed("pickle", 1.0) / needed("pickle", 0.5) == pytest.approx(4, rel=0.05)


def test_msgpack_grows_with_the_payload() -> None:
    assert needed("msgpack", 1.0) / needed("msgpack", 0.5) == pytest.approx(2)
    assert 1 < needed("msgpack", 1.0) < 2  # 32 images are 0.29 GiB


def test_all_at_once_is_bounded_by_the_budget_in_flight() -> None:
    assert needed("msgpack", 1.0) < needed("msgpack", 1.0, mix=True) < 3.5
    assert needed("msgpack", 0.125, mix=True) < needed("msgpack", 1.0, mix=True)


def test_the_arena_is_taken_whole_whatever_is_sent() -> None:
    for scale in (0.125, 1.0):
        more = needed("arena", scale) - needed("msgpack", scale)
        assert more == pytest.approx(1.125)


def test_uint8_is_a_quarter_of_float32s_payload() -> None:
    assert headroom.image_nbytes(896, "uint8") * 4 == headroom.image_nbytes()
    assert headroom.image_nbytes(896, "bfloat16") * 2 == headroom.image_nbytes()
    requests = workloads.get("doc-mix").requests(1.0)
    model = sum(r.num_images for r in requests[-1:]) * headroom._MODEL_SHARE / GIB
    arena = 1.125
    raw, floats = (needed(name, 1.0) - arena - model for name in ("arena-uint8", "arena"))
    assert raw * 4 == pytest.approx(floats, rel=0.01)
    nbytes = 32 * headroom.image_nbytes(896, "uint8")
    assert headroom.refused_by_budget(requests, nbytes, payload="uint8") is None
    assert headroom.refused_by_budget(requests, nbytes) is not None


def test_a_request_over_the_budget_is_said_with_both_numbers() -> None:
    requests = workloads.get("doc-mix").requests(1.0)
    nbytes = 32 * headroom.image_nbytes()
    assert nbytes == 308_281_344
    assert headroom.refused_by_budget(requests, nbytes) is None
    reason = headroom.refused_by_budget(requests, nbytes - 1)
    assert reason is not None and "308281344" in reason and "308281343" in reason


def test_an_estimate_fits_or_does_not() -> None:
    assert headroom.Estimate(5, 5).fits
    assert not headroom.Estimate(6, 5).fits
