"""Rows as a run would leave them, made by hand: for tests that need numbers they know."""

from __future__ import annotations

from mmlab.bench.results import Row, environment_columns
from mmlab.measure import environment
from mmlab.pipeline.messages import STAGES


def result_row(**changes: object) -> Row:
    """A complete row of `results`."""
    row: Row = {
        "schema": 1,
        "run_id": "r",
        "strategy": "msgpack",
        "workload": "doc-mix",
        "case": "2 images",
        "phase": "sequential",
        "model": "echo",
        "scale": 0.125,
        "seed": 0,
        "repeat": 0,
        "block": 0,
        "request": 0,
        "num_images": 2,
        "payload": "float32",
        "payload_nbytes": 2000,
        "wire_nbytes": 2100,
        "num_frames": 2,
        "latency_s": 1.0,
        **{f"{stage}_s": 0.125 for stage in STAGES},
        "checksum": 2**64 - 1,
        "token_ids": "[1, 2]",
        "images_skipped": 0,
        "device": "cpu",
        "pinned": False,
        "copies": "2 to 3",
        "frontend_threads": 2,
        "engine_threads": None,
        **environment_columns(environment.collect()),
    }
    return {**row, **changes}  # type: ignore[dict-item]


def memory_row(**changes: object) -> Row:
    """A complete row of `memory`."""
    row: Row = {
        "schema": 1,
        "run_id": "r",
        "strategy": "msgpack",
        "workload": "doc-mix",
        "model": "echo",
        "scale": 0.125,
        "seed": 0,
        "repeat": 0,
        "process": "engine",
        "base_pss": 1000,
        "peak_pss": 7000,
        "base_rss": None,
        "peak_rss": None,
        "payload_nbytes": 2000,
        "multiple": 3.0,
        **environment_columns(environment.collect()),
    }
    return {**row, **changes}  # type: ignore[dict-item]
