"""The rounds of a case: every mode and every way to copy the same bytes has a turn in each.

A ratio is taken within a round, where both met the same machine; the memcpy is the fastest of
several ways to do one, by its median. Everything is warm: pages are touched, the pool has its
buffer. On a GPU a turn ends when the batch has arrived, and the time of the copy alone is that
between two CUDA events, for the batch as for one plain copy of the same bytes.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch

from mmlab.bench.staging.cases import Case, Pairs, pairs_of, tiny, written
from mmlab.bench.wire.timing import median_interval
from mmlab.staging import MODES, Device, PinnedBatcher, PinnedPool
from mmlab.staging.device import map_memory

WARM_ROUNDS = 2
OVERHEAD_CALLS = 100  # of an empty batch, in a turn

PLAIN = "plain"  # one pinned copy to the device

Row = dict[str, str | int | float | bool | None]
Ways = dict[str, Callable[[], float]]  # each takes its turn and says how many seconds it took


def modes_for(device: Device) -> tuple[str, ...]:
    """Without copies to a device the other modes are one of these two."""
    return ("pageable", "pool") if device.is_host else MODES


@dataclass
class Samples:
    """Of one mode, a value a round, in seconds; and what its batches said of themselves."""

    stage: list[float] = field(default_factory=list)  # until `stage` returned
    ready: list[float] = field(default_factory=list)  # until the batch was there
    h2d: list[float] = field(default_factory=list)
    said: Row = field(default_factory=dict)


def measure(case: Case, device: Device, *, rounds: int, draw: random.Random) -> list[Row]:
    """A row for each mode."""
    samples = {mode: Samples() for mode in modes_for(device)}
    ordinary = pairs_of(case)
    registered = ordinary if device.is_host else pairs_of(case, device)
    copies = memcpys(ordinary, case)
    if not device.is_host:
        copies[PLAIN] = _plain_copy(case, device)
    others: dict[str, list[float]] = {name: [] for name in copies}
    turns = [*samples, *others]
    with ExitStack() as stack:
        batchers = {mode: stack.enter_context(_batcher(mode, device, case)) for mode in samples}
        for _ in range(WARM_ROUNDS + rounds):
            for name in draw.sample(turns, len(turns)):
                if name in batchers:
                    pairs = registered if name == "direct" else ordinary
                    _stage(batchers[name], pairs, samples[name])
                else:
                    others[name].append(copies[name]())
    plain = others.pop(PLAIN, [])[WARM_ROUNDS:]
    kept = [np.array(times[WARM_ROUNDS:]) for times in others.values()]
    base = min(kept, key=lambda times: float(np.median(times)))
    return [_row(case, mode, found, base, plain) for mode, found in samples.items()]


def overhead(device: Device, *, rounds: int, draw: random.Random) -> list[Row]:
    """Rows for `stage` and `release` of next to nothing: of one item, and of two together."""
    return [row for count in (1, 2) for row in _overhead(count, device, rounds, draw)]


def _overhead(count: int, device: Device, rounds: int, draw: random.Random) -> list[Row]:
    pairs = tiny(count)
    times: dict[str, list[float]] = {mode: [] for mode in modes_for(device)}
    said: dict[str, Row] = {}
    with ExitStack() as stack:
        batchers = {
            mode: stack.enter_context(PinnedBatcher(device, mode=mode, pin=_pin(device)))
            for mode in times
        }
        for number in range(WARM_ROUNDS + rounds):
            for mode in draw.sample(list(times), len(times)):
                begun = time.perf_counter()
                for _ in range(OVERHEAD_CALLS):
                    staged = batchers[mode].stage(pairs)
                    staged.release()
                took = (time.perf_counter() - begun) / OVERHEAD_CALLS
                staged.synchronize()
                said[mode] = {"copies": staged.copies, "pinned": staged.pinned}
                if number >= WARM_ROUNDS:
                    times[mode].append(took)
    return [
        {
            "table": "overhead",
            "mode": mode,
            "images": count,
            "rounds": rounds,
            "device": str(device.torch_device),
            **said[mode],
            **_median("stage_s", np.array(found)),
        }
        for mode, found in times.items()
    ]


def memcpys(pairs: Pairs, case: Case) -> Ways:
    """Ways to copy all bytes of `pairs` into one warm buffer, whole or image by image."""
    out = written(map_memory(case.nbytes))
    parts = [_bytes(item["pixel_values"].data) for _, item in pairs if item is not None]
    whole = written(map_memory(case.nbytes))
    step = case.image_nbytes
    places = [out[at * step : (at + 1) * step] for at in range(case.images)]

    def by_image() -> None:
        for place, part in zip(places, parts, strict=True):
            np.copyto(place, part)

    addresses = out.ctypes.data, whole.ctypes.data
    return {
        "copyto": lambda: _seconds(lambda: np.copyto(out, whole)),
        "memmove": lambda: _seconds(lambda: ctypes.memmove(*addresses, case.nbytes)),
        "copyto by image": lambda: _seconds(by_image),
    }


def _bytes(value: object) -> np.ndarray:
    assert isinstance(value, torch.Tensor)
    found: np.ndarray = value.view(-1).view(torch.uint8).numpy()
    return found


def _pin(device: Device) -> bool | None:
    return False if device.is_host else None


def _batcher(mode: str, device: Device, case: Case) -> PinnedBatcher:
    if mode in ("pool", "direct"):
        pool = PinnedPool(case.nbytes, pin=_pin(device), device=device)
        return PinnedBatcher(device, pool, mode=mode)
    return PinnedBatcher(device, mode=mode, pin=_pin(device))


def _seconds(do: Callable[[], object]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


def _stage(batcher: PinnedBatcher, pairs: Pairs, into: Samples) -> None:
    begun = time.perf_counter()
    staged = batcher.stage(pairs)
    into.stage.append(time.perf_counter() - begun)
    staged.synchronize()
    into.ready.append(time.perf_counter() - begun)
    into.h2d.append(staged.timings["h2d"])
    source = next(item["pixel_values"].data for _, item in pairs if item is not None)
    found = staged.kwargs["pixel_values"]
    assert isinstance(source, torch.Tensor) and isinstance(found, torch.Tensor)
    into.said = {
        "copies": staged.copies,
        "copied_nbytes": staged.copied_nbytes,
        "pinned": staged.pinned,
        "in_place": found.data_ptr() == source.data_ptr(),
        "device": str(staged.device),
    }
    staged.release()


def _plain_copy(case: Case, device: Device) -> Callable[[], float]:
    """One copy of as many bytes from pinned memory: its seconds between two CUDA events."""
    source = device.allocate(case.nbytes, pin=True)
    stream = device.stream()

    def copy() -> float:
        start = stream.record()
        target = stream.copy(source, pinned=True)
        end = stream.record()
        end.synchronize()
        del target
        return end.seconds_since(start)

    return copy


def _row(case: Case, mode: str, found: Samples, base: np.ndarray, plain: Sequence[float]) -> Row:
    stage, ready, h2d = (
        np.array(times[WARM_ROUNDS:]) for times in (found.stage, found.ready, found.h2d)
    )
    row: Row = {
        "table": "stage",
        "mode": mode,
        "items": case.items,
        "images": case.images,
        "dtype": case.dtype,
        "image_size": case.image_size,
        "payload_nbytes": case.nbytes,
        **found.said,
        "rounds": len(stage),
        **_median("stage_s", stage),
        **_median("ready_s", ready),
        **_median("memcpy_s", base),
        **_median("over_memcpy", stage / base),
    }
    nothing = np.array([])
    row |= _median("h2d_gb_per_s", case.nbytes / h2d / 1e9 if plain else nothing)
    row |= _median("plain_gb_per_s", case.nbytes / np.array(plain) / 1e9)
    row |= _median("over_plain", h2d / np.array(plain) if plain else nothing)
    return row


def _median(name: str, values: np.ndarray) -> Row:
    """The median of `values` and its interval; None where there are none."""
    keys = name, f"{name}_low", f"{name}_high"
    if not len(values):
        return dict.fromkeys(keys)
    return dict(zip(keys, (float(np.median(values)), *median_interval(values)), strict=True))
