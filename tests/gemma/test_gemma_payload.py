"""Whatever dtype pixel values are sent as, the model gets the processor's own; what differs is
counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma3ImageProcessor, Gemma3ImageProcessorPil

from mmlab import EngineError, UsageError, pixels
from mmlab.gemma.gemma3.making import preset_config
from mmlab.gemma.gemma3.model import Gemma3Engine
from mmlab.gemma.gemma3.processor import Gemma3Frontend
from mmlab.gemma.images import as_rgb
from mmlab.gemma.normalize import steps_of
from mmlab.pixels import Step

SIZE = {"height": 896, "width": 896}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.2686, 0.2613, 0.2757]},
    {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
    {"do_rescale": False},
    {"do_normalize": False},
    {"do_rescale": False, "do_normalize": False},
]
Frontend = Callable[..., Gemma3Frontend]


@pytest.fixture
def with_processor(frontend: Gemma3Frontend) -> Iterator[Frontend]:
    """The tiny model's frontend with an image processor of another kind or with other settings."""
    before = frontend.processor.image_processor

    def make(kind: type, **settings: object) -> Gemma3Frontend:
        frontend.processor.image_processor = kind(size=SIZE, **settings)
        return Gemma3Frontend("other", frontend.processor, frontend_config(frontend))

    yield make
    frontend.processor.image_processor = before


def frontend_config(frontend: Gemma3Frontend) -> Any:
    from mmlab.gemma.presets import PRESETS

    return preset_config(PRESETS[frontend.name])


def whole_processor(front: Gemma3Frontend, images: list[np.ndarray]) -> torch.Tensor:
    """All that the image processor does, as it does it."""
    made = front.processor.image_processor(
        [as_rgb(image, 0) for image in images],
        input_data_format="channels_last",
        do_pan_and_scan=False,
        return_tensors="pt",
    )["pixel_values"]
    return torch.as_tensor(made).to(torch.float32)


@pytest.mark.parametrize("kind", [Gemma3ImageProcessor, Gemma3ImageProcessorPil])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda found: ",".join(found) or "default")
def test_the_models_input_is_bit_for_bit_the_processors(
    with_processor: Frontend,
    photographs: list[np.ndarray],
    kind: type,
    settings: dict[str, Any],
) -> None:
    front = with_processor(kind, **settings)
    images = photographs if not settings else photographs[:2]
    wanted = whole_processor(front, images)
    got = {
        payload: front.process("", images, payload=payload)
        for payload in (torch.float32, torch.bfloat16, torch.uint8)
    }
    sent = {payload: done.mm.reduce()["pixel_values"] for payload, done in got.items()}
    assert all(sent[payload].dtype == payload for payload in sent)
    assert torch.equal(sent[torch.float32], wanted)
    assert torch.equal(sent[torch.bfloat16], wanted.to(torch.bfloat16))
    raw, found = sent[torch.uint8], got[torch.uint8].steps
    assert found is not None
    steps = found["image"]
    assert raw.nbytes * 4 == wanted.nbytes
    assert torch.equal(pixels.apply(steps, raw, torch.empty(raw.shape)), wanted)
    assert got[torch.float32].steps is None and got[torch.bfloat16].steps is None


def test_the_formulas_are_those_of_the_two_processors() -> None:
    fused = (Step("sub", (127.5,)), Step("div", (127.5,)))
    apart = (Step("div", (255.0,)), Step("sub", (0.5,)), Step("div", (0.5,)))
    assert steps_of(Gemma3ImageProcessor(size=SIZE)) == fused
    assert steps_of(Gemma3ImageProcessorPil(size=SIZE)) == apart


def test_another_formula_would_be_noticed(photographs: list[np.ndarray]) -> None:
    """The obvious one is not the torchvision processor's, and the test above can tell."""
    raw = torch.arange(256, dtype=torch.uint8).repeat(3, 1).view(3, 16, 16)
    fused, apart = (
        pixels.apply(steps_of(kind(size=SIZE)) or (), raw, torch.empty(raw.shape))
        for kind in (Gemma3ImageProcessor, Gemma3ImageProcessorPil)
    )
    assert not torch.equal(fused, apart)
    assert (fused - apart).abs().max() <= 1.2e-7


def no_room(specs: object) -> list[torch.Tensor]:
    raise AssertionError("room was asked for")


