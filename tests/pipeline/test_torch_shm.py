"""torch's shared memory as a peer: the same answers, no name, and every descriptor comes back."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import psutil
import pytest
import torch
from arena_pipeline_parts import MIB, frozen, pixels_of, random_items
from pipeline_parts import images, script, socket_directory, wait_for

from mmlab import BackpressureTimeout, EngineError, KwargsItems, UsageError, WireError, batched
from mmlab.bench.peers import torch_shm
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.directory import sweep
from mmlab.strategies import resolve
from mmlab.transports import Buffer

MEMFD = "/memfd:mmlab-torch-shm"


def started(**settings: object) -> Pipeline:
    return Pipeline(
        model="echo",
        strategy="torch-shm",
        insecure_pickle=True,
        engine_threads=1,
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def shared_pipe() -> Iterator[Pipeline]:
    with started(max_inflight_nbytes=64 * MIB) as pipeline:
        pipeline.submit_items(random_items(MIB)).result(10)
        yield pipeline


@pytest.fixture
def pipe(shared_pipe: Pipeline) -> Iterator[Pipeline]:
    """Nothing may be under way, and no storage mapped by either process, after the test."""
    before = descriptors(shared_pipe)
    yield shared_pipe
    assert wait_for(lambda: not shared_pipe.stats()["requests_inflight"])
    assert shared_pipe.submit_items(random_items(MIB)).result(5).checksum
    assert wait_for(lambda: descriptors(shared_pipe) == before)
    assert wait_for(lambda: storages("self") == storages(shared_pipe.engine_pid) == 0)
    stats = shared_pipe.stats()
    assert stats["shm_requests"] == stats["shm_waiting"] == 0


def descriptors(pipeline: Pipeline) -> tuple[int, int]:
    """Open in the frontend and in the engine."""
    pids = ("self", pipeline.engine_pid)
    mine, its = (len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
    return mine, its


def storages(pid: int | str) -> int:
    """How many of torch's storages that process maps."""
    try:
        return Path(f"/proc/{pid}/maps").read_text().count(MEMFD)
    except OSError:
        return 0


@pytest.mark.parametrize(
    "items",
    [
        None,
        images(3),
        images(5, 2.5, shape=(3, 96, 96)),
        KwargsItems.from_processor(
            {"pixel_values": [torch.rand(3, 80 + n, 90).bfloat16() for n in range(4)]},
            {"pixel_values": batched("image")},
        ),
    ],
    ids=["text", "little", "batch", "ragged"],
)
def test_what_arrives_is_what_was_sent(pipe: Pipeline, items: KwargsItems | None) -> None:
    reply = pipe.submit_items(items, [1]).result(10)
    assert reply.checksum == checksum_items(items)
    assert reply.num_frames <= 2 and reply.wire_nbytes < max(4096, 2 * torch_shm.LITTLE)
    if items is not None and items.nbytes >= torch_shm.LITTLE:
        assert reply.wire_nbytes < 4096


