"""A request's checksum: the same in the frontend and on the device, alone and among others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmlab import FieldElem, FlatField, KwargsItem, KwargsItems, batched, flat, shared
from mmlab.pipeline.checksum import Hasher, checksum_items, tensor_bytes
from mmlab.pipeline.share import Share, shares
from mmlab.staging import PinnedBatcher


def mixed(seed: int, count: int = 3, size: int = 4) -> KwargsItems:
    """Every kind of field and of value, two modalities."""
    random = np.random.default_rng(seed)
    sizes = [2, 0, 5][:count]
    return KwargsItems.from_processor(
        {
            "pixel_values": torch.from_numpy(random.random((count, 3, size, size), np.float32)),
            "grid": torch.from_numpy(random.integers(0, 9, (count, 3))),
            "patches": torch.from_numpy(random.random((sum(sizes), 2))).to(torch.bfloat16),
            "crops": [[1, 2.5], [3], []][:count],
            "scale": torch.tensor(0.5),
            "wide": torch.from_numpy(random.random((2, sum(sizes)), np.float32)),
            "ids": np.arange(count),
            "wave": torch.from_numpy(random.random((2, 7), np.float32)),
        },
        {
            "pixel_values": batched("image"),
            "grid": batched("image", keep_on_cpu=True),
            "patches": flat("image", sizes=sizes),
            "crops": batched("image"),
            "scale": shared("image", count),
            "wide": flat("image", sizes=sizes, dim=1),
            "ids": batched("image"),
            "wave": batched("audio"),
        },
    )


def staged(requests: list[KwargsItems]) -> list[list[Share]]:
    """The shares of each request in batches over all of them."""
    pairs, owners = [], []
    for modality in ("audio", "image"):
        for owner, items in enumerate(requests):
            for item in items.get(modality, []):
                pairs.append((modality, item))
                owners.append(owner)
    with PinnedBatcher("cpu", mode="pool") as batcher:
        return shares(batcher.stage(pairs).batches, pairs, owners)


def staged_checksums(requests: list[KwargsItems]) -> list[int]:
    """Checksums over what reached the device when all requests are staged together."""
    found = staged(requests)
    sums = []
    for mine in found:
        hasher = Hasher()
        for share in mine:
            for item in share.items():
                hasher.add(share.modality, item)
        sums.append(hasher.value())
    return sums


@pytest.mark.parametrize(
    "requests",
    [
        [mixed(0)],
        [mixed(0), mixed(1), mixed(2, 2)],
        [mixed(0), mixed(1, size=6), mixed(2, size=5)],
        [mixed(0, 1)] * 4,
    ],
    ids=["alone", "equal shapes", "mixed shapes", "the same one four times"],
)
def test_staged_together_each_request_has_the_checksum_of_what_was_sent(
    requests: list[KwargsItems],
) -> None:
    assert staged_checksums(requests) == [checksum_items(items) for items in requests]


def test_padding_of_a_batch_is_not_part_of_a_request() -> None:
    clips = [
        KwargsItems.from_processor(
            {"features": torch.full((frames, bins), 7.0)},
            {"features": flat("audio", sizes=[frames])},
        )
        for frames, bins in ((3, 5), (4, 2), (1, 9))
    ]
    padded = [
        KwargsItems.from_processor(
            {"mask": torch.ones(1, n, dtype=torch.bool)}, {"mask": batched("audio", pad=False)}
        )
        for n in (3, 5, 1)
    ]
    for requests in (clips, padded):
        assert staged_checksums(requests) == [checksum_items(items) for items in requests]


def test_a_model_gets_its_own_part_of_the_batch() -> None:
    requests = [mixed(0), mixed(1, 2)]
    found = staged(requests)
    for items, mine in zip(requests, found, strict=True):
        image = next(share for share in mine if share.modality == "image")
        alone = items.reduce()
        for key in ("pixel_values", "grid", "patches", "scale", "wide"):
            got, wanted = image.kwargs[key], alone[key]
            assert isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor)
            assert torch.equal(got, wanted), key
        assert image.kwargs["crops"] == alone["crops"]
        assert np.array_equal(image.kwargs["ids"], alone["ids"])  # type: ignore[arg-type]


CHANGES = {
    "a byte": {"a": torch.tensor([1.0, 2.0, 3.5])},
    "the shape": {"a": torch.tensor([[1.0, 2.0, 3.0]])},
    "the dtype": {"a": torch.tensor([1.0, 2.0, 3.0]).view(torch.int32)},
    "the name": {"b": torch.tensor([1.0, 2.0, 3.0])},
    "the order": {"a": torch.tensor([2.0, 1.0, 3.0])},
    "a list for a tensor": {"a": [1.0, 2.0, 3.0]},
    "an array for a tensor": {"a": np.array([1, 2, 3], np.float32)},
    "an int for a float": {"a": [1, 2.0, 3.0]},
    "one key more": {"a": torch.tensor([1.0, 2.0, 3.0]), "b": 0},
    "nothing": {"a": torch.tensor([])},
}


def test_whatever_differs_changes_the_checksum() -> None:
    def checksum(values: dict[str, object], modality: str = "image", count: int = 1) -> int:
        field = FlatField()
        item = KwargsItem({key: FieldElem(value, field) for key, value in values.items()})
        return checksum_items(KwargsItems({modality: [item] * count}))

    first = {"a": torch.tensor([1.0, 2.0, 3.0])}
    found = {"as it is": checksum(first), "another modality": checksum(first, "video")}
    found["two of them"] = checksum(first, count=2)
    found |= {name: checksum(values) for name, values in CHANGES.items()}
    assert len(set(found.values())) == len(found), found
    assert checksum({"a": torch.tensor([1.0, 2.0, 3.0])}) == found["as it is"]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.uint16]
)
def test_bytes_are_those_of_the_tensor_in_order(dtype: torch.dtype) -> None:
    base = torch.arange(24).reshape(4, 6).to(dtype)
    for tensor in (base, base[:, ::2], base.t(), base[:0], base[1, 2]):
        raw = tensor.contiguous().reshape(-1)
        wanted = raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""
        assert bytes(tensor_bytes(tensor)) == wanted
    assert tensor_bytes(base).obj.__array_interface__["data"][0] == base.data_ptr()


def test_a_share_is_padded_no_further_than_to_its_own_largest() -> None:
    """A longer clip of another request would change what the encoder sees."""

    def clips(*lengths: int) -> KwargsItems:
        waves = [torch.full((length, 2), float(length)) for length in lengths]
        return KwargsItems.from_processor({"wave": waves}, {"wave": batched("audio", pad=0)})

    mine, longer, ragged = staged([clips(3), clips(9), clips(2, 5)])
    alone = [found[0].kwargs["wave"] for found in (mine, longer, ragged)]
    assert [tuple(wave.shape) for wave in alone if isinstance(wave, torch.Tensor)] == [
        (1, 3, 2),
        (1, 9, 2),
        (2, 5, 2),
    ]
    wanted = staged([clips(2, 5)])[0][0].kwargs["wave"]
    assert torch.equal(alone[2], wanted)  # type: ignore[arg-type]
