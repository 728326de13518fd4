"""The whole run: every case, with one thread of torch and with several, rows as they come."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from mmlab.bench.progress import Log
from mmlab.bench.staging.cases import Case
from mmlab.bench.staging.timing import Row, measure, overhead
from mmlab.measure.clocks import now
from mmlab.staging import Device


def run(
    plan: Sequence[Case],
    device: Device,
    *,
    threads: Sequence[int],
    rounds: int,
    seed: int,
    log: Log,
) -> Iterator[Row]:
    """Rows of `plan`, and of an empty batch, for each number of torch's threads."""
    draw = random.Random(seed)
    begun, total, done = now(), len(threads) * (len(plan) + 1), 0

    def say(text: str) -> None:
        log(f"{now() - begun:5.0f} s  {text}")

    for count in threads:
        with torch_threads(count):
            note = f"torch threads: {count}"
            for case in plan:
                done += 1
                say(f"{done} of {total}: {_name(case)}, {note} ...")
                for row in measure(case, device, rounds=rounds, draw=draw):
                    yield {**row, "torch_threads": count}
                gc.collect()
            done += 1
            say(f"{done} of {total}: a batch of next to nothing, {note} ...")
            for row in overhead(device, rounds=rounds, draw=draw):
                yield {**row, "torch_threads": count}
    say("done")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch has `count` threads inside, and what it had before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _name(case: Case) -> str:
    return f"{case.images} x {case.dtype}, {case.items}"
