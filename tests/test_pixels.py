"""Steps on raw pixels: one rounding after another, in float32, and nothing that is no step."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch

from mmlab import BatchError, pixels
from mmlab.pixels import MAX_STEPS, Step
from mmlab.wire import Decoder, Encoder

SUB, DIV = Step("sub", (127.5,)), Step("div", (127.5,))


def raw(*lead: int) -> torch.Tensor:
    """(*lead, 3, 32, 48): every value in every channel."""
    values = torch.arange(32 * 48 * 3 * math.prod(lead)) % 256
    return values.to(torch.uint8).reshape(*lead, 3, 32, 48)


@pytest.mark.parametrize("lead", [(), (1,), (5,), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_done_in_order_in_float32_and_rounded_once(
    lead: tuple[int, ...], dtype: torch.dtype
) -> None:
    steps = (Step("mul", (0.1, 0.2, 0.3)), Step("sub", (0.5,)), Step("div", (0.3, 1.7, 3.0)))
    scale = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    wanted = (raw(*lead).float() * scale - 0.5) / torch.tensor([0.3, 1.7, 3.0]).view(3, 1, 1)
    out = torch.empty(raw(*lead).shape, dtype=dtype)
    assert pixels.apply(steps, raw(*lead), out) is out
    assert torch.equal(out, wanted.to(dtype))


def test_no_step_at_all_is_a_conversion() -> None:
    out = torch.empty(raw().shape)
    assert torch.equal(pixels.apply((), raw(), out), raw().float())


def test_what_is_written_to_may_be_a_part_of_something_larger() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        whole = torch.full((4, 3, 32, 48), 7.0, dtype=dtype)
        pixels.apply((SUB, DIV), raw(), whole[2])
        assert torch.equal(whole[2], ((raw().float() - 127.5) / 127.5).to(dtype))
        assert (whole[[0, 1, 3]] == 7).all()


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([SUB] * (MAX_STEPS + 1), f"got {MAX_STEPS + 1} steps, wanted at most {MAX_STEPS}"),
        ([SUB, Step("add", (1.0,))], r"steps\[1\]: got 'add' with 1 numbers.*sub, div, mul"),  # type: ignore[arg-type]
        ([Step("sub", ())], r"steps\[0\]: got 'sub' with 0 numbers, wanted .* 1 or 3"),
        ([Step("sub", (1.0, 2.0))], r"steps\[0\]: got 'sub' with 2 numbers"),
        ([Step("div", (1.0, 0.0, 1.0))], r"steps\[0\]: got div by \[1.0, 0.0, 1.0\]"),
        ([Step("mul", (math.nan,))], r"steps\[0\]: got mul by \[nan\], wanted finite"),
        ([Step("sub", (math.inf,))], r"steps\[0\]: got sub by \[inf\], wanted finite"),
    ],
)
def test_what_is_no_step_is_named(steps: list[Step], said: str) -> None:
    with pytest.raises(BatchError, match=said):
        pixels.apply(steps, raw(), torch.empty(raw().shape))


def test_other_dtypes_and_shapes_are_refused() -> None:
    with pytest.raises(BatchError, match=r"got torch.float32 \(3, 32, 48\)"):
        pixels.apply((SUB,), raw().float(), torch.empty(raw().shape))
    with pytest.raises(BatchError, match=r"\(3, 32, 48\) for \(3, 32\), wanted uint8"):
        pixels.apply((SUB,), raw(), torch.empty((3, 32)))


def test_steps_cross_the_wire_with_every_bit() -> None:
    class Carrier(msgspec.Struct):
        steps: tuple[Step, ...] | None = None

    sent = Carrier((Step("sub", (122.39999389648438, 114.75, 102.0)), Step("div", (1 / 3,))))
    got = Decoder(Carrier).decode(Encoder().encode(sent))
    assert got == sent


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2520, 768), (2, 2520, 768), (7,), (0, 768)])
def test_steps_of_one_number_work_on_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    patches = (torch.arange(math.prod(shape)) % 256).to(torch.uint8).reshape(shape)
    steps = (Step("mul", (1 / 255,)), Step("sub", (0.1,)))
    wanted = (patches.float() * (1 / 255) - 0.1).to(dtype)
    assert torch.equal(pixels.apply(steps, patches, torch.empty(shape, dtype=dtype)), wanted)
    apart = torch.empty((*shape, 2), dtype=dtype)[..., 0]  # not contiguous
    assert torch.equal(pixels.apply(steps, patches, apart), wanted)


def test_a_number_for_each_channel_needs_channels() -> None:
    with pytest.raises(BatchError, match=r"got 'sub' with 3 numbers, wanted one of .* with 1 or 1"):
        pixels.apply((Step("sub", (1.0, 2.0, 3.0)),), raw()[0], torch.empty((32, 48)))
