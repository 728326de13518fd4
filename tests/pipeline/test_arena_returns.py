"""Every lease comes back, whatever becomes of its request."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
import torch
from arena_pipeline_parts import KIB, MIB, arena_of, frozen, is_empty, lender_of, random_items
from pipeline_parts import wait_for

from mmlab import BatchError, KwargsItems, WireError, flat
from mmlab.arena import Arena, Descriptor, Lease, Returned, pack, unpack
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.inflight import Pending, ReplyFuture
from mmlab.pipeline.messages import Request
from mmlab.transports import Buffer


@pytest.fixture(scope="module")
def shared() -> Iterator[Pipeline]:
    with Pipeline(
        model="echo", strategy="arena", max_inflight_nbytes=32 * MIB, engine_threads=1
    ) as pipeline:
        yield pipeline


@pytest.fixture
def pipe(shared: Pipeline) -> Iterator[Pipeline]:
    """Afterwards it serves as before, and nothing is under way or in the arena."""
    yield shared
    items = random_items(MIB)
    assert shared.submit_items(items).result(5).checksum == checksum_items(items)
    assert shared.stats()["requests_inflight"] == shared.stats()["nbytes_inflight"] == 0
    assert is_empty(shared)


def by_hand(pipe: Pipeline, request_id: int, frames: Sequence[Buffer]) -> ReplyFuture:
    """A future for a message that we send ourselves."""
    link = pipe._link
    future = ReplyFuture(request_id, link.inflight.cancel, None)
    link.budget.acquire(0, 0)
    link.inflight.add(request_id, Pending(future, 0, 0))
    assert link._sender is not None
    link._sender.send(frames)
    return future


def packed(pipe: Pipeline) -> tuple[int, list[Buffer], Lease]:
    """A good message of 1 MiB, not sent yet: its id, its frames, its lease."""
    request_id = next(pipe._link._ids)
    request = Request([1], 1, random_items(MIB))
    frames, lease = lender_of(pipe).dumps(request, request_id, MIB, 1)
    assert lease is not None and len(frames) == 2
    return request_id, frames, lease


def test_four_threads_get_their_own_answers(pipe: Pipeline) -> None:
    """Random sizes, some of several extents, some cancelled: all are answered once, or not at all
    where nobody wants them any more."""
    seeds = [random.randrange(1 << 30) for _ in range(4)]

    def client(seed: int) -> list[bool]:
        choose = random.Random(seed)
        sent = []
        for _ in range(100):
            size = choose.choice([100, 10 * KIB, 70 * KIB, 300 * KIB, MIB, 5 * MIB])
            items = random_items(choose.randrange(size // 2, size), choose.randrange(1, 4))
            future = pipe.submit_items(items, timeout=30)
            if choose.random() < 0.1 and future.cancel():
                continue
            sent.append((future, checksum_items(items)))
        return [future.result(30).checksum == checksum for future, checksum in sent]

    before = pipe.stats()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(client, seeds))
    assert all(all(right) for right in answers) and sum(map(len, answers)) > 300
    assert wait_for(lambda: pipe.stats()["requests_inflight"] == 0)
    assert is_empty(pipe)
    for name in ("arena_stale_returns", "unexpected_replies", "engine_rejected"):
        assert pipe.stats()[name] == before[name]


def test_an_aborted_request_returns_its_lease_without_being_served(pipe: Pipeline) -> None:
    with frozen(pipe):
        futures = [pipe.submit_items(random_items(4 * MIB)) for _ in range(6)]
        assert all(future.cancel() for future in futures[1:])
        assert pipe.stats()["arena_live_nbytes"] == 24 * MIB
    assert futures[0].result(10)
    for future in futures[1:]:
        with pytest.raises(CancelledError):
            future.result(0)
    assert is_empty(pipe)
    assert wait_for(lambda: pipe.stats()["nbytes_abandoned"] == 0)


def test_a_failed_request_returns_its_lease(pipe: Pipeline) -> None:
    """Two flat items that cannot be one batch, and cannot be told apart by the grouping."""
    parts = [
        KwargsItems.from_processor({"x": torch.rand(shape)}, {"x": flat("image", sizes=[shape[0]])})
        for shape in ((400, 100), (400, 100, 2))
    ]
    items = KwargsItems({"image": [part["image"][0] for part in parts]})
    for _ in range(3):
        with pytest.raises(BatchError, match=r"failed in the engine \(reduce\)"):
            pipe.submit_items(items).result(5)
    assert is_empty(pipe)


@pytest.mark.parametrize("hidden", [False, True], ids=["id known", "id hidden"])
def test_an_undecodable_request_returns_its_lease(pipe: Pipeline, hidden: bool) -> None:
    rejected = pipe.stats()["engine_rejected"]
    request_id, frames, lease = packed(pipe)
    head = bytes(frames[0])
    head = b"xxxx" + head[4:] if hidden else head[:-1]
    with lender_of(pipe).lending(lease):
        future = by_hand(pipe, request_id, [head, frames[1]])
    if hidden:
        assert is_empty(pipe)
        future.cancel()
        pipe._link.inflight.take(request_id)
    else:
        with pytest.raises(WireError, match=r"failed in the engine \(decode\)"):
            future.result(5)
    assert is_empty(pipe)
    assert wait_for(
        lambda: (
            pipe.submit_items(None).result(5) and pipe.stats()["engine_rejected"] == rejected + 1
        )
    )


def broken(arena: Arena, good: Descriptor) -> dict[str, tuple[list[bytes], str]]:
    """name -> (frames after frame 0, words of the error)."""
    number, generation, extents = good.lease, good.generation, good.extents
    at, nbytes = extents[0]

    def changed(**values: object) -> list[bytes]:
        fields = {"arena": good.arena, "lease": number, "generation": generation}
        return [pack(Descriptor(**({**fields, "extents": extents} | values)))]  # type: ignore[arg-type]

    return {
        "no descriptor": ([b"\xc1"], "arena descriptor"),
        "an empty frame": ([b""], "arena descriptor"),
        "cut off": ([pack(good)[:-1]], "arena descriptor"),
        "cut off at its first byte": ([pack(good)[:1]], "arena descriptor"),
        "trailing bytes": ([pack(good) + b"\xc0"], "arena descriptor"),
        "payload in frames": ([bytes(100_000)], "arena descriptor"),
        "more than one": ([pack(good), pack(good)], "3 frames"),
        "another arena": (changed(arena=good.arena + 1), "of arena"),
        "no such lease": (changed(lease=1 << 40), "lease"),
        "no generation": (changed(generation=0), "generation 0"),
        "beyond the end": (changed(extents=[(arena.size - 64, 128)]), "outside"),
        "before the begin": (changed(extents=[(-64, 64)]), "outside"),
        "of no bytes": (changed(extents=[(at, 0)]), "outside"),
        "beyond all numbers": (changed(extents=[(at, 1 << 62)]), "outside"),
        "overlapping": (changed(extents=[(at, nbytes), (at + 64, 64)]), "overlap"),
        "not aligned": (changed(extents=[(at + 1, 10)]), "multiple of 64"),
    }


NAMES = list(broken(Arena(4096), Descriptor(1, 1, 1, [(0, 4096)])))


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_descriptor_costs_one_error_reply(pipe: Pipeline, name: str) -> None:
    request_id, frames, lease = packed(pipe)
    rest, words = broken(arena_of(pipe), unpack(bytes(frames[1])))[name]
    assert pipe.submit_items(None).result(5)
    rejected = pipe.stats()["engine_rejected"]
    with pytest.raises(WireError, match=words):
        by_hand(pipe, request_id, [frames[0], *rest]).result(5)
    items = random_items(MIB)
    assert pipe.submit_items(items).result(2).checksum == checksum_items(items)
    assert pipe.stats()["engine_rejected"] == rejected + 1
    assert wait_for(lambda: f"message rejected (number {rejected + 1})" in pipe.engine_output)
    lease.release()  # it was never lent


def test_a_descriptor_that_comes_twice_is_read_once(pipe: Pipeline) -> None:
    request_id, frames, lease = packed(pipe)
    with lender_of(pipe).lending(lease):
        first = by_hand(pipe, request_id, frames)
    assert first.result(5)
    again = next(pipe._link._ids)
    head = bytearray(frames[0])
    head[8:16] = again.to_bytes(8, "little")  # the envelope's request id
    with pytest.raises(WireError, match="is stale"):
        by_hand(pipe, again, [head, frames[1]]).result(5)
    assert is_empty(pipe)
    items = random_items(MIB)
    assert pipe.submit_items(items).result(2).checksum == checksum_items(items)
    assert wait_for(lambda: "is stale" in pipe.engine_output)


def test_returns_of_nobody_are_counted_and_change_nothing(pipe: Pipeline) -> None:
    arena, before = arena_of(pipe), pipe.stats()["arena_stale_returns"]
    with arena.reserve(1000) as lease:
        strangers = [
            Returned(arena.id, lease.generation, lease.number),
            Returned(arena.id + 1, lease.generation, lease.number),
        ]
        lender_of(pipe).take_back(strangers)
        assert arena.stats().leases == 1
    assert pipe.stats()["arena_stale_returns"] == before + 2


def test_leases_come_back_while_the_engine_does_nothing_else(
    pipe: Pipeline, leftovers: Callable[..., list[str]]
) -> None:
    """No thread, file or process for each request."""
    pipe.submit_items(random_items(MIB)).result(5)
    leftovers.reset()  # type: ignore[attr-defined]
    for _ in range(50):
        assert pipe.submit_items(random_items(MIB)).result(5)
    assert is_empty(pipe)
    assert not leftovers("fds", "threads", "processes", "shm")
