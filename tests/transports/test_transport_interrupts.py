"""Ctrl-C and other interruptions in the middle of a message: whole, or ended for certain."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import zmq

from mmlab.transports import open_transport
from mmlab.transports.interrupts import uninterrupted
from mmlab.transports.links import Pull, Push


@pytest.fixture
def ends(tmp_path: Path):  # type: ignore[no-untyped-def]
    with open_transport("ipc") as transport:
        pull = transport.bind_requests(tmp_path)
        yield transport.connect_requests(pull.endpoint), pull


def received(pull: Pull) -> list[bytes]:
    message = pull.receive(5)
    assert message is not None
    return [bytes(frame) for frame in message.frames]


def test_a_signal_between_two_frames_comes_after_the_message(
    ends: tuple[Push, Pull], monkeypatch: pytest.MonkeyPatch
) -> None:
    push, pull = ends
    real = Push._send_frame

    def signalled(self: Push, view: memoryview, flags: int) -> None:
        real(self, view, flags)
        if flags & zmq.SNDMORE:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Push, "_send_frame", signalled)
    with pytest.raises(KeyboardInterrupt):
        push.send([b"a", b"b", b"c" * 100_000])
    monkeypatch.undo()
    push.send([b"next"])
    assert received(pull) == [b"a", b"b", b"c" * 100_000]
    assert received(pull) == [b"next"]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_message_that_broke_off_does_not_swallow_the_next(
    ends: tuple[Push, Pull], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    push, pull = ends
    real, left = Push._send_frame, [at]

    def breaking(self: Push, view: memoryview, flags: int) -> None:
        if not left[0]:
            raise MemoryError
        left[0] -= 1
        real(self, view, flags)

    monkeypatch.setattr(Push, "_send_frame", breaking)
    with pytest.raises(MemoryError):
        push.send([b"a", b"b", b"c"])
    monkeypatch.undo()
    push.send([b"next"])
    if at:
        assert received(pull) == [*[b"a", b"b"][:at], b""]
    assert received(pull) == [b"next"]


def test_the_handler_of_the_program_is_called_at_the_end_and_stays() -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    mine = signal.getsignal(signal.SIGINT)
    try:
        with uninterrupted():
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGINT)
            assert called == []
        assert called == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is mine
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with uninterrupted():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_touched() -> None:
    handler, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(5)
    assert seen == [handler]
