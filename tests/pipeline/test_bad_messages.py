"""Messages that nobody should send: rejected, logged, answered where the id can be read, survived.

Every one goes to the input of a real engine process, and every one is followed by a valid request,
which must be answered within 2 s (R22, R24).
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import torch
from pipeline_parts import images, wait_for

from mmlab import KwargsItems, WireError, batched
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.inflight import Pending, ReplyFuture
from mmlab.pipeline.messages import COUNTER_BITS, Kind, Request
from mmlab.transports import Buffer
from mmlab.transports.zmq import ZmqTransport, ipc
from mmlab.wire import Encoder, read_envelope

SIZE = 32  # of an envelope
ID_KNOWN, ID_HIDDEN = True, False


@pytest.fixture(scope="module")
def outsider() -> Iterator[ZmqTransport]:
    """Somebody else's end: it can say what no frontend would."""
    with ipc() as transport:
        yield transport


def good_frames(request_id: int) -> list[bytes]:
    request = Request([1], 1, images(3, shape=(3, 64, 64)))
    frames = Encoder().encode(request, kind=Kind.REQUEST, request_id=request_id)
    return [bytes(frame) for frame in frames]


def envelope(request_id: int, body: int, table: int = 0, inline: int = 0) -> bytes:
    return struct.pack("<4sBBHQIIQ", b"mmlb", 1, Kind.REQUEST, 0, request_id, body, table, inline)


def with_body(request_id: int, body: bytes) -> list[bytes]:
    return [envelope(request_id, len(body)) + body]


def three_tensors(request_id: int) -> list[bytes]:
    """A request of three frames of payload, each of its own memory."""
    outputs = {name: torch.ones(1, 400_000) for name in "abc"}
    items = KwargsItems.from_processor(outputs, {name: batched("image") for name in "abc"})
    frames = Encoder().encode(Request([1], 1, items), kind=Kind.REQUEST, request_id=request_id)
    assert len(frames) == 4
    return [bytes(frame) for frame in frames]


DEEP = b"\x91" * 100_000 + b"\xc0"  # lists in lists


def with_items(request_id: int, items: bytes) -> list[bytes]:
    """A request whose items are this msgpack."""
    return with_body(request_id, b"\x82\xa9token_ids\x90\xa2mm" + items)


def extension(code: int, data: bytes) -> bytes:
    return b"\xc9" + struct.pack(">IB", len(data), code) + data


def messages(n: int) -> dict[str, tuple[list[bytes], bool]]:
    """name -> (frames, whether the id can be read) of every bad message, for request id `n`."""
    good = good_frames(n)
    body = msgspec.msgpack.encode
    return {
        "empty frame": ([b""], ID_HIDDEN),
        "two empty frames": ([b"", b""], ID_HIDDEN),
        "half an envelope": ([good[0][:16]], ID_HIDDEN),
        "another magic": ([b"xxxx" + good[0][4:], *good[1:]], ID_HIDDEN),
        "another version": ([good[0][:4] + b"\x09" + good[0][5:], *good[1:]], ID_HIDDEN),
        "envelope without a body": ([good[0][:SIZE], *good[1:]], ID_KNOWN),
        "truncated msgpack": ([good[0][:-7], *good[1:]], ID_KNOWN),
        "truncated msgpack, sizes adjusted": (
            with_body(n, body({"token_ids": [1]})[:-1]),
            ID_KNOWN,
        ),
        "trailing bytes": ([good[0] + b"\x00" * 5, *good[1:]], ID_KNOWN),
        "trailing bytes, sizes adjusted": (
            with_body(n, body({"token_ids": [1]}) + b"\xc0"),
            ID_KNOWN,
        ),
        "three frames promised, two sent": (three_tensors(n)[:3], ID_KNOWN),
        "payload shorter than its shape": ([good[0], good[1][:-4]], ID_KNOWN),
        "payload frame empty": ([good[0], b""], ID_KNOWN),
        "nested 100,000 deep": (with_body(n, DEEP), ID_KNOWN),
        "nested 100,000 deep in the items": (with_items(n, DEEP), ID_KNOWN),
        "nested 100,000 deep in a value": (with_items(n, extension(2, DEEP)), ID_KNOWN),
        "nested 100,000 deep in a column": (with_items(n, extension(3, DEEP)), ID_KNOWN),
        "a tensor for the items": (with_items(n, extension(1, bytes(4))), ID_KNOWN),
        "an unknown extension": (with_items(n, extension(99, b"x")), ID_KNOWN),
        "a wrong type": (with_body(n, body({"token_ids": "abc"})), ID_KNOWN),
        "no request at all": (with_body(n, body([1, 2, 3])), ID_KNOWN),
        "nothing but a map of maps": (with_body(n, b"\x81\xa9token_ids" + b"\x91" * 9), ID_KNOWN),
        "dtype by the name of a function": (
            with_body(n, body({"token_ids": [], "mm": {"dtype": "load", "shape": [1]}})),
            ID_KNOWN,
        ),
        "dtype by the name of a class": (
            with_body(n, body({"token_ids": [], "mm": {"dtype": "Tensor", "shape": [-1]}})),
            ID_KNOWN,
        ),
        "sizes beyond everything": ([envelope(n, 2**32 - 1, 2**32 - 1, 2**63)], ID_KNOWN),
        "a declared terabyte": ([envelope(n, 4, 0, 1 << 40) + b"\xc0" * 4], ID_KNOWN),
    }


