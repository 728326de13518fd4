"""Links over ZeroMQ: frames arrive whole, memory is held until it was read, nothing ever hangs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zmq

from mmlab import TransportError, UsageError
from mmlab.transports import open_transport
from mmlab.transports.base import Transport
from mmlab.transports.links import COPY_BELOW, MAX_PATH, check_endpoint
from mmlab.transports.zmq import tcp

NAMES = ("inproc", "ipc", "tcp")


@pytest.fixture(scope="module", autouse=True)
def _pyzmq_is_warm() -> None:
    """pyzmq keeps one thread for all frames that are not copied, from the first one on."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        one.bind("inproc://warm")
        two.connect("inproc://warm")
        one.send(bytearray(COPY_BELOW), copy=False)
        two.recv()


@pytest.fixture(params=NAMES)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    with open_transport(request.param) as opened:
        yield opened


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return met


def test_frames_arrive_as_they_were_sent(transport: Transport, tmp_path: Path) -> None:
    sizes = [0, 1, 255, 256, COPY_BELOW - 1, COPY_BELOW, COPY_BELOW + 1, 1 << 20, 0]
    frames = [np.random.default_rng(i).bytes(size) for i, size in enumerate(sizes)]
    receiver = transport.bind_requests(tmp_path)
    sender = transport.connect_requests(receiver.endpoint)
    before = time.monotonic_ns()
    sent = sender.send([frames[0], bytearray(frames[1]), *map(memoryview, frames[2:])])
    message = receiver.receive(5)
    assert message is not None
    assert [bytes(frame) for frame in message.frames] == frames
    assert sent.num_frames == len(sizes)
    assert sent.nbytes == message.nbytes == sum(sizes)
    assert before <= sent.started_ns <= message.received_ns <= time.monotonic_ns()


def test_frames_of_other_shapes_are_sent_as_their_bytes(tmp_path: Path) -> None:
    pixels = np.arange(6, dtype=np.float32).reshape(2, 3)
    with open_transport("ipc") as transport:
        receiver = transport.bind_requests(tmp_path)
        sent = transport.connect_requests(receiver.endpoint).send([memoryview(pixels)])
        message = receiver.receive(5)
    assert message is not None and bytes(message.frames[0]) == pixels.tobytes()
    assert sent.nbytes == 24


def test_nothing_to_receive_is_none_after_the_timeout(transport: Transport, tmp_path: Path) -> None:
    receiver = transport.bind_requests(tmp_path)
    begun = time.monotonic()
    assert receiver.receive(0.05) is None
    assert 0.04 < time.monotonic() - begun < 2


def test_another_thread_can_end_a_wait(transport: Transport, tmp_path: Path) -> None:
    receiver = transport.bind_requests(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receiver.receive)
        time.sleep(0.05)
        receiver.interrupt()
        assert waiting.result(2) is None


@pytest.mark.parametrize("name", ["ipc", "tcp"])
def test_every_large_frame_is_held_until_zeromq_is_done_with_it(name: str, tmp_path: Path) -> None:
    with open_transport(name) as sending, open_transport(name) as receiving:
        receiver = receiving.bind_requests(tmp_path)
        endpoint = receiver.endpoint
        receiver.close()  # from here on nobody listens, so nothing can be read
        sender = sending.connect_requests(endpoint)
        arrays = [np.full(COPY_BELOW + i, i, np.uint8) for i in range(3)]
        held = [weakref.ref(array) for array in arrays]
        sender.send([b"small", *(memoryview(array) for array in arrays), bytes(COPY_BELOW - 1)])
        del arrays
        gc.collect()
        assert sender.unreleased() == 3  # one tracker a frame, not one a message
        assert all(array() is not None for array in held)
        sender.close()
        assert wait_for(lambda: all(array() is None for array in held))
        assert sender.unreleased() == 0


def test_memory_is_given_back_once_the_other_side_has_read(tmp_path: Path) -> None:
    with open_transport("ipc") as transport:
        receiver = transport.bind_requests(tmp_path)
        sender = transport.connect_requests(receiver.endpoint)
        array = np.zeros(1 << 20, np.uint8)
        held = weakref.ref(array)
        sender.send([memoryview(array), memoryview(array)])
        del array
        message = receiver.receive(5)
        assert message is not None
        assert wait_for(lambda: sender.unreleased() == 0)
        assert wait_for(lambda: held() is None)
        assert [frame.nbytes for frame in message.frames] == [1 << 20] * 2


def test_threads_share_a_sender_and_messages_stay_whole(
    transport: Transport, tmp_path: Path
) -> None:
    receiver = transport.bind_requests(tmp_path)
    sender = transport.connect_requests(receiver.endpoint)

    def send(thread: int) -> None:
        for number in range(25):
            sender.send([bytes([thread, number])] + [bytes([thread]) * COPY_BELOW] * 3)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(8)))
    seen = set()
    for _ in range(200):
        message = receiver.receive(5)
        assert message is not None and len(message.frames) == 4
        head = bytes(message.frames[0])
        assert all(bytes(f) == bytes(head[:1]) * COPY_BELOW for f in message.frames[1:])
        seen.add(head)
    assert len(seen) == 200


