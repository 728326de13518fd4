"""Tensors whose storage was freed or made smaller under them: refused by path, never a signal."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
import mmlab
from mmlab import BatchedField, FieldElem, KwargsItem, KwargsItems

def item(t):
    return KwargsItem({"x": FieldElem(t, BatchedField())})

def messages(broken, like):
    yield broken
    yield [like, broken]
    yield [*(like.clone() for _ in range(20)), broken, *(like.clone() for _ in range(20))]
    yield [torch.ones(3), broken, torch.ones(4)]
    yield KwargsItems({"image": [item(like), item(broken)]})
    yield KwargsItems({"image": [*(item(like.clone()) for _ in range(20)), item(broken)]})

for left in (0, 8):
    for n in (50, 500, 50_000):
        for offset in (0, 5):
            for step in (1, 2):
                base = torch.arange(float(2 * n + offset))
                broken = base[offset :: step][:n]
                base.untyped_storage().resize_(left)
                for message in messages(broken, torch.zeros(n)):
                    many = len(message) if isinstance(message, list) else 0
                    if isinstance(message, KwargsItems):
                        many = len(message["image"])
                    if left and many > 16:
                        continue  # torch itself reads what a long run is stacked from
                    for threshold in (0, 256, None):
                        try:
                            frames = mmlab.Encoder(threshold).encode(message)
                        except mmlab.EncodeError as error:
                            assert "freed" in str(error), error
                        else:
                            raise SystemExit(f"encoded: {left} {n} {offset} {type(message)}")
print("all refused")
"""


def test_they_are_refused_wherever_they_stand() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=55
    )
    assert (done.returncode, done.stdout.strip()) == (0, "all refused"), done.stderr[-2000:]
