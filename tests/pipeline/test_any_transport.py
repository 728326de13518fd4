"""Choosing another transport changes one word: the same script gives the same answers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from pipeline_parts import images, wait_for

from mmlab import UsageError
from mmlab.pipeline import Pipeline
from mmlab.strategies import resolve

ANSWERS: dict[str, list[object]] = {}  # by transport


@pytest.mark.parametrize("transport", ["ipc", "tcp", "arena", "torch-shm"])
def test_the_same_script_gives_the_same_answers(
    transport: str, leftovers: Callable[..., list[str]]
) -> None:
    with Pipeline(
        model="echo",
        strategy="msgpack",
        transport=transport,
        insecure_pickle=transport == "torch-shm",
        max_inflight_nbytes=16 << 20,
        engine_threads=1,
    ) as pipeline:
        answers: list[object] = []
        for items in (None, images(2), images(3, 4.5, shape=(3, 128, 128)), images(1)):
            reply = pipeline.submit_items(items, [1, 2]).result(10)
            answers.append((reply.checksum, reply.token_ids, reply.payload_nbytes))
        futures = [pipeline.submit_items(images(2, n, (3, 96, 96))) for n in range(20)]
        answers += [future.result(10).checksum for future in futures]
        with pytest.raises(UsageError, match="budget is 16777216 bytes"):
            pipeline.submit_items(images(1, 0, (17 << 18,)))
        assert wait_for(lambda: pipeline.stats()["nbytes_inflight"] == 0)
        assert pipeline.strategy.transport == transport
        scheme = "tcp://127.0.0.1:" if transport == "tcp" else "ipc:///"
        assert pipeline.info.requests_endpoint.startswith(scheme)
    assert not leftovers("processes", "shm")
    ANSWERS[transport] = answers
    assert answers == ANSWERS.setdefault("ipc", answers)


@pytest.mark.parametrize(
    ("strategy", "transport", "words"),
    [
        ("msgpack", "icp", "unknown transport 'icp': did you mean"),
        ("msgpack", ["ipc"], "unknown transport ['ipc']"),
        ("msgpack", "inproc", "'msgpack': inproc does not reach another process; use ipc"),
        ("msgpack-inline", "arena", "'msgpack-inline', the arena goes with 'msgpack'"),
        ("msgpack-inline", "torch-shm", "'msgpack-inline', torch-shm goes with 'msgpack'"),
        ("pickle", "tcp", "'pickle' is allowed over ipc in a private directory only"),
        ("pickle", "arena", "'pickle', the arena goes with 'msgpack'"),
        ("pickle", "torch-shm", "'pickle', torch-shm goes with 'msgpack'"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    strategy: str, transport: str, words: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        Pipeline(model="echo", strategy=strategy, transport=transport, insecure_pickle=True)


def test_a_strategy_from_the_table_is_not_changed() -> None:
    with Pipeline(model="echo", strategy="arena", transport="ipc", engine_threads=1) as pipeline:
        assert pipeline.arena is None and pipeline.strategy.name == "arena"
        assert pipeline.submit_items(images(1)).result(10).checksum
    assert resolve("arena").transport == "arena"