def test_replies_find_their_frontend_and_unknown_ones_are_told(
    transport: Transport, tmp_path: Path
) -> None:
    replies = transport.bind_replies(tmp_path)
    assert replies.send(b"f1", [b"nobody"]) is False
    one = transport.connect_replies(replies.endpoint, b"f1")
    two = transport.connect_replies(replies.endpoint, b"f2")
    assert wait_for(lambda: replies.send(b"f1", [b"for one", b"more"]))
    assert wait_for(lambda: replies.send(b"f2", [b"for two"]))
    first, second = one.receive(5), two.receive(5)
    assert first is not None and [bytes(f) for f in first.frames] == [b"for one", b"more"]
    assert second is not None and [bytes(f) for f in second.frames] == [b"for two"]
    two.close()
    if transport.name != "inproc":
        assert wait_for(lambda: replies.send(b"f2", [b"gone"]) is False)
    assert replies.send(b"f1", [b"still there"])


def test_a_frame_over_the_limit_ends_its_connection_only(tmp_path: Path) -> None:
    with open_transport("ipc") as transport:
        receiver = transport.bind_requests(tmp_path, max_nbytes=1 << 20)
        bad = transport.connect_requests(receiver.endpoint)
        good = transport.connect_requests(receiver.endpoint)
        bad.send([bytes((1 << 20) + 1)])
        good.send([bytes(1 << 20)])
        message = receiver.receive(5)
        assert message is not None and message.nbytes == 1 << 20
        assert receiver.receive(0.1) is None


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://0.0.0.0:5555",
        "tcp://*:5555",
        "tcp://10.0.0.1:5555",
        "tcp://127.0.0.1.example.org:5555",
        "tcp://localhost:5555",
        "tcp://[::]:5555",
        "tcp://127.0.0.1:5555;10.0.0.1:1",
        "tcp://eth0;127.0.0.1:5555",
    ],
)
def test_tcp_beyond_this_machine_is_refused(endpoint: str) -> None:
    with open_transport("tcp") as transport:
        with pytest.raises(TransportError, match=r"limited to 127\.0\.0\.1"):
            transport.connect_requests(endpoint)
        with pytest.raises(TransportError, match=r"limited to 127\.0\.0\.1"):
            transport.connect_replies(endpoint, b"f1")


def test_tcp_listens_on_loopback_only() -> None:
    with tcp() as transport:
        assert transport.bind_requests(None).endpoint.startswith("tcp://127.0.0.1:")
        assert not transport.private
    with tcp("0.0.0.0") as transport, pytest.raises(TransportError, match="refused"):
        transport.bind_replies(None)


@pytest.mark.parametrize("length", [MAX_PATH, MAX_PATH + 1])
def test_a_socket_path_has_107_bytes(length: int) -> None:
    endpoint = "ipc:///" + "x" * (length - 1)
    if length <= MAX_PATH:
        assert check_endpoint(endpoint) == endpoint
    else:
        with pytest.raises(TransportError, match=r"108 bytes.*limited to 107.*TMPDIR"):
            check_endpoint(endpoint)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown transport 'icp'.*known: inproc, ipc, tcp"):
        open_transport("icp")
    with pytest.raises(TransportError, match="unknown scheme"):
        check_endpoint("pgm://127.0.0.1:1")


def test_closing_leaves_nothing(leftovers: Callable[..., list[str]], tmp_path: Path) -> None:
    for name in NAMES:
        with open_transport(name) as transport:
            receiver = transport.bind_requests(tmp_path)
            replies = transport.bind_replies(tmp_path)
            sender = transport.connect_requests(receiver.endpoint)
            transport.connect_replies(replies.endpoint, b"f1")
            sender.send([bytes(1 << 20)] * 2)
        transport.close()  # again
        receiver.close()
        receiver.interrupt()
    assert not leftovers("fds", "threads")
    assert not list(tmp_path.iterdir())


def test_a_link_that_is_closed_says_so(tmp_path: Path) -> None:
    with open_transport("ipc") as transport:
        sender = transport.connect_requests(f"ipc://{tmp_path}/nobody")
        sender.close()
        with pytest.raises(TransportError, match="cannot send to ipc://"):
            sender.send([b"x"])


UNSENT = """
import sys
from mmlab.transports import open_transport
with open_transport("ipc") as transport:
    sender = transport.connect_requests("ipc://" + sys.argv[1])
    sender.send([b"header", *(bytearray(25 << 20) for _ in range(4))])
    assert sender.unreleased() == 4
print("closed", flush=True)
"""


def test_unsent_messages_do_not_keep_the_process(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", UNSENT, str(tmp_path / "nobody")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with started as process:
        assert process.stdout is not None and process.stderr is not None
        timer = threading.Timer(40, process.kill)
        timer.start()
        assert process.stdout.readline() == b"closed\n"
        begun = time.monotonic()
        assert process.wait(5) == 0
        timer.cancel()
        assert time.monotonic() - begun < 5
        assert process.stderr.read() == b""