def answer_to_bad(pipeline: Pipeline, request_id: int) -> ReplyFuture:
    """A future that waits for what the engine says about a request that we send ourselves."""
    link = pipeline._link
    future = ReplyFuture(request_id, link.inflight.cancel, None)
    link.budget.acquire(0, 0)
    link.inflight.add(request_id, Pending(future, 0, 0))
    return future


NAMES = list(messages(0))


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_message_is_rejected_and_the_next_request_is_served(
    echo: Pipeline, outsider: ZmqTransport, name: str
) -> None:
    request_id = next(echo._link._ids)
    frames, id_known = messages(request_id)[name]
    future = answer_to_bad(echo, request_id)
    rejected = echo.submit_items(None).result(5) and echo.stats()["engine_rejected"]
    sender = outsider.connect_requests(echo.info.requests_endpoint)
    sender.send(frames)
    if id_known:
        with pytest.raises(WireError, match=r"failed in the engine \(decode\): "):
            future.result(5)
    assert wait_for(
        lambda: echo.submit_items(None).result(2) and echo.stats()["engine_rejected"] > rejected
    )
    items = images(2)
    assert echo.submit_items(items).result(2).checksum == checksum_items(items)
    assert echo.stats()["engine_rejected"] == rejected + 1
    assert wait_for(lambda: f"message rejected (number {rejected + 1})" in echo.engine_output)
    future.cancel()
    echo._link.inflight.take(request_id)
    sender.close()


def test_no_changed_byte_of_a_header_ends_the_engine(
    echo: Pipeline, outsider: ZmqTransport
) -> None:
    """Negative shapes, unknown dtypes, offsets out of range: whatever a byte can mean."""
    sender = outsider.connect_requests(echo.info.requests_endpoint)
    spared = range(4, 16)  # version, kind and id: other messages, not bad ones
    for at in [i for i in range(len(good_frames(0)[0])) if i not in spared]:
        for value in (0x00, 0x7F, 0xFF):
            good = good_frames(next(echo._link._ids))
            head = bytearray(good[0])
            head[at] = value
            sender.send([bytes(head), *good[1:]])
    items = images(2)
    assert echo.submit_items(items).result(20).checksum == checksum_items(items)
    assert echo.submit_items(items).result(2).checksum == checksum_items(items)
    sender.close()


