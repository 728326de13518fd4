"""What an echo trial sends: the shapes of real processors, the content of the media."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmlab.bench import headroom, media, workloads
from mmlab.bench.media.audio import synthesize
from mmlab.bench.media.media import Media
from mmlab.bench.media.tensors import items_of, patches, spectrum
from mmlab.pipeline.messages import payload_nbytes
from mmlab.strategies import Payload

FRAMES = np.random.default_rng(0).integers(0, 256, (3, 336, 480, 3), dtype=np.uint8)


def test_patches_are_squares_of_the_frame_row_by_row() -> None:
    raw = patches(FRAMES, torch.uint8)
    assert raw.shape == (3, 630, 768) and raw.dtype == torch.uint8
    second_row_third = raw[1, 30 + 2].reshape(16, 16, 3).numpy()
    assert np.array_equal(second_row_third, FRAMES[1, 16:32, 32:48])
    assert torch.equal(patches(FRAMES), raw.float() / 255)


@pytest.mark.parametrize(("seconds", "steps"), [(10, 999), (30, 2999)])
def test_a_spectrum_has_as_many_steps_as_gemma_4s(seconds: float, steps: int) -> None:
    made = [spectrum(synthesize(np.random.default_rng(seed), seconds)) for seed in (0, 1)]
    assert {(tuple(one.shape), one.dtype) for one in made} == {((steps, 128), torch.float32)}
    assert not torch.equal(*made) and bool(torch.isfinite(made[0]).all())


def test_videos_are_one_flat_field_and_audio_is_ragged() -> None:
    generator = np.random.default_rng(0)
    sounds = [synthesize(generator, seconds) for seconds in (0.5, 1.0)]
    items = items_of(Media(videos=[FRAMES, FRAMES[:2]], audios=sounds), 896, torch.float32)
    assert items is not None
    shapes = [item["pixel_values_videos"].data.shape for item in items["video"] if item]
    assert shapes == [(3, 630, 768), (2, 630, 768)]
    first = items["video"][0]
    assert first is not None and int(first["num_frames_per_video"].data) == 3
    assert first["video_position_ids"].data[0, -1].tolist() == [29, 20]
    batch = items.reduce()
    assert batch["pixel_values_videos"].shape == (5, 630, 768)
    assert batch["input_features"].shape == (2, 99, 128)
    assert batch["input_features_mask"].sum(dim=1).tolist() == [49, 99]


def test_images_keep_their_sizes_only_where_the_workload_chose_them() -> None:
    images = [FRAMES[0], FRAMES[1, :40, :30]]
    sized = items_of(Media(images=images, sized=True), 896, torch.uint8)
    square = items_of(Media(images=images), 64, torch.uint8)
    assert sized is not None and square is not None
    shapes = [
        [tuple(item["pixel_values"].data.shape) for item in items["image"] if item]
        for items in (sized, square)
    ]
    assert shapes == [[(3, 336, 480), (3, 40, 30)], [(3, 64, 64)] * 2]
    first = sized["image"][0]
    assert first is not None
    assert np.array_equal(first["pixel_values"].data.permute(1, 2, 0).numpy(), images[0])


def test_nothing_has_no_items() -> None:
    assert items_of(Media(), 896, torch.float32) is None


@pytest.mark.parametrize("name", workloads.WORKLOADS)
@pytest.mark.parametrize("payload", ["float32", "uint8"])
def test_the_estimate_of_a_request_covers_what_is_sent(name: str, payload: Payload) -> None:
    workload = workloads.get(name)
    requests = list({r.case: r for r in workload.requests(0.125)}.values())
    dtype = torch.uint8 if payload == "uint8" else torch.float32
    for request, drawn in zip(requests, media.load(workload).draw(requests, [0]), strict=True):
        sent = payload_nbytes(items_of(drawn, 128, dtype))
        estimate = headroom.request_nbytes(request, payload, image_size=128, family="echo")
        assert estimate * 0.4 < sent <= estimate * 1.001