def test_descriptors_come_back_after_many_requests_and_aborts(pipe: Pipeline) -> None:
    before = descriptors(pipe)
    for number in range(50):
        sent = random_items(MIB // 8, 1 + number % 3)
        assert pipe.submit_items(sent).result(5).checksum == checksum_items(sent)
    with frozen(pipe):
        futures = [pipe.submit_items(random_items(MIB)) for _ in range(12)]
        assert descriptors(pipe)[0] >= before[0] + 12  # each request holds one until it is fetched
        assert all(future.cancel() for future in futures[::2])
    for future in futures[1::2]:
        assert future.result(5)
    assert wait_for(lambda: descriptors(pipe) == before)


def test_the_callers_tensors_stay_where_they_are(pipe: Pipeline) -> None:
    huge = torch.randint(0, 256, (16, MIB), dtype=torch.uint8)
    address = huge.data_ptr()
    items = pixels_of(huge[3:5])
    with frozen(pipe):
        future = pipe.submit_items(items)
        sharer = pipe._link._outgoing
        assert sharer is not None
        (storage,) = sharer._waiting.values()
        assert storage.nbytes() == 2 * MIB and storage.is_shared()  # of a storage of 16 MiB
        assert storage.data_ptr() not in range(address, address + huge.nbytes)
        assert storages("self") == 1
        del storage
    assert future.result(5).checksum == checksum_items(items)
    assert huge.data_ptr() == address and not huge.is_shared()


def test_no_more_requests_than_descriptors_allow(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_shm, "MAX_SHARED", 3)
    with frozen(pipe):
        futures = [pipe.submit_items(random_items(MIB)) for _ in range(3)]
        with pytest.raises(BackpressureTimeout, match="3 requests have memory under way"):
            pipe.submit_items(random_items(MIB), timeout=0.1)
        assert pipe.stats()["shm_requests"] == 3
        futures.append(pipe.submit_items(images(1)))  # a little one needs no memory
    assert all(future.result(5) for future in futures)


def test_whoever_has_not_the_key_gets_nothing(pipe: Pipeline) -> None:
    sent = random_items(MIB)
    with frozen(pipe):
        future = pipe.submit_items(sent)
        with pytest.raises(AuthenticationError):
            Client(str(socket_directory(pipe) / torch_shm.SOCKET), authkey=b"guessed")
        assert pipe.stats()["shm_waiting"] == 1
    assert future.result(10).checksum == checksum_items(sent)


def test_who_says_nothing_holds_up_no_close(tmp_path: Path) -> None:
    sharer = torch_shm.Sharer(tmp_path)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.connect(str(tmp_path / torch_shm.SOCKET))
        assert wait_for(lambda: sharer._visitor is not None)
        begun = time.monotonic()
        sharer.close()
        assert time.monotonic() - begun < torch_shm.ANSWER_S / 2
    assert not sharer._thread.is_alive()


def test_handles_that_name_nothing_end_their_request_only(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharer = pipe._link._outgoing
    assert sharer is not None
    honest, rejected = sharer.dumps, pipe.stats()["engine_rejected"]

    def spoilt(*arguments: object) -> tuple[list[Buffer], None]:
        (head, _), _ = honest(*arguments)  # type: ignore[arg-type]
        return [head, *handles], None

    monkeypatch.setattr(sharer, "dumps", spoilt)
    handles: list[bytes]
    for bad in ([b"no pickle"], [b"", b""], [pickle.dumps([7])]):
        handles = bad
        with pytest.raises(WireError, match="torch-shm: "):
            pipe.submit_items(random_items(MIB)).result(5)
    monkeypatch.undo()
    monkeypatch.setattr(sharer, "_waiting", _Forgetful())
    with pytest.raises(WireError, match=r"torch-shm: .* has no storage 0x"):
        pipe.submit_items(random_items(MIB)).result(5)
    monkeypatch.undo()
    assert pipe.submit_items(random_items(MIB)).result(5)
    assert pipe.stats()["engine_rejected"] == rejected + 4


class _Forgetful(dict[int, torch.UntypedStorage]):
    def __setitem__(self, key: int, value: torch.UntypedStorage) -> None:
        pass


def test_a_killed_engine_leaves_no_descriptor_and_no_name(
    leftovers: Callable[..., list[str]],
) -> None:
    with started(max_inflight_nbytes=64 * MIB) as pipeline:
        os.kill(pipeline.engine_pid, signal.SIGSTOP)
        futures = [pipeline.submit_items(random_items(MIB)) for _ in range(5)]
        assert storages("self") == 5
        os.kill(pipeline.engine_pid, signal.SIGKILL)
        assert all(isinstance(future.exception(5), EngineError) for future in futures)
        assert wait_for(lambda: storages("self") == 0)
        with pytest.raises(EngineError):
            pipeline.submit_items(random_items(MIB))
    assert not leftovers("fds", "threads", "processes", "shm")


FRONTEND = """
import json, os, signal
import torch
from mmlab import KwargsItems, batched
from mmlab.pipeline import Pipeline

pixels = torch.zeros(4, 1 << 20, dtype=torch.uint8)
items = KwargsItems.from_processor({"pixel_values": pixels}, {"pixel_values": batched("image")})
with Pipeline("echo", "torch-shm", insecure_pickle=True, engine_threads=1) as pipeline:
    pipeline.submit_items(items).result(10)
    os.kill(pipeline.engine_pid, signal.SIGSTOP)
    futures = [pipeline.submit_items(items) for _ in range(3)]
    print(json.dumps([pipeline.engine_pid, pipeline.info.requests_endpoint]), flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("both", [False, True], ids=["frontend", "frontend and engine"])
def test_after_a_killed_frontend_nothing_is_left(
    both: bool, leftovers: Callable[..., list[str]]
) -> None:
    with script(FRONTEND) as frontend:
        try:
            assert frontend.stdout is not None
            pid, endpoint = json.loads(frontend.stdout.readline())
            engine = psutil.Process(pid)
            assert storages(frontend.pid) == 3
        finally:
            frontend.kill()
    engine.kill() if both else engine.resume()
    assert wait_for(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, 10)
    directory = Path(endpoint.removeprefix("ipc://")).parent
    assert directory.exists() == both  # the engine removes it; else the next start does:
    sweep(directory.parent)
    assert not directory.exists()
    assert not leftovers("shm", "processes")


def test_no_memory_ever_has_a_name(pipe: Pipeline) -> None:
    """torch's own has one while it is reserved."""
    ours = (f"torch_{os.getpid()}_", f"torch_{pipe.engine_pid}_")
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.update(name for name in os.listdir("/dev/shm") if name.startswith(ours))  # noqa: PTH208

    watching = threading.Thread(target=watch)
    watching.start()
    for _ in range(5):
        pipe.submit_items(random_items(16 * MIB)).result(10)
    over.set()
    watching.join()
    assert not seen


@pytest.mark.parametrize("serializer", ["msgpack-inline", "pickle"])
def test_only_msgpack_goes_with_it(serializer: str) -> None:
    strategy = dataclasses.replace(resolve("torch-shm"), name="own", serializer=serializer)
    with pytest.raises(UsageError, match=r"'own'.*torch-shm goes with 'msgpack'"):
        Pipeline(model="echo", strategy=strategy, insecure_pickle=True)


def test_it_starts_only_where_unpickling_was_allowed() -> None:
    with pytest.raises(UsageError, match=r"'torch-shm'.*only with insecure_pickle=True"):
        Pipeline(model="echo", strategy="torch-shm")
    with pytest.raises(UsageError, match="insecure_pickle=True"):
        Pipeline(model="echo", transport="torch-shm")


def test_no_other_frontend_joins_its_engine(pipe: Pipeline) -> None:
    with pytest.raises(UsageError, match="'torch-shm' has one frontend"):
        Pipeline.attach(pipe.info.address, insecure_pickle=True)
