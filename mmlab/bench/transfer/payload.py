"""The batches that are sent: every message has content of its own, and proves that it arrived."""

from __future__ import annotations

import zlib

import torch

from mmlab.bench.transfer.packets import Case, Proof

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "uint8": torch.uint8}
ENOUGH_NBYTES = 256 << 20  # of all sources together: more than a processor's caches hold
FEWEST, MOST = 3, 16  # sources
_SAMPLES = 1 << 14


def nbytes_of(case: Case) -> int:
    """Payload of one message."""
    return case.images * 3 * case.image_size**2 * DTYPES[case.dtype].itemsize


def sources_of(nbytes: int) -> int:
    """How many different batches of that size are sent in rotation."""
    if not nbytes:
        return FEWEST
    return min(MOST, max(FEWEST, -(-ENOUGH_NBYTES // nbytes)))


def fill(batch: torch.Tensor, seed: int) -> None:
    """Every byte written, the same for a seed. Pixels of one image, repeated."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, batch.shape[1:], dtype=torch.uint8, generator=generator)
    for part in batch:
        part.copy_(image)


def stamp(batch: torch.Tensor, number: int) -> None:
    """Make this message different from any other: its number in every image."""
    batch[:, 0, 0, 0] = number % 251
    batch[:, -1, -1, -1] = number // 251 % 251


def proof(batch: object) -> Proof:
    """Shape, dtype and a checksum over samples of all the memory."""
    if isinstance(batch, list):  # token ids
        return Proof([len(batch)], "tokens", zlib.crc32(repr(batch).encode()))
    if not isinstance(batch, torch.Tensor):
        return Proof([], type(batch).__name__, 0)
    flat = batch.contiguous().flatten().view(torch.uint8)
    step = max(1, len(flat) // _SAMPLES) | 1
    check = zlib.crc32(flat[::step].contiguous().numpy().tobytes())
    for image in batch:  # where the stamps are
        for corner in (image[0, 0, :1], image[-1, -1, -1:]):
            check = zlib.crc32(corner.contiguous().view(torch.uint8).numpy().tobytes(), check)
    return Proof(list(batch.shape), str(batch.dtype), check)
