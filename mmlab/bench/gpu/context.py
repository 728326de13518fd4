"""What every check gets: the device, the size of a MiB, items in the memory it wants them in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mmlab.fields import BatchedField, FieldElem, KwargsItem
from mmlab.staging import Device, PinnedBatcher

Pairs = list[tuple[str, KwargsItem]]
GAP = 4096  # bytes between two items, so that together they are no batch yet
SLEEP_CYCLES = 20_000_000  # some 10 ms


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Context:
    """`mib`: bytes that all sizes count in; a test on a CPU takes fewer."""

    device: Device
    mib: int = 1 << 20
    seed: int = 0
    say: Callable[[str], object] = _silent

    @property
    def torch_device(self) -> torch.device:
        return self.device.torch_device


def pairs_of(key: str, tensors: Sequence[torch.Tensor]) -> Pairs:
    """An image item for each tensor."""
    return [("image", KwargsItem({key: FieldElem(t, BatchedField())})) for t in tensors]


def apart(context: Context, count: int, nbytes: int, *, pinned: bool) -> list[torch.Tensor]:
    """`count` uint8 tensors of random bytes, in one memory with gaps between, as in an arena:
    registered, or ordinary."""
    step = nbytes + GAP
    if pinned:
        memory = context.device.allocate(count * step, pin=True)
    else:
        memory = torch.empty(count * step, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(context.seed)
    memory.random_(0, 256, generator=generator)
    return [memory[at * step : at * step + nbytes] for at in range(count)]


def hold_up(context: Context, batcher: PinnedBatcher) -> None:
    """Keep the copy stream busy for some milliseconds, so that copies end late."""
    if context.torch_device.type != "cuda":
        return
    stream = batcher._copy_stream()
    with torch.cuda.stream(stream._stream):  # type: ignore[attr-defined]
        spin(SLEEP_CYCLES)


def spin(cycles: int) -> None:
    """Start torch's kernel that does nothing for so long, on the current stream."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def tensor_in(kwargs: dict[str, object], key: str) -> torch.Tensor:
    """The batched tensor of that key."""
    value = kwargs[key]
    assert isinstance(value, torch.Tensor), f"{key}: a {type(value).__name__}"
    return value


def synchronize(context: Context) -> None:
    """Wait until the device has done all that it was asked for."""
    if context.torch_device.type == "cuda":
        torch.cuda.synchronize()


def pin_modes() -> tuple[str, ...]:
    """The modes whose staging never waits for the device."""
    return ("pinned", "pool", "direct")


def gbps(nbytes: int, seconds: float) -> float:
    """10**9 bytes a second; 0 where no time was measured."""
    return nbytes / seconds / 1e9 if seconds > 0 else 0.0
