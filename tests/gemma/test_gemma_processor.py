"""The frontend gives what the model's own processor gives, in one tensor, and refuses the rest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmlab.errors import UsageError
from mmlab.gemma.gemma3.processor import Gemma3Frontend

IMAGE = 261


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_ids_and_pixels_are_those_of_the_whole_processor(frontend: Gemma3Frontend) -> None:
    images = [pixels(300, 400), pixels(300, 400, 1), pixels(1000, 40, 2)]
    got = frontend.process("Which one?", images)
    wanted = frontend.processor(
        text=frontend.processor.boi_token * 3 + "Which one?",
        images=[Image.fromarray(image) for image in images],
        return_tensors="pt",
    )
    assert got.token_ids == wanted["input_ids"][0].tolist()
    assert torch.equal(got.mm.reduce()["pixel_values"], wanted["pixel_values"])


def test_the_prompt_is_image_blocks_then_text(frontend: Gemma3Frontend) -> None:
    ids = frontend.process("Hi", [pixels(8, 8), pixels(8, 8)]).token_ids
    breaks = [ord("\n") + 3] * 2
    block = [*breaks, 260, *[IMAGE] * 256, 262, *breaks]
    assert ids == [2, *block, *block, ord("H") + 3, ord("i") + 3]


def test_items_are_views_of_one_dense_tensor(frontend: Gemma3Frontend) -> None:
    done = frontend.process("", [pixels(20, 30, seed) for seed in range(3)])
    batch = done.mm.reduce()["pixel_values"]
    assert isinstance(batch, torch.Tensor)
    assert batch.shape == (3, 3, 896, 896) and batch.dtype == torch.float32
    assert batch.is_contiguous() and batch.device.type == "cpu"
    items = list(done.mm["image"])
    assert len(items) == done.num_images == 3
    for index, item in enumerate(items):
        assert item is not None
        data = item["pixel_values"].data
        assert isinstance(data, torch.Tensor)
        assert data.data_ptr() == batch[index].data_ptr()
    assert done.seconds > 0


def test_text_alone_has_no_items(frontend: Gemma3Frontend) -> None:
    done = frontend.process("Hi")
    assert done.token_ids == [2, ord("H") + 3, ord("i") + 3]
    assert not list(done.mm) and done.num_images == 0


def test_decode_gives_text_without_special_tokens(frontend: Gemma3Frontend) -> None:
    ids = frontend.process("Grüße ☃", [pixels(8, 8)]).token_ids
    assert frontend.decode(ids) == "\n\n\n\nGrüße ☃"
    assert frontend.decode([]) == ""
    assert frontend.decode((1023, 1)) == "<unused1023>"


@pytest.mark.parametrize("shape", [(3, 50), (1, 640), (4, 9), (50, 3), (3, 3), (1, 1)])
def test_layout_is_never_guessed_from_the_size(
    frontend: Gemma3Frontend, shape: tuple[int, int]
) -> None:
    image = pixels(*shape)
    got = frontend.pixel_values([image])
    assert torch.equal(got, frontend.pixel_values([Image.fromarray(image)]))
    plain = torch.from_numpy(image).permute(2, 0, 1).float()[None] / 127.5 - 1
    wanted = torch.nn.functional.interpolate(plain, (896, 896), mode="bilinear", antialias=True)
    assert (got - wanted).abs().max() < 0.02  # the processor resizes in uint8


def test_the_frontend_says_which_image_processor_made_the_data(frontend: Gemma3Frontend) -> None:
    import transformers

    wanted = f"Gemma3ImageProcessor (torchvision), transformers {transformers.__version__}"
    assert frontend.image_processor == wanted


@pytest.mark.parametrize(
    ("prompt", "images", "match"),
    [
        (5, [], "prompt: got int, wanted a str"),
        ("a<image_soft_token>", [], r"prompt: contains '<image_soft_token>' at character 1"),
        ("<start_of_image>", [pixels(8, 8)], "prompt: contains '<start_of_image>'.*images="),
        ("\ud800", [], "prompt: is no text that UTF-8 can hold"),
        ("", pixels(8, 8), "images: got ndarray, wanted a list of images"),
        ("", Image.new("RGB", (8, 8)), "images: got Image, wanted a list of images"),
        ("", "cat.png", "images: got str, wanted a list of images"),
        ("", None, "images: got NoneType, wanted a list of images"),
        ("", [pixels(8, 8), 3], r"images\[1\]: got int, wanted a PIL image"),
    ],
)
def test_a_bad_request_is_named(
    frontend: Gemma3Frontend, prompt: Any, images: Any, match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        frontend.process(prompt, images)


def test_a_request_past_the_models_positions_is_refused_before_any_pixel(
    frontend: Gemma3Frontend,
) -> None:
    limit = frontend.dims.max_length
    text = "x" * (limit - 2)
    assert len(frontend.process(text, max_new_tokens=1).token_ids) == limit - 1
    with pytest.raises(UsageError, match=rf"{limit - 1} prompt tokens \+ 2 new .* {limit} posi"):
        frontend.process(text, max_new_tokens=2)
    with pytest.raises(UsageError, match="send fewer images"):
        frontend.process("", [None] * 63)  # type: ignore[list-item]


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, None])
def test_the_number_of_new_tokens_is_checked(frontend: Gemma3Frontend, wrong: Any) -> None:
    with pytest.raises(UsageError, match="max_new_tokens: got"):
        frontend.process("", max_new_tokens=wrong)


def test_threads_get_what_one_thread_gets(frontend: Gemma3Frontend) -> None:
    requests = [("x" * n, [pixels(40 + n, 50, n)]) for n in range(12)]
    alone = [frontend.process(*request) for request in requests]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda request: frontend.process(*request), requests))
    for one, other in zip(alone, together, strict=True):
        assert one.token_ids == other.token_ids
        assert torch.equal(one.mm.reduce()["pixel_values"], other.mm.reduce()["pixel_values"])
