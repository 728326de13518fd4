"""Valid messages with changed, cut, inserted or swapped bytes are refused or decode to a whole."""

from __future__ import annotations

import random

import numpy as np
import torch
from wire_messages import owned

import mmlab
from mmlab import WireError


def valid_messages() -> list[list[bytes]]:
    config = {
        "x": mmlab.batched("image"),
        "f": mmlab.flat("image", [1, 2, 0]),
        "s": mmlab.shared("image", 3),
        "l": mmlab.batched("image"),
    }
    outputs = {"x": torch.randn(3, 4), "f": torch.randn(3, 2), "s": (1, "a"), "l": [1, 2.5, None]}
    found = mmlab.KwargsItems.from_processor(outputs, config)
    objects = [
        {"text": "a" * 40, "n": [1, 2.5, None, b"x"]},
        torch.randn(5, 5),
        [torch.randn(40), torch.ones(3, dtype=torch.int8), np.arange(4)],
        found,
        {"mm": mmlab.KwargsItems({"image": [*found["image"], None]}), "e": torch.zeros(0, 3)},
    ]
    return [owned(mmlab.Encoder(t).encode(o)) for o in objects for t in (0, 256, None)]


def test_mutated_messages_decode_or_are_refused() -> None:
    rng = random.Random(16432)
    seeds = valid_messages()
    taken = 0
    for n in range(4000):
        frames = [bytearray(frame) for frame in rng.choice(seeds)]
        for _ in range(rng.choice((1, 1, 2, 5))):
            frame = rng.choice(frames)
            if not frame:
                continue
            at = rng.randrange(len(frame))
            what = rng.randrange(5)
            if what == 0:
                frame[at] ^= 1 << rng.randrange(8)
            elif what == 1:
                frame[at] = rng.choice((0, 1, 0x7F, 0x80, 0xC1, 0xDD, 0xFF))
            elif what == 2:
                del frame[at:]
            elif what == 3:
                frame[at:at] = rng.randbytes(rng.randrange(1, 9))
            else:
                frames[rng.randrange(len(frames))] = bytearray(rng.choice(rng.choice(seeds)))
        try:
            got = mmlab.Decoder(copy=n % 2 == 0).decode(frames)
        except WireError:
            continue
        taken += 1
        use(got)
    assert taken > 100


def use(got: object) -> None:
    """Look at everything: what was taken must be whole."""
    if isinstance(got, mmlab.KwargsItems):
        for entry in [e for entries in got.values() for e in entries if e is not None]:
            use([elem.data for elem in entry.values()])
        try:
            use(list(got.reduce().values()))
        except mmlab.BatchError:
            return
    elif isinstance(got, mmlab.KwargsItem):
        use([elem.data for elem in got.values()])
    elif isinstance(got, (torch.Tensor, np.ndarray)):
        bytes(memoryview(mmlab.Encoder(None).encode(got)[0]))
    elif isinstance(got, dict):
        use(list(got.values()))
    elif isinstance(got, (list, tuple)):
        for part in got:
            use(part)