def test_settings_without_exact_steps_are_refused_by_name_and_floats_are_the_processors_own(
    with_processor: Frontend, photographs: list[np.ndarray]
) -> None:
    front = with_processor(Gemma3ImageProcessorPil, rescale_factor=0.0041)
    match = r"'other': payload uint8: .*Gemma3ImageProcessorPil with .*0\.0041.*float32 or bfloat16"
    with pytest.raises(UsageError, match=match):
        front.check_payload(torch.uint8)
    with pytest.raises(UsageError, match="payload uint8"):
        front.process("", photographs[:1], payload=torch.uint8, empty=no_room)
    wanted = whole_processor(front, photographs[:1])
    for payload in (torch.float32, torch.bfloat16):
        got = front.process("", photographs[:1], payload=payload).mm.reduce()["pixel_values"]
        assert torch.equal(got, wanted.to(payload))


@pytest.mark.parametrize("settings", [{"image_std": [0.0, 1.0, 1.0]}, {"image_mean": [0.5, 0.5]}])
def test_settings_that_are_nonsense_do_not_keep_a_frontend_from_loading(
    with_processor: Frontend, settings: dict[str, Any]
) -> None:
    front = with_processor(Gemma3ImageProcessor, **settings)
    with pytest.raises(UsageError, match="payload uint8"):
        front.check_payload(torch.uint8)


def test_another_dtype_is_no_payload(frontend: Gemma3Frontend) -> None:
    with pytest.raises(UsageError, match=r"got torch.float16, wanted float32, bfloat16 or uint8"):
        frontend.check_payload(torch.float16)


def test_the_memory_is_asked_for_once_and_waiting_for_it_does_not_count(
    frontend: Gemma3Frontend, photographs: list[np.ndarray]
) -> None:
    import time

    asked: list[object] = []
    memory = torch.empty((3, 3, 896, 896), dtype=torch.uint8)

    def empty(specs: object) -> list[torch.Tensor]:
        asked.append(specs)
        time.sleep(1.5)
        return [memory]

    done = frontend.process("", photographs[:3], payload=torch.uint8, empty=empty)
    assert asked == [[((3, 3, 896, 896), torch.uint8)]]
    assert done.mm.reduce()["pixel_values"].data_ptr() == memory.data_ptr()  # type: ignore[union-attr]
    assert done.seconds < 1.5
    frontend.process("text only", empty=empty)
    assert len(asked) == 1


def test_raw_pixels_never_reach_the_vision_tower(
    engine: Gemma3Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[torch.dtype] = []
    real = engine.model.get_image_features

    def spy(chunk: torch.Tensor, **options: object) -> object:
        reached.append(chunk.dtype)
        return real(chunk, **options)

    monkeypatch.setattr(engine.model, "get_image_features", spy)
    raw = torch.zeros((1, 3, 896, 896), dtype=torch.uint8)
    with pytest.raises(EngineError, match=r"got torch.uint8, wanted normalized floats"):
        engine.encode_images(raw)
    steps = (Step("sub", (127.5,)), Step("div", (127.5,)))
    for floats in (raw.float(), raw.bfloat16()):
        with pytest.raises(EngineError, match="with steps to normalize them"):
            engine.encode_images(floats, steps)
    assert not reached
    engine.encode_images(raw, steps)
    assert reached == [engine.dtype]


def test_greedy_tokens_as_uint8_are_those_as_float32_and_bfloat16s_are_counted(
    frontend: Gemma3Frontend,
    engine: Gemma3Engine,
    photographs: list[np.ndarray],
    record_property: Callable[[str, object], None],
) -> None:
    differ = {torch.bfloat16: 0, torch.uint8: 0}
    for image in photographs:
        answers = {}
        for payload in (torch.float32, torch.bfloat16, torch.uint8):
            done = frontend.process("What is it?", [image], payload=payload)
            sent = done.mm.reduce()["pixel_values"]
            assert isinstance(sent, torch.Tensor)
            features = engine.encode(
                "image", {"pixel_values": sent}, (done.steps or {}).get("image")
            )
            answers[payload] = engine.generate(done.token_ids, {"image": features}, 4).token_ids
        for payload in differ:
            differ[payload] += answers[payload] != answers[torch.float32]
    said = f"other tokens than as float32: {differ} of {len(photographs)} photographs"
    print(said)
    record_property("payload", said)
    assert differ[torch.uint8] == 0, said
    assert differ[torch.bfloat16] < len(photographs) / 2, said