def test_declared_sizes_allocate_nothing(echo: Pipeline, outsider: ZmqTransport) -> None:
    engine = psutil.Process(echo.engine_pid)
    echo.submit_items(images(1)).result(5)
    before = engine.memory_info().rss
    sender = outsider.connect_requests(echo.info.requests_endpoint)
    bad = messages(next(echo._link._ids))
    for name in ("sizes beyond everything", "a declared terabyte", "nested 100,000 deep"):
        for _ in range(20):
            sender.send(bad[name][0])
    echo.submit_items(images(1)).result(10)
    assert engine.memory_info().rss - before < 32 << 20
    sender.close()


class Marker:
    """Unpickling one makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_is_never_loaded(
    echo: Pipeline, outsider: ZmqTransport, tmp_path: Path, protocol: int
) -> None:
    marker = tmp_path / "marker"
    evil = pickle.dumps(Marker(marker), protocol=protocol)
    pickle.loads(evil)
    assert marker.exists()  # it does what it should fail to do
    marker.unlink()

    def new() -> int:
        return next(echo._link._ids)

    good, more = good_frames(new()), good_frames(new())
    attempts: list[list[Buffer]] = [
        [evil],
        [good[0], evil],
        [more[0], more[1], evil],
        with_body(new(), evil),
        *(with_body(new(), extension(code, evil)) for code in range(128)),
        *(with_items(new(), extension(code, evil)) for code in range(128)),
        with_body(new(), msgspec.msgpack.encode({"token_ids": [1], "mm": evil})),
        [envelope(new(), 0, 0, len(evil)) + b"\0" * 32 + evil],
    ]
    sender = outsider.connect_requests(echo.info.requests_endpoint)
    for frames in attempts:
        sender.send(frames)
    items = images(2)
    assert echo.submit_items(items).result(5).checksum == checksum_items(items)
    assert wait_for(lambda: echo.submit_items(None).result(2)) and not marker.exists()
    sender.close()


def test_only_private_sockets_are_bound(echo: Pipeline) -> None:
    engine = psutil.Process(echo.engine_pid)
    assert engine.net_connections("inet") == []
    paths = {c.laddr for c in engine.net_connections("unix") if c.laddr}
    directory = re.escape(str(Path(echo.info.requests_endpoint.removeprefix("ipc://")).parent))
    assert paths and all(re.fullmatch(rf"{directory}/(req|rep|ctl)", path) for path in paths)


def test_replies_that_nobody_waits_for_are_counted(echo: Pipeline, outsider: ZmqTransport) -> None:
    before = echo.stats()["unexpected_replies"]
    sender = outsider.connect_requests(echo.info.requests_endpoint)
    request_id = next(echo._link._ids)
    sender.send(good_frames(request_id))
    assert read_envelope(good_frames(request_id)[0]).request_id == request_id
    assert wait_for(lambda: echo.stats()["unexpected_replies"] == before + 1)
    sender.close()


def test_a_frontend_that_is_not_attached_is_turned_away_at_no_cost(
    echo: Pipeline, outsider: ZmqTransport
) -> None:
    """Counted, and logged up to a bound; nothing of its requests is kept or served."""
    engine = psutil.Process(echo.engine_pid)
    sender = outsider.connect_requests(echo.info.requests_endpoint)
    assert echo.submit_items(None).result(5)
    before, memory = echo.stats(), engine.memory_info().rss
    payload = bytes(4 << 20)
    strangers = [0, 2, 77, (1 << 24) - 1]
    for serial in range(25):
        for number in strangers:
            head = good_frames((number << COUNTER_BITS) + serial)[0]
            sender.send([head, payload])
    sender.send([*good_frames(5 << COUNTER_BITS)])
    items = images(2)
    assert wait_for(
        lambda: (
            echo.submit_items(items).result(5).checksum == checksum_items(items)
            and echo.stats()["engine_rejected"] == before["engine_rejected"] + 101
        )
    )
    assert engine.memory_info().rss - memory < 64 << 20
    assert wait_for(lambda: "frontend 16777215 is not attached" in echo.engine_output)
    assert "frontend 5 is not attached" not in echo.engine_output  # the 101st
    assert echo.stats()["unexpected_replies"] == before["unexpected_replies"]
    sender.close()
