"""Images a second through the vision encoder of Gemma 3 4B, by each mode of staging.

The table of vLLM #19169, which measured whole serving: Gemma 3 4B with several images a prompt
gained 0.8 to 1.7 % by stacking into pinned memory (data/published/published.csv).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

import torch

from mmlab.bench import workloads
from mmlab.bench.gpu.context import Context, Pairs, apart, pairs_of, synchronize, tensor_in
from mmlab.bench.gpu.findings import Finding
from mmlab.gemma import PRESETS
from mmlab.gemma.gemma3.model import Gemma3Engine
from mmlab.staging import MODES, PinnedBatcher

MODEL = "gemma3-4b"
WORKLOAD = "multi"
ROUNDS = 9
BASE = "pageable"
BEFORE, AFTER = "pin-after", "pinned"  # of #19169
JUDGED = ("pool", "direct")
MIN_RATIO = 0.98  # of the pageable one's; the gain itself is shown, not judged
PUBLISHED = "vLLM #19169: +0.8 to 1.7 %"


def throughput(context: Context) -> Iterator[Finding]:
    """Prompts one after the other, as an engine takes them; rounds of all modes, interleaved."""
    if MODEL not in PRESETS:
        got = f"skipped: no preset {MODEL!r} here"
        yield Finding(f"images/s, {MODEL}", got, PUBLISHED, None)
        return
    begun = time.perf_counter()
    model = vision_only(MODEL, context.torch_device, context.seed)
    synchronize(context)
    context.say(f"{MODEL}: vision encoder built in {time.perf_counter() - begun:.1f} s")
    prompts = [request.num_images for request in workloads.get(WORKLOAD).requests()]
    yield from judge_throughput(sum(prompts), _times(context, model, prompts))


def vision_only(name: str, device: torch.device, seed: int) -> Gemma3Engine:
    """The preset with one text layer and a small vocabulary, which images never reach: the whole
    of it would take longer to make than to measure."""
    from mmlab.gemma import gemma3

    preset = PRESETS[name]
    small = replace(preset, text={**preset.text, "num_hidden_layers": 1}, vocab_size=1024)
    return gemma3.engine(name, small, device, torch.bfloat16, seed)


def _times(context: Context, model: Gemma3Engine, prompts: Sequence[int]) -> dict[str, list[float]]:
    """Seconds for all prompts, a number for each round, by mode."""
    side = model.image_size
    ordinary = [_pixels(context, count, side, pinned=False) for count in prompts]
    registered = [_pixels(context, count, side, pinned=True) for count in prompts]
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    with ExitStack() as open_batchers:
        batchers = {
            mode: open_batchers.enter_context(PinnedBatcher(context.device, mode=mode))
            for mode in MODES
        }
        for _ in range(ROUNDS):
            for mode, batcher in batchers.items():
                synchronize(context)
                begun = time.perf_counter()
                for pairs in registered if mode == "direct" else ordinary:
                    staged = batcher.stage(pairs)
                    model.encode_images(tensor_in(staged.kwargs, "pixel_values"))
                    staged.release()
                synchronize(context)
                times[mode].append(time.perf_counter() - begun)
    return {mode: found[2:] for mode, found in times.items()}  # without the warm-up


def _pixels(context: Context, count: int, side: int, *, pinned: bool) -> Pairs:
    """Normalized images, each in memory of its own, float32."""
    raw = apart(context, count, 3 * side * side * 4, pinned=pinned)
    images = [image.view(torch.float32).view(3, side, side) for image in raw]
    for image in images:
        image.uniform_(-1, 1)
    return pairs_of("pixel_values", images)


def judge_throughput(images: int, times: Mapping[str, Sequence[float]]) -> Iterator[Finding]:
    """Images a second of each mode; its gain over pageable is the median over the rounds."""
    for mode, found in times.items():
        ratio = median(b / a for a, b in zip(found, times[BASE], strict=True))
        rate = images / median(found)
        got = f"{rate:.1f}" if mode == BASE else f"{rate:.1f}, {ratio - 1:+.1%}"
        judged = mode in JUDGED
        wanted = f">= {MIN_RATIO} x {BASE}" if judged else "shown"
        if mode == AFTER and BEFORE in times:
            gain = median(b / a for a, b in zip(found, times[BEFORE], strict=True)) - 1
            got += f", {gain:+.1%} over {BEFORE}"
            wanted += f" beside {PUBLISHED}"
        yield Finding(
            f"images/s, {MODEL}, {mode}",
            got,
            wanted,
            ratio >= MIN_RATIO if judged else None,
            {"images_per_s": rate, "gain": ratio - 1, "seconds": list(found)},
        )
