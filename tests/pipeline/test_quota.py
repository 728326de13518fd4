"""What may wait in the engine for each frontend, and what becomes of one that leaves."""

from __future__ import annotations

import logging

import pytest
from pipeline_parts import ME, EngineHere, FakeModel, engine_here, images, wait_for

from mmlab import TransportError
from mmlab.pipeline.inflight import MAX_REQUESTS
from mmlab.pipeline.messages import (
    COUNTER_BITS,
    EngineReply,
    ErrorReply,
    Kind,
    Request,
    frontend_of,
)
from mmlab.pipeline.quota import Quota
from mmlab.transports import links
from mmlab.transports.base import ReplyReceiver
from mmlab.wire import Decoder, Encoder, read_envelope

OTHER = 2 << COUNTER_BITS
SMALL = (3, 64, 64)  # 48 KiB an image


def test_twice_the_budget_and_the_slack_may_wait_and_not_a_byte_more() -> None:
    quota = Quota(7, budget=1000, slack=50)
    for nbytes in (1000, 1000, 50):
        quota.take(nbytes)
    with pytest.raises(TransportError, match=r"frontend 7: .* of 1 bytes .* 2050 bytes .* 2050"):
        quota.take(1)
    quota.give_back(50)
    with pytest.raises(TransportError):
        quota.take(51)
    quota.take(50)
    assert (quota.nbytes, quota.count) == (2050, 3)


def test_requests_without_payload_are_bounded_by_their_number() -> None:
    quota = Quota(7, budget=None)
    quota.take(1 << 60)
    for _ in range(2 * MAX_REQUESTS - 1):
        quota.take(0)
    with pytest.raises(TransportError, match=f"{2 * MAX_REQUESTS} may"):
        quota.take(0)
    quota.give_back(0)
    quota.take(0)


def busy(engine: EngineHere, model: FakeModel) -> None:
    """The model computes for somebody until its gate opens."""
    model.gate.clear()
    engine.send(None)
    assert model.entered.wait(5)


def frames_of(request_id: int) -> list[bytes]:
    request = Request([1], 1, images(1, 1.0, SMALL))
    frames = Encoder().encode(request, kind=Kind.REQUEST, request_id=request_id)
    return [bytes(frame) for frame in frames]


def other_receiver(engine: EngineHere) -> ReplyReceiver:
    """The other frontend's end for replies, known to the engine."""
    receiver = engine.transport.connect_replies(engine.engine._replies.endpoint, frontend_of(OTHER))
    engine.engine._inbox.admit(2, 100_000, slack=0)
    engine.say(Kind.HELLO, OTHER)
    message = receiver.receive(5)
    assert message is not None and read_envelope(message.frames[0]).kind == Kind.HELLO
    return receiver


def test_a_flood_is_refused_beyond_its_bound_and_the_others_are_served() -> None:
    model = FakeModel()
    with engine_here(model) as engine:
        receiver = other_receiver(engine)
        busy(engine, model)
        nbytes = sum(map(len, frames_of(OTHER)))
        fit = 200_000 // nbytes
        for serial in range(1, 101):
            engine.sender.send(frames_of(OTHER + serial))
        mine = engine.send(images(2))
        for serial in range(fit + 1, 101):  # all of these are answered at once
            message = receiver.receive(5)
            assert message is not None
            envelope = read_envelope(message.frames[0])
            assert (envelope.request_id, envelope.kind) == (OTHER + serial, Kind.ERROR)
            error = Decoder(ErrorReply).decode(message.frames)
            assert isinstance(error, ErrorReply)
            assert (error.stage, error.error) == ("queue", "TransportError")
            assert f"{fit * nbytes} bytes" in error.message and "200000 bytes" in error.message
        inbox = engine.engine._inbox
        assert sum(message.nbytes for message in inbox._waiting.values()) < 200_000 + 10_000
        model.gate.set()
        engine.receive()
        assert engine.receive()[:2] == (mine, Kind.REPLY)
        for serial in range(1, fit + 1):
            message = receiver.receive(5)
            assert message is not None
            assert read_envelope(message.frames[0]).request_id == OTHER + serial
            assert isinstance(Decoder(EngineReply).decode(message.frames), EngineReply)
        assert inbox._quotas[2].nbytes == inbox._quotas[2].count == 0
        assert inbox.rejected == 100 - fit


def test_an_abort_makes_room_for_what_comes_next() -> None:
    model = FakeModel()
    with engine_here(model) as engine:
        other_receiver(engine)
        busy(engine, model)
        for serial in range(1, 5):
            engine.sender.send(frames_of(OTHER + serial))
            engine.say(Kind.ABORT, OTHER + serial)
        engine.sender.send(frames_of(OTHER + 9))
        inbox = engine.engine._inbox
        assert wait_for(lambda: OTHER + 9 in inbox._waiting)
        assert inbox._quotas[2].count == 1 and inbox.rejected == 0


def test_who_leaves_takes_his_requests_along_and_nobody_elses() -> None:
    model = FakeModel()
    with engine_here(model) as engine:
        receiver = other_receiver(engine)
        model.gate.clear()
        engine.sender.send(frames_of(OTHER + 1))
        assert model.entered.wait(5)  # active
        engine.sender.send(frames_of(OTHER + 2))
        mine = engine.send(images(2))
        inbox = engine.engine._inbox
        assert wait_for(lambda: len(inbox._waiting) == 2)
        engine.engine.drop(2)
        assert list(inbox._waiting) == [mine]
        engine.sender.send(frames_of(OTHER + 3))  # still on its way when it left
        assert wait_for(lambda: inbox.rejected == 1)
        model.gate.set()
        assert engine.receive()[:2] == (mine, Kind.REPLY)
        assert receiver.receive(0.1) is None
        assert wait_for(lambda: not inbox._active)
        assert not inbox._waiting and not inbox._aborted and list(inbox._quotas) == [1]
        engine.engine.drop(2)


def test_who_reads_no_replies_costs_a_bounded_number_and_delays_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "MAX_QUEUED_REPLIES", 10)  # at either end
    with engine_here() as engine:
        receiver = other_receiver(engine)
        for serial in range(1, 101):
            engine.sender.send(frames_of(OTHER + serial))
            mine = engine.send(None)
            assert engine.receive()[:2] == (mine, Kind.REPLY)
        taken = 0
        while receiver.receive(0.1) is not None:
            taken += 1
        assert 10 <= taken <= 30
        engine.sender.send(frames_of(OTHER + 101))  # and goes on where it reads again
        assert receiver.receive(5) is not None


def test_replies_that_nobody_takes_are_logged_up_to_a_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with engine_here() as engine, caplog.at_level(logging.WARNING, "mmlab.engine"):
        engine.engine.admit(3, 1000)  # and never connects
        for serial in range(150):
            engine.say(200, (3 << COUNTER_BITS) + serial)
            engine.say(200, (4 << COUNTER_BITS) + serial)  # not even attached
        engine.say(Kind.HELLO)
        assert engine.receive()[:2] == (ME, Kind.HELLO)
        inbox = engine.engine._inbox
        assert inbox.rejected == 300
    lines = [record.getMessage() for record in caplog.records]
    assert sum("was not taken" in line for line in lines) == 100
    assert sum("frontend 4 is not attached" in line for line in lines) == 100
