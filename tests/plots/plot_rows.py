"""Rows as a run writes them, with plausible numbers: what the figures are drawn from in tests.

The shape follows `mmlab.bench.columns`; seconds and multiples are set near those of a small CPU.
"""

from __future__ import annotations

import numpy as np

from mmlab.bench import columns
from mmlab.bench.columns import MEMORY, RESULTS
from mmlab.pipeline.messages import STAGES

ENVIRONMENT = {
    "env_time": "2026-11-30T20:15:00+00:00",
    "env_mmlab": "0.1.0",
    "env_torch": "2.14.1",
    "env_cpu": "AMD EPYC 7B13",
    "env_cores": 2,
    "env_gpu": None,
}
assert ENVIRONMENT.keys() <= {column.name for column in columns.ENVIRONMENT}
IMAGE_NBYTES = 3 * 896 * 896 * 4
CASES = {"4 images": (4, 8), "8 images": (8, 4), "16 images": (16, 2), "32 images": (32, 1)}
# Seconds for each image and stage, and how the stage grows with the images (power).
COSTS = {
    "processor": (0.035, 1.0),
    "encode": (0.0002, 1.0),
    "transport": (0.004, 1.0),
    "decode": (0.0001, 1.0),
    "reduce": (0.003, 1.0),
    "h2d": (0.00001, 1.0),
    "encoder": (0.22, 1.0),
    "prefill": (0.06, 1.0),
    "decode_tokens": (0.02, 0.2),
}
FACTORS = {
    "pickle": {"encode": (0.006, 2.0), "transport": (0.004, 2.0), "decode": (0.005, 2.0)},
    "msgpack-inline": {"encode": (0.006, 1.0), "transport": (0.007, 1.0), "decode": (0.003, 1.0)},
}
MULTIPLES = {"pickle": (33.4, 65.8), "msgpack-inline": (3.1, 3.2), "msgpack": (1.02, 2.1)}


def result_rows(
    strategies: tuple[str, ...] = ("pickle", "msgpack-inline", "msgpack"),
    cases: dict[str, tuple[int, int]] = CASES,
    repeats: int = 5,
    mix: bool = True,
    seed: int = 0,
) -> list[dict[str, object]]:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for strategy in strategies:
        for repeat in range(repeats):
            waited, number = 0.0, 0
            for phase in ("sequential", "mix") if mix else ("sequential",):
                for case, (images, prompts) in cases.items():
                    for _ in range(prompts):
                        number += 1
                        row = _row(strategy, case, phase, images, repeat, number, rng)
                        if phase == "mix":
                            waited += float(str(row["latency_s"])) * 0.9
                            row["latency_s"] = waited
                        rows.append(row)
    return rows


def _row(
    strategy: str,
    case: str,
    phase: str,
    images: int,
    repeat: int,
    request: int,
    rng: np.random.Generator,
) -> dict[str, object]:
    row: dict[str, object] = {column.name: None for column in RESULTS} | ENVIRONMENT
    which = request + 1000 * repeat  # what a request carries is the same for every strategy
    row |= {
        "schema": 1,
        "run_id": "20261130T201500Z",
        "strategy": strategy,
        "workload": "doc-mix",
        "case": case,
        "phase": phase,
        "model": "gemma3-tiny",
        "scale": 1.0,
        "seed": 0,
        "repeat": repeat,
        "request": request,
        "num_images": images,
        "payload": "float32",
        "payload_nbytes": images * IMAGE_NBYTES,
        "device": "cpu",
        "pinned": False,
        "token_ids": f"[5, 9, 9, {which}]",
        "checksum": 2**63 + which,
    }
    for stage in STAGES:
        each, power = {**COSTS, **FACTORS.get(strategy, {})}[stage]
        row[f"{stage}_s"] = each * images**power * float(rng.lognormal(0, 0.06))
    row["latency_s"] = sum(float(str(row[f"{stage}_s"])) for stage in STAGES) * 1.01
    return row


def memory_rows(
    strategies: tuple[str, ...] = ("pickle", "msgpack-inline", "msgpack"), repeats: int = 3
) -> list[dict[str, object]]:
    rng = np.random.default_rng(1)
    rows: list[dict[str, object]] = []
    for strategy in strategies:
        for repeat in range(repeats):
            front, engine = (
                value * float(rng.lognormal(0, 0.04))
                for value in MULTIPLES.get(strategy, (1.0, 1.4))
            )
            found = {"frontend": front, "engine": engine, "both": front + 0.8 * engine}
            for process, multiple in found.items():
                row: dict[str, object] = {column.name: None for column in MEMORY} | ENVIRONMENT
                payload = 32 * IMAGE_NBYTES
                row |= {
                    "strategy": strategy,
                    "workload": "doc-mix",
                    "model": "gemma3-tiny",
                    "repeat": repeat,
                    "process": process,
                    "base_pss": 300_000_000,
                    "peak_pss": int(300_000_000 + multiple * payload),
                    "payload_nbytes": payload,
                    "multiple": multiple,
                }
                rows.append(row)
    return rows
