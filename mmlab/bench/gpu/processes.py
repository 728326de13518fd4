"""Whole pipelines on the GPU: they start after this process has used CUDA (S14), deliver the bytes
that were sent, and the model's answer does not depend on the way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

import mmlab
from mmlab.bench.gpu.context import Context
from mmlab.bench.gpu.findings import Finding
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items
from mmlab.strategies import REGISTRY

MODEL = "gemma3-tiny"
REQUESTS = 3
TOKENS = 8


def gpu_strategies() -> list[str]:
    """Those whose staging is made for a GPU."""
    return [name for name, strategy in REGISTRY.items() if strategy.needs_gpu]


def start_after_cuda(context: Context) -> Iterator[Finding]:
    """S14. The engine is a process of its own with an interpreter of its own."""
    torch.ones(1, device=context.torch_device)
    with _pipeline(context, "echo", "msgpack") as pipeline:
        reply = pipeline.submit_items(_items(context, 0)).result(30)
    used = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    yield Finding(
        "S14: starts after a CUDA call here",
        f"replies from {reply.device}, CUDA here {used}",
        f"replies from {context.torch_device.type}",
        reply.device.startswith(context.torch_device.type),
    )


def same_bytes(context: Context) -> Iterator[Finding]:
    """Three requests at once by each strategy to echo: the checksum of what reached the device."""
    for name in gpu_strategies():
        yield _same_bytes(context, name)


def _same_bytes(context: Context, strategy: str) -> Finding:
    sent = [_items(context, number) for number in range(REQUESTS)]
    with _pipeline(context, "echo", strategy) as pipeline:
        futures = [pipeline.submit_items(items) for items in sent]
        replies = [future.result(30) for future in futures]
    wrong = [
        number
        for number, (reply, items) in enumerate(zip(replies, sent, strict=True))
        if reply.checksum != checksum_items(items)
    ]
    pinned = all(reply.pinned for reply in replies)
    devices = sorted({reply.device for reply in replies})
    return Finding(
        f"echo by {strategy}",
        f"{REQUESTS - len(wrong)} of {REQUESTS} checksums equal, pinned {pinned}",
        "all equal, pinned True",
        not wrong and pinned and devices == [str(context.torch_device)],
        {"wrong": wrong, "devices": devices},
    )


def same_tokens(context: Context) -> Iterator[Finding]:
    """Two prompts with two images each, by `msgpack` and by all that need a GPU."""
    images = _images(context.seed, 4)
    asked = [("What is this?", images[:2]), ("And these?", images[2:])]
    tokens: dict[str, list[list[int]]] = {}
    for name in ("msgpack", *gpu_strategies()):
        with _pipeline(context, MODEL, name) as pipeline:
            tokens[name] = [
                pipeline.generate(prompt, images=seen, max_new_tokens=TOKENS).token_ids
                for prompt, seen in asked
            ]
    yield judge_tokens(tokens)


def judge_tokens(tokens: dict[str, list[list[int]]]) -> Finding:
    """All as the first strategy's, and each prompt with an answer."""
    names = list(tokens)
    first = tokens[names[0]]
    other = [name for name in names if tokens[name] != first]
    said = all(answer for answer in first)
    got = f"others by {', '.join(other)}" if other else f"equal by {len(names)} strategies"
    return Finding(
        f"tokens of {MODEL}",
        got if said else "no tokens",
        f"as by {names[0]}",
        said and not other,
        {"tokens": tokens},
    )


def _pipeline(context: Context, model: str, strategy: str) -> Pipeline:
    return Pipeline(
        model=model,
        strategy=strategy,
        device=context.torch_device,
        max_inflight_nbytes=256 << 20,
        start_timeout=60,
    )


def _items(context: Context, number: int) -> mmlab.KwargsItems:
    """Two images of each dtype, and a key that stays on the CPU."""
    generator = torch.Generator().manual_seed(context.seed + number)
    raw = torch.randint(0, 256, (2, 3, 224, 224 * 4), dtype=torch.uint8, generator=generator)
    outputs = {
        "pixel_values": raw.view(torch.float32),
        "half": raw.clone().view(torch.bfloat16),
        "raw": raw.clone(),
        "num_crops": torch.tensor([number, number + 1]),
    }
    config = {key: mmlab.batched("image", keep_on_cpu=key == "num_crops") for key in outputs}
    return mmlab.KwargsItems.from_processor(outputs, config)


def _images(seed: int, count: int) -> list[np.ndarray]:
    """Blocks of colour, each image others: needs no package with photographs."""
    blocks = np.random.default_rng(seed).integers(0, 256, (count, 6, 8, 3), dtype=np.uint8)
    return [np.repeat(np.repeat(block, 40, 0), 40, 1) for block in blocks]
