"""Host to device: how fast each mode copies beside one plain pinned copy, and S12: whether the
time that is reported is that of the copy."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from statistics import median

import mmlab
from mmlab.bench.gpu.context import Context, apart, gbps, pairs_of, synchronize
from mmlab.bench.gpu.findings import Finding
from mmlab.staging import MODES, PinnedBatcher, PinnedPool

SIZES = (16, 64, 256)  # MiB
PARTS = 4
ROUNDS = 11
MIN_RATIO = 0.9
JUDGED = ("pool", "direct")
PLAIN = "plain"
# 10**9 bytes a second and lane, of each PCIe generation, after its line code.
LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
COHERENT = ("GH200", "GB200", "GB300")  # to their host by NVLink, whatever PCIe they name


def bandwidth(context: Context) -> Iterator[Finding]:
    """Events on the copying stream, in interleaved rounds of which the first does not count."""
    for mib in SIZES:
        nbytes = mib * context.mib
        yield from judge_bandwidth(mib, nbytes, _times(context, nbytes))


def _times(context: Context, nbytes: int) -> dict[str, list[float]]:
    source = context.device.allocate_fresh(nbytes)
    stream = context.device.stream()
    part_nbytes = nbytes // PARTS
    ordinary = pairs_of("x", apart(context, PARTS, part_nbytes, pinned=False))
    registered = pairs_of("x", apart(context, PARTS, part_nbytes, pinned=True))
    times: dict[str, list[float]] = {name: [] for name in (PLAIN, *MODES)}
    with ExitStack() as open_batchers:
        batchers = {
            mode: open_batchers.enter_context(PinnedBatcher(context.device, mode=mode))
            for mode in MODES
        }
        for _ in range(ROUNDS):
            start = stream.record()
            stream.copy(source, pinned=True)
            end = stream.record()
            end.synchronize()
            times[PLAIN].append(end.seconds_since(start))
            for mode, batcher in batchers.items():
                staged = batcher.stage(registered if mode == "direct" else ordinary)
                times[mode].append(staged.timings["h2d"])
                staged.release()
    return {name: found[1:] for name, found in times.items()}


def judge_bandwidth(
    mib: int, nbytes: int, times: Mapping[str, Sequence[float]]
) -> Iterator[Finding]:
    """Of `times[mode]` and `times["plain"]` in the same rounds: medians, and their ratio."""
    plain = gbps(nbytes, median(times[PLAIN]))
    for mode, found in times.items():
        if mode == PLAIN:
            continue
        speed = gbps(nbytes, median(found))
        ratio = speed / plain if plain else 0.0
        yield Finding(
            f"{mode}, {mib} MiB",
            f"{speed:.1f} of {plain:.1f} GB/s, {ratio:.2f}",
            f">= {MIN_RATIO}" if mode in JUDGED else "shown",
            ratio >= MIN_RATIO if mode in JUDGED else None,
            {"gbps": speed, "plain_gbps": plain, "seconds": list(found), "plain": times[PLAIN]},
        )


def reported_time(context: Context) -> Iterator[Finding]:
    """S12: 1 GiB that lies in pinned memory, by the host's clock and by events."""
    nbytes = 1024 * context.mib
    source = context.device.allocate(nbytes, pin=True).view(8, -1)
    items = mmlab.KwargsItems.from_processor({"x": source}, {"x": mmlab.batched("image")})
    pairs = items.pairs()
    submitted, host, event = [], [], []
    pool = PinnedPool(context.mib, device=context.device)  # has no room for a copy on the host
    with pool, PinnedBatcher(context.device, pool) as batcher:
        batcher.stage(pairs).synchronize().release()
        for _ in range(5):
            synchronize(context)
            begun = time.perf_counter()
            staged = batcher.stage(pairs)
            submitted.append(time.perf_counter() - begun)
            staged.synchronize()
            host.append(time.perf_counter() - begun)
            event.append(staged.timings["h2d"])
            staged.release()
    link, name = link_bandwidth(_nvidia_smi())
    yield from judge_reported(nbytes, submitted, host, event, link, name)


def judge_reported(
    nbytes: int,
    submitted: Sequence[float],
    host: Sequence[float],
    event: Sequence[float],
    link: float | None,
    link_name: str,
) -> Iterator[Finding]:
    """`link`: its 10**9 bytes a second, None where the driver does not tell."""
    by_host, by_event = median(host), median(event)
    apart_by = abs(by_host - by_event) / by_event if by_event > 0 else 1.0
    values = {"submitted_s": list(submitted), "host_s": list(host), "event_s": list(event)}
    yield Finding(
        "S12: 1 GiB, host's clock and events",
        f"{by_host * 1e3:.2f} and {by_event * 1e3:.2f} ms, submitted in "
        f"{median(submitted) * 1e3:.2f} ms",
        "within 10 %",
        apart_by <= 0.1,
        values,
    )
    fastest = gbps(nbytes, min(*host, *event))
    yield Finding(
        "S12: no faster than the link",
        f"{fastest:.1f} GB/s",
        f"<= {link:.1f} GB/s, {link_name}" if link else f"unknown: {link_name}",
        fastest <= link if link else None,
        {"link_gbps": link},
    )


def link_bandwidth(told: str | None) -> tuple[float | None, str]:
    """(10**9 bytes a second, its name) of what nvidia-smi prints: name, generation, width. Of
    several GPUs the fastest; (None, why) where it does not say."""
    found: list[tuple[float, str]] = []
    for line in (told or "").splitlines():
        name, _, numbers = line.partition(", ")
        if any(chip in name for chip in COHERENT):
            return None, f"{name} is not linked by PCIe alone"
        generation, _, width = (text.strip() for text in numbers.partition(","))
        if generation.isdecimal() and width.isdecimal() and int(generation) in LANE_GBPS:
            speed = LANE_GBPS[int(generation)] * int(width)
            found.append((speed, f"PCIe {generation} x{width}"))
    return max(found) if found else (None, "nvidia-smi does not tell the link")


def _nvidia_smi() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = "--query-gpu=name,pcie.link.gen.max,pcie.link.width.max"
    try:
        done = subprocess.run(
            [tool, query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
