"""One echo engine for all tests that leave it as they found it: a start imports torch, 2 s."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmlab.pipeline import Pipeline


@pytest.fixture(scope="session")
def shared_echo() -> Iterator[Pipeline]:
    with Pipeline(model="echo", max_inflight_nbytes=64 << 20, engine_threads=1) as pipeline:
        yield pipeline


@pytest.fixture
def echo(shared_echo: Pipeline) -> Iterator[Pipeline]:
    """An echo engine with 64 MiB in flight; nothing may be under way after the test."""
    yield shared_echo
    assert shared_echo.submit_items(None).result(5).checksum
    stats = shared_echo.stats()
    assert stats["requests_inflight"] == stats["nbytes_inflight"] == stats["nbytes_abandoned"] == 0
