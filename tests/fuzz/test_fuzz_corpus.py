"""The inputs that libFuzzer kept (tests/corpus), made into messages and checked."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from fuzz_build import build
from fuzz_check import Checker, Often

CORPUS = Path(__file__).parents[1] / "corpus"


def test_the_corpus_is_small_and_reaches_far() -> None:
    files = sorted(CORPUS.iterdir())
    assert 50 < len(files) <= 200
    assert sum(file.stat().st_size for file in files) <= 300_000
    torch.set_num_threads(1)
    with Checker(Often(1, 1, 1, 1)) as checker:
        for file in files:
            kind, frames = build(file.read_bytes())
            for n in (0, 1, 3):
                checker.check(frames, kind, n)
        counts = checker.counts
    assert counts.tensors > 50 and counts.items > 50 and counts.batches > 50
    assert len(counts.errors) >= 15, sorted(counts.errors)


def test_any_bytes_make_a_message_and_always_the_same(seed: int) -> None:
    rng = random.Random(seed)
    with Checker(Often()) as checker:
        for n in range(500):
            data = rng.randbytes(rng.randrange(300))
            kind, frames = build(data)
            assert build(data) == (kind, frames)
            checker.check(frames, kind, n)
        assert checker.counts.valid > 50
