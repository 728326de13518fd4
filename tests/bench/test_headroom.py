"""What a trial may take: pickle grows with the square of the images, the others do not."""

from __future__ import annotations

import pytest

from mmlab.bench import headroom, workloads
from mmlab.strategies import REGISTRY, Payload

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
    assert "(32 images, " in reason


@pytest.mark.parametrize(
    ("workload", "family", "payload", "nbytes"),
    [
        ("single", "gemma3", "float32", 3 * 896 * 896 * 4),
        ("single", "gemma4", "float32", 2520 * (768 * 4 + 16)),  # pixels and positions
        ("single", "echo", "uint8", 3 * 448 * 448),
        ("video", "gemma4", "float32", 32 * 630 * (768 * 4 + 16)),
        ("video", "echo", "uint8", 32 * 630 * (768 + 16)),
        ("audio", "gemma4", "bfloat16", 3000 * (128 * 4 + 1)),  # audio stays float32
        ("ragged", "gemma3", "bfloat16", 6 * 3 * 896 * 896 * 2),
    ],
)
def test_a_request_weighs_what_the_family_makes_of_it(
    workload: str, family: str, payload: Payload, nbytes: int
) -> None:
    found = [
        headroom.request_nbytes(request, payload, image_size=448, family=family)
        for request in workloads.get(workload).requests()
    ]
    assert max(found) == nbytes


def test_echo_sends_images_in_the_sizes_that_a_workload_names() -> None:
    (request,) = {r.sizes: r for r in workloads.get("many-small").requests()}.values()
    sides = [side for side in request.sizes if isinstance(side, int)]
    nbytes = headroom.request_nbytes(request, "float32", family="echo")
    assert nbytes == sum(3 * side * side * 4 for side in sides) < 32 * 3 * 128 * 128 * 4


def test_a_pickled_item_drags_the_items_of_its_own_modality_along() -> None:
    for name, times in (("audio", 1), ("video", 1), ("ragged", 6)):
        largest = workloads.get(name).requests()[4 if name == "audio" else 0]
        payload = headroom.request_nbytes(largest, "float32", family="echo")
        with_copies = {
            strategy: headroom.needed_nbytes(
                REGISTRY[strategy], [largest], max_inflight_nbytes=GIB, family="echo"
            )
            for strategy in ("pickle", "msgpack")
        }
        assert with_copies["pickle"] - with_copies["msgpack"] == (4 * times - 5) * payload


def test_an_estimate_fits_or_does_not() -> None:
    assert headroom.Estimate(5, 5).fits
    assert not headroom.Estimate(6, 5).fits
