"""A pipeline whose payload goes through the arena: the same answers, and nothing on the socket."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from arena_pipeline_parts import (
    KIB,
    MIB,
    arena_of,
    frozen,
    is_empty,
    lender_of,
    mappings,
    pixels_of,
    random_items,
    spied,
)
from pipeline_parts import images, wait_for

import mmlab
from mmlab import BackpressureTimeout, EncodeError, KwargsItems, TransportError, UsageError
from mmlab.arena import Descriptor, memfd, unpack
from mmlab.pipeline import Pipeline, Reply, process
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.outgoing import LITTLE
from mmlab.strategies import resolve

BUDGET = 16 * MIB


@pytest.fixture(scope="module")
def shared() -> Iterator[Pipeline]:
    with Pipeline(
        model="echo", strategy="arena", max_inflight_nbytes=BUDGET, engine_threads=1
    ) as pipeline:
        yield pipeline


@pytest.fixture
def pipe(shared: Pipeline) -> Iterator[Pipeline]:
    """Nothing is under way, and nothing in the arena, after the test."""
    yield shared
    assert shared.submit_items(None).result(5).checksum
    assert shared.stats()["requests_inflight"] == shared.stats()["nbytes_inflight"] == 0
    assert is_empty(shared)
    assert shared.stats()["arena_stale_returns"] == shared.stats()["unexpected_replies"] == 0


@pytest.fixture
def sent(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[list[bytes]]:
    """Every message that goes over the socket from here on."""
    return spied(pipe, monkeypatch)


def descriptor_of(message: list[bytes]) -> Descriptor:
    assert len(message) == 2
    return unpack(message[1])


def many_kinds() -> KwargsItems:
    """Two modalities, several dtypes, ragged sizes, arrays and numbers."""
    outputs = {
        "pixel_values": [torch.rand(3, 64, 64), torch.rand(3, 128, 32)],
        "half": torch.rand(2, 200, 100).to(torch.bfloat16),
        "size": torch.tensor([[1, 2], [3, 4]]),
        "array": torch.rand(2, 300).numpy(),
        "patches": torch.rand(7, 5000),
        "rate": 0.5,
    }
    config = {
        **{name: mmlab.batched("image") for name in ("pixel_values", "half", "size", "array")},
        "patches": mmlab.flat("video", sizes=[3, 4]),
        "rate": mmlab.shared("video", batch_size=2),
    }
    return KwargsItems.from_processor(outputs, config)


def test_answers_are_those_of_msgpack(pipe: Pipeline, echo: Pipeline) -> None:
    assert echo.arena is None and pipe.arena is not None
    pixels = torch.rand(4, 3, 128, 128)
    for items in (many_kinds(), images(5, shape=(3, 96, 96)), pixels_of(pixels[:, :, ::2]), None):
        through, beside = pipe.submit_items(items).result(10), echo.submit_items(items).result(10)
        assert through.checksum == beside.checksum == checksum_items(items)
        assert through.payload_nbytes == beside.payload_nbytes
        assert through.timings.keys() == beside.timings.keys()


def test_what_goes_over_the_socket_is_a_description(
    pipe: Pipeline, sent: list[list[bytes]]
) -> None:
    items = random_items(8 * MIB, 4)
    reply = pipe.submit_items(items).result(10)
    assert reply.checksum == checksum_items(items)
    (message,) = sent
    assert sum(map(len, message)) == reply.wire_nbytes < KIB
    assert reply.num_frames == 2 and reply.payload_nbytes == 8 * MIB
    (extent,) = descriptor_of(message).extents  # of all four, which are a batch already
    assert extent[1] == 8 * MIB


def test_the_engine_maps_the_arena_read_only_and_says_so(pipe: Pipeline) -> None:
    arena = arena_of(pipe)
    assert pipe.info.arena_nbytes == arena.size == BUDGET * 9 // 8
    assert mappings(pipe.engine_pid, arena.id) == ["r--s"]
    assert mappings(os.getpid(), arena.id) == ["rw-s"]
    assert not os.get_inheritable(arena.fileno())


@pytest.mark.parametrize("nbytes", [1, 255, 256, LITTLE - 1, LITTLE])
def test_a_little_payload_goes_as_one_plain_frame(
    pipe: Pipeline, sent: list[list[bytes]], nbytes: int
) -> None:
    items = random_items(nbytes)
    reply = pipe.submit_items(items, [1, 2]).result(5)
    assert reply.checksum == checksum_items(items)
    assert [len(message) for message in sent] == [1 if nbytes < LITTLE else 2]
    assert (reply.wire_nbytes < KIB) == (nbytes < 512 or nbytes == LITTLE)


def test_a_tensor_made_in_the_arena_is_sent_where_it_lies(
    pipe: Pipeline, sent: list[list[bytes]]
) -> None:
    arena = arena_of(pipe)
    made = arena.empty((4, 3, 256, 256), torch.float32)
    made.uniform_()
    offset, before = arena.where(made), arena.stats()
    with frozen(pipe):
        future = pipe.submit_items(pixels_of(made))
        half = pipe.submit_items(pixels_of(made[2:]))
        stats = arena.stats()
        assert stats.live_nbytes == before.live_nbytes and stats.leases == before.leases + 2
    assert future.result(10).checksum == checksum_items(pixels_of(made))
    assert half.result(10).checksum == checksum_items(pixels_of(made[2:]))
    assert offset is not None
    assert descriptor_of(sent[0]).extents == [(offset, made.nbytes)]
    assert descriptor_of(sent[1]).extents == [(offset + made.nbytes // 2, made.nbytes // 2)]
    assert wait_for(lambda: arena.stats().leases == before.leases)
    assert arena.stats().live_nbytes == before.live_nbytes


def test_what_lies_in_the_arena_and_what_does_not_travel_together(
    pipe: Pipeline, sent: list[list[bytes]]
) -> None:
    arena = arena_of(pipe)
    made = arena.empty((1, 100_000), torch.float32)
    made.normal_()
    outputs = {"made": made, "other": torch.rand(1, 50_000)}
    items = KwargsItems.from_processor(outputs, {key: mmlab.batched("image") for key in outputs})
    with frozen(pipe):
        live = arena.stats().live_nbytes
        future = pipe.submit_items(items)
        assert 0 < arena.stats().live_nbytes - live - 200_000 < 4 * KIB
    assert future.result(10).checksum == checksum_items(items)
    assert sum(map(len, sent[0])) < KIB


def test_a_request_over_the_budget_is_refused_at_once_with_both_numbers(pipe: Pipeline) -> None:
    items = random_items(BUDGET + 1)
    with pytest.raises(UsageError, match=rf"{BUDGET + 1} payload bytes.*{BUDGET} bytes"):
        pipe.submit_items(items)


def test_what_cannot_be_carried_takes_nothing(pipe: Pipeline, sent: list[list[bytes]]) -> None:
    outputs = {"x": [torch.rand(50_000)], "y": [torch.eye(2).to_sparse()]}
    items = KwargsItems.from_processor(outputs, {key: mmlab.batched("image") for key in outputs})
    before = pipe.stats()
    with pytest.raises(EncodeError, match="y"):
        pipe.submit_items(items)
    assert not sent and pipe.stats() == before


def test_submit_waits_for_room_in_the_arena_up_to_its_timeout(pipe: Pipeline) -> None:
    arena = arena_of(pipe)
    held = arena.empty((10 * MIB,), torch.uint8)
    items = random_items(9 * MIB)
    for timeout in (0, 0.2):
        with pytest.raises(BackpressureTimeout, match=r"arena: no room for 9437184 B"):
            pipe.submit_items(items, timeout=timeout)
    assert pipe.stats()["nbytes_inflight"] == 0
    assert pipe.submit_items(random_items(4 * MIB), timeout=0).result(10)  # fits beside it
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(pipe.submit_items, items)
        assert wait_for(lambda: pipe.stats()["arena_waits"] >= 3)
        assert not blocked.done()
        del held
        assert blocked.result(10).result(10).checksum == checksum_items(items)


def test_room_is_there_again_when_the_reply_is(pipe: Pipeline) -> None:
    """A lease is given back before the request is answered."""
    items = random_items(BUDGET)
    for _ in range(40):
        assert pipe.submit_items(items, timeout=0).result(10)


def test_a_callback_may_submit_again_though_everything_was_taken(pipe: Pipeline) -> None:
    items = random_items(BUDGET)
    second: Future[Future[Reply]] = Future()
    with frozen(pipe):
        first = pipe.submit_items(items)
        first.add_done_callback(lambda _: second.set_result(pipe.submit_items(items)))
    assert second.result(10).result(10).checksum == checksum_items(items)


def test_a_send_that_fails_takes_its_lease_back(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(frames: object) -> None:
        raise TransportError("the socket is full")

    with monkeypatch.context() as patch:
        patch.setattr(pipe._link._sender, "send", fails)
        with pytest.raises(TransportError, match="the socket is full"):
            pipe.submit_items(random_items(MIB))
    assert is_empty(pipe) and pipe.stats()["requests_inflight"] == 0
    assert lender_of(pipe).arena is pipe.arena


def test_an_arena_that_does_not_fit_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    monkeypatch.setattr(process.subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    monkeypatch.setattr(memfd, "_available", lambda: 100 * MIB)
    with pytest.raises(TransportError, match=r"75497472 B needed.* 104857600 B are free"):
        Pipeline(model="echo", strategy="arena", max_inflight_nbytes=64 * MIB)
    assert not leftovers("fds", "threads", "processes", "shm")


def test_without_memfd_the_error_names_ipc(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(TransportError, match=r"memfd_create.*'ipc'"):
        Pipeline(model="echo", strategy="arena")
    assert not leftovers("fds", "threads", "processes")


@pytest.mark.parametrize("serializer", ["msgpack-inline", "pickle"])
def test_only_msgpack_knows_the_arena(serializer: str) -> None:
    strategy = dataclasses.replace(resolve("arena"), name="own", serializer=serializer)
    with pytest.raises(UsageError, match="the arena goes with 'msgpack'"):
        Pipeline(model="echo", strategy=strategy, insecure_pickle=True)
